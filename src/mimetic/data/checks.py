"""Checks that look at every row or every video file; asked for before training, not on every open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mimetic.data.source import Source
from mimetic.errors import VideoError
from mimetic.names import FRAME_INDEX

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VideoShortfall:
    """An episode whose video file holds too few frames.

    Args:
        episode: episode number.
        camera: camera key.
        missing: frames that the file lacks, all at the episode's end.
        file: the file, as seen from the dataset's folder.
        reason: why the file cannot be counted, when it is damaged; then all frames count as missing.
    """

    episode: int
    camera: str
    missing: int
    file: str
    reason: str = ""

    def __str__(self) -> str:
        text = f"episode {self.episode}: `{self.file}` of `{self.camera}` lacks {self.missing} frames"
        return f"{text} ({self.reason})" if self.reason else text


@dataclass(frozen=True)
class NonFinite:
    """Values of one episode that are NaN or infinite.

    Args:
        feature: name of the feature.
        episode: episode number.
        frames: frame numbers with such values.
    """

    feature: str
    episode: int
    frames: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(str(frame) for frame in self.frames[:5]) + (" ..." if len(self.frames) > 5 else "")
        return f"episode {self.episode}: `{self.feature}` is not finite in frames {shown}"


def check_video_lengths(source: Source, runs: Ints) -> list[VideoShortfall]:
    """Compare the frames in the video files with the rows that need them; nothing is decoded.

    Args:
        source: the dataset.
        runs: runs of the episodes to check.

    Returns:
        Every (episode, camera) with frames missing, camera by camera.
    """
    found: list[VideoShortfall] = []
    if source.reader is None:
        return found
    table, length = source.runs.table[runs], source.runs.length[runs]
    for key, camera in source.cameras.items():
        files = camera.file[table]
        needed = camera.first_frame[table] + length
        for number in np.unique(files):
            path = camera.files[number]
            try:
                count, reason = source.reader.count(path), ""
            except VideoError as error:
                count, reason = 0, error.message
            short = np.flatnonzero((files == number) & (needed > count))
            found += [
                VideoShortfall(
                    episode=int(source.runs.episode[runs[i]]),
                    camera=key,
                    missing=int(min(needed[i] - count, length[i])),
                    file=source.metadata.layout.relative(path),
                    reason=reason,
                )
                for i in short
            ]
    return found


def find_non_finite(source: Source, runs: Ints) -> list[NonFinite]:
    """Find NaN and infinite values in the float columns of the given runs.

    Returns:
        One entry a feature and episode, in that order.
    """
    found: list[NonFinite] = []
    wanted = np.zeros(len(source.runs.episode), dtype=np.bool_)
    wanted[runs] = True
    for key, column in source.rows.columns.items():
        if column.dtype.kind != "f":
            continue
        finite = np.isfinite(column).reshape(len(column), -1).all(axis=1)
        rows = np.flatnonzero(~finite)
        rows = rows[wanted[source.runs.of_row[rows]]]
        of_row = source.runs.of_row[rows]
        for run in np.unique(of_row):
            frames = source.rows.columns[FRAME_INDEX][rows[of_row == run]]
            found.append(NonFinite(key, int(source.runs.episode[run]), tuple(frames.tolist())))
    return found
