"""What an edit will make: output episodes as cuts of source episodes, and the files that hold them.

Every operation is a plan; one executor (`build.py`) carries all of them out, so that numbering, statistics,
verification and the swap are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.edit.source import EditSource
from mimetic.data.encoding.config import DepthEncoderConfig, RgbEncoderConfig
from mimetic.data.features import DatasetFeature, parse_features
from mimetic.data.store.episode_rows import VideoPlace
from mimetic.names import DEFAULT_FEATURES

TaskRule = Callable[[int, str], str]
"""(source episode, its task) -> the task that its frames get."""
EncoderSettings = RgbEncoderConfig | DepthEncoderConfig


@dataclass(frozen=True, kw_only=True)
class Cut:
    """One output episode: frames of a source episode.

    Args:
        source: position of the source dataset.
        episode: its number there.
        start: first frame.
        stop: frame after the last.
    """

    source: int
    episode: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Frames."""
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One data file of the output.

    Args:
        chunk: chunk folder.
        file: number.
        episodes: output episodes in it, consecutive.
    """

    chunk: int
    file: int
    episodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive frames of one source video (or, with `episode`, of one source episode's pictures).

    Args:
        path: video file, or data file of pictures.
        first: first frame in the file, or first row.
        count: frames.
        where: episode for messages.
    """

    path: Path
    first: int
    count: int
    where: str = ""


@dataclass(frozen=True, kw_only=True)
class VideoFile:
    """One video file of the output.

    Args:
        key: camera, by its output name.
        chunk: chunk folder.
        file: number.
        pieces: what it shows, in order.
        episodes: output episodes in it, in order; their frames follow each other without holes.
        method: "link", "copy", "cut" or "encode", see `video_task`.
        reason: why it must be encoded; empty otherwise.
        encoded_frames: frames that will be encoded again.
    """

    key: str
    chunk: int
    file: int
    pieces: tuple[Piece, ...]
    episodes: tuple[int, ...]
    method: str = "link"
    reason: str = ""
    encoded_frames: int = 0

    @property
    def frames(self) -> int:
        """Frames of the file."""
        return sum(piece.count for piece in self.pieces)


@dataclass(frozen=True, kw_only=True)
class Camera:
    """A video camera of the output.

    Args:
        source_key: its name in the source.
        from_pictures: whether the source keeps pictures in its data files.
        settings: encode everything with these; None keeps the stream.
        pictures_key: column of the pictures.
    """

    source_key: str
    from_pictures: bool = False
    settings: EncoderSettings | None = None


@dataclass(kw_only=True)
class Plan:
    """Everything about the output before it is made.

    Args:
        operation: name of the operation, for messages.
        sources: datasets that are read.
        cuts: output episodes in order.
        features: declarations of info.json by output name, in column order.
        columns: output column -> source column; features that are absent are `added` or videos.
        cameras: video cameras of the output.
        added: values of new columns over all output frames.
        task_rule: what becomes of each task.
        sort_tasks: number tasks alphabetically instead of by their old numbers.
        data_files: files of rows.
        video_files: files of videos.
        raw_info: what info.json keeps, unknown keys included.
        recompute_cameras: look at the pictures again instead of carrying camera statistics over.
        relative_action: settings of relative action statistics, or None.
        notes: decisions that the user should hear of.
    """

    operation: str
    sources: Sequence[EditSource]
    cuts: list[Cut]
    features: dict[str, dict[str, Any]]
    columns: dict[str, str]
    cameras: dict[str, Camera]
    added: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    task_rule: TaskRule | None = None
    sort_tasks: bool = False
    data_files: list[DataFile] = field(default_factory=list)
    video_files: list[VideoFile] = field(default_factory=list)
    raw_info: dict[str, Any] = field(default_factory=dict)
    recompute_cameras: bool = False
    relative_action: Any = None
    notes: list[str] = field(default_factory=list)

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self.sources[0].fps

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """(episodes + 1,) first frame of each output episode, and the number of frames."""
        return np.cumsum([0, *(cut.length for cut in self.cuts)], dtype=np.int64)

    @property
    def n_frames(self) -> int:
        """Frames of the output."""
        return sum(cut.length for cut in self.cuts)

    @property
    def keeps_rows(self) -> bool:
        """Whether the data files stay byte for byte."""
        is_whole = all(cut.source == 0 and cut.length == self.row(cut).length for cut in self.cuts)
        source = self.sources[0]
        return (
            len(self.sources) == 1
            and is_whole
            and [cut.episode for cut in self.cuts] == list(range(len(source.episodes)))
            and not self.added
            and self.task_rule is None
            and all(name == origin for name, origin in self.columns.items())
            and len(self.columns) == sum(feature.dtype != "video" for feature in source.features.values())
            and {name: entry["dtype"] for name, entry in self.features.items()}
            == {name: feature.dtype for name, feature in source.features.items()}
            and len(self.data_files) == len(source.data_files)
            and _is_in_order(source)
        )

    def declared(self, key: str) -> DatasetFeature:
        """A feature of the output."""
        return parse_features({key: self.features[key]}, where="the plan")[key]

    def row(self, cut: Cut) -> Any:
        """The row of the source's table of episodes."""
        return self.sources[cut.source].episodes[cut.episode]

    def is_whole(self, cut: Cut) -> bool:
        """Whether the output episode is a whole source episode."""
        return cut.start == 0 and cut.stop == self.row(cut).length

    def tasks(self) -> tuple[list[str], list[dict[int, int]]]:
        """Task strings of the output by number, and for each output episode: source task_index -> output task_index."""
        wanted: list[dict[int, str]] = []
        order: dict[str, None] = {}
        for number, source in enumerate(self.sources):  # union in the order of the sources' own tables
            used: set[str] = set()
            for cut in self.cuts:
                if cut.source == number:
                    used.update(self._mapped(cut).values())
            in_table = [text for text in source.metadata.tasks.values() if text in used]
            order.update(dict.fromkeys([*in_table, *sorted(used - set(in_table))]))
        texts = sorted(order) if self.sort_tasks else list(order)
        numbers = {text: place for place, text in enumerate(texts)}
        for cut in self.cuts:
            wanted.append(self._mapped(cut))
        return texts, [{old: numbers[text] for old, text in mapping.items()} for mapping in wanted]

    def tasks_of(self, cut: Cut) -> npt.NDArray[np.int64]:
        """(frames,) task_index of an output episode's frames, in the source's numbers."""
        return self.sources[cut.source].tasks_of[cut.episode][cut.start : cut.stop]

    def _mapped(self, cut: Cut) -> dict[int, str]:
        tasks = self.sources[cut.source].metadata.tasks
        used = [int(number) for number in dict.fromkeys(self.tasks_of(cut).tolist())]
        rule = self.task_rule
        return {number: tasks[number] if rule is None else rule(cut.episode, tasks[number]) for number in used}


