"""What an import found: episodes, and which of their arrays become which features.

Nothing is guessed silently: what the files do not say must come from flags, and what has no name in the dataset must be
named or left out by a flag.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.catalog import closest_hint
from mimetic.data.convert.config import ConvertConfig
from mimetic.errors import ConfigError, DatasetFormatError
from mimetic.names import DEFAULT_FEATURES

logger = logging.getLogger(__name__)

_NAMED = 12


@dataclass(frozen=True, kw_only=True)
class Array:
    """One array of the input.

    Args:
        shape: of one frame's value; pictures (H, W, 3).
        dtype: numpy name.
        is_picture: whether it is a camera.
        names: names of its dimensions, where the input knows them.
    """

    shape: tuple[int, ...]
    dtype: str
    is_picture: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportEpisode:
    """One episode of the input.

    Args:
        path: its file (Zarr: the store).
        start: its first row there.
        length: frames.
        task: its instruction.
    """

    path: Path
    start: int
    length: int
    task: str


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Everything that is imported.

    Args:
        source_format: key of `imports.formats.IMPORTS`.
        fps: frame rate [Hz].
        robot_type: name of the robot, or None.
        sources: feature to array of the input.
        features: as info.json declares them, without the default ones.
        episodes: in order.
        is_bgr: whether pictures have blue first.
        picture_max: largest value of pictures that are not bytes; 0 when there are none.
    """

    source_format: str
    fps: int
    robot_type: str | None
    sources: Mapping[str, str]
    features: Mapping[str, Mapping[str, Any]]
    episodes: Sequence[ImportEpisode]
    is_bgr: bool = False
    picture_max: float = 0.0

    @property
    def cameras(self) -> list[str]:
        """Features that become videos."""
        return [name for name, entry in self.features.items() if entry["dtype"] == "video"]


def assign(arrays: Mapping[str, Array], known: Mapping[str, str], config: ConvertConfig) -> dict[str, str]:
    """Decide which array becomes which feature.

    Args:
        arrays: what the input holds, by name.
        known: names whose meaning the layout defines, with their features; pictures are cameras of their own name.
        config: `features` overrides and completes it.

    Returns:
        Feature to name in the input, in the order of the input.

    Raises:
        ConfigError: a flag names what is not there, arrays are left without a name, or two get the same.
    """
    strangers = [name for name in config.features if name not in arrays]
    if strangers:
        raise ConfigError(
            f"`--features` names `{strangers[0]}`, which the input does not hold",
            closest_hint(strangers[0], arrays) or f"it holds {_listed(arrays)}",
        )
    chosen: dict[str, str] = {}
    unnamed = []
    for name, array in arrays.items():
        last = name.rpartition("/")[2]
        default = known.get(name, f"observation.images.{last}" if array.is_picture else None)
        feature = config.features.get(name, default)
        if feature is None:
            unnamed.append(name)
        elif feature:
            if feature in chosen:
                raise ConfigError(f"`{chosen[feature]}` and `{name}` would both become `{feature}`", _RENAME)
            chosen[feature] = name
    if unnamed:
        pairs = ", ".join(f"{name}: observation.{name.rpartition('/')[2]}" for name in unnamed[:3])
        raise ConfigError(
            f"the input holds {_listed(unnamed)}, whose meaning its layout does not define",
            f"name them, `--features='{{{pairs}}}'`, or leave them out with an empty name, "
            f"`--features='{{{unnamed[0]}: \"\"}}'`",
        )
    _check_names(chosen)
    return chosen


_RENAME = "name them apart with `--features='{NAME: FEATURE}'`"


def _check_names(chosen: Mapping[str, str]) -> None:
    wrong = [feature for feature in chosen if "/" in feature or feature in DEFAULT_FEATURES]
    if wrong:
        raise ConfigError(
            f"`{wrong[0]}` cannot be the name of a feature",
            "names hold no slash, and the five columns that every dataset has are made by mimetic",
        )
    if "action" not in chosen:
        raise ConfigError(
            f"none of {_listed(chosen.values())} becomes `action`", "say which one it is: `--features='{NAME: action}'`"
        )


