"""Runs the demo: one command after another, each shown as it is typed, each gone on with after an interruption."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.demo.child import Ended, Signals
from mimetic.demo.config import STEP_NAMES, DemoConfig
from mimetic.demo.device import trains_in_bf16
from mimetic.demo.lock import LOCK, DemoLock
from mimetic.demo.page import write_page
from mimetic.demo.plan import Forecast, Plan, make_plan, read_plan, require_disk, size_of, size_words, time_words
from mimetic.demo.recipes import recipe_of
from mimetic.demo.state import STATE, Progress, State, holds_something_else, open_state
from mimetic.demo.steps import Step, Words, dataset_folder, eval_folder, plan_folder, run_folder, shown, steps_of_demo
from mimetic.errors import ConfigError, Interrupted, MimeticError

Table = Sequence[Sequence[str | None]]
EXIT_INTERRUPTED = 130
HEADERS = ("step", "predicted", "took", "memory", "on the disk")


@dataclass(frozen=True)
class Voice:
    """How the demo speaks.

    Args:
        say: prints a line at once, before a command that follows writes to the same terminal.
        title: the same for a heading.
        table: prints rows under headers.
    """

    say: Callable[[str], None]
    title: Callable[[str], None]
    table: Callable[[Sequence[str], Table], None]


@dataclass(frozen=True)
class Outcome:
    """How far the demo came.

    Args:
        is_finished: whether all five steps are done.
        page: the report; None before the evaluation.
    """

    is_finished: bool
    page: Path | None


def run_demo(config: DemoConfig, voice: Voice, *, typed: str) -> Outcome:
    """Do what is not done yet.

    Args:
        config: settings.
        voice: who prints.
        typed: the command as the user gave it, which goes on after an interruption.

    Raises:
        MissingExtra: a package that a step needs is not installed.
        ConfigError: the folder holds something else, or another demo.
        MimeticError: another demo is at work there, or a step failed.
        Interrupted: by Ctrl-C or another signal; what was done is kept.
    """
    require_packages(config)
    from mimetic.envs.tasks import TASKS

    task = TASKS[config.task]
    cores = os.cpu_count() or 1
    colour = next(iter(task.colours.values()), "red")
    instruction = task.instructions[0].format(colour=colour)
    make_steps = functools.partial(steps_of_demo, config, instruction=instruction, cores=cores)
    folder = config.output_dir
    again = "`--resume=false` moves it aside and begins anew, or choose another folder with `--output_dir`"
    if not config.resume:
        _move_aside(folder, voice)
    if not (folder / STATE).is_file() and holds_something_else(folder):
        open_state(config, again=again)  # says so, before anything is written into a stranger's folder
    folder.mkdir(parents=True, exist_ok=True)
    with DemoLock(folder) as lock, Signals() as signals:
        state = open_state(config, again=again)
        state.save(folder)
        demo = _Demo(config, voice, typed, make_steps, state, signals, lock, task.episode_length, cores)
        with demo.interruptible():
            return demo.run()


def require_packages(config: DemoConfig) -> None:
    """Refuse to begin what cannot end.

    Raises:
        MissingExtra: the simulation's packages, or the policy's, are not installed.
    """
    from mimetic.catalog import missing_extra

    for package, extra in (("mujoco", "sim"), ("gymnasium", "sim"), recipe_of(config).extra):
        if package and importlib.util.find_spec(package) is None:
            raise missing_extra(package, extra)


def _move_aside(folder: Path, voice: Voice) -> None:
    """What is there is never deleted.

    Raises:
        ConfigError: it cannot be renamed.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    refusal, another = f"`--resume=false` cannot move `{folder}` aside", "choose another folder with `--output_dir`"
    place, here = folder.resolve(), Path.cwd().resolve()
    if place == here or place in here.parents:
        what = "it is the current folder" if place == here else f"the current folder, {here}, is inside it"
        raise ConfigError(f"{refusal}: {what}", another)
    if folder.name in ("", ".."):
        raise ConfigError(f"{refusal}: it is called by no name of its own", f"name it as `--output_dir={place}`")
    if (folder / LOCK).is_file():
        with DemoLock(folder):
            pass  # nobody is at work there
    number = 1
    while (other := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    try:
        folder.rename(other)
    except OSError as error:  # a mount point, or a folder above it that cannot be written to
        raise ConfigError(f"{refusal}, to `{other}`: {error.strerror or error}", another) from error
    voice.say(f"What was in {folder} is now in {other}")


@dataclass
class _Demo:
    config: DemoConfig
    voice: Voice
    typed: str
    make_steps: Callable[..., tuple[Step, ...]]
    state: State
    signals: Signals
    lock: DemoLock
    most_ticks: int
    cores: int
    at: str = "at its start"
    steps: tuple[Step, ...] = ()

    @property
    def folder(self) -> Path:
        return self.config.output_dir

    def run(self) -> Outcome:
        self.steps = self._steps_here()
        wanted = self._wanted(self.steps)
        if any(progress.is_begun for progress in self.state.steps.values()):
            self._tell_done(wanted)
        for step in wanted:
            if self.signals.was_told():  # the command that was told has ended well all the same
                raise self._interrupted()
            self.at = f"during step {step.number} of {len(STEP_NAMES)}, {step.name}"
            if not self._is_done(step):
                self._do(step)
            if step.name == "plan":
                self._show_plan()
        self.at = "at its end"
        return self._end(wanted)

    def _wanted(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return steps[: STEP_NAMES.index(self.config.until) + 1]

    def _steps_here(self) -> tuple[Step, ...]:
        """The steps with the precision that the training began with; before that, with the one that suits this machine.

        A training that goes on keeps its precision wherever that is, since its numbers were made with it.
        """
        steps = self.make_steps(bf16=bool(self.state.bf16))
        train = steps[STEP_NAMES.index("train")]
        measuring = [step for step in self._wanted(steps) if step.name in ("plan", "train")]
        if any(mark.exists() for mark in train.begun) or all(map(self._is_done, measuring)):
            return steps
        self.state.bf16 = trains_in_bf16(self.config)
        self.state.save(self.folder)
        return self.make_steps(bf16=self.state.bf16)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Turns a signal into one error that says how to go on."""
        try:
            yield
        except KeyboardInterrupt as error:
            if isinstance(error, Interrupted):
                raise
            raise self._interrupted() from error

    def _interrupted(self) -> Interrupted:
        number = self.signals.received or signal.SIGINT
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        error = Interrupted(
            f"the demo was stopped by {name} {self.at}; what it has done so far is in {self.folder}",
            f"the same command goes on: `{self.typed}`",
        )
        error.exit_code = 128 + number
        return error

    def _is_done(self, step: Step) -> bool:
        return self.state.steps[step.name].is_done and step.result.exists()

    def _tell_done(self, wanted: Sequence[Step]) -> None:
        done = [step.name for step in wanted if self._is_done(step)]
        rest = [step.name for step in wanted if not self._is_done(step)]
        if rest:
            self.voice.say(f"Going on with the demo in {self.folder}; done: {', '.join(done) or 'nothing yet'}")

    def _do(self, step: Step) -> None:
        progress = self.state.steps[step.name]
        self.voice.title(f"{step.number}. {step.title}")
        self.voice.say(step.why)
        commands = self._commands(step, progress)
        progress.is_done = False
        progress.is_begun = True
        progress.parts += 1
        self.state.save(self.folder)
        self.voice.say("With your own arm:")
        for line in step.own:
            self.voice.say(f"    {line}")
        self.voice.say("In the simulated cell:")
        probes: dict[str, Ended] = {}
        for words in commands:
            self.voice.say(f"$ {shown(words)}")
            probes[words[0]] = self._run(step, words)
        if step.name == "plan":
            self._plan(probes)
        progress.is_done = True
        self.state.save(self.folder)

    def _commands(self, step: Step, progress: Progress) -> tuple[Words, ...]:
        """What has to run; leftovers from which no command can go on are removed first."""
        if any(mark.exists() for mark in step.begun):
            return step.going_on
        if step.folder.exists():
            if not progress.is_begun:
                raise ConfigError(
                    f"{step.folder} is there, and the demo has not begun step {step.number}, {step.name}",
                    "move it away, or choose another folder with `--output_dir`",
                )
            self.voice.say(f"{step.folder} was left by an interrupted start and holds nothing to go on from: removed")
            _remove(step.folder)
        return step.commands

    def _run(self, step: Step, words: Words) -> Ended:
        progress = self.state.steps[step.name]
        ended = self.signals.run(words, keep=self.lock.handles, on_start=self.lock.tell)
        self.lock.tell(None)
        progress.seconds = round(progress.seconds + ended.seconds, 2)
        if ended.memory_gb is not None:
            progress.memory_gb = round(max(progress.memory_gb or 0.0, ended.memory_gb), 3)
        if ended.code == 0:
            return ended
        self.state.save(self.folder)
        if self.signals.was_told() or ended.code == EXIT_INTERRUPTED:
            raise self._interrupted()
        raise _failure(step, words, ended, self.typed)

    def _plan(self, probes: dict[str, Ended]) -> None:
        plan = make_plan(self.config, self.state, probes, most_ticks=self.most_ticks, cores=self.cores)
        plan.save(self.folder)
        _remove(plan_folder(self.config))

    def _show_plan(self) -> None:
        plan = read_plan(self.folder)
        if plan is None:
            return
        if not self.state.steps["eval"].is_begun:
            recorded = f"{plan.frames_per_s:.0f} frames recorded a second, " if plan.frames_per_s else ""
            self.voice.say(
                f"Measured: {recorded}{1000 * plan.step_s:.0f} ms a training step, "
                f"{plan.ticks_per_s:.0f} control ticks played a second"
            )
            self.voice.table(HEADERS, summary_rows(self.config, self.state, plan))
        if not self._is_done(self.steps[3]):
            require_disk(plan, self.folder)

    def _end(self, wanted: Sequence[Step]) -> Outcome:
        if len(wanted) < len(self.steps):
            self.voice.title(f"Done until `{self.config.until}`, as asked; without `--until` the same command goes on")
            return Outcome(False, None)
        plan = read_plan(self.folder)
        rows = summary_rows(self.config, self.state, plan)
        document = _json(eval_folder(self.config) / "closed_loop.json")
        page = write_page(self.config, self.steps, self.state, document, (HEADERS, rows))
        self.voice.title(str(document["headline"]))
        self.voice.table(HEADERS, rows)
        self.voice.say(f"Report: {page}")
        self.voice.say(f"Films of single episodes: {eval_folder(self.config) / 'videos'}")
        self.voice.say(f"Policy: {run_folder(self.config)}")
        self.voice.title("Next, with your own arm")
        for step in self.steps:
            if step.name != "plan":
                for line in step.own:
                    self.voice.say(f"  {line}")
        return Outcome(True, page)


def summary_rows(config: DemoConfig, state: State, plan: Plan | None) -> list[tuple[str | None, ...]]:
    """Rows under `HEADERS`: predicted time, real time, memory and disk of each step, and of the whole."""
    places = {"record": dataset_folder(config), "train": run_folder(config), "eval": eval_folder(config)}
    forecasts = {} if plan is None else {"train": plan.train, "eval": plan.eval}
    rows = [_row(name, state.steps[name], forecasts.get(name), places.get(name)) for name in STEP_NAMES]
    if state.steps["eval"].is_done:
        seconds = sum(progress.seconds for progress in state.steps.values())
        rows.append(("all", None, time_words(seconds), None, size_words(sum(map(size_of, places.values())))))
    return rows


def _row(name: str, progress: Progress, forecast: Forecast | None, place: Path | None) -> tuple[str | None, ...]:
    predicted = None
    if forecast is not None:
        predicted = time_words(forecast.seconds)
        if forecast.seconds_at_most > forecast.seconds:
            predicted += f" to {time_words(forecast.seconds_at_most)}"
    if progress.is_done:
        took = time_words(progress.seconds) + (f" in {progress.parts} parts" if progress.parts > 1 else "")
        memory = None if progress.memory_gb is None else f"{progress.memory_gb:.1f} GB"
        return name, predicted, took, memory, None if place is None else size_words(size_of(place))
    if forecast is None:
        return name, None, None, None, None
    memory = None if forecast.memory_gb is None else f"about {forecast.memory_gb:.1f} GB"
    return name, predicted, None, memory, f"about {size_words(forecast.disk_bytes)}"


def _failure(step: Step, words: Words, ended: Ended, typed: str) -> MimeticError:
    where = f"step {step.number} of {len(STEP_NAMES)}, {step.name}"
    if ended.code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-ended.code).name
            why = "; the system does that when memory runs out" if name == "SIGKILL" else ""
            return MimeticError(
                f"{where}: `mimetic {words[0]}` was ended by {name}{why}", f"the same command goes on: `{typed}`"
            )
    if step.name == "check" and ended.code == 1:
        return MimeticError(
            f"{where}: the demonstrations have defects, which are listed above and in {step.result}",
            "training on them teaches the defects; `--resume=false` records anew",
        )
    return MimeticError(
        f"{where}: `mimetic {words[0]}` ended with exit code {ended.code}, and says above what was wrong",
        f"mend that; the same command then goes on: `{typed}`",
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
