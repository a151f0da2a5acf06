"""`mimetic eval` on tiny datasets: in-process for truths about numbers, as a subprocess for what a user sees."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import mimetic.evaluate.open_loop as open_loop
from mimetic.cli.app import main
from mimetic.data.config import DatasetConfig
from mimetic.data.metadata import Metadata
from mimetic.errors import CheckpointError, ConfigError, ShapeError
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.open_loop import evaluate_open_loop
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.base import Policy
from mimetic.policies.checkpoint import load_pretrained, save_pretrained
from mimetic.testing.datasets import build_dataset
from mimetic.testing.untrained import untrained

LENGTHS = (12, 9, 15, 11)
CHUNK, EXECUTED = 6, 4


def make_checkpoint(folder, root, *, train_config=None):
    """A tiny ACT with random weights and the statistics of a dataset."""
    meta = Metadata.open(root)
    sizes = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "latent_dim": 4}
    policy, *pipelines = untrained(
        ACTConfig,
        meta.policy_features,
        stats=meta.stats,
        chunk_size=CHUNK,
        n_action_steps=EXECUTED,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
        **sizes,
    )
    save_pretrained(policy, folder, *pipelines)
    if train_config is not None:
        (folder / "train_config.json").write_text(json.dumps(train_config))
    return folder


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """Dataset without cameras and a checkpoint for it, trained on all but the last episodes as the checkpoint says."""
    folder = tmp_path_factory.mktemp("arm")
    root = build_dataset(folder / "data", lengths=LENGTHS, state_dim=2, environment_dim=2)
    dataset = {"repo_id": "me/tiny", "root": str(root), "episodes": None, "eval_split": 0.4}
    return make_checkpoint(folder / "checkpoint", root, train_config={"dataset": dataset}), root


@pytest.fixture(scope="module")
def seeing_arm(tmp_path_factory):
    """The same with a camera."""
    folder = tmp_path_factory.mktemp("seeing_arm")
    root = build_dataset(folder / "data", lengths=(8, 6), state_dim=2, cameras={"top": (32, 48)})
    return make_checkpoint(folder / "checkpoint", root), root


def settings(arm, **changes):
    checkpoint, root = arm
    policy = replace(load_pretrained(checkpoint).config, pretrained_path=str(checkpoint))
    dataset = DatasetConfig(repo_id="me/tiny", root=str(root), **changes.pop("dataset", {}))
    return EvalConfig(policy=policy, dataset=dataset, **changes)


def flags(arm, output, *more):
    checkpoint, root = arm
    return [
        "eval",
        f"--policy.path={checkpoint}",
        "--dataset.repo_id=me/tiny",
        f"--dataset.root={root}",
        f"--output_dir={output}",
        *more,
    ]


class Oracle(Policy):
    """Knows that the tiny dataset's action k frames ahead is the state + 1 + k, up to a share of the motion."""

    def __init__(self, stored, share):
        super().__init__(stored.config)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.state = stored.preprocessor.steps[-1].stats["observation.state"]
        self.action = stored.preprocessor.steps[-1].stats["action"]
        self.share = share

    def loss(self, batch):
        raise NotImplementedError

    def select_action(self, batch):
        raise NotImplementedError

    def reset(self):
        raise NotImplementedError

    def optim_groups(self):
        raise NotImplementedError

    def predict_chunk(self, batch):
        assert batch.get("action") is None  # the recorded action is never shown to the policy
        state = batch["observation.state"] * (self.state["std"] + 1e-8) + self.state["mean"]
        ahead = self.share * (1 + torch.arange(CHUNK, dtype=torch.float32))
        action = state[:, None] + ahead[None, :, None]
        return (action - self.action["mean"]) / (self.action["std"] + 1e-8)


@pytest.fixture
def with_oracle(monkeypatch):
    """Let `evaluate_open_loop` load an oracle instead of the stored network."""

    def use(share):
        def load(folder, **options):
            stored = load_pretrained(folder, **options)
            return replace(stored, policy=Oracle(stored, share))

        monkeypatch.setattr(open_loop, "load_pretrained", load)

    return use


def test_a_policy_that_predicts_what_was_recorded_has_skill_one(arm, with_oracle):
    with_oracle(1.0)
    result = evaluate_open_loop(settings(arm, batch_size=3))
    scores = result.numbers.scores
    # float32 through two normalisations of values up to 300
    assert scores.mae[0].max() < 1e-3
    assert scores.overall_skill_hold > 0.999
    assert scores.overall_movement == pytest.approx(1.0, abs=1e-4)
    assert result.verdict.level == "good"


def test_a_policy_that_sends_the_present_state_is_the_hold_baseline(arm, with_oracle):
    with_oracle(0.0)
    result = evaluate_open_loop(settings(arm))
    assert result.numbers.scores.overall_skill_hold == pytest.approx(0.0, abs=1e-3)
    assert result.verdict.headline.startswith("The policy hardly moves")
    # Holding is off by 1, 2, ... 6 units at 0, 1, ... 5 steps ahead, for every joint.
    scale = np.nanmean(1 / result.numbers.scale)
    np.testing.assert_allclose(result.numbers.horizon[1] / scale, np.arange(1, CHUNK + 1), rtol=1e-4)


