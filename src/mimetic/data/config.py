"""Settings of a dataset and of image augmentation (`--dataset.*`, spec/training.md 2.2, spec/dataset.md 12)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class ImageTransformConfig:
    """One augmentation: its type, its parameters, and how likely it is drawn."""

    weight: float = setting(1.0, "Relative chance of being drawn; 0 leaves it out")
    type: str = setting("Identity", "Name of the transform, such as ColorJitter")
    kwargs: dict[str, Any] = setting(factory=dict, help="Parameters of the transform")


def default_transforms() -> dict[str, ImageTransformConfig]:
    """The six augmentations of LeRobot, in its order."""

    def one(type: str, **kwargs: Any) -> ImageTransformConfig:
        return ImageTransformConfig(type=type, kwargs=kwargs)

    return {
        "brightness": one("ColorJitter", brightness=[0.8, 1.2]),
        "contrast": one("ColorJitter", contrast=[0.8, 1.2]),
        "saturation": one("ColorJitter", saturation=[0.5, 1.5]),
        "hue": one("ColorJitter", hue=[-0.05, 0.05]),
        "sharpness": one("SharpnessJitter", sharpness=[0.5, 1.5]),
        "affine": one("RandomAffine", degrees=[-5.0, 5.0], translate=[0.05, 0.05]),
    }


@dataclass(frozen=True, kw_only=True)
class ImageTransformsConfig:
    """Which augmentations are applied to camera frames during training."""

    enable: bool = setting(False, "Augment camera frames during training")
    max_num_transforms: int = setting(3, "How many of the transforms are applied to one sample at most")
    random_order: bool = setting(False, "Apply the drawn transforms in random order")
    tfs: dict[str, ImageTransformConfig] = setting(
        factory=default_transforms, help="Transforms by name, each with weight, type and kwargs"
    )


@dataclass(frozen=True, kw_only=True)
class DatasetConfig:
    """Which dataset is read, which part of it, and how."""

    repo_id: str = setting(
        help="Name of the dataset, such as `user/so101_pick`; the folder is --dataset.root when that is given"
    )
    repo_type: str = setting("dataset", "Kind of hub repository", choices=("dataset", "bucket"))
    root: str | None = setting(
        None, "Folder of the dataset; without it the local cache, then the hub, is asked for the repo id"
    )
    episodes: list[int] | None = setting(None, "Use only these episodes, such as [0,1,2]")
    image_transforms: ImageTransformsConfig = setting(
        factory=ImageTransformsConfig, help="Augmentation of camera frames"
    )
    revision: str | None = setting(None, "Branch, tag or commit on the hub")
    use_imagenet_stats: bool = setting(
        True, "Normalise colour cameras with ImageNet's mean and deviation instead of the dataset's"
    )
    video_backend: str = setting(
        "auto",
        "Video decoder: PyAV always works, torchcodec is used by auto only where its pixels are equal and it is faster",
        choices=("auto", "pyav", "torchcodec", "video_reader"),
    )
    return_uint8: bool = setting(False, "Accepted for LeRobot's sake; training always reads uint8 frames")
    depth_output_unit: str = setting("mm", "Unit of depth frames", choices=("mm", "m"))
    streaming: bool = setting(
        False,
        "Read the dataset as a stream: files are read, and fetched from the hub, as they are needed; frames are "
        "shuffled within a buffer",
    )
    eval_split: float = setting(0.0, "Share of the episodes of each task that is held out, in [0, 1)")
    exclude_episodes: list[int] | None = setting(None, "Leave these episodes out", layer="next")
    buffer_size: int = setting(
        1000,
        "With --dataset.streaming=true: frames among which the next sample is drawn; more shuffle better",
        layer="mimetic",
        unit="frames",
    )
    max_num_shards: int = setting(
        16, "With --dataset.streaming=true: episodes that are read at the same time", layer="mimetic", unit="episodes"
    )
    cache: str = setting(
        "auto",
        "Decode each camera frame once and keep it: on disk, for all runs (frames), or in this run's memory (memory). "
        "The values stay the same bit for bit. auto keeps them when they fit and are read at least twice, and says why "
        "not; frames and memory refuse to start when they cannot",
        choices=("auto", "frames", "memory", "off"),
        layer="mimetic",
    )
    cache_gb: float | None = setting(
        None,
        "Room for kept frames, in units of 10^9 bytes (default: what is free on the disk or in memory, and for auto a "
        "quarter of it)",
        layer="mimetic",
        unit="GB",
    )
    cache_folder: str | None = setting(
        None,
        "Where frames are kept, for all runs (default: $MIMETIC_CACHE/frames, else the system's place for caches); a "
        "fast local disk, not inside the dataset; deleting it costs only time",
        layer="mimetic",
    )
    cache_resize: bool = setting(
        False,
        "Keep frames in the size to which the policy resizes them: less room and faster, but rounded to whole numbers, "
        "so that a run differs slightly from one without cache; by how much is measured and said",
        layer="mimetic",
    )

    def check(self) -> list[str]:
        """Problems of this group, one sentence each."""
        problems = []
        if not 0.0 <= self.eval_split < 1.0:
            problems.append(f"`--dataset.eval_split={self.eval_split}` must lie in [0, 1)")
        if self.episodes is not None:
            if not self.episodes:
                problems.append("`--dataset.episodes=[]` selects nothing; leave it out to use every episode")
            negative = [episode for episode in self.episodes if episode < 0]
            if negative:
                problems.append(f"`--dataset.episodes` holds negative numbers: {negative}")
            repeated = sorted({episode for episode in self.episodes if self.episodes.count(episode) > 1})
            if repeated:
                problems.append(f"`--dataset.episodes` holds numbers twice: {repeated}")
        if self.repo_type == "bucket":
            problems.append(
                "`--dataset.repo_type=bucket`: storage buckets are not part of mimetic yet; copy the files here and "
                "name their folder with `--dataset.root`"
            )
        problems += self._cache_problems()
        for name in ("buffer_size", "max_num_shards"):
            if getattr(self, name) < 1:
                problems.append(f"`--dataset.{name}={getattr(self, name)}` must be at least 1")
        return problems

    def _cache_problems(self) -> list[str]:
        problems = []
        is_asked_for = self.cache in ("frames", "memory")
        if self.streaming and is_asked_for:
            problems.append(
                f"`--dataset.cache={self.cache}` needs the whole dataset, which `--dataset.streaming=true` does not "
                "read: leave one of them out"
            )
        if self.cache_resize and not is_asked_for:
            problems.append(
                "`--dataset.cache_resize=true` changes what the policy learns from, which "
                f"`--dataset.cache={self.cache}` must not decide: give `--dataset.cache=frames` or "
                "`--dataset.cache=memory` with it"
            )
        if self.cache_gb is not None and not 0 < self.cache_gb < 1e9:
            problems.append(f"`--dataset.cache_gb={self.cache_gb}` must be above 0")
        return problems

    @property
    def folder(self) -> Path | None:
        """`root` as a path."""
        return Path(self.root).expanduser() if self.root is not None else None
