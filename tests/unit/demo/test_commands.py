"""Every command that the demo runs or prints is one that mimetic understands."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mimetic.catalog import load_object
from mimetic.cli import app, dataset_check
from mimetic.config.parse import parse
from mimetic.demo.config import REAL_SIZES, STEP_NAMES, DemoConfig, DemoPolicyConfig
from mimetic.demo.device import multiplies_bf16, trains_in_bf16
from mimetic.demo.recipes import RECIPES, SMALL, recipe_of, require_task, steps_of
from mimetic.demo.steps import PROBE_STEPS, shown, steps_of_demo
from mimetic.envs.config import TASK_NAMES
from mimetic.errors import ConfigError, MimeticError
from mimetic.testing.machines import apple, cpu_only, nvidia


def understood(words):
    """The settings that a command line stands for; an error where it is wrong."""
    words = [str(word) for word in words]
    name, argv = app._split(words)
    if name == "dataset check":
        argv = dataset_check.with_values(argv)
    return parse(load_object(app.COMMANDS[name].config), argv, prog=f"mimetic {name}", load_policy=stored).value


def stored(place, revision=None):
    """Settings of whatever checkpoint is named."""
    return {"type": "act"}


def demos():
    for size in (None, *REAL_SIZES):
        for task in RECIPES[size or SMALL].steps:
            yield DemoConfig(task=task, real_size=size)
    yield DemoConfig(renderer="rays", width=32, height=48, steps=3, seed=7, policy=DemoPolicyConfig(device="cpu"))
    yield DemoConfig(output_dir=Path("a folder/it's mine"))


def steps(config, *, bf16=False):
    return steps_of_demo(config, instruction="Do it", cores=4, bf16=bf16)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("config", list(demos()), ids=lambda config: f"{config.task}-{config.real_size}")
def test_every_command_is_understood(config, bf16):
    for step in steps(config, bf16=bf16):
        for words in (*step.commands, *step.going_on):
            if "--resume=true" in words and words[0] == "train":  # its settings stand in the run
                assert words[2] == f"--config_path={config.output_dir / 'train'}"
                continue
            understood(words)
            typed = shlex.split(shown(words).replace("\\\n", " "))
            assert typed == ["mimetic", *words]
        for line in step.own:
            program, *words = shlex.split(line)
            if program != "lerobot-record":
                assert program == "mimetic"
                understood(words)


def test_the_commands_belong_together():
    config = DemoConfig(task="push", seed=5, steps=40, width=64, height=48, renderer="rays", output_dir=Path("x"))
    record, check, plan, train, play = steps(config)
    recorded = understood(record.commands[0])
    assert (recorded.task, recorded.seed, recorded.n_episodes) == ("push", 5, 50)
    assert understood(check.commands[0]).root == recorded.root == Path("x/data")
    trained, played = understood(train.commands[0]), understood(play.commands[0])
    assert trained.dataset.root == str(recorded.root)
    assert trained.dataset.repo_id == recorded.repo_id
    assert (trained.steps, trained.seed, trained.save_freq) == (40, 1005, 8)
    assert played.policy.pretrained_path == str(trained.output_dir)
    assert (played.seed, played.eval.n_episodes, played.env.split) == (1005, 100, "held_out")
    for name in ("width", "height", "renderer", "task"):
        assert getattr(played.env, name) == getattr(recorded, name)
    probe, trial = map(understood, plan.commands)
    assert probe.policy == trained.policy
    assert (probe.batch_size, probe.num_workers, probe.steps) == (trained.batch_size, trained.num_workers, PROBE_STEPS)
    assert replace(trial.env, episode_length=None) == played.env
    assert trial.eval.n_episodes == trial.eval.places(4) == 2


@pytest.mark.parametrize(("bf16", "precision"), [(True, "bf16"), (False, "no")])
def test_the_plan_measures_the_precision_that_is_trained_in(bf16, precision):
    _, _, plan, train, _ = steps(DemoConfig(), bf16=bf16)
    for step in (plan, train):
        assert understood(step.commands[0]).accelerator.mixed_precision == precision


@pytest.mark.parametrize(
    ("machine", "device", "answer"),
    [
        (cpu_only(bfloat16=True), None, True),
        (cpu_only(bfloat16=False), None, False),
        (nvidia("NVIDIA H200", (9, 0)), None, False),
        (nvidia("NVIDIA H200", (9, 0)), "cpu", True),
        (apple(), None, False),
        (cpu_only(bfloat16=False), "cpu", False),
    ],
)
def test_bfloat16_is_for_a_cpu_that_multiplies_it(machine, device, answer):
    assert multiplies_bf16(device, machine) is answer


def test_torch_is_asked_elsewhere_and_only_where_the_answer_matters(monkeypatch):
    asked = []

    def ask(command, **rest):
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "a word of torch\nTrue\n", "")

    monkeypatch.setattr(subprocess, "run", ask)
    for size in REAL_SIZES:
        assert not trains_in_bf16(DemoConfig(real_size=size))
    assert not trains_in_bf16(DemoConfig(policy=DemoPolicyConfig(device="cuda")))
    assert asked == []
    assert trains_in_bf16(DemoConfig())
    assert trains_in_bf16(DemoConfig(policy=DemoPolicyConfig(device="cpu")))
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("code", "out", "err", "words"),
    [
        (1, "", "Traceback\nImportError: libtorch is broken\n", "ImportError: libtorch is broken"),
        (-9, "", "", "exit code -9"),
        (0, "", "", "exit code 0"),
    ],
)
def test_a_torch_that_does_not_answer_is_an_error(code, out, err, words, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda words, **rest: subprocess.CompletedProcess(words, code, out, err))
    with pytest.raises(MimeticError, match=f"torch does not say what this machine can compute with: {words}"):
        trains_in_bf16(DemoConfig())


def test_a_training_goes_on_where_its_device_may_be_absent():
    """Except in bfloat16, which began on a CPU, and on a device that was asked for."""
    cpu = DemoConfig(policy=DemoPolicyConfig(device="cpu"))
    for config, bf16, more in (
        (DemoConfig(), False, ("--policy.device=null",)),
        (DemoConfig(), True, ()),
        (cpu, False, ()),
    ):
        (words,) = steps(config, bf16=bf16)[3].going_on
        assert words[3:] == more


def test_episodes_that_play_at_once_are_planned_and_played_alike(monkeypatch):
    monkeypatch.setitem(RECIPES, SMALL, replace(RECIPES[SMALL], places=3))
    _, _, plan, _, play = steps(DemoConfig())
    assert understood(play.commands[0]).eval.batch_size == 3
    trial = understood(plan.commands[1]).eval
    assert (trial.batch_size, trial.n_episodes) == (3, 3)


def test_every_recipe_knows_its_tasks_and_only_large_ones_need_a_gpu():
    for name, recipe in RECIPES.items():
        assert set(recipe.steps) == set(TASK_NAMES) - (set() if name == "smolvla" else {"sort"})
        assert recipe.needs_gpu == bool(recipe.cpu_takes) == (name in REAL_SIZES)
    assert steps_of(DemoConfig(steps=7)) == 7
    assert steps_of(DemoConfig(task="reach")) == recipe_of(DemoConfig()).steps["reach"]


@pytest.mark.parametrize("size", [None, "act"])
def test_a_policy_that_reads_no_instruction_is_not_asked_to_sort(size):
    words = (
        "`--task=sort` says only in its instruction what to do .*, and (a small keypoint policy|ACT in its full size),"
    )
    with pytest.raises(ConfigError, match=words) as caught:
        require_task(DemoConfig(task="sort", real_size=size, steps=7))
    assert caught.value.hint.startswith("`--real_size=smolvla` trains a policy that reads it")
    require_task(DemoConfig(task="sort", real_size="smolvla"))
    require_task(DemoConfig(real_size=size))


def test_steps_are_numbered_in_their_order():
    assert [(step.name, step.number) for step in steps(DemoConfig())] == [
        (name, number) for number, name in enumerate(STEP_NAMES, 1)
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_demonstrations": 0}, "`--n_demonstrations=0` must be at least 1"),
        ({"n_episodes": 0}, "`--n_episodes=0` must be at least 1"),
        ({"steps": 0}, "`--steps=0` must be at least 1"),
        ({"seed": -1}, "`--seed=-1` must be at least 0"),
        ({"seed": 2**30}, "`--seed=1073741824` must be below"),
        ({"yes": True}, "`--yes` lets a policy of real size"),
        ({"width": 8}, "8 pixels; a picture has between 16 and 2048"),
        ({"height": 0}, "0 pixels; a picture has between 16 and 2048"),
    ],
)
def test_wrong_settings_are_named(changes, words):
    assert any(words in problem for problem in DemoConfig(**changes).check())
    assert DemoConfig().check() == []
