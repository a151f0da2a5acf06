"""A whole training run: from settings to the last checkpoint (start-up order of spec/training.md 4)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.config.check import require_valid
from mimetic.config.codec import choice_name, encode
from mimetic.config.effective import as_json, effective
from mimetic.data.loader import BatchLoader
from mimetic.errors import TrainingError
from mimetic.log import JsonLines
from mimetic.names import CHECKPOINTS_DIR, METRICS_JSONL
from mimetic.optim.build import can_fuse, describe_optimizer, make_optimizer
from mimetic.optim.catalog import OPTIMIZERS
from mimetic.optim.schedules import describe_schedule, make_scheduler
from mimetic.policies.base import Policy
from mimetic.train.build_features import build_features
from mimetic.train.checkpoint import Saved, check_last, clean_leftovers, save_checkpoint, set_later_aside
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData, open_training_data
from mimetic.train.feature_plan import FeaturePlan
from mimetic.train.features import plan_features, with_features
from mimetic.train.guard import FiniteGuard
from mimetic.train.heldout import Heldout, heldout_positions
from mimetic.train.instructions import check_instructions
from mimetic.train.loop import Loop, Parts
from mimetic.train.metrics import big_number, drop_torn_line
from mimetic.train.model import Model, build_model
from mimetic.train.resolve import Resolved, resolve
from mimetic.train.resume import check_same_data
from mimetic.train.rng import load_rng, seed_everything
from mimetic.train.state import (
    Progress,
    load_gradients,
    load_optimizer,
    load_progress,
    load_scheduler,
    write_json,
)
from mimetic.train.step import Stepper
from mimetic.train.wandb_sink import WandbSink, open_wandb, require_wandb

logger = logging.getLogger(__name__)


def train(config: TrainConfig, *, origins: Mapping[str, str] | None = None) -> Path:
    """Train a policy.

    Args:
        config: settings; `config.resume` with `config.checkpoint_path` (or `output_dir`) continues a run.
        origins: where each setting comes from, for the saved record; by dotted flag.

    Returns:
        The run's output folder; `checkpoints/last` in it is the newest checkpoint.

    Raises:
        MimeticError: anything that a user can mend, before the first step wherever possible.
        Interrupted: the user or a scheduler stopped the run after a checkpoint.
    """
    require_valid(config)
    resolved = resolve(config, origins or {})
    require_wandb(resolved.config.wandb)
    _set_backends(resolved.config, resolved.precision.device)
    if not resolved.config.resume:
        seed_everything(resolved.config.seed)
    logger.info("Creating dataset")
    data = open_training_data(resolved.config, resolved.policy)
    if data.config.dataset.video_backend != resolved.config.dataset.video_backend:
        resolved.origins["dataset.video_backend"] = "resolved"
    if data.config.rename_map != resolved.config.rename_map:
        resolved.origins["rename_map"] = "resolved"
    resolved = replace(resolved, config=data.config)
    logger.info("Creating policy")
    model = build_model(resolved.config, data, resolved.checkpoint)
    check_instructions(model.policy.config, data, model.preprocessor)
    resolved = replace(resolved, config=replace(resolved.config, policy=model.policy.config))
    logger.info("Creating optimizer and scheduler")
    optimizer, scheduler = _make_optimizer(resolved.config, model.policy)
    progress = _start_position(resolved, data, model.policy, optimizer, scheduler)
    plan = plan_features(resolved.config, data, model, resolved.precision, step=progress.step)
    resolved = _with_cache_decision(resolved, plan)
    if resolved.config.dry_run:
        _dry_run(resolved, data, model, optimizer, scheduler)
        return resolved.folder
    return _run(_Run(resolved, data, model, optimizer, scheduler, progress, plan))


@dataclass(frozen=True)
class _Run:
    resolved: Resolved
    data: TrainingData
    model: Model
    optimizer: Optimizer
    scheduler: LRScheduler | None
    progress: Progress
    plan: FeaturePlan | None


def _with_cache_decision(resolved: Resolved, plan: FeaturePlan | None) -> Resolved:
    """Store what was decided, so that a resumed run does the same."""
    config = resolved.config
    if config.cache.features != "auto":
        return resolved
    origins = {**resolved.origins, "cache.features": "resolved"}
    cache = replace(config.cache, features="off" if plan is None else "on")
    return replace(resolved, config=replace(config, cache=cache), origins=origins)


def _set_backends(config: TrainConfig, device: torch.device) -> None:
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not config.cudnn_deterministic
        torch.backends.cudnn.deterministic = config.cudnn_deterministic


def _make_optimizer(config: TrainConfig, policy: Policy) -> tuple[Optimizer, LRScheduler | None]:
    assert config.optimizer is not None
    groups: list[dict[str, Any]] = (
        policy.optim_groups() if config.use_policy_training_preset else [{"params": list(policy.parameters())}]
    )
    optimizer = make_optimizer(config.optimizer, groups, fused=can_fuse(policy.parameters()))
    scheduler = make_scheduler(config.scheduler, optimizer, config.steps) if config.scheduler is not None else None
    described = describe_optimizer(choice_name(config.optimizer, OPTIMIZERS), config.optimizer, optimizer)
    logger.info("%s (%s)", described, _optimizer_source(config))
    logger.info("%s", describe_schedule(config.scheduler, config.steps, config.optimizer.lr))
    return optimizer, scheduler


def _optimizer_source(config: TrainConfig) -> str:
    if config.resume:
        return "as in the checkpoint"
    if config.use_policy_training_preset:
        return "the policy's preset; --use_policy_training_preset=false to set your own"
    return "your own, as --use_policy_training_preset=false"


def _start_position(
    resolved: Resolved,
    data: TrainingData,
    policy: Policy,
    optimizer: Optimizer,
    scheduler: LRScheduler | None,
) -> Progress:
    config = resolved.config
    accumulation = config.accelerator.gradient_accumulation.steps
    fresh = Progress(
        step=0,
        batch_size=config.batch_size,
        samples=0,
        epoch=0,
        start_index=0,
        grad_accum_steps=accumulation,
        dataset=data.fingerprint,
    )
    if resolved.checkpoint is None:
        return fresh
    folder = resolved.checkpoint.state
    stored = load_progress(folder, num_frames=len(data.sampler), batch_size=config.batch_size)
    check_same_data(stored, data.fingerprint, batch_size=config.batch_size, reset=config.reset_data_order)
    if config.reset_optimizer:
        logger.info("The optimiser and the schedule start afresh, as asked")
        stored = replace(stored, micro_step=0)  # an unfinished accumulation goes with its optimiser
    else:
        load_optimizer(folder, optimizer)
        if scheduler is not None:
            load_scheduler(folder, scheduler)
            _tell_changed_steps(resolved.checkpoint.settings().get("steps"), config.steps)
        if stored.micro_step:
            load_gradients(folder, policy)
    load_rng(folder / "rng_state.safetensors")
    if stored.batch_size != config.batch_size:
        logger.warning(
            "The batch size changes from %d to %d; the run goes on at the same sample",
            stored.batch_size,
            config.batch_size,
        )
    position = replace(stored, batch_size=config.batch_size, grad_accum_steps=accumulation, dataset=data.fingerprint)
    if config.reset_data_order:
        position = replace(position, epoch=stored.epoch + 1, start_index=0)
    logger.info("Resuming data order at epoch %d, sample %d", position.epoch, position.start_index)
    return position


def _tell_changed_steps(before: object, now: int) -> None:
    if isinstance(before, int) and before != now:
        logger.info(
            "--steps changes from %d to %d: the schedule goes on along the curve of a run of %d", before, now, now
        )


def _run(run: _Run) -> Path:
    config, folder = run.resolved.config, run.resolved.folder
    if run.progress.step >= config.steps:
        logger.info("This run is at its last step already (%d of %d); nothing to do", run.progress.step, config.steps)
        return folder
    if run.plan is not None:
        # Before the run's folder exists, so that the same command continues a build that was stopped.
        build_features(run.plan, config, run.resolved.precision)
        run = replace(run, data=with_features(run.data, run.plan))
    wandb = open_wandb(config, folder, resumes=run.resolved.checkpoint is not None)
    exit_code = 1
    try:
        _train(run, wandb)
        exit_code = 0
    finally:
        if wandb is not None:
            wandb.close(exit_code=exit_code)
    logger.info("End of training")
    return folder


def _train(run: _Run, wandb: WandbSink | None) -> None:
    config = run.resolved.config
    sink = _prepare_folder(run, may_exist=wandb is not None)
    loader = BatchLoader(
        run.data.train,
        run.data.sampler,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
        seed=config.seed or 0,
        pin_memory=run.resolved.precision.device.type == "cuda",
    )
    try:
        stepper = _make_stepper(run)
        _banner(run)
        parts = Parts(
            batches=loader.endless(run.progress.epoch, run.progress.start_index),
            num_samples=len(run.data.sampler),
            num_episodes=run.data.num_episodes,
            preprocessor=run.model.preprocessor,
            stepper=stepper,
            guard=FiniteGuard(run.resolved.precision.device, _explain(run.data)),
            heldout=_make_heldout(run),
            save=_saver(run) if config.save_checkpoint else None,
            sink=sink,
            mirror=None if wandb is None else wandb.write,
        )
        Loop(config, parts, run.progress).run()
    finally:
        loader.close()
        with contextlib.suppress(OSError):  # a full disk has been reported where it was met
            sink.close()


def _prepare_folder(run: _Run, *, may_exist: bool) -> JsonLines:
    """Make the run's folder ready and open its metrics file."""
    folder, config, checkpoint = run.resolved.folder, run.resolved.config, run.resolved.checkpoint
    try:
        folder.mkdir(parents=True, exist_ok=may_exist or checkpoint is not None)
        checkpoints = folder / CHECKPOINTS_DIR
        check_last(checkpoints)
        for name in clean_leftovers(checkpoints):
            logger.info("Removed %s, a checkpoint that was being written when the run was killed", name)
        if checkpoint is not None and checkpoint.run == folder.resolve():
            set_later_aside(checkpoints, run.progress.step, back_to=checkpoint.folder.name)
        name = "effective_config" if checkpoint is None else f"effective_config-resumed-{run.progress.step}"
        write_json(_unused(folder, name), as_json(effective(config, run.resolved.origins)))
        drop_torn_line(folder / METRICS_JSONL)
        sink = JsonLines(folder / METRICS_JSONL)
        if checkpoint is not None:
            sink.write({"kind": "resume", "steps": run.progress.step})
    except OSError as error:
        raise TrainingError(
            f"the run's folder {folder} cannot be written: {error.strerror or error}",
            "choose another place with `--output_dir`",
        ) from error
    return sink


