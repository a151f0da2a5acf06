"""Decoded camera frames of a run: decided, built before its first step, and put in the place of the decoders.

The policy says to which size it resizes frames itself (`PolicyConfig.frame_size`); nothing here knows a policy by name.
Kept frames are the last resort of what is still read as frames: cameras whose features are kept are left out already.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.cache_folder import default_frames_folder
from mimetic.data.dataset import CameraFrames, Dataset
from mimetic.data.frames.builder import Workers, build_in_memory, build_on_disk, measure_rate
from mimetic.data.frames.plan import FrameJob, FramePlan, plan_frames, size_text
from mimetic.data.frames.reader import DiskRows, KeptFrames, MemoryRows
from mimetic.data.frames.resize import FrameSize, rounding
from mimetic.data.frames.seen import Seen
from mimetic.errors import CacheError, ConfigError, DatasetError, Interrupted, WorkerError
from mimetic.policies.config import PolicyConfig
from mimetic.train.bar import progress_bar
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.heldout import heldout_positions
from mimetic.train.stop import StopRequest

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
_MANY = 5000  # frames from which starting processes pays
_N_COMPARED = 8
_COMMANDS = ("mimetic", "lerobot-train")


def plan_kept_frames(config: TrainConfig, data: TrainingData, policy: PolicyConfig, *, step: int) -> FramePlan:
    """Decide about `--dataset.cache`; writes nothing.

    Args:
        config: settings of the run.
        data: what it trains on; cameras whose features are kept are not read any more.
        policy: settings of the policy.
        step: where the run starts.

    Raises:
        ConfigError: a cache was asked for and does not fit, or its folder lies in the dataset.
    """
    settings = config.dataset
    mode = "off" if settings.streaming else settings.cache
    reads: list[tuple[Dataset, Ints]] = [(data.train, np.arange(len(data.train)))]
    visits = (config.steps - step) * config.batch_size / max(1, len(data.sampler))
    if data.heldout is not None and config.eval_steps > 0 and mode != "off":
        chosen = heldout_positions(data.heldout, config.max_eval_samples).values()
        reads.append((data.heldout, np.unique(np.concatenate([np.asarray(part) for part in chosen]))))
    windows = max((len(data.train.delta_indices.get(key, [0])) for key in _cameras(data.train)), default=1)
    sizes = _sizes(data.train, policy) if settings.cache_resize else {}
    try:
        folder = Path(settings.cache_folder).expanduser() if settings.cache_folder else default_frames_folder()
    except RuntimeError as error:
        raise ConfigError(
            f"there is no place for kept frames: {error}", "name one: `--dataset.cache_folder=FOLDER`"
        ) from error
    budget = None if settings.cache_gb is None else int(settings.cache_gb * 1e9)
    plan = plan_frames(reads, mode, folder=folder, budget=budget, sizes=sizes, visits=visits * windows)
    if settings.streaming:
        return replace(plan, reason="a stream is read once from end to end")
    return plan


def keep_frames(config: TrainConfig, data: TrainingData, plan: FramePlan) -> TrainingData:
    """Build what a plan asks for, and let the run read from it.

    A disk that is full or fails is said, and training goes on with what is there.

    Raises:
        Interrupted: the user or a scheduler stopped it; what was built on disk is kept.
        CacheError: the frames do not fit into memory.
    """
    _announce(plan, config, data)
    if plan.mode == "off":
        return data
    _tell_rounding(config, data, plan)
    kept: dict[str, CameraFrames] = {}
    began, unreadable = time.monotonic(), 0
    with StopRequest() as stop, progress_bar("Frames", "frame", plan.to_build) as show:
        done = 0

        def advance(frames: int) -> None:
            nonlocal done
            done += frames
            show(done)

        def give_up() -> None:
            if stop.requested:
                raise _interrupted(plan, done, stop)

        for job in plan.jobs:
            frames: KeptFrames | None
            try:
                frames, lost = _keep(job, plan, data, advance, give_up)
            except (CacheError, WorkerError) as error:
                if plan.mode == "memory":
                    raise
                logger.warning(
                    "%s; training goes on and decodes what is not kept (%s)", error.message, error.hint.replace("`", "")
                )
                frames, lost = _what_is_there(job), 0
            unreadable += lost
            if frames is not None:
                kept[job.camera] = frames
    if plan.to_build:
        lost_text = f"; {unreadable} cannot be decoded" if unreadable else ""
        decoded = f"{done:,}" if done >= plan.to_build else f"only {done:,} of {plan.to_build:,}"
        logger.info("frames are kept: %s decoded in %s%s", decoded, _time_text(time.monotonic() - began), lost_text)
    heldout = data.heldout.with_kept(kept) if data.heldout is not None else None
    return replace(data, train=data.train.with_kept(kept), heldout=heldout)


def _keep(
    job: FrameJob,
    plan: FramePlan,
    data: TrainingData,
    advance: Callable[[int], None],
    give_up: Callable[[], None],
) -> tuple[KeptFrames, int]:
    """Kept frames of one camera, and how many of them cannot be decoded."""
    source = data.train.source
    workers = Workers(processes=len(job.missing) >= _MANY and _is_command())
    if plan.mode == "memory":
        rows = MemoryRows(job.file.content, source.frame_numbers(job.rows))
        lost = build_in_memory(rows, source, job.rows, workers, on_done=advance, give_up=give_up)
        return KeptFrames(rows), lost
    lost = 0
    if job.seen is not None:
        _remember(job.seen, job.camera)
    if len(job.missing):
        lost = build_on_disk(job.file, source, job.missing, workers, on_done=advance, give_up=give_up)
    return KeptFrames(DiskRows(job.file)), lost


def _remember(seen: Seen, camera: str) -> None:
    if seen.is_edited:
        logger.warning(
            "files of %s were written to since frames of them were kept; the frames are decoded anew, and what was "
            "kept before is not used any more",
            camera,
        )
    try:
        seen.remember()
    except OSError as error:  # the array itself lies there too, and says so when it cannot be written
        logger.debug("%s: %s", seen.path, error)


def _what_is_there(job: FrameJob) -> KeptFrames | None:
    try:
        return KeptFrames(DiskRows(job.file))
    except CacheError:
        return None


def _announce(plan: FramePlan, config: TrainConfig, data: TrainingData) -> None:
    """One line that says what becomes of the frames and why, with size and time before anything is built."""
    if not plan.jobs or (plan.mode == "off" and config.dataset.cache == "off"):
        return
    if plan.mode == "off":
        hint = f" ({plan.hint.replace('`', '')})" if plan.hint else ""
        logger.info("decoded frames are not kept: %s%s", plan.reason, hint)
        return
    where = f"on disk in {plan.folder}" if plan.mode == "frames" else "in memory"
    time_text = f"; decoding takes about {_build_time(plan, data)}" if plan.to_build else ""
    logger.info(
        "decoded frames are kept %s: %s, %s (%s)%s",
        where,
        plan.described,
        size_text(plan.total_bytes),
        plan.reason,
        time_text,
    )


def _build_time(plan: FramePlan, data: TrainingData) -> str:
    """Time to decode what is missing, from the pace of the first frames."""
    job = next(job for job in plan.jobs if plan.mode == "memory" or len(job.missing))
    rows = job.rows if plan.mode == "memory" else job.missing
    return _time_text(plan.to_build / (measure_rate(data.train.source, job.file, rows) * Workers().number))


def _sizes(view: Dataset, policy: PolicyConfig) -> dict[str, FrameSize]:
    """Sizes to which the policy resizes frames itself; none where a second resize would change them again."""
    sizes = {}
    for camera in _cameras(view):
        height, width = view.features[camera].chw[1:]
        wanted = policy.frame_size(height, width)
        if wanted is not None and policy.frame_size(*wanted) == wanted:
            sizes[camera] = FrameSize(*wanted)
    if not sizes:
        logger.info("--dataset.cache_resize has no effect: the policy reads frames in their own size")
    return sizes


def _cameras(view: Dataset) -> list[str]:
    return [key for key in view.meta.camera_keys if key not in view.skipped]


def _tell_rounding(config: TrainConfig, data: TrainingData, plan: FramePlan) -> None:
    """Measure on a few frames how far kept frames are from the policy's own resize, and say it."""
    for job in plan.jobs:
        size = job.file.content.size
        if size is None:
            continue
        chosen = job.rows[np.linspace(0, len(job.rows) - 1, min(_N_COMPARED, len(job.rows))).astype(np.int64)]
        try:
            most, mean = rounding(data.train.source.read_raw(job.camera, chosen), size)
        except DatasetError:
            continue  # such a frame is met again, and judged, where it is trained on
        augmented = "; augmentation changes the smaller frames" if config.dataset.image_transforms.enable else ""
        logger.warning(
            "frames are kept as %s, rounded to whole numbers: they differ from the policy's own resize by at most %.4f "
            "and by %.4f in the mean, of values in [0, 1] (%d frames of %s)%s",
            size,
            most,
            mean,
            len(chosen),
            job.camera,
            augmented,
        )
        return


def _is_command() -> bool:
    """Whether this process is one of mimetic's commands, whose main module another process may import."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).split(".")[0] == "mimetic"
    return Path(getattr(main, "__file__", None) or "").stem in _COMMANDS


def _interrupted(plan: FramePlan, done: int, stop: StopRequest) -> Interrupted:
    kept = "are done and kept" if plan.mode == "frames" else "were done"
    error = Interrupted(
        f"stopped while decoding frames: {done:,} of {plan.to_build:,} {kept}", "the same command continues"
    )
    error.exit_code = stop.exit_code(saved=False, requeue=0)
    return error


def _time_text(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
