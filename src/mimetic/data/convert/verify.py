"""The result is read again and compared with the input before it gets its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av

from mimetic.data.convert.rows import EpisodeRows, read_episode, same_columns
from mimetic.data.convert.workplace import Record, keep
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_table
from mimetic.data.video.index import open_container, reason
from mimetic.errors import DatasetError, VideoError

_TOLERANCE_S = 1e-4
_BUFFER = 1 << 20
_HINT = "nothing was given its name; report this, and keep the input"


@dataclass(frozen=True, kw_only=True)
class DataCheck:
    """A data file to compare with the files that it was made of.

    Args:
        record: its record.
        title: what a message calls it.
        out: the file.
        features: declared features.
        episodes: what it was made of.
    """

    record: Path
    title: str
    out: Path
    features: Mapping[str, DatasetFeature]
    episodes: tuple[EpisodeRows, ...]


def check_data(part: DataCheck) -> Record:
    """Compare every value of every row.

    Raises:
        DatasetError: something differs.
    """
    table, start = read_table(part.out), 0
    for rows in part.episodes:
        theirs = read_episode(rows, part.features)
        mine = table.slice(start, rows.length)
        start += rows.length
        made = EpisodeRows(
            path=part.out,
            episode=rows.number,
            length=rows.length,
            number=rows.number,
            first=rows.first,
            tasks={number: number for number in rows.tasks.values()},
        )
        ours = read_episode(made, part.features, mine)
        different = same_columns(theirs, ours)
        if different:
            raise DatasetError(
                f"`{different}` of episode {rows.number} in `{part.out}` is not that of `{rows.path}`", _HINT
            )
    if start != table.num_rows:
        raise DatasetError(f"`{part.out}` has {table.num_rows} rows instead of {start}", _HINT)
    return keep(part, {})


@dataclass(frozen=True, kw_only=True)
class VideoCheck:
    """A video file to compare with the files that it was joined from.

    Args:
        record: its record.
        title: what a message calls it.
        out: the file.
        sources: what it was joined from, in order.
        starts: time in seconds at which each source begins in it.
    """

    record: Path
    title: str
    out: Path
    sources: tuple[Path, ...]
    starts: tuple[float, ...]


def check_video(part: VideoCheck) -> Record:
    """Compare the content of every packet, and the time of every frame.

    Raises:
        DatasetError: something differs.
    """
    ours = _packets(part.out)
    origin = None
    for start, path in zip(part.starts, part.sources, strict=True):
        times: list[tuple[float, float]] = []
        for number, theirs in enumerate(_packets(path)):
            mine = next(ours, None)
            if mine is None or mine[1] != theirs[1]:
                raise DatasetError(f"packet {number} of `{path}` is not in its place in `{part.out}`", _HINT)
            times.append((mine[0], theirs[0]))
        first = min((time for _, time in times), default=0.0)
        origin = min((time for time, _ in times), default=0.0) if origin is None else origin
        for number, (mine_s, theirs_s) in enumerate(times):
            if abs((mine_s - origin) - (start + theirs_s - first)) > _TOLERANCE_S:
                raise DatasetError(
                    f"packet {number} of `{path}` is shown at {mine_s - origin:.4f} s in `{part.out}` instead of "
                    f"{start + theirs_s - first:.4f} s",
                    _HINT,
                )
    if next(ours, None) is not None:
        raise DatasetError(f"`{part.out}` holds more packets than the files that it was made of", _HINT)
    return keep(part, {})


def _packets(path: Path) -> Iterator[tuple[float, bytes]]:
    """Time of showing [s] and content of each video packet, in the order of decoding."""
    container, stream = open_container(path)
    try:
        tick = float(stream.time_base)
        entries = _entries(container, stream)
        if entries:
            yield from ((time * tick, data) for time, data in _read(path, entries))
            return
        for packet in container.demux(stream):
            if packet.pts is not None and packet.size:
                yield packet.pts * tick, bytes(packet)
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"`{path}` cannot be read to its end: {reason(error)}") from error
    finally:
        container.close()


def _entries(container: Any, stream: Any) -> list[tuple[int, int, int]]:
    """Time [ticks], place and size of every packet, where an mp4 file's own table says it; a third of the work.

    Empty where the table is incomplete or holds other times than those of showing (B-frames).
    """
    table = stream.index_entries
    is_complete = "mp4" in container.format.name and 0 < len(table) == stream.frames
    if not is_complete or stream.codec_context.has_b_frames or table[0].timestamp != stream.start_time:
        return []
    return [(entry.timestamp, entry.pos, entry.size) for entry in table]


def _read(path: Path, entries: list[tuple[int, int, int]]) -> Iterator[tuple[int, bytes]]:
    place = -1
    with path.open("rb", buffering=_BUFFER) as file:
        for time, start, size in entries:
            if start != place:
                file.seek(start)
            data = file.read(size)
            place = start + size
            if len(data) != size:
                raise VideoError(f"`{path}` is cut off: its table names packets up to byte {place}")
            yield time, data
