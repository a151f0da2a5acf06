"""Everything that a dataset says about itself, without its rows and pictures.

Opens v3.0 folders and, read-only, v2.0 and v2.1 ones; both give the same object.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mimetic.data.episodes import Episodes, read_episodes
from mimetic.data.features import DatasetFeature, policy_features
from mimetic.data.info import Info, read_info
from mimetic.data.layout import Layout, require_dataset, require_inside
from mimetic.data.legacy import read_legacy_episodes, read_legacy_stats
from mimetic.data.stats import Stats, read_stats
from mimetic.data.tasks import read_legacy_tasks, read_tasks
from mimetic.errors import DatasetFormatError
from mimetic.features import PolicyFeature
from mimetic.names import ACTION, INFO_JSON

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metadata:
    """The metadata of one dataset.

    Args:
        root: folder of the dataset.
        info: the checked values of meta/info.json.
        layout: names of its data and video files.
        tasks: task strings by task index.
        episodes: table of episodes, looked up by episode number.
        stats: statistics, feature -> name -> array; empty when the dataset has none.
    """

    root: Path
    info: Info
    layout: Layout
    tasks: Mapping[int, str]
    episodes: Episodes
    stats: Stats

    @classmethod
    def open(cls, root: Path | str) -> Metadata:
        """Read the metadata below `root`; data and video files are not looked at.

        Raises:
            DatasetNotFound: there is no dataset; the hint names datasets nearby.
            DatasetFormatError: a metadata file is missing, damaged or breaks the format.
            EpisodeError: the table of episodes contradicts itself.
        """
        root = Path(root).expanduser()
        require_dataset(root)
        require_inside(root, root / INFO_JSON)
        info = read_info(root)
        layout = Layout.of(root, info)
        video_keys = [key for key, feature in info.features.items() if feature.dtype == "video"]
        if info.is_legacy:
            episodes = read_legacy_episodes(root, info, video_keys)
            tasks, stats = read_legacy_tasks(root), read_legacy_stats(root)
        else:
            episodes = read_episodes(root, video_keys)
            tasks, stats = read_tasks(root), read_stats(root)
        if not len(episodes):
            raise DatasetFormatError(f"the dataset at `{root}` has no episode", "record one first")
        metadata = cls(root, info, layout, tasks, episodes, stats)
        metadata._report_differences()
        return metadata

    def _report_differences(self) -> None:
        gaps = self.episodes.gaps
        if gaps:
            logger.warning(
                "%s: the episode numbers have a gap at %s; every episode is found by its number, with its own footage",
                self.root,
                ", ".join(str(gap) for gap in gaps[:10]) + (" ..." if len(gaps) > 10 else ""),
            )
        for name, declared, actual in (
            ("total_episodes", self.info.total_episodes, self.total_episodes),
            ("total_frames", self.info.total_frames, self.total_frames),
            ("total_tasks", self.info.total_tasks, len(self.tasks)),
        ):
            if declared != actual:
                logger.warning(
                    "%s: meta/info.json says %s %d, the tables have %d; using the tables",
                    self.root,
                    name,
                    declared,
                    actual,
                )

    @property
    def fps(self) -> int:
        """Frame rate [Hz]."""
        return self.info.fps

    @property
    def robot_type(self) -> str | None:
        """Declared robot, free text."""
        return self.info.robot_type

    @property
    def version(self) -> str:
        """Version of the format on disk, such as "v3.0"."""
        return f"v{self.info.version[0]}.{self.info.version[1]}"

    @property
    def features(self) -> Mapping[str, DatasetFeature]:
        """Features by name, in column order."""
        return self.info.features

    @property
    def total_episodes(self) -> int:
        """Number of episodes in the table."""
        return len(self.episodes)

    @property
    def total_frames(self) -> int:
        """Number of frames by the table."""
        return int(self.episodes.length.sum())

    @property
    def image_keys(self) -> list[str]:
        """Cameras stored as pictures in the data files."""
        return [key for key, feature in self.features.items() if feature.dtype == "image"]

    @property
    def video_keys(self) -> list[str]:
        """Cameras stored as video files."""
        return [key for key, feature in self.features.items() if feature.dtype == "video"]

    @property
    def camera_keys(self) -> list[str]:
        """All cameras."""
        return [key for key, feature in self.features.items() if feature.is_camera]

    @property
    def depth_keys(self) -> list[str]:
        """Cameras that hold depth."""
        return [key for key, feature in self.features.items() if feature.is_depth]

    @property
    def colour_keys(self) -> list[str]:
        """Cameras that do not hold depth; the ones that ImageNet statistics apply to."""
        return [key for key, feature in self.features.items() if feature.is_camera and not feature.is_depth]

    @property
    def names(self) -> dict[str, list[str] | None]:
        """Names of each feature's dimensions, flattened, or None."""
        return {key: feature.flat_names for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Declared shapes."""
        return {key: feature.shape for key, feature in self.features.items()}

    @property
    def action_names(self) -> list[str] | None:
        """Names of the action's dimensions, or None when the dataset does not name them."""
        feature = self.features.get(ACTION)
        names = feature.flat_names if feature is not None else None
        return names if feature is not None and names is not None and len(names) == feature.shape[-1] else None

    @cached_property
    def task_index(self) -> dict[str, int]:
        """Task index by task string."""
        return {task: number for number, task in self.tasks.items()}

    @property
    def policy_features(self) -> dict[str, PolicyFeature]:
        """What a policy can read and write of this dataset."""
        return policy_features(self.features)
