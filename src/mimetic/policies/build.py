"""From settings to a policy on a device, whatever its kind."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from mimetic.accelerators.devices import choose_device
from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.base import Policy
from mimetic.policies.catalog import POLICIES
from mimetic.policies.config import PolicyConfig

logger = logging.getLogger(__name__)


def make_policy(
    config: PolicyConfig,
    *,
    input_features: Mapping[str, PolicyFeature] | None = None,
    output_features: Mapping[str, PolicyFeature] | None = None,
    device: str = "cpu",
    init_backbone: bool = True,
) -> Policy:
    """Build a policy with fresh weights; it seeds nothing, so seed torch before for reproducible ones.

    Args:
        config: settings; its input features, when there are any, win over `input_features` (the order of cameras is
            part of the model) and are checked against them.
        input_features: what the dataset or robot offers, after renaming, in its order.
        output_features: what the policy is to predict; wins over the config's.
        device: where the policy goes.
        init_backbone: fetch pretrained parts that the config names; false when a checkpoint is about to be loaded.

    Returns:
        The policy in training mode; its `config` holds features and device.

    Raises:
        ConfigError: the settings have problems (all are listed), or do not fit what the dataset offers.
        DeviceError: the device is not there.
    """
    target, _ = choose_device(device)
    if config.input_features and input_features:
        check_inputs(config, input_features)
    inputs = dict(config.input_features or input_features or {})
    config = replace(
        config,
        input_features=inputs | {key: feature for key, feature in config.filler_inputs.items() if key not in inputs},
        output_features=dict(output_features or config.output_features or {}),
        device=device,
    )
    if input_features and config.unread_inputs:
        logger.warning("inputs that the policy does not read: %s", ", ".join(config.unread_inputs))
    problems = config.check()
    if problems:
        raise ConfigError("; ".join(problems), f"change the named flags; `--policy.type` is {config.type_name}")
    policy: Policy = POLICIES.load(config.type_name)(config, init_backbone=init_backbone)
    return policy.to(target)


def check_inputs(config: PolicyConfig, available: Mapping[str, PolicyFeature]) -> None:
    """Check that a policy with fixed inputs can be fed (spec/policies.md 2, "Consistency check").

    Args:
        config: settings with input features.
        available: what the dataset or robot offers, after renaming.

    Raises:
        ConfigError: the cameras differ on both sides, or the policy's kind needs what is not offered; all problems.
    """
    wanted = list(config.image_features)
    offered = [key for key, feature in available.items() if feature.type is FeatureType.VISUAL]
    missing = [key for key in wanted if key not in offered and key not in config.filler_inputs]
    extra = [key for key in offered if key not in wanted]
    problems = []
    if missing and extra:
        problems.append(
            f"the policy's cameras are {_names(wanted)} and the dataset's are {_names(offered)}: "
            f"{_names(missing)} missing, {_names(extra)} not known to the policy"
        )
    problems += [text for text in config.input_problems(available) if text not in problems]
    if problems:
        rename = ", ".join(f'"{there}": "{here}"' for there, here in zip(extra, missing, strict=False))
        hint = (
            f"rename the dataset's features, for example `--rename_map='{{{rename}}}'`"
            if rename
            else "use data with the features of the policy's config.json, or train a new policy with `--policy.type`"
        )
        raise ConfigError("feature mismatch: " + "; ".join(problems), hint)
    if extra:
        logger.info("cameras that the policy does not use: %s", ", ".join(extra))


def _names(keys: list[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys) or "none"
