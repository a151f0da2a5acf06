"""Optimisers from their settings (spec/training.md 7)."""

from __future__ import annotations

from collections.abc import Iterable
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


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]], *, fused: bool = False
) -> torch.optim.Optimizer:
    """Build an optimiser.

    Args:
        config: its settings; everything but the clipping norm goes to torch.
        parameters: plain parameters, or torch parameter groups (`Policy.optim_groups`), whose own values win.
            Their order numbers the optimiser's state in checkpoints.
        fused: update in one pass over the memory instead of in about ten; the same formula, other rounding.

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
