"""Settings of `mimetic dataset edit`: one dataclass an operation, under LeRobot's names (spec/dataset.md 15)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mimetic.data.encoding.config import DepthEncoderConfig, RgbEncoderConfig
from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class OperationConfig:
    """Base of all operations."""

    type_name: ClassVar[str] = ""
    """Name in `--operation.type`."""
    suffix: ClassVar[str] = ""
    """Added to the name of the dataset when no other name is given; empty edits in place."""

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return []


@dataclass(frozen=True, kw_only=True)
class DeleteEpisodesConfig(OperationConfig):
    """Leave episodes out."""

    type_name: ClassVar[str] = "delete_episodes"

    episode_indices: list[int] | None = setting(None, "Episodes to leave out, such as [0,3]")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return _episode_problems("episode_indices", self.episode_indices, is_required=True)


@dataclass(frozen=True, kw_only=True)
class KeepConfig(OperationConfig):
    """Keep only some episodes."""

    type_name: ClassVar[str] = "keep"

    episode_indices: list[int] | None = setting(None, "Episodes to keep, such as [0,1,2]", layer="mimetic")
    keep_list: Path | None = setting(
        None,
        "JSON file with the episodes to keep, such as `mimetic dataset check` writes: a list, or an object with `keep`",
        layer="mimetic",
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        if (self.keep_list is None) == (self.episode_indices is None):
            return ["give either `--operation.episode_indices` or `--operation.keep_list`"]
        return _episode_problems("episode_indices", self.episode_indices, is_required=False)


@dataclass(frozen=True, kw_only=True)
class SplitConfig(OperationConfig):
    """Make several datasets of one."""

    type_name: ClassVar[str] = "split"

    splits: dict[str, Any] | None = setting(
        None, "Name -> share or list of episodes, such as {train: 0.8, val: 0.2}; the last share takes the rest"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        if not self.splits:
            return ["`--operation.splits` is missing, such as `--operation.splits={train: 0.8, val: 0.2}`"]
        problems = [f"`{name}` is not a name for a folder" for name in self.splits if not _is_name(name)]
        values = list(self.splits.values())
        are_shares = [isinstance(value, (int, float)) and not isinstance(value, bool) for value in values]
        if all(are_shares):
            if any(not 0 < value <= 1 for value in values) or sum(values) > 1 + 1e-9:
                problems.append(f"shares of `--operation.splits` lie in (0, 1] and sum to 1 at most, not {values}")
            return problems
        if any(are_shares):
            problems.append("`--operation.splits` holds either shares or lists of episodes, not both")
            return problems
        seen: dict[int, str] = {}
        for name, episodes in self.splits.items():
            if not isinstance(episodes, (list, tuple)) or not episodes or not all(map(_is_number, episodes)):
                problems.append(f"`--operation.splits`: `{name}` is {episodes!r:.60}, not a list of episode numbers")
                continue
            for episode in episodes:
                if episode in seen:
                    problems.append(f"episode {episode} is in the splits `{seen[episode]}` and `{name}`")
                seen[episode] = name
        return problems


@dataclass(frozen=True, kw_only=True)
class MergeConfig(OperationConfig):
    """Make one dataset of several."""

    type_name: ClassVar[str] = "merge"

    repo_ids: list[str] | None = setting(None, "Datasets to put one after the other, by name")
    roots: list[str] | None = setting(None, "Their folders, instead of or beside the names")
    concatenate_videos: bool = setting(True, "Put videos into shared files, up to the limit; false keeps one for one")
    concatenate_data: bool = setting(True, "Put rows into shared files, up to the limit; false keeps one for one")
    data_files_size_in_mb: float | None = setting(
        None, "Limit of a data file; without it the largest of the sources", layer="mimetic", unit="MiB"
    )
    video_files_size_in_mb: float | None = setting(
        None, "Limit of a video file; without it the largest of the sources", layer="mimetic", unit="MiB"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if not self.repo_ids and not self.roots:
            problems.append("name the datasets to merge with `--operation.repo_ids` or `--operation.roots`")
        if self.repo_ids and self.roots and len(self.repo_ids) != len(self.roots):
            problems.append(
                f"`--operation.repo_ids` names {len(self.repo_ids)} datasets, `--operation.roots` {len(self.roots)}"
            )
        for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                problems.append(f"`--operation.{name}={value}` must be positive")
        return problems


@dataclass(frozen=True, kw_only=True)
class RemoveFeatureConfig(OperationConfig):
    """Leave columns or cameras out."""

    type_name: ClassVar[str] = "remove_feature"

    feature_names: list[str] | None = setting(None, "Features to leave out, such as [observation.images.wrist]")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.feature_names else ["`--operation.feature_names` is missing"]


@dataclass(frozen=True, kw_only=True)
class AddFeaturesConfig(OperationConfig):
    """Add columns from files."""

    type_name: ClassVar[str] = "add_features"

    features: dict[str, str] | None = setting(
        None,
        "Feature -> file with a value for every frame of the dataset: `.npy` (frames, ...), or `.parquet` with a "
        "column of that name, or with only one",
        layer="mimetic",
    )
    names: dict[str, list[str]] = setting(factory=dict, help="Feature -> names of its dimensions", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return (
            _addition_problems(self.features or {}, self.names)
            if self.features
            else ["`--operation.features` is missing"]
        )


@dataclass(frozen=True, kw_only=True)
class ModifyFeaturesConfig(OperationConfig):
    """Add and leave out columns in one go; a column in both is replaced."""

    type_name: ClassVar[str] = "modify_features"

    add_features: dict[str, str] = setting(
        factory=dict, help="Feature -> `.npy` or `.parquet` file with a value for every frame", layer="mimetic"
    )
    remove_features: list[str] = setting(factory=list, help="Features to leave out", layer="mimetic")
    names: dict[str, list[str]] = setting(
        factory=dict, help="Added feature -> names of its dimensions", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        if not self.add_features and not self.remove_features:
            return ["nothing is to be done: give `--operation.add_features` or `--operation.remove_features`"]
        return _addition_problems(self.add_features, self.names)


@dataclass(frozen=True, kw_only=True)
class ModifyTasksConfig(OperationConfig):
    """Change instructions, frame by frame: an episode with two tasks keeps both."""

    type_name: ClassVar[str] = "modify_tasks"

    new_task: str | None = setting(None, "Task of every frame that no other rule names")
    episode_tasks: dict[str, str] | None = setting(None, "Episode -> its task, such as {0: Pick up the cube}")
    task_replacements: dict[str, str] | None = setting(None, "Old task -> new task")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.new_task is None and not self.episode_tasks and not self.task_replacements:
            problems.append(
                "nothing is to be done: give `--operation.new_task`, `--operation.episode_tasks` or "
                "`--operation.task_replacements`"
            )
        wrong = [key for key in self.episode_tasks or {} if not str(key).strip().isdigit()]
        if wrong:
            problems.append(f"`--operation.episode_tasks` names {wrong[:5]}, which are no episode numbers")
        return problems


@dataclass(frozen=True, kw_only=True)
class ConvertImageToVideoConfig(OperationConfig):
    """Turn pictures inside data files into videos."""

    type_name: ClassVar[str] = "convert_image_to_video"
    suffix: ClassVar[str] = "_video"

    output_dir: str | None = setting(None, "Old name of --new_root")
    rgb_encoder: RgbEncoderConfig = setting(factory=RgbEncoderConfig, help="Encoder of colour cameras")
    depth_encoder: DepthEncoderConfig = setting(factory=DepthEncoderConfig, help="Encoder of depth cameras")
    episode_indices: list[int] | None = setting(None, "Convert only these episodes; the others are left out")
    num_workers: int = setting(4, "Files encoded at once")
    max_episodes_per_batch: int | None = setting(None, "Most episodes in one video file")
    max_frames_per_batch: int | None = setting(None, "Most frames in one video file")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = _episode_problems("episode_indices", self.episode_indices, is_required=False)
        for name in ("max_episodes_per_batch", "max_frames_per_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"`--operation.{name}={value}` must be at least 1")
        return problems


@dataclass(frozen=True, kw_only=True)
class RecomputeStatsConfig(OperationConfig):
    """Compute the statistics from the data again."""

    type_name: ClassVar[str] = "recompute_stats"
    suffix: ClassVar[str] = "_recomputed_stats"

    skip_image_video: bool = setting(True, "Keep the statistics of cameras; false looks at their pictures again")
    relative_action: bool = setting(False, "Statistics of actions relative to the state at the start of their chunk")
    relative_exclude_joints: list[str] | None = setting(
        None, 'Joints that stay absolute, by a part of their name; null means ["gripper"]'
    )
    chunk_size: int = setting(50, "Actions in a chunk, for relative actions", unit="frames")
    num_workers: int = setting(0, "Files read at once; 0 takes one for each core")
    overwrite: bool = setting(False, "Edit in place instead of making a copy")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.chunk_size >= 1 else [f"`--operation.chunk_size={self.chunk_size}` must be at least 1"]


@dataclass(frozen=True, kw_only=True)
class ReencodeVideosConfig(OperationConfig):
    """Encode the videos again with other settings."""

    type_name: ClassVar[str] = "reencode_videos"
    suffix: ClassVar[str] = "_reencoded"

    rgb_encoder: RgbEncoderConfig = setting(factory=RgbEncoderConfig, help="Encoder of colour cameras")
    depth_encoder: DepthEncoderConfig = setting(factory=DepthEncoderConfig, help="Encoder of depth cameras")
    num_workers: int = setting(0, "Files encoded at once; 0 takes one for each core")
    encoder_threads: int | None = setting(None, "Threads of one encoder; null leaves it to the encoder")
    overwrite: bool = setting(False, "Edit in place instead of making a copy")


@dataclass(frozen=True, kw_only=True)
class InfoConfig(OperationConfig):
    """Show what the dataset holds."""

    type_name: ClassVar[str] = "info"

    show_features: bool = setting(False, "Show the table of features")


@dataclass(frozen=True, kw_only=True)
class TrimConfig(OperationConfig):
    """Cut frames off the beginnings and ends of episodes."""

    type_name: ClassVar[str] = "trim"

    by: str = setting(
        "motion",
        "motion cuts what stands still before the first and after the last movement; frames cuts fixed numbers",
        choices=("motion", "frames"),
        layer="mimetic",
    )
    head: int = setting(
        0, "With --operation.by=frames: frames to cut off each beginning", layer="mimetic", unit="frames"
    )
    tail: int = setting(0, "With --operation.by=frames: frames to cut off each end", layer="mimetic", unit="frames")
    keep_s: float = setting(
        0.5, "With --operation.by=motion: standing still that stays at both ends", layer="mimetic", unit="s"
    )
    min_cut_s: float = setting(
        0.5, "With --operation.by=motion: shorter waits are left as they are", layer="mimetic", unit="s"
    )
    at_keyframes: bool = setting(
        False,
        "Begin at the keyframe before the first wanted frame, so that no video frame is encoded again",
        layer="mimetic",
    )
    episode_indices: list[int] | None = setting(None, "Cut only these episodes; the others stay whole", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = _episode_problems("episode_indices", self.episode_indices, is_required=False)
        if self.by == "frames" and self.head <= 0 and self.tail <= 0:
            problems.append("nothing is to be cut: give `--operation.head` or `--operation.tail`")
        for name in ("head", "tail", "keep_s", "min_cut_s"):
            if getattr(self, name) < 0:
                problems.append(f"`--operation.{name}={getattr(self, name)}` must not be negative")
        if self.by == "motion" and (self.head or self.tail):
            problems.append("`--operation.head` and `--operation.tail` need `--operation.by=frames`")
        return problems


@dataclass(frozen=True, kw_only=True)
class RenameConfig(OperationConfig):
    """Rename features, cameras and joints."""

    type_name: ClassVar[str] = "rename"

    features: dict[str, str] = setting(
        factory=dict, help="Old name -> new name of columns and cameras", layer="mimetic"
    )
    joints: dict[str, str] = setting(
        factory=dict, help="Old name -> new name of dimensions, in every feature that has them", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        if not self.features and not self.joints:
            return ["nothing is to be renamed: give `--operation.features` or `--operation.joints`"]
        return [f"`{name}` is not a feature name (no slashes)" for name in self.features.values() if not _is_name(name)]


def _is_name(text: str) -> bool:
    return bool(text) and not any(sign in text for sign in "/\\\0") and text not in (".", "..")


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _episode_problems(name: str, episodes: list[int] | None, *, is_required: bool) -> list[str]:
    if episodes is None:
        return [f"`--operation.{name}` is missing"] if is_required else []
    if not episodes:
        return [f"`--operation.{name}=[]` names no episode"]
    problems = []
    negative = [episode for episode in episodes if episode < 0]
    if negative:
        problems.append(f"`--operation.{name}` holds negative numbers: {negative[:8]}")
    twice = sorted({episode for episode in episodes if episodes.count(episode) > 1})
    if twice:
        problems.append(f"`--operation.{name}` holds numbers twice: {twice[:8]}")
    return problems


def _addition_problems(features: dict[str, str], names: dict[str, list[str]]) -> list[str]:
    problems = [f"`{name}` is not a feature name (no slashes)" for name in features if not _is_name(name)]
    problems += [f"`--operation.names` names `{name}`, which is not added" for name in names if name not in features]
    problems += [
        f"`{path}` of `{name}` is neither a `.npy` nor a `.parquet` file"
        for name, path in features.items()
        if not str(path).endswith((".npy", ".parquet"))
    ]
    return problems
