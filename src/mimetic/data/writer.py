"""Writes LeRobotDataset v3.0, episode by episode, so that nothing that was saved can be lost.

    with DatasetWriter.create("me/pick", fps=30, features=features) as writer:
        while recording:
            writer.add_frame({**observation, "action": action, "task": "pick up the cube"})
        writer.save_episode()

After every `save_episode` the folder is a complete dataset that LeRobot 0.6.1 reads. A kill or a power cut loses the
episode in progress and nothing else; opening the dataset again removes what was left of it and says so.
"""

from __future__ import annotations

import atexit
import logging
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.features import DatasetFeature
from mimetic.data.layout import require_dataset
from mimetic.data.record.buffer import EpisodeBuffer
from mimetic.data.record.clocks import EpisodeClocks
from mimetic.data.record.config import WriterConfig
from mimetic.data.record.declare import declare
from mimetic.data.record.encoders import continued_encoders, new_encoders, try_encoders
from mimetic.data.record.frame_check import CheckedFrame, FrameCheck, Picture
from mimetic.data.record.journal import WorkFolder, finish
from mimetic.data.record.pack import pack
from mimetic.data.record.places import dataset_folder, make_room
from mimetic.data.record.rate import RateReport, is_live, judge_rate, report_episode
from mimetic.data.record.salvage.dataset import salvage_into
from mimetic.data.record.sinks import ByteBudget, PictureEncoders, PictureFiles, Sink, SinkResult, VideoTarget
from mimetic.data.record.stage import Staged, stage_episode
from mimetic.data.record.state import DatasetState, mismatches, new_state, read_state
from mimetic.data.record.totals import empty_pictures
from mimetic.data.store.atomic import write_json
from mimetic.data.store.tables import DATA_FILES_SIZE_IN_MB, VIDEO_FILES_SIZE_IN_MB, new_info
from mimetic.errors import ConfigError, DatasetError, MimeticError
from mimetic.names import INFO_JSON

logger = logging.getLogger(__name__)

_open: weakref.WeakSet[DatasetWriter] = weakref.WeakSet()


@atexit.register
def _stop_encoders() -> None:
    """End the threads of writers that nobody closed, before the interpreter takes away what they stand on."""
    for writer in list(_open):
        writer._stop()


@dataclass(frozen=True, kw_only=True)
class SavedEpisode:
    """What `save_episode` stored.

    Args:
        episode_index: its number.
        length: frames.
        rate: the measured rate; None when nothing was measured.
        repeated: frames by camera that show the picture before, because the queue was full.
        seconds: time that saving took [s].
    """

    episode_index: int
    length: int
    rate: RateReport | None
    repeated: Mapping[str, list[int]]
    seconds: float


