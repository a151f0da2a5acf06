"""Clocks that a recorder measured, stored beside the data: meta/mimetic/clocks/**.parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mimetic.data.check.ledger import require_values
from mimetic.data.check.unreadable import Part, Unreadable, unreadable
from mimetic.data.layout import require_inside
from mimetic.data.parquet import read_footer, read_table
from mimetic.data.record.clocks import CLOCKS_DIR, LOOP
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX

_MOST_VALUES = 1 << 30

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Measured times of frames; arrays of shape (N,), sorted by episode and frame.

    Args:
        episode: episode number.
        frame: frame number.
        loop_s: when the loop took the frame, on a monotonic clock [s].
        cameras: when each camera gave its picture, on the same clock [s], by column name.
    """

    episode: Ints
    frame: Ints
    loop_s: Floats
    cameras: Mapping[str, Floats] = field(default_factory=dict)

    def of(self, episode: int) -> slice:
        """Rows of one episode."""
        first, last = np.searchsorted(self.episode, [episode, episode + 1])
        return slice(int(first), int(last))


def read_clocks(root: Path) -> tuple[Clocks | None, list[Unreadable]]:
    """Read the measured clocks of a dataset; None when the recorder stored none."""
    tables: list[Any] = []
    broken: list[Unreadable] = []
    for path in sorted((root / CLOCKS_DIR).glob("**/*.parquet")):
        try:
            footer = read_footer(require_inside(root, path))
            names = footer.schema.to_arrow_schema().names
            missing = [name for name in (EPISODE_INDEX, FRAME_INDEX, LOOP) if name not in names]
            if missing:
                raise DatasetFormatError(f"`{path}` lacks the columns {', '.join(missing)}")
            require_values(footer, names, _MOST_VALUES, path)
            tables.append(read_table(path, names, footer))
        except DatasetError as error:
            broken.append(unreadable(Part.CLOCKS, path, error))
    if not tables:
        return None, broken
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
        columns = {name: _floats(table[name]) for name in table.column_names if _is_number(table[name].type)}
        episode, frame = (
            np.nan_to_num(columns.pop(name), nan=-1).astype(np.int64) for name in (EPISODE_INDEX, FRAME_INDEX)
        )
        loop = columns.pop(LOOP)
    except (pa.ArrowException, KeyError) as error:
        broken.append(unreadable(Part.CLOCKS, root / CLOCKS_DIR, error))
        return None, broken
    order = np.lexsort((frame, episode))
    cameras = {name: values[order] for name, values in columns.items()}
    return Clocks(episode=episode[order], frame=frame[order], loop_s=loop[order], cameras=cameras), broken


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _floats(column: Any) -> Floats:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=np.float64)