def _unused(folder: Path, name: str) -> Path:
    """`<name>.json`, or with a number when an earlier attempt from the same step left one."""
    path, number = folder / f"{name}.json", 2
    while path.exists():
        path, number = folder / f"{name}-{number}.json", number + 1
    return path


def _make_stepper(run: _Run) -> Stepper:
    config = run.resolved.config
    assert config.optimizer is not None
    return Stepper(
        run.model.policy,
        run.optimizer,
        run.scheduler,
        run.resolved.precision,
        clip_norm=config.optimizer.grad_clip_norm,
        accumulation=config.accelerator.gradient_accumulation.steps,
        micro_step=run.progress.micro_step,
    )


def _make_heldout(run: _Run) -> Heldout | None:
    config, heldout = run.resolved.config, run.data.heldout
    if heldout is None or config.eval_steps <= 0:
        return None
    return Heldout(
        heldout,
        run.model.preprocessor,
        run.resolved.precision,
        batch_size=config.batch_size,
        positions=heldout_positions(heldout, config.max_eval_samples),
        tasks=heldout.meta.tasks,
    )


def _saver(run: _Run) -> Callable[[Progress], Path]:
    # A resumed run is the same run: its files must not differ from those of a run that never stopped.
    config = replace(run.resolved.config, resume=False, checkpoint_path=None)
    saved = Saved(
        policy=run.model.policy,
        preprocessor=run.model.preprocessor,
        postprocessor=run.model.postprocessor,
        optimizer=run.optimizer,
        scheduler=run.scheduler,
        train_config=encode(config, layers=("lerobot", "next")),
        full_config=encode(config, full=True),
    )
    return lambda progress: save_checkpoint(run.resolved.folder, saved, progress, total_steps=config.steps)


