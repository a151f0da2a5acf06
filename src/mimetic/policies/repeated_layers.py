"""The layers that a policy is a stack of: what training recomputes or compiles one by one (later: shards).

A layer keeps its place, its name and its parameters; only the call of its `forward` is exchanged, and only while the
policy trains. A module around it would do the same and change every name in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from mimetic.policies.base import Policy

Forward = Callable[..., Any]
"""Takes the layer and its inputs, as the unbound `forward` of a module's class does."""


@dataclass(frozen=True)
class LayerClass:
    """One kind of layer in a policy's declaration.

    Args:
        kind: the class of the modules.
        name: plural, for the log.
        is_uniform: whether the layers have few shapes among them, so that one compilation serves many.
        varying_sizes: whether the sizes of the inputs change from batch to batch, beyond the size of the batch.
        passes_gradients: whether gradients go through the layer even when its weights are frozen.
    """

    kind: type[nn.Module]
    name: str
    is_uniform: bool = True
    varying_sizes: bool = False
    passes_gradients: bool = False


def differentiated_layers(policy: Policy) -> dict[LayerClass, list[nn.Module]]:
    """The declared layers that a backward pass goes through, by class, in the order of the modules."""
    found: dict[LayerClass, list[nn.Module]] = {}
    for each in policy.layer_classes:
        layers = [module for module in policy.modules() if type(module) is each.kind]
        layers = [layer for layer in layers if each.passes_gradients or _is_trained(layer)]
        if layers:
            found[each] = layers
    return found


def describe(layers: dict[LayerClass, list[nn.Module]]) -> str:
    """How many there are of each, in words."""
    counts = ((len(group), each.name) for each, group in layers.items())
    return ", ".join(f"{n} {name if n > 1 else name.removesuffix('s')}" for n, name in counts)


class TrainingForward:
    """Stands in a layer's `forward`: in training with gradients it runs in another way, otherwise as it is.

    An object with the layer inside, not a function over it: a copy of the policy then copies this with its own layer.

    Args:
        layer: the layer.
        forward: what runs in training.
    """

    def __init__(self, layer: nn.Module, forward: Forward) -> None:
        self.layer = layer
        self.forward = forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """As the layer's `forward`."""
        layer = self.layer
        if layer.training and torch.is_grad_enabled():
            return self.forward(layer, *inputs, **options)
        return type(layer).forward(layer, *inputs, **options)


def training_forward(layer: nn.Module) -> Forward:
    """What the layer runs in training, taking the layer and its inputs."""
    current = layer.__dict__.get("forward")
    return current.forward if isinstance(current, TrainingForward) else type(layer).forward


def set_training_forward(layer: nn.Module, forward: Forward) -> None:
    """Let the layer run something else in training; names, parameters and evaluation stay."""
    layer.__dict__["forward"] = TrainingForward(layer, forward)


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
