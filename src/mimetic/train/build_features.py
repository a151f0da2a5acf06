"""Encoding the camera frames of a run once, before its first step.

Frames are decoded ahead by the loader's threads, encoded in batches, and written row by row; an interrupted build is
continued by the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mimetic.accelerators.precision import Precision
from mimetic.data.addresses import FrameAddress
from mimetic.data.dataset import Dataset, FrameValues
from mimetic.data.feature_writer import FeatureWriter
from mimetic.data.loader import Batch, BatchLoader
from mimetic.data.sampler import EpisodeSampler
from mimetic.errors import CacheError, DatasetError, Interrupted, VideoError
from mimetic.policies.base import FrameEncoder
from mimetic.train.bar import progress_bar
from mimetic.train.config import TrainConfig
from mimetic.train.feature_plan import BuildJob, FeaturePlan
from mimetic.train.stop import StopRequest

logger = logging.getLogger(__name__)

_BATCH = {"cuda": 16}
_CPU_BATCH = 8
_MEASURE_S = 3.0
_REPORT_S = 60.0
_FRAMES, _NUMBERS = "frames", "numbers"


def build_features(plan: FeaturePlan, config: TrainConfig, precision: Precision) -> None:
    """Encode what is missing.

    With `--on_bad_frame=skip`, training frames that cannot be read get no row and are entered in `plan.unreadable`; the
    next start tries them again. Held-out frames are never left out.

    Args:
        plan: what the run needs.
        config: loader threads of the run, and what becomes of frames that cannot be read.
        precision: device and autocast of the encoder.

    Raises:
        Interrupted: the user or a scheduler stopped it; what was built is kept.
        CacheError: the folder or its disk fails, or the encoder gives no finite numbers.
        DatasetError: a frame cannot be read, or more of them than may be left out; what was built is kept.
    """
    if plan.n_missing == 0:
        return
    devices = [precision.device] if precision.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=devices),  # whatever an encoder may draw: building changes no random number
        StopRequest() as stop,
        progress_bar("Features", "frame", plan.n_missing) as advance,
    ):
        pace = _Pace(plan.n_missing, advance)

        def give_up() -> None:
            if stop.requested:
                raise _interrupted(pace, stop)

        for job in plan.jobs:
            if len(job.positions):
                left_out = _build(job, plan, config, precision, pace, give_up)
                plan.unreadable.setdefault(job.file.content.camera, {}).update(left_out)
    if devices:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(precision.device)
    logger.info("features are built: %s frames in %s", f"{pace.done:,}", _time_text(pace.elapsed))


def _build(
    job: BuildJob,
    plan: FeaturePlan,
    config: TrainConfig,
    precision: Precision,
    pace: _Pace,
    give_up: Callable[[], None],
) -> dict[int, str]:
    """Build the rows of one array; returns the frames that were left out."""
    with FeatureWriter(job.file, give_up) as writer:
        # Another run may have built some of it meanwhile.
        positions = job.positions[writer.missing(job.view.frame_numbers(job.positions))]
        pace.advance(len(job.positions) - len(positions), is_work=False)
        if not len(positions):
            return {}
        source = _FrameSource(job.view, job.file.content.camera, plan.seed, job.file.content.variant)
        loader = _loader(source, positions, config, precision.device, is_heldout=job.is_heldout)
        for batch in _batches(loader):
            give_up()
            frames, numbers = batch[_FRAMES], batch[_NUMBERS]
            assert isinstance(frames, Tensor)
            assert isinstance(numbers, Tensor)
            content = job.file.content
            features = encode_frames(plan.encoder, frames, precision, where=content.camera, dtype=content.dtype)
            writer.write(numbers.tolist(), features)
            pace.advance(len(frames))
        left_out = [bad.position for bad in loader.bad_frames]
        pace.advance(len(left_out), is_work=False)
        numbers_left_out = job.view.frame_numbers(left_out).tolist()
        return dict(zip(numbers_left_out, (bad.cause for bad in loader.bad_frames), strict=True))


def encode_frames(
    encoder: FrameEncoder, frames: Tensor, precision: Precision, *, where: str, dtype: torch.dtype | None = None
) -> Tensor:
    """Features of frames, as a training step would compute them.

    Args:
        encoder: the policy's encoder.
        frames: (N, 3, H, W) uint8.
        precision: device and autocast.
        where: camera, for messages.
        dtype: of the result; None: the encoder's.

    Returns:
        (N, *encoder.shape), on the CPU.

    Raises:
        CacheError: the encoder gives another shape than it declares, or numbers that are not finite.
    """
    pixels = frames.to(precision.device, non_blocking=True).to(torch.float32).div_(255.0)
    with torch.no_grad(), precision.autocast():
        features = encoder.encode(pixels).to(dtype or encoder.dtype)
    if tuple(features.shape) != (len(frames), *encoder.shape):
        raise CacheError(
            f"the encoder gives {tuple(features.shape)} for {len(frames)} frames, and declares {tuple(encoder.shape)}",
            "this is a bug of the policy; `--cache.features=off` trains without kept features",
        )
    if not bool(torch.isfinite(features).all()):
        raise CacheError(
            f"the features of some frames of `{where}` are not finite numbers",
            "the policy's weights are damaged, or its precision is too low: try `--cache.features=off`",
        )
    return features.cpu()


@dataclass(frozen=True)
class _FrameSource:
    """Frames of one camera for the loader; chance depends on the frame alone, not on the order of work."""

    view: Dataset
    camera: str
    seed: int
    variant: int

    def batch(self, positions: Sequence[int], generators: Sequence[torch.Generator] | None = None) -> Batch:
        numbers = self.view.frame_numbers(positions)
        own = [variant_generator(self.seed, self.camera, int(n), self.variant) for n in numbers]
        return {
            _FRAMES: self.view.batch(positions, own if self.variant else None)[self.camera],
            _NUMBERS: torch.from_numpy(numbers),
        }

    def address(self, position: int) -> FrameAddress:
        return self.view.address(position)

    def files_in_use(self) -> Sequence[tuple[Path, float]]:
        return self.view.files_in_use()


class ReadableOnly:
    """Kept features without the frames that could not be read when they were built.

    Args:
        features: features of all other frames.
        unreadable: number of the frame in the whole dataset -> what is wrong with it.
    """

    def __init__(self, features: FrameValues, unreadable: Mapping[int, str]) -> None:
        self._features = features
        self._unreadable = unreadable

    def read(self, frames: npt.NDArray[np.int64], generators: Sequence[torch.Generator]) -> Tensor:
        """Features of some frames (see `FrameValues`).

        Raises:
            VideoError: a frame is one that could not be read.
        """
        for frame in frames.tolist():
            if frame in self._unreadable:
                raise VideoError(self._unreadable[frame], "leave its episode out with `--dataset.exclude_episodes`")
        return self._features.read(frames, generators)


def variant_generator(seed: int, camera: str, frame: int, variant: int) -> torch.Generator:
    """The chance behind one augmented variant of a frame.

    Args:
        seed: training seed.
        camera: the dataset's name of the camera.
        frame: number of the frame in the whole dataset.
        variant: number of the variant, from 1.
    """
    entropy = np.random.SeedSequence([seed, *camera.encode(), frame, variant])
    return torch.Generator().manual_seed(int(entropy.generate_state(1, np.uint64)[0]))


def _loader(
    source: _FrameSource,
    positions: npt.NDArray[np.int64],
    config: TrainConfig,
    device: torch.device,
    *,
    is_heldout: bool,
) -> BatchLoader:
    """Loader of the frames at the given ascending positions."""
    ends = np.flatnonzero(np.diff(positions) != 1) + 1
    starts = positions[np.concatenate([[0], ends])]
    stops = positions[np.concatenate([ends - 1, [len(positions) - 1]])] + 1
    return BatchLoader(
        source,
        EpisodeSampler(starts, stops, shuffle=False),
        batch_size=_BATCH.get(device.type, _CPU_BATCH),
        num_workers=config.num_workers,
        prefetch_factor=2,
        seed=0,
        pin_memory=device.type == "cuda",
        on_bad_frame="drop" if config.on_bad_frame == "skip" and not is_heldout else "stop",
        max_bad_frames=config.max_bad_frames,
        excluded=config.dataset.exclude_episodes or (),
    )


def _batches(loader: BatchLoader) -> Iterator[dict[str, Any]]:
    """Frames in order, decoded ahead."""
    try:
        yield from loader.batches(0)
    except DatasetError as error:
        error.hint += "\nwhat is built is kept; the same command with the episodes left out goes on from there"
        raise
    finally:
        loader.close()


class _Pace:
    """How far building is: moves the bar, says once how long it takes, and a line a minute where there is no bar."""

    def __init__(self, total: int, show: Callable[[int], None]) -> None:
        self.total = total
        self.done = 0
        self._worked = 0
        self._show = show
        self._started = self._reported = time.monotonic()
        self._first: float | None = None
        self._has_estimated = False

    @property
    def elapsed(self) -> float:
        """Time since the start [s]."""
        return time.monotonic() - self._started

    def advance(self, frames: int, *, is_work: bool = True) -> None:
        """Count frames; those that another run has built are no measure of the speed."""
        self.done += frames
        self._show(self.done)
        if not is_work:
            return
        now = time.monotonic()
        if self._first is None:  # the first batch also warms up
            self._first = now
            return
        self._worked += frames
        is_due = now - self._reported >= (_REPORT_S if self._has_estimated else _MEASURE_S)
        if not is_due or self.done == self.total:
            return
        self._reported = now
        rate = self._worked / (now - self._first)
        left = _time_text((self.total - self.done) / rate)
        if self._has_estimated:
            logger.info("features: %s of %s frames, about %s left", f"{self.done:,}", f"{self.total:,}", left)
        else:
            logger.info("building features takes about %s at %.1f frames/s; Ctrl-C keeps what is built", left, rate)
        self._has_estimated = True


def _interrupted(pace: _Pace, stop: StopRequest) -> Interrupted:
    error = Interrupted(
        f"stopped while building features: {pace.done:,} of {pace.total:,} frames are done and kept",
        "the same command continues",
    )
    error.exit_code = stop.exit_code(saved=False, requeue=0)  # no checkpoint, so no word to the queue
    return error


def _time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
