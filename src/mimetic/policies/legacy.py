"""Checkpoints from before the processor pipelines: statistics inside `model.safetensors` (spec/policies.md 7).

They are migrated in memory. Names are mapped by comparing with the config's own features; dots are never rebuilt from
underscores, which is how LeRobot's script loses the statistics of every feature with an underscore in its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from mimetic.errors import StatsError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.names import POSTPROCESSOR, PREPROCESSOR
from mimetic.policies.tensors import WeightsFile
from mimetic.processing.stats import DATASET_MARK, TensorStats

_ROLES = (
    "normalize_inputs",
    "normalize_targets",
    "unnormalize_outputs",
    "unnormalize_targets",
    "normalize",
    "unnormalize",
    "input_normalizer",
    "output_normalizer",
    "normalizer",
)
_STATISTIC = re.compile(
    rf"^(?:model\.)?(?:{'|'.join(_ROLES)})\.(?:(?P<dataset>.+?)[_.])?buffer[_.](?P<flat>.+)\.(?P<stat>mean|std|min|max|q\d\d|count)$"
)
_COMPILED = re.compile(r"(^|\.)_orig_mod(?=\.)")
_DEFAULT_MODES = {
    "VISUAL": NormalizationMode.MEAN_STD,
    "STATE": NormalizationMode.MIN_MAX,
    "ACTION": NormalizationMode.MEAN_STD,
}
"""Modes of the oldest configs, which name none."""


@dataclass
class Legacy:
    """What an old checkpoint holds besides the network.

    Args:
        stats: statistics by feature, or by `<dataset>.buffer.<feature>`.
        foreign: stored statistics of features that the config does not have.
    """

    stats: TensorStats = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


def plain_name(name: str) -> str:
    """Tensor name without the marks of a compiled module."""
    return _COMPILED.sub("", name).lstrip(".")


def is_statistic(name: str) -> bool:
    """Whether a tensor of a weights file is a normalisation statistic of the old form."""
    return _STATISTIC.match(plain_name(name)) is not None


def network_name(name: str) -> str | None:
    """Name of a tensor in the network; None for old statistics."""
    return None if is_statistic(name) else plain_name(name)


def has_pipelines(folder: Path) -> bool:
    """Whether a checkpoint folder has pipeline files; one without the other is damage, not age."""
    return any((folder / f"{name}.json").is_file() for name in (PREPROCESSOR, POSTPROCESSOR))


def is_legacy(folder: Path, names: Iterable[str]) -> bool:
    """Whether a folder is an old checkpoint: statistics among the weights, and no pipeline files."""
    return not has_pipelines(folder) and any(is_statistic(name) for name in names)


def read_legacy(file: WeightsFile, features: Mapping[str, PolicyFeature]) -> Legacy:
    """Collect the statistics of an old weights file under the config's feature names.

    Args:
        file: the opened weights file, names as stored.
        features: inputs and outputs of the config.

    Raises:
        StatsError: a name fits two features, or two copies of a statistic differ.
        CheckpointError: the data cannot be read.
    """
    by_flat: dict[str, list[str]] = {}
    for feature in features:
        by_flat.setdefault(feature.replace(".", "_"), []).append(feature)
    found = Legacy()
    with file.reading() as read:
        for name in file.tensors:
            match = _STATISTIC.match(plain_name(name))
            if match is None:
                continue
            candidates = by_flat.get(match["flat"].replace(".", "_"), [])
            if not candidates:
                found.foreign.append(name)
                continue
            if len(candidates) > 1:
                raise StatsError(
                    f"`{file.path}`: `{name}` fits {' and '.join(f'`{c}`' for c in candidates)}",
                    "rename one of these features in config.json",
                )
            _put(found.stats, match["dataset"], candidates[0], match["stat"], read(name), file.path)
    return found


def _put(stats: TensorStats, dataset: str | None, feature: str, stat: str, value: Tensor, path: Path) -> None:
    key = f"{dataset}{DATASET_MARK}{feature}" if dataset else feature
    values = stats.setdefault(key, {})
    # `normalize_targets` and `unnormalize_outputs` hold the same numbers; anything else would un-normalise wrongly.
    if stat in values and not torch.equal(values[stat], value):
        raise StatsError(f"`{path}` holds two different values of the {stat} of `{key}`")
    values[stat] = value


def legacy_norm_map(
    norm_map: Mapping[str, NormalizationMode], features: Mapping[str, PolicyFeature], stats: TensorStats
) -> dict[str, NormalizationMode]:
    """The config's modes; a type that it does not name gets the old default where its statistics are there."""
    modes = dict(norm_map)
    for kind, mode in _DEFAULT_MODES.items():
        names = [key for key, feature in features.items() if feature.type is FeatureType(kind)]
        if kind not in modes and any(_is_in(name, stats) for name in names):
            modes[kind] = mode
    return modes


def _is_in(feature: str, stats: Mapping[str, object]) -> bool:
    return any(key == feature or key.endswith(DATASET_MARK + feature) for key in stats)
