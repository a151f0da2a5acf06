"""Which episodes are evaluated, and whether the policy was trained on them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mimetic.errors import ConfigError

_SEEN = "a policy may simply remember them, so the numbers are too good to judge how it generalises"


@dataclass(frozen=True)
class Training:
    """What the checkpoint says about the data it was trained on.

    Args:
        dataset: name (or folder) of the training dataset.
        is_same: whether it is the dataset that is evaluated.
        trained: episodes that gradients were computed from.
        held_out: episodes that `--dataset.eval_split` kept from training.
    """

    dataset: str
    is_same: bool
    trained: frozenset[int] = frozenset()
    held_out: frozenset[int] = frozenset()


@dataclass(frozen=True)
class EpisodeChoice:
    """The evaluated episodes and what is known about them.

    Args:
        episodes: numbers of the episodes, ascending.
        were_trained_on: whether training used any of them; None when that is not known.
        note: the same in one sentence.
    """

    episodes: tuple[int, ...]
    were_trained_on: bool | None
    note: str


def choose_episodes(present: Sequence[int], wanted: Collection[int] | None, training: Training | None) -> EpisodeChoice:
    """Choose the episodes: the wanted ones, else those the policy has not seen, else all.

    Args:
        present: episodes of the dataset.
        wanted: episodes that the user named; None for no wish.
        training: what the checkpoint says about its training; None when it says nothing.

    Raises:
        ConfigError: a wanted episode does not exist, or nothing is left.
    """
    if wanted is not None:
        absent = sorted(set(wanted) - set(present))
        if absent:
            raise ConfigError(
                f"`--dataset.episodes` names episodes that the dataset does not have: {absent}",
                f"it has {_ranges(sorted(present))}",
            )
    if not present:
        raise ConfigError("the dataset has no episodes to evaluate")
    chosen = sorted(present if wanted is None else set(wanted))
    if training is None:
        return EpisodeChoice(
            tuple(chosen),
            None,
            "The checkpoint does not say what it was trained on (no train_config.json): "
            "these episodes may have been trained on",
        )
    if not training.is_same:
        return EpisodeChoice(
            tuple(chosen),
            None,
            f"The checkpoint was trained on another dataset, `{training.dataset}`; whether it holds these episodes too "
            "cannot be told: these episodes may have been trained on",
        )
    if wanted is None:
        unseen = sorted((training.held_out & set(present)) or (set(present) - training.trained))
        chosen = unseen or chosen
    return EpisodeChoice(tuple(chosen), *_relation(chosen, training))


def _relation(chosen: Sequence[int], training: Training) -> tuple[bool, str]:
    seen = sorted(set(chosen) & training.trained)
    if not seen:
        if set(chosen) <= training.held_out:
            return False, "These episodes were held out from training (`--dataset.eval_split`)"
        return False, "Training did not use these episodes"
    if len(seen) == len(chosen):
        return True, f"All of these episodes were part of the training data: {_SEEN}"
    return (
        True,
        f"{len(seen)} of these {len(chosen)} episodes ({_ranges(seen)}) were part of the training data: {_SEEN}",
    )


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spread and ascending; all of them when `most` is 0."""
    if most <= 0 or count <= most:
        return list(range(count))
    if most == 1:
        return [count // 2]
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 7` for 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return ", ".join(texts) if texts else "none"
