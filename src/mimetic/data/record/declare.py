"""What a new dataset may declare as features, judged before anything is written (spec/dataset.md 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimetic.catalog import closest_hint
from mimetic.data.features import DTYPES, MAX_VALUES, DatasetFeature, flatten_names, parse_features
from mimetic.data.store.tables import with_default_features
from mimetic.errors import DatasetError
from mimetic.names import DEFAULT_FEATURES, TASK

LANGUAGE = ("language_persistent", "language_events")
_MOST_DIMENSIONS = 5


@dataclass(frozen=True)
class Declared:
    """Features of a dataset that is written.

    Args:
        raw: the `features` object of info.json, default features included.
        features: the same, typed.
    """

    raw: dict[str, dict[str, Any]]
    features: dict[str, DatasetFeature]

    @property
    def own(self) -> dict[str, DatasetFeature]:
        """The features that frames bring, without the default ones."""
        return {name: feature for name, feature in self.features.items() if name not in DEFAULT_FEATURES}

    @property
    def cameras(self) -> dict[str, DatasetFeature]:
        """Features that are pictures."""
        return {name: feature for name, feature in self.features.items() if feature.is_camera}

    @property
    def video_keys(self) -> list[str]:
        """Cameras that are stored as videos."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]


def declare(features: Mapping[str, Mapping[str, Any]], *, use_videos: bool = True) -> Declared:
    """Check the features of a new dataset and complete them.

    Cameras of one channel hold depth; every camera says so in its `info`.

    Args:
        features: as LeRobot gives them: dtype, shape, names, info by name.
        use_videos: whether features may be videos.

    Raises:
        DatasetError: everything that is wrong, in one message.
    """
    problems = [problem for name, entry in features.items() for problem in _problems(name, entry, use_videos)]
    if not [name for name in features if name not in DEFAULT_FEATURES]:
        problems.append("no feature is declared")
    if problems:
        raise DatasetError(
            "the features of the new dataset cannot be used: " + "; ".join(problems),
            f"a feature has a dtype ({', '.join(DTYPES)}), a shape and names",
        )
    completed = {name: _completed(entry) for name, entry in features.items()}
    raw = with_default_features(completed)
    return Declared(raw, parse_features(raw, where="the new dataset"))


def _problems(name: str, entry: Any, use_videos: bool) -> list[str]:
    if not name.strip(".") or "/" in name or "\\" in name:
        return [f"`{name}` is not a feature name (no slashes, no dots alone)"]
    if name == TASK:
        return ["`task` is the instruction that every frame has, so no feature can have this name"]
    if not isinstance(entry, Mapping):
        return [f"`{name}` is {entry!r:.60} instead of a mapping with dtype, shape and names"]
    dtype, shape = entry.get("dtype"), entry.get("shape")
    found = []
    if dtype not in DTYPES:
        hint = closest_hint(str(dtype), DTYPES)
        found.append(f"`{name}` has the dtype {dtype!r:.40}" + (f" ({hint})" if hint else ""))
    sizes = tuple(shape) if isinstance(shape, (list, tuple)) else ()
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        return [*found, f"`{name}` has the shape {shape!r:.60} instead of positive whole numbers"]
    if math.prod(sizes) > MAX_VALUES:
        found.append(f"`{name}` has {math.prod(sizes)} values a frame")
    if dtype in ("image", "video"):
        return found + _camera_problems(name, entry, sizes, use_videos)
    if dtype in ("string", "language") and sizes != (1,):
        found.append(f"`{name}` is a {dtype} of shape {sizes}; it must be (1,)")
    if (dtype == "language") != (name in LANGUAGE):
        found.append(f"`{name}` has the dtype {dtype}; the columns {' and '.join(LANGUAGE)} have `language`")
    if len(sizes) > _MOST_DIMENSIONS:
        found.append(f"`{name}` has {len(sizes)} dimensions; {_MOST_DIMENSIONS} at most can be stored")
    names = flatten_names(entry.get("names"))
    if names is not None and len(sizes) == 1 and len(names) != sizes[0] and name not in DEFAULT_FEATURES:
        found.append(f"`{name}` has {len(names)} names for {sizes[0]} values")
    return found


def _camera_problems(name: str, entry: Mapping[str, Any], sizes: tuple[int, ...], use_videos: bool) -> list[str]:
    found = []
    if entry["dtype"] == "video" and not use_videos:
        found.append(f"`{name}` is a video, and use_videos is false (its dtype would be `image`)")
    names = flatten_names(entry.get("names"))
    if names is not None and len(names) != len(sizes):
        found.append(f"camera `{name}` has {len(names)} names for {len(sizes)} sizes")
    if len(sizes) != 3:
        return [*found, f"camera `{name}` has the shape {sizes} instead of height, width and channels"]
    channels = _feature(entry).chw[0]
    if channels not in (1, 3):
        found.append(f"camera `{name}` has {channels} channels by its shape {sizes}; 3 is colour, 1 is depth")
    is_depth = _feature(entry).is_depth
    if is_depth and channels == 3:
        found.append(f"camera `{name}` is declared as depth and has three channels")
    return found


def _feature(entry: Mapping[str, Any]) -> DatasetFeature:
    return parse_features({"camera": {**entry, "shape": list(entry["shape"])}}, where="the new dataset")["camera"]


def _completed(entry: Mapping[str, Any]) -> dict[str, Any]:
    completed = {**entry, "shape": list(entry["shape"])}
    completed.setdefault("names", None)
    if isinstance(completed["names"], tuple):
        completed["names"] = list(completed["names"])
    if entry["dtype"] in ("image", "video"):
        feature = _feature(entry)
        info = dict(entry.get("info") or {})
        if feature.chw[0] == 1 or "is_depth_map" not in info:
            info = {"is_depth_map": feature.chw[0] == 1, **{k: v for k, v in info.items() if k != "is_depth_map"}}
        completed["info"] = info
    return completed
