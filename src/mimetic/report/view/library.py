"""What the viewer shows of a dataset, episode by episode: rows, frames, places of videos. Nothing is loaded as a whole.

A dataset is looked at because something may be wrong with it, so it is opened as the checks open it: what can be read
is shown, and what cannot is said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.check.pictures.reading import CellFrames, VideoFrames
from mimetic.data.check.pictures.thumbnails import picture_jpeg
from mimetic.data.check.source import CheckSource, Footage, open_source
from mimetic.data.features import DatasetFeature
from mimetic.errors import DatasetError, EpisodeError
from mimetic.names import ACTION, EPISODE_INDEX, FRAME_INDEX, STATE, TIMESTAMP
from mimetic.report.view.curves import plain, thinned, thinned_places
from mimetic.report.view.episode_rows import first_row, numbers
from mimetic.report.view.kept import Kept

MOST_CHANNELS = 64
PAGE = 200
_OPEN_FILES = 6
_EPISODES_HELD = 4


@dataclass(frozen=True)
class Curve:
    """One channel of an episode.

    Args:
        name: of the channel.
        feature: it belongs to.
        values: thinned.
    """

    name: str
    feature: str
    values: list[float | None]


class Library:
    """One dataset, open for looking at; safe to use from several threads.

    Args:
        root: folder of the dataset.

    Raises:
        DatasetNotFound: there is no dataset.
        DatasetError: its description or its table of episodes cannot be read, so there is nothing to list.
    """

    def __init__(self, root: Path) -> None:
        self.source: CheckSource = open_source(root, with_rows=False)
        if self.source.info is None or self.source.ledger is None:
            lost = next(iter(self.source.unreadable), None)
            reason = f": {lost.reason}" if lost is not None else ""
            raise DatasetError(
                f"`{root}` cannot be shown, its description cannot be read{reason}",
                f"`mimetic dataset check --root={root}` says what is wrong",
            )
        self.root = self.source.root
        self.fps = self.source.fps
        self.cameras = self.source.camera_keys
        self.episodes: list[int] = self.source.episodes.tolist()
        self.lengths: list[int] = self.source.lengths.tolist()
        self._place = {episode: place for place, episode in enumerate(self.episodes)}
        self._files = Kept[tuple[Path, str], _Locked](_OPEN_FILES, on_drop=lambda held: held.close())
        self._rows = Kept[int, dict[str, npt.NDArray[Any]]](_EPISODES_HELD)

    @property
    def name(self) -> str:
        """Name of the dataset's folder."""
        return self.root.resolve().name

    def __contains__(self, episode: object) -> bool:
        return episode in self._place

    def length(self, episode: int) -> int:
        """Frames of an episode.

        Raises:
            EpisodeError: there is none with this number.
        """
        if episode not in self._place:
            raise EpisodeError(f"there is no episode {episode}")
        return max(self.lengths[self._place[episode]], 0)

    def tasks(self, episode: int) -> list[str]:
        """Tasks of an episode."""
        ledger = self.source.ledger
        row = ledger.row_of(episode) if ledger is not None else -1
        return list(ledger.tasks[row]) if ledger is not None and row >= 0 else []

    def footage(self, camera: str, episode: int) -> Footage:
        """Where the pictures of an episode lie.

        Raises:
            DatasetError: it is not known.
        """
        footage = self._footage(camera, episode)
        if footage is None:
            raise DatasetError(f"where the pictures of `{camera}` of episode {episode} lie is not known")
        return footage

    def describe(self) -> dict[str, Any]:
        """The dataset in JSON data, for the page."""
        return {
            "name": self.name,
            "fps": self.fps,
            "episodes": len(self.episodes),
            "frames": sum(max(length, 0) for length in self.lengths),
            "robot": self.source.info.robot_type if self.source.info is not None else None,
            "cameras": [self._camera(key) for key in self.cameras],
            "tasks": [self.source.tasks[index] for index in sorted(self.source.tasks or {})][:1000]
            if self.source.tasks
            else [],
        }

    def list_episodes(self, *, offset: int = 0, words: str = "", only: Sequence[int] | None = None) -> dict[str, Any]:
        """A page of the list of episodes.

        Args:
            offset: first entry of the filtered list.
            words: episode numbers ("7", "3-9") or part of a task.
            only: show these episodes only.
        """
        chosen = self.episodes if only is None else [episode for episode in only if episode in self._place]
        matches = _matcher(words, self.tasks)
        found = [episode for episode in chosen if matches(episode)]
        page = found[max(0, offset) : max(0, offset) + PAGE]
        return {
            "total": len(found),
            "offset": max(0, offset),
            "episodes": [
                {"episode": episode, "length": self.length(episode), "task": "; ".join(self.tasks(episode))}
                for episode in page
            ],
        }

    def neighbour(self, episode: int, step: int) -> int:
        """The episode so many places on, or the first or last."""
        place = self._place.get(episode, 0) + step
        return self.episodes[min(max(place, 0), len(self.episodes) - 1)]

    def curves(self, episode: int) -> dict[str, Any]:
        """State and action of one episode in JSON data, thinned to `MOST_POINTS` a channel.

        Raises:
            DatasetError: its rows cannot be read.
        """
        columns = self.rows(episode)
        count = max((len(column) for column in columns.values()), default=0)
        curves: list[Curve] = []
        frames = thinned_places(count)
        for key in self._shown_features():
            column = columns.get(key)
            if column is None:
                continue
            values = column.reshape(len(column), -1)
            names = self.source.features[key].flat_names or []
            for channel in range(min(values.shape[1], MOST_CHANNELS)):
                name = names[channel] if len(names) == values.shape[1] else f"{key}[{channel}]"
                curves.append(Curve(name, key, plain(thinned(values[:, channel], frames))))
        return {
            "frames": count,
            "at": frames.tolist(),
            "curves": [{"name": curve.name, "feature": curve.feature, "values": curve.values} for curve in curves],
            "left_out": self._left_out(columns),
        }

    def rows(self, episode: int) -> dict[str, npt.NDArray[Any]]:
        """Numeric columns of one episode, read from its own file only.

        Raises:
            DatasetError: the file is missing or damaged, or holds no rows of this episode.
        """
        return self._rows.get(episode, lambda: self._read_rows(episode))

    def frame(self, camera: str, episode: int, frame: int, *, width: int = 0) -> bytes:
        """One picture as a JPEG file, decoded by mimetic, so that it is this frame and no neighbour.

        Args:
            camera: feature key.
            episode: episode number.
            frame: frame of the episode.
            width: width of the result [px]; 0 keeps it.

        Raises:
            DatasetError: there is no such camera, episode or frame, or it cannot be decoded.
        """
        if camera not in self.cameras:
            raise DatasetError(f"there is no camera `{camera}`")
        if not 0 <= frame < self.length(episode):
            raise EpisodeError(f"episode {episode} has {self.length(episode)} frames, {frame} was asked")
        footage = self.footage(camera, episode)
        feature = self.source.features[camera]
        held = self._files.get((footage.path, camera), lambda: _Locked(_open(footage.path, camera, feature)))
        return picture_jpeg(held.read(footage.first + frame), width=width)

    def video(self, camera: str, episode: int) -> Path:
        """The video file of an episode.

        Raises:
            DatasetError: the camera's pictures are not in video files, or the file is not there.
        """
        if camera not in self.source.video_keys:
            raise DatasetError(f"`{camera}` is not stored as video")
        path = self.footage(camera, episode).path
        if not path.is_file():
            raise DatasetError(f"`{self.source.relative(path)}` is missing")
        return path

    def close(self) -> None:
        """Close open files."""
        self._files.clear()

    def _camera(self, key: str) -> dict[str, Any]:
        feature = self.source.features[key]
        _, height, width = (*feature.chw, 0, 0, 0)[:3]
        codec = str(feature.info.get("video.codec") or "")
        return {
            "key": key,
            "width": width,
            "height": height,
            "is_video": feature.dtype == "video" and not feature.is_depth,
            "is_depth": feature.is_depth,
            "codec": codec[:20],
        }

    def _shown_features(self) -> list[str]:
        numeric = [
            key
            for key, feature in self.source.features.items()
            if feature.is_numeric and (key in (STATE, ACTION) or key.startswith(("observation.", "action", "next.")))
        ]
        return sorted(numeric, key=lambda key: (key != STATE, key != ACTION, key))

    def _left_out(self, columns: Mapping[str, npt.NDArray[Any]]) -> int:
        return sum(
            max(0, int(np.prod(columns[key].shape[1:])) - MOST_CHANNELS)
            for key in self._shown_features()
            if key in columns
        )

    def _footage(self, camera: str, episode: int) -> Footage | None:
        if self.source.features[camera].dtype == "video":
            return self.source.footage(camera, episode)
        path = self._data_path(episode)
        groups, first = first_row(path, episode)
        return Footage(path, first, self.length(episode)) if groups else None

    def _data_path(self, episode: int) -> Path:
        ledger, layout = self.source.ledger, self.source.layout
        row = ledger.row_of(episode) if ledger is not None else -1
        if ledger is None or layout is None or row < 0:
            raise DatasetError(f"which file holds the rows of episode {episode} is not known")
        chunk, file = int(ledger.data_chunk[row]), int(ledger.data_file[row])
        if chunk < 0 or file < 0:
            raise DatasetError(f"the table of episodes names no data file for episode {episode}")
        return layout.data_file(chunk, file)

    def _read_rows(self, episode: int) -> dict[str, npt.NDArray[Any]]:
        path = self._data_path(episode)
        groups, _ = first_row(path, episode)
        if not groups:
            raise DatasetError(
                f"`{self.source.relative(path)}` holds no rows of episode {episode}",
                f"`mimetic dataset check --root={self.root}` says where they are",
            )
        known = [*self._shown_features(), TIMESTAMP, FRAME_INDEX]
        try:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                table = file.read_row_groups(groups, columns=[EPISODE_INDEX, *(key for key in known if key in names)])
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DatasetError(f"`{self.source.relative(path)}` cannot be read: {error!s:.200}") from error
        own = table[EPISODE_INDEX].to_numpy() == episode
        table = table.filter(pa.array(own))
        found = {}
        for key in known:
            if key in table.column_names:
                column = numbers(table[key])
                if column is not None:
                    found[key] = column
        return found


