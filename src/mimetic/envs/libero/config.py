"""Settings of LIBERO (`--env.type=libero`, package hf-libero)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.envs.package_config import (
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

ACTION_SIZE = 7
"""How the hand shall move, turn, and whether it shall close, -1 to 1 each."""
STATE_SIZE = 8
"""Place of the hand [m], its turn as axis times angle [rad], the places of two fingers [m]."""
SUITES = {
    "libero_spatial": (10, 280),
    "libero_object": (10, 280),
    "libero_goal": (10, 300),
    "libero_10": (10, 520),
    "libero_90": (90, 400),
}
"""Suite -> how many tasks it has, and after how many ticks LeRobot ends its episodes."""
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
CONTROL_MODES = ("relative", "absolute")
OBS_TYPES = ("pixels_agent_pos", "pixels")
_PARTS = ("eef/pos", "eef/quat", "eef/mat", "gripper/qpos", "gripper/qvel", "joints/pos", "joints/vel")


@dataclass(frozen=True, kw_only=True)
class LiberoConfig(PackageEnvConfig):
    """130 tasks of a Panda arm in kitchens and living rooms."""

    task: str = setting("libero_10", f"Suites, separated by commas: {', '.join(SUITES)}")
    fps: int = setting(20, f"{FPS_HELP}; LeRobot's datasets of LIBERO say 10", unit="Hz")
    features: dict[str, PolicyFeature] = setting(
        factory=lambda: {ACTION: PolicyFeature(FeatureType.ACTION, (ACTION_SIZE,))}, help=FEATURES_HELP
    )
    features_map: dict[str, str] = setting(
        factory=lambda: {
            ACTION: ACTION,
            **{f"robot_state/{part}": f"{STATE}.{_named(part)}" for part in _PARTS},
            f"pixels/{CAMERAS[0]}": f"{IMAGES_PREFIX}image",
            f"pixels/{CAMERAS[1]}": f"{IMAGES_PREFIX}image2",
        },
        help=f"{FEATURES_MAP_HELP}; of cameras only, because the parts of the state are always one `{STATE}`",
    )
    task_ids: list[int] | None = setting(None, "Numbers of tasks in each suite; without them all")
    episode_length: int | None = setting(
        None,
        "Ticks until an episode is cut off; without it "
        + ", ".join(f"{ticks} ({suite})" for suite, (_, ticks) in SUITES.items()),
        unit="ticks",
    )
    obs_type: str = setting(
        "pixels_agent_pos", "What is shown: pictures, with the arm's state or alone", choices=OBS_TYPES
    )
    render_mode: str = setting("rgb_array", RENDER_MODE_HELP, choices=RENDER_MODES)
    camera_name: str = setting(",".join(CAMERAS), f"Cameras, separated by commas: {', '.join(CAMERAS)}")
    init_states: bool = setting(
        True, "Begin an episode in one of the suite's 50 recorded states, number seed modulo 50, instead of a drawn one"
    )
    hard_reset: bool = setting(
        True, "Build the scene anew for each episode; false is faster and not the same to the last bit"
    )
    camera_name_mapping: dict[str, str] | None = setting(
        None, f"Camera to its name after `{IMAGES_PREFIX}`; it takes the place of --env.features_map"
    )
    observation_height: int = setting(360, "Height of a picture", unit="px")
    observation_width: int = setting(360, "Width of a picture", unit="px")
    is_libero_plus: bool = setting(
        False, "Play in LIBERO-plus", not_yet="LIBERO-plus is a package of its own that mimetic does not know yet"
    )
    control_mode: str = setting(
        "relative", "Whether an action moves the hand by an amount, or to a place", choices=CONTROL_MODES
    )

    @property
    def suites(self) -> tuple[str, ...]:
        """The named suites."""
        return _listed(self.task)

    @property
    def cameras(self) -> dict[str, str]:
        """Camera -> its name in datasets, in the order named."""
        names = self.camera_name_mapping
        if names is not None:
            return {camera: f"{IMAGES_PREFIX}{names.get(camera, camera)}" for camera in _listed(self.camera_name)}
        return {
            camera: self.features_map.get(f"pixels/{camera}", f"{IMAGES_PREFIX}{camera}")
            for camera in _listed(self.camera_name)
        }

    def ticks(self, suite: str) -> int:
        """Ticks after which an episode of a suite is cut off."""
        return self.episode_length or SUITES[suite][1]

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        for suite in self.suites or ("",):
            problems += unknown_choice("task", suite, tuple(SUITES))
            count = SUITES[suite][0] if suite in SUITES else 0
            problems += [
                f"`--env.task_ids`: {suite} has the tasks 0 to {count - 1}, and no {number}"
                for number in self.task_ids or ()
                if count and not 0 <= number < count
            ]
        for camera in _listed(self.camera_name) or ("",):
            problems += unknown_choice("camera_name", camera, CAMERAS)
        if len(set(self.cameras.values())) < len(self.cameras):
            problems.append("`--env.camera_name_mapping` or `--env.features_map` gives two cameras the same name")
        problems += unknown_choice("obs_type", self.obs_type, OBS_TYPES)
        problems += unknown_choice("render_mode", self.render_mode, RENDER_MODES)
        problems += unknown_choice("control_mode", self.control_mode, CONTROL_MODES)
        problems += self.common_problems(action_size=ACTION_SIZE, shown=())
        if not self.hard_reset and not self.init_states:
            problems.append("`--env.hard_reset=false` needs `--env.init_states=true`, as in LeRobot")
        for flag, least in (("episode_length", 1), ("observation_height", 16), ("observation_width", 16)):
            problems += too_small(getattr(self, flag), flag, least)
        return problems


def _listed(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _named(part: str) -> str:
    """`eef/pos` -> `eef_pos`, `joints/pos` -> `joint_pos`: LeRobot's spelling."""
    return part.replace("joints/", "joint/").replace("/", "_")
