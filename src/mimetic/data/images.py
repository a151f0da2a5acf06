"""Pictures inside data files: bytes out of Parquet cells, pixels out of bytes (spec/dataset.md 4, 20.6).

A cell's `path` is never opened: a cell without bytes is an error, because a downloaded dataset could name any file.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image

from mimetic.data.in_use import FilesInUse
from mimetic.data.parquet import read_footer, read_row_group, read_table
from mimetic.errors import CacheError, DatasetFormatError

logger = logging.getLogger(__name__)

FORMATS = ("PNG", "TIFF", "JPEG")
MEMORY_BUDGET = 1 << 30
"""Encoded pictures kept in memory [bytes]; what exceeds it goes to a temporary file that is mapped."""


class DamagedRows(DatasetFormatError):
    """Rows of a data file whose pictures cannot be read.

    Args:
        message: what is wrong; names the file.
        hint: what to do.
        rows: the rows, counted over all files.
    """

    def __init__(self, message: str, hint: str, rows: range) -> None:
        super().__init__(message, hint)
        self.rows = rows

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return (type(self), (self.message, self.hint, self.rows))


class ImageCells:
    """Encoded pictures of the image columns, read file by file when first needed.

    Parquet cannot give single cells, so the columns of a file are read once and kept: in memory up to a budget,
    beyond it in a temporary file that vanishes with the process. Of a damaged file the row groups that can be read are
    kept.

    Args:
        files: data files, in row order.
        starts: (files + 1,) first row of each file, and the number of rows.
        budget: encoded bytes kept in memory.
    """

    def __init__(self, files: Sequence[Path], starts: npt.NDArray[np.int64], budget: int = MEMORY_BUDGET) -> None:
        self._files = list(files)
        self._starts = starts
        self._budget = budget
        self._held = 0
        self._columns: dict[tuple[int, str], _Column] = {}
        self.in_use = FilesInUse()
        self._lock = threading.Lock()

    def read(self, key: str, row: int) -> bytes:
        """Encoded bytes of one picture.

        Raises:
            DatasetFormatError: the cell has no bytes, or the file is missing, damaged or not the one that was opened.
            CacheError: the temporary file cannot be written.
        """
        file = int(np.searchsorted(self._starts, row, side="right")) - 1
        column, place = self._column(file, key).find(row - int(self._starts[file]))
        cell = column[place]
        if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
            value = cell["bytes"].as_py() if cell.is_valid else None
            if value is None:
                path = cell["path"].as_py() if cell.is_valid and "path" in cell else None
                raise DatasetFormatError(
                    f"`{key}` in row {row - int(self._starts[file])} of `{self._files[file]}` has no picture"
                    + (f", only the path {path!r}, which is not opened" if path else ""),
                    "store the pictures as bytes inside the data files",
                )
            if isinstance(value, bytes):
                return value
        value = cell.as_py() if not pa.types.is_struct(column.type) else None
        if not isinstance(value, bytes):
            raise DatasetFormatError(f"`{key}` in `{self._files[file]}` holds {column.type} instead of pictures")
        return value

    def _column(self, file: int, key: str) -> _Column:
        with self._lock:
            found = self._columns.get((file, key))
            if found is None:
                with self.in_use.reading(self._files[file]):
                    found = self._columns[(file, key)] = self._read_column(file, key)
            return found

    def _read_column(self, file: int, key: str) -> _Column:
        path, first = self._files[file], int(self._starts[file])
        n_rows = int(self._starts[file + 1]) - first
        lost: list[DamagedRows] = []
        try:
            table = read_table(path, [key])
        except DatasetFormatError as error:
            if _is_refused(error):
                raise  # perhaps only for now: the next sample asks again
            table, lost = self._read_groups(file, key, error)
        if key not in table.column_names:
            raise DatasetFormatError(f"`{path}` has no column `{key}`")
        if table.num_rows + sum(len(damaged.rows) for damaged in lost) != n_rows:
            raise DatasetFormatError(
                f"`{path}` had {n_rows} rows when the dataset was opened, and has {table.num_rows} now",
                "restore this file, and change no dataset while it is in use",
            )
        if self._held + table.nbytes > self._budget:
            table = spill(table)
        else:
            self._held += table.nbytes
        return _Column(table[key], first, lost)

    def _read_groups(self, file: int, key: str, error: DatasetFormatError) -> tuple[Any, list[DamagedRows]]:
        """The row groups of a damaged file that can be read, as one table, and the others."""
        path, start = self._files[file], int(self._starts[file])
        footer = read_footer(path)
        parts: list[Any] = []
        lost: list[DamagedRows] = []
        for group in range(footer.num_row_groups):
            rows = range(start, start + footer.row_group(group).num_rows)
            try:
                parts.append(read_row_group(path, group, key, footer))
            except DatasetFormatError as damage:
                if _is_refused(damage):
                    raise
                lost.append(DamagedRows(damage.message, damage.hint, rows))
            start = rows.stop
        if not parts:
            raise DamagedRows(error.message, error.hint, range(int(self._starts[file]), start))
        return pa.table({key: pa.chunked_array([chunk for part in parts for chunk in part.chunks])}), lost


class _Column:
    """A column of one file without its damaged rows.

    Args:
        values: the rows that could be read, one after the other.
        first: number of the file's first row over all files.
        lost: rows that could not be read, ascending.
    """

    def __init__(self, values: Any, first: int, lost: Sequence[DamagedRows]) -> None:
        self._values = values
        self._first = first
        self._lost = lost

    def find(self, row: int) -> tuple[Any, int]:
        """The values, and the place in them of a row of the file.

        Raises:
            DamagedRows: the row could not be read.
        """
        gone = 0
        for damaged in self._lost:
            if row + self._first in damaged.rows:
                raise DamagedRows(damaged.message, damaged.hint, damaged.rows)
            gone += len(damaged.rows) if damaged.rows.stop <= row + self._first else 0
        return self._values, row - gone


def _is_refused(error: DatasetFormatError) -> bool:
    """Whether the system did not give the file, which may pass, or memory ran out; not that the file is damaged."""
    cause = error.__cause__
    return isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno is not None)


def spill(table: Any) -> Any:
    """Move a table into a temporary file and map it; the file is gone when the process ends."""
    name = ""
    try:
        handle, name = tempfile.mkstemp(prefix="mimetic-pictures-", suffix=".arrow")
        os.close(handle)
        logger.info("keeping %.0f MB of encoded pictures in the temporary file %s", table.nbytes / 1e6, name)
        with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        mapped = pa.ipc.open_file(pa.memory_map(name)).read_all()
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise CacheError(
            f"{table.nbytes / 1e6:.0f} MB of encoded pictures cannot be kept in `{tempfile.gettempdir()}`: "
            f"{error!s:.300}",
            "make room there, or name another folder in the variable TMPDIR",
        ) from error
    try:
        Path(name).unlink()  # the mapping stays valid; nothing is left behind even after a kill
    except OSError:
        import atexit

        atexit.register(Path(name).unlink, missing_ok=True)  # Windows cannot unlink an open file
    return mapped


def decode_colour(data: bytes, out: npt.NDArray[np.uint8], *, where: str) -> None:
    """Decode a colour picture.

    Args:
        data: PNG, JPEG or TIFF file.
        out: (3, H, W) uint8 to write into.
        where: key, episode and frame, for messages.

    Raises:
        DatasetFormatError: not a picture, or another size than declared.
    """
    out[...] = _pixels(data, out.shape[1:], "RGB", where=where).transpose(2, 0, 1)


def decode_depth(data: bytes, out: npt.NDArray[np.float32], *, where: str) -> None:
    """Decode a depth picture as stored, into `out` (1, H, W) float32 (same errors as `decode_colour`)."""
    values = _pixels(data, out.shape[1:], None, where=where)
    out[0] = values if values.ndim == 2 else values[..., 0]


def _pixels(data: bytes, size: tuple[int, ...], mode: str | None, *, where: str) -> npt.NDArray[Any]:
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        # Checked before any pixel is decoded: a tiny file can claim a huge picture.
        if picture.size != (size[1], size[0]):
            raise DatasetFormatError(
                f"{where} is {picture.size[0]}x{picture.size[1]}; {size[1]}x{size[0]} is declared",
                "correct the shape in meta/info.json",
            )
        return np.asarray(picture.convert(mode) if mode else picture)
    except DatasetFormatError:
        raise
    except Exception as error:  # Pillow lets many kinds through on damaged files (struct, zlib, EOF, key errors, ...)
        raise DatasetFormatError(f"{where} is not a readable picture: {error!s:.200}") from error
