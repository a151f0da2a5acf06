"""Work for tests of the engine: a worker process imports it by name, which it cannot with a test module."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from mimetic.data.video.index import FrameError
from mimetic.errors import DatasetError


@dataclass(frozen=True)
class Part:
    """A task as commands have them: plain values in a frozen dataclass."""

    number: int
    folder: Path


class ForeignError(Exception):
    """Like exceptions of C libraries: it cannot be rebuilt from its arguments in another process."""

    def __init__(self, code, where):
        super().__init__(f"code {code} at {where}")


def square(part):
    """Square of the number, and the process that computed it; later parts are faster."""
    time.sleep(0.05 if part.number == 0 else 0.0)
    return part.number**2, os.getpid()


def threads(part):
    """Threads that computations use."""
    return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]


def fail_at_three(part):
    """Leave a file for each part that was begun; the fourth fails as users' data does."""
    (part.folder / f"{part.number}").touch()
    if part.number == 3:
        raise DatasetError("the rows are gone", "look for them")
    time.sleep(0.02)
    return part.number


def fail_foreign(part):
    """Fail with an exception that cannot be sent."""
    raise ForeignError(7, "the decoder")


def fail_frame(part):
    """Fail with an error that says more than a message and a hint."""
    raise FrameError("frame 5 of `a.mp4` is gone", "look for it", 5)


def fail_full(part):
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device", str(part.folder))


def fall(part):
    """Be killed from outside."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait(part):
    """Leave a file with the process's number, and stay."""
    (part.folder / f"{part.number}.pid").write_text(str(os.getpid()))
    time.sleep(60)


def square_and_node(part):
    """Square of the number, and the machine that computed it."""
    import ray

    time.sleep(0.3)
    return part.number**2, ray.get_runtime_context().get_node_id()
