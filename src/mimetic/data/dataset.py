"""Map-style reading: `dataset[i]` and collated batches, with windows in time (spec/dataset.md 10).

    dataset = open_dataset(root="recordings/pick", delta_indices={"action": range(50)})
    dataset[0]["action"]          # (50, A) float32
    dataset.batch([3, 1, 4])      # the same values for three samples, stacked

Low-dimensional columns are gathered by index arithmetic; camera frames are decoded into the batch's own memory.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimetic.data.addresses import FrameAddress
from mimetic.data.checks import NonFinite, VideoShortfall, check_video_lengths, find_non_finite
from mimetic.data.features import DatasetFeature
from mimetic.data.metadata import Metadata
from mimetic.data.source import Source, select_rows
from mimetic.data.windows import check_skipped, check_windows, window_rows
from mimetic.errors import DatasetFormatError, EpisodeError
from mimetic.names import PAD_SUFFIX, TASK, TASK_INDEX

if TYPE_CHECKING:
    from mimetic.data.transforms.pipeline import ImageTransforms

Ints = npt.NDArray[np.int64]
Item = dict[str, Any]
Batch = dict[str, Any]


class FrameValues(Protocol):
    """Values of single frames that are kept outside of the dataset's files."""

    def read(self, frames: Ints, generators: Sequence[torch.Generator]) -> Tensor:
        """Values of frames, (B, ...).

        Args:
            frames: (B,) numbers of the frames in the whole dataset (`Dataset.frame_numbers`).
            generators: one source of chance a sample.
        """
        ...


