"""The optimiser and schedule that a policy brings along (spec/training.md 9), without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from mimetic.train.config import TrainConfig


def with_preset(config: TrainConfig, origins: Mapping[str, str]) -> tuple[TrainConfig, dict[str, str]]:
    """Settings and origins as training will use them: optimiser and schedule of the policy's preset are filled in.

    Args:
        config: settings as parsed; unchanged without a policy, on resume, and with presets switched off.
        origins: where each setting comes from, by dotted flag.
    """
    found = dict(origins)
    if config.policy is None or config.resume or not config.use_policy_training_preset:
        return config, found
    optimizer, scheduler = config.policy.optimizer_preset(), config.policy.scheduler_preset()
    for group, preset in (("optimizer", optimizer), ("scheduler", scheduler)):
        found = {name: origin for name, origin in found.items() if not name.startswith(f"{group}.")}
        names = [item.name for item in fields(preset)] if preset is not None else []
        found |= dict.fromkeys([group, f"{group}.type", *(f"{group}.{name}" for name in names)], "preset")
    return replace(config, optimizer=optimizer, scheduler=scheduler), found


def overwritten_flags(config: TrainConfig, origins: Mapping[str, str]) -> list[str]:
    """Flags of the optimiser or schedule that the preset overwrites, sorted."""
    if config.resume or not config.use_policy_training_preset:
        return []
    groups = ("optimizer.", "scheduler.")
    return sorted(f"--{name}" for name, origin in origins.items() if name.startswith(groups) and origin == "flag")
