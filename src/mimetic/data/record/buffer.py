"""The episode in progress: its rows in memory, its pictures on their way to the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.features import DatasetFeature
from mimetic.data.record.frame_check import CheckedFrame
from mimetic.data.record.messages import EVENTS, PERSISTENT
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP


@dataclass
class EpisodeBuffer:
    """Rows of the episode in progress.

    Args:
        tasks: instruction of each frame.
        numbers: values by feature.
        texts: strings by feature.
        events: language events of each frame.
        persistent: language messages that hold from their time on.
        loop_s: measured time of each frame [s].
        camera_s: measured time of each picture by camera [s]; NaN where none was given.
        has_clocks: whether the caller gave the times.
    """

    tasks: list[str] = field(default_factory=list)
    numbers: dict[str, list[npt.NDArray[Any]]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    events: list[list[dict[str, Any]]] = field(default_factory=list)
    persistent: list[dict[str, Any]] = field(default_factory=list)
    loop_s: list[float] = field(default_factory=list)
    camera_s: dict[str, list[float]] = field(default_factory=dict)
    has_clocks: bool = False

    def __len__(self) -> int:
        return len(self.tasks)

    def add(self, frame: CheckedFrame, *, fps: int, loop_s: float, camera_s: Mapping[str, float]) -> None:
        """Append a frame; its pictures go elsewhere."""
        time_s = len(self.tasks) / fps
        for name, value in frame.numbers.items():
            self.numbers.setdefault(name, []).append(value)
        for name, text in frame.texts.items():
            self.texts.setdefault(name, []).append(text)
        self.events.append(frame.messages.get(EVENTS, []))
        for message in frame.messages.get(PERSISTENT, []):
            self.persistent.append(message if message["timestamp"] is not None else {**message, "timestamp": time_s})
        for camera in camera_s:
            self.camera_s.setdefault(camera, [float("nan")] * len(self.tasks))
        for camera, times in self.camera_s.items():
            times.append(float(camera_s.get(camera, float("nan"))))
        self.loop_s.append(loop_s)
        self.tasks.append(frame.task)

    def columns(
        self,
        features: Mapping[str, DatasetFeature],
        *,
        episode: int,
        first_index: int,
        fps: int,
        task_index: Mapping[str, int],
    ) -> dict[str, Any]:
        """All columns but the pictures, in the form of `store.schema.episode_table`.

        Args:
            features: all features.
            episode: number of the episode.
            first_index: `index` of its first frame.
            fps: frame rate [Hz].
            task_index: number of each instruction.
        """
        n_frames = len(self)
        frame = np.arange(n_frames, dtype=np.int64)
        columns: dict[str, Any] = {name: np.stack(values) for name, values in self.numbers.items()}
        columns |= self.texts
        columns[TIMESTAMP] = (frame / fps).astype(np.float32)
        columns[FRAME_INDEX] = frame
        columns[EPISODE_INDEX] = np.full(n_frames, episode, dtype=np.int64)
        columns[INDEX] = frame + first_index
        columns[TASK_INDEX] = np.asarray([task_index[task] for task in self.tasks], dtype=np.int64)
        if PERSISTENT in features:
            columns[PERSISTENT] = [self.persistent] * n_frames
        if EVENTS in features:
            columns[EVENTS] = self.events
        return columns
