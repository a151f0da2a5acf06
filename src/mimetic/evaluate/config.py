"""Settings of `mimetic eval` (spec/training.md 23)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.data.config import DatasetConfig
from mimetic.fields import setting
from mimetic.policies.config import PolicyConfig
from mimetic.train.config import EnvEvalConfig


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Everything that defines an evaluation."""

    env: Any | None = setting(None, "Environment to evaluate in", catalog="mimetic.train.catalog:ENVIRONMENTS")
    eval: EnvEvalConfig = setting(factory=EnvEvalConfig, help="Evaluation in an environment")
    policy: PolicyConfig | None = setting(
        None, "The policy, loaded with --policy.path", catalog="mimetic.policies.catalog:POLICIES"
    )
    output_dir: Path | None = setting(None, "Folder of the report (default outputs/eval/<date>/<time>_<job_name>)")
    job_name: str | None = setting(None, "Name of the evaluation")
    seed: int | None = setting(1000, "Seed of everything random")
    rename_map: dict[str, str] = setting(factory=dict, help="Dataset feature name to policy feature name")
    trust_remote_code: bool = setting(
        False, "Run code from a hub repository", not_yet="mimetic runs no code from a repository"
    )
    dataset: DatasetConfig | None = setting(
        None, "Recorded episodes to compare with, instead of an environment", layer="mimetic"
    )
    tolerance_s: float = setting(
        1e-4, "How far a frame's time may be from its place on the frame grid", unit="s", layer="mimetic"
    )
    batch_size: int = setting(32, "Observations a forward pass", unit="samples", layer="mimetic")
    stride: int = setting(
        0, "Frames between two predictions; 0 takes the policy's n_action_steps", unit="frames", layer="mimetic"
    )
    max_frames: int = setting(0, "Predictions at most, spread evenly; 0 takes all", unit="predictions", layer="mimetic")
    ablate: str = setting(
        "none",
        "Repeat the evaluation without an input: blind replaces every camera by its mean colour, which shows whether "
        "the policy looks; mute takes the instruction away and then gives that of another task, which shows whether "
        "it follows; all does both",
        choices=("none", "blind", "mute", "all"),
        layer="mimetic",
    )
    json: bool = setting(False, "Print all numbers as JSON instead of a table", layer="mimetic")
    report: bool = setting(True, "Write the HTML report with plots, not only the numbers", layer="mimetic")
    allow_missing: list[str] = setting(
        factory=list, help="Tensor name patterns of the policy that may be absent from its weights", layer="mimetic"
    )
    stats_dataset: str | None = setting(
        None, "Which dataset's statistics to use when the checkpoint holds those of several", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of this config that need no file, one sentence each."""
        problems = []
        if self.policy is None or self.policy.pretrained_path is None:
            problems.append("no policy to evaluate: `--policy.path=FOLDER` names a checkpoint")
        if self.env is None and self.dataset is None:
            problems.append(
                "nothing to evaluate on: `--dataset.repo_id=NAME --dataset.root=FOLDER` names recorded episodes"
            )
        if self.batch_size < 1:
            problems.append(f"`--batch_size={self.batch_size}` must be at least 1")
        if self.tolerance_s <= 0:
            problems.append(f"`--tolerance_s={self.tolerance_s}` must be above 0")
        for name in ("stride", "max_frames"):
            if getattr(self, name) < 0:
                problems.append(f"`--{name}={getattr(self, name)}` must be 0 or more")
        return problems
