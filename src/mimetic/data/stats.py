"""Normalisation statistics: reading, aggregation, ImageNet values, units of depth (spec/dataset.md 7)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.features import DatasetFeature
from mimetic.data.jsonfile import parse_json
from mimetic.errors import DatasetFormatError
from mimetic.names import STATS_JSON

logger = logging.getLogger(__name__)

FeatureStats = dict[str, np.ndarray[Any, Any]]
Stats = dict[str, FeatureStats]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
QUANTILES = ("q01", "q10", "q50", "q90", "q99")


def read_stats(root: Path) -> Stats:
    """Read meta/stats.json; an absent file means no statistics.

    Raises:
        DatasetFormatError: not JSON or not numbers.
    """
    path = root / STATS_JSON
    if not path.is_file():
        return {}
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DatasetFormatError(f"`{path}` cannot be read: {error}", "restore this file from a copy") from error
    return parse_stats(raw, where=str(path))


def parse_stats(raw: Any, *, where: str) -> Stats:
    """Turn `{feature: {stat: nested list}}` into arrays of at least one dimension; NaN tokens stay NaN.

    Raises:
        DatasetFormatError: another structure, or values that are not numbers.
    """
    if not isinstance(raw, Mapping):
        raise DatasetFormatError(f"`{where}` must hold an object of statistics, not {raw!r:.60}")
    stats: Stats = {}
    for feature, entry in raw.items():
        if not isinstance(entry, Mapping):
            raise DatasetFormatError(f"statistics of `{feature}` in `{where}` are {entry!r:.60} instead of an object")
        stats[feature] = {}
        for name, value in entry.items():
            try:
                array = np.atleast_1d(np.asarray(value))
            except (ValueError, OverflowError):
                array = np.empty(0, dtype=object)
            if array.dtype.kind == "O":  # null among numbers
                array = _nan_for_null(value)
            if array.dtype.kind not in "iufb":
                raise DatasetFormatError(f"`{name}` of `{feature}` in `{where}` is {value!r:.60} instead of numbers")
            stats[feature][name] = array
    return stats


def _nan_for_null(value: Any) -> np.ndarray[Any, Any]:
    try:
        return np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (ValueError, TypeError, OverflowError):
        return np.empty(0, dtype=object)


def aggregate_stats(parts: Sequence[Mapping[str, Mapping[str, np.ndarray[Any, Any]]]]) -> Stats:
    """Combine the statistics of parts (episodes, datasets), weighted by their counts.

    A quantile is kept only if every part has it, as the weighted mean (LeRobot 0.6.1's rule, not a true quantile).

    Args:
        parts: statistics of each part; features may be absent from some.

    Raises:
        DatasetFormatError: a part lacks mean, std, min, max or count, or the shapes disagree.
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _aggregate_one(name, [part[name] for part in parts if name in part]) for name in names}


def _aggregate_one(name: str, parts: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> FeatureStats:
    try:
        low, high, mean, std, count = (
            np.stack([np.asarray(part[key]) for part in parts]) for key in ("min", "max", "mean", "std", "count")
        )
    except KeyError as error:
        raise DatasetFormatError(f"statistics of `{name}` lack {error} in some episodes") from error
    except ValueError as error:
        raise DatasetFormatError(f"statistics of `{name}` have different shapes in different episodes") from error
    if count.shape != (len(parts), 1) or not (count > 0).all():
        raise DatasetFormatError(f"`count` in the statistics of `{name}` is not one positive number in some episodes")
    weight = count.astype(np.float64).reshape(-1, *(1,) * (mean.ndim - 1))
    total = weight.sum(axis=0)
    centre = (mean * weight).sum(axis=0) / total
    spread = ((std.astype(np.float64) ** 2 + (mean - centre) ** 2) * weight).sum(axis=0) / total
    merged = {"min": low.min(axis=0), "max": high.max(axis=0), "mean": centre, "std": np.sqrt(spread)}
    merged["count"] = count.sum(axis=0)
    for quantile in QUANTILES:
        if all(quantile in part for part in parts):
            values = np.stack([np.asarray(part[quantile]) for part in parts])
            merged[quantile] = (values * weight).sum(axis=0) / total
    return merged


def with_imagenet_stats(stats: Mapping[str, FeatureStats], cameras: Iterable[str]) -> Stats:
    """Statistics with ImageNet's mean and deviation for the given cameras; the input is left as it is.

    Args:
        stats: statistics by feature; cameras may be absent.
        cameras: keys of the colour cameras (`Metadata.colour_keys`).

    Returns:
        A copy in which `mean` and `std` of these cameras are float32 of shape (3, 1, 1).
    """
    copy: Stats = {name: dict(entry) for name, entry in stats.items()}
    for key in cameras:
        entry = copy.setdefault(key, {})
        if "mean" not in entry:
            logger.info("`%s` has no statistics; ImageNet's mean and deviation are used", key)
        entry["mean"] = np.asarray(IMAGENET_MEAN, dtype=np.float32).reshape(3, 1, 1)
        entry["std"] = np.asarray(IMAGENET_STD, dtype=np.float32).reshape(3, 1, 1)
    return copy


def with_depth_unit(stats: Mapping[str, FeatureStats], features: Mapping[str, DatasetFeature], unit: str) -> Stats:
    """Statistics of depth cameras in the unit in which their frames are handed out ("mm" or "m")."""
    copy: Stats = {name: dict(entry) for name, entry in stats.items()}
    for key, feature in features.items():
        if not feature.is_depth or key not in copy:
            continue
        stored = feature.info.get("depth_unit")
        if stored not in ("mm", "m"):
            logger.warning("depth camera `%s` does not say its unit; its statistics are left as they are", key)
        elif stored != unit:
            factor = 1000.0 if unit == "mm" else 0.001
            copy[key] = {name: value if name == "count" else value * factor for name, value in copy[key].items()}
    return copy
