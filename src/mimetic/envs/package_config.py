"""Settings that all environments of other packages have, with LeRobot's names and defaults (spec/training.md 2.10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mimetic.features import PolicyFeature
from mimetic.fields import setting
from mimetic.names import ACTION

FEATURES_HELP = "What LeRobot notes about the environment in its files; what is shown follows from the other settings"
FEATURES_MAP_HELP = "Name of an observation in the package to its name in datasets and policies"
FPS_HELP = (
    "Control ticks a second that films play at and that a policy must have been trained at; the package's own rate "
    "does not change"
)
RENDER_MODE_HELP = "How films are drawn"
RENDER_MODES = ("rgb_array",)
EPISODE_LENGTH_HELP = "Ticks until an episode is cut off"


@dataclass(frozen=True, kw_only=True)
class PackageEnvConfig:
    """What LeRobot lets one set in each of its environments, in its order."""

    task: str | None = setting(None, "What has to be done")
    fps: int = setting(30, FPS_HELP, unit="Hz")
    features: dict[str, PolicyFeature] = setting(factory=dict, help=FEATURES_HELP)
    features_map: dict[str, str] = setting(factory=dict, help=FEATURES_MAP_HELP)
    max_parallel_tasks: int = setting(
        1, "Tasks at once in LeRobot; mimetic plays episodes of one task at once (--eval.batch_size) and ignores this"
    )
    disable_env_checker: bool = setting(True, "Leave out gymnasium's check of each step")

    def dataset_name(self, name: str) -> str:
        """Name in datasets and policies of an observation of the package."""
        return self.features_map.get(name, name)

    def common_problems(self, *, action_size: int, shown: Sequence[str]) -> list[str]:
        """Problems of the settings above, one sentence each.

        Args:
            action_size: numbers of an action of the package.
            shown: names, in the package, of the observations that a policy is given.
        """
        problems = []
        if self.fps < 1:
            problems.append(f"`--env.fps={self.fps}` must be at least 1")
        if self.max_parallel_tasks < 1:
            problems.append(f"`--env.max_parallel_tasks={self.max_parallel_tasks}` must be at least 1")
        action = self.features.get(ACTION)
        if action is not None and tuple(action.shape) != (action_size,):
            problems.append(
                f"`--env.features`: the action has shape {tuple(action.shape)}, and the environment takes "
                f"{action_size} numbers"
            )
        absent = [name for name in shown if name not in self.features_map]
        if absent:
            problems.append(
                f"`--env.features_map` has no name for {', '.join(f'`{name}`' for name in absent)}; a map that is "
                "given replaces the whole default"
            )
        names = [self.features_map[name] for name in shown if name in self.features_map]
        if len(set(names)) < len(names):
            problems.append("`--env.features_map` gives two observations the same name")
        return problems


def unknown_choice(flag: str, value: object, known: Sequence[str]) -> list[str]:
    """The problem of a setting that only has some values; empty when it has one of them.

    Args:
        flag: of the environment, without `--env.`.
        value: what it is set to.
        known: what it may be.
    """
    return [] if value in known else [f"`--env.{flag}={value}`: there are {', '.join(known)}"]


def too_small(value: int | None, flag: str, least: int = 1) -> list[str]:
    """The problem of a number below its least value; empty when there is none.

    Args:
        value: of the setting; None is never too small.
        flag: of the environment, without `--env.`.
        least: smallest value that works.
    """
    return [] if value is None or value >= least else [f"`--env.{flag}={value}` must be at least {least}"]
