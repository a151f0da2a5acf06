"""What all views of one opened dataset share: rows, pictures, decoders, and the way from a row to its frames."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mimetic.data.addresses import CameraAddresses, FrameAddress
from mimetic.data.bad_frames import exclude_flag
from mimetic.data.depth import depth_table, unit_factor
from mimetic.data.episodes import listed
from mimetic.data.images import DamagedRows, ImageCells, decode_colour, decode_depth
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
        excluded: episodes that were left out on request, for hints.
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
        excluded: Sequence[int] = (),
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
        self.excluded = list(excluded)
        self.cells = ImageCells(rows.files, rows.starts)
        self._finite: dict[str, npt.NDArray[np.bool_] | None] = {}
        self._depth_tables = {
            key: depth_table(metadata.features[key].info, depth_output_unit)
            for key in cameras
            if metadata.features[key].is_depth
        }

    def address(self, row: int) -> FrameAddress:
        """Where the frame of a row lies."""
        at = np.asarray([row])
        file, data_row = self.place_of(row)
        run = int(self.runs.of_row[row])
        videos = {}
        for key, camera in self.cameras.items():
            files, frames = self.video_frames(key, at)
            videos[key] = (camera.files[int(files[0])], int(frames[0]))
        return FrameAddress(
            episode=int(self.runs.episode[run]),
            frame=int(self.rows.columns[FRAME_INDEX][row]),
            data_file=self.rows.files[file],
            data_row=data_row,
            videos=videos,
        )

    def place_of(self, row: int) -> tuple[int, int]:
        """Number of the data file that holds a row, and the row in it."""
        file = int(self.rows.file_of(np.asarray([row]))[0])
        return file, row - int(self.rows.starts[file])

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

    def files_in_use(self) -> list[tuple[Path, float]]:
        """Files that threads are reading now, and for how long [s], the longest first."""
        found = self.cells.in_use.now()
        if self.reader is not None:
            found += self.reader.in_use.now()
        return sorted(found, key=lambda entry: -entry[1])

    def finite_rows(self, key: str) -> npt.NDArray[np.bool_] | None:
        """(N,) which rows of a numeric feature hold finite values only; None when all do. Looked at once."""
        if key not in self._finite:
            column = self.rows.columns[key]
            finite = np.isfinite(column).reshape(len(column), -1).all(axis=1) if column.dtype.kind == "f" else None
            self._finite[key] = None if finite is None or finite.all() else finite
        return self._finite[key]

    def read_camera(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Frames of a camera for some rows, decoded straight into one array.

        Args:
            key: camera.
            rows: (B, K) rows.

        Returns:
            (B, K, 3, H, W) uint8 for colour; (B, K, 1, H, W) float32 in the output unit for depth.

        Raises:
            VideoError: a frame cannot be read; names the file, the episode, the frame, the camera and the time in the
                file, and the flag that leaves the episode out.
            DatasetFormatError: a picture in a data file cannot be read; names the same but the time.
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
        frames = self.finish(key, self.read_raw(key, rows.reshape(-1)))
        return frames.reshape(*rows.shape, *frames.shape[1:])

    def read_raw(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Frames of a camera as they are stored, before depth becomes a length (errors as `read_camera`).

        Args:
            key: camera.
            rows: (N,) rows.

        Returns:
            Colour (N, 3, H, W) uint8; depth of videos (N, H, W) uint16 codes, of pictures (N, 1, H, W) float32.
        """
        feature = self.metadata.features[key]
        height, width = feature.chw[1:]
        is_video = feature.dtype == "video"
        if not feature.is_depth:
            frames: npt.NDArray[Any] = np.empty((len(rows), 3, height, width), dtype=np.uint8)
        elif is_video:
            frames = np.empty((len(rows), height, width), dtype=np.uint16)
        else:
            frames = np.empty((len(rows), 1, height, width), dtype=np.float32)
        if is_video:
            self._read_videos(key, rows, frames)
        else:
            self._read_images(key, rows, frames)
        return frames

    def finish(self, key: str, frames: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What `read_raw` gave, with depth as (N, 1, H, W) float32 in the output unit."""
        feature = self.metadata.features[key]
        if not feature.is_depth:
            return frames
        if feature.dtype == "video":
            table = self._depth_tables[key]
            return np.asarray(table[np.minimum(frames, len(table) - 1)][:, None])
        factor = unit_factor(feature.info, self.depth_output_unit)
        return frames if factor == 1.0 else np.asarray(frames * np.float32(factor))

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
            except (VideoError, OSError) as error:
                raise self._located(error, key, number, rows[places]) from error

    def _located(self, error: VideoError | OSError, key: str, file: int, rows: Ints) -> VideoError:
        """The error of a video file with the frame of the dataset, and with the flag that leaves its episode out."""
        from mimetic.data.video.index import LEAVE_OUT_HINT, FrameError, restore_hint

        path = self.cameras[key].files[file]
        frames = self.video_frames(key, rows)[1]
        if isinstance(error, FrameError) and error.frame in frames:
            row = int(rows[np.argmax(frames == error.frame)])
            where = f"{self._name(row)} of `{key}`, at {error.frame / self.metadata.fps:.3f} s of the file"
            affected = self._lacking(key, file, error.frame) or [int(self.runs.episode[self.runs.of_row[row]])]
        else:
            affected = self._lacking(key, file, None)
            episodes = np.unique(self.runs.episode[self.runs.of_row[rows]])
            where = f"`{key}` of episode{'s' if len(episodes) > 1 else ''} {listed(episodes)}"
        message = error.message if isinstance(error, VideoError) else f"`{path}` cannot be read: {error}"
        hint = error.hint if isinstance(error, VideoError) else restore_hint(error)
        return VideoError(f"{message} ({where})", hint.replace(LEAVE_OUT_HINT, self._leave_out(affected)))

    def _lacking(self, key: str, file: int, frame: int | None) -> list[int]:
        """Opened episodes that a file is too short for, when `frame` is beyond its end; all of the file for None."""
        camera, table = self.cameras[key], self.metadata.episodes.positions(self.selected)
        is_affected = camera.file[table] == file
        if frame is not None:
            assert self.reader is not None
            try:
                count = self.reader.count(camera.files[file])
            except VideoError:
                return []
            if frame < count:
                return []
            is_affected &= camera.first_frame[table] + self.metadata.episodes.length[table] > count
        return [int(number) for number in self.selected[is_affected]]

    def _name(self, row: int) -> str:
        return f"episode {self.runs.episode[self.runs.of_row[row]]}, frame {self.rows.columns[FRAME_INDEX][row]}"

    def _leave_out(self, episodes: Sequence[int]) -> str:
        word = "episodes" if len(episodes) > 1 else "episode"
        return f"leave {word} {listed(episodes)} out with `{exclude_flag(episodes, self.excluded)}`"

    def _read_images(self, key: str, rows: Ints, out: npt.NDArray[Any]) -> None:
        decode = decode_depth if self.metadata.features[key].is_depth else decode_colour
        done: dict[int, int] = {}
        for place, row in enumerate(rows.tolist()):
            if row in done:  # padding repeats the first or last frame
                out[place] = out[done[row]]
                continue
            done[row] = place
            try:
                decode(self.cells.read(key, row), out[place], where=f"`{key}` of {self._name(row)}")
            except DatasetFormatError as error:
                raise self._located_in_rows(error, key, row) from error

    def _located_in_rows(self, error: DatasetFormatError, key: str, row: int) -> DatasetFormatError:
        """The error of a picture in a data file with its place, and with the flag that leaves its episode out."""
        name, (file, number) = f"`{key}` of {self._name(row)}", self.place_of(row)
        path = self.rows.files[file]
        message = error.message if str(path) in error.message else f"{error.message} (row {number} of `{path}`)"
        message = message if name in message else f"{message} ({name})"
        span = error.rows if isinstance(error, DamagedRows) else range(row, row + 1)
        runs = np.unique(self.runs.of_row[span.start : span.stop])
        affected = [int(number) for number in self.runs.episode[runs] if number in self.selected]
        leave_out = self._leave_out(affected or [int(self.runs.episode[self.runs.of_row[row]])])
        return DatasetFormatError(message, f"{error.hint}, or {leave_out}" if error.hint else leave_out)


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
