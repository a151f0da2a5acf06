"""Settings of PushT (`--env.type=pusht`, package gym-pusht)."""

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
from mimetic.names import ACTION, ENVIRONMENT_STATE, STATE

TASKS = ("PushT-v0",)
INSTRUCTION = "Push the T-shaped block onto the T-shaped target."
"""Task of LeRobot's PushT dataset in words; the package has no text."""
ACTION_SIZE = 2
"""Where the pusher shall go, x and y, 0 to `LARGEST`."""
LARGEST = 512.0
"""Of positions and actions [px of a picture 512 px wide]."""
SHOWN = {
    "pixels_agent_pos": ("pixels", "agent_pos"),
    "environment_state_agent_pos": ("environment_state", "agent_pos"),
}
"""Observations of each `obs_type`, by their names in the package."""
UNSAID_PX, OWN_PX = 384, 96
"""LeRobot's default size of a picture, which never reaches the package there, and the size that the package then takes:
that of LeRobot's dataset, too."""


@dataclass(frozen=True, kw_only=True)
class PushTConfig(PackageEnvConfig):
    """A round pusher moves a T-shaped block onto its outline."""

    task: str | None = setting("PushT-v0", "Name in the package; there is one")
    fps: int = setting(10, FPS_HELP, unit="Hz")
    features: dict[str, PolicyFeature] = setting(
        factory=lambda: {
            ACTION: PolicyFeature(FeatureType.ACTION, (ACTION_SIZE,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (2,)),
        },
        help=FEATURES_HELP,
    )
    features_map: dict[str, str] = setting(
        factory=lambda: {
            ACTION: ACTION,
            "agent_pos": STATE,
            "environment_state": ENVIRONMENT_STATE,
            "pixels": "observation.image",
        },
        help=FEATURES_MAP_HELP,
    )
    episode_length: int = setting(300, EPISODE_LENGTH_HELP, unit="ticks")
    obs_type: str = setting(
        "pixels_agent_pos",
        "What is shown: a picture, or the corners of the block, with the pusher",
        choices=tuple(SHOWN),
    )
    render_mode: str = setting("rgb_array", RENDER_MODE_HELP, choices=RENDER_MODES)
    visualization_width: int = setting(384, "Width of a film", unit="px")
    visualization_height: int = setting(384, "Height of a film", unit="px")
    observation_height: int = setting(
        UNSAID_PX, f"Height of the picture that a policy sees; {UNSAID_PX} means the package's own {OWN_PX}", unit="px"
    )
    observation_width: int = setting(
        UNSAID_PX, f"Width of the picture that a policy sees; {UNSAID_PX} means the package's own {OWN_PX}", unit="px"
    )

    @property
    def picture_px(self) -> tuple[int, int]:
        """Height and width of the picture that a policy sees."""
        height, width = (
            OWN_PX if size == UNSAID_PX else size for size in (self.observation_height, self.observation_width)
        )
        return height, width

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = unknown_choice("task", self.task, TASKS)
        problems += unknown_choice("obs_type", self.obs_type, tuple(SHOWN))
        problems += unknown_choice("render_mode", self.render_mode, RENDER_MODES)
        problems += self.common_problems(action_size=ACTION_SIZE, shown=SHOWN.get(self.obs_type, ()))
        problems += too_small(self.episode_length, "episode_length")
        for flag in ("visualization_width", "visualization_height", "observation_height", "observation_width"):
            problems += too_small(getattr(self, flag), flag, 16)
        return problems
