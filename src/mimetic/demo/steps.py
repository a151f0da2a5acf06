"""The five steps of the demo as data: what each is for, its commands, what it leaves, and how it is gone on with."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mimetic.demo import own_arm
from mimetic.demo.config import STEP_NAMES, DemoConfig
from mimetic.demo.recipes import Recipe, picture_of, recipe_of, steps_of, training_flags
from mimetic.names import CHECKPOINTS_DIR, INFO_JSON, LAST, LAST_TXT, SIMULATION_JSON
from mimetic.train.config import EnvEvalConfig

PROBE_STEPS = 12
"""Training steps that the plan takes to measure one, unless the training is shorter."""
PROBE_WINDOWS = 3
"""Log lines of the probe; the first one holds everything that happens only once."""
PROBE_TICKS = 60
"""Control ticks of each episode that the plan plays: two seconds."""
SAVES = 5
"""Checkpoints on the way: what an interruption may cost is a fifth of the training."""
VIDEOS = 10
Words = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step.

    Args:
        name: one of `STEP_NAMES`.
        title: what it does, an imperative sentence.
        why: what it is good for, one sentence.
        commands: words after `mimetic`, one tuple a command.
        folder: what the step makes, and nothing else does.
        result: is there when the step was done; whether it was is noted in the demo's own file.
        begun: one of these is there when a command can go on; without them an interrupted step begins anew.
        going_on: the commands that go on with an interrupted step.
        own: the same for a user's own arm, lines to type or to read.
    """

    name: str
    title: str
    why: str
    commands: tuple[Words, ...]
    folder: Path
    result: Path
    begun: tuple[Path, ...]
    going_on: tuple[Words, ...]
    own: tuple[str, ...]

    @property
    def number(self) -> int:
        """Its place, from 1."""
        return STEP_NAMES.index(self.name) + 1


def steps_of_demo(config: DemoConfig, *, instruction: str, cores: int, bf16: bool) -> tuple[Step, ...]:
    """The steps in their order.

    Args:
        config: settings.
        instruction: the task in words.
        cores: of this machine, by which the plan's episodes are counted.
        bf16: whether the training multiplies bfloat16 (`mimetic.demo.device.trains_in_bf16`).
    """
    return (
        _record(config, instruction),
        _check(config),
        _plan(config, cores, bf16),
        _train(config, bf16),
        _eval(config),
    )


def dataset_folder(config: DemoConfig) -> Path:
    """Where the demonstrations are."""
    return config.output_dir / "data"


def plan_folder(config: DemoConfig) -> Path:
    """Where the plan's trials are while it measures."""
    return config.output_dir / "plan"


def run_folder(config: DemoConfig) -> Path:
    """Where the training is."""
    return config.output_dir / "train"


def eval_folder(config: DemoConfig) -> Path:
    """Where the evaluation is."""
    return config.output_dir / "eval"


def check_page(config: DemoConfig) -> Path:
    """The page of the dataset's check."""
    return config.output_dir / "check.html"


def probe_steps(config: DemoConfig) -> int:
    """Training steps that the plan takes to measure one."""
    return min(PROBE_STEPS, steps_of(config))


def places_of(config: DemoConfig, cores: int) -> int:
    """How many episodes the evaluation plays at once.

    Args:
        config: settings.
        cores: of this machine.
    """
    return EnvEvalConfig(n_episodes=config.n_episodes, batch_size=recipe_of(config).places).places(cores)


def shown(words: Sequence[str], program: str = "mimetic") -> str:
    """A command as it is typed, one flag a line."""
    lines = [program]
    for word in words:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return " \\\n    ".join(lines)


def in_one_line(words: Sequence[str]) -> str:
    """A command of mimetic as it is typed, in one line."""
    return shlex.join(("mimetic", *words))


def _repo_id(config: DemoConfig) -> str:
    return f"local/demo_{config.task}"


def _data_flags(config: DemoConfig) -> Words:
    return (f"--dataset.repo_id={_repo_id(config)}", f"--dataset.root={dataset_folder(config)}")


def _look(config: DemoConfig, prefix: str) -> Words:
    width, height = picture_of(config)
    flags: Words = (f"--{prefix}width={width}", f"--{prefix}height={height}")
    return flags if config.renderer == "auto" else (*flags, f"--{prefix}renderer={config.renderer}")


def _device(config: DemoConfig) -> Words:
    return () if config.policy.device is None else (f"--policy.device={config.policy.device}",)


def _places(recipe: Recipe) -> Words:
    return (f"--eval.batch_size={recipe.places}",) if recipe.places else ()


