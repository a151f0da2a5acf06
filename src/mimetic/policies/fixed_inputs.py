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
    problems = []
    for key, feature in (config.input_features or {}).items():
        if key in config.unread_inputs:
            continue
        offered = available.get(key)
        if offered is None:
            problems.append(f"the policy reads `{key}`, which the dataset does not have")
        elif tuple(offered.shape) != tuple(feature.shape):
            problems.append(
                f"`{key}` has shape {tuple(offered.shape)} in the dataset and {tuple(feature.shape)} in the policy"
            )
    return problems
