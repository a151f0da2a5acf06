"""The rows of one episode out of a data file that may hold thousands: only row groups that can hold them are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.parquet import read_footer
from mimetic.errors import DatasetError
from mimetic.names import EPISODE_INDEX

_ROWS_READ = 2_000_000


def first_row(path: Path, episode: int) -> tuple[list[int], int]:
    """Row groups of a file that may hold an episode, and the first of its rows in the file."""
    footer = read_footer(path)
    names = [footer.schema.column(number).path for number in range(footer.num_columns)]
    if EPISODE_INDEX not in names:
        raise DatasetError(f"`{path.name}` has no column `{EPISODE_INDEX}`")
    column = names.index(EPISODE_INDEX)
    groups, starts, row = [], [], 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(column).statistics
        if statistics is None or not statistics.has_min_max or statistics.min <= episode <= statistics.max:
            groups.append(number)
            starts.append(row)
        row += group.num_rows
    for number, start in zip(groups, starts, strict=True):
        if footer.row_group(number).num_rows > _ROWS_READ:
            raise DatasetError(f"`{path.name}` has {footer.row_group(number).num_rows} rows in one group")
        try:
            with pq.ParquetFile(path) as file:
                values = file.read_row_group(number, columns=[EPISODE_INDEX])[EPISODE_INDEX].to_numpy()
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DatasetError(f"`{path.name}` cannot be read: {error!s:.200}") from error
        found = np.flatnonzero(values == episode)
        if len(found):
            return groups[groups.index(number) :], start + int(found[0])
    return [], 0


def numbers(column: Any) -> npt.NDArray[Any] | None:
    """A column as an array (frames, ...); None for what is not numeric or not of one shape."""
    try:
        if pa.types.is_fixed_size_list(column.type):
            combined = column.combine_chunks()
            flat = combined.flatten().to_numpy(zero_copy_only=False)
            return np.asarray(flat, dtype=np.float64).reshape(len(column), -1)
        if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            return np.asarray(column.to_pylist(), dtype=np.float64)
        return np.asarray(column.to_numpy(), dtype=np.float64)
    except (ValueError, TypeError, pa.ArrowException):
        return None
