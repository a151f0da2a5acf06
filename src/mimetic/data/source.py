"""What all views of one opened dataset share: rows, pictures, decoders, and the way from a row to its frames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mimetic.data.addresses import CameraAddresses, FrameAddress
from mimetic.data.depth import depth_table, unit_factor
from mimetic.data.episodes import listed
from mimetic.data.images import ImageCells, decode_colour, decode_depth
from mimetic.data.metadata import Metadata
from mimetic.data.runs import Runs
from mimetic.data.table import Rows
from mimetic.errors import DatasetFormatError, VideoError
from mimetic.names import FRAME_INDEX

if TYPE_CHECKING:
    from mimetic.data.video.frames import FrameReader

Ints = npt.NDArray[np.int64]


class Source:
    """Rows, pictures and decoders of one dataset; safe to use from several threads.

    Args:
        metadata: metadata, with statistics in the unit of the depth frames.
        rows: loaded rows.
        runs: their episodes.
        selected: (E,) episode numbers that were checked and may be read, in file order.
        cameras: addresses of the video cameras.
        reader: video frames; None when there are no videos.
        tolerance_s: allowed difference of a frame's time in its file [s].
        depth_output_unit: "mm" or "m".
        backend: name of the decoder, and why it was chosen.
    """

    def __init__(
        self,
        metadata: Metadata,
        rows: Rows,
        runs: Runs,
        selected: Ints,
        cameras: Mapping[str, CameraAddresses],
        reader: FrameReader | None,
        *,
        tolerance_s: float,
        depth_output_unit: str,
        backend: tuple[str, str],
    ) -> None:
        self.metadata = metadata
        self.rows = rows
        self.runs = runs
        self.selected = selected
        self.cameras = cameras
        self.reader = reader
        self.tolerance_s = tolerance_s
        self.depth_output_unit = depth_output_unit
        self.backend, self.backend_reason = backend
        self.cells = ImageCells(rows.files, rows.starts)
        self._depth_tables = {
            key: depth_table(metadata.features[key].info, depth_output_unit)
            for key in cameras
            if metadata.features[key].is_depth
        }

    def address(self, row: int) -> FrameAddress:
        """Where the frame of a row lies."""
        at = np.asarray([row])
        file = int(self.rows.file_of(at)[0])
        run = int(self.runs.of_row[row])
        videos = {}
        for key, camera in self.cameras.items():
            files, frames = self.video_frames(key, at)
            videos[key] = (camera.files[int(files[0])], int(frames[0]))
        return FrameAddress(
            episode=int(self.runs.episode[run]),
            frame=int(self.rows.columns[FRAME_INDEX][row]),
            data_file=self.rows.files[file],
            data_row=row - int(self.rows.starts[file]),
            videos=videos,
        )

    def video_frames(self, key: str, rows: Ints) -> tuple[Ints, Ints]:
        """File numbers and frame numbers in them of a video camera for some rows."""
        table = self.runs.table[self.runs.of_row[rows]]
        return self.cameras[key].frames(table, self.rows.columns[FRAME_INDEX][rows])

    def frame_numbers(self, rows: Ints) -> Ints:
        """Numbers of the rows' frames in the whole dataset, counted through the table of episodes."""
        lengths = self.metadata.episodes.length
        first = np.cumsum(lengths) - lengths
        return np.asarray(
            first[self.runs.table[self.runs.of_row[rows]]] + self.rows.columns[FRAME_INDEX][rows], dtype=np.int64
        )

    def read_camera(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Frames of a camera for some rows, decoded straight into one array.

        Args:
            key: camera.
            rows: (B, K) rows.

        Returns:
            (B, K, 3, H, W) uint8 for colour; (B, K, 1, H, W) float32 in the output unit for depth.

        Raises:
            VideoError: a frame cannot be read; names the file, the episode and the frame.
            DatasetFormatError: a picture in a data file cannot be read.
        """
        try:
            return self._camera_frames(key, rows)
        except MemoryError as error:
            height, width = self.metadata.features[key].chw[1:]
            raise DatasetFormatError(
                f"{rows.size} frames of `{key}`, declared as {width}x{height} pixels, do not fit into memory",
                "take a smaller batch, or correct the shape in meta/info.json",
            ) from error

    def _camera_frames(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        feature = self.metadata.features[key]
        height, width = feature.chw[1:]
        flat = rows.reshape(-1)
        is_video = feature.dtype == "video"
        if is_video and feature.is_depth:
            codes = np.empty((len(flat), height, width), dtype=np.uint16)
            self._read_videos(key, flat, codes)
            table = self._depth_tables[key]
            frames: npt.NDArray[Any] = table[np.minimum(codes, len(table) - 1)][:, None]
        elif is_video:
            frames = np.empty((len(flat), 3, height, width), dtype=np.uint8)
            self._read_videos(key, flat, frames)
        elif feature.is_depth:
            frames = np.empty((len(flat), 1, height, width), dtype=np.float32)
            self._read_images(key, flat, frames)
            factor = unit_factor(feature.info, self.depth_output_unit)
            frames = frames if factor == 1.0 else frames * np.float32(factor)
        else:
            frames = np.empty((len(flat), 3, height, width), dtype=np.uint8)
            self._read_images(key, flat, frames)
        return frames.reshape(*rows.shape, *frames.shape[1:])

    def _read_videos(self, key: str, rows: Ints, out: npt.NDArray[Any]) -> None:
        assert self.reader is not None  # opened with every dataset that has video cameras
        camera = self.cameras[key]
        files, frames = self.video_frames(key, rows)
        for number in dict.fromkeys(files.tolist()):
            places = np.flatnonzero(files == number)
            path = camera.files[number]
            try:
                self.reader.read_into(
                    path,
                    frames[places].tolist(),
                    [out[place] for place in places],
                    fps=self.metadata.fps,
                    is_depth=self.metadata.features[key].is_depth,
                    tolerance_s=self.tolerance_s,
                )
            except VideoError as error:
                raise VideoError(f"{error.message} ({self._culprit(key, number, rows[places])})", error.hint) from error

    def _culprit(self, key: str, file: int, rows: Ints) -> str:
        """Name the first frame that the file lacks, or the episodes that were being read."""
        path = self.cameras[key].files[file]
        frames = self.video_frames(key, rows)[1]
        try:
            assert self.reader is not None
            beyond = np.flatnonzero(frames >= self.reader.count(path))
        except VideoError:
            beyond = np.empty(0, dtype=np.int64)
        if len(beyond):
            row = int(rows[beyond[np.argmin(frames[beyond])]])
            episode = self.runs.episode[self.runs.of_row[row]]
            return f"episode {episode}, frame {self.rows.columns[FRAME_INDEX][row]} of `{key}`"
        episodes = np.unique(self.runs.episode[self.runs.of_row[rows]])
        return f"`{key}` of episode{'s' if len(episodes) > 1 else ''} {listed(episodes)}"

    def _read_images(self, key: str, rows: Ints, out: npt.NDArray[Any]) -> None:
        is_depth = self.metadata.features[key].is_depth
        done: dict[int, int] = {}
        for place, row in enumerate(rows.tolist()):
            if row in done:  # padding repeats the first or last frame
                out[place] = out[done[row]]
                continue
            done[row] = place
            data = self.cells.read(key, row)
            run = self.runs.of_row[row]
            where = f"`{key}` of episode {self.runs.episode[run]}, frame {self.rows.columns[FRAME_INDEX][row]}"
            if is_depth:
                decode_depth(data, out[place], where=where)
            else:
                decode_colour(data, out[place], where=where)


def decoder_limit(n_cameras: int) -> int:
    """How many video decoders stay open: `LEROBOT_VIDEO_DECODER_CACHE_SIZE`, else four a camera and at least 16."""
    text = os.environ.get("LEROBOT_VIDEO_DECODER_CACHE_SIZE")
    if text is None:
        return max(16, 4 * n_cameras)
    if text.strip().lower() in ("", "none", "unbounded", "-1"):
        return 1 << 30
    return int(text) if text.strip().isdecimal() and int(text) > 0 else max(16, 4 * n_cameras)


def select_rows(runs: Runs, episodes: Sequence[int] | Ints) -> tuple[Ints, Ints | None]:
    """Runs of the given episodes in file order, and their rows; None instead of the rows when these are all."""
    chosen = np.flatnonzero(np.isin(runs.episode, np.asarray(episodes)))
    if len(chosen) == len(runs.episode):
        return chosen, None
    parts = [np.arange(runs.start[run], runs.end[run]) for run in chosen]
    return chosen, np.concatenate(parts).astype(np.int64) if parts else np.empty(0, dtype=np.int64)
