"""`mimetic demo record`: demonstrations by a scripted operator in the simulated cell, as a dataset to train on."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic.cli import output
from mimetic.cli.places import require_writable
from mimetic.demo.own_arm import record_command
from mimetic.envs.config import FPS, SPLIT_NAMES, TASK_NAMES, CellConfig, CellLook
from mimetic.errors import ConfigError, DatasetError, Interrupted, SimulationError
from mimetic.fields import setting
from mimetic.names import SIMULATION_JSON

if TYPE_CHECKING:
    from mimetic.data.writer import DatasetWriter
    from mimetic.envs.cell import Cell
    from mimetic.envs.demonstration import Demonstration

SUMMARY = "Record demonstrations of a scripted operator in the simulated cell"

logger = logging.getLogger(__name__)
_OPERATORS = ("ideal", "careful", "sloppy")
_TRIES = 20
_FORMAT = "mimetic simulated demonstrations"


@dataclass(frozen=True, kw_only=True)
class DemoRecordConfig(CellLook):
    """Settings of `mimetic demo record`."""

    repo_id: str = setting("local/so101_demo", "Name of the dataset", layer="mimetic")
    root: Path | None = setting(None, "Its folder (default $HF_LEROBOT_HOME/<repo_id>)", layer="mimetic")
    task: str = setting(
        "pick_place",
        f"What is demonstrated, or several tasks in turn, separated by commas: {', '.join(TASK_NAMES)}",
        layer="mimetic",
    )
    split: str = setting("train", "Which variation episodes are drawn from", choices=SPLIT_NAMES, layer="mimetic")
    n_episodes: int = setting(50, "Episodes that the dataset shall have", layer="mimetic")
    operator: str = setting(
        "careful",
        "How the operator moves: careful varies like a practised person, sloppy makes mistakes, ideal never varies",
        choices=_OPERATORS,
        layer="mimetic",
    )
    keep_failures: bool = setting(False, "Record episodes in which the task did not succeed, too", layer="mimetic")
    seed: int = setting(0, "Seed of the first try; each try takes the next one", layer="mimetic")
    encoding: str = setting("fast", "Videos by purpose", choices=("fast", "small", "lossless"), layer="mimetic")
    resume: bool = setting(False, "Go on with the dataset until it has --n_episodes", layer="mimetic")

    @property
    def tasks(self) -> list[str]:
        """The named tasks."""
        return list(dict.fromkeys(name.strip() for name in self.task.split(",") if name.strip()))

    def cells(self) -> list[CellConfig]:
        """One cell for each task."""
        look = {field.name: getattr(self, field.name) for field in fields(CellLook)}
        return [CellConfig(task=task, split=self.split, **look) for task in self.tasks]

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        for cell in self.cells() or [CellConfig()]:
            try:
                cell.check()
            except ConfigError as error:
                problems.append(error.message)
        if not self.tasks:
            problems.append(f"`--task=` names nothing; there are {', '.join(TASK_NAMES)}")
        for name, least in (("n_episodes", 1), ("seed", 0)):
            if getattr(self, name) < least:
                problems.append(f"`--{name}={getattr(self, name)}` must be at least {least}")
        return problems


def main(argv: list[str], *, debug: bool) -> int:
    """Record demonstrations.

    Args:
        argv: flags after `mimetic demo record`.
        debug: not used here.

    Returns:
        0.

    Raises:
        MimeticError: anything that the user can mend.
        Interrupted: Ctrl-C; whole episodes stay.
    """
    from mimetic.config.parse import parse

    config: DemoRecordConfig = parse(DemoRecordConfig, argv, prog="mimetic demo record").value
    from mimetic.data.record.places import dataset_folder

    folder = dataset_folder(config.repo_id, config.root)
    require_writable(folder)
    try:
        failures = record(config, folder)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped by Ctrl-C; the whole episodes are in {folder}",
            "the same command with `--resume=true` goes on",
        ) from error
    show(config, folder, failures)
    return 0


def record(config: DemoRecordConfig, folder: Path) -> int:
    """Record until the dataset has its episodes.

    Args:
        config: settings.
        folder: of the dataset.

    Returns:
        How many tries of this call failed and were left out.

    Raises:
        DatasetError: the dataset exists, or is another one than the settings say.
        SimulationError: the operator failed many times in a row.
    """
    from mimetic.envs.cell import Cell
    from mimetic.train.bar import progress_bar

    cells = [Cell(cell) for cell in config.cells()]
    try:
        with _open(config, folder, cells[0]) as writer:
            side = _Side(config, folder, cells, writer.num_episodes)
            done, failures = writer.num_episodes, 0
            with progress_bar("Demonstrating", "episode", config.n_episodes, done) as advance:
                for one, failed in _demonstrations(config, cells, side.seeds):
                    failures += failed
                    side.note(
                        one
                    )  # first: an entry too many is dropped on resuming, one too few could not be filled in
                    for number, row in enumerate(one.rows()):
                        writer.add_frame(row, one.instruction, clock_s=number / one.fps)
                    writer.save_episode()
                    advance(writer.num_episodes)
            writer.finalize()
    finally:
        for cell in cells:
            cell.close()
    return failures


def _open(config: DemoRecordConfig, folder: Path, cell: Cell) -> DatasetWriter:
    from mimetic.data.record.config import WriterConfig
    from mimetic.data.writer import DatasetWriter

    features = {key: {**value, "shape": tuple(value["shape"])} for key, value in cell.features().items()}
    settings = WriterConfig(encoding=config.encoding)
    if config.resume:
        return DatasetWriter.resume(
            config.repo_id,
            folder,
            fps=FPS,
            features=features,
            robot_type="so101_follower",
            settings=settings,
            live=False,
        )
    return DatasetWriter.create(
        config.repo_id, FPS, features, folder, robot_type="so101_follower", settings=settings, live=False
    )


def _demonstrations(
    config: DemoRecordConfig, cells: Sequence[Cell], seeds: list[int]
) -> Iterator[tuple[Demonstration, int]]:
    """What is still missing, and how many tries failed before each; tasks take turns, seeds go up."""
    from mimetic.envs.demonstration import demonstrate
    from mimetic.envs.manner import MANNERS

    seed = seeds[-1] + 1 if seeds else config.seed
    for number in range(len(seeds), config.n_episodes):
        cell = cells[number % len(cells)]
        for failed in range(_TRIES):
            one = demonstrate(cell, MANNERS[config.operator], seed)
            seed += 1
            if one.is_success or config.keep_failures:
                yield one, failed
                break
            logger.debug("seed %d failed at %s", one.seed, cell.config.task)
        else:
            raise SimulationError(
                f"the {config.operator} operator failed {_TRIES} times in a row at {cell.config.task}",
                "`--keep_failures=true` records failures, too",
            )


class _Side:
    """`meta/mimetic/simulation.json`: what the cell was, and the seed of every episode."""

    def __init__(self, config: DemoRecordConfig, folder: Path, cells: Sequence[Cell], n_episodes: int) -> None:
        from mimetic.data.store.atomic import read_json

        self._path = folder / SIMULATION_JSON
        wanted = _description(config, cells)
        self._data: dict[str, Any] = {**wanted, "episodes": []}
        if config.resume:
            if not self._path.is_file():
                raise DatasetError(
                    f"{folder} has no {SIMULATION_JSON}, so it was not recorded by `mimetic demo record`",
                    "record into a new dataset",
                )
            stored = read_json(self._path)
            different = [name for name in wanted if stored.get(name) != wanted[name] and not name.endswith("_reason")]
            if different:
                name = different[0]
                raise DatasetError(
                    f"{folder} was recorded with {name} = {stored.get(name)!r}, and now it is {wanted[name]!r}",
                    "repeat the command that began it, with `--resume=true`, or record into a new dataset",
                )
            self._data["episodes"] = list(stored["episodes"])[:n_episodes]
        if len(self._data["episodes"]) != n_episodes:
            raise DatasetError(
                f"{self._path} names {len(self._data['episodes'])} episodes, and the dataset has {n_episodes}",
                "record into a new dataset",
            )

    @property
    def seeds(self) -> list[int]:
        """Seed of each recorded episode."""
        return [int(one["seed"]) for one in self._data["episodes"]]

    def note(self, one: Demonstration) -> None:
        """Add an episode."""
        from mimetic.data.store.atomic import write_json

        entry = {"seed": one.seed, "task": one.description["task"], "success": one.is_success, "length": len(one)}
        self._data["episodes"].append(entry)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._path, self._data)


def _description(config: DemoRecordConfig, cells: Sequence[Cell]) -> dict[str, Any]:
    described = cells[0].description()
    described.pop("task")
    rest = {"tasks": config.tasks, "operator": config.operator, "only_successes": not config.keep_failures}
    return {"format": _FORMAT, "format_version": 1, **described, **rest, "first_seed": config.seed}


def show(config: DemoRecordConfig, folder: Path, failures: int) -> None:
    """Print what there is now, and what to do with it."""
    tried = f", {failures} failed tries left out" if failures else ""
    output.say(f"{config.n_episodes} episodes of {', '.join(config.tasks)} in {folder}{tried}")
    output.say()
    output.say("Train on it and count successes meanwhile:")
    output.say(
        f"  mimetic train --dataset.repo_id={config.repo_id} --dataset.root={shlex.quote(str(folder))} "
        f"--policy.type=act --env.type=so101_cell --env.task={config.task}{_looks(config)}"
    )
    output.say("Record the same on a real SO-101 (with LeRobot):")
    output.say(f"  {record_command(config.repo_id, config.n_episodes, _instruction(config))}")


def _instruction(config: DemoRecordConfig) -> str:
    from mimetic.envs.tasks import TASKS

    return TASKS[config.tasks[0]].instructions[0].format(colour="red")


def _looks(config: DemoRecordConfig) -> str:
    """Flags of the environment that are not the defaults."""
    changed = [field for field in fields(CellLook) if getattr(config, field.name) != field.default]
    return "".join(f" --env.{field.name}={getattr(config, field.name)}" for field in changed).replace("True", "true")
