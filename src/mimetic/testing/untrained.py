"""A policy with random weights, as it is after no step of training: for whatever plays or saves a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.config import PolicyConfig
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.standard import standard_pipelines

_PICTURE_MEAN, _PICTURE_STD, _VECTOR_STD = 0.5, 0.25, 30.0


def untrained(
    kind: type[PolicyConfig],
    features: Mapping[str, PolicyFeature],
    *,
    stats: Mapping[str, Mapping[str, Any]] | None = None,
    **settings: Any,
) -> tuple[Policy, Pipeline, Pipeline]:
    """A policy on the CPU, the same at every call, with its pre- and postprocessor.

    Args:
        kind: class of its settings.
        features: inputs and outputs.
        stats: for normalisation; without them such that actions in degrees move an arm visibly.
        settings: further settings.
    """
    inputs = {key: one for key, one in features.items() if one.type is not FeatureType.ACTION}
    outputs = {key: one for key, one in features.items() if one.type is FeatureType.ACTION}
    config = kind(input_features=inputs, output_features=outputs, device="cpu", **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = make_policy(config, device="cpu", init_backbone=False)
    pipelines = standard_pipelines(
        input_features=inputs,
        output_features=outputs,
        norm_map=config.norm_map,
        stats=stats or {key: _statistics(one) for key, one in features.items()},
    )
    return policy, *pipelines


def _statistics(feature: PolicyFeature) -> dict[str, torch.Tensor]:
    if feature.type is FeatureType.VISUAL:
        colours = (feature.shape[0], 1, 1)
        return {"mean": torch.full(colours, _PICTURE_MEAN), "std": torch.full(colours, _PICTURE_STD)}
    return {"mean": torch.zeros(feature.shape), "std": torch.full(feature.shape, _VECTOR_STD)}
