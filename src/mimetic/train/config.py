"""Settings of a training run, in the order of `train_config.json` (spec/training.md 2 and 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.accelerators.config import AcceleratorConfig
from mimetic.data.config import DatasetConfig
from mimetic.fields import setting
from mimetic.optim.config import OptimizerConfig, SchedulerConfig
from mimetic.policies.config import PolicyConfig
from mimetic.train.ema_config import EmaConfig
from mimetic.train.keep_config import EarlyStopConfig, KeepConfig
from mimetic.train.peft_config import PeftConfig
from mimetic.train.tracker_config import TensorBoardConfig, TrackioConfig, WandbConfig

_POLICIES = "mimetic.policies.catalog:POLICIES"


@dataclass(frozen=True, kw_only=True)
class EnvEvalConfig:
    """Evaluation in an environment (`--eval.*`)."""

    n_episodes: int = setting(50, "Episodes an evaluation")
    batch_size: int = setting(0, "Environments that run at once; 0 chooses by the number of cores")
    use_async_envs: bool = setting(True, "Run each environment in a process of its own")
    recording: bool = setting(False, "Record the evaluation as a dataset instead of videos")
    recording_repo_id: str | None = setting(None, "Hub repository for the recording")
    recording_private: bool = setting(False, "Whether the recording's repository is private")

    def problems(self) -> list[str]:
        """Problems of these settings where an environment is evaluated in, one sentence each."""
        found = []
        if self.n_episodes < 1:
            found.append(f"`--eval.n_episodes={self.n_episodes}` must be at least 1")
        if self.batch_size < 0:
            found.append(f"`--eval.batch_size={self.batch_size}` must be 0 (automatic) or more")
        if self.recording_repo_id is not None and not self.recording:
            found.append(
                f"`--eval.recording_repo_id={self.recording_repo_id}` names a place for a recording, which needs "
                "`--eval.recording=true`"
            )
        return found

    def places(self, cores: int) -> int:
        """How many environments run at once.

        Args:
            cores: of this machine.
        """
        return min(self.batch_size or min(max(1, int(0.7 * cores)), 64), self.n_episodes)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """Remote jobs (`--job.*`)."""

    target: str | None = setting(None, "Hardware of a remote job; null or local runs here")
    image: str = setting("huggingface/lerobot-gpu:latest", "Container image")
    timeout: str | None = setting("2d", "Longest run time")
    detach: bool = setting(False, "Return after submitting")
    tags: list[str] = setting(factory=list, help="Labels of the job")


@dataclass(frozen=True, kw_only=True)
class SampleWeightingConfig:
    """Weights of samples in the loss (`--sample_weighting.*`)."""

    type: str = setting("rabc", "Kind of weighting")
    progress_path: str | None = setting(None, "Parquet file of progress a frame")
    head_mode: str = setting("sparse", "Column of the progress file")
    kappa: float = setting(0.01, "Progress above which a sample has full weight")
    epsilon: float = setting(1e-6, "Smallest deviation")
    extra_params: dict[str, Any] = setting(factory=dict, help="Further parameters")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Features of camera frames that are kept on disk (`--cache.*`)."""

    features: str = setting(
        "auto",
        "Encode each camera frame once, keep the result on disk and train from it: neither videos nor the vision "
        "encoder run again. Works while the encoder is frozen and frames are not augmented. auto does so when it "
        "saves time and fits on the disk, and says why not; on refuses to start when it cannot",
        choices=("auto", "on", "off"),
        layer="mimetic",
    )
    folder: Path | None = setting(
        None,
        "Where features are kept, for all runs (default: $MIMETIC_CACHE/features, else the system's place for caches); "
        "a fast local disk, not inside the dataset; deleting it costs only time",
        layer="mimetic",
    )
    variants: int = setting(
        0,
        "With image augmentation: augmented copies of each frame whose features are kept, of which each sample picks "
        "one at random; each copy costs as much space as the plain frame. 0 keeps none, so that augmentation turns "
        "the cache off",
        layer="mimetic",
        unit="copies",
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.variants >= 0 else [f"`--cache.variants={self.variants}` must be at least 0"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that defines a training run."""

    dataset: DatasetConfig = setting(help="The demonstrations")
    env: Any | None = setting(None, "Environment for evaluation during training", catalog="mimetic.envs.catalog:ENVS")
    policy: PolicyConfig | None = setting(None, "The policy", catalog=_POLICIES)
    reward_model: Any | None = setting(
        None, "A reward model to train instead of a policy", catalog="mimetic.policies.catalog:REWARD_MODELS"
    )
    output_dir: Path | None = setting(
        None, "Folder of the run; must not exist (default outputs/train/<date>/<time>_<job_name>)"
    )
    job_name: str | None = setting(None, "Name of the run (default: the policy's type)")
    resume: bool = setting(False, "Continue the run that --config_path names")
    seed: int | None = setting(1000, "Seed of everything random; null seeds nothing and orders frames with 0")
    cudnn_deterministic: bool = setting(False, "Deterministic cuDNN kernels, slower")
    num_workers: int = setting(4, "Loader threads; 0 loads in the training thread")
    batch_size: int = setting(8, "Samples a step and process", unit="samples")
    prefetch_factor: int = setting(4, "Batches that each loader thread keeps ready")
    persistent_workers: bool = setting(
        True, "Accepted for LeRobot's sake; loader threads always live as long as the run"
    )
    dataloader_multiprocessing_context: str | None = setting(
        "spawn", "Accepted for LeRobot's sake; mimetic loads in threads, which need no start method"
    )
    steps: int = setting(100_000, "Training steps; each reads one batch", unit="steps")
    env_eval_freq: int = setting(20_000, "Steps between evaluations in --env; 0 turns them off", unit="steps")
    log_freq: int = setting(200, "Steps between log lines; 0 turns them off", unit="steps")
    eval_steps: int = setting(0, "Steps between measurements of the held-out loss; 0 turns them off", unit="steps")
    max_eval_samples: int = setting(
        0, "Samples of a held-out loss at most, spread over the tasks; 0 takes all", unit="samples"
    )
    tolerance_s: float = setting(1e-4, "How far a frame's time may be from its place on the frame grid", unit="s")
    save_checkpoint: bool = setting(True, "Save checkpoints")
    save_freq: int = setting(20_000, "Steps between checkpoints; 0 saves only the last step", unit="steps")
    use_policy_training_preset: bool = setting(
        True, "Use the policy's own optimiser and schedule; false needs --optimizer and --scheduler"
    )
    optimizer: OptimizerConfig | None = setting(
        None,
        "The optimiser; set by the policy's preset unless --use_policy_training_preset=false",
        catalog="mimetic.optim.catalog:OPTIMIZERS",
    )
    scheduler: SchedulerConfig | None = setting(
        None,
        "The learning-rate schedule; set by the policy's preset unless --use_policy_training_preset=false",
        catalog="mimetic.optim.catalog:SCHEDULERS",
    )
    eval: EnvEvalConfig = setting(factory=EnvEvalConfig, help="Evaluation in an environment")
    wandb: WandbConfig = setting(factory=WandbConfig, help="Weights & Biases")
    peft: PeftConfig | None = setting(None, "A LoRA adapter to train instead of the whole policy")
    job: JobConfig = setting(factory=JobConfig, help="Remote jobs")
    save_checkpoint_to_hub: bool = setting(False, "Push every checkpoint to --policy.repo_id while training goes on")
    sample_weighting: SampleWeightingConfig | None = setting(
        None, "Weights of samples in the loss", not_yet="sample weighting is not part of mimetic yet"
    )
    rename_map: dict[str, str] = setting(
        factory=dict,
        help='Dataset feature to policy feature, such as {"observation.images.front": "observation.images.top"}',
    )
    checkpoint_path: Path | None = setting(None, "The checkpoint that was resumed", flag=False)
    accelerator: AcceleratorConfig = setting(
        factory=AcceleratorConfig, help="Precision, accumulation, compilation", layer="next"
    )
    ema: EmaConfig = setting(factory=EmaConfig, help="Averaged weights", layer="next")
    tf32: bool | None = setting(
        True,
        "TensorFloat-32 in float32 products and convolutions of NVIDIA GPUs since Ampere: faster, 10 bits of mantissa; "
        "false: full float32; null: torch's defaults",
        layer="next",
    )
    cache: CacheConfig = setting(factory=CacheConfig, help="Features of camera frames on disk", layer="mimetic")
    trackio: TrackioConfig = setting(factory=TrackioConfig, help="trackio", layer="mimetic")
    tensorboard: TensorBoardConfig = setting(factory=TensorBoardConfig, help="TensorBoard", layer="mimetic")
    keep: KeepConfig = setting(factory=KeepConfig, help="Which checkpoints stay", layer="mimetic")
    early_stop: EarlyStopConfig = setting(
        factory=EarlyStopConfig, help="Ending a run early by its held-out loss", layer="mimetic"
    )
    out_of_memory: str = setting(
        "stop",
        "When the device's memory does not suffice for a batch: stop, or halve the part of it that is computed at "
        "once, as often as needed; the gradients of the parts are added up, so that the batch stays the same",
        choices=("stop", "halve"),
        layer="mimetic",
    )
    on_bad_frame: str = setting(
        "stop",
        "When a frame cannot be decoded or a row cannot be read in the middle of training: stop after saving, or "
        "skip: take the next sample in its place, name it and count it",
        choices=("stop", "skip"),
        layer="mimetic",
    )
    max_bad_frames: int = setting(
        100, "With --on_bad_frame=skip: samples that may be skipped before the run stops", layer="mimetic"
    )
    requeue_exit_code: int = setting(
        99,
        "Exit code after a scheduler's SIGTERM or SIGUSR1 when the checkpoint is saved, so that the job may be queued "
        "again (Grid Engine and LSF do that at 99)",
        layer="mimetic",
    )
    allow_missing: list[str] = setting(
        factory=list,
        help="Tensor name patterns of the policy that may be absent from the loaded weights",
        layer="mimetic",
    )
    stats_dataset: str | None = setting(
        None, "Which dataset's statistics to use when a checkpoint holds those of several", layer="mimetic"
    )
    reset_data_order: bool = setting(
        False, "On resume, accept that the dataset or batch size changed and start a new epoch", layer="mimetic"
    )
    reset_optimizer: bool = setting(False, "On resume, start the optimiser and schedule afresh", layer="mimetic")
    preflight: str = setting(
        "refuse",
        "What happens when the dataset's statistics, video spans or tasks are found wrong before the first step: "
        "refuse stops, warn goes on, off does not look",
        choices=("refuse", "warn", "off"),
        layer="mimetic",
    )
    dry_run: bool = setting(
        False, "Check everything, run one batch forward and backward, write nothing", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of this config that need no file, one sentence each; nested groups report their own."""
        problems = []
        if self.policy is None and self.reward_model is None:
            problems.append(
                "no policy is chosen: name one with `--policy.type=act` or load one with `--policy.path=FOLDER`"
            )
        if not self.use_policy_training_preset and not self.resume:
            for name in ("optimizer", "scheduler"):
                if getattr(self, name) is None:
                    problems.append(f"`--use_policy_training_preset=false` needs `--{name}.type`")
        if self.dataset.streaming and self.cache.features == "on":
            problems.append(
                "`--cache.features=on` encodes the whole dataset first, which `--dataset.streaming=true` does not "
                "read: leave one of them out"
            )
        if self.eval_steps > 0 and self.dataset.eval_split == 0:
            problems.append(
                f"`--eval_steps={self.eval_steps}` measures a held-out loss, but `--dataset.eval_split` is 0; try 0.1"
            )
        if self.rename_map and self.policy is not None and self.policy.pretrained_path is None and not self.resume:
            problems.append("`--rename_map` renames inputs of a loaded policy and needs `--policy.path`")
        if self.peft is not None and self.policy is not None and not self.resume:
            problems += self.peft.problems_with(self.policy)
        if self.stats_dataset is not None and not self.resume:
            problems.append(
                f"`--stats_dataset={self.stats_dataset}` has no effect: training normalises with the statistics of its "
                "own dataset; leave it out here (`mimetic eval` and `mimetic inspect` take it)"
            )
        if self.env is not None and self.env_eval_freq > 0:
            problems += self.eval.problems()
            if self.eval.recording:
                problems.append(
                    "`--eval.recording=true` is for `mimetic eval`; an evaluation during training writes videos: "
                    "leave it out"
                )
        if self.env_eval_freq < 0:
            problems.append(f"`--env_eval_freq={self.env_eval_freq}` must be at least 0")
        if self.job.target not in (None, "local"):
            problems.append(f"`--job.target={self.job.target}`: remote jobs are not part of mimetic yet")
        if self.policy is not None and self.save_checkpoint_to_hub and self.policy.repo_id is None:
            problems.append("`--save_checkpoint_to_hub=true` needs `--policy.repo_id`")
        for name, value in (("keep.best", self.keep.best), ("early_stop.patience", self.early_stop.patience)):
            if value > 0 and self.eval_steps <= 0:
                problems.append(f"`--{name}={value}` goes by the held-out loss and needs `--eval_steps`; try 1000")
        if not 1 <= self.requeue_exit_code <= 255:
            problems.append(f"`--requeue_exit_code={self.requeue_exit_code}` must be between 1 and 255")
        minima = {
            "max_bad_frames": 1,
            "steps": 1,
            "batch_size": 1,
            "num_workers": 0,
            "prefetch_factor": 1,
            "eval_steps": 0,
            "max_eval_samples": 0,
        }
        for name, least in minima.items():
            if getattr(self, name) < least:
                problems.append(f"`--{name}={getattr(self, name)}` must be at least {least}")
        if not 0 < self.tolerance_s < math.inf:
            problems.append(f"`--tolerance_s={self.tolerance_s}` must be above 0 and finite")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            problems.append(f"`--seed={self.seed}` must be between 0 and {2**32 - 1}")
        return problems
