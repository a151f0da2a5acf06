"""The recorded side of an open-loop evaluation: actions and states as arrays, cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mimetic.errors import DatasetFormatError
from mimetic.evaluate.episodes import spread
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.metrics import Bools, Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows [first, last) of one episode."""

    episode: int
    first: int
    last: int
    task: str

    @property
    def frames(self) -> int:
        """Number of frames."""
        return self.last - self.first


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Recorded actions of the evaluated episodes: F frames, A joints, P state dimensions, dataset units.

    Args:
        actions: (F, A).
        states: (F, P); None when the dataset has no state.
        spans: rows of each episode, in row order.
    """

    actions: Floats
    states: Floats | None
    spans: tuple[Span, ...]

    def check(self) -> None:
        """Refuse actions that are not finite: no error can be measured against them.

        Raises:
            DatasetFormatError: names the first such episode, frame and joint.
        """
        bad = np.argwhere(~np.isfinite(self.actions))
        if len(bad):
            row, joint = (int(value) for value in bad[0])
            span = next(span for span in self.spans if span.first <= row < span.last)
            raise DatasetFormatError(
                f"the recorded action is {self.actions[row, joint]} in episode {span.episode}, frame "
                f"{row - span.first}, dimension {joint} ({len(bad)} such values)",
                f"leave the episode out: `--dataset.exclude_episodes=[{span.episode}]`",
            )

    def starts(self, stride: int, most: int = 0) -> Ints:
        """Rows at which chunks are predicted: every `stride` frames from the start of each episode.

        Args:
            stride: frames between two of them.
            most: how many at most, evenly spread; 0 takes all.
        """
        rows = np.concatenate([np.arange(span.first, span.last, stride) for span in self.spans])
        return rows[spread(len(rows), most)].astype(np.int64)

    def spans_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Episode number and row after the last of the episode, for each row."""
        last = np.array([span.last for span in self.spans])
        which = np.searchsorted(last, rows, side="right")
        return np.array([span.episode for span in self.spans])[which].astype(np.int64), last[which].astype(np.int64)

    def chunks(self, rows: Ints, steps: int) -> tuple[Floats, Bools]:
        """Recorded chunks that start at rows, repeated beyond the end of the episode.

        Returns:
            Actions, (n, steps, A), and whether each step lies inside the episode, (n, steps).
        """
        _, last = self.spans_of(rows)
        wanted = rows[:, None] + np.arange(steps)
        valid = wanted < last[:, None]
        return self.actions[np.minimum(wanted, last[:, None] - 1)], valid

    def poses(self, rows: Ints, hold: HoldPose) -> Floats:
        """What holding still sends at rows, (n, A)."""
        if hold.columns is None or self.states is None:
            return self.actions[rows]
        return self.states[rows][:, list(hold.columns)]


def spans_from_bounds(episodes: Sequence[int], first: Ints, last: Ints, tasks: Sequence[str]) -> tuple[Span, ...]:
    """Spans of the episodes of a dataset.

    Args:
        episodes: their numbers, in row order.
        first: first row of each, (E,).
        last: row after the last of each, (E,).
        tasks: task of each.
    """
    return tuple(
        Span(episode=int(episode), first=int(start), last=int(end), task=task)
        for episode, start, end, task in zip(episodes, first, last, tasks, strict=True)
    )
