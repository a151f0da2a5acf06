"""A named list of steps between a batch and a policy, or between a policy and the robot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from mimetic.errors import ShapeError
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition, join_batch, split_batch

StepT = TypeVar("StepT", bound=Step)


class Pipeline:
    """Steps in order; a preprocessor is called with a batch, a postprocessor with `run_action`.

    Args:
        name: name in the pipeline file, such as `policy_preprocessor`.
        steps: the steps in order.
    """

    def __init__(self, name: str, steps: Sequence[Step]) -> None:
        self.name = name
        self.steps = list(steps)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Process a batch; neither the mapping nor its tensors are changed.

        Args:
            batch: flat batch with LeRobot's keys; cameras uint8 or float in [0, 1].

        Returns:
            A new flat batch: `action`, `next.*`, `info`, padding masks, indices, `task`, observations. Other keys are
            dropped.

        Raises:
            ShapeError: a tensor does not fit the statistics.
            StatsError: a feature that must be normalised has no statistics.
        """
        transition = split_batch(batch)
        for step in self.steps:
            step(transition)
        return join_batch(transition)

    def run_action(self, action: Tensor) -> Tensor:
        """Process a bare action tensor, such as the output of a policy.

        Args:
            action: (B, A) or (B, K, A), normalised.

        Returns:
            Same shape, in the units of the dataset, on the device of the pipeline's last device step.

        Raises:
            ShapeError: not a tensor, or it does not fit the statistics.
        """
        if not isinstance(action, torch.Tensor):
            raise ShapeError(
                f"`{self.name}` was given a {type(action).__name__} where an action tensor is needed",
                "pass what `select_action` or `predict_chunk` returns; a batch goes through the preprocessor",
            )
        transition = Transition(action=action)
        for step in self.steps:
            step(transition)
        assert transition.action is not None
        return transition.action

    def find(self, kind: type[StepT]) -> list[StepT]:
        """Steps of one class, in order."""
        return [step for step in self.steps if isinstance(step, kind)]

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {[step.registry_name for step in self.steps]})"
