"""Initial weights of a new policy (spec/smolvla.md 5.2)."""

from __future__ import annotations

import math

from torch import nn

from mimetic.policies.smolvla.layers import DecoderLayer, RMSNorm
from mimetic.policies.smolvla.network import SmolVLANetwork

_STD = 0.02


def initialise(network: SmolVLANetwork, *, without_backbone: bool) -> None:
    """Fill the parameters.

    Transformer parts: normal with deviation 0.02, biases 0, norms 1. The projections of state, actions and time, and
    the expert's projections of the backbone's keys and values: as `torch.nn.Linear` is filled.

    Args:
        network: with allocated, unfilled parameters.
        without_backbone: leave the vision-language model, whose weights are about to be read.
    """
    expert = network.expert
    _fill_transformer(expert if without_backbone else network.vlm_with_expert)
    for layer, is_cross in zip(expert.layers, network.cross, strict=True):
        assert isinstance(layer, DecoderLayer)
        if is_cross:
            _fill_linear(layer.self_attn.k_proj)
            _fill_linear(layer.self_attn.v_proj)
    for projection in (
        network.state_proj,
        network.action_in_proj,
        network.action_out_proj,
        network.action_time_mlp_in,
        network.action_time_mlp_out,
    ):
        _fill_linear(projection)


def _fill_transformer(root: nn.Module) -> None:
    for module in root.modules():
        if isinstance(module, (nn.Linear, nn.Embedding, nn.Conv2d)):
            nn.init.normal_(module.weight, std=_STD)
            if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.LayerNorm, RMSNorm)):
            nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm):
                nn.init.zeros_(module.bias)


def _fill_linear(module: nn.Linear) -> None:
    nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
    if module.bias is not None:
        bound = 1 / math.sqrt(module.in_features)
        nn.init.uniform_(module.bias, -bound, bound)