class DatasetWriter:
    """Records one dataset; made by `create` or `resume`. Used by one thread.

    As a context it finalizes at the end of the block; an exception inside discards the episode in progress only.
    """

    def __init__(
        self,
        folder: WorkFolder,
        state: DatasetState,
        settings: WriterConfig,
        *,
        live: bool,
        clock: Callable[[], float],
    ) -> None:
        self._folder = folder
        self._state = state
        self._settings = settings
        self._live = live
        self._clock = clock
        self._check = FrameCheck(state.declared.own, state.depth_units)
        self._budget = ByteBudget(settings.queue_mb << 20)
        self._picture_encoders = PictureEncoders()
        self._buffer = EpisodeBuffer()
        self._sinks: dict[str, Sink] = {}
        self._is_open = True
        _open.add(self)
        self.recovered: list[str] = []
        """What `resume` completed or removed before it began, one sentence each."""

    @classmethod
    def create(
        cls,
        repo_id: str,
        fps: int,
        features: Mapping[str, Mapping[str, Any]],
        root: Path | str | None = None,
        *,
        robot_type: str | None = None,
        use_videos: bool = True,
        settings: WriterConfig | None = None,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> DatasetWriter:
        """Begin a new dataset.

        Args:
            repo_id: its name, such as `user/so101_pick`.
            fps: frame rate [Hz], a whole number.
            features: dtype, shape, names by name, as LeRobot declares them; the default ones are added.
            root: its folder, which must not exist; default `$HF_LEROBOT_HOME/<repo_id>`.
            robot_type: free text.
            use_videos: false for datasets that keep pictures in the data files (dtype `image`).
            settings: encoders, queue and file sizes.
            live: frames come from a loop in real time, whose rate is measured and compared with `fps`.
            clock: monotonic seconds.

        Raises:
            DatasetError: the folder exists, or features cannot be used; nothing was made then.
            ConfigError: settings that are wrong or that this FFmpeg cannot follow; nothing was made then.
        """
        folder = dataset_folder(repo_id, root)
        settings = settings or WriterConfig()
        _require(settings)
        if isinstance(fps, bool) or fps != int(fps) or fps < 1:
            raise DatasetError(f"`fps={fps}` must be a positive whole number")
        declared = declare(features, use_videos=use_videos)
        encoders = new_encoders(declared, settings)
        try_encoders(declared, encoders, int(fps), settings)
        make_room(folder)
        raw_info = new_info(
            fps=int(fps),
            features=declared.raw,
            robot_type=robot_type,
            use_videos=use_videos and bool(declared.video_keys),
            data_files_size_in_mb=settings.data_files_size_in_mb or DATA_FILES_SIZE_IN_MB,
            video_files_size_in_mb=settings.video_files_size_in_mb or VIDEO_FILES_SIZE_IN_MB,
        )
        folder.mkdir(parents=True)
        try:
            work = WorkFolder(folder)
            info = work.file("info.json")
            write_json(info, raw_info)
            work.commit("the dataset was begun", [(info, folder / INFO_JSON)])
        except OSError as error:
            make_room(folder)
            raise DatasetError(f"`{folder}` cannot be written: {error.strerror or error}") from error
        return cls(work, new_state(folder, raw_info, declared, encoders), settings, live=live, clock=clock)

    @classmethod
    def resume(
        cls,
        repo_id: str,
        root: Path | str | None = None,
        *,
        fps: int | None = None,
        features: Mapping[str, Mapping[str, Any]] | None = None,
        robot_type: str | None = None,
        settings: WriterConfig | None = None,
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> DatasetWriter:
        """Continue a dataset; what an interrupted recording left is completed or removed first (`recovered`).

        Args:
            repo_id: its name.
            root: its folder; default `$HF_LEROBOT_HOME/<repo_id>`.
            fps: rate of this recording [Hz]; compared with the dataset's when given, like the next two.
            features: features of this recording.
            robot_type: robot of this recording.
            settings: as for `create`; without encoders the dataset's own are used.
            live: as for `create`.
            clock: as for `create`.

        Raises:
            DatasetError: the recording differs from the dataset (all differences are listed), another process records
                into it, or its files contradict each other.
            DatasetNotFound: there is no dataset.
        """
        folder = dataset_folder(repo_id, root)
        settings = settings or WriterConfig()
        _require(settings)
        require_dataset(folder)
        work = WorkFolder(folder)
        try:
            recovered = finish(work)
        except BaseException:
            work.close(remove=False)
            raise
        try:
            recovered += salvage_into(work)
            for sentence in recovered:
                logger.warning("%s: %s", folder, sentence)
            state = read_state(folder)
            problems = mismatches(state, fps=fps, features=features, robot_type=robot_type)
            encoders, encoder_problems = continued_encoders(state, settings)
            problems += encoder_problems
            if problems:
                raise DatasetError(
                    f"the recording does not fit the dataset at `{folder}`: {'; '.join(problems)}",
                    "record into a new dataset; two that differ can be trained on together, or merged after an edit",
                )
            try_encoders(state.declared, encoders, state.fps, settings)
        except BaseException:
            work.close(remove=True)
            raise
        state = replace(state, encoders=encoders, raw_info=_with_limits(state.raw_info, settings))
        writer = cls(work, state, settings, live=live, clock=clock)
        writer.recovered = recovered
        return writer

    @property
    def root(self) -> Path:
        """Folder of the dataset."""
        return self._state.root

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self._state.fps

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """All features in column order."""
        return self._state.features

    @property
    def encoders(self) -> Mapping[str, EncoderConfig]:
        """Encoder of each video camera."""
        return self._state.encoders

    @property
    def num_episodes(self) -> int:
        """Episodes that are saved."""
        return len(self._state.rows)

    @property
    def num_frames(self) -> int:
        """Frames of the saved episodes."""
        return self._state.n_frames

    @property
    def num_pending_frames(self) -> int:
        """Frames of the episode in progress."""
        return len(self._buffer)

    def has_pending_frames(self) -> bool:
        """Whether an episode is in progress."""
        return bool(len(self._buffer))

    def add_frame(
        self,
        frame: Mapping[str, Any],
        task: str | None = None,
        *,
        clock_s: float | None = None,
        camera_clocks_s: Mapping[str, float] | None = None,
    ) -> None:
        """Add a frame to the episode in progress.

        Args:
            frame: value of every feature that is not a default one, and `task` unless it is given apart. Pictures:
                (H, W, 3) or (3, H, W), uint8 or floats in 0..1 (rounded to the nearest of 256 steps); depth: uint16
                [mm] or float32 [m]. The caller may use its memory again.
            task: the instruction.
            clock_s: when the loop took the frame, on a monotonic clock [s]; default: now.
            camera_clocks_s: when each camera took its picture, on the same clock [s].

        Raises:
            DatasetError: the frame does not fit (everything that is wrong is named, and nothing of it was kept), or an
                encoder has failed.
        """
        self._require_open()
        now = self._clock() if clock_s is None else float(clock_s)
        unknown = [camera for camera in camera_clocks_s or () if camera not in self._state.declared.cameras]
        if unknown:
            raise DatasetError(f"`camera_clocks_s` names {', '.join(unknown)}, which are not cameras of the dataset")
        checked = self._check(frame, task)
        for sink in self._sinks.values():
            sink.require_sound()
        if checked.pictures and not self._sinks:
            self._sinks = self._open_sinks(checked)
        self._add_pictures(checked)
        self._buffer.has_clocks |= clock_s is not None
        self._buffer.add(checked, fps=self.fps, loop_s=now, camera_s=camera_clocks_s or {})

    def save_episode(self) -> SavedEpisode:
        """Make the episode in progress part of the dataset.

        When it fails, everything that was saved before is intact and the episode is still there: free the disk and call
        it again, or `discard_episode`.

        Raises:
            DatasetError: there are no frames, pictures are missing, or the disk is full.
        """
        self._require_open()
        if not len(self._buffer):
            raise DatasetError("the episode has no frame, so there is nothing to save", "add frames first")
        start = time.monotonic()
        number, length = self.num_episodes, len(self._buffer)
        try:
            results = {camera: sink.finish() for camera, sink in self._sinks.items()}
            clocks = self._clocks(results)
            staged = stage_episode(
                self._folder, self._state, self._buffer, results, depth_units=self._check.depth_units, clocks=clocks
            )
            self._commit(f"episode {number} was saved", staged)
        except MimeticError:
            raise
        except (OSError, ValueError, MemoryError) as error:  # pyarrow and Pillow say ValueError, too
            raise DatasetError(
                f"episode {number} could not be saved: {getattr(error, 'strerror', None) or error}",
                "everything that was saved before is intact, and this episode is still here: make room on the disk and "
                "save it again, or discard it",
            ) from error
        saved = SavedEpisode(
            episode_index=number,
            length=length,
            rate=clocks.rate if clocks is not None else None,
            repeated={camera: result.repeated for camera, result in results.items() if result.repeated},
            seconds=time.monotonic() - start,
        )
        report_episode(saved.episode_index, saved.rate, saved.repeated, sum(one.waited_s for one in results.values()))
        return saved

    def _commit(self, what: str, staged: Staged) -> None:
        """Commit an episode; afterwards the state is that of the disk, however the commit ended."""
        self._folder.has_committed = False
        try:
            self._folder.commit(what, staged.renames)
        finally:
            if self._folder.has_committed:
                self._state = staged.state
                self._end_episode()
            if self._folder.is_unfinished:
                self._close(remove=False)

    def discard_episode(self) -> int:
        """Forget the episode in progress; returns how many frames it had."""
        self._require_open()
        n_frames = len(self._buffer)
        self._stop()
        self._end_episode()
        return n_frames

    def finalize(self, *, progress: Callable[[str], None] = lambda text: None) -> None:
        """Pack the episodes into files of the dataset's size limits and give the dataset free; may be called again.

        An episode in progress is discarded with a warning. When packing fails, the dataset stays as it is, complete in
        many small files, and the reason is logged.

        Args:
            progress: called with what is being done.
        """
        if not self._is_open:
            return
        if self._buffer:
            logger.warning("%d frames of an episode that was not saved are discarded", len(self._buffer))
        self.discard_episode()
        self._picture_encoders.close()
        try:
            self._state = pack(self._folder, self._state, progress=progress)
        except (MimeticError, OSError, ValueError) as error:
            logger.warning(
                "%s: every episode is saved, but they could not be packed into larger files: %s", self.root, error
            )
        self._close(remove=True)

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._is_open:
            n_frames = self.discard_episode()
            if n_frames:
                logger.warning(
                    "%d frames of the episode in progress are discarded: %s", n_frames, kind and kind.__name__
                )
        self.finalize()

    def _open_sinks(self, checked: CheckedFrame) -> dict[str, Sink]:
        sinks: dict[str, Sink] = {}
        try:
            for number, (camera, picture) in enumerate(checked.pictures.items()):
                feature = self.features[camera]
                statistics = empty_pictures(feature, self._check.depth_units.get(camera))
                is_video = feature.dtype == "video"
                sinks[camera] = Sink(
                    camera,
                    self._video(number, camera, picture)
                    if is_video
                    else PictureFiles(self._folder.file(f"camera-{number}.pictures")),
                    statistics,
                    self._budget,
                    overflow="repeat" if self._settings.on_overflow == "repeat" else "block",
                    prepare=None if is_video else self._picture_encoders,
                )
        except BaseException as error:
            for sink in sinks.values():
                sink.abort()
            if isinstance(error, OSError) and not isinstance(error, MimeticError):
                raise DatasetError(
                    f"a working file in `{self._folder.path}` cannot be made: {error.strerror or error}",
                    "everything that was saved before is intact: see to the disk and go on",
                ) from error
            raise
        return sinks

    def _add_pictures(self, checked: CheckedFrame) -> None:
        """Hand the pictures of a frame to their sinks: all of them, also when waiting for room is interrupted."""
        reserved: dict[str, int] = {}
        try:
            for camera, picture in checked.pictures.items():
                reserved[camera] = self._sinks[camera].reserve(picture)
        except BaseException:
            for camera, n_bytes in reserved.items():
                self._sinks[camera].cancel(n_bytes)
            raise
        for camera, picture in checked.pictures.items():
            self._sinks[camera].add(picture, reserved[camera])

    def _video(self, number: int, camera: str, picture: Picture) -> VideoTarget:
        return VideoTarget(
            self._folder.file(f"camera-{number}.mp4"),
            fps=self.fps,
            height=picture.shape[0],
            width=picture.shape[1],
            settings=self._state.encoders[camera],
            threads=self._settings.encoder_threads,
        )

    def _clocks(self, results: Mapping[str, SinkResult]) -> EpisodeClocks | None:
        """The measured times, where there are any that mean something."""
        buffer = self._buffer
        is_measured = buffer.has_clocks or bool(buffer.camera_s) or (self._live and is_live(buffer.loop_s, self.fps))
        repeated = {camera: result.repeated for camera, result in results.items() if result.repeated}
        if not is_measured and not repeated:
            return None
        return EpisodeClocks(
            episode=self.num_episodes,
            loop_s=buffer.loop_s,
            cameras=buffer.camera_s,
            rate=judge_rate(buffer.loop_s, self.fps) if is_measured else None,
            repeated=repeated,
        )

    def _stop(self) -> None:
        for sink in self._sinks.values():
            sink.abort()

    def _end_episode(self) -> None:
        self._buffer = EpisodeBuffer()
        self._sinks = {}
        self._check.depth_units = self._state.depth_units
        self._folder.clear()

    def _require_open(self) -> None:
        if not self._is_open:
            raise DatasetError(f"the dataset at `{self.root}` is finalized", "continue it with `DatasetWriter.resume`")

    def _close(self, *, remove: bool) -> None:
        self._is_open = False
        self._folder.close(remove=remove)


def _require(settings: WriterConfig) -> None:
    problems = settings.check()
    if problems:
        raise ConfigError("; ".join(problems))


def _with_limits(raw_info: dict[str, Any], settings: WriterConfig) -> dict[str, Any]:
    limits = {
        name: getattr(settings, name)
        for name in ("data_files_size_in_mb", "video_files_size_in_mb")
        if getattr(settings, name) is not None
    }
    return {**raw_info, **limits}
