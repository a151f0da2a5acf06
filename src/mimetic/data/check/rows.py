"""All rows of a dataset as column arrays, as far as they can be read, within a bound on memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.ledger import require_values
from mimetic.data.check.unreadable import Part, Unreadable, unreadable
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import fill_from_column, read_footer, read_table, storage_dtype
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.names import ACTION, DEFAULT_FEATURES, EPISODE_INDEX, STATE

Ints = npt.NDArray[np.int64]

MOST_BYTES = 8 << 30
"""Most memory for all columns; more rows than fit are not checked, and that is said."""
_BOMB_RATIO, _BOMB_BYTES = 1000, 256 << 20
"""A file that unpacks to this many times its size holds nothing but repeats of one value: no recording does."""


@dataclass(frozen=True)
class ColumnFault:
    """A column of a data file that is not what the dataset declares.

    Args:
        feature: name of the feature.
        path: the data file.
        reason: what is wrong.
    """

    feature: str
    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckRows:
    """Rows in file order, and the runs of consecutive rows of one episode.

    Args:
        columns: (N, ...) by numeric feature, float32, int64 or bool; shape (1,) gives (N,). A feature whose column
            is wrong in any file is left out.
        files: data files that were read, in order.
        starts: (files + 1,) first row of each file, and N.
        episode: (R,) episode number of each run; an episode whose rows lie in several places has several runs.
        run_start: (R,) first row.
        run_end: (R,) row after the last.
        faults: columns that are not what is declared.
        stored: Arrow type of each column in the first file that has it.
        left_out: features that were not loaded, with the reason.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    files: Sequence[Path]
    starts: Ints
    episode: Ints
    run_start: Ints
    run_end: Ints
    faults: Sequence[ColumnFault] = ()
    stored: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def file_of(self, row: int) -> int:
        """Number in `files` of the file that holds a row."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1


def read_check_rows(
    files: Sequence[Path], features: Mapping[str, DatasetFeature]
) -> tuple[CheckRows, list[Unreadable]]:
    """Load the numeric columns of data files; whatever is wrong is noted and left out.

    Args:
        files: data files in row order.
        features: declared features.
    """
    numeric = {key: feature for key, feature in features.items() if feature.is_numeric}
    broken: list[Unreadable] = []
    footers: dict[Path, Any] = {}
    row_bytes = sum(_width(feature) for feature in numeric.values())
    for path in files:
        try:
            footer = read_footer(path)
            _refuse_bomb(path, footer, numeric, row_bytes)
            footers[path] = footer
        except (DatasetError, OSError) as error:
            broken.append(unreadable(Part.DATA, path, error))
    total = sum(footer.num_rows for footer in footers.values())
    chosen, left_out = _that_fit(numeric, total)
    columns = {key: np.zeros((total, *f.value_shape), dtype=storage_dtype(f)) for key, f in chosen.items()}
    faults: list[ColumnFault] = []
    stored: dict[str, str] = {}
    kept: list[Path] = []
    starts = [0]
    for path, footer in footers.items():
        schema = footer.schema.to_arrow_schema()
        names = [key for key in chosen if key in schema.names]
        faults += [ColumnFault(key, path, "the column is missing") for key in chosen if key not in schema.names]
        for key in names:
            stored.setdefault(key, str(schema.field(key).type))
        try:
            table = read_table(path, names, footer)
        except DatasetError as error:
            broken.append(unreadable(Part.DATA, path, error))
            continue
        begin, end = starts[-1], starts[-1] + table.num_rows
        for key in names:
            try:
                fill_from_column(columns[key][begin:end], table[key], name=key, where=path.name)
            except DatasetError as error:
                faults.append(ColumnFault(key, path, error.message))
        kept.append(path)
        starts.append(end)
    wrong = {fault.feature for fault in faults}
    good = {key: column[: starts[-1]] for key, column in columns.items() if key not in wrong}
    run_start, run_end, episode = _runs(good.get(EPISODE_INDEX))
    rows = CheckRows(
        columns=good,
        files=kept,
        starts=np.asarray(starts, dtype=np.int64),
        episode=episode,
        run_start=run_start,
        run_end=run_end,
        faults=faults,
        stored=stored,
        left_out=left_out,
    )
    return rows, broken


def _width(feature: DatasetFeature) -> int:
    return int(np.prod(feature.shape, dtype=np.int64)) * storage_dtype(feature).itemsize


def _refuse_bomb(path: Path, footer: Any, numeric: Mapping[str, DatasetFeature], row_bytes: int) -> None:
    size = path.stat().st_size
    unpacked = footer.num_rows * row_bytes
    if unpacked > _BOMB_BYTES and unpacked > _BOMB_RATIO * size:
        raise DatasetFormatError(
            f"`{path}` has {size} bytes and says that it holds {footer.num_rows} rows, {unpacked >> 20} MiB unpacked"
        )
    for key, feature in numeric.items():
        values = int(np.prod(feature.shape, dtype=np.int64)) * max(footer.num_rows, 1)
        require_values(footer, [key], max(2 * values, 1 << 20), path)


def _that_fit(numeric: Mapping[str, DatasetFeature], rows: int) -> tuple[dict[str, DatasetFeature], dict[str, str]]:
    """Features within the bound on memory, the important and the small ones first."""
    first = (*DEFAULT_FEATURES, STATE, ACTION)
    order = sorted(numeric, key=lambda key: (first.index(key) if key in first else len(first), _width(numeric[key])))
    used, chosen, left_out = 0, set[str](), dict[str, str]()
    for key in order:
        needed = _width(numeric[key]) * rows
        if used + needed <= MOST_BYTES:
            used += needed
            chosen.add(key)
        else:
            left_out[key] = f"its {rows} rows need {needed >> 20} MiB, more than the check takes"
    return {key: feature for key, feature in numeric.items() if key in chosen}, left_out


def _runs(episode_index: npt.NDArray[Any] | None) -> tuple[Ints, Ints, Ints]:
    if episode_index is None or not len(episode_index):
        empty = np.empty(0, dtype=np.int64)
        return empty, empty, empty
    changes = np.flatnonzero(np.diff(episode_index)) + 1
    start = np.concatenate([[0], changes]).astype(np.int64)
    end = np.append(changes, len(episode_index)).astype(np.int64)
    return start, end, np.asarray(episode_index[start], dtype=np.int64)
