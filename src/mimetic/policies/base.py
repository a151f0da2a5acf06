"""What every policy can do: four verbs on a batch, and its parameter groups.

A batch is a flat dict of tensors with LeRobot's keys, already preprocessed (normalised, on the policy's device).
Shape letters: B batch, K action chunk, A action dim.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mimetic.errors import ShapeError
from mimetic.names import VALID_PER_SAMPLE
from mimetic.policies.config import PolicyConfig
from mimetic.policies.repeated_layers import LayerClass

if TYPE_CHECKING:
    from mimetic.policies.adapter_config import AdapterConfig

Batch = Mapping[str, Any]


@dataclass(frozen=True)
class FrameEncoder:
    """A frozen function of single camera frames, whose results can be kept instead of being computed again.

    Args:
        key: changes when weights, preparation of the frames, or the meaning of the features change.
        shape: of one frame's features.
        dtype: of the features.
        cameras: the policy's names of the cameras that it encodes.
        encode: (N, C, H, W) float in [0, 1] on the policy's device -> (N, *shape), without gradients.
    """

    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    cameras: tuple[str, ...]
    encode: Callable[[Tensor], Tensor]


class Policy(nn.Module):
    """A trainable, runnable policy.

    Args:
        config: the policy's settings, with its input and output features filled in.
    """

    unused_parameters: frozenset[str] = frozenset()
    """Names of trainable parameters that training leaves without a gradient."""
    layer_classes: tuple[LayerClass, ...] = ()
    """The layers that it is a stack of, which training can recompute or compile one by one."""
    adapter: AdapterConfig | None = None
    """The adapter in its layers, set by `policies/adapters.py`; its checkpoints hold the adapter only."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Same as `loss`; wrappers for distributed training call this."""
        return self.loss(batch)

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Training loss of a batch.

        Args:
            batch: observations, `action` (B, K, A) and `action_is_pad` (B, K) bool. It may be a part of a batch that
                does not fit the memory: the mean over the parts, weighted by their samples, must be the loss of the
                whole, so what is averaged over valid actions is divided by `valid_divisor`.

        Returns:
            Scalar loss, and its named parts as detached scalars for the log; nothing is read back from the device.

        Raises:
            ShapeError: an input is missing or has another shape than the policy was built for.
        """

    @abstractmethod
    def predict_chunk(self, batch: Batch) -> Tensor:
        """Predict one action chunk in evaluation mode, without gradients.

        Args:
            batch: observations.

        Returns:
            Normalised actions (B, K, A); index 0 is the current tick.

        Raises:
            ShapeError: an input is missing or has another shape than the policy was built for.
        """

    @abstractmethod
    def select_action(self, batch: Batch) -> Tensor:
        """The next action, from the queue or from a new prediction.

        Args:
            batch: observations.

        Returns:
            Normalised action (B, A).

        Raises:
            ShapeError: an input is missing or has another shape than the policy was built for.
        """

    def needs_observation(self) -> bool:
        """Whether the next `select_action` reads its batch.

        Where it says no, the next batch may be one that cannot be read: a simulation then draws no pictures. True after
        `reset`. A policy that empties a queue overrides it; any other is given every observation.
        """
        return True

    def predicts_next(self) -> bool:
        """Whether the next `select_action` predicts, if it reads its batch at all.

        An evaluation counts predictions by it, and measures how long they take. A policy that reads some observations
        only to remember them overrides it.
        """
        return True

    @abstractmethod
    def reset(self) -> None:
        """Forget the episode: empty queues and averages."""

    @abstractmethod
    def optim_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the policy's training preset, as torch optimisers take them.

        The order of groups and parameters numbers the optimiser's state in checkpoints and must never change.
        """

    def frame_encoder(self) -> FrameEncoder | str:
        """The frozen part that looks at single camera frames, or why there is none to be cached."""
        return f"policy `{self.config.type_name}` has no frozen camera encoder"

    def companion_files(self) -> dict[str, bytes]:
        """Small files that travel in the checkpoint's folder, by relative path; LeRobot ignores them."""
        return {}


def valid_divisor(batch: Batch, valid: Tensor, width: int) -> Tensor:
    """What a sum over valid actions is divided by, so that parts of a batch have the weight that they have in it.

    Args:
        batch: the batch, or a part of one; a part says how many valid actions the whole has a sample.
        valid: (R, K, 1) bool, true for actions inside the episode; R is a multiple of the samples.
        width: values of an action.

    Returns:
        A scalar above 0, on the device of `valid`.
    """
    of_whole = batch.get(VALID_PER_SAMPLE)
    if isinstance(of_whole, Tensor):
        return of_whole * (valid.shape[0] * width)
    return (valid.sum() * width).clamp(min=1)


def take_input(batch: Batch, key: str, shape: tuple[int, ...]) -> Tensor:
    """One floating-point input of a batch, checked against the shape that a policy expects.

    Args:
        batch: the batch.
        key: feature name.
        shape: shape of one sample, without the batch dimension.

    Returns:
        (B, *shape).

    Raises:
        ShapeError: the input is missing, not floating-point, or has another shape.
    """
    value = batch.get(key)
    if not isinstance(value, Tensor):
        tensors = [f"`{name}`" for name in sorted(k for k, item in batch.items() if isinstance(item, Tensor))]
        raise ShapeError(
            f"the batch has no `{key}`, which the policy reads; it has {', '.join(tensors) or 'none'}",
            "give the policy the inputs it was built for, or rename them with `--rename_map`",
        )
    if tuple(value.shape[1:]) != shape:
        raise ShapeError(
            f"`{key}` has shape {tuple(value.shape)}, and the policy was built for (batch, {_listed(shape)})",
            "use data with the shapes of the policy's config.json, or train a policy for this shape",
        )
    if not value.is_floating_point():
        raise ShapeError(
            f"`{key}` has dtype {value.dtype}, and the policy reads normalised floating-point values",
            "run the policy's preprocessor on the batch first",
        )
    return value


def _listed(shape: tuple[int, ...]) -> str:
    return ", ".join(str(n) for n in shape)
