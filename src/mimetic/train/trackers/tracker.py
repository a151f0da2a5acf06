"""What a place is that a run's numbers are copied to, and the names that they have there (spec/training.md 12, 13).

`metrics.jsonl` is the record; trackers show a copy. What cannot work is refused before the first step. After it,
no tracker holds up or ends a training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

_PREFIXES = {"train": "train", "heldout": "eval", "environment": "eval"}


class Tracker(Protocol):
    """A place that numbers are copied to while a run goes on."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Copy the scalars of one record of `metrics.jsonl`; returns at once."""

    def saved(self, folder: Path, step: int) -> None:
        """Hear that a checkpoint is complete; returns at once, and the folder may be removed right after.

        Args:
            folder: the checkpoint, `<run>/checkpoints/<step>`.
            step: steps done.
        """

    def close(self, *, exit_code: int) -> None:
        """Hand over what is left, for a limited time.

        Args:
            exit_code: 0 when the training ended well.
        """


def named_values(record: Mapping[str, Any]) -> dict[str, float]:
    """Scalars of a record of `metrics.jsonl` under LeRobot's names, such as `train/loss` and `eval/eval_loss`.

    A group in a training record is spelled with a slash: `{"ema": {"decay": 0.9}}` is `train/ema/decay`. Texts, flags,
    and records of other kinds have no value here.
    """
    prefix = _PREFIXES.get(record.get("kind", ""))
    if prefix is None:
        return {}
    if prefix == "eval":  # its groups have the words of tasks as names
        return {f"eval/{name}": value for name, value in record.items() if name != "steps" and _is_number(value)}
    return {f"train/{name}": value for name, value in _flat(record)}


def _flat(group: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in group.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif _is_number(value):
            yield f"{prefix}{name}", value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