def test_the_held_out_episodes_of_training_are_evaluated(arm):
    result = evaluate_open_loop(settings(arm))
    assert result.choice.episodes == (2, 3)
    assert result.choice.were_trained_on is False
    assert [item.episode for item in result.numbers.episodes] == [2, 3]
    assert result.numbers.scores.chunks == 4 + 3  # every 4 frames of 15 and 11
    assert result.stride == EXECUTED


def test_named_episodes_are_evaluated_and_seen_ones_are_said(arm):
    result = evaluate_open_loop(settings(arm, dataset={"episodes": [0, 3]}, stride=5))
    assert result.choice.episodes == (0, 3)
    assert "1 of these 2 episodes (0) were part of the training data" in result.choice.note
    assert result.numbers.scores.chunks == 3 + 3


def test_eval_split_chooses_the_last_episodes_of_each_task(arm):
    result = evaluate_open_loop(settings(arm, dataset={"eval_split": 0.2}))
    assert result.choice.episodes == (3,)


def test_the_numbers_do_not_depend_on_the_batch_size_or_the_callers_generator(arm):
    torch.manual_seed(1)
    one = evaluate_open_loop(settings(arm, batch_size=1, stride=2))
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == drawn  # the evaluation took nothing from it
    many = evaluate_open_loop(settings(arm, batch_size=64, stride=2))
    np.testing.assert_allclose(one.numbers.scores.mae, many.numbers.scores.mae, rtol=1e-4)
    again = evaluate_open_loop(settings(arm, batch_size=64, stride=2))
    np.testing.assert_array_equal(again.numbers.scores.mae, many.numbers.scores.mae)
    np.testing.assert_array_equal(again.numbers.bounds.skill_hold, many.numbers.bounds.skill_hold)


def test_max_frames_limits_the_predictions(arm):
    assert evaluate_open_loop(settings(arm, stride=1, max_frames=7)).numbers.scores.chunks == 7


def test_the_mean_action_is_that_of_the_checkpoint(arm):
    result = evaluate_open_loop(settings(arm))
    stats = Metadata.open(arm[1]).stats["action"]
    np.testing.assert_allclose(result.mean_action, stats["mean"], rtol=1e-6)
    np.testing.assert_allclose(result.numbers.scale, stats["std"], rtol=1e-6)
    assert "checkpoint" in result.mean_source


def test_progress_reaches_the_number_of_predictions(seeing_arm):
    told = []
    evaluate_open_loop(settings(seeing_arm, batch_size=3, ablate="blind"), on_progress=lambda *both: told.append(both))
    done, total = told[-1]
    assert done == total == 2 * (2 + 2)
    assert told == sorted(told)


def test_blank_cameras_change_what_a_seeing_policy_predicts(seeing_arm):
    result = evaluate_open_loop(settings(seeing_arm, ablate="blind"))
    (blind,) = result.effects
    assert blind.error != result.numbers.scores.overall[0]
    assert any("blank images" in line for line in result.verdict.findings)


def test_pictures_of_the_policys_camera_are_taken(seeing_arm):
    pictures = evaluate_open_loop(settings(seeing_arm)).pictures
    assert [(picture.camera, picture.frame) for picture in pictures] == [
        ("observation.images.top", 0),
        ("observation.images.top", 3),
        ("observation.images.top", 7),
    ]
    assert all(picture.jpeg.startswith(b"\xff\xd8") for picture in pictures)


def test_inputs_that_the_dataset_lacks_are_named_with_the_rename(seeing_arm, tmp_path):
    other = build_dataset(tmp_path / "other", lengths=(5,), state_dim=2, cameras={"topcam": (32, 48)})
    with pytest.raises(ConfigError, match=r"reads `observation\.images\.top`, and the dataset has no such") as caught:
        evaluate_open_loop(settings((seeing_arm[0], other)))
    suggested = '{"observation.images.topcam": "observation.images.top"}'
    assert caught.value.hint == f"rename them: `--rename_map='{suggested}'`"
    result = evaluate_open_loop(settings((seeing_arm[0], other), rename_map=json.loads(suggested)))
    assert result.numbers.scores.chunks == 2


def test_a_dataset_of_another_robot_is_refused(arm, tmp_path):
    other = build_dataset(tmp_path / "other", lengths=(5,), state_dim=2, environment_dim=2, action_dim=5)
    with pytest.raises(ShapeError, match=r"`action` of the dataset has shape \(5,\), and the policy predicts \(2,\)"):
        evaluate_open_loop(settings((arm[0], other)))


def test_a_policy_that_overflows_is_refused(arm, tmp_path):
    stored = load_pretrained(arm[0])
    with torch.no_grad():
        next(tensor for name, tensor in stored.policy.named_parameters() if "action_head" in name).fill_(3e38)
    save_pretrained(stored.policy, tmp_path / "broken", stored.preprocessor, stored.postprocessor)
    # Without train_config.json, so that every episode is evaluated.
    with pytest.raises(CheckpointError, match="not finite, first in episode 0 at frame 0"):
        evaluate_open_loop(settings((tmp_path / "broken", arm[1])))


