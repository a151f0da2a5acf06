"""Takes an input away from a policy, to see whether it looks at its cameras and follows its instruction.

    blind   every camera shows its mean colour
    mute    the instruction is empty
    swap    the instruction is that of another task of the dataset

A policy may miss a text without understanding it, so `swap` decides whether it follows instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mimetic.data.dataset import Dataset
from mimetic.evaluate.effect import BLIND, MUTE, SWAP
from mimetic.names import TASK, TASK_INDEX
from mimetic.policies.checkpoint import Pretrained

Batch = dict[str, Any]
Alter = Callable[[Batch], None]

PASSES = {"none": (), "blind": (BLIND,), "mute": (MUTE, SWAP), "all": (BLIND, MUTE, SWAP)}
"""Further passes over the episodes, by the value of `--ablate`."""


@dataclass(frozen=True)
class Removals:
    """What is to be taken away in further passes, and what cannot be.

    Args:
        alter: changes of a raw batch, in place, by name of the pass.
        notes: one sentence for each that was asked for and is impossible.
    """

    alter: Mapping[str, Alter]
    notes: tuple[str, ...] = ()


def plan_removals(
    ablate: str, pretrained: Pretrained, dataset: Dataset, names: Mapping[str, str], *, instructions: Sequence[str]
) -> Removals:
    """Decide what can be taken away.

    Args:
        ablate: value of the setting.
        pretrained: the policy.
        dataset: the evaluated view of the dataset.
        names: name of each input in the policy -> name in the dataset.
        instructions: tasks of the evaluated episodes.
    """
    alter: dict[str, Alter] = {}
    notes: list[str] = []
    wanted = PASSES[ablate]
    if BLIND in wanted:
        colours = mean_colours(pretrained, dataset, names)
        if colours:
            alter[BLIND] = lambda batch: blank(batch, colours)
        else:
            notes.append("The policy reads no camera, so there is no picture to take away")
    if MUTE in wanted:
        if not pretrained.config.reads_instructions:
            notes.append(f"The policy (`{pretrained.config.type_name}`) does not read instructions")
        elif not any(text.strip() for text in instructions):
            notes.append("The evaluated episodes have no instruction, so there is no text to take away")
        else:
            alter[MUTE] = lambda batch: instruct(batch, {})
            others = other_instructions([text for episode in dataset.meta.episodes for text in episode.tasks])
            if others:
                alter[SWAP] = lambda batch: instruct(batch, others)
            else:
                notes.append(
                    "All episodes of the dataset have the same instruction, so a wrong one cannot be tried: "
                    "whether the policy follows instructions cannot be told"
                )
    return Removals(alter, tuple(notes))


def mean_colours(pretrained: Pretrained, dataset: Dataset, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Mean colour of each camera that the policy reads, by name in the dataset; mid-grey where it is not known.

    Args:
        pretrained: the policy.
        dataset: whose statistics are used.
        names: name in the policy -> name in the dataset.

    Returns:
        (C, 1, 1) in [0, 1] each.
    """
    colours = {}
    for name in pretrained.config.image_features:
        if name in names:
            mean = dataset.meta.stats.get(names[name], {}).get("mean")
            colours[names[name]] = (
                torch.full((1, 1, 1), 0.5)
                if mean is None
                else torch.as_tensor(np.asarray(mean, np.float32)).reshape(-1, 1, 1)
            )
    return colours


def blank(batch: Batch, colours: Mapping[str, Tensor]) -> None:
    """Replace cameras of a raw batch by flat colours."""
    for key, colour in colours.items():
        camera = batch[key]
        filling = colour if camera.is_floating_point() else (colour * 255.0).round()
        batch[key] = filling.to(camera.dtype).expand_as(camera)


def other_instructions(texts: Sequence[str]) -> dict[str, str]:
    """For each task of a dataset the next one, around in a circle; empty when there are fewer than two.

    Args:
        texts: tasks in order of appearance, with repetitions; differences in outer white space do not count.
    """
    distinct = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if len(distinct) < 2:
        return {}
    return dict(zip(distinct, [*distinct[1:], distinct[0]], strict=True))


def instruct(batch: Batch, instead: Mapping[str, str]) -> None:
    """Replace the tasks of a raw batch, and leave out their numbers, which would give the old ones away.

    Args:
        batch: changed in place.
        instead: new text by text; a text that is not in it becomes empty.
    """
    batch[TASK] = [instead.get(text.strip(), "") for text in batch[TASK]]
    batch.pop(TASK_INDEX, None)
