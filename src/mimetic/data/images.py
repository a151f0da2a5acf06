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

from mimetic.data.parquet import read_table
from mimetic.errors import DatasetFormatError

logger = logging.getLogger(__name__)

FORMATS = ("PNG", "TIFF", "JPEG")
MEMORY_BUDGET = 1 << 30
"""Encoded pictures kept in memory [bytes]; what exceeds it goes to a temporary file that is mapped."""


class ImageCells:
    """Encoded pictures of the image columns, read file by file when first needed.

    Parquet cannot give single cells, so the columns of a file are read once and kept: in memory up to a budget,
    beyond it in a temporary file that vanishes with the process.

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
        self._columns: dict[tuple[int, str], Any] = {}
        self._lock = threading.Lock()

    def read(self, key: str, row: int) -> bytes:
        """Encoded bytes of one picture.

        Raises:
            DatasetFormatError: the cell has no bytes, or the file is damaged.
        """
        file = int(np.searchsorted(self._starts, row, side="right")) - 1
        column = self._column(file, key)
        cell = column[row - int(self._starts[file])]
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

    def _column(self, file: int, key: str) -> Any:
        with self._lock:
            found = self._columns.get((file, key))
            if found is None:
                table = read_table(self._files[file], [key])
                if key not in table.column_names:
                    raise DatasetFormatError(f"`{self._files[file]}` has no column `{key}`")
                if self._held + table.nbytes > self._budget:
                    table = _spill(table)
                else:
                    self._held += table.nbytes
                found = self._columns[(file, key)] = table[key]
            return found


def _spill(table: Any) -> Any:
    """Move a table into a temporary file and map it; the file is gone when the process ends."""
    handle, name = tempfile.mkstemp(prefix="mimetic-pictures-", suffix=".arrow")
    os.close(handle)
    logger.info("keeping %.0f MB of encoded pictures in the temporary file %s", table.nbytes / 1e6, name)
    with pa.OSFile(name, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    mapped = pa.ipc.open_file(pa.memory_map(name)).read_all()
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
