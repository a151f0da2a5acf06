"""Which rows of which arrays of kept features a run needs, and which of them are there already."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from mimetic.accelerators.precision import Precision
from mimetic.config.codec import encode
from mimetic.data.cache_folder import default_cache_folder
from mimetic.data.dataset import Dataset
from mimetic.data.feature_cache import FeatureContent, FeatureFile
from mimetic.data.fingerprint import camera_fingerprint
from mimetic.errors import ConfigError
from mimetic.policies.base import FrameEncoder
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.heldout import heldout_positions

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BuildJob:
    """Rows of one array that a run needs.

    Args:
        file: the array.
        view: the dataset with nothing but the camera, augmented when the array holds a variant.
        positions: frames in the view that the run needs and that have no row yet.
        is_heldout: whether they are measured on; a measurement leaves no frame out.
    """

    file: FeatureFile
    view: Dataset
    positions: Ints
    is_heldout: bool = False


@dataclass(frozen=True)
class FeaturePlan:
    """A run's use of kept features.

    Args:
        encoder: from frames to features.
        folder: where they are kept.
        seed: of the augmented variants.
        train: arrays by the dataset's name of the camera; a sample picks one of several at random.
        heldout: arrays of the held-out frames, which are never augmented.
        jobs: rows that are still to be built.
        described: frames, cameras and variants in words.
        total_bytes: of all rows that the run needs.
        unreadable: by camera, frames without features because they cannot be read: number of the frame in the whole
            dataset -> what is wrong with it. Empty until `build_features` met some.
    """

    encoder: FrameEncoder
    folder: Path
    seed: int
    train: Mapping[str, Sequence[FeatureFile]]
    heldout: Mapping[str, FeatureFile]
    jobs: Sequence[BuildJob] = field(repr=False)
    described: str
    total_bytes: int
    unreadable: dict[str, dict[int, str]] = field(default_factory=dict, repr=False)

    @property
    def n_missing(self) -> int:
        """Rows to build."""
        return sum(len(job.positions) for job in self.jobs)

    @property
    def missing_bytes(self) -> int:
        """Bytes to write."""
        return sum(len(job.positions) * job.file.content.row_bytes for job in self.jobs)


def make_plan(
    config: TrainConfig, data: TrainingData, encoder: FrameEncoder, cameras: Sequence[str], precision: Precision
) -> FeaturePlan:
    """Work out what a run needs; reads the marks of the arrays that are there, and writes nothing.

    Args:
        config: settings of the run.
        data: its data, cameras included.
        encoder: the policy's encoder.
        cameras: the dataset's names of the cameras that reach it; at least one.
        precision: autocast of the forward pass.

    Raises:
        ConfigError: there is no folder for features, or it lies inside the dataset.
    """
    folder = _folder(config, data.train.root)
    variants = config.cache.variants if is_augmented(data) else 0
    if config.cache.variants and not variants:
        logger.info("--cache.variants has no effect: frames are not augmented")
    contents = {camera: _content(data.train, camera, encoder, precision) for camera in cameras}
    seed = config.seed or 0
    changed = _digest([encode(config.dataset.image_transforms), seed]) if variants else ""
    train: dict[str, list[FeatureFile]] = {}
    heldout: dict[str, FeatureFile] = {}
    jobs = []
    for camera, content in contents.items():
        plain = FeatureFile(folder, content)
        numbers = range(1, variants + 1)
        copies = [FeatureFile(folder, replace(content, augmentation=changed, variant=number)) for number in numbers]
        train[camera] = copies or [plain]
        jobs += [_job(file, data.train, camera, np.arange(len(data.train))) for file in train[camera]]
        if data.heldout is not None and config.eval_steps > 0:
            heldout[camera] = plain
            measured = _measured(data.heldout, config.max_eval_samples)
            jobs.append(replace(_job(plain, data.heldout, camera, measured), is_heldout=True))
    n_heldout = len(_measured(data.heldout, config.max_eval_samples)) if heldout and data.heldout is not None else 0
    row_bytes = next(iter(contents.values())).row_bytes
    rows = len(data.train) * max(variants, 1) + n_heldout
    described = f"{len(data.train):,} frames"
    described += f" in {variants} augmented variants" if variants else ""
    described += f" and {n_heldout:,} held-out frames" if n_heldout else ""
    described += f" x {len(cameras)} camera{'s' if len(cameras) > 1 else ''}"
    return FeaturePlan(
        encoder, folder, seed, train, heldout, jobs, described, total_bytes=rows * row_bytes * len(cameras)
    )


def _content(view: Dataset, camera: str, encoder: FrameEncoder, precision: Precision) -> FeatureContent:
    return FeatureContent(
        encoder=_digest([encoder.key, str(precision.autocast_dtype)]),
        dataset=camera_fingerprint(view.meta, camera, decoder=view.backend),
        camera=camera,
        frames=int(view.meta.episodes.length.sum()),
        shape=tuple(encoder.shape),
        dtype=_dtype(encoder, precision, view.meta.features[camera].chw),
        about={"dataset": view.repo_id, "root": str(view.root), "encoder": encoder.key},
    )


def _dtype(encoder: FrameEncoder, precision: Precision, shape: tuple[int, ...]) -> torch.dtype:
    """Dtype in which the forward pass gets the features; autocast may give another one than the weights have."""
    if precision.autocast_dtype is None:
        return encoder.dtype
    with torch.no_grad(), precision.autocast():
        return encoder.encode(torch.zeros(1, *shape, device=precision.device)).dtype


def _job(file: FeatureFile, view: Dataset, camera: str, positions: Ints) -> BuildJob:
    is_missing = file.marks()[view.frame_numbers(positions)] == 0
    alone = view.with_windows(
        {},
        image_transforms=view.image_transforms if file.content.variant else None,
        skip=[key for key in view.features if key != camera],
    )
    return BuildJob(file, alone, positions[is_missing])


def _measured(heldout: Dataset, max_samples: int) -> Ints:
    chosen = [position for positions in heldout_positions(heldout, max_samples).values() for position in positions]
    return np.unique(np.asarray(chosen, dtype=np.int64))


def _folder(config: TrainConfig, dataset: Path) -> Path:
    try:
        folder = config.cache.folder.expanduser() if config.cache.folder is not None else default_cache_folder()
    except RuntimeError as error:
        raise ConfigError(
            f"there is no place for kept features: {error}", "name one: `--cache.folder=FOLDER`"
        ) from error
    inside = folder.resolve()
    if inside == dataset.resolve() or dataset.resolve() in inside.parents:
        raise ConfigError(
            f"the folder for kept features, `{folder}`, lies inside the dataset `{dataset}`",
            "name another one: `--cache.folder=FOLDER`",
        )
    return folder


def is_augmented(data: TrainingData) -> bool:
    """Whether training frames are changed at random."""
    transforms = data.train.image_transforms
    return transforms is not None and not transforms.is_identity


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
