"""Which episodes are held out for evaluation (spec/dataset.md 11.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from mimetic.errors import ConfigError


class EpisodeTasks(Protocol):
    """What the split needs to know about an episode."""

    @property
    def episode_index(self) -> int:
        """Number of the episode."""
        ...

    @property
    def tasks(self) -> Sequence[str]:
        """Tasks of the episode, the first one first."""
        ...


def split_episodes(episodes: Sequence[EpisodeTasks], fraction: float) -> tuple[list[int], list[int]]:
    """Hold out the last episodes of every task.

    Episodes are grouped by their first task, groups in order of first appearance; of each group of n the last
    `ceil(n * fraction)` are held out.

    Args:
        episodes: the episodes to divide, in the order in which they were asked for.
        fraction: share to hold out, in [0, 1).

    Returns:
        Episode numbers for training and for evaluation, group after group.

    Raises:
        ConfigError: the fraction is outside [0, 1), or no episode is left for training.
    """
    if not 0.0 <= fraction < 1.0:
        raise ConfigError(f"`--dataset.eval_split={fraction}` must lie in [0, 1)")
    groups: dict[str, list[int]] = {}
    for episode in episodes:
        first_task = next(iter(episode.tasks), "")
        groups.setdefault(first_task, []).append(int(episode.episode_index))
    train: list[int] = []
    held_out: list[int] = []
    for group in groups.values():
        n_train = len(group) - math.ceil(len(group) * fraction)
        train += group[:n_train]
        held_out += group[n_train:]
    if not train:
        sizes = ", ".join(f"{len(group)} of `{task}`" for task, group in groups.items())
        raise ConfigError(
            f"`--dataset.eval_split={fraction}` leaves no episode for training: there are {sizes or 'none'}",
            "the share is rounded up for each task; take a smaller `--dataset.eval_split` or more episodes",
        )
    return train, held_out
