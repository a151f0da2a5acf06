"""One frame as it comes from a loop: everything that is wrong with it is said at once, before any of it is kept.

What passes has one form: arrays of the declared type and shape, pictures as (H, W, 3) uint8 or (H, W) depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.catalog import closest_hint
from mimetic.data.features import FLOATS, DatasetFeature
from mimetic.data.record.messages import check_messages
from mimetic.errors import DatasetError
from mimetic.names import DEFAULT_FEATURES, TASK

Picture = npt.NDArray[np.uint8] | npt.NDArray[np.uint16] | npt.NDArray[np.float32]


@dataclass(frozen=True)
class CheckedFrame:
    """A frame that can be stored.

    Args:
        task: its instruction.
        numbers: arrays of the declared dtype, () for shape (1,), else the declared shape.
        texts: strings.
        messages: language messages; features without any are absent.
        pictures: (H, W, 3) uint8, or depth (H, W) uint16 [mm] or float32 [m]; never the caller's memory.
    """

    task: str
    numbers: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    pictures: dict[str, Picture] = field(default_factory=dict)


class FrameCheck:
    """Checks frames of one dataset.

    Args:
        features: features that frames bring, without the default ones.
        depth_units: "mm" or "m" of depth cameras that have frames already; the first frame of the others decides.
    """

    def __init__(self, features: Mapping[str, DatasetFeature], depth_units: Mapping[str, str]) -> None:
        self._features = features
        self.depth_units = dict(depth_units)
        self._cameras = [name for name, feature in features.items() if feature.is_camera]
        self._needed = {name for name, feature in features.items() if feature.dtype != "language"}

    def __call__(self, frame: Mapping[str, Any], task: str | None = None) -> CheckedFrame:
        """Check a frame.

        Args:
            frame: value by feature, and the instruction as `task` unless it is given apart.
            task: the instruction.

        Raises:
            DatasetError: names every missing and unknown key and every value of another type, shape or range.
        """
        values = dict(frame)
        in_frame = values.pop(TASK, None)
        problems = self._key_problems(values)
        if task is None:
            task = in_frame
        elif in_frame is not None and in_frame != task:
            problems.append(f"`task` is given twice, as {in_frame!r:.80} and {task!r:.80}")
        if not isinstance(task, str):
            problems.append("`task` is missing" if task is None else f"`task` is {task!r:.80} instead of a text")
        checked = CheckedFrame(task if isinstance(task, str) else "")
        units = dict(self.depth_units)
        for name, value in values.items():
            feature = self._features.get(name)
            if feature is not None:
                problem = self._take(checked, name, feature, value, units)
                if problem:
                    problems.append(problem)
        if problems:
            raise DatasetError(
                "the frame does not fit the dataset: " + "; ".join(problems),
                "nothing of this frame was kept; the features are declared in meta/info.json",
            )
        self.depth_units = units
        return checked

    def _key_problems(self, values: Mapping[str, Any]) -> list[str]:
        problems = []
        missing = [name for name in self._features if name in self._needed and name not in values]
        if missing:
            problems.append("missing: " + ", ".join(f"`{name}`" for name in missing))
        for name in values:
            if name in DEFAULT_FEATURES:
                problems.append(f"`{name}` is filled in by the writer")
            elif name not in self._features:
                hint = closest_hint(str(name), missing) if missing else ""
                problems.append(f"unknown: `{name!s:.80}`" + (f" ({hint})" if hint else ""))
        return problems

    def _take(
        self, checked: CheckedFrame, name: str, feature: DatasetFeature, value: Any, units: dict[str, str]
    ) -> str:
        """Put a value into the checked frame; returns what is wrong with it instead."""
        try:
            if feature.dtype == "string":
                if not isinstance(value, str):
                    raise _Wrong(f"is {type(value).__name__} instead of a text")
                checked.texts[name] = value
            elif feature.dtype == "language":
                checked.messages[name] = check_messages(name, value, self._cameras)
            elif feature.is_depth:
                checked.pictures[name] = _depth(value, feature, name, units)
            elif feature.is_camera:
                checked.pictures[name] = _colour(value, feature)
            else:
                checked.numbers[name] = _number(value, feature)
        except (_Wrong, ValueError) as wrong:
            return f"`{name}` {wrong}"
        return ""


class _Wrong(Exception):
    """What is wrong with one value; completes the sentence that begins with its name."""


def _array(value: Any) -> npt.NDArray[Any]:
    """A value as an array: numpy, torch (without importing it), Pillow, or plain numbers."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        return np.asarray(value.detach().cpu().numpy())
    if hasattr(value, "getbands") and hasattr(value, "tobytes"):
        if value.mode not in ("RGB", "I;16", "F"):
            raise _Wrong(f"is a picture of mode {value.mode}; RGB is colour, I;16 and F are depth")
        return np.asarray(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise _Wrong(f"is {type(value).__name__}, which is no array") from error
    if array.dtype.kind not in "biuf":
        raise _Wrong(f"is {type(value).__name__} instead of numbers")
    return array


def _number(value: Any, feature: DatasetFeature) -> npt.NDArray[Any]:
    array, wanted = _array(value), np.dtype(feature.dtype)
    has_own_type = isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "detach")
    if array.dtype != wanted and (has_own_type or not _is_same_kind(array, feature.dtype)):
        raise _Wrong(f"has the dtype {array.dtype}; {feature.dtype} is declared")
    shape = feature.shape
    if array.shape != shape and not (shape == (1,) and array.shape == ()):
        raise _Wrong(f"has the shape {array.shape}; {shape} is declared")
    if array.dtype != wanted and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise _Wrong(f"holds {array.min()}..{array.max()}, which {feature.dtype} cannot hold")
    return np.array(array.reshape(feature.value_shape), dtype=wanted)


