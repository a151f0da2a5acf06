"""Whether a policy fits an environment, asked before the first episode: everything that is wrong in one error."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.catalog import closest
from mimetic.data.features import DatasetFeature
from mimetic.errors import ConfigError, MimeticError
from mimetic.evaluate.joints import joint_names
from mimetic.evaluate.rollout.environment import EnvTask
from mimetic.features import FeatureType
from mimetic.hub.locate import lerobot_home
from mimetic.names import ACTION, INFO_JSON, SIMULATION_JSON, STATE, TRAIN_CONFIG_JSON
from mimetic.policies.config import PolicyConfig
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.steps.normalizer import Normalizer
from mimetic.processing.steps.rename_observations import RenameObservations
from mimetic.train.needs import trained_fps

logger = logging.getLogger(__name__)
_MOST_RADIANS = 3.3
_FAR_OUTSIDE = 1.25


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is known about the data that a policy was trained on; what is not known is empty.

    Args:
        fps: rate [Hz]; 0 when unknown.
        names: feature -> names of its numbers.
        units: of the simulated cell that it was recorded in.
    """

    fps: float = 0.0
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    units: str = ""


def require_fit(
    config: PolicyConfig,
    preprocessor: Pipeline,
    task: EnvTask,
    training: Training | None = None,
    *,
    policy: str = "the policy",
) -> dict[str, str]:
    """Check that an environment feeds a policy with what it was trained on.

    Args:
        config: the policy's settings.
        preprocessor: its pipeline, with its rename map.
        task: the environment.
        training: what is known about the training data.
        policy: words for messages.

    Returns:
        Name in the policy -> name in the environment, of what the policy reads.

    Raises:
        ConfigError: it does not; the message lists everything that is wrong.
    """
    training = training or Training()
    offered = {key: feature for key, feature in task.features.items() if key != ACTION}
    renamed = {key: key for key in offered}
    for step in preprocessor.find(RenameObservations):
        renamed = {step.rename_map.get(name, name): key for name, key in renamed.items()}
    wanted = dict(config.input_features or {})
    for name in (*config.filler_inputs, *config.unread_inputs):
        wanted.pop(name, None)
    cameras = [name for name, feature in wanted.items() if feature.type is FeatureType.VISUAL]
    absent = [name for name in cameras if name not in renamed]
    if config.has_camera_slots and len(absent) < len(cameras):
        for name in absent:
            del wanted[name]
            logger.warning(
                "%s was trained with `%s` too, which the environment does not show; it runs without", policy, name
            )
    problems: list[str] = []
    hints: list[str] = []
    missing = [name for name in wanted if name not in renamed]
    if missing:
        problems.append(
            f"{policy} reads {_listed(missing)}, and the environment shows {_listed(list(offered))}"
            + ("" if renamed.keys() == offered.keys() else f" (renamed to {_listed(list(renamed))})")
        )
        proposal = _proposal(missing, wanted, renamed, offered)
        hints.append(
            f"rename: `--rename_map='{json.dumps(proposal)}'`"
            if proposal
            else "evaluate in an environment with the inputs that the policy was trained on"
        )
    for name, feature in wanted.items():
        if name in renamed:
            _check_shape(name, tuple(feature.shape), offered[renamed[name]], config, task, problems, hints, policy)
    output = config.action_feature
    if output is not None and tuple(output.shape) != tuple(task.features[ACTION].shape):
        problems.append(
            f"{policy} gives an action of {_size(output.shape)}, and the environment takes "
            f"{_size(task.features[ACTION].shape)}"
        )
    _check_training(training, task, problems, hints, policy)
    if not problems:
        _check_values(preprocessor, task, renamed, problems, hints, policy)
    if problems:
        raise ConfigError("; ".join(problems), "; ".join(dict.fromkeys(hints)))
    return {name: renamed[name] for name in wanted}


def _check_shape(
    name: str,
    shape: tuple[int, ...],
    feature: DatasetFeature,
    config: PolicyConfig,
    task: EnvTask,
    problems: list[str],
    hints: list[str],
    policy: str,
) -> None:
    if feature.is_camera:
        if not config.has_camera_slots and tuple(feature.chw) != shape:
            problems.append(
                f"{policy} was trained with `{name}` of {shape[2]}x{shape[1]} pixels, and the environment shows "
                f"{feature.chw[2]}x{feature.chw[1]}"
            )
            if task.picture_flags is not None:
                width, height = task.picture_flags
                hints.append(f"`--env.{width}={shape[2]} --env.{height}={shape[1]}`")
    elif tuple(feature.shape) != shape:
        problems.append(f"{policy} reads `{name}` of {_size(shape)}, and the environment has {_size(feature.shape)}")


def _check_training(training: Training, task: EnvTask, problems: list[str], hints: list[str], policy: str) -> None:
    if training.fps and abs(training.fps - task.fps) > 1e-6:
        problems.append(f"{policy} was trained at {training.fps:g} Hz, and the environment runs at {task.fps} Hz")
        hints.append(
            "train on data of the environment's rate; a policy moves at the speed it was taught"
            + ("" if task.units else f"; or, where the data only names another rate, `--env.fps={training.fps:g}`")
        )
    for key, names in training.names.items():
        feature = task.features.get(key)
        if feature is None or feature.is_camera or len(names) != int(np.prod(feature.shape)):
            continue
        if feature.flat_names is None:  # an environment whose package names nothing
            continue
        own = tuple(joint_names(feature.flat_names, len(names), key))
        which = next((index for index in range(len(own)) if _bare(own[index]) != _bare(names[index])), None)
        if which is not None:
            problems.append(
                f"number {which} of `{key}` is `{names[which]}` in the data that {policy} was trained on, and "
                f"`{own[which]}` in the environment"
            )
            hints.append("the order and names of joints must be those of training")
    if training.units and task.units and training.units != task.units:
        problems.append(f"{policy} was trained in {training.units}, and the environment is set to {task.units}")
        hints.append(f"`--env.units={training.units}`")


