"""Whether frames are kept, where, and why: decided from sizes, room and how often each frame is read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.dataset import Dataset
from mimetic.data.fingerprint import camera_fingerprint
from mimetic.data.frames.budget import AUTO_SHARE, MEMORY_SHARE, free_disk, free_memory, is_writable
from mimetic.data.frames.builder import missing_rows
from mimetic.data.frames.content import FrameContent, FrameFile
from mimetic.data.frames.decode import raw_kind
from mimetic.data.frames.resize import FrameSize, smaller
from mimetic.data.frames.seen import Seen, look
from mimetic.data.source import Source
from mimetic.errors import ConfigError

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
WORTH_VISITS = 2.0
"""`auto` keeps frames that a run reads at least so often."""


@dataclass(frozen=True)
class FrameJob:
    """Frames of one camera that a run reads.

    Args:
        file: their array on disk.
        rows: rows of the dataset that the run reads, ascending.
        missing: those that the array lacks.
        seen: what is known of the camera's files; None where they were not looked at.
    """

    file: FrameFile
    rows: Ints
    missing: Ints
    seen: Seen | None = None

    @property
    def camera(self) -> str:
        """The dataset's name of the camera."""
        return self.file.content.camera


@dataclass(frozen=True)
class FramePlan:
    """What becomes of a run's frames.

    Args:
        mode: "frames" on disk, "memory" or "off".
        reason: why, as a phrase.
        hint: what to do about it; empty where there is nothing to do.
        jobs: one a camera; of all cameras that are read, also when nothing is kept.
        folder: of the arrays on disk.
    """

    mode: str
    reason: str
    hint: str
    jobs: Sequence[FrameJob]
    folder: Path

    @property
    def total_bytes(self) -> int:
        """Bytes of all frames that the run reads."""
        return sum(len(job.rows) * job.file.content.row_bytes for job in self.jobs)

    @property
    def to_build(self) -> int:
        """Frames that must be decoded first."""
        if self.mode == "memory":
            return sum(len(job.rows) for job in self.jobs)
        return sum(len(job.missing) for job in self.jobs) if self.mode == "frames" else 0

    @property
    def described(self) -> str:
        """Frames, cameras and their size in words."""
        frames = max((len(job.rows) for job in self.jobs), default=0)
        cameras = f"{len(self.jobs)} camera{'s' if len(self.jobs) != 1 else ''}"
        resized = sorted({str(job.file.content.size) for job in self.jobs if job.file.content.size is not None})
        return f"{frames:,} frames x {cameras}{f' resized to {resized[0]}' if resized else ''}"


def plan_frames(
    reads: Sequence[tuple[Dataset, Ints]],
    mode: str,
    *,
    folder: Path,
    budget: int | None = None,
    sizes: Mapping[str, FrameSize] | None = None,
    visits: float = WORTH_VISITS,
) -> FramePlan:
    """Decide; reads the marks of the arrays that are there, and writes nothing.

    Args:
        reads: views of one dataset and the positions in them that are read.
        mode: "auto", "frames", "memory" or "off".
        folder: where arrays are kept.
        budget: bytes that frames may take; None: what is free, and for `auto` a quarter of it.
        sizes: size by camera in which frames are kept; the others, and those that would grow, keep theirs.
        visits: how often each frame is read, for `auto`.

    Raises:
        ConfigError: "frames" or "memory" was asked for and does not fit, or the folder lies in the dataset.
    """
    view = reads[0][0]
    cameras = [camera for camera in view.meta.camera_keys if camera not in view.skipped]
    if mode != "off":
        _check_folder(folder, view.root)
    # Looking for an array means reading a little of every file of its camera.
    is_hopeless = mode == "auto" and visits < WORTH_VISITS and not any(folder.glob("*/"))
    is_looked_for = mode != "off" and not is_hopeless
    jobs = [_job(view, key, folder, reads, (sizes or {}).get(key), is_looked_for=is_looked_for) for key in cameras]
    plan = FramePlan("off", "`--dataset.cache=off`", "", jobs, folder)
    if mode == "off" or not jobs:
        return plan if jobs else replace(plan, reason="no camera frames are read")
    missing = sum(len(job.missing) * job.file.content.row_bytes for job in jobs)
    if mode != "memory" and missing == 0:
        return replace(plan, mode="frames", reason="all of them are there already")
    if mode == "auto" and visits < WORTH_VISITS:
        reason = f"each is read about {max(visits, 0):.1f} times in this run, so keeping them would not pay"
        return replace(plan, reason=reason, hint="--dataset.cache=frames keeps them all the same")
    disk = _disk_problem(folder, missing, budget, AUTO_SHARE if mode == "auto" else 1.0)
    memory = _memory_problem(plan.total_bytes, budget, AUTO_SHARE if mode == "auto" else MEMORY_SHARE)
    why = "asked for" if mode != "auto" else f"each is read about {visits:.{int(visits < 10)}f} times in this run"
    if mode in ("auto", "frames") and not disk:
        return replace(plan, mode="frames", reason=why)
    if mode in ("auto", "memory") and not memory:
        return replace(plan, mode="memory", reason=why if mode == "memory" else f"{why}, but {disk}")
    hint = (
        "allow more with `--dataset.cache_gb`, choose a larger disk with `--dataset.cache_folder=FOLDER`, or take "
        "fewer episodes with `--dataset.episodes`"
    )
    if mode == "auto":
        return replace(plan, reason=f"{disk}, and {memory}", hint=hint)
    raise ConfigError(
        f"`--dataset.cache={mode}`: {plan.described}: {disk if mode == 'frames' else memory}",
        f"{hint}; `--dataset.cache=off` trains without",
    )