def declare(
    sources: Mapping[str, str], arrays: Mapping[str, Array], config: ConvertConfig
) -> dict[str, dict[str, Any]]:
    """Declarations of the features for info.json; the `info` of cameras is filled in when they are encoded.

    Raises:
        ConfigError: nobody names the joints, or says what white is in pictures that are not bytes.
    """
    features: dict[str, dict[str, Any]] = {}
    for feature, name in sources.items():
        array = arrays[name]
        if array.is_picture:
            if array.dtype != "uint8" and not config.picture_max:
                raise ConfigError(
                    f"the pictures of `{name}` are {array.dtype}, and nothing says what white is",
                    "say it: `--picture_max=1` or `--picture_max=255`",
                )
            features[feature] = {
                "dtype": "video",
                "shape": list(array.shape),
                "names": ["height", "width", "channels"],
            }
        else:
            dtype = "float32" if array.dtype.startswith("float") else array.dtype
            shape = list(array.shape) or [1]
            features[feature] = {"dtype": dtype, "shape": shape, "names": _names(feature, array, shape, config)}
    wanted = len(config.joint_names or ())
    widths = {feature: entry["shape"] for feature, entry in features.items() if entry["dtype"] != "video"}
    if wanted and [wanted] not in widths.values():
        raise ConfigError(f"`--joint_names` holds {wanted} names; the input has {widths}", "give one name a dimension")
    return features


def _names(feature: str, array: Array, shape: Sequence[int], config: ConvertConfig) -> list[str] | None:
    given = config.joint_names
    if given and [len(given)] == list(shape):
        return list(given)
    if array.names and [len(array.names)] == list(shape):
        return list(array.names)
    if given is None and feature in ("action", "observation.state"):
        raise ConfigError(
            f"the input does not name the {shape[0]} dimensions of `{feature}`",
            "give them, `--joint_names=[waist,shoulder,...]`, or say that they have no names, `--joint_names=[]`",
        )
    return None


def required_fps(config: ConvertConfig, found: object = None) -> int:
    """The frame rate from the flag, else what the input says.

    Raises:
        ConfigError: neither says it, or it is no whole number.
    """
    value = config.fps if config.fps is not None else found
    if value is None:
        raise ConfigError("the input does not say its frame rate", "give it, such as `--fps=50`")
    if not isinstance(value, (int, float)) or value != int(value) or value <= 0:
        raise ConfigError(f"the input says a frame rate of {value!r:.40}", "give a whole number with `--fps`")
    return int(value)


def required_task(config: ConvertConfig, found: object, where: str) -> str:
    """The instruction from the flag, else what the input says.

    Raises:
        ConfigError: neither says it.
    """
    value = config.task if config.task is not None else found
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} does not say its task", "give it, `--task='pick up the cube'`")
    return value


def require_same(first: Mapping[str, Array], other: Mapping[str, Array], where: str, first_where: str) -> None:
    """Refuse an episode whose arrays are not those of the first one.

    Raises:
        DatasetFormatError: names, shapes or types differ.
    """
    for name in {**first, **other}:
        if first.get(name) != other.get(name):
            raise DatasetFormatError(
                f"`{name}` is {_described(other.get(name))} in `{where}` and {_described(first.get(name))} in "
                f"`{first_where}`",
                "import recordings of different robots or cameras into datasets of their own",
            )


def report(sources: Mapping[str, str], arrays: Mapping[str, Array], left_out: Sequence[str]) -> None:
    """Say which array becomes what."""
    for feature, name in sources.items():
        logger.info("%s -> %s %s", name, feature, _described(arrays[name]))
    if left_out:
        logger.info("left out: %s", ", ".join(left_out))


def _described(array: Array | None) -> str:
    if array is None:
        return "missing"
    kind = "pictures" if array.is_picture else array.dtype
    return f"{kind} {'x'.join(map(str, array.shape)) or '1'}"


def _listed(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"`{name}`" for name in names[:_NAMED]) + more