class _Locked:
    """One open file, read by one thread at a time."""

    def __init__(self, frames: VideoFrames | CellFrames) -> None:
        self._frames = frames
        self._lock = threading.Lock()
        self._is_closed = False

    def read(self, frame: int) -> npt.NDArray[Any]:
        """One picture.

        Raises:
            DatasetError: it cannot be decoded, or is beyond the end.
        """
        with self._lock:
            if self._is_closed:
                raise DatasetError("the file was closed meanwhile; ask again")
            if not 0 <= frame < len(self._frames):
                raise DatasetError(f"the file ends before this frame: it has {len(self._frames)}")
            _, outcome = next(iter(self._frames.read([frame])))
        if isinstance(outcome, DatasetError):
            raise outcome
        return outcome

    def close(self) -> None:
        """Close the file as soon as nobody reads it."""
        with self._lock:
            self._is_closed = True
            self._frames.close()


def _open(path: Path, camera: str, feature: DatasetFeature) -> VideoFrames | CellFrames:
    if feature.dtype == "video":
        return VideoFrames(path, is_depth=feature.is_depth)
    height, width = feature.chw[1:]
    return CellFrames(path, camera, size=(int(height), int(width)), is_depth=feature.is_depth)


def _matcher(words: str, tasks: Callable[[int], list[str]]) -> Callable[[int], bool]:
    words = words.strip().lower()
    if not words:
        return lambda episode: True
    spans = []
    for part in words.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 9 or len(last) > 9:
            return lambda episode: any(words in task.lower() for task in tasks(episode))
        spans.append((int(first), int(last or first)))
    return lambda episode: any(first <= episode <= last for first, last in spans)
