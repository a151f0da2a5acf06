"""Parquet columns as contiguous numpy arrays, in every dialect that datasets are written in (spec/dataset.md 4).

Vectors come as fixed-size lists, variable lists or an extension type over nested lists, with or without the
`huggingface` schema metadata; scalars as scalars or as lists of one. All give the same array.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.features import FLOATS, DatasetFeature
from mimetic.errors import DatasetFormatError

_BROKEN = (OSError, ValueError, TypeError, LookupError, MemoryError, pa.ArrowException)
"""What pyarrow raises on damaged files: besides its own errors also those of text decoding and of allocation."""


class Truncated(DatasetFormatError):
    """A Parquet file without a usable footer: its writer was stopped, or the file is cut."""


def read_footer(path: Path) -> Any:
    """Read the metadata of a Parquet file.

    Raises:
        Truncated: the footer is missing or damaged.
        DatasetFormatError: the file cannot be opened at all.
    """
    if path.exists() and not path.is_file():
        raise DatasetFormatError(f"`{path}` is not a file")
    try:
        footer = pq.read_metadata(path)
        footer.schema.to_arrow_schema()  # a damaged schema shows only here
        return footer
    except pa.ArrowInvalid as error:
        reason = "is empty" if path.stat().st_size == 0 else "has no readable Parquet footer"
        raise Truncated(f"`{path}` {reason}: the program that wrote it was stopped, or the file is cut") from error
    except _BROKEN as error:
        raise DatasetFormatError(f"`{path}` cannot be opened: {error!s:.300}") from error


def read_table(path: Path, columns: Sequence[str] | None = None, metadata: Any = None) -> Any:
    """Read columns of a Parquet file as an Arrow table.

    Raises:
        DatasetFormatError: the file is missing or damaged.
    """
    try:
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as file:
            table = file.read(columns=list(columns) if columns is not None else None)
        table.validate(full=True)  # offsets and texts, which would fail in odd places later
        names = table.column_names
    except _BROKEN as error:
        raise _unreadable(path, error) from error
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DatasetFormatError(f"`{path}` has the columns {', '.join(f'`{name}`' for name in twice)} more than once")
    return table


def read_row_group(path: Path, group: int, column: str, metadata: Any) -> Any:
    """Read one column of one row group as an Arrow chunked array (same errors as `read_table`).

    Args:
        path: the file.
        group: number of the row group.
        column: name of the column.
        metadata: what `read_footer` gave.
    """
    return read_groups(path, [group], [column], metadata)[column]


def read_groups(path: Path, groups: Sequence[int], columns: Sequence[str], metadata: Any = None) -> Any:
    """Read columns of some row groups as an Arrow table (same errors as `read_table`).

    Args:
        path: the file.
        groups: numbers of the row groups.
        columns: names of the columns.
        metadata: what `read_footer` gave, to save the time.
    """
    try:
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as file:
            table = file.read_row_groups(list(groups), columns=list(columns))
        table.validate(full=True)
        for column in columns:
            table[column]
        return table
    except _BROKEN as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: BaseException) -> DatasetFormatError:
    if isinstance(error, FileNotFoundError):
        return DatasetFormatError(f"`{path}` is missing", "restore this file from a copy")
    # With a number the system refused; without one, pyarrow read and found no sense.
    if isinstance(error, OSError) and error.errno is not None:
        reason = error.strerror or str(error)
        return DatasetFormatError(
            f"`{path}` cannot be read: {reason:.300}", "look at the disk, the network and the rights"
        )
    return DatasetFormatError(f"`{path}` is damaged: {error!s:.300}", "restore this file from a copy")


def storage_dtype(feature: DatasetFeature) -> np.dtype[Any]:
    """Type of a numeric feature in memory: float32 for floats, int64 for integers, bool for bool."""
    if feature.dtype == "bool":
        return np.dtype(np.bool_)
    return np.dtype(np.float32) if feature.dtype in FLOATS else np.dtype(np.int64)


def fill_from_column(out: np.ndarray[Any, Any], column: Any, *, name: str, where: str) -> None:
    """Convert one Arrow column into a preallocated array.

    Args:
        out: (rows, ...) of the type that is wanted; C-contiguous.
        column: Arrow chunked array of the same number of rows.
        name: name of the feature, for messages.
        where: name of the file, for messages.

    Raises:
        DatasetFormatError: the values have another width than declared, are missing, or are not numbers.
    """
    width = int(np.prod(out.shape[1:], dtype=np.int64))
    start = 0
    for chunk in column.chunks:
        rows = len(chunk)
        values = _flatten(chunk, name=name, where=where)
        if len(values) != rows * width:
            raise DatasetFormatError(
                f"`{name}` in `{where}` has {len(values) / max(rows, 1):g} values a row; {width} are declared",
                f"correct the shape of `{name}` in meta/info.json",
            )
        out[start : start + rows] = _numbers(values, out.dtype, name=name, where=where).reshape(rows, *out.shape[1:])
        start += rows


def _flatten(array: Any, *, name: str, where: str) -> Any:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    while pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        if array.null_count:
            raise DatasetFormatError(f"`{name}` in `{where}` has {array.null_count} rows without a value")
        if not pa.types.is_fixed_size_list(array.type) and len(array) > 1:
            lengths = np.diff(array.offsets.to_numpy())
            if (lengths != lengths[0]).any():
                raise DatasetFormatError(
                    f"`{name}` in `{where}` has rows of {lengths.min()} to {lengths.max()} values; all must be equal"
                )
        array = array.flatten()
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
    return array


def _numbers(values: Any, dtype: np.dtype[Any], *, name: str, where: str) -> np.ndarray[Any, Any]:
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DatasetFormatError(f"`{name}` in `{where}` holds {kind} instead of numbers")
    if values.null_count and dtype.kind != "f":
        raise DatasetFormatError(f"`{name}` in `{where}` has {values.null_count} missing values")
    numbers: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
    if dtype.kind == "i":
        if numbers.dtype.kind == "f" and not np.array_equal(numbers, np.trunc(numbers)):
            raise DatasetFormatError(f"`{name}` in `{where}` holds fractions, but is declared as integer")
        if numbers.dtype.kind in "fu" and (np.abs(numbers) >= 2.0**63).any():
            raise DatasetFormatError(f"`{name}` in `{where}` holds {numbers.max():g}, which no integer can hold")
    with np.errstate(over="ignore"):  # too large for float32: infinite, which `Dataset.find_non_finite` reports
        return numbers.astype(dtype, copy=False)