def _is_same_kind(array: npt.NDArray[Any], dtype: str) -> bool:
    """Whether plain Python numbers may be taken: integers as floats, never the other way round."""
    kinds = "iuf" if dtype in FLOATS else "b" if dtype == "bool" else "iu"
    return array.dtype.kind in kinds


def _colour(value: Any, feature: DatasetFeature) -> npt.NDArray[np.uint8]:
    array = _array(value)
    channels, height, width = feature.chw
    problems = []
    is_last = array.shape == (height, width, channels)
    if not is_last and array.shape != (channels, height, width):
        problems.append(f"has the shape {array.shape}; ({height}, {width}, {channels}) is declared, or channels first")
    if array.dtype != np.uint8:
        problems += _float_problems(array)
    if problems:
        raise _Wrong(" and ".join(problems))
    if not is_last:
        array = array.transpose(1, 2, 0)
    if array.dtype == np.uint8:
        return np.array(array, order="C")  # a copy: cameras use their buffers again
    return np.asarray(np.rint(array * 255.0), dtype=np.uint8)


def _float_problems(array: npt.NDArray[Any]) -> list[str]:
    if array.dtype.kind != "f":
        return [f"has the dtype {array.dtype}; pictures are uint8, or floats in 0..1"]
    if not array.size:
        return []
    low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return ["holds values that are not numbers"]
    if low < 0.0 or high > 1.0:
        return [f"holds floats from {low:g} to {high:g}; they must lie in 0..1 (or be uint8)"]
    return []


def _depth(value: Any, feature: DatasetFeature, name: str, units: dict[str, str]) -> Picture:
    array = _array(value)
    _, height, width = feature.chw
    problems = []
    shapes: Sequence[tuple[int, ...]] = ((height, width, 1), (1, height, width), (height, width))
    if array.shape not in shapes:
        problems.append(f"has the shape {array.shape}; ({height}, {width}, 1) is declared, or channels first")
    unit = {"uint16": "mm", "float32": "m"}.get(str(array.dtype))
    if unit is None:
        problems.append(f"has the dtype {array.dtype}; depth is uint16 (millimetres) or float32 (metres)")
    elif units.get(name, unit) != unit:
        problems.append(f"holds depth in {unit} by its dtype {array.dtype}; the dataset has it in {units[name]}")
    if array.dtype.kind == "f" and array.size:
        low = float(array.min())
        if not (np.isfinite(low) and np.isfinite(float(array.max()))):
            problems.append("holds values that are not numbers (pixels without depth are 0)")
        elif low < 0.0:
            problems.append(f"holds depths down to {low:g}; the smallest is 0")
    if problems:
        raise _Wrong(" and ".join(problems))
    units[name] = str(unit)
    return np.array(array.reshape(height, width), order="C")
