"""The pipelines that belong to a checkpoint: the stored ones, or those that an old weights file implies."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mimetic import log
from mimetic.errors import StatsError
from mimetic.features import NormalizationMode, PolicyFeature
from mimetic.names import CONFIG_JSON, POSTPROCESSOR, PREPROCESSOR, WEIGHTS
from mimetic.policies.config import PolicyConfig
from mimetic.policies.legacy import has_pipelines, is_statistic, legacy_norm_map, read_legacy
from mimetic.policies.tensors import open_weights
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import Stats, TensorStats, select_dataset
from mimetic.processing.steps.rename_observations import RenameObservations
from mimetic.processing.store import load_pipeline, read_json, stored_artifacts, stored_steps

logger = logging.getLogger(__name__)


def load_pipelines(
    folder: Path,
    config: PolicyConfig,
    *,
    device: str = "cpu",
    rename_map: Mapping[str, str] | None = None,
    stats: Stats | None = None,
    stats_dataset: str | None = None,
    exact: bool = False,
) -> tuple[Pipeline, Pipeline]:
    """The pipelines of a checkpoint, for its own statistics or for others; old checkpoints are migrated in memory.

    Args:
        folder: `pretrained_model` folder.
        config: the policy's settings; with `stats`, its features and modes replace the stored ones.
        device: device of the policy; the postprocessor ends where it is stored to end (the CPU).
        rename_map: dataset name -> policy name; None keeps the stored one.
        stats: statistics that replace the stored ones, under the policy's names (fine-tuning on other data).
        stats_dataset: whose statistics to take where the checkpoint holds those of several datasets.
        exact: reproduce LeRobot's formulas in near-constant dimensions.

    Returns:
        Preprocessor and postprocessor.

    Raises:
        CheckpointError: a file is damaged or names what mimetic does not run.
        StatsError: statistics are missing, incomplete or ambiguous.
        DeviceError: the device is not there.
    """
    if not has_pipelines(folder):
        return _legacy_pipelines(folder, config, device, rename_map, stats, stats_dataset, exact)
    before: dict[str, dict[str, Any]] = {"normalizer_processor": {"exact": exact}}
    after: dict[str, dict[str, Any]] = {"unnormalizer_processor": {"exact": exact}}
    if stats is not None:
        common = {"stats": stats, "norm_map": config.norm_map}
        before["normalizer_processor"].update(common, features=_features(config))
        after["unnormalizer_processor"].update(common, features=config.output_features or {})
    before["device_processor"] = {"device": device}
    if rename_map:
        before["rename_observations_processor"] = {"rename_map": rename_map}
    before.update(_changed_settings(folder, config))
    pipelines = []
    for name, overrides in ((PREPROCESSOR, before), (POSTPROCESSOR, after)):
        there = stored_steps(folder, name)
        # A pipeline without a normaliser or device step is possible; a rename or new statistics must never get lost.
        needed = {
            step: given
            for step, given in overrides.items()
            if step in there or step == "rename_observations_processor" or "stats" in given
        }
        pipelines.append(load_pipeline(folder, name, overrides=needed, stats_dataset=stats_dataset))
    return pipelines[0], pipelines[1]


def stored_rename_map(folder: Path) -> dict[str, str]:
    """The rename map that a checkpoint was trained with; empty when it has none, or no pipelines.

    Raises:
        CheckpointError: the file is damaged.
        ConfigError: the rename map is wrong.
    """
    path = folder / f"{PREPROCESSOR}.json"
    if not path.is_file():
        return {}
    steps = read_json(path).get("steps")
    for entry in steps if isinstance(steps, list) else ():
        if isinstance(entry, dict) and entry.get("registry_name") == RenameObservations.registry_name:
            return dict(RenameObservations.build(entry.get("config") or {}, {}).rename_map)
    return {}


def _changed_settings(folder: Path, config: PolicyConfig) -> dict[str, dict[str, Any]]:
    """Arguments of stored steps that the caller changed through the policy's settings.

    What the checkpoint's own config.json says is left alone, even where a stored step says something else: LeRobot
    writes changed settings there and goes on with the old step. Names of companion files, which only the stored file
    can resolve, are replaced by the setting that they were made from.
    """
    if not config.step_settings:
        return {}
    stored = read_json(folder / CONFIG_JSON)
    artifacts = stored_artifacts(folder, PREPROCESSOR)
    defaults = {field.name: field.default for field in fields(config)}
    changed: dict[str, dict[str, Any]] = {}
    for step, arguments in config.step_settings.items():
        for argument, setting in arguments.items():
            value = getattr(config, setting)
            if (step, argument) in artifacts or value != stored.get(setting, defaults[setting]):
                changed.setdefault(step, {})[argument] = value
    return changed


def _features(config: PolicyConfig) -> dict[str, PolicyFeature]:
    return {**(config.input_features or {}), **(config.output_features or {})}


def _legacy_pipelines(
    folder: Path,
    config: PolicyConfig,
    device: str,
    rename_map: Mapping[str, str] | None,
    stats: Stats | None,
    stats_dataset: str | None,
    exact: bool,
) -> tuple[Pipeline, Pipeline]:
    """New pipelines from the statistics among the weights of an old checkpoint."""
    norm_map, where, given = config.norm_map, f"`{folder / WEIGHTS}`", stats
    if given is None:
        old, norm_map = legacy_stats(folder, config)
        given = select_dataset(old, stats_dataset, list(_features(config)), where=where)
        log.once(
            logger,
            logging.WARNING,
            "`%s` is older than LeRobot's processor pipelines: statistics come from its weights, and"
            " `mimetic inspect %s --migrate_to=FOLDER` writes a checkpoint of today's form",
            folder,
            folder,
        )
    return config.make_pipelines(
        input_features=config.input_features or {},
        output_features=config.output_features or {},
        norm_map=norm_map,
        stats=given,
        device=device,
        rename_map=rename_map,
        exact=exact,
        where=where,
    )


def legacy_stats(folder: Path, config: PolicyConfig) -> tuple[TensorStats, dict[str, NormalizationMode]]:
    """Statistics and modes of an old checkpoint.

    Raises:
        StatsError: there are no statistics among the weights, or they contradict each other.
        CheckpointError: the weights file is damaged.
    """
    file = open_weights(folder / WEIGHTS)
    if not any(is_statistic(name) for name in file.tensors):
        raise StatsError(
            f"`{folder}` has no {PREPROCESSOR}.json, and no statistics stand among its weights",
            "copy the checkpoint again with its pipeline files; `mimetic train --policy.path` takes the dataset's"
            " statistics instead",
        )
    features = _features(config)
    legacy = read_legacy(file, features)
    if legacy.foreign:
        logger.warning("%s: statistics of unknown features are left out: %s", file.path, ", ".join(legacy.foreign))
    return legacy.stats, legacy_norm_map(config.norm_map, features, legacy.stats)