def _record(config: DemoConfig, instruction: str) -> Step:
    folder = dataset_folder(config)
    command: Words = (
        *("demo", "record", f"--repo_id={_repo_id(config)}", f"--root={folder}", f"--task={config.task}"),
        *(f"--n_episodes={config.n_demonstrations}", f"--seed={config.seed}", *_look(config, "")),
    )
    return Step(
        name="record",
        title=f"Record {config.n_demonstrations} demonstrations in the simulated cell",
        why=(
            f"A scripted operator does what you would show by hand: {instruction[:1].lower()}{instruction[1:]}. With a "
            "real arm LeRobot records, and what it wrote is read as it is."
        ),
        commands=(command,),
        folder=folder,
        result=folder / INFO_JSON,
        begun=(folder / SIMULATION_JSON,),
        going_on=((*command, "--resume=true"),),
        own=(own_arm.record_command(own_arm.DATASET, config.n_demonstrations, "what the arm shall do"),),
    )


def _check(config: DemoConfig) -> Step:
    recipe, page = recipe_of(config), check_page(config)
    command: Words = (
        *("dataset", "check", f"--root={dataset_folder(config)}", "--video=true"),
        *(f"--policy.type={recipe.type_name}", f"--html={page}"),
    )
    return Step(
        name="check",
        title="Check the demonstrations",
        why="What is wrong with a recording costs a minute now and a wasted training later.",
        commands=(command,),
        folder=page,
        result=page,
        begun=(),
        going_on=(),
        own=(in_one_line(own_arm.check_command(recipe)),),
    )


def _plan(config: DemoConfig, cores: int, bf16: bool) -> Step:
    folder = plan_folder(config)
    recipe, probe = recipe_of(config), probe_steps(config)
    train: Words = (
        *("train", *recipe.policy, *_device(config), "--policy.push_to_hub=false", *_data_flags(config)),
        *training_flags(config, bf16=bf16),
        *(f"--steps={probe}", f"--log_freq={max(1, probe // PROBE_WINDOWS)}", f"--seed={1000 + config.seed}"),
        f"--output_dir={folder / 'train'}",
    )
    play: Words = (
        *("eval", f"--policy.path={folder / 'train'}", *_cell(config), f"--env.episode_length={PROBE_TICKS}"),
        *_places(recipe),
        f"--eval.n_episodes={places_of(config, cores)}",
        *("--videos=1", "--report=false", f"--output_dir={folder / 'eval'}"),
    )
    return Step(
        name="plan",
        title="Measure what training and evaluation will take",
        why="A few real steps and a few real seconds of play tell time, memory and disk before you wait for them.",
        commands=(train, play),
        folder=folder,
        result=config.output_dir / "plan.json",
        begun=(),
        going_on=(),
        own=(in_one_line(own_arm.probe_command(recipe, probe)),),
    )


def _train(config: DemoConfig, bf16: bool) -> Step:
    recipe, folder, steps = recipe_of(config), run_folder(config), steps_of(config)
    command: Words = (
        *("train", *recipe.policy, *_device(config), "--policy.push_to_hub=false", *_data_flags(config)),
        *training_flags(config, bf16=bf16),
        *(f"--steps={steps}", f"--log_freq={max(1, steps // 50)}", f"--save_freq={max(1, steps // SAVES)}"),
        *("--keep.last=1", f"--seed={1000 + config.seed}", f"--output_dir={folder}"),
    )
    # A checkpoint names its device, which another machine may lack: float32 goes on with whatever is there. bfloat16
    # began on a CPU and stays on one, since not every GPU multiplies it.
    device = () if bf16 or config.policy.device is not None else ("--policy.device=null",)
    return Step(
        name="train",
        title=f"Train {recipe.words} for {steps:,} steps",
        why="The policy learns to predict, from two cameras and the joints, what the operator did next.",
        commands=(command,),
        folder=folder,
        result=folder / CHECKPOINTS_DIR,
        begun=(folder / CHECKPOINTS_DIR / LAST, folder / CHECKPOINTS_DIR / LAST_TXT),
        going_on=(("train", "--resume=true", f"--config_path={folder}", *device),),
        own=(in_one_line(own_arm.train_command(recipe, steps)),),
    )


def _eval(config: DemoConfig) -> Step:
    folder = eval_folder(config)
    command: Words = (
        *("eval", f"--policy.path={run_folder(config)}", *_device(config), *_cell(config)),
        *_places(recipe_of(config)),
        *(f"--eval.n_episodes={config.n_episodes}", f"--videos={VIDEOS}", f"--seed={1000 + config.seed}"),
        f"--output_dir={folder}",
    )
    return Step(
        name="eval",
        title=f"Let the policy try {config.n_episodes} times, from positions that no demonstration began at",
        why="Only trying tells how often a policy succeeds; the interval says how sure the count is.",
        commands=(command,),
        folder=folder,
        result=folder / "report.html",
        begun=(folder / "eval_config.json",),
        going_on=((*command, "--resume=true"),),
        own=(in_one_line(own_arm.eval_command()),),
    )


def _cell(config: DemoConfig) -> Words:
    return (
        *("--env.type=so101_cell", f"--env.task={config.task}", "--env.split=held_out"),
        *_look(config, "env."),
    )
