"""The policy of a run and its pipelines: fresh, from a pretrained folder, or from the checkpoint that is resumed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path

from mimetic.config.codec import encode
from mimetic.data.features import policy_features
from mimetic.data.stats import with_imagenet_stats
from mimetic.errors import ConfigError, KeyMismatch
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.hub.policies import find_policy
from mimetic.names import ADAPTER_CONFIG, WEIGHTS
from mimetic.policies.adapter_config import DEFAULT_ALPHA, AdapterConfig
from mimetic.policies.adapters import attach, fingerprint
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_weights, read_config
from mimetic.policies.config import PolicyConfig
from mimetic.policies.pipelines import load_pipelines
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import Stats, rename_stats
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.peft_config import PeftConfig
from mimetic.train.resume import Checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Model:
    """A policy with its pipelines.

    Args:
        policy: on its device.
        preprocessor: raw batch -> batch on the device.
        postprocessor: normalised action -> physical action on the CPU.
    """

    policy: Policy
    preprocessor: Pipeline
    postprocessor: Pipeline


def build_model(config: TrainConfig, data: TrainingData, checkpoint: Checkpoint | None) -> Model:
    """Make or load the policy and its pipelines.

    Args:
        config: settings of the run; `config.policy.device` is resolved.
        data: the opened dataset; gives features and statistics.
        checkpoint: what is resumed; its weights, statistics and pipelines are authoritative.

    Raises:
        ConfigError: the policy's settings and the dataset do not fit together.
        CheckpointError: weights are missing or do not fit.
        StatsError: statistics do not cover what is normalised.
    """
    settings = config.policy
    assert settings is not None
    assert settings.device is not None
    if checkpoint is not None:
        policy = _load(settings, checkpoint.pretrained, config)
        return Model(policy, *load_pipelines(checkpoint.pretrained, policy.config, device=settings.device))
    offered, stats = _features(config, data), _stats(config, data)
    inputs = {key: feature for key, feature in offered.items() if feature.type is not FeatureType.ACTION}
    outputs = {key: feature for key, feature in offered.items() if feature.type is FeatureType.ACTION}
    if not outputs:
        raise ConfigError(
            f"dataset `{config.dataset.repo_id}` has no feature named `action`, so there is nothing to learn",
            f"its features are: {', '.join(data.train.features)}",
        )
    if settings.pretrained_path is None:
        policy = make_policy(settings, input_features=inputs, output_features=outputs, device=settings.device)
        return Model(policy, *_fresh_pipelines(policy.config, stats, config))
    folder = find_policy(settings.pretrained_path, revision=settings.pretrained_revision)
    policy = _load(_with_base(settings, folder, config), folder, config, inputs, outputs)
    if config.peft is not None:
        attach(policy, _new_adapter(config.peft, settings, folder))
    pipelines = load_pipelines(
        folder,
        policy.config,
        device=settings.device,
        rename_map=config.rename_map or None,
        stats=stats,
        stats_dataset=config.stats_dataset,
    )
    return Model(policy, *pipelines)


def _with_base(settings: PolicyConfig, folder: Path, config: TrainConfig) -> PolicyConfig:
    """The settings for loading what a new adapter is to be put on: a whole policy, whatever the settings say."""
    if config.peft is None:
        return settings
    if not (folder / WEIGHTS).is_file() and (folder / ADAPTER_CONFIG).is_file():
        raise ConfigError(
            f"`--policy.path={settings.pretrained_path}` is an adapter already",
            "leave out `--peft.*` to train it further, or merge it into its base first: "
            f"`mimetic inspect {settings.pretrained_path} --merge_to=FOLDER`",
        )
    return replace(settings, use_peft=False)


def _new_adapter(peft: PeftConfig, settings: PolicyConfig, folder: Path) -> AdapterConfig:
    targets = peft.target_modules if peft.target_modules is not None else settings.lora_targets
    assert targets is not None
    assert settings.pretrained_path is not None
    return AdapterConfig(
        target_modules=targets if isinstance(targets, str) else tuple(targets),
        r=peft.r,
        lora_alpha=DEFAULT_ALPHA if peft.lora_alpha is None else peft.lora_alpha,
        init_lora_weights="gaussian" if (peft.init_type or "").lower() == "gaussian" else True,
        modules_to_save=tuple(peft.full_training_modules or ()),
        base_model_name_or_path=settings.pretrained_path,
        revision=settings.pretrained_revision,
        base_fingerprint=fingerprint(folder / WEIGHTS),
    )


def _fresh_pipelines(policy: PolicyConfig, stats: Stats, config: TrainConfig) -> tuple[Pipeline, Pipeline]:
    return policy.make_pipelines(
        input_features=policy.input_features or {},
        output_features=policy.output_features or {},
        norm_map=policy.norm_map,
        stats=stats,
        device=policy.device or "cpu",
        where=f"the statistics of dataset `{config.dataset.repo_id}`",
    )


def _features(config: TrainConfig, data: TrainingData) -> dict[str, PolicyFeature]:
    return {config.rename_map.get(key, key): f for key, f in policy_features(data.train.features).items()}


def _stats(config: TrainConfig, data: TrainingData) -> Stats:
    meta = data.train.meta
    if not config.dataset.use_imagenet_stats or not meta.colour_keys:
        return rename_stats(meta.stats, config.rename_map)
    without = [f"`{key}`" for key in meta.colour_keys if key not in meta.stats]
    assert config.policy is not None
    if (
        config.policy.norm_map.get(FeatureType.VISUAL.value, NormalizationMode.IDENTITY)
        is not NormalizationMode.IDENTITY
    ):
        logger.info(
            "cameras are normalised with ImageNet's mean and deviation (--dataset.use_imagenet_stats)%s",
            f"; the dataset has no statistics of {', '.join(without)}" if without else "",
        )
    return rename_stats(with_imagenet_stats(meta.stats, meta.colour_keys), config.rename_map)


def _load(
    settings: PolicyConfig,
    folder: Path,
    config: TrainConfig,
    inputs: dict[str, PolicyFeature] | None = None,
    outputs: dict[str, PolicyFeature] | None = None,
) -> Policy:
    policy = make_policy(
        settings.located(folder),
        input_features=inputs,
        output_features=outputs,
        device=settings.device or "cpu",
        init_backbone=False,
    )
    try:
        report = load_weights(policy, folder, allow_missing=config.allow_missing)
    except KeyMismatch as error:
        changed = _changed_settings(settings, folder)
        if not changed:
            raise
        raise KeyMismatch(
            error.message, f"if one of these settings decides about sizes, leave it out: {changed}\n{error.hint}"
        ) from error
    logger.info("Loaded %s: %s", folder, report.summary())
    return policy


def _changed_settings(settings: PolicyConfig, folder: Path) -> str:
    """Settings of the policy's own kind that differ from those in its checkpoint."""
    stored = read_config(folder)
    common = {field.name for field in fields(PolicyConfig)} | {"backbone_folder"}
    own = [field.name for field in fields(stored) if field.name not in common]
    changed = [name for name in own if getattr(settings, name, None) != getattr(stored, name)]
    return ", ".join(
        f"`--policy.{name}={encode(getattr(settings, name))}` (the checkpoint: {encode(getattr(stored, name))})"
        for name in changed
        if not name.startswith(("optimizer_", "scheduler_"))
    )
