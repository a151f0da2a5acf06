"""The traps that users of SmolVLA fell into in public, rebuilt small: each is told, none acts silently.

The base policy here is made as `lerobot/smolvla_base` is: three slots `camera1..3` with fixed shapes, statistics only
under the names of the datasets that it was trained on, and a folder that needs nothing beside it.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.cli.app import main
from mimetic.errors import CheckpointError, ConfigError, KeyMismatch, StatsError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, save_pretrained
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_config, tiny_smolvla_flags, write_tiny_vlm

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images."
PRE = "policy_preprocessor_step_5_normalizer_processor.safetensors"
POST = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
MEAN, STD = torch.tensor([10.0, -20.0, 30.0]), torch.tensor([2.0, 3.0, 4.0])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A complete base policy, whose backbone's own folder is gone."""
    place = tmp_path_factory.mktemp("base")
    vlm = write_tiny_vlm(place / "vlm")
    config = tiny_smolvla_config(
        vlm,
        input_features={
            STATE: PolicyFeature(FeatureType.STATE, (6,)),
            **{f"{IMAGES}camera{i}": PolicyFeature(FeatureType.VISUAL, (3, 16, 16)) for i in (1, 2, 3)},
        },
        output_features={ACTION: PolicyFeature(FeatureType.ACTION, (3,))},
    )
    torch.manual_seed(1)
    policy = make_policy(config)
    stats = {
        STATE: {"mean": torch.full((6,), 5.0), "std": torch.full((6,), 2.0)},
        ACTION: {"mean": MEAN, "std": STD},
    }
    pipelines = policy.config.make_pipelines(
        input_features=config.input_features,
        output_features=config.output_features,
        norm_map=config.norm_map,
        stats=stats,
    )
    save_pretrained(policy, place / "checkpoint", *pipelines)
    shutil.rmtree(vlm)
    return place / "checkpoint"


