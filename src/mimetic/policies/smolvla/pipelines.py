"""The pipelines of SmolVLA: the standard ones, with the task's words turned into tokens (spec/smolvla.md 9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mimetic.features import NormalizationMode, PolicyFeature
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.standard import standard_pipelines
from mimetic.processing.stats import Stats
from mimetic.processing.steps.new_line import EndWithNewLine
from mimetic.processing.steps.tokenizer import Tokenize

if TYPE_CHECKING:
    from mimetic.policies.smolvla.config import SmolVLAConfig


def smolvla_pipelines(
    config: SmolVLAConfig,
    *,
    input_features: Mapping[str, PolicyFeature],
    output_features: Mapping[str, PolicyFeature],
    norm_map: Mapping[str, NormalizationMode],
    stats: Stats,
    device: str = "cpu",
    rename_map: Mapping[str, str] | None = None,
    exact: bool = False,
    where: str = "the dataset's statistics",
) -> tuple[Pipeline, Pipeline]:
    """Build the pipelines before and after a SmolVLA policy; arguments, returns and errors of `standard_pipelines`.

    Args:
        config: gives the tokenizer's name, its lengths, and the checkpoint's folder that may hold the tokenizer.
        input_features: see `standard_pipelines`, as everything below.
        output_features: what the policy predicts.
        norm_map: normalisation mode by feature type name.
        stats: statistics by feature.
        device: device of the policy.
        rename_map: dataset name -> policy name.
        exact: reproduce LeRobot's formulas in near-constant dimensions.
        where: where the statistics come from, for messages.
    """
    tokenize = Tokenize(
        max_length=config.tokenizer_max_length,
        padding=config.pad_language_to,
        tokenizer_name=config.vlm_model_name,
    )
    if config.backbone_folder is not None:
        tokenize.located(config.backbone_folder, {}, f"`{config.backbone_folder}`")
    return standard_pipelines(
        input_features=input_features,
        output_features=output_features,
        norm_map=norm_map,
        stats=stats,
        device=device,
        rename_map=rename_map,
        exact=exact,
        where=where,
        own_steps=(EndWithNewLine(), tokenize),
    )
