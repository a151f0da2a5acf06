"""Normalisation statistics: the forms that they come in, and the proof that they are complete (spec/policies.md 4).

A missing name never means "not normalised": everything that is needed is checked here before a policy is built.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mimetic import log
from mimetic.catalog import closest
from mimetic.errors import StatsError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature

logger = logging.getLogger(__name__)

Stats = Mapping[str, Mapping[str, "np.ndarray | Tensor"]]
"""Feature name -> statistic name (`mean`, `std`, `min`, `max`, `q01`, ...) -> array."""
TensorStats = dict[str, dict[str, Tensor]]
NormMap = Mapping[str, NormalizationMode]
"""Feature type name -> mode; a type that is absent is not normalised."""

STATS_OF_MODE: Mapping[NormalizationMode, tuple[str, ...]] = {
    NormalizationMode.IDENTITY: (),
    NormalizationMode.MEAN_STD: ("mean", "std"),
    NormalizationMode.MIN_MAX: ("min", "max"),
    NormalizationMode.QUANTILES: ("q01", "q99"),
    NormalizationMode.QUANTILE10: ("q10", "q90"),
}
DATASET_MARK = ".buffer."
"""Stands between dataset and feature where a checkpoint holds the statistics of several datasets."""


def tensor_stats(stats: Stats) -> TensorStats:
    """Copy of the statistics as float32 tensors on the CPU, shapes kept."""
    return {
        feature: {name: torch.as_tensor(np.asarray(value) if not isinstance(value, Tensor) else value)
                  .detach().to("cpu", torch.float32, copy=True).contiguous()
                  for name, value in values.items()}
        for feature, values in stats.items()
    }  # fmt: skip


def flatten(stats: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """`{feature: {stat: tensor}}` to `{"feature.stat": tensor}`, the form of state files."""
    return {f"{feature}.{name}": value for feature, values in stats.items() for name, value in values.items()}


def unflatten(flat: Mapping[str, Tensor]) -> TensorStats:
    """Inverse of `flatten`; the name is split at its last dot."""
    stats: TensorStats = {}
    for key, value in flat.items():
        feature, dot, name = key.rpartition(".")
        if not dot:
            raise StatsError(f"the statistics file holds `{key}`, which is not of the form `<feature>.<statistic>`")
        stats.setdefault(feature, {})[name] = value
    return stats


def rename_stats(stats: Stats, rename_map: Mapping[str, str]) -> dict[str, Mapping[str, np.ndarray | Tensor]]:
    """Statistics under the names that a rename map gives to their features."""
    return {rename_map.get(feature, feature): values for feature, values in stats.items()}


def datasets_of(stats: Mapping[str, object]) -> dict[str, list[str]]:
    """Datasets whose statistics stand side by side as `<dataset>.buffer.<feature>`, each with its features."""
    found: dict[str, list[str]] = {}
    for key in stats:
        dataset, mark, feature = key.partition(DATASET_MARK)
        if mark and dataset and feature:
            found.setdefault(dataset, []).append(feature)
    return found


def select_dataset(stats: TensorStats, dataset: str | None, needed: Sequence[str], *, where: str) -> TensorStats:
    """Resolve statistics of several datasets to plain feature names.

    Args:
        stats: statistics as stored.
        dataset: the dataset to take; None takes the only one where there is one and it is needed.
        needed: features that must have statistics.
        where: file, for messages.

    Returns:
        Statistics by feature; the other datasets' are gone. Unchanged when there is nothing to resolve.

    Raises:
        StatsError: there is no such dataset.
    """
    datasets = datasets_of(stats)
    if not datasets:
        if dataset is not None:
            log.once(
                logger,
                logging.INFO,
                "`--stats_dataset=%s` changes nothing in %s, whose statistics are those of one dataset",
                dataset,
                where,
            )
        return stats
    if dataset is None:
        if len(datasets) > 1 or all(feature in stats for feature in needed):
            return stats
        dataset = next(iter(datasets))
        log.once(logger, logging.INFO, "the statistics of `%s` are used, the only dataset in the checkpoint", dataset)
    if dataset not in datasets:
        raise StatsError(
            f"{where}: no statistics of a dataset `{dataset}`",
            f"choose with `--stats_dataset`: {', '.join(closest(dataset, datasets) or datasets)}",
        )
    plain = {feature: values for feature, values in stats.items() if DATASET_MARK not in feature}
    chosen = {feature: stats[f"{dataset}{DATASET_MARK}{feature}"] for feature in datasets[dataset]}
    return {**plain, **chosen}


def mode_of(feature: PolicyFeature, norm_map: NormMap) -> NormalizationMode:
    """Mode of a feature; a type that is absent from the map is IDENTITY."""
    return NormalizationMode(norm_map.get(feature.type.value, NormalizationMode.IDENTITY))


def check_stats(features: Mapping[str, PolicyFeature], norm_map: NormMap, stats: Stats, *, where: str) -> None:
    """Prove that every feature that is normalised has complete, well-shaped, finite statistics.

    Args:
        features: features by name.
        norm_map: mode by feature type name.
        stats: statistics by feature.
        where: the file or dataset that the statistics come from, for the message.

    Raises:
        StatsError: lists all features whose statistics are missing, incomplete, ambiguous or wrong.
    """
    problems: list[str] = []
    hints: list[str] = []
    for key, feature in features.items():
        mode = mode_of(feature, norm_map)
        if mode is NormalizationMode.IDENTITY:
            continue
        wanted = STATS_OF_MODE[mode]
        if key not in stats:
            problems.append(f"no statistics for `{key}` ({feature.type.value} is normalised by {mode.value})")
            hints.append(_missing_hint(key, stats))
            continue
        absent = [name for name in wanted if name not in stats[key]]
        if absent:
            problems.append(
                f"`{key}` lacks {' and '.join(absent)}, which {mode.value} needs; it has {', '.join(stats[key])}"
            )
            hints.append(_mode_hint(feature.type, stats[key]))
            continue
        problems.extend(f"`{key}` {problem}" for name in wanted if (problem := _wrong(feature, name, stats[key][name])))
        problems.extend(_inconsistent(key, wanted, stats[key]))
    if problems:
        hint = "\n".join(dict.fromkeys(text for text in hints if text)) or "recompute the dataset's statistics"
        raise StatsError(f"{where}: {'; '.join(problems)}", hint)


def _missing_hint(key: str, stats: Stats) -> str:
    """What to do about a feature without statistics: choose a dataset, or see which names are there."""
    datasets = sorted(dataset for dataset, found in datasets_of(stats).items() if key in found)
    if datasets:
        flags = " or ".join(f"`--stats_dataset={dataset}`" for dataset in datasets)
        found = ", ".join(f"`{dataset}{DATASET_MARK}{key}`" for dataset in datasets)
        return f"found {found}: the checkpoint holds the statistics of several datasets; choose one with {flags}"
    if not stats:
        return "there are no statistics at all"
    near = closest(key, stats)
    hint = f"statistics are there for: {', '.join(f'`{name}`' for name in stats)}"
    if near:
        hint += f"; the nearest name is `{near[0]}`"
        if near[0] == key.replace("_", "."):
            hint += (
                " (LeRobot's migration script wrote dots for underscores; migrate the old checkpoint again with"
                " `mimetic inspect OLD_CHECKPOINT --migrate_to=FOLDER`)"
            )
    return hint


def _mode_hint(kind: FeatureType, stats: Mapping[str, object]) -> str:
    """Which mode the statistics allow that are there."""
    possible = [mode.value for mode, names in STATS_OF_MODE.items() if names and all(name in stats for name in names)]
    hint = "recompute the dataset's statistics (datasets from before LeRobot 0.4 have no quantiles)"
    if possible:
        hint += (
            f", or set {kind.value} to {' or '.join(possible)} in `--policy.normalization_mapping`, such as"
            f' \'{{"{kind.value}": "{possible[0]}"}}\''
        )
    return hint


def _wrong(feature: PolicyFeature, name: str, value: np.ndarray | Tensor) -> str:
    """What is wrong with the shape or the values of one statistic; empty when nothing is."""
    shape = tuple(value.shape)
    if not _fits(feature, shape):
        return f"has shape {feature.shape} and its {name} has shape {shape}"
    if not bool(torch.isfinite(torch.as_tensor(value)).all()):
        return f"has a {name} that is not finite: the statistics were never computed"
    return ""


def _fits(feature: PolicyFeature, shape: tuple[int, ...]) -> bool:
    if feature.type is FeatureType.VISUAL:
        channels = feature.shape[0] if feature.shape else 1
        return shape in ((channels,), (channels, 1, 1)) or shape == feature.shape
    # One value for a feature of one element may be stored as a scalar.
    return shape == feature.shape or (math.prod(shape) == math.prod(feature.shape) == 1)


def _inconsistent(key: str, names: tuple[str, ...], stats: Mapping[str, np.ndarray | Tensor]) -> list[str]:
    low, high = (torch.as_tensor(stats[name]) for name in names)
    if names == ("mean", "std"):
        return [f"`{key}` has a negative std"] if bool((high < 0).any()) else []
    if low.shape == high.shape and bool((high < low).any()):
        return [f"`{key}` has a {names[1]} below its {names[0]}"]
    return []