def test_the_command_writes_numbers_report_and_plots(arm, tmp_path):
    output = tmp_path / "evaluation"
    done = subprocess.run(
        [sys.executable, "-m", "mimetic", *flags(arm, output)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "These episodes were held out from training" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Report: {output / 'report.html'}"
    assert "Traceback" not in done.stderr
    names = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert {"open_loop.json", "episodes.jsonl", "traces.npz", "report.html", "plots/error_by_joint.png"} <= names
    assert len([name for name in names if name.startswith("plots/0")]) == 2
    document = json.loads((output / "open_loop.json").read_text())
    assert document["dataset"]["episodes"] == [2, 3]
    assert document["config"]["policy"]["type"] == "act"
    assert document["verdict"]["headline"] in done.stdout


def test_without_matplotlib_the_command_says_how_to_get_charts(arm, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    output = tmp_path / "evaluation"
    assert main(flags(arm, output)) == 0
    printed = capsys.readouterr()
    assert "the report has no charts: `matplotlib` is not installed; `pip install 'mimetic[report]'`" in printed.err
    assert printed.out.splitlines()[-1] == f"Report: {output / 'report.html'}"
    assert {"open_loop.json", "episodes.jsonl", "report.html"} <= {path.name for path in output.iterdir()}


def test_times_off_the_frame_grid_need_a_tolerance(seeing_arm, tmp_path, capsys):
    root = tmp_path / "data"
    shutil.copytree(seeing_arm[1], root)
    info = json.loads((root / "meta" / "info.json").read_text())
    info["fps"] += 1  # times were recorded at another rate
    (root / "meta" / "info.json").write_text(json.dumps(info))
    command = flags((seeing_arm[0], root), tmp_path / "evaluation", "--report=false")
    code, lines = error_of(capsys, *command)
    assert code != 0
    assert "--tolerance_s" in lines[-1]
    assert main([*command, "--tolerance_s=1"]) == 0
    assert error_of(capsys, *command, "--tolerance_s=0")[1][-1:] == ["error: `--tolerance_s=0.0` must be above 0"]


def test_print_config_shows_the_policy_of_the_checkpoint(arm, tmp_path, capsys):
    assert main([*flags(arm, tmp_path / "evaluation"), "--print_config"]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"policy\.chunk_size\W+{CHUNK}\b.*checkpoint", printed)
    assert not (tmp_path / "evaluation").exists()


def test_json_goes_to_stdout_alone(arm, tmp_path, capsys):
    assert main(flags(arm, tmp_path / "evaluation", "--json=true", "--report=false")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "evaluation" / "open_loop.json").read_text())
    assert not (tmp_path / "evaluation" / "report.html").exists()


def test_n_action_steps_of_the_command_line_reaches_the_policy(arm, tmp_path, capsys):
    assert main(flags(arm, tmp_path / "evaluation", "--policy.n_action_steps=2", "--json=true", "--report=false")) == 0
    evaluation = json.loads(capsys.readouterr().out)["evaluation"]
    assert (evaluation["stride"], evaluation["n_action_steps"], evaluation["chunks"]) == (2, 2, 8 + 6)


def error_of(capsys, *words):
    code = main(list(words))
    lines = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in lines)
    return code, lines


def test_an_evaluation_without_a_policy_is_two_lines(arm, capsys):
    code, lines = error_of(capsys, "eval", "--dataset.repo_id=me/tiny", f"--dataset.root={arm[1]}")
    assert code == 2
    assert lines == ["error: no policy to evaluate: `--policy.path=FOLDER` names a checkpoint"]


def test_an_evaluation_without_anything_names_both_missing_flags(capsys):
    code, lines = error_of(capsys, "eval")
    assert code == 2
    assert "--policy.path=FOLDER" in "\n".join(lines)
    assert "--dataset.repo_id=NAME" in "\n".join(lines)


def test_an_environment_is_not_part_of_mimetic_yet(arm, capsys):
    code, lines = error_of(capsys, "eval", f"--policy.path={arm[0]}", "--env.type=robocasa")
    assert code == 2
    assert "not part of mimetic yet" in lines[0]


def test_an_existing_output_folder_is_refused_before_any_work(arm, tmp_path, capsys):
    code, lines = error_of(capsys, *flags(arm, tmp_path))
    assert code == 2
    assert lines[0] == f"error: the output folder `{tmp_path}` exists already"


def test_a_checkpoint_that_is_not_there_is_two_lines(arm, tmp_path, capsys):
    code, lines = error_of(capsys, *flags((tmp_path / "nothing", arm[1]), tmp_path / "evaluation"))
    assert code == 2
    assert lines[0].startswith(f"error: no policy at {tmp_path / 'nothing'}")
    assert len(lines) == 2


def test_episodes_that_do_not_exist_are_named(arm, tmp_path, capsys):
    code, lines = error_of(capsys, *flags(arm, tmp_path / "evaluation", "--dataset.episodes=[2, 9]"))
    assert code == 2
    assert "does not have: [9]" in lines[-2]
    assert not Path(tmp_path / "evaluation").exists()
