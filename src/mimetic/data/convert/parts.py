"""The parts of a conversion: one data file, one video file, the camera statistics of some episodes.

Each is done by one worker, which writes its files under temporary names, renames them, and leaves a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mimetic.data.convert.rows import EpisodeRows, read_episode, task_order
from mimetic.data.convert.workplace import Record, keep
from mimetic.data.edit.data_task import pictures
from mimetic.data.encoding.join import join_videos
from mimetic.data.features import DatasetFeature
from mimetic.data.images import decode_colour
from mimetic.data.parquet import read_table
from mimetic.data.statistics import PictureStats, columns_stats, sample_indices, thin
from mimetic.data.stats import Stats, parse_stats
from mimetic.data.store.atomic import replacing
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.schema import episode_table
from mimetic.data.store.tables import stats_json
from mimetic.data.video.frames import FrameReader

_FRAMES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """A data file to write from the rows of several episodes.

    Args:
        record: its record.
        title: what a message calls it.
        out: its path.
        features: declared features, in column order.
        episodes: its episodes in order.
    """

    record: Path
    title: str
    out: Path
    features: Mapping[str, DatasetFeature]
    episodes: tuple[EpisodeRows, ...]


def write_data(part: DataPart) -> Record:
    """Write the file, one row group an episode.

    Returns:
        Of each episode the statistics of its numbers and its tasks.
    """
    found = []
    with DataFileWriter(part.out, part.features) as writer:
        for rows in part.episodes:
            columns = read_episode(rows, part.features)
            writer.write(episode_table(part.features, columns))
            found.append({"stats": stats_json(columns_stats(part.features, columns)), "tasks": task_order(columns)})
    return keep(part, {"episodes": found}, [part.out])


@dataclass(frozen=True, kw_only=True)
class VideoPart:
    """A video file to join from those of several episodes.

    Args:
        record: its record.
        title: what a message calls it.
        out: its path.
        sources: files in order.
    """

    record: Path
    title: str
    out: Path
    sources: tuple[Path, ...]


def join(part: VideoPart) -> Record:
    """Copy the streams into one file.

    Returns:
        Duration of each source [s].
    """
    with replacing(part.out) as temporary:
        durations = join_videos(part.sources, temporary)
    return keep(part, {"durations": durations}, [part.out])


@dataclass(frozen=True, kw_only=True)
class CameraPart:
    """Episodes of one camera whose sampled frames are to be counted.

    Args:
        record: its record.
        title: what a message calls it.
        name: the camera.
        feature: as declared.
        episodes: file and number of frames of each: a video of its own, or a data file with pictures.
        fps: frame rate [Hz].
    """

    record: Path
    title: str
    name: str
    feature: DatasetFeature
    episodes: tuple[tuple[Path, int], ...]
    fps: int


def count_pixels(part: CameraPart) -> Record:
    """Decode the frames that LeRobot would sample (spec/dataset.md 7.2), and count their pixels.

    Returns:
        Of each episode the statistics; and the histograms of all of them together with their number of frames, from
        which those of the dataset are made exactly.
    """
    channels = part.feature.chw[0]
    whole, total, found = PictureStats(channels), 0, []
    reader = FrameReader("pyav", max_open=1)
    for path, length in part.episodes:
        own = PictureStats(channels)
        frames = sample_indices(length)
        if part.feature.dtype == "video":
            for start in range(0, len(frames), _FRAMES_AT_ONCE):
                wanted = frames[start : start + _FRAMES_AT_ONCE].tolist()
                for picture in reader.read(path, wanted, fps=part.fps, tolerance_s=0.5 / part.fps):
                    own.add(thin(picture.transpose(1, 2, 0)))
        else:
            cells = pictures(read_table(path, [part.name])[part.name].take(frames), name=part.name, where=str(path))
            picture = np.empty(part.feature.chw, dtype=np.uint8)
            for frame, (data, _) in zip(frames, cells, strict=True):
                decode_colour(data, picture, where=f"`{part.name}` in row {frame} of `{path}`")
                own.add(thin(picture.transpose(1, 2, 0)))
        found.append(stats_json({part.name: own.result(count=len(frames))})[part.name])
        whole.merge(own)
        total += len(frames)
    reader.close()
    return keep(part, {"episodes": found, "counts": whole.counts.tolist(), "frames": total})


def record_stats(entry: Mapping[str, object], part: DataPart) -> Stats:
    """Statistics of an episode out of the record of a data file."""
    return parse_stats(entry, where=str(part.record))
