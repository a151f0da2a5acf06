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

    env: Any | None = setting(None, "Environment to evaluate in", catalog="mimetic.envs.catalog:ENVS")
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
    compare: str | None = setting(
        None,
        "In an environment: a second checkpoint, which plays the same episodes; the difference gets an exact test and "
        "an interval",
        layer="mimetic",
    )
    target_precision: float = setting(
        0.0,
        "In an environment: stop a task as soon as the 95 % interval of its success is no wider than plus or minus "
        "this share, looked at after 30, 40, 50, ... episodes; --eval.n_episodes is then the most. 0.05 is 5 points; "
        "0 plays all",
        layer="mimetic",
    )
    videos: int = setting(10, "In an environment: first episodes of each task that are filmed", layer="mimetic")
    resume: bool = setting(
        False, "In an environment: go on with the interrupted evaluation in --output_dir", layer="mimetic"
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
                "nothing to evaluate on: `--dataset.repo_id=NAME --dataset.root=FOLDER` names recorded episodes, "
                "`--env.type=so101_cell` a simulated arm"
            )
        if self.env is not None and self.dataset is not None:
            problems.append(
                "`--env` and `--dataset` are two evaluations: the first counts successes, the second compares with "
                "recorded episodes; leave one of them out"
            )
        problems += self._environment_problems()
        if self.dataset is not None and (self.dataset.streaming or self.dataset.cache in ("frames", "memory")):
            problems.append(
                "`--dataset.streaming` and `--dataset.cache` are for training; an evaluation reads each episode once, "
                "from its files: leave them out"
            )
        if self.batch_size < 1:
            problems.append(f"`--batch_size={self.batch_size}` must be at least 1")
        if self.tolerance_s <= 0:
            problems.append(f"`--tolerance_s={self.tolerance_s}` must be above 0")
        for name in ("stride", "max_frames"):
            if getattr(self, name) < 0:
                problems.append(f"`--{name}={getattr(self, name)}` must be 0 or more")
        return problems

    def _environment_problems(self) -> list[str]:
        problems = []
        only = {
            "compare": self.compare is not None,
            "target_precision": self.target_precision != 0,
            "resume": self.resume,
        }
        if self.env is None:
            return [f"`--{name}` is for an evaluation in an environment (`--env.type`)" for name in only if only[name]]
        defaults = EvalConfig()
        problems += [
            f"`--{name}` is for an evaluation on recorded episodes (`--dataset.*`); leave it out"
            for name in ("batch_size", "stride", "max_frames", "tolerance_s")
            if getattr(self, name) != getattr(defaults, name)
        ]
        if self.resume and self.output_dir is None:
            problems.append("`--resume=true` needs `--output_dir`, the folder of the evaluation to go on with")
        if not (self.target_precision == 0 or 0.005 <= self.target_precision < 0.5):
            problems.append(f"`--target_precision={self.target_precision:g}` is a share between 0.005 and 0.5, or 0")
        if self.videos < 0:
            problems.append(f"`--videos={self.videos}` must be 0 or more")
        if self.seed is not None and not 0 <= self.seed < 2**31:
            problems.append(f"`--seed={self.seed}` must be between 0 and {2**31 - 1}")
        return problems + self.eval.problems()