@pytest.fixture
def base(made, tmp_path):
    shutil.copytree(made, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def observation():
    generator = torch.Generator().manual_seed(3)
    frames = {f"{IMAGES}camera{i}": torch.rand(1, 3, 16, 16, generator=generator) for i in (1, 2, 3)}
    return {**frames, STATE: torch.full((1, 6), 5.0), "task": ["pick up the cube"]}


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def run(*flags):
    """Exit code of a command in this process."""
    return main(list(flags))


def dataset(folder, *cameras, **changes):
    sizes = dict.fromkeys(cameras, (20, 24))
    build_dataset(folder, cameras=sizes, camera_dtype="image", state_dim=6, action_dim=3, **changes)
    return [f"--dataset.root={folder}", "--dataset.repo_id=me/data", "--dataset.video_backend=auto"]


def finetune(base, data, out, *flags):
    return run(
        "train",
        f"--policy.path={base}",
        *data,
        f"--output_dir={out}",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--steps=1",
        "--batch_size=2",
        "--num_workers=0",
        *flags,
    )


# 1. Statistics under the names of datasets


def rename_stats(folder, *datasets):
    for name in (PRE, POST):
        stats = load_file(folder / name)
        names = {f"{dataset}.buffer.{key}": value.clone() for dataset in datasets for key, value in stats.items()}
        save_file(names, folder / name)


def test_statistics_of_several_datasets_are_refused_with_the_flag_that_chooses(base):
    rename_stats(base, "so100", "so100-red")
    with pytest.raises(StatsError) as error:
        load_pretrained(base)
    assert "no statistics for `observation.state` (STATE is normalised by MEAN_STD)" in error.value.message
    hint = error.value.hint or ""
    assert "found `so100.buffer.observation.state`, `so100-red.buffer.observation.state`" in hint
    assert "choose one with `--stats_dataset=so100` or `--stats_dataset=so100-red`" in hint


def test_with_the_choice_the_action_is_z_times_std_plus_mean(base, observation):
    rename_stats(base, "so100", "so100-red")
    for name in (PRE, POST):  # the other dataset says something else
        stats = load_file(base / name)
        save_file({k: v + 1000.0 * k.startswith("so100-red.") for k, v in stats.items()}, base / name)
    loaded = load_pretrained(base, stats_dataset="so100")
    batch = loaded.preprocessor(observation)
    assert torch.allclose(batch[STATE], torch.zeros(1, 6), atol=1e-6)  # the mean of so100
    z = loaded.policy.predict_chunk(batch, noise=torch.zeros(1, 8, 6))
    assert torch.equal(loaded.postprocessor.run_action(z), z * STD + MEAN)
    assert not torch.allclose(z, loaded.postprocessor.run_action(z))  # never the identity


def test_the_command_line_says_the_same(base, tmp_path, capsys):
    rename_stats(base, "so100", "so100-red")
    data = dataset(tmp_path / "data", "camera1", "camera2", "camera3")
    assert run("eval", f"--policy.path={base}", *data, f"--output_dir={tmp_path / 'eval'}") == 1
    assert "--stats_dataset=so100" in capsys.readouterr().err


# 2. Three slots, two cameras


def test_two_cameras_of_other_names_train_and_evaluate(base, tmp_path, capsys):
    data, out = dataset(tmp_path / "data", "top", "wrist"), tmp_path / "run"
    assert finetune(base, data, out) == 0
    told = capsys.readouterr().err
    for wanted in (
        "camera `observation.images.top` -> slot `observation.images.camera1`",
        "camera `observation.images.wrist` -> slot `observation.images.camera2`",
        "slot `observation.images.camera3` has no camera and leaves the policy's inputs",
    ):
        assert told.count(f" {wanted}\n") == 1, told
    rename = {f"{IMAGES}top": f"{IMAGES}camera1", f"{IMAGES}wrist": f"{IMAGES}camera2"}
    assert f"to choose otherwise: `--rename_map='{json.dumps(rename)}'`" in told

    saved = out / "checkpoints/last/pretrained_model"
    assert json.loads((saved / "train_config.json").read_text())["rename_map"] == rename
    steps = json.loads((saved / "policy_preprocessor.json").read_text())["steps"]
    assert steps[0]["config"]["rename_map"] == rename
    inputs = json.loads((saved / "config.json").read_text())["input_features"]
    assert {key: feature["shape"] for key, feature in inputs.items()} == {
        STATE: [6],
        f"{IMAGES}camera1": [3, 20, 24],
        f"{IMAGES}camera2": [3, 20, 24],
    }
    effective = json.loads((out / "effective_config.json").read_text())
    assert effective["rename_map"] == {"value": rename, "origin": "resolved"}

    # The stored map serves inference, and the run goes on with it.
    assert run("eval", f"--policy.path={out}", *data, f"--output_dir={tmp_path / 'eval'}", "--report=false") == 0
    assert run("train", "--resume=true", f"--config_path={out}", "--steps=2") == 0


def test_a_second_training_finds_the_cameras_where_the_first_put_them(base, tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    by_hand = {f"{IMAGES}top": f"{IMAGES}camera3", f"{IMAGES}wrist": f"{IMAGES}camera1"}
    data = dataset(tmp_path / "data", "top", "wrist")
    assert finetune(base, data, first, f"--rename_map={json.dumps(by_hand)}") == 0
    assert finetune(first, data, second) == 0
    saved = json.loads((second / "checkpoints/last/pretrained_model/train_config.json").read_text())
    assert saved["rename_map"] == by_hand
    assert list(saved["policy"]["input_features"]) == [STATE, f"{IMAGES}camera1", f"{IMAGES}camera3"]


def test_more_cameras_than_slots_stop_before_training(base, tmp_path, capsys):
    data = dataset(tmp_path / "data", "a", "b", "c", "d")
    assert finetune(base, data, tmp_path / "run") == 2
    err = capsys.readouterr().err
    assert "the policy has slots for 3" in err
    assert '--rename_map=\'{"observation.images.a": "observation.images.camera1"' in err
    assert not (tmp_path / "run").exists()


def test_a_robot_with_another_number_of_joints_trains_and_says_so(base, tmp_path, capsys):
    folder = tmp_path / "data"
    build_dataset(folder, cameras={"camera1": (16, 16)}, camera_dtype="image", state_dim=5, action_dim=4)
    data = [f"--dataset.root={folder}", "--dataset.repo_id=me/data"]
    assert finetune(base, data, tmp_path / "run") == 0
    assert "`observation.state` is [5] in the dataset and was [6] in the base policy" in capsys.readouterr().err
    saved = json.loads((tmp_path / "run/checkpoints/last/pretrained_model/config.json").read_text())
    assert saved["input_features"][STATE]["shape"] == [5]
    assert saved["output_features"][ACTION]["shape"] == [4]


# 3. A random backbone


@pytest.mark.parametrize(
    ("flags", "weights", "wanted"),
    [
        (["--policy.load_vlm_weights=false"], True, "gives a new policy a random vision-language model"),
        ([], False, "holds no weights (model.safetensors), which a new policy starts from"),
    ],
)
def test_a_new_policy_on_a_random_frozen_backbone_is_refused(tmp_path, capsys, flags, weights, wanted):
    vlm = write_tiny_vlm(tmp_path / "vlm", weights=weights)
    data = dataset(tmp_path / "data", "top")
    flags = [*tiny_smolvla_flags(vlm), *data, "--steps=1", f"--output_dir={tmp_path / 'run'}", *flags]
    assert run("train", *flags) == 2
    err = capsys.readouterr().err
    assert wanted in err
    assert "--policy.path=lerobot/smolvla_base" in err
    assert not (tmp_path / "run").exists()


def test_a_new_policy_by_its_type_alone_starts_from_the_weights_of_the_backbone(tmp_path):
    vlm = write_tiny_vlm(tmp_path / "vlm")
    data = dataset(tmp_path / "data", "top")
    flags = [*tiny_smolvla_flags(vlm), *data, "--steps=1", "--batch_size=2", "--num_workers=0"]
    assert run("train", *flags, "--policy.precision=float32", f"--output_dir={tmp_path / 'run'}") == 0
    saved = load_file(tmp_path / "run/checkpoints/last/pretrained_model/model.safetensors")
    wanted = load_file(vlm / "model.safetensors")
    prefix = "model.vlm_with_expert.vlm."
    frozen = {name.removeprefix(prefix): tensor for name, tensor in saved.items() if name.startswith(prefix)}
    assert len(frozen) > 30
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in frozen.items())


def test_a_complete_checkpoint_needs_no_backbone_whatever_it_says(base, monkeypatch, tmp_path):
    """`load_vlm_weights=true`, which everything fine-tuned from `smolvla_base` inherits, loads nothing twice."""
    monkeypatch.chdir(tmp_path)
    assert json.loads((base / "config.json").read_text())["load_vlm_weights"] is True
    load_pretrained(base)
    shutil.rmtree(base / "backbone")
    with pytest.raises(ConfigError, match=r"vlm_model_name=.* is no folder here"):
        load_pretrained(base)


def test_the_base_policy_by_its_hub_id_needs_the_hub_cache_only(base, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    shutil.copytree(base, cache / "models--lerobot--smolvla_base/snapshots/abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    data = dataset(tmp_path / "data", "top", "wrist")
    assert finetune("lerobot/smolvla_base", data, tmp_path / "run") == 0
    saved = tmp_path / "run/checkpoints/last/pretrained_model"
    assert json.loads((saved / "config.json").read_text())["pretrained_path"] == "lerobot/smolvla_base"
    shutil.rmtree(cache)
    load_pretrained(saved)  # complete by itself: sizes, tokenizer, statistics, weights


def test_a_base_that_goes_away_during_training_does_not_spoil_the_checkpoint(base, tmp_path, observation):
    loaded = load_pretrained(base)
    loaded.preprocessor(observation)  # a run that saves has read a batch
    shutil.rmtree(base)
    save_pretrained(loaded.policy, tmp_path / "saved", loaded.preprocessor, loaded.postprocessor)
    again = load_pretrained(tmp_path / "saved")
    assert all(torch.equal(t, again.policy.state_dict()[k]) for k, t in loaded.policy.state_dict().items())


# 4. Renamed tensors


def test_renamed_tensors_are_listed_with_the_nearest_names(base):
    weights = load_file(base / "model.safetensors")
    for kind in ("weight", "bias"):
        weights[f"model.action_output_proj.{kind}"] = weights.pop(f"model.action_out_proj.{kind}")
    save_file(weights, base / "model.safetensors")
    with pytest.raises(KeyMismatch) as error:
        load_pretrained(base)
    assert "does not fit the policy: missing 2, unexpected 2" in error.value.message
    assert "`model.action_out_proj.weight` (nearest: `model.action_output_proj.weight`)" in error.value.message
    assert "--allow_missing" in (error.value.hint or "")
    loaded = load_pretrained(base, allow_missing=["model.action_out_proj*", "model.action_output_proj*"])
    assert set(loaded.report.reinitialised) == {f"model.action_out_proj.{kind}" for kind in ("weight", "bias")}


# 5. A config of a newer LeRobot


RTC = {
    "enabled": True,
    "prefix_attention_schedule": "LINEAR",
    "max_guidance_weight": 10.0,
    "execution_horizon": 6,
    "debug": False,
    "debug_maxlen": 100,
}


def test_a_newer_field_that_changes_nothing_is_read(base):
    edit_config(base, rtc_config=RTC | {"mode": "guided"})
    assert load_pretrained(base).config.rtc_config.execution_horizon == 6


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"rtc_config": RTC | {"mode": "trained"}}, '`rtc_config.mode` = "trained"'),
        ({"action_space": "joints", "n_heads": 3}, '`action_space` = "joints", `n_heads` = 3'),
    ],
)
def test_a_newer_field_that_changes_something_is_refused_and_listed(base, changes, wanted):
    edit_config(base, **changes)
    with pytest.raises(CheckpointError) as error:
        load_pretrained(base)
    assert f"has settings that mimetic does not know: {wanted}" in error.value.message


