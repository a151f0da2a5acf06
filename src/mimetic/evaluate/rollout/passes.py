"""Which passes an evaluation makes over its episodes, and what each takes away from the policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mimetic.evaluate.ablation import PASSES, blank, instruct, other_instructions
from mimetic.evaluate.effect import BLIND, MUTE, SWAP
from mimetic.policies.checkpoint import Pretrained
from mimetic.processing.steps.normalizer import Normalizer

POLICY, COMPARE = "policy", "compare"
Alter = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Removals:
    """What further passes take away.

    Args:
        alter: changes of a raw batch, in place, by name of the pass.
        notes: one sentence for each that was asked for and is impossible.
    """

    alter: Mapping[str, Alter]
    notes: tuple[str, ...] = ()


def plan_removals(
    ablate: str, pretrained: Pretrained, inputs: Mapping[str, str], instructions: Sequence[str]
) -> Removals:
    """Decide what can be taken away.

    Args:
        ablate: value of the setting.
        pretrained: the policy.
        inputs: name in the policy -> name in the environment.
        instructions: of the episodes that were played with everything.
    """
    alter: dict[str, Alter] = {}
    notes = []
    if BLIND in PASSES[ablate]:
        colours = mean_colours(pretrained, inputs)
        if colours:
            alter[BLIND] = lambda batch: blank(batch, colours)
        else:
            notes.append("The policy reads no camera, so there is no picture to take away")
    if MUTE in PASSES[ablate]:
        if not pretrained.config.reads_instructions:
            notes.append(
                f"The policy (`{pretrained.config.type_name}`) does not read instructions, so there is no text to take "
                "away"
            )
        else:
            alter[MUTE] = lambda batch: instruct(batch, {})
            others = other_instructions(instructions)
            if others:
                alter[SWAP] = lambda batch: instruct(batch, others)
            else:
                notes.append(
                    "All episodes had the same instruction, so a wrong one was not tried; name several tasks with "
                    "`--env.task`, or `sort`, to see whether the policy follows instructions"
                )
    return Removals(alter, tuple(notes))


def mean_colours(pretrained: Pretrained, inputs: Mapping[str, str]) -> dict[str, Tensor]:
    """Mean colour of each camera by the checkpoint's statistics; mid-grey where they do not say.

    Args:
        pretrained: the policy.
        inputs: name in the policy -> name in the environment.

    Returns:
        By name in the environment, (C, 1, 1) in [0, 1] each.
    """
    colours = {}
    steps = pretrained.preprocessor.find(Normalizer)
    for name in pretrained.config.image_features:
        if name in inputs:
            means = [step.stats[name]["mean"] for step in steps if "mean" in step.stats.get(name, {})]
            mean = means[0].detach().cpu().numpy() if means else np.array([0.5])
            fits = mean.size in (1, 3) and np.isfinite(mean).all() and (mean >= 0).all() and (mean <= 1).all()
            colour = torch.as_tensor((mean if fits else np.array([0.5])).astype(np.float32)).reshape(-1, 1, 1)
            colours[inputs[name]] = colour
    return colours
