"""Optimisers from their settings (spec/training.md 7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from mimetic.errors import ConfigError
from mimetic.optim.config import AdamConfig, AdamWConfig, OptimizerConfig, SGDConfig, as_kwargs

_CLASSES: dict[type[OptimizerConfig], Any] = {
    AdamConfig: torch.optim.Adam,
    AdamWConfig: torch.optim.AdamW,
    SGDConfig: torch.optim.SGD,
}
_FUSED_DEVICES = ("cpu", "cuda")


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], *, fused: bool = False
) -> torch.optim.Optimizer:
    """Build an optimiser.

    Args:
        config: its settings; everything but the clipping norm goes to torch.
        parameters: plain parameters, or torch parameter groups (`Policy.optim_groups`), whose own values win.
            Their order numbers the optimiser's state in checkpoints.
        fused: update in one pass over the memory instead of in about ten; the same formula, other rounding. Where
            `can_fuse`. Such updates do not count as new versions of the weights (`Tensor._version`).

    Returns:
        A torch optimiser.

    Raises:
        ConfigError: mimetic has no optimiser for these settings, or torch refuses a value.
    """
    optimizer = _CLASSES.get(type(config))
    if optimizer is None:
        raise ConfigError(
            f"there is no optimiser for settings of type {type(config).__name__}",
            "choose `--optimizer.type` from adam, adamw, sgd",
        )
    try:
        groups: list[Any] = list(parameters)
        made: torch.optim.Optimizer = optimizer(groups, **as_kwargs(config), fused=fused or None)
    except ValueError as error:
        raise ConfigError(f"torch refuses the optimiser's settings: {error}", "change `--optimizer.*`") from error
    return made


def can_fuse(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether the fused update is the plain one up to the rounding of float32.

    Weights narrower than float32 are rounded once in it and several times in torch's plain update, which LeRobot uses.

    Args:
        parameters: of the policy; only those that are trained count.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return all(p.dtype == torch.float32 and p.device.type in _FUSED_DEVICES for p in trained)


def describe_optimizer(name: str, config: OptimizerConfig, optimizer: torch.optim.Optimizer) -> str:
    """One line on what an optimiser does, such as `optimiser: adamw lr=0.0001 betas=(0.9, 0.95) ...`.

    Args:
        name: its name in `--optimizer.type`.
        config: the settings that it was made from.
        optimizer: whose parameter groups may have learning rates of their own.
    """
    settings = " ".join(f"{item.name}={_short(getattr(config, item.name))}" for item in fields(config))
    # `initial_lr` is the rate before the schedule.
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    own = sorted({rate for rate in rates if rate != config.lr})
    return f"optimiser: {name} {settings}" + (f", and lr={', '.join(map(_short, own))} for some weights" if own else "")


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