def _is_in_order(source: EditSource) -> bool:
    """Whether a source needs no renumbering: its rows lie in the order of the episodes and its numbers fit."""
    at = 0
    for row in source.episodes.values():
        if row.from_index != at or not source.is_numbered:
            return False
        at += row.length
    tasks = list(source.metadata.tasks)
    used = {int(number) for numbers in source.tasks_of.values() for number in np.unique(numbers)}
    places = [(place.path, place.start) for place in source.rows.values()]
    return tasks == list(range(len(tasks))) and used == set(tasks) and places == sorted(places)


def keep_all(source: EditSource, operation: str) -> Plan:
    """The plan that changes nothing of one dataset; operations start from it.

    Args:
        source: the dataset.
        operation: name for messages.
    """
    raw = source.raw_info
    features = {name: _plain(raw["features"][name]) for name in source.features}
    plan = Plan(
        operation=operation,
        sources=[source],
        cuts=[Cut(source=0, episode=number, start=0, stop=row.length) for number, row in source.episodes.items()],
        features=features,
        columns={name: name for name, feature in source.features.items() if feature.dtype != "video"},
        cameras={
            name: Camera(source_key=name) for name, feature in source.features.items() if feature.dtype == "video"
        },
        raw_info={key: value for key, value in raw.items() if key != "features"},
    )
    return plan


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, Mapping) else value for key, value in entry.items()}


def lay_out(plan: Plan) -> None:
    """Group the episodes of a plan of one source into files: rows and frames stay in the files that held them.

    File numbers are kept, so that a file without episodes leaves a hole in the numbers, as LeRobot's editor does it.
    Rows must come in the order of the episodes; where the source's do not, files are numbered anew.
    """
    source = plan.sources[0]
    places = [source.rows[cut.episode] for cut in plan.cuts]
    plan.data_files = [
        DataFile(chunk=chunk, file=file, episodes=tuple(episodes))
        for (chunk, file), episodes in _grouped([(place.chunk, place.file) for place in places])
    ]
    plan.video_files = []
    for key, camera in plan.cameras.items():
        if camera.from_pictures:
            continue
        spans = [source.frames(camera.source_key, cut.episode) for cut in plan.cuts]
        groups: dict[tuple[int, int], list[int]] = {}
        for number, span in enumerate(spans):
            groups.setdefault((span.chunk, span.file), []).append(number)
        for (chunk, file), episodes in groups.items():
            pieces = [
                Piece(path=spans[n].path, first=spans[n].first + plan.cuts[n].start, count=plan.cuts[n].length)
                for n in episodes
            ]
            plan.video_files.append(
                VideoFile(key=key, chunk=chunk, file=file, pieces=coalesce(pieces), episodes=tuple(episodes))
            )


def _grouped(keys: Sequence[tuple[int, int]]) -> list[tuple[tuple[int, int], list[int]]]:
    """Runs of equal keys; numbered anew from (0, 0) when a file would come twice or out of order."""
    runs: list[tuple[tuple[int, int], list[int]]] = []
    for number, key in enumerate(keys):
        if runs and runs[-1][0] == key:
            runs[-1][1].append(number)
        else:
            runs.append((key, [number]))
    names = [key for key, _ in runs]
    if names != sorted(set(names)):
        runs = [((0, place), episodes) for place, (_, episodes) in enumerate(runs)]
    return runs


def coalesce(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join pieces that follow each other in the same file."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.path == piece.path and last.first + last.count == piece.first and not piece.where:
            joined[-1] = replace(last, count=last.count + piece.count)
        else:
            joined.append(piece)
    return tuple(joined)


def video_places(plan: Plan) -> list[dict[str, VideoPlace]]:
    """Where each output episode is in each camera's files: times on the frame grid (spec/dataset.md 20.23)."""
    places: list[dict[str, VideoPlace]] = [{} for _ in plan.cuts]
    for video in plan.video_files:
        at = 0
        for number in video.episodes:
            length = plan.cuts[number].length
            places[number][video.key] = VideoPlace(
                chunk=video.chunk, file=video.file, from_s=at / plan.fps, to_s=(at + length) / plan.fps
            )
            at += length
    order = list(plan.cameras)
    return [{key: found[key] for key in order} for found in places]


def own_names(plan: Plan) -> list[str]:
    """Output features without the five default ones."""
    return [name for name in plan.features if name not in DEFAULT_FEATURES]