def _explain(data: TrainingData) -> Callable[[np.ndarray], str]:
    def explain(indices: np.ndarray) -> str:
        found = data.train.find_non_finite()
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"the dataset holds values that are not finite: {'; '.join(map(str, found[:3]))}{more}" if found else ""

    return explain


def _banner(run: _Run) -> None:
    config, data, policy = run.resolved.config, run.data, run.model.policy
    total = sum(p.numel() for p in policy.parameters())
    trainable = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    accumulation = config.accelerator.gradient_accumulation.steps
    effective = f"{config.batch_size} x 1" + (f" x {accumulation} grad accum" if accumulation > 1 else "")
    logger.info("Output dir: %s", run.resolved.folder)
    logger.info("cfg.steps=%d (%s)", config.steps, big_number(config.steps))
    logger.info("dataset.num_frames=%d (%s)", len(data.train), big_number(len(data.train)))
    logger.info("dataset.num_episodes=%d", data.num_episodes)
    logger.info("Effective batch size: %s = %d", effective, config.batch_size * accumulation)
    if data.padded_share > 0:
        logger.info(
            "padded action steps: %.1f %% (beyond the end of their episode, not in the loss)", 100 * data.padded_share
        )
    logger.info("num_learnable_params=%d (%s)", trainable, big_number(trainable))
    logger.info("num_total_params=%d (%s)", total, big_number(total))
    logger.info(
        "Start offline training on a fixed dataset, with effective batch size: %d", config.batch_size * accumulation
    )


def _dry_run(
    resolved: Resolved, data: TrainingData, model: Model, optimizer: Optimizer, scheduler: LRScheduler | None
) -> None:
    stepper = Stepper(model.policy, optimizer, scheduler, resolved.precision, clip_norm=0.0, accumulation=1)
    model.policy.train()
    positions = data.sampler.order(0)[: resolved.config.batch_size]
    raw = data.train.batch([int(p) for p in positions])
    result = stepper.forward_backward(model.preprocessor(raw))
    FiniteGuard(resolved.precision.device, _explain(data)).watch(1, raw, result.loss, result.grad_norm)
    logger.info("Dry run: one batch went forward and backward, loss %.3f; nothing was written", result.loss.item())
