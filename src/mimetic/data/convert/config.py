"""Settings of `mimetic dataset convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.engine.config import EngineConfig
from mimetic.fields import setting

TARGETS = ("v3.0", "v2.1")
FORMATS = ("auto", "lerobot", "hdf5", "zarr", "mcap")


@dataclass(frozen=True, kw_only=True)
class ConvertConfig(EngineConfig):
    """What is converted, to what, and what an import needs to know that its files do not say."""

    repo_id: str = setting(
        "",
        "Name of the dataset; without --root it is looked up as training does; the name on the hub for --push_to_hub",
        layer="mimetic",
    )
    root: Path | None = setting(None, "Folder (or file) that is read; it is never changed", layer="mimetic")
    output_dir: Path | None = setting(
        None, "Folder of the result (default: beside the input, NAME_v30 or NAME_v21)", layer="mimetic"
    )
    to: str = setting("v3.0", "Layout of the result", choices=TARGETS, layer="mimetic")
    source_format: str = setting(
        "auto",
        "What the input is; auto tells by its files and says what it took it for",
        choices=FORMATS,
        layer="mimetic",
    )
    data_file_size_in_mb: float | None = setting(
        None, "A new data file begins above this (default 100, or the input's limit)", unit="MiB", layer="mimetic"
    )
    video_file_size_in_mb: float | None = setting(
        None, "A new video file begins above this (default 200, or the input's limit)", unit="MiB", layer="mimetic"
    )
    recompute_camera_stats: bool = setting(
        False,
        "Decode sampled frames for new statistics of the cameras, quantiles included, where the input has some "
        "without quantiles",
        layer="mimetic",
    )
    verify: bool = setting(
        True, "Read the result again and compare every row and every video packet with the input", layer="mimetic"
    )
    force_conversion: bool = setting(
        False, "Begin anew instead of continuing an interrupted conversion", layer="mimetic"
    )
    push_to_hub: bool = setting(False, "Upload the result as --repo_id; nothing is sent without it", layer="mimetic")
    private: bool | None = setting(None, "Whether a repository that is made for the push is private", layer="mimetic")
    fps: int | None = setting(None, "Imports: frame rate of the recordings", unit="Hz", layer="mimetic")
    task: str | None = setting(None, "Imports: instruction of all episodes", layer="mimetic")
    robot_type: str | None = setting(None, "Imports: name of the robot", layer="mimetic")
    joint_names: list[str] | None = setting(
        None, "Imports: names of the dimensions of state and action, such as [waist,shoulder,elbow]", layer="mimetic"
    )
    features: dict[str, str] = setting(
        factory=dict,
        help="Imports: name in the input to feature of the dataset, such as {img: observation.images.top}; an empty "
        "name leaves it out",
        layer="mimetic",
    )
    color_order: str = setting(
        "rgb", "Imports: which colour comes first in pictures, red or blue", choices=("rgb", "bgr"), layer="mimetic"
    )
    picture_max: float | None = setting(
        None, "Imports: what white is in pictures that are not bytes, such as 1 or 255", layer="mimetic"
    )
    rgb_encoder: RgbEncoderConfig = setting(
        factory=RgbEncoderConfig, help="Imports: how pictures become videos", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = self.engine_problems() + self.rgb_encoder.check()
        if self.root is None and not self.repo_id:
            problems.append("no dataset is named: `mimetic dataset convert --root=FOLDER`")
        for name in ("data_file_size_in_mb", "video_file_size_in_mb", "fps", "picture_max"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                problems.append(f"`--{name}={value}` must be positive")
        limits = [name for name in ("data_file_size_in_mb", "video_file_size_in_mb") if getattr(self, name) is not None]
        if self.to == "v2.1" and limits:
            problems.append(f"`--{limits[0]}` goes with `--to=v3.0`; v2.1 has one file an episode")
        if self.push_to_hub and not self.repo_id:
            problems.append("`--push_to_hub=true` needs the name on the hub, `--repo_id=USER/NAME`")
        return problems
