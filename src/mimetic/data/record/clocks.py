"""Measured times of frames in a side file that LeRobot does not look at: meta/mimetic/clocks (spec 20.36).

One file beside each file of the table of episodes. Columns: `episode_index`, `frame_index`, `loop_s` and one for each
camera that was timed, all on one monotonic clock [s]. The entry `mimetic` of the schema holds what was judged of each
episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.parquet import read_table
from mimetic.data.record.rate import RateReport
from mimetic.data.store.data_file import open_parquet
from mimetic.names import EPISODE_INDEX, FRAME_INDEX

CLOCKS_DIR = "meta/mimetic/clocks"
LOOP = "loop_s"
_ENTRY = b"mimetic"


@dataclass(frozen=True, kw_only=True)
class EpisodeClocks:
    """Times of one episode.

    Args:
        episode: number.
        loop_s: time of each frame [s].
        cameras: time of each picture by camera key [s]; NaN where a frame has none.
        rate: verdict on the rate, if one was possible.
        repeated: frames by camera that show the picture before.
    """

    episode: int
    loop_s: Sequence[float]
    cameras: Mapping[str, Sequence[float]] = field(default_factory=dict)
    rate: RateReport | None = None
    repeated: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def verdict(self) -> dict[str, Any]:
        """What is stored about the episode beside its times."""
        content: dict[str, Any] = {"repeated_frames": {key: list(frames) for key, frames in self.repeated.items()}}
        if self.rate is not None:
            content |= {
                "measured_rate_hz": round(self.rate.rate_hz, 4),
                "p99_period_s": self.rate.p99_s,
                "longest_period_s": self.rate.longest_s,
                "problem": self.rate.problem,
            }
        return content


def clocks_file(root: Path, chunk: int, file: int) -> Path:
    """Path of a file of clocks."""
    return root / CLOCKS_DIR / f"chunk-{chunk:03d}" / f"file-{file:03d}.parquet"


def clocks_table(clocks: EpisodeClocks) -> pa.Table:
    """The times of one episode as an Arrow table."""
    n_frames = len(clocks.loop_s)
    columns: dict[str, Any] = {
        EPISODE_INDEX: np.full(n_frames, clocks.episode, dtype=np.int64),
        FRAME_INDEX: np.arange(n_frames, dtype=np.int64),
        LOOP: np.asarray(clocks.loop_s, dtype=np.float64),
    }
    columns |= {key: np.asarray(times, dtype=np.float64) for key, times in clocks.cameras.items()}
    return _with_verdicts(pa.table(columns), {str(clocks.episode): clocks.verdict()})


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Several tables of clocks as one."""
    verdicts: dict[str, Any] = {}
    for table in tables:
        verdicts |= _verdicts(table)
    return _with_verdicts(pa.concat_tables(tables, promote_options="permissive"), verdicts)


def write_clocks(path: Path, table: pa.Table) -> None:
    """Write a table of clocks under a working name."""
    with open_parquet(path, table.schema) as writer:
        writer.write_table(table)


def read_clocks_table(path: Path) -> pa.Table:
    """Read a table of clocks, verdicts included.

    Raises:
        DatasetFormatError: it cannot be read.
    """
    table = read_table(path)
    return table.replace_schema_metadata(pq.read_schema(path).metadata)


def read_verdicts(root: Path | str) -> dict[int, dict[str, Any]]:
    """What the recorder judged of each episode that it timed, by episode number.

    Keys: `measured_rate_hz`, `p99_period_s`, `longest_period_s`, `problem` (empty: none), `repeated_frames`.

    Raises:
        DatasetFormatError: a file cannot be read.
    """
    found: dict[int, dict[str, Any]] = {}
    for path in sorted((Path(root) / CLOCKS_DIR).glob("*/*.parquet")):
        found |= {int(number): verdict for number, verdict in _verdicts(read_clocks_table(path)).items()}
    return dict(sorted(found.items()))


def _with_verdicts(table: pa.Table, verdicts: Mapping[str, Any]) -> pa.Table:
    return table.replace_schema_metadata({_ENTRY: json.dumps({"episodes": dict(verdicts)})})


def _verdicts(table: pa.Table) -> dict[str, Any]:
    try:
        found = json.loads((table.schema.metadata or {})[_ENTRY])["episodes"]
        return {str(number): verdict for number, verdict in found.items() if str(number).isdigit()}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
