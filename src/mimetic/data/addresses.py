"""The one address function: a row, or (episode, frame), to the file and the frame number in it (DESIGN law 3).

Frames are addressed by whole numbers: the frame in the file is `round(from_timestamp * fps) + frame_index`. Times are
looked at only to report that a dataset contradicts itself (spec/dataset.md 20.23).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.episodes import Episodes, listed
from mimetic.data.layout import Layout
from mimetic.errors import VideoError

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FrameAddress:
    """Where one frame of a dataset lies.

    Args:
        episode: episode number.
        frame: frame number in the episode.
        data_file: file that holds its row.
        data_row: row in that file.
        videos: per video camera the file and the frame number in it.
    """

    episode: int
    frame: int
    data_file: Path
    data_row: int
    videos: Mapping[str, tuple[Path, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CameraAddresses:
    """Files and first frames of all episodes for one camera, in table order.

    Args:
        files: distinct video files.
        file: (E,) number in `files`.
        first_frame: (E,) frame number in the file of the episode's frame 0.
    """

    files: Sequence[Path]
    file: Ints
    first_frame: Ints

    def frames(self, table_rows: Ints, frame_index: Ints) -> tuple[Ints, Ints]:
        """File numbers and frame numbers of frames of episodes, arrays of the same shape."""
        return self.file[table_rows], self.first_frame[table_rows] + frame_index


def camera_addresses(layout: Layout, episodes: Episodes, key: str, fps: int, needed: Ints) -> CameraAddresses:
    """Addresses of camera `key` for every episode of the table; start times are checked in the rows `needed`.

    Raises:
        DatasetFormatError: `video_path` is null or leads out of the folder.
        VideoError: negative or senseless start times.
    """
    spans = episodes.videos[key]
    numbers, file = np.unique(np.stack([spans.chunk, spans.file]), axis=1, return_inverse=True)
    files = [layout.video_file(key, int(chunk), int(number)) for chunk, number in numbers.T]
    exact = spans.from_s * fps
    first = np.rint(exact).astype(np.int64)
    wrong = needed[(first[needed] < 0) | (np.abs(exact - first)[needed] > 0.25)]
    if len(wrong):
        raise VideoError(
            f"`videos/{key}/from_timestamp` of episodes {listed(episodes.index[wrong])} in meta/episodes "
            f"is not a whole frame at {fps} Hz: {listed(spans.from_s[wrong])}",
            "correct `fps` in meta/info.json, or the start times",
        )
    return CameraAddresses(files, file.reshape(-1).astype(np.int64), first)


def require_videos(layout: Layout, episodes: Episodes, key: str, addresses: CameraAddresses, table_rows: Ints) -> None:
    """Check that the video files of some episodes exist.

    Args:
        layout: names of files, for the message.
        episodes: table of episodes.
        key: camera.
        addresses: addresses of the camera.
        table_rows: rows of the needed episodes in the table.

    Raises:
        VideoError: a file is missing; names the file, the camera, its episodes and how many more are missing.
    """
    used = addresses.file[table_rows]
    missing = [number for number in np.unique(used) if not addresses.files[number].is_file()]
    if not missing:
        return
    affected = episodes.index[table_rows[np.isin(used, missing)]]
    more = f" and {len(missing) - 1} more files of this camera" if len(missing) > 1 else ""
    raise VideoError(
        f"video file `{layout.relative(addresses.files[missing[0]])}`{more} of `{key}` is missing below "
        f"`{layout.root}`; episodes {listed(affected)} need it",
        "copy the missing files, or leave these episodes out with "
        f"`--dataset.exclude_episodes=[{','.join(str(number) for number in affected[:20])}]`",
    )