# 6. Another depth than the checkpoint's


@pytest.mark.parametrize(
    ("layers", "wanted"),
    [
        (5, "missing: `model.vlm_with_expert.vlm.model.text_model.layers.4."),
        (2, "unexpected: `model.vlm_with_expert.lm_expert.layers.2."),
    ],
)
def test_another_depth_than_the_checkpoint_is_refused(base, layers, wanted):
    """LeRobot leaves random layers, or drops trained ones, with a line in the log."""
    with pytest.raises(KeyMismatch) as error:
        load_pretrained(base, config_overrides={"num_vlm_layers": layers})
    assert wanted in error.value.message


def test_another_width_of_the_expert_is_refused(base):
    with pytest.raises(KeyMismatch, match=r"other shape \d+"):
        load_pretrained(base, config_overrides={"expert_width_multiplier": 0.5})


# 7. Options that cannot work


@pytest.mark.parametrize(
    ("flag", "wanted"),
    [
        ("--policy.use_cache=false", "must be true"),
        ("--policy.num_expert_layers=2", "fewer layers than the 4"),
        ("--policy.resize_imgs_with_padding=[64,32]", "is not square"),
        ("--policy.resize_imgs_with_padding=null", "give width and height"),
        ("--policy.resize_imgs_with_padding=[64,64]", "reads 32 x 32 pixels"),
        ("--policy.attention_mode=cross", "cross_attn"),
        ("--policy.adapt_to_pi_aloha=true", "is for 14 dimensions"),
        ("--policy.max_action_dim=2", "`action` has 3 dimensions, more than `--policy.max_action_dim=2`"),
    ],
)
def test_options_that_cannot_work_stop_before_training(tmp_path, capsys, flag, wanted):
    vlm = write_tiny_vlm(tmp_path / "vlm")
    data = dataset(tmp_path / "data", "top")
    flags = [*tiny_smolvla_flags(vlm), *data, "--steps=1", f"--output_dir={tmp_path / 'run'}"]
    flags = [given for given in flags if not given.startswith(flag.partition("=")[0] + "=")]
    assert run("train", *flags, flag) == 2
    err = capsys.readouterr().err
    assert wanted in err
    assert flag.removeprefix("--").partition("=")[0] in err


