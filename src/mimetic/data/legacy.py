"""v2.0 and v2.1 folders, read as they are: one file an episode, metadata in JSON lines (spec/dataset.md 16.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mimetic.data.episodes import Episodes, VideoSpans
from mimetic.data.info import Info
from mimetic.data.stats import Stats, aggregate_stats, parse_stats, read_stats
from mimetic.data.tasks import read_json_lines
from mimetic.errors import DatasetFormatError


def read_legacy_episodes(root: Path, info: Info, video_keys: Sequence[str]) -> Episodes:
    """Read meta/episodes.jsonl.

    Raises:
        DatasetFormatError: missing, damaged, or a line lacks `episode_index` or `length`.
        EpisodeError: an episode stands in it twice.
    """
    path = root / "meta" / "episodes.jsonl"
    rows = read_json_lines(path)
    try:
        index = np.asarray([int(row["episode_index"]) for row in rows], dtype=np.int64)
        length = np.asarray([int(row["length"]) for row in rows], dtype=np.int64)
        tasks = tuple(tuple(str(task) for task in row.get("tasks") or ()) for row in rows)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DatasetFormatError(f"`{path}` has a line without `episode_index` and `length`") from error
    chunk = index // info.chunks_size
    spans = VideoSpans(chunk, index, np.zeros(len(index)), length / info.fps)
    # v2.x has no offsets in its table; -1 tells the checks that there is nothing to compare with.
    unknown = np.full(len(index), -1, dtype=np.int64)
    return Episodes(index, length, tasks, chunk, index, unknown, unknown, dict.fromkeys(video_keys, spans))


def read_legacy_stats(root: Path) -> Stats:
    """Statistics of the whole dataset: stats.json of v2.0, else those of v2.1's episodes, aggregated.

    Raises:
        DatasetFormatError: a file is damaged.
    """
    path = root / "meta" / "episodes_stats.jsonl"
    if not path.is_file():
        return read_stats(root)
    parts = []
    for row in read_json_lines(path):
        if not isinstance(row, dict) or "stats" not in row:
            raise DatasetFormatError(f"`{path}` has a line without `stats`")
        parts.append(parse_stats(row["stats"], where=str(path)))
    return aggregate_stats(parts)
