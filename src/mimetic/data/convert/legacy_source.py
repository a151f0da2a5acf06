"""A v2.0 or v2.1 dataset before it is converted: its tables, and where every file is (spec/dataset.md 16.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.data.episodes import listed
from mimetic.data.features import DatasetFeature
from mimetic.data.metadata import Metadata
from mimetic.data.stats import Stats, parse_stats
from mimetic.data.store.tables import read_raw_info
from mimetic.data.table import check_default_features
from mimetic.data.tasks import read_json_lines
from mimetic.errors import DatasetFormatError, EpisodeError
from mimetic.names import INFO_JSON

logger = logging.getLogger(__name__)

EPISODES_STATS = "meta/episodes_stats.jsonl"


@dataclass(frozen=True, kw_only=True)
class SourceEpisode:
    """One episode of the input.

    Args:
        index: its number in the input.
        length: frames.
        tasks: its instructions by the table of episodes.
        data: its data file.
        videos: its video files by camera.
    """

    index: int
    length: int
    tasks: tuple[str, ...]
    data: Path
    videos: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class LegacySource:
    """What is to be converted.

    Args:
        root: folder of the input.
        raw: its info.json as it is.
        features: declared features.
        fps: frame rate [Hz].
        tasks: instruction by number in the result, 0..n-1.
        task_numbers: number in the input to number in the result.
        episodes: all episodes, ascending; the position is the number in the result.
        stats: statistics of episodes by number in the input, as stored; those of v2.0 are not stored.
        pixels: of cameras whose pixels were counted already, the histograms of each episode (`parts.count_pixels`).
    """

    root: Path
    raw: Mapping[str, Any]
    features: Mapping[str, DatasetFeature]
    fps: int
    tasks: Mapping[int, str]
    task_numbers: Mapping[int, int]
    episodes: Sequence[SourceEpisode]
    stats: Mapping[int, Stats]
    pixels: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def cameras(self) -> list[str]:
        """Cameras with video files."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]


def open_legacy(root: Path) -> LegacySource:
    """Read the tables of a v2.x dataset and look for its files; nothing in the files is read.

    Raises:
        DatasetFormatError: a table is damaged, or a path template leaves the folder.
        EpisodeError: files are missing; all of them are counted.
    """
    metadata = Metadata.open(root)
    if not metadata.info.is_legacy:
        raise DatasetFormatError(
            f"`{root}` is a {metadata.version} dataset already", "`--to=v2.1` converts it back for other tools"
        )
    check_default_features(metadata.features, where=f"{root}/{INFO_JSON}")
    order = sorted(range(len(metadata.episodes)), key=lambda position: int(metadata.episodes.index[position]))
    layout, table = metadata.layout, metadata.episodes
    episodes = [
        SourceEpisode(
            index=int(table.index[position]),
            length=int(table.length[position]),
            tasks=table.tasks[position],
            data=layout.data_file(int(table.data_chunk[position]), int(table.index[position])),
            videos={
                key: layout.video_file(key, int(spans.chunk[position]), int(spans.file[position]))
                for key, spans in table.videos.items()
            },
        )
        for position in order
    ]
    source = LegacySource(
        root=root,
        raw=read_raw_info(root),
        features=metadata.features,
        fps=metadata.fps,
        tasks=dict(enumerate(metadata.tasks[number] for number in sorted(metadata.tasks))),
        task_numbers={old: new for new, old in enumerate(sorted(metadata.tasks))},
        episodes=episodes,
        stats=_read_stats(root),
    )
    _require_files(source)
    _require_lengths(source)
    _report(source, layout.data_files())
    return source


def _read_stats(root: Path) -> dict[int, Stats]:
    path = root / EPISODES_STATS
    if not path.is_file():
        return {}
    found: dict[int, Stats] = {}
    for row in read_json_lines(path):
        number = row.get("episode_index") if isinstance(row, dict) else None
        if not isinstance(number, int) or "stats" not in row:
            raise DatasetFormatError(f"`{path}` has a line without `episode_index` and `stats`")
        found[number] = parse_stats(row["stats"], where=str(path))
    return found


def _require_files(source: LegacySource) -> None:
    """Name the first missing file and count all."""
    missing = [
        (path, episode.index)
        for episode in source.episodes
        for path in (episode.data, *episode.videos.values())
        if not path.is_file()
    ]
    if not missing:
        return
    more = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
    raise EpisodeError(
        f"`{missing[0][0]}`{more} are missing; episodes {listed(sorted({episode for _, episode in missing}))} need "
        "them. Nothing was converted"
        if more
        else f"`{missing[0][0]}` is missing; episode {missing[0][1]} needs it. Nothing was converted",
        "copy the missing files, or take these episodes out of meta/episodes.jsonl in a copy of the dataset",
    )


def _require_lengths(source: LegacySource) -> None:
    empty = [episode.index for episode in source.episodes if episode.length < 1]
    if empty:
        raise EpisodeError(
            f"episodes {listed(empty)} of `{source.root}` have no frame by meta/episodes.jsonl",
            "take them out of it in a copy of the dataset",
        )


def _report(source: LegacySource, data_files: Sequence[Path]) -> None:
    """Say what the result will have otherwise than the input, and what is left behind."""
    if any(old != new for old, new in source.task_numbers.items()):
        logger.warning(
            "%s: the task numbers %s have gaps; they become 0 to %d, in the table and in every row",
            source.root,
            listed(sorted(source.task_numbers)),
            len(source.tasks) - 1,
        )
    moved = [episode.index for number, episode in enumerate(source.episodes) if number != episode.index]
    if moved:
        logger.warning(
            "%s: the episode numbers have gaps, which v3.0 cannot have; episodes %s get the numbers from %d on",
            source.root,
            listed(moved),
            next(number for number, episode in enumerate(source.episodes) if number != episode.index),
        )
    known = {episode.data for episode in source.episodes}
    strangers = [path.name for path in data_files if path not in known]
    if strangers:
        logger.warning(
            "%s: %d data files are not in meta/episodes.jsonl and are left out: %s",
            source.root,
            len(strangers),
            ", ".join(strangers[:5]),
        )
