"""Building kept frames: which rows are missing, who decodes them, and how they become part of an array."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.cache_folder import MARKS
from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks, usable_cores
from mimetic.data.file_lock import FileLock
from mimetic.data.frames.budget import free_disk
from mimetic.data.frames.content import UNBUILT, UNREADABLE, FrameFile
from mimetic.data.frames.decode import Decoded, DecodeTask, decode_rows, head, make_tasks, write_rows
from mimetic.data.frames.reader import MemoryRows
from mimetic.data.source import Source
from mimetic.errors import CacheError

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
OnDone = Callable[[int], None]
_SAMPLE = 48
_HINT = (
    "make room, or choose another folder with `--dataset.cache_folder=FOLDER`; what is built stays and is continued, "
    "and `--dataset.cache=off` trains without"
)


@dataclass(frozen=True)
class Workers:
    """Who decodes.

    Args:
        count: parts at once; 0 takes one for each core.
        processes: decode in processes of their own instead of threads; a script that calls this then needs
            `if __name__ == "__main__":` around its work.
    """

    count: int = 0
    processes: bool = False

    @property
    def number(self) -> int:
        """How many at once."""
        return self.count or usable_cores()


def missing_rows(file: FrameFile, source: Source, rows: Ints) -> Ints:
    """Those of some rows of a dataset that an array does not hold; unreadable frames count as held."""
    return np.asarray(rows[file.marks()[source.frame_numbers(rows)] == UNBUILT])


def measure_rate(source: Source, file: FrameFile, rows: Ints) -> float:
    """Frames a second that one worker decodes, tried on the first of some rows."""
    tasks = make_tasks(source, file.content.camera, file.content, rows[:_SAMPLE])
    started, frames = time.perf_counter(), 0
    for task in tasks[:1]:
        for _, _, marks in decode_rows(head(task, _SAMPLE)):
            frames += len(marks)
    return frames / max(time.perf_counter() - started, 1e-6)


def build_on_disk(
    file: FrameFile,
    source: Source,
    rows: Ints,
    workers: Workers,
    *,
    on_done: OnDone = lambda frames: None,
    give_up: Callable[[], None] = lambda: None,
) -> int:
    """Decode what an array lacks; returns how many of the rows cannot be decoded.

    One process builds at a time, others wait for it. What is done when this raises is kept.

    Args:
        file: the array; made when it is not there, made anew when it is damaged.
        source: the dataset.
        rows: rows of the dataset that are needed.
        workers: who decodes.
        on_done: told how many more frames are done.
        give_up: called now and then; raises to stop.

    Raises:
        CacheError: the folder cannot be written, or its disk is full.
    """
    with _locked(file, give_up):
        wanted = missing_rows(file, source, rows)
        on_done(len(rows) - len(wanted))
        tasks = [
            replace(task, target=file.frames_path)
            for task in make_tasks(source, file.content.camera, file.content, wanted)
        ]
        if tasks:
            with (file.path / MARKS).open("r+b", buffering=0) as marks:

                def take(position: int, done: Decoded) -> None:
                    _mark(marks.fileno(), done)
                    if done.problem:
                        raise _failed(file.folder, done.problem)
                    on_done(len(done.numbers))
                    give_up()
                    # Others write to this disk too, and a run whose checkpoints have no room is lost.
                    if free_disk(file.folder) == 0:
                        raise _failed(file.folder, "nothing is left of the disk but its reserve")

                try:
                    _run(write_rows, tasks, workers, take)
                except OSError as error:
                    if isinstance(error, CacheError):
                        raise
                    raise _failed(file.folder, error.strerror or str(error)) from error
        return int((file.marks()[source.frame_numbers(rows)] == UNREADABLE).sum())


def build_in_memory(
    kept: MemoryRows,
    source: Source,
    rows: Ints,
    workers: Workers,
    *,
    on_done: OnDone = lambda frames: None,
    give_up: Callable[[], None] = lambda: None,
) -> int:
    """Decode rows into memory (arguments as for `build_on_disk`); returns how many cannot be decoded."""
    unreadable = 0

    def fill(task: DecodeTask) -> Decoded:
        found = np.zeros(len(task.numbers), dtype=np.uint32)
        for start, lines, marks in decode_rows(task):
            found[start : start + len(marks)] = marks
            for place in np.flatnonzero((marks != UNBUILT) & (marks != UNREADABLE)).tolist():
                kept.write(int(task.numbers[start + place]), lines[place])
        return Decoded(task.numbers, found)

    def take(position: int, done: Decoded) -> None:
        nonlocal unreadable
        unreadable += int((done.marks == UNREADABLE).sum())
        on_done(len(done.numbers))
        give_up()

    tasks = make_tasks(source, kept.content.camera, kept.content, rows)
    _run(fill, tasks, replace(workers, processes=False), take)
    return unreadable


def _run(
    work: Callable[[DecodeTask], Decoded],
    tasks: Sequence[DecodeTask],
    workers: Workers,
    on_done: Callable[[int, Decoded], None],
) -> None:
    if workers.processes:
        engine = EngineConfig(engine="auto", num_workers=min(workers.number, len(tasks)))
        run_tasks(work, tasks, engine, on_done=on_done, name=lambda task: f"`{task.path}`")
    elif workers.number == 1 or len(tasks) == 1:
        for position, task in enumerate(tasks):
            on_done(position, work(task))
    else:
        _in_threads(work, tasks, min(workers.number, len(tasks)), on_done)


def _in_threads(
    work: Callable[[DecodeTask], Decoded],
    tasks: Sequence[DecodeTask],
    count: int,
    on_done: Callable[[int, Decoded], None],
) -> None:
    rest = iter(enumerate(tasks))
    running: dict[Future[Decoded], int] = {}
    pool = ThreadPoolExecutor(count, "mimetic-frames")
    try:
        while True:
            while len(running) < count and (following := next(rest, None)) is not None:
                running[pool.submit(work, following[1])] = following[0]
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                on_done(running.pop(future), future.result())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _locked(file: FrameFile, give_up: Callable[[], None]) -> Iterator[None]:
    """While active, the only process that adds rows; the array is there and sound."""
    try:
        file.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(
            file.folder / f"{file.content.name}.lock",
            purpose=f"decoding the frames of `{file.content.camera}`",
            give_up=give_up,
        )
        with lock:
            problem = file.problem()
            if problem:
                logger.warning("frames in %s are damaged and are built anew: %s", file.path, problem)
            if problem or not file.path.exists():
                file.create()
            yield
    except CacheError as error:
        if "cannot be locked" in error.message:  # the lock's own hint is about features
            error.hint = "choose a folder on another file system with `--dataset.cache_folder=FOLDER`"
        raise
    except OSError as error:
        raise _failed(file.folder, error.strerror or str(error)) from error


def _mark(handle: int, done: Decoded) -> None:
    """Enter what was written and synced, then sync the marks."""
    for number, mark in zip(done.numbers.tolist(), done.marks.astype("<u4"), strict=True):
        if mark != UNBUILT:
            os.lseek(handle, number * 4, os.SEEK_SET)
            os.write(handle, mark.tobytes())
    os.fsync(handle)


def _failed(folder: Path, reason: str) -> CacheError:
    return CacheError(f"frames cannot be written below `{folder}`: {reason}", _HINT)
