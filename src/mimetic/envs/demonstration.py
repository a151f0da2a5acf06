"""One demonstration: what the cameras and joints showed, what was sent, and whether it was a success."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.envs.cell import Cell
from mimetic.envs.config import FPS
from mimetic.envs.experts import EXPERTS
from mimetic.envs.hand import Hand
from mimetic.envs.manner import CAREFUL, Manner
from mimetic.errors import SimulationError
from mimetic.names import ACTION

_SEEDS_APART = 1_000_003
_TRIES = 20


@dataclass(frozen=True)
class Demonstration:
    """An episode, frame by frame, ready for a dataset.

    Args:
        frames: `observation.state` and `action` (T, 6) float32, `observation.images.<camera>` (T, H, W, 3) uint8. Frame
            t holds what was observed, and the action that was then sent.
        instruction: the task in words.
        is_success: whether the cell says that the task was done.
        seed: of the episode's layout.
        operator: name of the manner.
        fps: frames a second.
        description: of the cell, see `Cell.description`.
    """

    frames: Mapping[str, NDArray[Any]]
    instruction: str
    is_success: bool
    seed: int
    operator: str
    fps: int
    description: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.frames[ACTION])

    def rows(self) -> Iterator[dict[str, NDArray[Any]]]:
        """The frames one by one: feature -> its value."""
        for number in range(len(self)):
            yield {name: values[number] for name, values in self.frames.items()}


def demonstrate(cell: Cell, manner: Manner, seed: int, *, pictures: bool = True) -> Demonstration:
    """Let a scripted operator do the cell's task once, from the start of an episode.

    The same cell settings, manner and seed give the same demonstration.

    Args:
        cell: it is reset to `seed`.
        manner: how the operator moves; see `manner.MANNERS`.
        seed: of layout and operator.
        pictures: False leaves the cameras out.

    Returns:
        The whole episode, whether it succeeded or not. It ends when the operator does, or at the episode's limit.
    """
    cell.reset(seed)
    rng = np.random.default_rng([seed, zlib.crc32(manner.name.encode()), _SEEDS_APART])
    frames: dict[str, list[NDArray[Any]]] = {}
    for action in EXPERTS[cell.config.task](Hand(cell, manner, rng)):
        observation = cell.observe() if pictures else {"observation.state": cell.state()}
        for name, value in (observation | {ACTION: action.astype(np.float32)}).items():
            frames.setdefault(name, []).append(value)
        cell.step(action)
        if cell.tick >= cell.episode_length:
            break
    return Demonstration(
        frames={name: np.stack(values) for name, values in frames.items()},
        instruction=cell.instruction,
        is_success=cell.succeeded,
        seed=seed,
        operator=manner.name,
        fps=FPS,
        description=cell.description(),
    )


def demonstrations(
    cell: Cell, count: int, *, manner: Manner = CAREFUL, first_seed: int = 0, only_successes: bool = True
) -> Iterator[Demonstration]:
    """Demonstrations of consecutive seeds, failures left out.

    Args:
        cell: where; it is reset for each.
        count: how many.
        manner: how the operator moves.
        first_seed: seed of the first try.
        only_successes: False keeps failures, as a sloppy recording session does.

    Raises:
        SimulationError: the operator failed many times in a row.
    """
    found, failed, seed = 0, 0, first_seed
    while found < count:
        one = demonstrate(cell, manner, seed)
        seed += 1
        if one.is_success or not only_successes:
            found, failed = found + 1, 0
            yield one
            continue
        failed += 1
        if failed == _TRIES:
            raise SimulationError(f"the {manner.name} operator failed {_TRIES} times in a row at {cell.config.task}")
