"""The recorder's measured clocks (meta/mimetic/clocks) follow the frames that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.edit.plan import Plan
from mimetic.data.record.clocks import (
    CLOCKS_DIR,
    LOOP,
    EpisodeClocks,
    clocks_file,
    clocks_table,
    join_tables,
    read_clocks_table,
    read_verdicts,
    write_clocks,
)
from mimetic.data.record.rate import RateReport
from mimetic.names import EPISODE_INDEX, FRAME_INDEX


@dataclass(frozen=True, kw_only=True)
class Span:
    """Frames that keep their clocks.

    Args:
        episode: number in the source.
        start: first frame.
        stop: frame after the last.
        number: number in the result.
    """

    episode: int
    start: int
    stop: int
    number: int


def carry_clocks(plan: Plan, folder: Path) -> None:
    """Write the clocks of the output's episodes, where their sources have any."""
    found: list[EpisodeClocks] = []
    for position, source in enumerate(plan.sources):
        spans = [
            Span(episode=cut.episode, start=cut.start, stop=cut.stop, number=number)
            for number, cut in enumerate(plan.cuts)
            if cut.source == position
        ]
        names = {camera.source_key: key for key, camera in plan.cameras.items()}
        names |= {origin: name for name, origin in plan.columns.items()}
        found += cut_clocks(source.root, spans, names.get)
    write_all(folder, sorted(found, key=lambda clocks: clocks.episode))


def write_all(folder: Path, clocks: Sequence[EpisodeClocks]) -> None:
    """Write clocks of several episodes as one file; nothing without any."""
    if not clocks:
        return
    path = clocks_file(folder, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_clocks(path, join_tables([clocks_table(one) for one in clocks]))


def cut_clocks(
    root: Path, spans: Sequence[Span], rename: Callable[[str], str | None] = lambda name: name
) -> list[EpisodeClocks]:
    """Clocks of some frames, under the numbers that their episodes get.

    Args:
        root: dataset that has the clocks.
        spans: frames to keep.
        rename: name of a camera in the result; None leaves it out.
    """
    paths = sorted((root / CLOCKS_DIR).glob("*/*.parquet"))
    if not paths:
        return []
    table, verdicts = join_tables([read_clocks_table(path) for path in paths]), read_verdicts(root)
    episode, frame = (table[name].to_numpy() for name in (EPISODE_INDEX, FRAME_INDEX))
    cameras = [name for name in table.column_names if name not in (EPISODE_INDEX, FRAME_INDEX, LOOP)]
    columns = {name: table[name].to_numpy() for name in (LOOP, *cameras)}
    found = []
    for span in spans:
        rows = np.flatnonzero((episode == span.episode) & (frame >= span.start) & (frame < span.stop))
        if not len(rows):
            continue
        verdict = verdicts.get(span.episode, {})
        found.append(
            EpisodeClocks(
                episode=span.number,
                loop_s=columns[LOOP][rows].tolist(),
                cameras={new: columns[name][rows].tolist() for name in cameras if (new := rename(name)) is not None},
                rate=_rate(verdict),
                repeated=_repeated(verdict.get("repeated_frames"), span, rename),
            )
        )
    return found


def _rate(verdict: Mapping[str, Any]) -> RateReport | None:
    if "measured_rate_hz" not in verdict:
        return None
    return RateReport(
        rate_hz=float(verdict["measured_rate_hz"]),
        p99_s=float(verdict.get("p99_period_s", 0.0)),
        longest_s=float(verdict.get("longest_period_s", 0.0)),
        problem=str(verdict.get("problem", "")),
    )


def _repeated(stored: Any, span: Span, rename: Callable[[str], str | None]) -> dict[str, list[int]]:
    found = {}
    for key, frames in (stored or {}).items():
        new = rename(str(key))
        if new is not None:
            found[new] = [int(frame) - span.start for frame in frames if span.start <= frame < span.stop]
    return found