# 8. Flags that would do nothing, or something else than meant


def test_a_changed_size_is_named_beside_what_does_not_fit(base, tmp_path, capsys):
    data = dataset(tmp_path / "data", "top")
    assert finetune(base, data, tmp_path / "run", "--policy.num_vlm_layers=3", "--policy.chunk_size=9") == 1
    err = capsys.readouterr().err
    assert "`--policy.num_vlm_layers=3` (the checkpoint: 4)" in err
    assert "`--policy.chunk_size=9` (the checkpoint: 8)" in err
    assert "optimizer" not in err
    assert (
        """'["model.vlm_with_expert.lm_expert.layers.3.*", "model.vlm_with_expert.vlm.model.text_model.layers.3.*"]'"""
        in err
    )


def test_choosing_statistics_for_a_training_that_takes_its_own_is_refused(base, tmp_path, capsys):
    data = dataset(tmp_path / "data", "top")
    assert finetune(base, data, tmp_path / "run", "--stats_dataset=so100") == 2
    assert "`--stats_dataset=so100` has no effect" in capsys.readouterr().err


def test_why_features_of_a_partly_trained_policy_are_not_kept_is_told(base, tmp_path, capsys):
    data = dataset(tmp_path / "data", "top")
    assert finetune(base, data, tmp_path / "run", "--policy.train_expert_only=false", "--dry_run=true") == 0
    assert "features of frames are not cached: --policy.train_expert_only=false trains" in capsys.readouterr().err


def test_evaluation_without_a_camera_of_the_training_says_so(base, tmp_path, capsys):
    run_folder = tmp_path / "run"
    assert finetune(base, dataset(tmp_path / "both", "top", "wrist"), run_folder) == 0
    data = dataset(tmp_path / "one", "top")
    flags = [f"--policy.path={run_folder}", *data, f"--output_dir={tmp_path / 'eval'}", "--report=false"]
    assert run("eval", *flags, "--max_frames=2") == 0
    shown = capsys.readouterr()
    note = "The policy was trained with `observation.images.camera2` too, which this dataset does not feed"
    assert note in shown.err
    assert note in shown.out
    assert run("inspect", str(run_folder)) == 0
    assert "observation.images.wrist -> observation.images.camera2" in capsys.readouterr().out
