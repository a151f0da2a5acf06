"""Operations on columns and cameras: remove, add, modify, rename (spec/dataset.md 15)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.catalog import closest_hint
from mimetic.data.edit.config import AddFeaturesConfig, ModifyFeaturesConfig, RemoveFeatureConfig, RenameConfig
from mimetic.data.edit.data_task import native_column
from mimetic.data.edit.episodes import Plans
from mimetic.data.edit.plan import Plan, keep_all, lay_out
from mimetic.data.edit.source import EditSource
from mimetic.data.features import NUMERIC, DatasetFeature, parse_features
from mimetic.data.parquet import read_table
from mimetic.errors import ConfigError, DatasetFormatError
from mimetic.names import DEFAULT_FEATURES

FeatureFunction = Callable[[Mapping[str, Any], int, int], Any]
"""(row, episode_index, frame_index) -> value of a new feature; the row holds the numeric and text columns."""


def plan_remove(sources: Sequence[EditSource], config: RemoveFeatureConfig) -> Plans:
    """Everything but some features.

    Raises:
        ConfigError: features that do not exist or cannot be removed.
    """
    plan = keep_all(sources[0], config.type_name)
    remove(plan, config.feature_names or [], "feature_names")
    lay_out(plan)
    return [("", plan)]


def plan_add(sources: Sequence[EditSource], config: AddFeaturesConfig) -> Plans:
    """Everything, and new columns from files.

    Raises:
        ConfigError: a name that is taken, or values that do not fit.
        DatasetFormatError: a file cannot be read.
    """
    plan = keep_all(sources[0], config.type_name)
    for name, path in (config.features or {}).items():
        add(plan, name, read_values(Path(path).expanduser(), name), names=config.names.get(name))
    lay_out(plan)
    return [("", plan)]


def plan_modify(sources: Sequence[EditSource], config: ModifyFeaturesConfig) -> Plans:
    """Columns out, columns in; same errors as `plan_remove` and `plan_add`."""
    plan = keep_all(sources[0], config.type_name)
    replaced = [name for name in config.add_features if name in plan.features]
    remove(
        plan, [*config.remove_features, *(n for n in replaced if n not in config.remove_features)], "remove_features"
    )
    for name, path in config.add_features.items():
        add(plan, name, read_values(Path(path).expanduser(), name), names=config.names.get(name))
    lay_out(plan)
    return [("", plan)]


def plan_rename(sources: Sequence[EditSource], config: RenameConfig) -> Plans:
    """The same data under other names.

    Raises:
        ConfigError: a name that does not exist, or one that is taken.
    """
    source = sources[0]
    _require_features(source, list(config.features), "features")
    after = [config.features.get(name, name) for name in source.features]
    twice = sorted({name for name in after if after.count(name) > 1})
    if twice:
        raise ConfigError(f"`--operation.features` gives several features the name {', '.join(twice)}")
    plan = keep_all(source, config.type_name)
    plan.features = {config.features.get(name, name): entry for name, entry in plan.features.items()}
    plan.columns = {config.features.get(name, name): origin for name, origin in plan.columns.items()}
    plan.cameras = {config.features.get(name, name): camera for name, camera in plan.cameras.items()}
    _rename_joints(plan, config.joints)
    lay_out(plan)
    return [("", plan)]


def _rename_joints(plan: Plan, joints: Mapping[str, str]) -> None:
    found: set[str] = set()
    for name, entry in plan.features.items():
        if entry["dtype"] in ("image", "video"):
            continue
        renamed = _renamed(entry.get("names"), joints, found)
        flat = _flat(renamed)
        twice = sorted({joint for joint in flat if flat.count(joint) > 1})
        if twice:
            raise ConfigError(f"`--operation.joints` gives several dimensions of `{name}` the name {', '.join(twice)}")
        entry["names"] = renamed
    missing = [joint for joint in joints if joint not in found]
    if missing:
        known = [joint for entry in plan.features.values() for joint in _flat(entry.get("names"))]
        raise ConfigError(
            f"`--operation.joints`: no feature has a dimension {', '.join(f'`{joint}`' for joint in missing)}",
            closest_hint(missing[0], known),
        )


def _renamed(names: Any, joints: Mapping[str, str], found: set[str]) -> Any:
    """Names in whatever nesting they are declared, with others in their place."""
    if isinstance(names, str):
        if names in joints:
            found.add(names)
        return joints.get(names, names)
    if isinstance(names, list):
        return [_renamed(item, joints, found) for item in names]
    if isinstance(names, Mapping):
        if all(isinstance(value, int) for value in names.values()):
            return {_renamed(key, joints, found): value for key, value in names.items()}
        return {key: _renamed(value, joints, found) for key, value in names.items()}
    return names


def _flat(names: Any) -> list[str]:
    if isinstance(names, str):
        return [names]
    if isinstance(names, list):
        return [joint for item in names for joint in _flat(item)]
    if isinstance(names, Mapping):
        if all(isinstance(value, int) for value in names.values()):
            return [str(key) for key in names]
        return [joint for value in names.values() for joint in _flat(value)]
    return []


def remove(plan: Plan, names: Sequence[str], flag: str) -> None:
    """Leave features out of a plan.

    Raises:
        ConfigError: features that do not exist, or that every dataset has, or nothing is left.
    """
    _require_features(plan.sources[0], names, flag)
    fixed = [name for name in names if name in DEFAULT_FEATURES]
    if fixed:
        raise ConfigError(
            f"`--operation.{flag}` names {', '.join(f'`{name}`' for name in fixed)}, which every dataset must have"
        )
    for name in names:
        for table in (plan.features, plan.columns, plan.cameras):
            table.pop(name, None)


def add(
    plan: Plan, name: str, values: npt.NDArray[Any], *, names: Sequence[str] | None = None, dtype: str | None = None
) -> None:
    """Add a column to a plan, before the five default ones.

    Args:
        plan: the plan.
        name: of the feature.
        values: (frames,) or (frames, ...), one value for every frame of the output.
        names: of its dimensions.
        dtype: declared type; that of the values when absent.

    Raises:
        ConfigError: the name is taken, or the values do not fit.
    """
    if name in plan.features or name in DEFAULT_FEATURES:
        raise ConfigError(
            f"`{plan.sources[0].root}` has a feature `{name}` already", "use `modify_features` to replace it"
        )
    if len(values) != plan.n_frames:
        raise ConfigError(f"`{name}` has {len(values)} values; the dataset has {plan.n_frames} frames")
    kind = "string" if values.dtype.kind in "UO" else str(values.dtype)
    dtype = dtype or kind
    if dtype not in (*NUMERIC, "string"):
        raise ConfigError(f"`{name}` holds {values.dtype}; numbers, booleans and texts can be stored")
    shape = [1] if dtype == "string" else list(values.shape[1:]) or [1]
    if names is not None and len(names) != shape[-1]:
        raise ConfigError(f"`{name}` has {shape[-1]} dimensions and {len(names)} names")
    entry = {"dtype": dtype, "shape": shape, "names": list(names) if names is not None else None}
    parse_features({name: entry}, where="`add_features`")
    own = {key: value for key, value in plan.features.items() if key not in DEFAULT_FEATURES}
    defaults = {key: value for key, value in plan.features.items() if key in DEFAULT_FEATURES}
    plan.features = {**own, name: entry, **defaults}
    plan.added[name] = values if dtype == "string" else values.astype(np.dtype(dtype))


def evaluate(source: EditSource, function: FeatureFunction, *, name: str) -> npt.NDArray[Any]:
    """Values of a function for every frame of a dataset, in the order of its episodes.

    Args:
        source: the dataset.
        function: see `FeatureFunction`; a row's vectors are arrays.
        name: of the feature, for messages.

    Raises:
        ConfigError: the values have different shapes.
    """
    values: list[Any] = []
    stored = {
        key: feature for key, feature in source.features.items() if feature.is_numeric or feature.dtype == "string"
    }
    for episode, place in source.rows.items():
        table = read_table(place.path, list(stored)).slice(place.start, place.stop - place.start)
        columns = {key: _rows_of(table[key], feature, key, place.path) for key, feature in stored.items()}
        values += [
            function({key: column[frame] for key, column in columns.items()}, episode, frame)
            for frame in range(place.stop - place.start)
        ]
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"the values of `{name}` have different shapes in different frames") from error


def _rows_of(column: Any, feature: DatasetFeature, name: str, path: Path) -> Any:
    if not feature.is_numeric:
        return column.to_pylist()
    return native_column(column, feature, name=name, where=str(path))


def read_values(path: Path, name: str) -> npt.NDArray[Any]:
    """Values of a new feature from a `.npy` file, or from a column of a `.parquet` file.

    Raises:
        ConfigError: there is no such file.
        DatasetFormatError: it cannot be read, or it is not clear which column is meant.
    """
    if not path.is_file():
        raise ConfigError(f"`{path}`, with the values of `{name}`, does not exist")
    if path.suffix == ".npy":
        try:
            return np.asarray(np.load(path, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise DatasetFormatError(f"`{path}` is not a numpy file of plain numbers: {error!s:.200}") from error
    table = read_table(path)
    column = name if name in table.column_names else table.column_names[0] if table.num_columns == 1 else None
    if column is None:
        raise DatasetFormatError(f"`{path}` has the columns {', '.join(table.column_names)}, none named `{name}`")
    values = table[column].to_pylist()
    if any(value is None for value in values):
        raise DatasetFormatError(f"`{column}` in `{path}` has rows without a value")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DatasetFormatError(f"`{column}` in `{path}` has rows of different lengths") from error
    kind = table[column].type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return array if array.dtype.kind in "UO" else array.astype(kind.to_pandas_dtype())


def _require_features(source: EditSource, names: Sequence[str], flag: str) -> None:
    unknown = [name for name in names if name not in source.features]
    if unknown:
        raise ConfigError(
            f"`--operation.{flag}` names {', '.join(f'`{name}`' for name in unknown)}; "
            f"`{source.root}` has no such feature",
            closest_hint(unknown[0], source.features)
            or f"its features are {', '.join(f'`{name}`' for name in source.own_features)}",
        )
