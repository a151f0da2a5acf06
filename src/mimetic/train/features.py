"""Whether a run trains on features of camera frames that are kept on disk, and from which files.

The policy offers a frozen encoder of single frames (`Policy.frame_encoder`); nothing here knows a policy by name. With
the features on disk, cameras are left out of the samples, and each sample gets `observation.features.<camera>` instead.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mimetic.accelerators.precision import Precision
from mimetic.data.dataset import Dataset, FrameValues
from mimetic.data.feature_cache import DTYPES
from mimetic.data.feature_reader import FeatureReader
from mimetic.errors import ConfigError
from mimetic.features import NormalizationMode
from mimetic.names import FEATURES_PREFIX, OBSERVATION
from mimetic.policies.base import FrameEncoder, Policy
from mimetic.processing.steps.rename_observations import RenameObservations, renamed
from mimetic.train.build_features import ReadableOnly
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.feature_plan import FeaturePlan, is_augmented, make_plan
from mimetic.train.model import Model

logger = logging.getLogger(__name__)

_RESERVE_BYTES = 5 * 2**30
_RESERVE_SHARE = 0.1


def plan_features(
    config: TrainConfig, data: TrainingData, model: Model, precision: Precision, *, step: int
) -> FeaturePlan | None:
    """Decide about `--cache.features`, and announce the decision where there is a choice.

    Args:
        config: settings of the run.
        data: its data, cameras included.
        model: its policy and pipelines.
        precision: autocast of the forward pass; the encoder runs under the same.
        step: where the run starts; features pay off over the steps that are left.

    Returns:
        What is used and built; None trains from the frames themselves.

    Raises:
        ConfigError: `on` was asked for where it would be wrong or does not fit, or the folder lies in the dataset.
    """
    wanted = config.cache.features
    if wanted == "off" or config.dataset.streaming:  # `on` is refused with a stream before anything is opened
        return None
    encoder = model.policy.frame_encoder()
    if isinstance(encoder, str):
        if wanted == "on":
            raise _refusal(encoder, "leave `--cache.features` out, or change what is trained")
        # A policy of a kind that never has such an encoder is no news.
        level = logging.DEBUG if encoder == Policy.frame_encoder(model.policy) else logging.INFO
        logger.log(level, "features of frames are not cached: %s", encoder.replace("`", ""))
        return None
    cameras = _encoded_cameras(data.train, model, encoder)
    reason, hint = _why_wrong(config, data, model, encoder, cameras)
    if not reason:
        plan = make_plan(config, data, encoder, cameras, precision)
        reason, hint = _why_not_fitting(plan)
        if not reason and wanted == "auto":
            reason = _why_not_worth(config, plan, step)
            hint = "--cache.features=on builds them all the same"
        if not reason:
            _announce(plan)
            return plan
    if wanted == "on":
        raise _refusal(reason, hint)
    logger.info("features of frames are not cached: %s (%s)", reason, hint.replace("`", ""))
    return None


def with_features(data: TrainingData, plan: FeaturePlan) -> TrainingData:
    """The same samples with kept features instead of the cameras.

    Raises:
        CacheError: an array is missing or damaged.
    """
    readers: dict[str, FrameValues] = {camera: FeatureReader(files) for camera, files in plan.train.items()}
    for camera, unreadable in plan.unreadable.items():
        if unreadable:
            readers[camera] = ReadableOnly(readers[camera], unreadable)
    heldout = data.heldout
    if heldout is not None and plan.heldout:
        heldout = _with_readers(heldout, {camera: FeatureReader([file]) for camera, file in plan.heldout.items()})
    return replace(data, train=_with_readers(data.train, readers), heldout=heldout)


def feature_key(camera: str) -> str:
    """Name of a camera's features in a batch: `observation.images.top` -> `observation.features.images.top`."""
    return FEATURES_PREFIX + camera.removeprefix(OBSERVATION + ".")


def _with_readers(view: Dataset, readers: Mapping[str, FrameValues]) -> Dataset:
    windows = {key: offsets for key, offsets in view.delta_indices.items() if key not in readers}
    return view.with_windows(
        windows,
        image_transforms=view.image_transforms,
        skip=view.skipped | set(readers),
        extra={feature_key(camera): reader for camera, reader in readers.items()},
    )


