"""Settings of the simulated ALOHA (`--env.type=aloha`, package gym-aloha)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.envs.package_config import (
    EPISODE_LENGTH_HELP,
    FEATURES_HELP,
    FEATURES_MAP_HELP,
    FPS_HELP,
    RENDER_MODE_HELP,
    RENDER_MODES,
    PackageEnvConfig,
    too_small,
    unknown_choice,
)
from mimetic.features import FeatureType, PolicyFeature
from mimetic.fields import setting
from mimetic.names import ACTION, IMAGES_PREFIX, STATE

INSTRUCTIONS = {
    "AlohaInsertion-v0": "Insert the peg into the socket.",
    "AlohaTransferCube-v0": "Pick up the cube with the right arm and transfer it to the left arm.",
}
"""Tasks of the package, and their texts in LeRobot's datasets; the package has no text."""
JOINTS = tuple(
    f"{side}_{joint}"
    for side in ("left", "right")
    for joint in (
        "waist",
        "shoulder",
        "elbow",
        "forearm_roll",
        "wrist_angle",
        "wrist_rotate",
        "gripper",
    )
)
"""Of states and actions, with the names of LeRobot's datasets: six joints [rad] and a gripper, 0 (closed) to 1."""
SHOWN = {"pixels_agent_pos": ("pixels/top", "agent_pos"), "pixels": ("top",)}
"""Observations of each `obs_type`, by their names in the package."""


@dataclass(frozen=True, kw_only=True)
class AlohaConfig(PackageEnvConfig):
    """Two ViperX arms at a table."""

    task: str | None = setting("AlohaInsertion-v0", f"Name in the package: {', '.join(INSTRUCTIONS)}")
    fps: int = setting(50, FPS_HELP, unit="Hz")
    features: dict[str, PolicyFeature] = setting(
        factory=lambda: {ACTION: PolicyFeature(FeatureType.ACTION, (len(JOINTS),))}, help=FEATURES_HELP
    )
    features_map: dict[str, str] = setting(
        factory=lambda: {
            ACTION: ACTION,
            "agent_pos": STATE,
            "top": "observation.image.top",
            "pixels/top": IMAGES_PREFIX + "top",
        },
        help=FEATURES_MAP_HELP,
    )
    episode_length: int = setting(400, EPISODE_LENGTH_HELP, unit="ticks")
    obs_type: str = setting(
        "pixels_agent_pos", "What is shown: a picture, with the joints or alone", choices=tuple(SHOWN)
    )
    observation_height: int = setting(480, "Height of the picture that a policy sees", unit="px")
    observation_width: int = setting(640, "Width of the picture that a policy sees", unit="px")
    render_mode: str = setting("rgb_array", RENDER_MODE_HELP, choices=RENDER_MODES)

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = unknown_choice("task", self.task, tuple(INSTRUCTIONS))
        problems += unknown_choice("obs_type", self.obs_type, tuple(SHOWN))
        problems += unknown_choice("render_mode", self.render_mode, RENDER_MODES)
        problems += self.common_problems(action_size=len(JOINTS), shown=SHOWN.get(self.obs_type, ()))
        for flag, least in (("episode_length", 1), ("observation_height", 16), ("observation_width", 16)):
            problems += too_small(getattr(self, flag), flag, least)
        return problems
