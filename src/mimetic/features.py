"""What a policy reads and writes: named, typed, shaped features (spec/policies.md 2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FeatureType(str, Enum):
    """Role of a feature for a policy; chooses its normalisation mode."""

    STATE = "STATE"
    VISUAL = "VISUAL"
    ENV = "ENV"
    ACTION = "ACTION"
    REWARD = "REWARD"
    LANGUAGE = "LANGUAGE"


class NormalizationMode(str, Enum):
    """How values are brought to the network's range (spec/policies.md 4)."""

    MIN_MAX = "MIN_MAX"
    MEAN_STD = "MEAN_STD"
    IDENTITY = "IDENTITY"
    QUANTILES = "QUANTILES"
    QUANTILE10 = "QUANTILE10"


@dataclass(frozen=True)
class PolicyFeature:
    """One input or output of a policy.

    Args:
        type: role of the feature.
        shape: shape of one frame without batch and time; images are (C, H, W).
    """

    type: FeatureType
    shape: tuple[int, ...]
