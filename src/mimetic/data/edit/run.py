"""Editing datasets, as one call: `edit_dataset(root, DeleteEpisodesConfig(episode_indices=[3]))`.

Every operation is validated as a whole before anything is written; results are built beside, opened and compared with
the plan, and only then take their place. What an edit in place replaces stays as `<name>_old`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.config.check import find_problems
from mimetic.config.problems import Problems
from mimetic.data.edit.build import EditResult, Progress, execute
from mimetic.data.edit.catalog import OPERATIONS
from mimetic.data.edit.config import OperationConfig
from mimetic.data.edit.features import FeatureFunction, add, evaluate, remove
from mimetic.data.edit.forecast import Forecast, choose_methods, forecast
from mimetic.data.edit.plan import Plan, keep_all, lay_out
from mimetic.data.edit.source import EditSource
from mimetic.data.engine.config import EngineConfig
from mimetic.data.stats import Stats
from mimetic.data.store.beside import finish_interrupted
from mimetic.errors import ConfigError, DatasetError
from mimetic.names import ACTION

logger = logging.getLogger(__name__)

NewFeature = tuple[npt.NDArray[Any] | FeatureFunction, Mapping[str, Any]]
"""Values (or a function that gives them) and the declaration: `dtype`, `shape`, `names`."""


def plan_edit(
    roots: Sequence[Path], operation: OperationConfig, target: Path, *, is_in_place: bool = False
) -> list[tuple[Plan, Path]]:
    """Everything that an operation would do, checked; nothing is written.

    Args:
        roots: datasets that are read; one but for `merge`.
        operation: what to do.
        target: folder of the result; of `split` the folder that gets one folder a split, or, with a name in it, see
            `targets`.
        is_in_place: whether `target` is the source.

    Raises:
        ConfigError: settings that do not fit the dataset; all problems of the settings at once.
        DatasetError: the dataset cannot be edited as it is.
    """
    Problems(find_problems(operation, "operation")).raise_if_any()
    sources = [EditSource(root) for root in roots]
    plans = OPERATIONS.load(operation.type_name)(sources, operation)
    planned = [(plan, _target(target, name)) for name, plan in plans]
    for plan, place in planned:
        choose_methods(plan)
        _note_relative(plan)
        if any(source.root.resolve() in place.resolve().parents for source in sources):
            raise ConfigError(f"`{place}` lies inside the dataset that is read", "choose a folder beside it")
        if is_in_place:
            require_own_files(sources[0])
        elif place.is_symlink() or (place.exists() and not (place.is_dir() and not any(place.iterdir()))):
            raise DatasetError(f"`{place}` exists already", "choose another folder, or move that one away")
    return planned


def _target(target: Path, name: str) -> Path:
    """Folder of a named output: `{name}` in the target is replaced, else it is a folder in it."""
    if not name:
        return target
    return Path(str(target).replace("{name}", name)) if "{name}" in str(target) else target / name


def edit_dataset(
    root: Path | str | Sequence[Path | str],
    operation: OperationConfig,
    *,
    new_root: Path | str | None = None,
    engine: EngineConfig | None = None,
    progress: Progress = lambda done, total, what: None,
) -> list[EditResult]:
    """Edit a dataset.

    Args:
        root: the dataset; for `merge` all of them.
        operation: one of the operations of `data/edit/config.py`.
        new_root: folder of the result; without it the dataset is edited in place, and stays as `<name>_old`.
        engine: who does the work; this process when absent.
        progress: called after every file.

    Returns:
        One result; for `split` one for each split.

    Raises:
        ConfigError: settings that do not fit the dataset.
        DatasetError: the dataset cannot be edited as it is, or the target exists. Nothing was changed.
    """
    roots = [named(Path(one)) for one in ([root] if isinstance(root, (str, Path)) else root)]
    for one in roots:
        finish_interrupted(one)
    if new_root is None and (len(roots) > 1 or operation.type_name == "split"):
        raise ConfigError(f"`{operation.type_name}` needs the folder of the result", "give `new_root`")
    target = roots[0] if new_root is None else named(Path(new_root))
    is_in_place = new_root is None or _is_same(target, roots[0])
    planned = plan_edit(roots, operation, target, is_in_place=is_in_place)
    return execute(planned, replaces=roots[0] if is_in_place else None, engine=engine, progress=progress)


def forecast_edit(planned: Sequence[tuple[Plan, Path]]) -> list[Forecast]:
    """What planned edits would do."""
    return [forecast(plan, target) for plan, target in planned]


def add_features(
    root: Path | str, features: Mapping[str, NewFeature], *, new_root: Path | str | None = None
) -> EditResult:
    """Add columns from arrays or functions; see `modify_features`."""
    return modify_features(root, add_features=features, new_root=new_root)


def modify_features(
    root: Path | str,
    *,
    add_features: Mapping[str, NewFeature] | None = None,
    remove_features: Sequence[str] = (),
    new_root: Path | str | None = None,
) -> EditResult:
    """Add and remove columns in one go.

    Args:
        root: the dataset.
        add_features: name -> (values, declaration). Values are an array (frames, ...) over the whole dataset, or a
            function (row, episode_index, frame_index) -> value.
        remove_features: features to leave out; those that are also added are replaced.
        new_root: folder of the result; without it the dataset is edited in place, and stays as `<name>_old`.

    Raises:
        ConfigError: names that are taken or do not exist, or values that do not fit their declaration.
        DatasetError: the dataset cannot be edited as it is.
    """
    source = EditSource(named(Path(root)))
    plan = keep_all(source, "modify_features")
    remove(plan, list(remove_features), "remove_features")
    for name, (values, info) in (add_features or {}).items():
        array = evaluate(source, values, name=name) if callable(values) else np.asarray(values)
        _add_declared(plan, name, array, info)
    lay_out(plan)
    choose_methods(plan)
    _note_relative(plan)
    target = source.root if new_root is None else named(Path(new_root))
    is_in_place = new_root is None or _is_same(target, source.root)
    if is_in_place:
        require_own_files(source)
    return execute([(plan, target)], replaces=source.root if is_in_place else None)[0]


def _add_declared(plan: Plan, name: str, values: npt.NDArray[Any], info: Mapping[str, Any]) -> None:
    if "dtype" not in info or "shape" not in info:
        raise ConfigError(f"the declaration of `{name}` needs `dtype` and `shape`")
    if len(values) == plan.n_frames and info["dtype"] != "string":
        shape = tuple(int(size) for size in info["shape"])
        inner = values.shape[1:] or (1,)
        if inner != shape:
            raise ConfigError(f"`{name}` is declared with the shape {list(shape)} and has values of {list(inner)}")
    names = info.get("names")
    add(plan, name, values, names=None if names is None else list(names), dtype=str(info["dtype"]))


def named(folder: Path) -> Path:
    """A folder by a path that ends with its name: results and backups are named after it (`.` has none)."""
    folder = folder.expanduser()
    return folder.resolve() if folder.name in ("", "..") else folder


def require_own_files(source: EditSource) -> None:
    """Refuse an edit in place of files that belong to the hub's cache.

    Raises:
        DatasetError: the data files are links to somewhere else.
    """
    if any(path.is_symlink() for path in source.data_files):
        raise DatasetError(
            f"`{source.root}` is a copy that the hub's cache keeps; it cannot be edited in place",
            "write the result to another folder with `--new_root=FOLDER`",
        )


def _note_relative(plan: Plan) -> None:
    """Say when statistics of relative actions get lost: the format has no place that says what they are."""
    for source in plan.sources:
        stats: Stats = source.metadata.stats
        count = stats.get(ACTION, {}).get("count")
        if (
            count is not None
            and int(count.reshape(-1)[0]) > 2 * source.metadata.total_frames
            and plan.relative_action is None
        ):
            plan.notes.append(
                f"`{source.root}` has statistics of relative actions; the result has those of absolute ones: "
                "run `recompute_stats` with `--operation.relative_action=true` again"
            )


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)