def _bare(name: str) -> str:
    """A joint's name without what datasets of different ages put around it: `main_shoulder_pan`, `shoulder_pan.pos`."""
    return name.removeprefix("main_").removesuffix(".pos")


def _check_values(
    preprocessor: Pipeline,
    task: EnvTask,
    renamed: Mapping[str, str],
    problems: list[str],
    hints: list[str],
    policy: str,
) -> None:
    """Units by the values that the training data had, where its description is not at hand."""
    for step in preprocessor.find(Normalizer):
        for name, stats in step.stats.items():
            key = renamed.get(name, name)
            if key not in task.ranges or "min" not in stats or "max" not in stats:
                continue
            low, high = (np.asarray(side, np.float64) for side in task.ranges[key])
            least, most = (np.asarray(stats[side], np.float64).reshape(-1) for side in ("min", "max"))
            if least.size != low.size or not np.isfinite(least).all() or not np.isfinite(most).all():
                continue
            largest, bound = np.maximum(abs(least), abs(most)), np.maximum(abs(low), abs(high))
            if (largest > bound * _FAR_OUTSIDE).any():
                which = int(np.argmax(largest / bound))
                problems.append(
                    f"number {which} of `{key}` went up to {largest[which]:.4g} in the data that {policy} was trained "
                    f"on, and to {bound[which]:.4g} at most in the environment: these are other units, or another arm"
                )
            elif (largest > 0).any() and (largest <= _MOST_RADIANS).all() and (bound > 50).all():
                problems.append(
                    f"no number of `{key}` exceeded {largest.max():.3g} in the data that {policy} was trained on, and "
                    f"the environment's reach to {bound.max():.4g}: training was in radians, or in other units"
                )
            else:
                continue
            hints.append("train on data in the units of the environment (`--env.units`), or convert the data")
            return


def read_training(folder: Path) -> Training:
    """What a checkpoint and, if it is on this machine, its dataset say about the training data; never fails.

    Args:
        folder: `pretrained_model` folder.
    """
    fps = trained_fps(folder)
    root = _training_root(folder)
    return Training(fps=fps) if root is None else read_dataset(root, fps=fps)


def read_dataset(root: Path, *, fps: float = 0.0) -> Training:
    """What a dataset says about itself; never fails.

    Args:
        root: its folder.
        fps: rate that is known already [Hz]; 0 asks the dataset.
    """
    try:
        info = json.loads((root / INFO_JSON).read_text(encoding="utf-8"))
        features = {
            key: DatasetFeature(value["dtype"], tuple(value["shape"]), value.get("names"))
            for key, value in info["features"].items()
            if key in (STATE, ACTION)
        }
        names = {
            key: tuple(joint_names(feature.flat_names, int(np.prod(feature.shape)), key))
            for key, feature in features.items()
            if feature.flat_names
        }
        return Training(fps=fps or float(info["fps"]), names=names, units=_units(root))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MimeticError) as error:
        logger.warning("%s cannot be read, so names and units are not compared with it: %s", root / INFO_JSON, error)
        return Training(fps=fps)


def _training_root(folder: Path) -> Path | None:
    """Folder of the training data, where it is still on this machine; nothing is downloaded."""
    try:
        dataset = json.loads((folder / TRAIN_CONFIG_JSON).read_text(encoding="utf-8"))["dataset"]
        places = [dataset.get("root"), lerobot_home() / str(dataset.get("repo_id") or "-")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    for place in places:
        if place and (Path(place).expanduser() / INFO_JSON).is_file():
            return Path(place).expanduser()
    return None


def _units(root: Path) -> str:
    try:
        description: Any = json.loads((root / SIMULATION_JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return str(description.get("units") or "") if isinstance(description, dict) else ""


def _proposal(
    missing: list[str], wanted: Mapping[str, Any], renamed: Mapping[str, str], offered: Mapping[str, DatasetFeature]
) -> dict[str, str]:
    """A whole rename map for what is missing: cameras in order, other inputs by the nearest name."""
    used = {key: name for name, key in renamed.items() if name in wanted}
    proposed: dict[str, str] = {}
    for name in missing:
        is_camera = wanted[name].type is FeatureType.VISUAL
        free = [
            key for key in offered if key not in used and key not in proposed and offered[key].is_camera == is_camera
        ]
        near = closest(name, free) or (free if is_camera else [])
        if near:
            proposed[near[0]] = name
    # A map that is given replaces the checkpoint's own.
    return {key: name for key, name in used.items() if key != name} | proposed if proposed else {}


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing"


def _size(shape: Any) -> str:
    numbers = [int(number) for number in shape]
    return f"{numbers[0]} numbers" if len(numbers) == 1 else f"shape {tuple(numbers)}"
