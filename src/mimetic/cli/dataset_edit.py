"""`mimetic dataset edit`: LeRobot's `lerobot-edit-dataset`, and trimming, keeping and renaming (spec/dataset.md 15)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.data.edit.config import ConvertImageToVideoConfig, InfoConfig, MergeConfig, OperationConfig
from mimetic.data.engine.config import EngineConfig
from mimetic.errors import ConfigError
from mimetic.fields import setting

if TYPE_CHECKING:
    from mimetic.data.edit.build import EditResult
    from mimetic.data.edit.forecast import Forecast

SUMMARY = "Edit a dataset: delete, keep, split, merge, trim, rename, features, tasks, videos, statistics"

logger = logging.getLogger(__name__)

_WORTH_PROCESSES_S = 8.0


@dataclass(frozen=True, kw_only=True)
class DatasetEditConfig(EngineConfig):
    """Settings of `mimetic dataset edit`."""

    repo_id: str = setting("", "Name of the dataset; without --root it is looked up as training does")
    root: Path | None = setting(None, "Folder of the dataset")
    new_repo_id: str | None = setting(None, "Name of the result; its folder is below HF_LEROBOT_HOME")
    new_root: Path | None = setting(
        None,
        "Folder of the result; without it and --new_repo_id the dataset is edited in place and stays as <name>_old",
    )
    operation: OperationConfig | None = setting(None, "What to do", catalog="mimetic.data.edit.catalog:OPERATIONS")
    push_to_hub: bool = setting(
        False, "Push the result to the hub, as --new_repo_id, or as --repo_id when it is edited in place"
    )
    dry_run: bool = setting(False, "Check everything and show what would be done, without doing it", layer="mimetic")
    json: bool = setting(False, "Print JSON instead of a table", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = self.engine_problems()
        if self.operation is None:
            return [*problems, "no operation is chosen: `--operation.type=delete_episodes`; see `--help operation`"]
        if isinstance(self.operation, MergeConfig):
            if not self.new_repo_id and self.new_root is None:
                problems.append("`merge` needs the place of its result: `--new_root=FOLDER` or `--new_repo_id=NAME`")
        elif not self.repo_id and self.root is None:
            problems.append("no dataset is named: `--root=FOLDER` or `--repo_id=NAME`")
        if self.push_to_hub and not self.new_repo_id and (not self.repo_id or self.new_root is not None):
            problems.append("`--push_to_hub=true` needs the name of the result on the hub, `--new_repo_id=USER/NAME`")
        return problems


def main(argv: list[str], *, debug: bool) -> int:
    """Edit a dataset, or show what an edit would do.

    Args:
        argv: flags; a bare first word is the folder.
        debug: not used here.

    Raises:
        MimeticError: anything that the user can mend; nothing was changed then.
    """
    from mimetic.cli.dataset_info import main as show_info
    from mimetic.cli.dataset_info import with_root_flag
    from mimetic.config.parse import parse

    config: DatasetEditConfig = parse(DatasetEditConfig, with_root_flag(argv), prog="mimetic dataset edit").value
    operation = config.operation
    assert operation is not None  # checked
    if isinstance(operation, InfoConfig):
        place = [f"--root={config.root}"] if config.root is not None else [f"--repo_id={config.repo_id}"]
        flags = [f"--show_features={operation.show_features}", f"--json={config.json}"]
        return show_info([*place, *flags], debug=debug)
    from mimetic.data.edit.build import execute
    from mimetic.data.edit.run import forecast_edit, named, plan_edit
    from mimetic.data.store.beside import finish_interrupted

    if config.root is not None:
        finish_interrupted(named(config.root))
    roots = [named(root) for root in sources_of(config)]
    target = named(target_of(config, roots[0]))
    is_in_place = target.exists() and target.samefile(roots[0])
    if is_in_place and operation.suffix and not getattr(operation, "overwrite", False):
        raise ConfigError(
            f"`{operation.type_name}` would replace `{roots[0]}`",
            "name another folder with `--new_root`"
            + (", or allow it with `--operation.overwrite=true`" if hasattr(operation, "overwrite") else ""),
        )
    planned = plan_edit(roots, operation, target, is_in_place=is_in_place)
    forecasts = forecast_edit(planned)
    if config.dry_run:
        show_forecast(forecasts, as_json=config.json)
        return 0
    if config.push_to_hub:
        from mimetic.data.publish import push_dataset
        from mimetic.hub.upload import require_repo

        for plan, _ in planned:
            require_repo(name_on_hub(config, plan.operation), private=None, repo_type="dataset", flag="--new_repo_id")
    for note in dict.fromkeys(note for one in forecasts for note in one.notes):
        output.note(note)
    with progress_bar(f"{operation.type_name}") as progress:
        results = execute(
            planned,
            replaces=roots[0] if is_in_place else None,
            engine=engine_of(config, sum(one.seconds for one in forecasts)),
            encoder_threads=getattr(operation, "encoder_threads", None),
            progress=progress,
        )
    show_results(results, as_json=config.json)
    if config.push_to_hub:
        for result, (plan, _) in zip(results, planned, strict=True):
            pushed = push_dataset(result.root, name_on_hub(config, plan.operation), flag="--new_repo_id")
            output.note(f"pushed to {pushed.repo_id}: {pushed.n_files} files, tagged {pushed.tag}")
    return 0


def name_on_hub(config: DatasetEditConfig, operation: str) -> str:
    """Repository of a result; of the parts of a split (`split train`) one each, NAME_train.

    Args:
        config: the settings.
        operation: what its plan is called.
    """
    assert config.operation is not None
    part = operation.partition(" ")[2] if config.operation.type_name == "split" else ""
    if part:
        return f"{config.new_repo_id or config.repo_id}_{part}"
    is_in_place = getattr(config.operation, "overwrite", False)
    return config.new_repo_id or config.repo_id + ("" if is_in_place else config.operation.suffix)


def sources_of(config: DatasetEditConfig) -> list[Path]:
    """Folders of the datasets that are read."""
    from mimetic.data.reader import find_dataset

    operation = config.operation
    if not isinstance(operation, MergeConfig):
        return [find_dataset(config.repo_id, root=config.root)]
    roots: Sequence[str | None] = operation.roots or [None] * len(operation.repo_ids or [])
    names: Sequence[str] = operation.repo_ids or [""] * len(roots)
    return [find_dataset(name, root=root) for name, root in zip(names, roots, strict=True)]


def target_of(config: DatasetEditConfig, source: Path) -> Path:
    """Folder of the result; for `split` a folder for all of them, or a pattern with `{name}`.

    Without any name the result stands beside the source when that was named by its folder, else in LeRobot's home.
    """
    from mimetic.hub.locate import lerobot_home

    operation = config.operation
    assert operation is not None
    is_split = operation.type_name == "split"
    if isinstance(operation, ConvertImageToVideoConfig) and operation.output_dir and config.new_root is None:
        return Path(operation.output_dir).expanduser()
    if config.new_root is not None:
        return config.new_root.expanduser()
    if config.new_repo_id and not is_split:
        return lerobot_home() / config.new_repo_id
    if getattr(operation, "overwrite", False):
        return source
    suffix = "_{name}" if is_split else operation.suffix
    if config.root is not None or not config.repo_id:
        return source.with_name(source.name + suffix) if suffix else source
    return lerobot_home() / (config.repo_id + suffix) if suffix else source


def engine_of(config: DatasetEditConfig, seconds: float) -> EngineConfig:
    """Who does the work; LeRobot's `--operation.num_workers` counts where `--num_workers` is not given.

    Args:
        config: the settings.
        seconds: how long the work will take; starting processes takes longer than short work.
    """
    if config.engine == "auto" and not config.num_workers and seconds < _WORTH_PROCESSES_S:
        return EngineConfig(engine="serial")
    workers = config.num_workers or getattr(config.operation, "num_workers", 0)
    workers = 0 if config.engine == "serial" else workers
    return EngineConfig(engine=config.engine, num_workers=workers, address=config.address)


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr that counts files; silent where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total)


def show_forecast(forecasts: Sequence[Forecast], *, as_json: bool) -> None:
    """Print what would be done."""
    if as_json:
        output.say_json([_facts(one) for one in forecasts])
        return
    for one in forecasts:
        output.say(f"{one.operation}: would write `{one.target}`")
        rows = [
            ("episodes", f"{one.episodes[0]} (of {one.episodes[1]})"),
            ("frames", f"{one.frames[0]} (of {one.frames[1]})"),
            ("rows written again", f"{one.read_bytes / 1e6:.1f} MB" if one.read_bytes else "none, files are copied"),
            ("videos taken as they are", one.linked_files),
            ("videos copied without loss", one.copied_files),
            ("videos cut, some frames encoded again", one.cut_files),
            ("videos encoded again", one.encoded_files),
            ("frames encoded again", one.encoded_frames),
            ("time", f"about {max(one.seconds, 1):.0f} s on one core"),
        ]
        output.say(output.format_table(("what", "how much"), [(name, str(value)) for name, value in rows]))
        if one.cut_files:
            output.say("a video whose new frames do not fit the header of its stream is encoded again as a whole")
        for note in one.notes:
            output.say(note)
    output.say("nothing was changed; leave `--dry_run` out to do it")


def _facts(one: Forecast) -> dict[str, object]:
    return {
        "operation": one.operation,
        "target": str(one.target),
        "episodes": one.episodes[0],
        "source_episodes": one.episodes[1],
        "frames": one.frames[0],
        "source_frames": one.frames[1],
        "row_bytes": one.read_bytes,
        "videos": {
            "linked": one.linked_files,
            "copied": one.copied_files,
            "cut": one.cut_files,
            "encoded": one.encoded_files,
        },
        "encoded_frames": one.encoded_frames,
        "seconds": one.seconds,
        "notes": list(one.notes),
    }


def show_results(results: Sequence[EditResult], *, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        output.say_json(
            [
                {
                    "root": str(one.root),
                    "backup": None if one.backup is None else str(one.backup),
                    "episodes": one.episodes,
                    "frames": one.frames,
                    "videos": dict(one.methods),
                    "encoded_frames": one.encoded_frames,
                    "notes": list(one.notes),
                }
                for one in results
            ]
        )
        return
    words = {"link": "taken as they are", "copy": "copied without loss", "cut": "cut", "encode": "encoded again"}
    for one in results:
        output.say(f"wrote `{one.root}`: {one.episodes} episodes, {one.frames} frames")
        if one.methods:
            files = ", ".join(f"{count} {words[name]}" for name, count in sorted(one.methods.items()))
            frames = f"; {one.encoded_frames} frames encoded again" if one.encoded_frames else ""
            output.say(f"video files: {files}{frames}")
        if one.backup is not None:
            output.say(f"the dataset as it was is in `{one.backup}`; remove it when you no longer need it")
