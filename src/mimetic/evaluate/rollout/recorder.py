"""An evaluation as a dataset: `--eval.recording=true`, in LeRobot's folders `recordings/<group>_<task id>`.

Episode k of the dataset is episode k of the evaluation. Episodes that run at once end in any order; each waits on the
disk for its turn. An episode is saved before the journal takes it, so that what the journal names is in the dataset;
one that a kill left in the dataset alone is played again, which gives the same, and is not saved twice.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.data.features import DatasetFeature
from mimetic.data.record.journal import WORK_DIR
from mimetic.data.store.atomic import read_json, write_json
from mimetic.data.writer import DatasetWriter
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.environment import EnvTask
from mimetic.evaluate.rollout.play import Episode
from mimetic.names import ACTION, DONE, INFO_JSON, REWARD, SIMULATION_JSON, SUCCESS

logger = logging.getLogger(__name__)
RECORDINGS = "recordings"
OUTCOMES = {
    REWARD: {"dtype": "float32", "shape": (1,), "names": None},
    SUCCESS: {"dtype": "bool", "shape": (1,), "names": None},
    DONE: {"dtype": "bool", "shape": (1,), "names": None},
}
"""What a recording has beside observations and actions, as LeRobot's."""


class Take:
    """What one episode showed and did, tick by tick; its pictures wait in a file without a name.

    Args:
        folder: on whose disk the pictures wait.
        features: of the environment.
    """

    def __init__(self, folder: Path, features: Mapping[str, DatasetFeature]) -> None:
        self._cameras = [key for key, feature in features.items() if feature.is_camera]
        self._rest = [key for key, feature in features.items() if not feature.is_camera and key != ACTION]
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open from the first tick to the last
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._rows: list[dict[str, Any]] = []

    def add(self, observation: Mapping[str, NDArray[Any]], action: NDArray[np.float64]) -> None:
        """Take the next tick: what was observed (of this episode alone), and the action (A,) that was then sent."""
        for camera in self._cameras:
            picture = np.ascontiguousarray(observation[camera])
            self._shapes[camera] = picture.shape
            self._file.write(picture.tobytes())
        row = {key: np.array(observation[key], dtype=np.float32) for key in self._rest}
        self._rows.append(row | {ACTION: np.array(action, dtype=np.float32)})

    def outcome(self, reward: float, *, done: bool, success: bool) -> None:
        """What the action of the last tick led to."""
        self._rows[-1] |= {
            REWARD: np.array([reward], dtype=np.float32),
            DONE: np.array([done]),
            SUCCESS: np.array([success]),
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """The ticks, from the first to the last."""
        self._file.seek(0)
        for row in self._rows:
            pictures = {}
            for camera in self._cameras:
                shape = self._shapes[camera]
                data = self._file.read(int(np.prod(shape)))
                pictures[camera] = np.frombuffer(data, dtype=np.uint8).reshape(shape)
            yield {**row, **pictures}

    def close(self) -> None:
        """Give back the disk."""
        self._file.close()


class Recorder:
    """Records the episodes of one task; made for one call of `play`, and closed after it.

    Args:
        folder: of the evaluation.
        task: what is played.
        origin: further facts about the recording, as plain values.
        n_known: episodes that the journal names already.
    """

    def __init__(self, folder: Path, task: EnvTask, origin: Mapping[str, Any], n_known: int) -> None:
        self.root = recording_folder(folder, task)
        self._task, self._origin, self._n_known = task, dict(origin), n_known
        self._writer: DatasetWriter | None = None
        self._takes: dict[int, Take] = {}
        self._waiting: dict[int, Episode] = {}
        self._next = n_known
        self._described: dict[str, Any] = {}

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for take in self._takes.values():
            take.close()
        self._takes.clear()
        if self._writer is None and (self.root / WORK_DIR).exists() and error is None:
            self._open()  # all was saved, and a kill came before it was packed
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
            self._writer = None

    def describe(self, description: Mapping[str, Any]) -> None:
        """Take note of what the environment says about itself."""
        self._described = dict(description)

    def begin(self, episode: int) -> Take:
        """The take of an episode that begins."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self._takes[episode] = Take(self.root.parent, self._task.features)
        return self._takes[episode]

    def save(self, ended: Episode) -> Iterator[Episode]:
        """Save what can be saved now that an episode has ended: it, or those that waited for it, in order."""
        self._waiting[ended.episode] = ended
        while self._next in self._waiting:
            episode = self._waiting.pop(self._next)
            take = self._takes.pop(self._next)
            with contextlib.closing(take):
                self._save(episode, take)
            self._next += 1
            yield episode

    def _save(self, episode: Episode, take: Take) -> None:
        writer = self._writer or self._open()
        if episode.episode < writer.num_episodes:
            logger.info("episode %d is in the recording already", episode.episode)
            return
        # First: an entry too many is dropped when the evaluation goes on, one too few could not be filled in.
        side = self._side(writer.num_episodes)
        side["episodes"].append(
            {"seed": episode.seed, "task": episode.task, "success": episode.success, "length": episode.length}
        )
        write_json(self.root / SIMULATION_JSON, side)
        for number, row in enumerate(take.rows()):
            writer.add_frame(row, episode.instruction or episode.task, clock_s=number / self._task.fps)
        writer.save_episode()

    def _open(self) -> DatasetWriter:
        features = {
            key: {"dtype": feature.dtype, "shape": tuple(feature.shape), "names": feature.names}
            for key, feature in self._task.features.items()
        } | OUTCOMES
        name = f"local/{self._task.folder}"
        if (self.root / INFO_JSON).is_file():
            writer = DatasetWriter.resume(name, self.root, fps=self._task.fps, features=features, live=False)
        else:
            writer = DatasetWriter.create(
                name, self._task.fps, features, self.root, robot_type=self._task.robot_type, live=False
            )
        self._writer = writer
        if writer.num_episodes < self._n_known:
            raise ConfigError(
                f"{self.root} has {writer.num_episodes} episodes, and the evaluation has finished {self._n_known}",
                "the recording was changed; begin a new evaluation in another `--output_dir`",
            )
        return writer

    def _side(self, n_episodes: int) -> dict[str, Any]:
        path = self.root / SIMULATION_JSON
        known = list(read_json(path)["episodes"])[:n_episodes] if path.is_file() else []
        return {
            "format": "mimetic recorded evaluation",
            "format_version": 1,
            **self._described,
            **self._origin,
            "episodes": known,
        }


def recording_folder(folder: Path, task: EnvTask) -> Path:
    """Where a task is recorded: LeRobot's place."""
    return folder / RECORDINGS / task.folder


def in_order(recorder: Recorder | None, episodes: Iterator[Episode]) -> Iterator[Episode]:
    """Episodes as they are to be counted: as they end, or as they are saved."""
    for episode in episodes:
        if recorder is None:
            yield episode
        else:
            yield from recorder.save(episode)
