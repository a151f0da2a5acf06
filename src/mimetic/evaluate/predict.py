"""Runs a policy on recorded observations: the same preprocessing as in training, chunks in dataset units out."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mimetic.catalog import closest
from mimetic.data.dataset import Dataset
from mimetic.errors import ConfigError, ShapeError
from mimetic.evaluate.metrics import Floats, Ints
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import ACTION, INDEX, TASK, TASK_INDEX
from mimetic.policies.checkpoint import Pretrained
from mimetic.processing.steps.rename_observations import RenameObservations

logger = logging.getLogger(__name__)

LOG_EVERY_S = 30.0


def input_names(pretrained: Pretrained, dataset: Dataset) -> dict[str, str]:
    """Which feature of the dataset feeds which input of the policy.

    Returns:
        Name in the policy -> name in the dataset, of what the policy reads. Cameras that the dataset lacks are left out
        where the policy can do without them and there is another one.

    Raises:
        ConfigError: inputs that the dataset does not have; all of them are named.
        ShapeError: the dataset's action or state has another size than the policy's.
    """
    renamed: dict[str, str] = {key: key for key in dataset.features}
    for step in pretrained.preprocessor.find(RenameObservations):
        renamed = {step.rename_map.get(name, name): key for name, key in renamed.items()}
    unread = pretrained.config.unread_inputs
    wanted = {key: feature for key, feature in (pretrained.config.input_features or {}).items() if key not in unread}
    if pretrained.config.has_camera_slots:
        absent = [name for name in pretrained.config.image_features if name not in renamed]
        if len(absent) < len(pretrained.config.image_features):
            for name in absent:
                del wanted[name]
    missing = [name for name in wanted if name not in renamed]
    if missing:
        example = _proposal(missing, wanted, renamed, dataset)
        raise ConfigError(
            f"the policy reads {_listed(missing)}, and the dataset has no such feature; it has "
            f"{_listed([key for key in dataset.features if key.startswith('observation.')]) or 'no observation'}",
            f"rename them: `--rename_map='{json.dumps(example)}'`"
            if example
            else "evaluate on a dataset with the features that the policy was trained on",
        )
    for name, feature in wanted.items():
        shape = dataset.features[renamed[name]].shape
        if not dataset.features[renamed[name]].is_camera and tuple(shape) != tuple(feature.shape):
            raise ShapeError(
                f"`{renamed[name]}` of the dataset has shape {tuple(shape)}, "
                f"and the policy reads {tuple(feature.shape)}",
                "evaluate on a dataset of the robot that the policy was trained for",
            )
    return {name: renamed[name] for name in wanted}


def _proposal(
    missing: Sequence[str], wanted: Mapping[str, PolicyFeature], renamed: Mapping[str, str], dataset: Dataset
) -> dict[str, str]:
    """A whole rename map for what is missing: cameras in order, other features by the nearest name."""
    used = {key: name for name, key in renamed.items() if name in wanted}
    free = [key for key in dataset.features if key.startswith("observation.") and key not in used]
    proposed = {}
    slots = [name for name in missing if wanted[name].type is FeatureType.VISUAL]
    for name, key in zip(slots, [key for key in free if dataset.features[key].is_camera], strict=False):
        proposed[key] = name
    for name in (name for name in missing if name not in slots):
        near = closest(name, [key for key in free if not dataset.features[key].is_camera and key not in proposed])
        if near:
            proposed[near[0]] = name
    # A map that is given replaces the checkpoint's own.
    return {key: name for key, name in used.items() if key != name} | proposed if proposed else {}


def absent_cameras(pretrained: Pretrained, inputs: Mapping[str, str]) -> list[str]:
    """Cameras that the policy was trained with and does not get.

    Args:
        pretrained: the policy.
        inputs: what `input_names` found.
    """
    config = pretrained.config
    return [name for name in config.image_features if name not in inputs and name not in config.filler_inputs]


def action_size(pretrained: Pretrained, dataset: Dataset) -> int:
    """Number of joints, the same in policy and dataset.

    Raises:
        ConfigError: the dataset has no action.
        ShapeError: the sizes differ.
    """
    feature = dataset.features.get(ACTION)
    if feature is None:
        raise ConfigError("the dataset has no feature named `action`, so there is nothing to compare with")
    output = pretrained.config.action_feature
    if output is not None and tuple(output.shape) != tuple(feature.shape):
        raise ShapeError(
            f"`action` of the dataset has shape {tuple(feature.shape)}, and the policy predicts {tuple(output.shape)}",
            "evaluate on a dataset of the robot that the policy was trained for",
        )
    return int(np.prod(feature.shape))


def predict_chunks(
    pretrained: Pretrained,
    dataset: Dataset,
    rows: Ints,
    *,
    batch_size: int,
    seed: int,
    alter: Callable[[dict[str, Any]], None] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[Ints, Floats]]:
    """Predict a chunk at each row.

    Args:
        pretrained: the policy with its pipelines.
        dataset: recorded observations, with the policy's observation windows; cameras as uint8.
        rows: positions in the dataset, (n,).
        batch_size: observations a forward pass.
        seed: of the noise that a policy starts from. Each frame has noise of its own, whatever stands beside it in
            the batch and whatever is altered, so that passes can be compared frame by frame.
        alter: changes a raw batch in place before the policy sees it.
        on_progress: called with the number of finished rows and of all rows.

    Yields:
        Rows (b,) and their chunks (b, K, A), dataset units.
    """
    parts = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    done, started, logged = 0, time.monotonic(), time.monotonic()
    # One batch is read ahead, so that decoding and predicting overlap.
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="read-ahead") as pool:
        waiting = pool.submit(_observations, dataset, parts[0], alter) if parts else None
        for number, part in enumerate(parts):
            assert waiting is not None
            batch, frames = waiting.result()
            if number + 1 < len(parts):
                waiting = pool.submit(_observations, dataset, parts[number + 1], alter)
            yield part, _predict(pretrained, batch, frames, seed)
            done += len(part)
            if on_progress is not None:
                on_progress(done, len(rows))
            if time.monotonic() - logged > LOG_EVERY_S:
                logged = time.monotonic()
                logger.info("predicted %d of %d chunks (%.1f a second)", done, len(rows), done / (logged - started))


def _observations(
    dataset: Dataset, rows: Ints, alter: Callable[[dict[str, Any]], None] | None
) -> tuple[dict[str, Any], Ints]:
    """What the policy may see of the rows (observations and the task, never the recorded action), and their numbers."""
    read = dataset.batch(rows)
    batch = {key: value for key, value in read.items() if key.startswith("observation.") or key in (TASK, TASK_INDEX)}
    if alter is not None:
        alter(batch)
    return batch, read[INDEX].numpy().reshape(-1)


def _predict(pretrained: Pretrained, batch: Mapping[str, Any], frames: Ints, seed: int) -> Floats:
    predict: Callable[..., Tensor] = pretrained.policy.predict_chunk
    shape = pretrained.config.noise_shape
    options = {} if shape is None else {"noise": _noise(frames, shape, seed).to(pretrained.policy.device)}
    with torch.inference_mode():
        normalised = predict(pretrained.preprocessor(batch), **options)
        actions = pretrained.postprocessor.run_action(normalised)
    if actions.dim() != 3:
        raise ShapeError(f"the policy predicted {tuple(actions.shape)} where chunks (batch, steps, joints) are needed")
    chunks: Floats = actions.to("cpu", torch.float64).numpy()
    return chunks


def _noise(frames: Ints, shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise (b, *shape), which depends on the seed and the number of each frame in the dataset."""
    drawn = [
        np.random.default_rng((seed, int(frame))).standard_normal(shape, dtype=np.float32) for frame in frames.tolist()
    ]
    return torch.from_numpy(np.stack(drawn))


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