class CameraFrames(Protocol):
    """Frames of a camera that are kept outside of the dataset's files."""

    def read(self, source: Source, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Frames for (B, K) rows, as `Source.read_camera` gives them; they may be smaller."""
        ...


class Dataset:
    """A view of an opened dataset: some of its episodes, with windows and augmentation.

    Views of one dataset share its columns and decoders (`with_windows`). Made by `open_dataset`.

    Args:
        source: rows, pictures and decoders.
        repo_id: name of the dataset, for messages and checkpoints.
        episodes: episode numbers of this view.
        delta_indices: frame offsets by feature; features that are absent give their single frame.
        image_transforms: augmentation of colour cameras.
        return_uint8: leave colour frames as uint8 instead of float32 in [0, 1].
        skip: features that samples leave out, such as cameras that no policy reads; they are never decoded.
        extra: further values of each sample's frame, by the key that they get in samples.
        kept: decoded frames by camera, which are read instead of the dataset's own files.

    Raises:
        ConfigError: windows or skipped names that do not fit the features.
    """

    def __init__(
        self,
        source: Source,
        *,
        repo_id: str = "",
        episodes: Sequence[int] | Ints,
        delta_indices: Mapping[str, Sequence[int]] | None = None,
        image_transforms: ImageTransforms | None = None,
        return_uint8: bool = False,
        skip: Collection[str] = (),
        extra: Mapping[str, FrameValues] | None = None,
        kept: Mapping[str, CameraFrames] | None = None,
    ) -> None:
        self._source = source
        self._extra = dict(extra or {})
        self._kept = dict(kept or {})
        self.repo_id = repo_id
        self.image_transforms = image_transforms
        self.return_uint8 = return_uint8
        self._windows = check_windows(delta_indices or {}, source.metadata.features)
        self._runs, self._rows = select_rows(source.runs, episodes)
        video_keys = source.metadata.video_keys
        self.skipped = check_skipped(skip, self._windows, source.metadata.features)
        order = [*video_keys, *(key for key in source.metadata.features if key not in video_keys)]
        self._order = [key for key in order if key not in self.skipped]
        self._generator: torch.Generator | None = None

    @property
    def meta(self) -> Metadata:
        """Metadata of the whole dataset."""
        return self._source.metadata

    @property
    def source(self) -> Source:
        """What all views of this dataset share."""
        return self._source

    @property
    def root(self) -> Path:
        """Folder of the dataset."""
        return self.meta.root

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self.meta.fps

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """Features by name, in column order."""
        return self.meta.features

    @property
    def episodes(self) -> list[int]:
        """Episode numbers of this view, in file order."""
        return [int(number) for number in self._source.runs.episode[self._runs]]

    @property
    def num_episodes(self) -> int:
        """Number of episodes in this view."""
        return len(self._runs)

    @property
    def num_frames(self) -> int:
        """Number of frames in this view; also `len`."""
        return len(self._source.rows) if self._rows is None else len(self._rows)

    @property
    def delta_indices(self) -> dict[str, list[int]]:
        """Frame offsets by feature."""
        return {key: deltas.tolist() for key, deltas in self._windows.items()}

    @property
    def backend(self) -> str:
        """Name of the video decoder in use; "none" without videos."""
        return self._source.backend

    @property
    def backend_reason(self) -> str:
        """One sentence on why this decoder was chosen."""
        return self._source.backend_reason

    @property
    def excluded(self) -> list[int]:
        """Episodes that were left out on request when the dataset was opened."""
        return list(self._source.excluded)

    def files_in_use(self) -> list[tuple[Path, float]]:
        """Files that threads are reading at this moment, and for how long [s], the longest first."""
        return self._source.files_in_use()

    def __len__(self) -> int:
        return self.num_frames

    def __iter__(self) -> Iterator[Item]:
        return (self.item(position) for position in range(len(self)))

    @overload
    def __getitem__(self, position: int) -> Item: ...

    @overload
    def __getitem__(self, position: slice) -> list[Item]: ...

    def __getitem__(self, position: int | slice) -> Item | list[Item]:
        """One sample, or a list of samples for a slice; see `item`."""
        if isinstance(position, slice):
            return [self.item(number) for number in range(*position.indices(len(self)))]
        return self.item(position)

    def item(self, position: int, generator: torch.Generator | None = None) -> Item:
        """One sample.

        Args:
            position: position in this view; negative ones count from the end.
            generator: chance for the augmentation; an own one, seeded from torch's seed, without it.

        Returns:
            Video cameras, data columns in features order, `<key>_is_pad` in window order, `task`. Windows add a leading
            time axis, except for video cameras with a window of one (LeRobot's shapes). Numbers are float32, int64
            or bool.

        Raises:
            IndexError: no such position.
            VideoError: a frame cannot be read.
            DatasetFormatError: a picture cannot be read.
        """
        number = position.__index__()
        if not -len(self) <= number < len(self):
            raise IndexError(f"position {number} is outside the dataset's {len(self)} frames")
        rows = self._to_rows(np.asarray([number % len(self)]))
        found = self._gather(rows, [generator or self._own_generator()], with_language=True)
        return {key: value[0] for key, value in found.items()}

    def batch(self, positions: Sequence[int] | Ints, generators: Sequence[torch.Generator] | None = None) -> Batch:
        """Several samples stacked, as the default collation of `item` would.

        Text columns and `task` become lists; language columns are left out, as in LeRobot's collation.

        Args:
            positions: (B,) positions in this view, any order, repeats allowed.
            generators: one source of chance a sample for the augmentation.

        Raises:
            IndexError: a position outside of the view.
            VideoError: a frame cannot be read.
            DatasetFormatError: a picture cannot be read.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        if len(wanted) and not (-len(self) <= wanted.min() and wanted.max() < len(self)):
            raise IndexError(f"positions {wanted.min()}..{wanted.max()} are outside the dataset's {len(self)} frames")
        rows = self._to_rows(wanted % max(len(self), 1))
        return self._gather(rows, generators or [self._own_generator()] * len(rows), with_language=False)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole numeric column of this view, (num_frames, ...); not a copy when the view has all episodes.

        Raises:
            KeyError: not a numeric feature of the dataset.
        """
        values = self._source.rows.columns[name]
        return values if self._rows is None else values[self._rows]

    def episode_bounds(self) -> tuple[Ints, Ints]:
        """First position, and position after the last, of each episode of this view: two arrays (num_episodes,)."""
        ends = np.cumsum(self._source.runs.length[self._runs])
        return ends - self._source.runs.length[self._runs], ends

    def frame_numbers(self, positions: Sequence[int] | Ints | None = None) -> Ints:
        """Numbers of frames in the whole dataset, whichever of its episodes are open: 0 for the first frame of the
        first episode in the table of episodes.

        Args:
            positions: (B,) positions in this view; all without it.
        """
        wanted = np.arange(len(self)) if positions is None else np.asarray(positions, dtype=np.int64)
        return self._source.frame_numbers(self._to_rows(wanted))

    def rows(self, positions: Sequence[int] | Ints) -> Ints:
        """(B,) rows of the source at some positions of this view."""
        return self._to_rows(np.asarray(positions, dtype=np.int64))

    def address(self, position: int) -> FrameAddress:
        """Where a sample lies: episode, frame, data file and row, video files and frames in them."""
        return self._source.address(int(self._to_rows(np.asarray([position]))[0]))

    def with_windows(
        self,
        delta_indices: Mapping[str, Sequence[int]] | None,
        image_transforms: ImageTransforms | None = None,
        episodes: Sequence[int] | None = None,
        *,
        skip: Collection[str] = (),
        extra: Mapping[str, FrameValues] | None = None,
    ) -> Self:
        """Another view of the same dataset, sharing columns and decoders.

        Args:
            delta_indices: frame offsets by feature.
            image_transforms: augmentation; none without it.
            episodes: episode numbers; those of this view without it.
            skip: features that samples of the new view leave out. A skipped camera costs nothing: the usual case is
                a recording with more cameras than the policy reads. What this view skips is not inherited.
            extra: further values of each sample's frame, by key; those of this view are not inherited.

        Raises:
            EpisodeError: an episode that was not opened.
            ConfigError: windows or skipped names that do not fit the features.
        """
        if episodes is not None:
            unknown = sorted(set(episodes) - set(self._source.selected.tolist()))
            if unknown:
                raise EpisodeError(f"episodes {unknown} were not opened with this dataset")
        return type(self)(
            self._source,
            repo_id=self.repo_id,
            episodes=self.episodes if episodes is None else episodes,
            delta_indices=delta_indices,
            image_transforms=image_transforms,
            return_uint8=self.return_uint8,
            skip=skip,
            extra=extra,
            kept=self._kept,
        )

    def with_kept(self, kept: Mapping[str, CameraFrames]) -> Self:
        """The same view, which reads the frames of some cameras from a cache; views made of it do too."""
        view = copy.copy(self)
        view._kept = {**self._kept, **kept}
        return view

    def check_video_lengths(self) -> list[VideoShortfall]:
        """Episodes of this view whose video files are too short or damaged; reads only the files' indices."""
        return check_video_lengths(self._source, self._runs)

    def find_non_finite(self) -> list[NonFinite]:
        """NaN and infinite values in this view, by feature and episode."""
        return find_non_finite(self._source, self._runs)

    def row_faults(self, positions: Sequence[int] | Ints, keys: Collection[str]) -> dict[int, str]:
        """What is not finite in the windows of some samples; looks at the rows in memory only, and decodes nothing.

        Args:
            positions: (B,) positions in this view.
            keys: numeric features that must be finite, such as those that the policy reads.

        Returns:
            For each such sample its place in `positions`, and a sentence with the feature, the frame and the file.
        """
        rows = self._to_rows(np.asarray(positions, dtype=np.int64))
        runs = self._source.runs
        of_row = runs.of_row[rows]
        found: dict[int, str] = {}
        for key in keys:
            finite = self._source.finite_rows(key)
            if finite is None:
                continue
            window = rows[:, None]
            if key in self._windows:
                window = window_rows(rows, self._windows[key], runs.start[of_row], runs.end[of_row])[0]
            is_finite = finite[window]
            for place in np.flatnonzero(~is_finite.all(axis=1)).tolist():
                address = self._source.address(int(window[place, np.argmin(is_finite[place])]))
                found.setdefault(
                    place,
                    f"`{key}` of episode {address.episode}, frame {address.frame} is not finite "
                    f"(row {address.data_row} of `{address.data_file}`)",
                )
        return found

    def close(self) -> None:
        """Close the open video files; reading opens them again."""
        if self._source.reader is not None:
            self._source.reader.close()

    def _to_rows(self, positions: Ints) -> Ints:
        return positions if self._rows is None else self._rows[positions]

    def _own_generator(self) -> torch.Generator:
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(torch.initial_seed())
        return self._generator

    def _gather(self, rows: Ints, generators: Sequence[torch.Generator], *, with_language: bool) -> Batch:
        runs = self._source.runs
        of_row = runs.of_row[rows]
        starts, ends = runs.start[of_row], runs.end[of_row]
        windows = {key: window_rows(rows, deltas, starts, ends) for key, deltas in self._windows.items()}
        found: Batch = {}
        for key in self._order:
            feature = self.features[key]
            window = windows[key][0] if key in windows else None
            if feature.is_camera:
                found[key] = self._frames(key, feature, rows, window, generators)
            elif feature.is_numeric:
                found[key] = torch.from_numpy(self._source.rows.columns[key][rows if window is None else window])
            elif feature.dtype == "string" or with_language:
                texts = self._source.rows.texts[key]
                decode = _decode_language if feature.dtype == "language" else _same
                found[key] = [decode(texts[row].as_py()) for row in rows.tolist()]
        for key, (_, is_pad) in windows.items():
            found[key + PAD_SUFFIX] = torch.from_numpy(is_pad)
        for key, values in self._extra.items():
            found[key] = values.read(self._source.frame_numbers(rows), generators)
        tasks = self.meta.tasks
        found[TASK] = [tasks.get(number, "") for number in self._source.rows.columns[TASK_INDEX][rows].tolist()]
        return found

    def _frames(
        self,
        key: str,
        feature: DatasetFeature,
        rows: Ints,
        window: Ints | None,
        generators: Sequence[torch.Generator],
    ) -> Tensor:
        wanted = rows[:, None] if window is None else window
        kept = self._kept.get(key)
        pictures = self._source.read_camera(key, wanted) if kept is None else kept.read(self._source, key, wanted)
        # LeRobot drops the time axis of a video window of one frame, but not that of pictures in data files.
        if window is None or (feature.dtype == "video" and pictures.shape[1] == 1):
            pictures = pictures[:, 0]
        frames = torch.from_numpy(pictures)
        if feature.is_depth:
            return frames
        if not self.return_uint8:
            frames = frames.to(torch.float32).div_(255.0)
        if self.image_transforms is None:
            return frames
        augmented = [
            self.image_transforms(frame, generator) for frame, generator in zip(frames, generators, strict=True)
        ]
        return torch.stack(augmented)


def _same(value: Any) -> Any:
    return value


def _decode_language(messages: Any) -> list[dict[str, Any]]:
    """Messages as dictionaries, their tool calls decoded from JSON (spec/dataset.md 17)."""
    decoded = []
    try:
        for message in messages or []:
            message = dict(message)
            if message.get("tool_calls") is not None:
                message["tool_calls"] = [
                    json.loads(call) if isinstance(call, (str, bytes)) else call for call in message["tool_calls"]
                ]
            decoded.append(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise DatasetFormatError(f"a language column holds {messages!r:.120}, which cannot be read: {error}") from error
    return decoded