def _refusal(reason: str, hint: str) -> ConfigError:
    return ConfigError(f"`--cache.features=on`: {reason}", hint)


def _encoded_cameras(view: Dataset, model: Model, encoder: FrameEncoder) -> list[str]:
    """Cameras of the dataset, under its names, that reach the encoder."""
    found = []
    for key in view.meta.colour_keys:
        name = key
        for step in model.preprocessor.find(RenameObservations):
            name = renamed(name, step.rename_map)
        if key not in view.skipped and name in encoder.cameras:
            found.append(key)
    return found


def _why_wrong(
    config: TrainConfig, data: TrainingData, model: Model, encoder: FrameEncoder, cameras: Sequence[str]
) -> tuple[str, str]:
    """Why training on kept features would differ from training on frames, and what to do; empty when it does not."""
    if not cameras:
        return "no camera of the dataset reaches the policy's encoder", "map the cameras with `--rename_map`"
    if encoder.dtype not in DTYPES:
        return f"features are {encoder.dtype}, which cannot be kept", f"{', '.join(map(str, DTYPES))} can"
    if is_augmented(data) and config.cache.variants == 0:
        return (
            "image augmentation changes frames at every visit",
            "`--cache.variants=4` keeps the features of a few augmented copies, "
            "`--dataset.image_transforms.enable=false` trains without augmentation",
        )
    mode = model.policy.config.norm_map.get("VISUAL", NormalizationMode.IDENTITY)
    if mode is not NormalizationMode.IDENTITY:
        return f"frames are normalised with statistics first (VISUAL: {mode.value})", "VISUAL: IDENTITY does not"
    windows = data.train.delta_indices
    several = [key for key in cameras if windows.get(key, [0]) != [0]]
    if several:
        return f"the policy reads the frames {windows[several[0]]} of `{several[0]}`", "only single frames are kept"
    return "", ""


def _why_not_fitting(plan: FeaturePlan) -> tuple[str, str]:
    """Why the missing rows cannot be written, and what to do; empty when they can."""
    needed = plan.missing_bytes
    if needed == 0:
        return "", ""
    place = plan.folder.resolve()
    while not place.exists() and place != place.parent:
        place = place.parent
    hint = "choose another place with `--cache.folder=FOLDER`, or `--cache.features=off`"
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return f"`{place}` cannot be written", hint
    usage = shutil.disk_usage(place)
    reserve = min(_RESERVE_BYTES, int(usage.total * _RESERVE_SHARE))
    if needed + reserve <= usage.free:
        return "", ""
    return (
        f"features of {plan.described} need {size_text(needed)} more (exactly {needed} bytes), and `{plan.folder}` has "
        f"{size_text(usage.free)} free ({usage.free} bytes), of which {size_text(reserve)} shall stay free",
        "choose a larger disk with `--cache.folder=FOLDER`, fewer episodes with `--dataset.episodes`, "
        "or `--cache.features=off`",
    )


def _why_not_worth(config: TrainConfig, plan: FeaturePlan, step: int) -> str:
    """Why building costs more than it saves; empty when it pays off. Counted in encoded frames."""
    cameras = len(plan.train)
    reads = (config.steps - step) * config.batch_size * cameras
    if plan.heldout:
        measured = sum(len(job.positions) for job in plan.jobs if job.file in plan.heldout.values())
        reads += measured * max(0, config.steps // config.eval_steps - step // config.eval_steps)
    if reads > plan.n_missing:
        return ""
    return f"the run reads {reads:,} frames, and {plan.n_missing:,} would have to be encoded first"


def _announce(plan: FeaturePlan) -> None:
    size = f"{size_text(plan.total_bytes)} in {plan.folder}"
    if plan.n_missing == 0:
        logger.info("features of %s are read from the cache: %s", plan.described, size)
        return
    there = plan.total_bytes - plan.missing_bytes
    logger.info(
        "features of %s are kept on disk: %s%s",
        plan.described,
        size,
        f", {size_text(there)} of it there already" if there else "",
    )


def size_text(n_bytes: int) -> str:
    """A number of bytes in GB or smaller units of 1000."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} bytes"
