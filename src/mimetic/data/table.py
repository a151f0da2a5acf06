"""The rows of a dataset: low-dimensional columns as contiguous arrays, loaded once (spec/dataset.md 4, 20.26).

Files are read one by one into preallocated arrays; pictures stay in their files until they are asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import fill_from_column, read_footer, read_table, storage_dtype
from mimetic.errors import DatasetFormatError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP

logger = logging.getLogger(__name__)

_NEEDED = (EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP)


@dataclass(frozen=True)
class Rows:
    """All loaded rows, in file order.

    Args:
        columns: numeric columns, (N, ...) float32, int64 or bool; shape (1,) gives (N,).
        texts: string and language columns as Arrow arrays of N rows.
        files: files that were loaded, in order.
        starts: (files + 1,) first row of each file, and N.
        unreadable: files that could not be loaded, with the error of each.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    texts: Mapping[str, Any]
    files: Sequence[Path]
    starts: npt.NDArray[np.int64]
    unreadable: Mapping[Path, DatasetFormatError]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def file_of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Number of the file in `files` that holds each row."""
        return np.searchsorted(self.starts, rows, side="right") - 1


def read_rows(
    files: Sequence[Path], features: Mapping[str, DatasetFeature], episodes: Collection[int] | None = None
) -> Rows:
    """Load the low-dimensional columns of data files.

    Args:
        files: data files in row order.
        features: features of the dataset.
        episodes: only these are needed: files without any of them are skipped, by the statistics in their footers.

    Raises:
        DatasetFormatError: a file lacks a declared column or holds other values than declared. A file that cannot be
            read at all is reported in `Rows.unreadable`, for the caller to judge.
    """
    footers: dict[Path, Any] = {}
    unreadable: dict[Path, DatasetFormatError] = {}
    for path in files:
        try:
            footer = read_footer(path)
        except DatasetFormatError as error:
            unreadable[path] = error
            continue
        if episodes is None or _may_hold(footer, episodes):
            footers[path] = footer
    starts = np.cumsum([0, *(footer.num_rows for footer in footers.values())], dtype=np.int64)
    numeric = {key: feature for key, feature in features.items() if feature.is_numeric}
    texts = [key for key, feature in features.items() if feature.dtype in ("string", "language")]
    columns = {
        key: _allocate(key, (int(starts[-1]), *feature.value_shape), storage_dtype(feature))
        for key, feature in numeric.items()
    }
    pieces: dict[str, list[Any]] = {key: [] for key in texts}
    for number, (path, footer) in enumerate(footers.items()):
        names = footer.schema.to_arrow_schema().names
        _check_columns(path, names, features)
        table = read_table(path, [*numeric, *texts], footer)
        for key, column in columns.items():
            fill_from_column(column[starts[number] : starts[number + 1]], table[key], name=key, where=str(path))
        for key in texts:
            pieces[key] += table[key].chunks
    loaded = {key: _joined(key, features[key], chunks) for key, chunks in pieces.items()}
    return Rows(columns, loaded, list(footers), starts, unreadable)


def _allocate(key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        return np.empty(shape, dtype=dtype)
    except (MemoryError, ValueError) as error:  # numpy says ValueError above what an address can hold
        raise DatasetFormatError(
            f"`{key}` of {shape[0]} rows does not fit into memory with the declared shape {list(shape[1:])}",
            f"correct the shape of `{key}` in meta/info.json",
        ) from error


def _joined(key: str, feature: DatasetFeature, chunks: Sequence[Any]) -> Any:
    for chunk in chunks if feature.dtype == "string" else ():
        if not pa.types.is_string(chunk.type) and not pa.types.is_large_string(chunk.type):
            raise DatasetFormatError(f"`{key}` is declared as string, but its column holds {chunk.type!s:.80}")
    try:
        return pa.chunked_array(chunks) if chunks else pa.chunked_array([[]])
    except pa.ArrowException as error:
        kinds = ", ".join(sorted({str(chunk.type) for chunk in chunks}))
        raise DatasetFormatError(f"`{key}` has different types in different data files: {kinds:.200}") from error


def check_default_features(features: Mapping[str, DatasetFeature], *, where: str) -> None:
    """Check that the five columns that every dataset has are declared.

    Raises:
        DatasetFormatError: some are missing, or not scalars.
    """
    missing = [key for key in _NEEDED if key not in features]
    if missing:
        raise DatasetFormatError(
            f"`{where}` does not declare {', '.join(f'`{key}`' for key in missing)}", "every dataset has these columns"
        )
    wrong = [key for key in _NEEDED if features[key].shape != (1,) or not features[key].is_numeric]
    if wrong:
        raise DatasetFormatError(f"`{where}` declares {', '.join(f'`{key}`' for key in wrong)} not as plain numbers")


def _check_columns(path: Path, names: Sequence[str], features: Mapping[str, DatasetFeature]) -> None:
    missing = [key for key, feature in features.items() if feature.dtype != "video" and key not in names]
    if missing:
        raise DatasetFormatError(
            f"`{path}` lacks the declared columns {', '.join(f'`{key}`' for key in missing)}; "
            f"it has {', '.join(names)}",
            "correct the features in meta/info.json, or restore the file",
        )
    for key in ("language_persistent", "language_events"):
        if key in names and key not in features:
            logger.warning("`%s` has the column `%s`, which meta/info.json does not declare; it is ignored", path, key)


def _may_hold(footer: Any, episodes: Collection[int]) -> bool:
    """Whether a file can hold rows of the episodes, by the minimum and maximum in its footer."""
    names = [footer.schema.column(i).path for i in range(footer.num_columns)]
    if EPISODE_INDEX not in names:
        return True
    column = names.index(EPISODE_INDEX)
    wanted = np.fromiter(episodes, dtype=np.int64)
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, (int, float)):
            return True
        if ((wanted >= statistics.min) & (wanted <= statistics.max)).any():
            return True
    return False
