"""Settings of `mimetic demo`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mimetic.envs.config import RENDERER_NAMES, TASK_NAMES, CellConfig
from mimetic.errors import ConfigError
from mimetic.fields import setting

STEP_NAMES = ("record", "check", "plan", "train", "eval")
"""What a demo does, in this order."""
REAL_SIZES = ("act", "smolvla")


@dataclass(frozen=True, kw_only=True)
class DemoPolicyConfig:
    """What a user may say about the demo's policy; the rest stands in `demo/recipes.py`."""

    device: str | None = setting(
        None, "Where the policy trains and plays; without it a GPU where there is one, else the CPU", layer="mimetic"
    )


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole way from demonstrations to a counted success, in one folder."""

    task: str = setting(
        "pick_place",
        "What is demonstrated and learnt; sort needs a policy that reads instructions, --real_size=smolvla",
        choices=TASK_NAMES,
        layer="mimetic",
    )
    output_dir: Path = setting(Path("outputs/demo"), "Folder of everything that the demo makes", layer="mimetic")
    n_demonstrations: int = setting(50, "Demonstrations to record", unit="episodes", layer="mimetic")
    n_episodes: int = setting(
        100, "Episodes that the trained policy plays, from positions that it has never seen", layer="mimetic"
    )
    steps: int | None = setting(
        None, "Training steps; without it as many as the task takes", unit="steps", layer="mimetic"
    )
    seed: int = setting(0, "Seed of the recording; training and evaluation take 1000 more", layer="mimetic")
    real_size: str | None = setting(
        None,
        "Train a policy of the size that real arms take, on a GPU, instead of a small one on the CPU",
        choices=REAL_SIZES,
        layer="mimetic",
    )
    policy: DemoPolicyConfig = setting(factory=DemoPolicyConfig, help="The policy")
    renderer: str = setting(
        "auto",
        "What draws the pictures; auto takes OpenGL where it works, else rays",
        choices=RENDERER_NAMES,
        layer="mimetic",
    )
    width: int | None = setting(
        None, "Width of a picture; without it what suits the policy", unit="px", layer="mimetic"
    )
    height: int | None = setting(
        None, "Height of a picture; without it what suits the policy", unit="px", layer="mimetic"
    )
    until: str = setting("eval", "The last step to do", choices=STEP_NAMES, layer="mimetic")
    resume: bool = setting(
        True,
        "Go on with the demo in --output_dir; false renames that folder, whatever it holds, and begins anew",
        layer="mimetic",
    )
    open: bool | None = setting(
        None,
        "Open the report in a browser at the end; without it only on a terminal of a machine with a display",
        layer="mimetic",
    )
    yes: bool = setting(False, "With --real_size: begin even where there is no GPU", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        for name, least in (("n_demonstrations", 1), ("n_episodes", 1), ("steps", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                problems.append(f"`--{name}={value}` must be at least {least}")
        if self.seed >= 2**30:
            problems.append(f"`--seed={self.seed}` must be below {2**30}")
        if self.yes and self.real_size is None:
            problems.append("`--yes` lets a policy of real size train without a GPU and needs `--real_size`")
        try:
            width, height = (96 if size is None else size for size in (self.width, self.height))
            CellConfig(width=width, height=height).check()
        except ConfigError as error:
            problems.append(error.message)
        return problems