def size_text(n_bytes: float) -> str:
    """A number of bytes in GB or smaller units of 1000."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} bytes"


def _job(
    view: Dataset,
    camera: str,
    folder: Path,
    reads: Sequence[tuple[Dataset, Ints]],
    size: FrameSize | None,
    *,
    is_looked_for: bool,
) -> FrameJob:
    seen, metadata = None, view.source.metadata
    if is_looked_for:
        seen = look(folder, metadata, camera, camera_fingerprint(metadata, camera, decoder=view.source.backend))
    identity = seen.identity if seen is not None else ""
    content = frame_content(view.source, camera, size, repo_id=view.repo_id, identity=identity)
    file = FrameFile(folder, content)
    rows = np.unique(np.concatenate([part.rows(positions) for part, positions in reads]))
    return FrameJob(file, rows, missing_rows(file, view.source, rows) if is_looked_for else rows, seen)


def frame_content(
    source: Source, camera: str, size: FrameSize | None = None, *, repo_id: str = "", identity: str | None = None
) -> FrameContent:
    """What an array of a camera's frames holds.

    Args:
        source: the dataset.
        camera: one of its cameras.
        size: size in which frames are kept; their own where it would be larger, or for depth.
        repo_id: name of the dataset, for listings.
        identity: of the camera's frames; worked out from its files when absent.
    """
    metadata = source.metadata
    shape, dtype = raw_kind(metadata.features[camera])
    kept = None if metadata.features[camera].is_depth else smaller(shape, size)
    return FrameContent(
        dataset=camera_fingerprint(metadata, camera, decoder=source.backend) if identity is None else identity,
        camera=camera,
        frames=int(metadata.episodes.length.sum()),
        shape=shape if kept is None else (3, kept.height, kept.width),
        dtype=dtype,
        size=kept,
        about={"dataset": repo_id, "root": str(metadata.root)},
    )


def _check_folder(folder: Path, dataset: Path) -> None:
    inside = folder.expanduser().resolve()
    if inside == dataset.resolve() or dataset.resolve() in inside.parents:
        raise ConfigError(
            f"the folder for kept frames, `{folder}`, lies inside the dataset `{dataset}`",
            "name another one: `--dataset.cache_folder=FOLDER`",
        )


def _disk_problem(folder: Path, needed: int, budget: int | None, share: float) -> str:
    """Why missing frames cannot be kept on disk, as a phrase; empty when they can."""
    if not is_writable(folder):
        return f"`{folder}` cannot be written"
    try:
        free = free_disk(folder)
    except OSError as error:
        return f"the disk of `{folder}` cannot be looked at ({error.strerror or error})"
    room = min(budget, free) if budget is not None else int(free * share)
    if needed <= room:
        return ""
    return f"they need {size_text(needed)} more on disk, and the budget there is {size_text(room)}"


def _memory_problem(needed: int, budget: int | None, share: float) -> str:
    """Why frames cannot be kept in memory, as a phrase; empty when they can."""
    free = free_memory()
    room = min(budget, free) if budget is not None else int(free * share)
    if needed <= room:
        return ""
    return f"they need {size_text(needed)} of memory, and the budget there is {size_text(room)}"
