"""What an environment must offer to be evaluated in; nothing here knows one by name.

An adapter is a function from the environment's settings (`--env.*`) to its `EnvTask`s, and stands in
`adapters.py`. It speaks the names of the datasets that policies were trained on, so that a policy needs nothing
but its own pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mimetic.data.features import DatasetFeature


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What n places of an environment show.

    Args:
        observation: by dataset name: cameras (n, H, W, C) uint8, vectors (n, D) float32.
        instructions: the task of each place in words; empty where there is none.
        rewards: of the last step (n,) float64.
        is_success: whether the task has succeeded (n,) bool; stays true to the end of the episode.
        is_over: whether the episode has ended (n,) bool; such a place stands still until its next episode.
        views: pictures for a film, (n, H, W, 3) uint8 each; they are laid side by side.
        is_drawn: whether the cameras and views of each place show this tick (n,) bool; None: all do.
    """

    observation: Mapping[str, NDArray[Any]]
    instructions: tuple[str, ...]
    rewards: NDArray[np.float64]
    is_success: NDArray[np.bool_]
    is_over: NDArray[np.bool_]
    views: Mapping[str, NDArray[np.uint8]]
    is_drawn: NDArray[np.bool_] | None = None


class Places(Protocol):
    """Several episodes at once; every one is the same whichever place it runs in."""

    def begin(self, place: int, seed: int) -> Shown:
        """Begin the episode of a seed in one place, which is drawn; the others stay as they are."""

    def step(self, actions: NDArray[np.float64], looks: NDArray[np.bool_]) -> Shown:
        """Send each place its action (n, A); places whose episode has ended stand still.

        `looks` (n,) bool says where somebody reads the pictures. Drawing elsewhere is a waste, but never wrong; where
        an episode ends with this step, the outcome is always drawn. Vectors are there at every step.
        """

    def description(self) -> Mapping[str, Any]:
        """What a reader must know to repeat this, as plain values for JSON."""

    def close(self) -> None:
        """Give back processes and renderers."""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """What a variation changes, compared with another one, in words for a report.

    Args:
        reference: the other variation.
        short: what is changed, in a few words: "the light".
        depends: half a sentence for a policy that the change costs successes.
        not_found: half a sentence where no difference was found.
        is_harder: whether success is expected to fall from the reference to here; false where this variation is the
            easier one.
    """

    reference: str
    short: str
    depends: str
    not_found: str
    is_harder: bool = True


@dataclass(frozen=True, kw_only=True)
class EnvTask:
    """One task in one variation, which gets a success rate of its own.

    Args:
        group: suite that it is reported in, as LeRobot's `task_group`.
        task_id: its number in that suite.
        task: its name.
        split: the variation; empty where there is only one.
        features: what it shows and takes (`action`), as a dataset of it declares them.
        fps: control ticks a second [Hz].
        episode_length: ticks after which an episode is cut off.
        units: of states and actions, as the environment's settings name them; empty where there is no choice.
        ranges: feature -> smallest and largest value of each number (D,); where known.
        shift: what the variation changes; None where nothing is to be compared.
        robot_type: for datasets recorded in it; None where there is no such robot.
        picture_flags: settings of the width and height of its pictures; None where they have one size.
        open: (places, processes) -> the places; 0 processes runs all in this one.
    """

    group: str
    task_id: int
    task: str
    split: str
    features: Mapping[str, DatasetFeature]
    fps: int
    episode_length: int
    open: Callable[[int, int], Places]
    units: str = ""
    ranges: Mapping[str, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    shift: Shift | None = None
    robot_type: str | None = None
    picture_flags: tuple[str, str] | None = ("width", "height")

    @property
    def folder(self) -> str:
        """Name of its folder of videos."""
        return f"{self.group}_{self.task_id}"

    @property
    def title(self) -> str:
        """For tables."""
        return f"{self.task}, {self.split}" if self.split else self.task
