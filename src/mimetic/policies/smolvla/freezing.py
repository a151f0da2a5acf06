"""Which parameters are trained, and in which dtype each one is kept (spec/smolvla.md 10.1, 10.2)."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from torch import nn

from mimetic import log
from mimetic.errors import ConfigError
from mimetic.policies.bricks.bfloat16 import has_native_bfloat16
from mimetic.policies.bricks.int8_linear import int8_works
from mimetic.policies.bricks.master_weights import MasterLinear
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.layers import DecoderLayer, RMSNorm
from mimetic.policies.smolvla.network import SmolVLANetwork

logger = logging.getLogger(__name__)
Precision = Literal["mixed", "released", "float32"]


def freeze(network: SmolVLANetwork, config: SmolVLAConfig) -> None:
    """Mark what is trained.

    Args:
        network: its parameters' `requires_grad` is set.
        config: `freeze_vision_encoder`, `train_expert_only`, `train_state_proj`.
    """
    network.requires_grad_(True)
    vlm = network.vlm_with_expert.vlm
    text = vlm.model.text_model
    if config.train_expert_only and not config.freeze_vision_encoder:
        log.once(
            logger,
            logging.WARNING,
            "--policy.freeze_vision_encoder=false has no effect: --policy.train_expert_only=true keeps the whole "
            "vision-language model as it is",
        )
    if config.freeze_vision_encoder:
        vlm.model.vision_model.requires_grad_(False)
    if config.train_expert_only:
        vlm.requires_grad_(False)
    else:
        # They would get no gradient: nothing that the expert reads depends on them.
        vlm.lm_head.requires_grad_(False)
        text.norm.requires_grad_(False)
        unused = 1 if network.stride == 1 else 2
        for layer in list(text.layers)[-unused:]:
            layer.requires_grad_(False)
    network.state_proj.requires_grad_(config.train_state_proj)


def choose_precision(config: SmolVLAConfig, device: torch.device) -> Precision:
    """The dtype plan that `--policy.precision` means on a device."""
    if config.precision == "auto":
        return "mixed" if has_native_bfloat16(device) else "float32"
    return config.precision


def set_dtypes(network: SmolVLANetwork, config: SmolVLAConfig, precision: Precision) -> None:
    """Give every parameter its dtype; `freeze` comes first.

    mixed: what is frozen is bfloat16; what is trained is float32 and multiplied in bfloat16, with a float32 residual
    stream. released: the dtypes in which LeRobot builds the model. float32: everything.

    Args:
        network: its parameters are cast.
        config: settings.
        precision: the plan.
    """
    if precision == "float32":
        network.float()
    elif precision == "released":
        _set_released(network, config)
    else:
        _set_mixed(network)


def set_int8(network: SmolVLANetwork, device: torch.device) -> None:
    """Multiply pictures and words in 8-bit integers in evaluation; the expert stays as it is.

    Raises:
        ConfigError: the device is not a CPU, or this CPU or torch has no fast integer product.
    """
    if device.type != "cpu":
        raise ConfigError(f"`--policy.int8=true` is for CPUs, and the device is `{device}`", "leave it out")
    if not int8_works():
        raise ConfigError(
            "`--policy.int8=true`: this processor or this torch has no fast product of 8-bit integers", "leave it out"
        )
    vlm = network.vlm
    for module in (*vlm.vision_model.modules(), *vlm.text_model.modules()):
        if isinstance(module, MasterLinear):
            module.int8 = True


def _set_released(network: SmolVLANetwork, config: SmolVLAConfig) -> None:
    sizes = network.sizes
    both = network.vlm_with_expert
    network.float()
    # LeRobot loads the weights of the vision-language model in bfloat16, and the expert takes over that dtype.
    text_dtype = torch.bfloat16 if config.load_vlm_weights else sizes.text_dtype
    both.vlm.to(torch.bfloat16 if config.load_vlm_weights else sizes.vision_dtype)
    both.vlm.model.text_model.to(text_dtype)
    both.lm_expert.to(text_dtype)
    for layer, is_cross in zip(both.lm_expert.layers, network.cross, strict=True):
        assert isinstance(layer, DecoderLayer)
        if is_cross:
            layer.self_attn.k_proj.float()
            layer.self_attn.v_proj.float()
    for module in network.modules():
        if isinstance(module, RMSNorm):
            module.is_reference = True
        elif isinstance(module, MasterLinear):
            module.may_pack = False
    both.vlm.model.vision_model.keep_reference_kernels()
    network.kernel = "reference"


def _set_mixed(network: SmolVLANetwork) -> None:
    both = network.vlm_with_expert
    network.split_time = True
    small = {id(p) for module in _projections(network) for p in module.parameters()}
    for parameter in network.parameters():
        keeps = parameter.requires_grad or id(parameter) in small
        parameter.data = parameter.data.to(torch.float32 if keeps else torch.bfloat16)
    for module in (*both.lm_expert.modules(), *both.vlm.modules()):
        if isinstance(module, MasterLinear):
            module.compute_dtype = torch.bfloat16
    for layer in (*both.lm_expert.layers, *both.vlm.model.text_model.layers):
        assert isinstance(layer, DecoderLayer)
        layer.wide_residual = layer.mlp.down_proj.weight.requires_grad


def _projections(network: SmolVLANetwork) -> list[nn.Module]:
    return [
        network.state_proj,
        network.action_in_proj,
        network.action_out_proj,
        network.action_time_mlp_in,
        network.action_time_mlp_out,
    ]
