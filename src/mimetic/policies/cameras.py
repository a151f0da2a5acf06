"""Cameras of a dataset matched to the camera slots of a loaded policy (spec/smolvla.md 12, 17.8).

A vision-language policy tells cameras apart by their order only; the names of its slots (`camera1`, ...) say nothing.
So cameras under other names are put into the free slots, in order, every decision is told, and the result is a rename
map, which LeRobot understands too. Policies to which names matter are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimetic.errors import ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import ACTION, STATE
from mimetic.policies.config import PolicyConfig


@dataclass(frozen=True)
class Fitted:
    """A policy's inputs, as fitted to a dataset.

    Args:
        input_features: inputs of the policy that the dataset feeds, in the policy's order, with the dataset's shapes.
        rename_map: dataset name -> policy name; the one that was given, or the one that was found.
        decisions: one line for each thing that was decided; empty when everything fits as it is.
    """

    input_features: dict[str, PolicyFeature]
    rename_map: dict[str, str]
    decisions: tuple[str, ...]


def fit_inputs(
    config: PolicyConfig,
    offered: Mapping[str, PolicyFeature],
    rename_map: Mapping[str, str],
    earlier: Mapping[str, str] | None = None,
) -> Fitted | None:
    """Match the cameras of a dataset to the slots of a loaded policy, and take over the dataset's shapes.

    Cameras that have the name of a slot keep it, cameras that the loaded policy was trained with already go where they
    went then, and the others take the free slots in order. A rename map by hand is
    followed to the letter: what it does not name and no slot is called like is not read. Slots without a camera leave
    the policy's inputs, because an input that nobody feeds says nothing about the trained policy.

    Args:
        config: settings of the loaded policy.
        offered: features of the dataset, under its own names, in its order.
        rename_map: as given by hand; empty: find one.
        earlier: the rename map that the loaded policy was trained with.

    Returns:
        None when the policy's cameras are not slots, or nothing says what its inputs are.

    Raises:
        ConfigError: there are more cameras than slots, or the rename map does not fit.
    """
    slots = [key for key in config.image_features if key not in config.filler_inputs]
    cameras = [key for key, feature in offered.items() if feature.type is FeatureType.VISUAL]
    if not config.has_camera_slots or not slots or not cameras:
        return None
    if rename_map:
        _check_by_hand(rename_map, offered, cameras, slots)
        found = dict(rename_map)
    else:
        found = _match(cameras, slots, earlier or {})
    names = {key: found.get(key, key) for key in cameras}
    decisions = [f"camera `{key}` -> slot `{found[key]}`" for key in cameras if key in found and not rename_map]
    decisions += [
        f"camera `{key}` is not read: the policy has no slot of this name" for key in cameras if names[key] not in slots
    ]
    free = [slot for slot in slots if slot not in names.values()]
    if free:
        are = "slot {} has no camera and leaves" if len(free) == 1 else "slots {} have no camera and leave"
        decisions.append(are.format(_names(free)) + " the policy's inputs")
    if found and not rename_map:
        decisions.append(f"to choose otherwise: {_flag(found)}")
    fed = {found.get(key, key): feature for key, feature in offered.items()}
    inputs = {}
    for key, feature in (config.input_features or {}).items():
        if key in free:
            continue
        inputs[key] = _with_shape(key, feature, fed.get(key), decisions)
    acted, act = (config.output_features or {}).get(ACTION), fed.get(ACTION)
    if acted is not None and act is not None and act.shape != acted.shape:
        decisions.append(
            f"`{ACTION}` is {list(act.shape)} in the dataset and was {list(acted.shape)} in the base policy; the "
            f"trained policy predicts {list(act.shape)}"
        )
    return Fitted(inputs, found, tuple(decisions))


def _match(cameras: Sequence[str], slots: Sequence[str], earlier: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in cameras:
        slot = earlier.get(key, "")
        if key not in slots and slot in slots and slot not in cameras and slot not in found.values():
            found[key] = slot
    others = [key for key in cameras if key not in slots and key not in found]
    free = [slot for slot in slots if slot not in cameras and slot not in found.values()]
    if not free:
        return found  # every slot has its camera; the others are not read, as with any policy
    if len(others) > len(free):
        example = found | dict(zip(others, free, strict=False))
        raise ConfigError(
            f"the dataset has the cameras {_names(cameras)}, and the policy has slots for {len(slots)}: {_names(slots)}"
            f"; which of {_names(others)} to read is not clear",
            f"say which camera goes where, for example {_flag(example)}; cameras that are not named are not read",
        )
    found |= dict(zip(others, free, strict=False))
    return {key: found[key] for key in cameras if key in found}


def _check_by_hand(
    rename_map: Mapping[str, str], offered: Mapping[str, PolicyFeature], cameras: Sequence[str], slots: Sequence[str]
) -> None:
    problems = [f"the dataset has no `{key}`" for key in rename_map if key not in offered]
    problems += [
        f"the policy has no camera slot `{rename_map[key]}` (for `{key}`)"
        for key in cameras
        if key in rename_map and rename_map[key] not in slots
    ]
    names = [rename_map.get(key, key) for key in cameras]
    twice = [slot for slot in slots if names.count(slot) > 1]
    problems += [f"slot `{slot}` gets {_names([k for k in cameras if rename_map.get(k, k) == slot])}" for slot in twice]
    if not problems and not any(name in slots for name in names):
        problems.append("it gives no slot a camera")
    if problems:
        raise ConfigError(
            f"`--rename_map` does not fit: {'; '.join(problems)}",
            f"the dataset's cameras are {_names(cameras)}, the policy's slots {_names(slots)}; without the flag they "
            "are matched in order",
        )


def _with_shape(key: str, declared: PolicyFeature, there: PolicyFeature | None, decisions: list[str]) -> PolicyFeature:
    """The feature with the dataset's shape: cameras are resized and the state is padded, so any shape will do."""
    is_flexible = declared.type is FeatureType.VISUAL or key == STATE
    if there is None or not is_flexible or there.type is not declared.type or there.shape == declared.shape:
        return declared
    decisions.append(
        f"`{key}` is {list(there.shape)} in the dataset and was {list(declared.shape)} in the base policy; the trained "
        f"policy's config says {list(there.shape)}"
    )
    return there


def _flag(rename_map: Mapping[str, str]) -> str:
    return f"`--rename_map='{json.dumps(dict(rename_map))}'`"


def _names(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys) or "none"
