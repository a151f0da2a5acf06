"""Whether a policy that needs each input exactly as it was built for can be fed."""

from __future__ import annotations

from collections.abc import Mapping

from mimetic.features import PolicyFeature
from mimetic.policies.config import PolicyConfig


def fixed_input_problems(config: PolicyConfig, available: Mapping[str, PolicyFeature]) -> list[str]:
    """Inputs that are read, and that are not offered or have another shape.

    Args:
        config: settings with input features.
        available: what the dataset or robot offers, after renaming.

    Returns:
        One sentence each.
    """
    read = {key: one for key, one in (config.input_features or {}).items() if key not in config.unread_inputs}
    return [problem for key, feature in read.items() if (problem := fixed_input_problem(key, feature, available))]


def fixed_input_problem(key: str, feature: PolicyFeature, available: Mapping[str, PolicyFeature]) -> str:
    """The same for one input; empty when there is nothing to say."""
    offered = available.get(key)
    if offered is None:
        return f"the policy reads `{key}`, which the dataset does not have"
    if tuple(offered.shape) != tuple(feature.shape):
        return f"`{key}` has shape {tuple(offered.shape)} in the dataset and {tuple(feature.shape)} in the policy"
    return ""
