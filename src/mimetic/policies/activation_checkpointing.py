"""`--accelerator.activation_checkpointing.mode=full`: layers whose insides are computed again in the backward pass.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
"""

from __future__ import annotations

from functools import partial

from mimetic.errors import ConfigError
from mimetic.policies.base import Policy
from mimetic.policies.bricks.recompute import recompute_layer
from mimetic.policies.repeated_layers import (
    describe,
    differentiated_layers,
    set_training_forward,
    training_forward,
)

_FLAG = "--accelerator.activation_checkpointing.mode"


def checkpoint_activations(policy: Policy) -> str:
    """Let every declared layer keep only its inputs in training; gradients, names and evaluation stay the same.

    Args:
        policy: changed in place; layers that are compiled already are recomputed as compiled.

    Returns:
        A sentence for the log.

    Raises:
        ConfigError: the policy declares no layers, or none of them is trained.
    """
    layers = differentiated_layers(policy)
    if not layers:
        raise ConfigError(
            f"`{_FLAG}=full`: policy `{policy.config.type_name}` has no layers that could be computed again",
            f"leave it out, or set `{_FLAG}=none`",
        )
    for group in layers.values():
        for layer in group:
            set_training_forward(layer, partial(recompute_layer, training_forward(layer)))
    return (
        f"activation checkpointing: only the inputs of {describe(layers)} are kept, and the rest is computed again in "
        f"the backward pass ({_FLAG}=none keeps everything)"
    )
