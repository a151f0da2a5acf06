"""The command line to settings: precedence, origins, choices, and everything that is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimetic.config.parse import Parsed, parse
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.optim.config import AdamConfig, AdamWConfig, CosineDecayWithWarmupConfig, SGDConfig
from mimetic.policies.act.config import ACTConfig
from mimetic.train.config import PeftConfig, TrainConfig

Run = Callable[..., Parsed]


@pytest.fixture
def checkpoint(fixtures: Path) -> str:
    """A pretrained policy with chunk_size 8."""
    return str(fixtures / "training/run_preset/checkpoints/000006/pretrained_model")


def write(folder: Path, data: Any, name: str = "c.json") -> str:
    path = folder / name
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return str(path)


def fails(run: Run, *argv: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        run(*argv, **options)
    return f"{caught.value.message} | {caught.value.hint}"


def test_both_spellings_are_equal_and_the_last_flag_wins(trained: Run) -> None:
    assert trained("--steps=5").value == trained("--steps", "5").value
    assert trained("--steps=5", "--steps", "6", "--steps=7").value.steps == 7
    assert trained("--optimizer.lr", "-0.5").value.optimizer.lr == -0.5
    assert trained("--job_name=a=b").value.job_name == "a=b"


def test_everything_has_a_recorded_origin(trained: Run, tmp_path: Path) -> None:
    path = write(tmp_path, {"batch_size": 3, "peft": None, "wandb": {"project": "p"}})
    origins = trained(f"--config_path={path}", "--steps=5", "--env=null").origins
    assert origins["steps"] == "flag"
    assert origins["batch_size"] == f"file {path}"
    assert origins["wandb.project"] == f"file {path}"
    assert origins["peft"] == f"file {path}"
    assert origins["env"] == "flag"
    assert origins["policy.type"] == "flag"
    assert origins["policy.chunk_size"] == "default"
    assert origins["wandb.mode"] == "default"
    assert "peft.r" not in origins


def test_flags_win_over_the_file_field_by_field(trained: Run, tmp_path: Path) -> None:
    path = write(tmp_path, {"dataset": {"repo_id": "a", "episodes": [1, 2]}, "rename_map": {"a": "b"}, "steps": 9})
    value = trained(f"--config_path={path}", "--dataset.episodes=[3]", "--rename_map={c: d}").value
    assert (value.dataset.repo_id, value.dataset.episodes) == ("me/x", [3])
    assert value.rename_map == {"c": "d"}
    assert value.steps == 9


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "c.yaml",
            "steps: 9\nsave_checkpoint: no\njob_name: on\noptimizer: {type: sgd, lr: 1e-2}\n# "
            "comment\ndataset:\n  episodes: [1, 2]\n",
        ),
        (
            "c.yml",
            "steps: 9\nsave_checkpoint: False\njob_name: 'on'\noptimizer:\n  type: sgd\n  lr: "
            "0.01\ndataset: {episodes: [1, 2]}\n",
        ),
        (
            "c.json",
            '{"steps": 9, "save_checkpoint": false, "job_name": "on", "optimizer": {"type": "sgd", "lr": '
            '0.01}, "dataset": {"episodes": [1, 2]}}',
        ),
        (
            "c.toml",
            'steps = 9\nsave_checkpoint = false\njob_name = "on"\n[optimizer]\ntype = "sgd"\nlr = '
            "0.01\n[dataset]\nepisodes = [1, 2]\n",
        ),
    ],
)
def test_the_kinds_of_files_mean_the_same(trained: Run, tmp_path: Path, name: str, text: str) -> None:
    value = trained(f"--config_path={write(tmp_path, text, name)}").value
    assert (
        value
        == trained(
            "--steps=9",
            "--save_checkpoint=false",
            "--job_name=on",
            "--optimizer.type=sgd",
            "--optimizer.lr=0.01",
            "--dataset.episodes=[1,2]",
        ).value
    )


def test_a_choice_selects_its_class(trained: Run) -> None:
    assert isinstance(trained().value.policy, ACTConfig)
    assert trained("--optimizer.type=sgd", "--optimizer.momentum=0.9").value.optimizer == SGDConfig(momentum=0.9)
    assert trained("--optimizer.momentum=0.9", "--optimizer.type=sgd").value.optimizer == SGDConfig(momentum=0.9)
    assert trained("--optimizer.lr=0.5").value.optimizer == AdamConfig(lr=0.5)
    assert trained().value.optimizer is None
    found = trained(
        "--scheduler.type=cosine_decay_with_warmup",
        "--scheduler.num_warmup_steps=1",
        "--scheduler.num_decay_steps=2",
        "--scheduler.peak_lr=1",
        "--scheduler.decay_lr=0.1",
    )
    assert found.value.scheduler == CosineDecayWithWarmupConfig(
        num_warmup_steps=1, num_decay_steps=2, peak_lr=1.0, decay_lr=0.1
    )


def test_a_group_is_given_inline_or_cleared(train: Run, trained: Run, tmp_path: Path) -> None:
    inline = train(
        "--dataset={repo_id: a, episodes: [1]}", "--policy={type: act, chunk_size: 8}", "--policy.n_action_steps=4"
    )
    assert inline.value.policy == ACTConfig(chunk_size=8, n_action_steps=4)
    assert inline.value.dataset.episodes == [1]
    assert inline.origins["policy.chunk_size"] == "flag"
    path = write(tmp_path, {"peft": {"r": 4}, "optimizer": {"type": "sgd", "lr": 0.5}, "env": {"type": "robocasa"}})
    cleared = trained(f"--config_path={path}", "--peft=null", "--optimizer=None", "--env=~").value
    assert (cleared.peft, cleared.optimizer, cleared.env) == (None, None, None)
    assert trained(f"--config_path={path}", "--env=null", "--peft=null", "--peft.r=8").value.peft == PeftConfig(r=8)
    replaced = trained(f"--config_path={path}", "--env=null", "--optimizer={type: sgd, momentum: 0.9}").value
    assert replaced.optimizer == SGDConfig(momentum=0.9)
    assert trained("--optimizer=null", "--optimizer.type=adamw").value.optimizer == AdamWConfig()


def combinations(checkpoint: str) -> list[tuple[dict[str, Any] | None, list[str]]]:
    return [
        (None, [f"--policy.path={checkpoint}", "--policy.device=cuda", "--policy.tags=[a]"]),
        ({"path": checkpoint, "device": "cuda", "tags": ["a"]}, []),
        ({"path": checkpoint}, ["--policy.device=cuda", "--policy.tags=[a]"]),
        ({"device": "cuda", "tags": ["a"]}, [f"--policy.path={checkpoint}"]),
        ({"path": checkpoint, "device": "xpu"}, ["--policy.device=cuda", "--policy.tags=[a]"]),
        ({"path": checkpoint, "type": "act", "device": "cuda"}, ["--policy.tags=[a]"]),
    ]


@pytest.mark.parametrize("number", range(6))
def test_path_and_overrides_mean_the_same_wherever_they_stand(
    train: Run, tmp_path: Path, checkpoint: str, number: int
) -> None:
    section, flags = combinations(checkpoint)[number]
    argv = ["--dataset.repo_id=x", *flags]
    if section is not None:
        argv.append(f"--config_path={write(tmp_path, {'policy': section})}")
    found = train(*argv)
    policy = found.value.policy
    assert (policy.chunk_size, policy.device, policy.tags) == (8, "cuda", ["a"])
    assert policy.pretrained_path == checkpoint
    assert found.origins["policy.chunk_size"] == f"checkpoint {checkpoint}"
    assert found.origins["policy.type"] == f"checkpoint {checkpoint}"


def test_lists_and_nulls_beside_a_path_in_a_file_are_kept(train: Run, tmp_path: Path, checkpoint: str) -> None:
    path = write(tmp_path, {"policy": {"path": checkpoint, "tags": ["a", "b"], "device": None}})
    policy = train("--dataset.repo_id=x", f"--config_path={path}").value.policy
    assert (policy.tags, policy.device) == (["a", "b"], None)


@pytest.mark.parametrize("part", ["", "/..", "/../../..", "/../.."])
def test_a_run_or_checkpoint_stands_for_its_pretrained_model(train: Run, checkpoint: str, part: str) -> None:
    place = str(Path(checkpoint + part).resolve())
    policy = train("--dataset.repo_id=x", f"--policy.path={place}").value.policy
    assert Path(policy.pretrained_path).resolve() == Path(checkpoint).resolve()


def test_a_path_flag_replaces_the_complete_policy_of_a_file_and_says_so(
    train: Run, fixtures: Path, checkpoint: str
) -> None:
    other = fixtures / "training/run_sched"
    found = train(f"--config_path={other}", f"--policy.path={checkpoint}")
    assert found.value.policy.use_vae is True
    assert found.notes
    assert "replaces the policy of" in found.notes[0]


def test_another_type_over_a_file_starts_from_its_defaults(trained: Run, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"optimizer": {"type": "adamw", "lr": 0.5, "weight_decay": 0.01, "grad_clip_norm": 10.0, "betas": [0.5, 0.5]}},
    )
    found = trained(f"--config_path={path}", "--optimizer.type=sgd", "--optimizer.momentum=0.9")
    # weight_decay is AdamW's default in the file, so nobody had set it; betas do not exist in SGD.
    assert found.value.optimizer == SGDConfig(lr=0.5, momentum=0.9)
    assert found.notes == (
        f"`--optimizer.type=sgd` over `adamw` in {path}: starting from the defaults of `sgd`, keeping `lr`",
    )
    assert found.origins["optimizer.weight_decay"] == "default"


def test_a_policy_of_an_unknown_type_in_a_file_can_be_changed(train: Run, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "dataset": {"repo_id": "x"},
            "policy": {
                "type": "pi0",
                "device": "cpu",
                "pretrained_path": "lerobot/pi0_base",
                "paligemma_variant": "y",
            },
        },
    )
    found = train(f"--config_path={path}", "--policy.type=act")
    assert found.value.policy == ACTConfig(device="cpu")


def test_loaders_are_handed_in(train: Run) -> None:
    asked: list[Any] = []

    def load_file(place: str) -> tuple[dict[str, Any], str]:
        asked.append(place)
        return {"dataset": {"repo_id": "x"}, "steps": 5}, "hub:u/r/train_config.json"

    def load_policy(place: str, revision: str | None) -> dict[str, Any]:
        asked.append((place, revision))
        return {"type": "act", "chunk_size": 7}

    found = train(
        "--config_path=u/r",
        "--policy.path=u/p",
        "--policy.pretrained_revision=v1",
        load_file=load_file,
        load_policy=load_policy,
    )
    assert asked == ["u/r", ("u/p", "v1")]
    assert (found.value.steps, found.value.policy.chunk_size, found.value.policy.pretrained_path) == (5, 7, "u/p")
    assert found.origins["steps"] == "file hub:u/r/train_config.json"
    assert found.config_path == "hub:u/r/train_config.json"


def test_a_runs_own_file_is_read_with_the_settings_that_only_mimetic_json_holds(
    train: Run, fixtures: Path, tmp_path: Path
) -> None:
    source = fixtures / "training/run_sched/checkpoints/000006/pretrained_model/train_config.json"
    (tmp_path / "train_config.json").write_text(source.read_text())
    more = {
        "config": {
            "steps": 99,
            "allow_missing": ["a"],
            "accelerator": {"mixed_precision": "bf16"},
            "dataset": {"exclude_episodes": [1]},
            "optimizer": {"type": "sgd", "momentum": 1},
        }
    }
    (tmp_path / "mimetic.json").write_text(json.dumps(more))
    value = train(f"--config_path={tmp_path}").value
    assert value.steps == 6
    assert value.allow_missing == ["a"]
    assert value.accelerator.mixed_precision == "bf16"
    assert value.dataset.exclude_episodes == [1]
    assert isinstance(value.optimizer, AdamWConfig)


def test_null_in_a_file_is_not_lost(trained: Run, tmp_path: Path) -> None:
    path = write(tmp_path, {"seed": None, "job": {"timeout": None}, "dataloader_multiprocessing_context": None})
    value = trained(f"--config_path={path}").value
    assert (value.seed, value.job.timeout, value.dataloader_multiprocessing_context) == (None, None, None)


def test_groups_with_defaults_of_their_own_keep_them(trained: Run) -> None:
    value = trained("--dataset.image_transforms.enable=true").value
    assert value.dataset.image_transforms.enable is True
    assert len(value.dataset.image_transforms.tfs) == 6


def test_eval_has_an_optional_dataset() -> None:
    def run(*argv: str) -> Any:
        return parse(EvalConfig, list(argv), prog="mimetic eval", is_checked=False).value

    assert run().dataset is None
    assert run("--dataset.repo_id=x").dataset.repo_id == "x"
    with pytest.raises(ConfigError, match=r"`--dataset.repo_id` is required"):
        run("--dataset.root=x")


def test_all_problems_of_all_checks_come_together(trained: Run) -> None:
    text = fails(
        trained,
        "--steps=0",
        "--batch_size=0",
        "--dataset.eval_split=2",
        "--sample_weighting.type=rabc",
        "--policy.dim_model=7",
        "--peft.r=3",
        "--save_checkpoint_to_hub=true",
        "--wandb.mode=dryrun",
        is_checked=True,
    )
    for part in (
        "8 problems",
        "`--steps=0`",
        "`--batch_size=0`",
        "`--dataset.eval_split=2.0`",
        "sample weighting is not part of mimetic yet",
        "`--policy.dim_model=7`",
        "`--peft.*` trains an adapter",
        "`--save_checkpoint_to_hub=true` needs `--policy.repo_id`",
        "`--wandb.mode=dryrun` must be one of",
    ):
        assert part in text


def test_hyphens_within_a_name_are_underscores(trained: Run) -> None:
    """Other tools spell flags so; a value keeps its hyphens."""
    config = trained("--out-of-memory=halve", "--job-name=a-b").value
    assert (config.out_of_memory, config.job_name) == ("halve", "a-b")


def test_further_checks_join_the_others(trained: Run) -> None:
    text = fails(trained, "--steps=0", is_checked=True, check=lambda parsed: [f"seen {parsed.origins['steps']}"])
    assert text.startswith("2 problems")
    assert "seen flag" in text


def test_valid_settings_pass_all_checks(trained: Run) -> None:
    assert trained(is_checked=True).value == TrainConfig(dataset=trained().value.dataset, policy=ACTConfig())


REFUSED = [
    (
        ["--batchsize=3"],
        "unknown flag `--batchsize` | did you mean `--batch_size`? See `mimetic train --help batch_size`",
    ),
    (
        ["--batch-sizes=3"],
        "unknown flag `--batch_sizes` | did you mean `--batch_size`? See `mimetic train --help batch_size`",
    ),
    (
        ["--policy.typ=act"],
        "unknown flag `--policy.typ` | did you mean `--policy.type`? See `mimetic train --help type`",
    ),
    (["--step=3"], "unknown flag `--step` | did you mean `--steps`? See `mimetic train --help steps`"),
    (
        ["--repo_id=x"],
        "unknown flag `--repo_id` | did you mean `--policy.repo_id` or `--dataset.repo_id`? See "
        "`mimetic train --help repo_id`",
    ),
    (["--qqqq=x"], "unknown flag `--qqqq` | `mimetic train --help` lists all flags"),
    (["--steps=abc"], "`--steps=abc`: expected a whole number | see `mimetic train --help steps` (type int)"),
    (["--steps="], "`--steps=`: expected a whole number | see `mimetic train --help steps` (type int)"),
    (["--resume=1"], "`--resume=1`: expected true or false | see `mimetic train --help resume` (type bool)"),
    (["--resume"], "flag `--resume` needs a value | write `--resume=true`"),
    (["--resume", "--steps=3"], "flag `--resume` needs a value | write `--resume=true`"),
    (["--config_path"], "flag `--config_path` needs a value | write `--config_path=...`"),
    (
        ["--dataset.depth_output_unit=cm"],
        "`--dataset.depth_output_unit=cm`: expected `mm` or `m` | did you mean `m`? See `mimetic train "
        "--help depth_output_unit`",
    ),
    (["--policy.type=atc"], "`--policy.type=atc`: unknown policy `atc` | did you mean `act`?"),
    (
        ["--policy.type=pi0"],
        "`--policy.type=pi0`: policy `pi0` is known from LeRobot but not part of mimetic yet | "
        "available: act, keypoint, smolvla",
    ),
    (
        ["--optimizer.type=adamw", "--optimizer.momentum=1"],
        "flag `--optimizer.momentum` belongs to optimizer `sgd`, and `--optimizer.type` is `adamw` | "
        "leave it out, or choose `--optimizer.type=sgd`",
    ),
    (
        ["--scheduler.peak_lr=1"],
        "flag `--scheduler.peak_lr` needs a scheduler, and none is chosen | add "
        "`--scheduler.type=cosine_decay_with_warmup`",
    ),
    (
        ["--scheduler.type=cosine_decay_with_warmup"],
        "`--scheduler.num_warmup_steps`, `--scheduler.num_decay_steps`, `--scheduler.peak_lr`, "
        "`--scheduler.decay_lr` are required | add `--scheduler.num_warmup_steps=...` "
        "`--scheduler.num_decay_steps=...` `--scheduler.peak_lr=...` `--scheduler.decay_lr=...`; "
        "`mimetic train --help` shows an example",
    ),
    (
        ["--accelerator.fsdp.cpu_offload=true"],
        "flag `--accelerator.fsdp.cpu_offload` is LeRobot's and not part of mimetic yet | leave it out",
    ),
    (
        ["--policy.paligemma_variant=x"],
        "flag `--policy.paligemma_variant` is LeRobot's and not part of mimetic yet | it belongs to policy "
        "`pi0`, `pi05`, `pi0_fast`",
    ),
    (
        ["--policy.vlm_model_name=x"],
        "flag `--policy.vlm_model_name` belongs to policy `smolvla`, and `--policy.type` is `act` | leave it out, or "
        "choose `--policy.type=smolvla`",
    ),
    (
        ["--env.type=robocasa"],
        "`--env.type=robocasa`: environment `robocasa` is known from LeRobot but not part of mimetic yet (`lerobot-eval` plays "
        "in it, with LeRobot's `robocasa`) | available: so101_cell, aloha, libero, metaworld, pusht",
    ),
    (
        ["--env.task=x"],
        "flag `--env.task` needs an environment, and none is chosen | add `--env.type=so101_cell`",
    ),
    (
        ["--policy.discover_packages_path=x"],
        "flag `--policy.discover_packages_path` is LeRobot's and not part of mimetic yet | leave it out",
    ),
    (["--optimizer=sgd"], "`--optimizer=sgd`: expected a mapping or null | did you mean `--optimizer.type=sgd`?"),
    (["--dataset=x"], "`--dataset=x`: `dataset` is a group of flags | see `mimetic train --help dataset.`"),
    (["--dataset=null"], "`--dataset=null`: this group cannot be null | leave it out"),
    (
        ["--optimizer={type: sgd"],
        "`--optimizer={type: sgd`: expected brackets and quotes that match | expected ',' or '}', but "
        "got '<stream end>' (line 1, column 11)",
    ),
    (["--rename_map.a=b"], "`--rename_map` takes one value, so there is no `--rename_map.a` | `--rename_map='{a: b}'`"),
    (["--checkpoint_path=x"], "`--checkpoint_path` is written by mimetic and cannot be set | leave it out"),
    (
        ["--dataset.episodes=0"],
        "`--dataset.episodes=0`: expected a list in brackets | write `[0]`; see `mimetic train --help episodes`",
    ),
    (
        ["--dataset.episodes", "0", "1", "2"],
        "unexpected `1 2` after `--dataset.episodes` | a list stands in brackets: `--dataset.episodes=[0,1,2]`",
    ),
    (
        ["--dataset.episodes=[0,", "1]"],
        "the value of `--dataset.episodes` was cut at a space, before `1]` | put it in quotes: "
        "`--dataset.episodes='[0, 1]'`",
    ),
    (
        ["--job_name=my", "run"],
        "unexpected `run` after `--job_name` | a value with spaces stands in quotes: `--job_name='my run'`",
    ),
    (["steps=3"], "unexpected `steps=3` | did you mean `--steps=3`?"),
    (["-steps=3"], "unexpected `-steps=3` | flags have two hyphens: `--steps=3`"),
    (["\N{EM DASH}steps=3"], "`\N{EM DASH}steps=3` begins with a typographic dash | type two hyphens: `--steps=3`"),
    ([" "], "an empty word stands between the flags | does a line end in a backslash and a space?"),
]


@pytest.mark.parametrize(
    ("argv", "text"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_exact_text_of_refusals(trained: Run, argv: list[str], text: str) -> None:
    assert fails(trained, *argv) == text


def test_a_mistake_hides_no_other(trained: Run) -> None:
    text = fails(trained, "--batchsize=3", "--steps=abc", "--policy.typ=act", "--resume")
    assert text.startswith("4 problems\n")
    assert text.endswith(" | ")


def test_one_message_is_enough_for_all_flags_of_a_policy_that_is_not_chosen(train: Run) -> None:
    text = fails(train, "--dataset.repo_id=x", "--policy.chunk_size=3", "--policy.dim_model=2", "--policy.nonsense=2")
    assert (
        text == "flag `--policy.chunk_size` needs a policy, and none is chosen | "
        "add `--policy.type=act` or `--policy.path=FOLDER`"
    )


def test_type_and_path_exclude_each_other(train: Run, tmp_path: Path, checkpoint: str) -> None:
    text = fails(train, f"--policy.path={checkpoint}", "--policy.type=act")
    assert (
        text == f"`--policy.type=act` and `policy.path` exclude each other: the type stands in `{checkpoint}` | "
        "leave `--policy.type` out"
    )
    path = write(tmp_path, {"policy": {"path": checkpoint}})
    assert "exclude each other" in fails(train, f"--config_path={path}", "--policy.type=act")


def test_a_path_to_nothing_names_what_resembles_it(train: Run, tmp_path: Path) -> None:
    (tmp_path / "run_one").mkdir()
    assert (
        fails(train, f"--policy.path={tmp_path}/run_on")
        == f"`--policy.path={tmp_path}/run_on`: no such file or folder | did you mean `{tmp_path / 'run_one'}`?"
    )
    assert "the folder holds no config.json" in fails(train, f"--policy.path={tmp_path}")
    assert "hf download me/pick" in fails(train, "--policy.path=me/pick")
    assert "hf download me/pick" in fails(train, "--config_path=me/pick")


def test_mistakes_in_a_file_name_the_file(train: Run, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {
            "steps": "many",
            "stepz": 1,
            "policy": "act",
            "dataset": 3,
            "parallelism": {"dp_shard": 2},
            "env": {"type": "robocasa"},
        },
    )
    text = fails(train, f"--config_path={path}")
    for part in (
        f'`steps` is `"many"` in {path}: expected a whole number',
        f"unknown setting `stepz` in {path}; did you mean `steps`?",
        f"`policy` is `act` in {path}: expected a mapping; `policy: {{type: act}}`",
        f"`dataset` is `3` in {path}: expected a mapping",
        f"`parallelism.dp_shard` is `2` in {path}, which is LeRobot's and not part of mimetic yet",
        f"environment `robocasa` is known from LeRobot but not part of mimetic yet (`lerobot-eval` plays in it, with LeRobot's "
        f"`robocasa`) (`env.type` in {path}); available: so101_cell, aloha, libero, metaworld, pusht; `--env=null` leaves it out",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.json", "{", "is not valid JSON"),
        ("c.json", "[1]", "holds no mapping"),
        ("c.yaml", "a: [1", "brackets and quotes that match"),
        ("c.yaml", "!!python/object:os.system {}", "no tags"),
        ("c.yaml", "a: 1\n---\nb: 2", "brackets and quotes that match"),
        ("c.toml", "a =", "is not valid TOML"),
        ("c.txt", "", "settings files end in"),
    ],
)
def test_broken_files_are_refused_with_their_place(
    train: Run, tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = write(tmp_path, text, name)
    found = fails(train, f"--config_path={path}")
    assert message in found
    assert path in found


def test_bytes_that_are_no_text_are_refused(train: Run, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_bytes(b"\xff\xfe{}")
    assert "is not UTF-8 text" in fails(train, f"--config_path={tmp_path / 'c.json'}")
