"""Settings of Meta-World (`--env.type=metaworld`, package metaworld)."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.catalog import closest
from mimetic.envs.metaworld.tasks import DIFFICULTIES, INSTRUCTIONS
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
from mimetic.names import ACTION, IMAGE, STATE

ACTION_NAMES = ("x", "y", "z", "gripper")
"""With the names of LeRobot's dataset: how the hand shall move and how hard the fingers shall close, -1 to 1 each."""
STATE_SIZE = 4
"""Leading numbers of the package's observation that LeRobot's state consists of: the hand's place [m], finger gap."""
PICTURE_PX = 480
SHOWN = {"pixels_agent_pos": ("pixels/top", "agent_pos"), "pixels": ("pixels/top",)}
"""Observations of each `obs_type`, by their names in `features_map`."""
LONGEST, UNSAID_TICKS = 500, 400
"""Ticks after which the package ends an episode itself, and LeRobot's default, which never reaches the package there,
so that its episodes are of the former length."""


@dataclass(frozen=True, kw_only=True)
class MetaWorldConfig(PackageEnvConfig):
    """50 tasks of a Sawyer arm at a table."""

    task: str = setting(
        "metaworld-push-v2",
        f"Tasks such as push-v3, separated by commas, or a difficulty: {', '.join(DIFFICULTIES)}; v2 means v3",
    )
    fps: int = setting(80, FPS_HELP, unit="Hz")
    features: dict[str, PolicyFeature] = setting(
        factory=lambda: {ACTION: PolicyFeature(FeatureType.ACTION, (len(ACTION_NAMES),))}, help=FEATURES_HELP
    )
    features_map: dict[str, str] = setting(
        factory=lambda: {ACTION: ACTION, "agent_pos": STATE, "top": IMAGE, "pixels/top": IMAGE}, help=FEATURES_MAP_HELP
    )
    episode_length: int = setting(
        UNSAID_TICKS,
        f"{EPISODE_LENGTH_HELP}; {UNSAID_TICKS} means the package's own {LONGEST}, which is what LeRobot plays",
        unit="ticks",
    )
    obs_type: str = setting(
        "pixels_agent_pos", "What is shown: a picture, with the hand or alone", choices=tuple(SHOWN)
    )
    render_mode: str = setting("rgb_array", RENDER_MODE_HELP, choices=RENDER_MODES)
    multitask_eval: bool = setting(True, "Noted by LeRobot, without effect there and here")

    @property
    def ticks(self) -> int:
        """Ticks after which an episode is cut off."""
        return LONGEST if self.episode_length == UNSAID_TICKS else self.episode_length

    def chosen(self) -> list[tuple[str, int, str]]:
        """The named tasks: suite that each is reported in, its number there, its name in the package."""
        words = _words(self.task)
        found = []
        for word in words:
            if word in DIFFICULTIES:
                found += [(word, number, name) for number, name in enumerate(DIFFICULTIES[word])]
        single = [task_name(word) for word in words if word not in DIFFICULTIES]
        return found + [(name, 0, name) for name in dict.fromkeys(single)]

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        for word in _words(self.task) or ("",):
            if word not in DIFFICULTIES and task_name(word) not in INSTRUCTIONS:
                near = closest(task_name(word), INSTRUCTIONS)
                problems.append(
                    f"`--env.task={self.task}`: `{word}` is neither a task nor one of {', '.join(DIFFICULTIES)}"
                    + (f"; did you mean `{near[0]}`?" if near else "")
                )
        problems += unknown_choice("obs_type", self.obs_type, tuple(SHOWN))
        problems += unknown_choice("render_mode", self.render_mode, RENDER_MODES)
        problems += self.common_problems(action_size=len(ACTION_NAMES), shown=SHOWN.get(self.obs_type, ()))
        problems += too_small(self.episode_length, "episode_length")
        if self.episode_length > LONGEST:
            problems.append(f"`--env.episode_length={self.episode_length}`: Meta-World ends an episode after {LONGEST}")
        return problems


def task_name(word: str) -> str:
    """Name in the package, of which every task is a v3 now: `push-v3` for `push`, `push-v2` and `metaworld-push-v2`."""
    return word.removeprefix("metaworld-").removesuffix("-v2").removesuffix("-v3") + "-v3"


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
