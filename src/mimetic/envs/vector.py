"""Several cells at once, in this process or spread over others; every result is that of one cell alone.

Cells never influence each other, and each keeps its own model, so an episode is the same whichever place of whichever
group it runs in. Processes exchange numbers through shared memory and short texts through a pipe.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.envs.cell import Cell
from mimetic.envs.config import CAMERAS, CellConfig
from mimetic.envs.render.choose import RendererChoice, choose_renderer
from mimetic.errors import ConfigError, MimeticError, ShapeError, WorkerError
from mimetic.names import IMAGES_PREFIX, STATE

logger = logging.getLogger(__name__)
_READY_S = 120


@dataclass(frozen=True)
class Batch:
    """What n cells show.

    Args:
        observation: `observation.state` (n, 6) float32, `observation.images.<camera>` (n, H, W, 3) uint8; pictures that
            were not drawn are black.
        instructions: task of each cell in words.
        is_success: whether each task has succeeded (n,) bool.
        is_over: whether each episode has ended (n,) bool; an ended cell stands still until its next reset.
        ticks: control ticks of each episode (n,) int64.
        is_drawn: whether the pictures of each cell were drawn (n,) bool.
    """

    observation: dict[str, NDArray[Any]]
    instructions: tuple[str, ...]
    is_success: NDArray[np.bool_]
    is_over: NDArray[np.bool_]
    ticks: NDArray[np.int64]
    is_drawn: NDArray[np.bool_]


class CellGroup:
    """n cells with the same settings.

    Args:
        config: settings of every cell.
        count: how many cells.
        processes: how many other processes share them; 0 runs all in this one. A script that asks for processes needs
            `if __name__ == "__main__":` around its work.

    Raises:
        ConfigError: a setting is outside its range.
        MissingExtra: MuJoCo is not installed.
        WorkerError: a process could not start.
    """

    def __init__(self, config: CellConfig, count: int, *, processes: int = 0) -> None:
        config.check()
        if count < 1 or processes < 0:
            raise ConfigError(
                f"a group has at least one cell and no negative number of processes; got {count}, {processes}"
            )
        self.config, self.count = config, count
        self.choice = choose_renderer(config.renderer)
        self._board = _Board(config, count, "" if processes else None)
        shares = np.array_split(np.arange(count), min(processes, count)) if processes else []
        self._workers: list[_Worker] = []
        self._cells: list[Cell] = []
        try:
            if shares:
                self._workers = [_Worker(config, self.choice, self._board, int(s[0]), int(s[-1]) + 1) for s in shares]
                for worker in self._workers:
                    worker.answer(_READY_S)
            else:
                self._cells = [Cell(config, choice=self.choice) for _ in range(count)]
        except BaseException:
            self.close()
            raise
        self._instructions = [""] * count

    def reset(self, seeds: Sequence[int]) -> Batch:
        """Begin an episode in every cell: the one of its seed."""
        if len(seeds) != self.count:
            raise ShapeError(f"{self.count} cells need {self.count} seeds; got {len(seeds)}")
        return self._command("reset", dict(enumerate(int(seed) for seed in seeds)))

    def reset_one(self, index: int, seed: int) -> Batch:
        """Begin an episode in one cell; the others stay as they are."""
        return self._command("reset", {index: seed})

    def step(self, actions: ArrayLike, looks: ArrayLike | None = None) -> Batch:
        """Send each cell its action (n, 6) and let a tick pass in those whose episode has not ended.

        Drawing takes most of the time of a step.

        Args:
            actions: goals in the units of the arm.
            looks: whose pictures are wanted (n,) bool, all when absent. A cell whose episode ends with this step is
                drawn in any case.

        Raises:
            ShapeError: actions or looks do not fit the number of cells.
            WorkerError: a process has failed or ended.
        """
        goals = np.asarray(actions, dtype=np.float64)
        if goals.shape != (self.count, 6):
            raise ShapeError(f"actions of {self.count} cells have shape ({self.count}, 6); got {goals.shape}")
        wanted = np.ones(self.count, dtype=bool) if looks is None else np.asarray(looks, dtype=bool)
        if wanted.shape != (self.count,):
            raise ShapeError(f"looks of {self.count} cells have shape ({self.count},); got {wanted.shape}")
        self._board.actions[:] = goals
        self._board.looks[:] = wanted
        return self._command("step", {})

    def close(self) -> None:
        """End the processes and give back what the cells hold; what `Batch`es hold stays valid."""
        for worker in self._workers:
            worker.close()
        for cell in self._cells:
            cell.close()
        self._workers, self._cells = [], []
        self._board.close(remove=True)

    def __enter__(self) -> CellGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self, verb: str, seeds: dict[int, int]) -> Batch:
        for worker in self._workers:
            worker.ask(verb, seeds)
        for worker in self._workers:
            for number, text in worker.answer(None).items():
                self._instructions[int(number)] = text
        if self._cells:
            found = _serve(self._cells, 0, self._board, verb, seeds)
            for index, text in found.items():
                self._instructions[index] = text
        board = self._board
        return Batch(
            observation={name: values.copy() for name, values in board.observation.items()},
            instructions=tuple(self._instructions),
            is_success=board.flags[:, 0].astype(bool),
            is_over=board.flags[:, 1].astype(bool),
            ticks=board.flags[:, 2].copy(),
            is_drawn=board.flags[:, 3].astype(bool),
        )


class _Board:
    """Arrays of all cells in one block of memory, which processes can share.

    Args:
        config: sizes of the pictures.
        count: how many cells.
        name: of a shared block: an existing one's, empty for a new one, None for memory of this process alone.
    """

    def __init__(self, config: CellConfig, count: int, name: str | None) -> None:
        picture = (count, config.height, config.width, 3)
        shapes: list[tuple[str, tuple[int, ...], Any]] = [
            ("actions", (count, 6), np.float64),
            ("looks", (count,), np.int64),
            ("flags", (count, 4), np.int64),
            (STATE, (count, 6), np.float32),
            *((IMAGES_PREFIX + camera, picture, np.uint8) for camera in CAMERAS),
        ]
        size = sum(int(np.prod(shape)) * np.dtype(kind).itemsize for _, shape, kind in shapes)
        self._memory = None if name is None else SharedMemory(name=name or None, create=not name, size=size)
        self.name = self._memory.name if self._memory else ""
        buffer = self._memory.buf if self._memory else memoryview(bytearray(size))
        arrays: dict[str, NDArray[Any]] = {}
        begin = 0
        for key, shape, kind in shapes:
            arrays[key] = np.ndarray(shape, kind, buffer, begin)
            begin += arrays[key].nbytes
        self.actions: NDArray[np.float64] = arrays.pop("actions")
        self.looks: NDArray[np.int64] = arrays.pop("looks")
        self.flags: NDArray[np.int64] = arrays.pop("flags")
        self.observation = arrays

    def close(self, *, remove: bool) -> None:
        """Let go of the memory, and give it back to the system."""
        if self._memory is None:
            return
        self.observation = {}
        del self.actions, self.looks, self.flags
        self._memory.close()
        if remove:
            self._memory.unlink()
        self._memory = None


class _Worker:
    """A process with the cells from `first` to before `last`."""

    def __init__(self, config: CellConfig, choice: RendererChoice, board: _Board, first: int, last: int) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process shares the graphics library's state
        self._pipe, other = context.Pipe()
        arguments = (config, choice, board.name, len(board.flags), first, last, other)
        self._process = context.Process(target=_work, args=arguments, daemon=True)
        self._process.start()
        other.close()

    def ask(self, verb: str, seeds: dict[int, int]) -> None:
        """Send a command; the answer comes later."""
        try:
            self._pipe.send_bytes(json.dumps([verb, seeds]).encode())
        except (BrokenPipeError, OSError) as error:
            raise WorkerError("a process of the simulated cells has ended from outside") from error

    def answer(self, timeout_s: float | None) -> dict[str, str]:
        """Wait for the answer to the last command: number of a cell -> its new instruction."""
        try:
            if timeout_s is not None and not self._pipe.poll(timeout_s):
                raise WorkerError(f"a process of the simulated cells was not ready within {timeout_s:g} s")
            problem, found = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise WorkerError(
                "a process of the simulated cells has ended from outside",
                'this is how a lack of memory looks; a script also needs `if __name__ == "__main__":` around its work',
            ) from error
        if problem:
            raise WorkerError(f"a process of the simulated cells failed: {problem}")
        return dict(found)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _work(
    config: CellConfig, choice: RendererChoice, name: str, count: int, first: int, last: int, pipe: Connection
) -> None:
    """What a worker process does until its pipe is closed."""
    board = _Board(config, count, name)
    try:
        cells = [Cell(config, choice=choice) for _ in range(first, last)]
        pipe.send_bytes(json.dumps(["", {}]).encode())
        while True:
            verb, seeds = json.loads(pipe.recv_bytes())
            own = {int(index): seed for index, seed in seeds.items() if first <= int(index) < last}
            pipe.send_bytes(json.dumps(["", _serve(cells, first, board, verb, own)]).encode())
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    except MimeticError as error:
        pipe.send_bytes(json.dumps([error.message, {}]).encode())
    finally:
        board.close(remove=False)


def _serve(cells: Sequence[Cell], first: int, board: _Board, verb: str, seeds: dict[int, int]) -> dict[int, str]:
    """Carry out a command on cells that begin at number `first`, and write what they show on the board."""
    instructions = {}
    for number, cell in enumerate(cells, start=first):
        if verb == "reset":
            if number not in seeds:
                continue
            cell.reset(seeds[number])
            instructions[number] = cell.instruction
        elif cell.is_over:
            continue
        else:
            cell.step(board.actions[number])
        draws = verb == "reset" or cell.is_over or bool(board.looks[number])
        shown = cell.observe() if draws else {STATE: cell.state()}
        for name, values in board.observation.items():
            if name in shown:
                values[number] = shown[name]
            elif board.flags[number, 3]:
                values[number] = 0  # a picture of an earlier tick must never pass for one of this tick
        board.flags[number] = cell.succeeded, cell.is_over, cell.tick, draws
    return instructions
