"""Features of a dataset: the declarations of info.json, read once and typed (spec/dataset.md 3).

Also says what a policy can read from them: `policy_features` (spec/policies.md 2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mimetic.errors import DatasetFormatError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import ACTION, ENVIRONMENT_STATE, OBSERVATION

CHANNEL_NAMES = ("channel", "channels")
FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NUMERIC = (*FLOATS, *INTEGERS, "bool")
MAX_VALUES = 1 << 28
"""Most values of one frame of a feature; what is declared larger is a damaged or hostile file, not a camera."""
DTYPES = (*NUMERIC, "string", "image", "video", "language")
_DEPTH_FLAGS = (("info", "is_depth_map"), ("info", "video.is_depth_map"), ("video_info", "video.is_depth_map"))


@dataclass(frozen=True)
class DatasetFeature:
    """One declared column or camera.

    Args:
        dtype: a numpy name, `string`, `image`, `video` or `language`.
        shape: shape of one frame's value as declared; cameras are usually (H, W, C).
        names: names as declared: null, a list, a list in a list, or a dict.
        info: the stream and depth description of a camera; empty for the others.
        is_depth: whether a camera holds depth (any of the three spellings of the flag).
    """

    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    is_depth: bool = False

    @property
    def is_camera(self) -> bool:
        """Whether the values are pictures."""
        return self.dtype in ("image", "video")

    @property
    def is_numeric(self) -> bool:
        """Whether the values are plain numbers."""
        return self.dtype in NUMERIC

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one frame's tensor: () for shape (1,), (C, H, W) for cameras."""
        if self.is_camera:
            return self.chw
        return () if self.shape == (1,) else self.shape

    @property
    def chw(self) -> tuple[int, ...]:
        """Shape of a camera as (C, H, W), whatever order is declared."""
        if len(self.shape) == 3 and self._is_channels_last():
            return (self.shape[2], self.shape[0], self.shape[1])
        return self.shape

    @property
    def flat_names(self) -> list[str] | None:
        """One name a dimension, or None when there are none (nested lists and dicts are flattened)."""
        return flatten_names(self.names)

    def _is_channels_last(self) -> bool:
        names = self.flat_names
        if names is not None and len(names) == 3:
            return names[2] in CHANNEL_NAMES
        return self.shape[2] in (1, 3) and self.shape[0] not in (1, 3)


def flatten_names(names: Any) -> list[str] | None:
    """Flatten the spellings of `names` to one list.

    `["a", "b"]`, `[["a", "b"]]`, `{"motors": ["a", "b"]}` and `{"a": 0, "b": 1}` all give `["a", "b"]`.
    Null gives None.
    """
    if names is None:
        return None
    if isinstance(names, str):
        return [names]
    if isinstance(names, Mapping):
        values = list(names.values())
        if values and all(isinstance(value, int) for value in values):
            return sorted((str(key) for key in names), key=lambda key: int(names[key]))
        return _flatten_all(values)
    if isinstance(names, (list, tuple)):
        return _flatten_all(names)
    return [str(names)]


def _flatten_all(values: Iterable[Any]) -> list[str]:
    return [name for value in values for name in flatten_names(value) or []]


def parse_features(raw: Any, *, where: str) -> dict[str, DatasetFeature]:
    """Read the `features` object of info.json.

    Args:
        raw: the decoded JSON value.
        where: name of the file, for messages.

    Raises:
        DatasetFormatError: not an object, or entries with a wrong name, dtype or shape; all of them are listed.
    """
    if not isinstance(raw, Mapping) or not raw:
        raise DatasetFormatError(f"`features` in {where} must be an object with at least one feature, not {raw!r:.80}")
    problems: list[str] = []
    features: dict[str, DatasetFeature] = {}
    for name, entry in raw.items():
        problem = _feature_problem(name, entry)
        if problem:
            problems.append(problem)
        else:
            features[name] = _parse_feature(entry)
    if problems:
        raise DatasetFormatError(
            f"{where} declares features that cannot be read: " + "; ".join(problems),
            f"dtypes are {', '.join(DTYPES)}; shapes are lists of positive integers",
        )
    return features


def _feature_problem(name: str, entry: Any) -> str:
    if "/" in name or "\\" in name or name in ("", ".", ".."):
        return f"`{name}` is not a feature name (no slashes, no dots alone)"
    if not isinstance(entry, Mapping):
        return f"`{name}` is {entry!r:.40} instead of an object"
    dtype, shape = entry.get("dtype"), entry.get("shape")
    if dtype not in DTYPES:
        return f"`{name:.80}` has the unknown dtype {dtype!r:.60}"
    is_list = isinstance(shape, (list, tuple)) and len(shape) > 0
    if not is_list or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in shape or ()):
        return f"`{name:.80}` has the shape {shape!r:.60}"
    if math.prod(shape or ()) > MAX_VALUES:
        return f"`{name}` has the shape {shape!r:.60}, more than {MAX_VALUES} values a frame"
    if dtype in ("image", "video") and len(shape or ()) != 3:
        return f"camera `{name}` has the shape {shape!r} instead of three sizes"
    return ""


def _parse_feature(entry: Mapping[str, Any]) -> DatasetFeature:
    info = entry.get("info")
    if not isinstance(info, Mapping):
        info = entry.get("video_info")
    flags = [
        (entry.get(block) or {}).get(key) for block, key in _DEPTH_FLAGS if isinstance(entry.get(block) or {}, dict)
    ]
    is_camera = entry["dtype"] in ("image", "video")
    return DatasetFeature(
        dtype=entry["dtype"],
        shape=tuple(int(size) for size in entry["shape"]),
        names=entry.get("names"),
        info=dict(info) if isinstance(info, Mapping) else {},
        is_depth=is_camera and any(flag is True for flag in flags),
    )


def policy_features(features: Mapping[str, DatasetFeature]) -> dict[str, PolicyFeature]:
    """What a policy can read and write of a dataset, in the dataset's order.

    Cameras become VISUAL as (C, H, W), `observation.environment_state` ENV, other `observation*` STATE, `action*`
    ACTION; everything else is left out.

    Args:
        features: features of the dataset by name.

    Raises:
        DatasetFormatError: a camera whose shape has not three sizes.
    """
    found: dict[str, PolicyFeature] = {}
    for name, feature in features.items():
        if feature.is_camera:
            if len(feature.shape) != 3:
                raise DatasetFormatError(f"camera `{name}` has the shape {feature.shape} instead of three sizes")
            found[name] = PolicyFeature(FeatureType.VISUAL, feature.chw)
        elif feature.dtype in ("string", "language"):
            continue
        elif name == ENVIRONMENT_STATE:
            found[name] = PolicyFeature(FeatureType.ENV, feature.shape)
        elif name.startswith(OBSERVATION):
            found[name] = PolicyFeature(FeatureType.STATE, feature.shape)
        elif name.startswith(ACTION):
            found[name] = PolicyFeature(FeatureType.ACTION, feature.shape)
    return found
