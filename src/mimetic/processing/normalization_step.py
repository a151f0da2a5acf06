"""What the normaliser and the unnormaliser share: features, modes, statistics, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from mimetic.errors import ConfigError, StatsError
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.names import ACTION
from mimetic.processing.normalization import FeatureScaling
from mimetic.processing.stats import (
    STATS_OF_MODE,
    Stats,
    TensorStats,
    check_stats,
    flatten,
    select_dataset,
    tensor_stats,
    unflatten,
)
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition


class NormalizationStep(Step):
    """Base of the two steps that scale features by statistics.

    Args:
        features: features by name, as objects or as JSON values.
        norm_map: mode by feature type name; a type that is absent is not normalised.
        stats: statistics by feature; all of them are stored, also those of features that this step does not touch.
        eps: guard of the divisions.
        normalize_observation_keys: the observations to scale; None means all of `features`.
        exact: reproduce LeRobot's formulas in near-constant dimensions; never stored.
    """

    stored: ClassVar[tuple[str, ...]] = ("eps", "features", "norm_map", "normalize_observation_keys")
    overridable: ClassVar[tuple[str, ...]] = ("stats", "exact")

    def __init__(
        self,
        features: Mapping[str, Any],
        norm_map: Mapping[Any, Any],
        stats: Stats | None = None,
        eps: float = 1e-8,
        normalize_observation_keys: Sequence[str] | None = None,
        exact: bool = False,
    ) -> None:
        self.features = read_features(features)
        self.norm_map = read_norm_map(norm_map)
        self.eps = float(eps)
        self.observation_keys = None if normalize_observation_keys is None else set(normalize_observation_keys)
        self.exact = exact
        self._has_given_stats = stats is not None
        self.stats: TensorStats = {}
        self._scalings: dict[str, FeatureScaling] = {}
        self.use_stats(stats or {})

    def use_stats(self, stats: Stats) -> None:
        """Replace all statistics; flat (C,) statistics of cameras become (C, 1, 1)."""
        self.stats = tensor_stats(stats)
        for key, feature in self.features.items():
            if feature.type is FeatureType.VISUAL and key in self.stats:
                self.stats[key] = {
                    name: value.reshape(-1, 1, 1) if value.dim() == 1 else value
                    for name, value in self.stats[key].items()
                }
        self._scalings = {}
        for key, feature in self.features.items():
            self._prepare(key, feature.type)
        self._prepare(ACTION, FeatureType.ACTION)

    def _prepare(self, key: str, kind: FeatureType) -> None:
        """Make the scaling of one feature ready, if its statistics are there; `check` tells what is missing."""
        mode = NormalizationMode(self.norm_map.get(kind.value, NormalizationMode.IDENTITY))
        if key != ACTION and self.observation_keys is not None and key not in self.observation_keys:
            mode = NormalizationMode.IDENTITY
        stats = self.stats.get(key, {})
        if all(name in stats for name in STATS_OF_MODE[mode]):
            self._scalings[key] = FeatureScaling(key, kind, mode, stats, eps=self.eps, exact=self.exact)

    def check(self, where: str) -> None:
        """Prove that the statistics cover every feature of this step.

        Raises:
            StatsError: lists what is missing or wrong.
        """
        keys = self.observation_keys
        wanted = {key: f for key, f in self.features.items() if keys is None or key in keys or key == ACTION}
        check_stats(wanted, self.norm_map, self.stats, where=where)

    def choose_dataset(self, dataset: str | None, where: str) -> None:
        """Resolve statistics of several datasets to those of one (`select_dataset`).

        Raises:
            StatsError: there is no such dataset.
        """
        needed = [key for key, feature in self.features.items() if STATS_OF_MODE[self.mode_of(feature)]]
        resolved = select_dataset(self.stats, dataset, needed, where=where)
        if resolved is not self.stats:
            self.use_stats(resolved)

    def mode_of(self, feature: PolicyFeature) -> NormalizationMode:
        """Mode of a feature in this step."""
        return NormalizationMode(self.norm_map.get(feature.type.value, NormalizationMode.IDENTITY))

    def constant_dims(self) -> dict[str, list[int]]:
        """Near-constant dimensions by feature, those without any left out."""
        return {key: dims for key, scaling in self._scalings.items() if (dims := scaling.constant_dims())}

    def _apply(self, transition: Transition, how: Callable[[FeatureScaling, Tensor], Tensor]) -> None:
        observation = transition.observation
        for key in self.features:
            value = observation.get(key)
            if value is not None:
                observation[key] = how(self._scaling(key), torch.as_tensor(value))
        if transition.action is not None:
            transition.action = how(self._scaling(ACTION), transition.action)

    def _scaling(self, key: str) -> FeatureScaling:
        scaling = self._scalings.get(key)
        if scaling is None:
            raise StatsError(
                f"`{self.registry_name}` must normalise `{key}` and has no statistics for it",
                f"statistics are there for: {', '.join(self.stats) or 'nothing'}",
            )
        return scaling

    def config(self) -> dict[str, Any]:
        """`eps`, `features`, `norm_map`, and `normalize_observation_keys` when given."""
        config: dict[str, Any] = {
            "eps": self.eps,
            "features": {
                key: {"type": feature.type.value, "shape": list(feature.shape)}
                for key, feature in self.features.items()
            },
            "norm_map": {kind: mode.value for kind, mode in self.norm_map.items()},
        }
        if self.observation_keys is not None:
            config["normalize_observation_keys"] = sorted(self.observation_keys)
        return config

    def state(self) -> dict[str, Tensor]:
        """All statistics, flat, float32."""
        return flatten(self.stats)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take the statistics of a state file, unless the caller gave others."""
        if not self._has_given_stats:
            self.use_stats(unflatten(state))


def read_features(features: Mapping[str, Any]) -> dict[str, PolicyFeature]:
    """Features from objects or from `{"type": ..., "shape": [...]}`.

    Raises:
        ConfigError: an entry is not a feature.
    """
    found = {}
    for key, value in features.items():
        if isinstance(value, PolicyFeature):
            found[key] = value
            continue
        try:
            found[key] = PolicyFeature(FeatureType(value["type"]), tuple(int(size) for size in value["shape"]))
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"feature `{key}` is {value!r}", 'a feature looks like {"type": "STATE", "shape": [6]}'
            ) from error
    return found


def read_norm_map(norm_map: Mapping[Any, Any]) -> dict[str, NormalizationMode]:
    """Modes by feature type name, from names or enum members.

    Raises:
        ConfigError: an unknown type or mode.
    """
    try:
        return {FeatureType(kind).value: NormalizationMode(mode) for kind, mode in norm_map.items()}
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"normalisation modes {norm_map!r}: {error}",
            f"types: {', '.join(FeatureType.__members__)}; modes: {', '.join(NormalizationMode.__members__)}",
        ) from error
