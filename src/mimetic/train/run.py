"""A whole training run: from settings to the last checkpoint (start-up order of spec/training.md 4)."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.precision import check_trainable_dtypes
from mimetic.accelerators.witness import MatmulWitness
from mimetic.config.check import require_valid
from mimetic.config.codec import choice_name
from mimetic.data.loader import BatchLoader
from mimetic.errors import ConfigError, Interrupted
from mimetic.log import JsonLines
from mimetic.names import CHECKPOINTS_DIR
from mimetic.optim.build import can_fuse, describe_optimizer, make_optimizer
from mimetic.optim.catalog import OPTIMIZERS
from mimetic.optim.schedules import describe_schedule, make_scheduler
from mimetic.policies.base import Policy
from mimetic.policies.prepare import prepare_for_training
from mimetic.train.banner import show_banner
from mimetic.train.begin import Trained, open_selection, start_position
from mimetic.train.bottleneck import Bottleneck
from mimetic.train.build_features import build_features
from mimetic.train.card_facts import card_facts
from mimetic.train.checkpoint import last_checkpoint
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData, open_training_data
from mimetic.train.disk_space import check_space, newest_bytes
from mimetic.train.ema import ema_values, make_ema
from mimetic.train.env_eval import EnvironmentEvaluation
from mimetic.train.feature_plan import FeaturePlan
from mimetic.train.features import plan_features, with_features
from mimetic.train.frames import keep_frames, plan_kept_frames
from mimetic.train.guard import FiniteGuard
from mimetic.train.heldout import Heldout, heldout_positions
from mimetic.train.instructions import check_instructions
from mimetic.train.loop import Loop, Parts
from mimetic.train.model import Model, build_model
from mimetic.train.outputs import checkpoint_bytes, make_after_save, make_saver, prepare_folder, remove_leftovers
from mimetic.train.overflows import OverflowWatch
from mimetic.train.preflight import preflight
from mimetic.train.push import Pusher, open_pusher, require_hub
from mimetic.train.resolve import Resolved, resolve
from mimetic.train.retention import point_best
from mimetic.train.rng import seed_everything
from mimetic.train.run_folder import make_run_folder
from mimetic.train.run_lock import RunLock
from mimetic.train.state import Progress
from mimetic.train.step import Stepper
from mimetic.train.stop import StartUp
from mimetic.train.trackers.open import Trackers, open_trackers, require_trackers

logger = logging.getLogger(__name__)


def train(
    config: TrainConfig,
    *,
    origins: Mapping[str, str] | None = None,
    play: EnvironmentEvaluation | None = None,
) -> Path:
    """Train a policy.

    Args:
        config: settings; `config.resume` with `config.checkpoint_path` (or `output_dir`) continues a run.
        origins: where each setting comes from, for the saved record; by dotted flag.
        play: lets the policy play in the environment of `config.env`; `mimetic train` passes it in.

    Returns:
        The run's output folder; `checkpoints/last` in it is the newest checkpoint.

    Raises:
        MimeticError: anything that a user can mend, before the first step wherever possible.
        Interrupted: the user or a scheduler stopped the run after a checkpoint.
    """
    with StartUp() as start, contextlib.ExitStack() as held:
        require_valid(config)
        resolved = resolve(config, origins or {})
        if resolved.folder.exists() and not resolved.config.dry_run:
            # Before the checkpoint is read: a run that is alive in the folder may remove it at any moment.
            held.enter_context(RunLock(resolved.folder))
        require_trackers(resolved.config)
        require_hub(resolved.config)
        _set_backends(resolved.config, resolved.precision.device)
        if not resolved.config.resume:
            seed_everything(resolved.config.seed)
        run = replace(_build(resolved), play=_require_play(resolved.config, play))
        held.callback(run.data.train.close)  # a stream may still be fetching files
        resolved = run.resolved
        if run.play is not None:
            run.play.check(run.model.policy, run.model.preprocessor, dataset=run.data.train.root)
        if resolved.config.dry_run:
            _dry_run(run)
            return resolved.folder
        if run.progress.step >= resolved.config.steps:
            logger.info(
                "This run is at its last step already (%d of %d); nothing to do",
                run.progress.step,
                resolved.config.steps,
            )
            _tidy_finished(run)
            return resolved.folder
        selection = run.trained.selection
        if selection is not None and selection.is_over:
            logger.info("This run ended early: %s; --early_stop.patience=0 goes on", selection.verdict())
            _tidy_finished(run)
            return resolved.folder
        if resolved.config.save_checkpoint:
            parent = resolved.folder / CHECKPOINTS_DIR
            size = newest_bytes(parent) or checkpoint_bytes(run.trained)
            check_space(resolved.folder, size, resolved.config, step=run.progress.step)
        if run.plan is not None:
            # Before the run's folder exists, so that the same command continues a build that was stopped.
            build_features(run.plan, resolved.config, resolved.precision)
            run = replace(run, data=with_features(run.data, run.plan))
        run = _with_kept_frames(run)
        folder = resolved.folder
        if not folder.exists():
            folder = make_run_folder(folder, may_choose=resolved.origins.get("output_dir") == "resolved")
            held.enter_context(RunLock(folder))
        _run(replace(run, resolved=_in_folder(resolved, folder)), start)
    return folder


@dataclass(frozen=True)
class _Run:
    resolved: Resolved
    data: TrainingData
    model: Model
    trained: Trained
    progress: Progress
    plan: FeaturePlan | None
    watch: Callable[[Mapping[str, float]], None] = lambda record: None
    play: EnvironmentEvaluation | None = None


def _require_play(config: TrainConfig, play: EnvironmentEvaluation | None) -> EnvironmentEvaluation | None:
    """Who plays in the environment; None where the settings want nobody to.

    Raises:
        ConfigError: the settings want it, and nobody was passed in.
    """
    if config.env is None or config.env_eval_freq <= 0:
        return None
    if play is None:
        raise ConfigError(
            "`env` is set, and `train` was given nobody who lets the policy play in it",
            "pass `play=InTraining(config)` of `mimetic.evaluate.rollout.in_training`, or leave `env` out",
        )
    return play


def _build(resolved: Resolved) -> _Run:
    """Open the data, make or load the policy, and put everything where the run starts."""
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
    preflight(resolved.config, data, model.policy.config)
    check_trainable_dtypes(model.policy.named_parameters(), resolved.precision)
    for sentence in prepare_for_training(model.policy, resolved.config.accelerator):
        logger.info("%s", sentence)
    resolved = replace(resolved, config=replace(resolved.config, policy=model.policy.config))
    logger.info("Creating optimizer and scheduler")
    optimizer, scheduler = _make_optimizer(resolved.config, model.policy)
    accelerator = resolved.config.accelerator
    trained = Trained(
        policy=model.policy,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=LossScaler(accelerator.grad_scaler, resolved.precision.device) if resolved.precision.scaler else None,
        ema=make_ema(resolved.config.ema, model.policy),
        selection=open_selection(resolved.config, resolved),
    )
    progress = start_position(resolved, data, trained)
    plan = plan_features(resolved.config, data, model, resolved.precision, step=progress.step)
    return _Run(_with_cache_decision(resolved, plan), data, model, trained, progress, plan)


def _with_cache_decision(resolved: Resolved, plan: FeaturePlan | None) -> Resolved:
    """Store what was decided, so that a resumed run does the same."""
    config = resolved.config
    if config.cache.features != "auto":
        return resolved
    origins = {**resolved.origins, "cache.features": "resolved"}
    cache = replace(config.cache, features="off" if plan is None else "on")
    return replace(resolved, config=replace(config, cache=cache), origins=origins)


def _with_kept_frames(run: _Run) -> _Run:
    config = run.resolved.config
    plan = plan_kept_frames(config, run.data, run.trained.policy.config, step=run.progress.step)
    return replace(run, data=keep_frames(config, run.data, plan), watch=Bottleneck(config, plan).watch)


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


def _in_folder(resolved: Resolved, folder: Path) -> Resolved:
    return replace(resolved, config=replace(resolved.config, output_dir=folder))


def _run(run: _Run, start: StartUp) -> None:
    config, folder = run.resolved.config, run.resolved.folder
    resumes = run.resolved.checkpoint is not None
    try:
        trackers = open_trackers(config, folder, resumes=resumes, step=run.progress.step)
    except BaseException:
        if not resumes:  # nothing of value is in it yet, and the same command shall be possible again
            shutil.rmtree(folder, ignore_errors=True)
        raise
    pusher = open_pusher(config)
    exit_code = 1
    try:
        progress = _train(run, trackers, pusher, start)
        exit_code = 0
        logger.info("End of training")
        trackers.close(exit_code=exit_code)
        if pusher is not None:
            _push_policy(pusher, run, progress.step)
    except Interrupted as error:
        exit_code = error.exit_code
        raise
    finally:
        trackers.close(exit_code=exit_code)
        if pusher is not None:
            pusher.close()


def _tidy_finished(run: _Run) -> None:
    """Do what a run that was killed right after its last checkpoint did not come to."""
    remove_leftovers(run.resolved.folder)
    _push_again(run)


def _push_again(run: _Run) -> None:
    """A complete run that is resumed pushes its policy once more: the first push may have failed."""
    pusher = open_pusher(run.resolved.config)
    if pusher is None:
        return
    try:
        _push_policy(pusher, run, run.progress.step)
    finally:
        pusher.close()


def _push_policy(pusher: Pusher, run: _Run, step: int) -> None:
    config, folder = run.resolved.config, run.resolved.folder
    last = last_checkpoint(folder / CHECKPOINTS_DIR)
    if last is not None:
        pusher.finish(last, card_facts(config, run.data, run.resolved.precision, folder=folder, steps=step))


def _train(run: _Run, trackers: Trackers, pusher: Pusher | None, start: StartUp) -> Progress:
    config, trained = run.resolved.config, run.trained
    sink = prepare_folder(run.resolved, run.progress.step)
    loader = _make_loader(run)
    try:
        if config.keep.best and trained.selection is not None:  # the former best may just have been set aside
            point_best(run.resolved.folder / CHECKPOINTS_DIR, trained.selection.ranking())
        parts = _make_parts(run, loader, sink, trackers, pusher)
        show_banner(config, run.data, trained.policy, run.resolved.folder)
        start.over()
        progress = Loop(config, parts, run.progress).run()
        _tell_end(parts)
        return progress
    finally:
        loader.close()
        with contextlib.suppress(OSError):  # a full disk has been reported where it was met
            sink.close()


def _make_loader(run: _Run) -> BatchLoader:
    config, policy, train, names = (
        run.resolved.config,
        run.resolved.policy,
        run.data.train,
        run.resolved.config.rename_map,
    )
    read = {*(policy.input_features or ()), *(policy.output_features or ())}
    learnt = [key for key, feature in train.features.items() if feature.is_numeric and names.get(key, key) in read]
    return BatchLoader(
        run.data.train,
        run.data.sampler,
        batch_size=config.batch_size,
        num_workers=config.num_workers,
        prefetch_factor=config.prefetch_factor,
        seed=config.seed or 0,
        pin_memory=run.resolved.precision.device.type == "cuda",
        on_bad_frame="skip" if config.on_bad_frame == "skip" else "stop",
        max_bad_frames=config.max_bad_frames,
        row_faults=lambda positions: train.row_faults(positions, learnt),
        excluded=config.dataset.exclude_episodes or (),
    )


def _make_parts(run: _Run, loader: BatchLoader, sink: JsonLines, trackers: Trackers, pusher: Pusher | None) -> Parts:
    config, trained, precision = run.resolved.config, run.trained, run.resolved.precision
    ema, progress = trained.ema, run.progress
    overflows = OverflowWatch(
        precision.device,
        landed=progress.landed_updates,
        skipped=progress.skipped_updates,
        in_a_row=progress.skipped_in_a_row,
    )
    averaged = None
    if ema is not None and config.ema.use_for_eval:
        averaged = lambda: ema.swapped(trained.policy)  # noqa: E731 - the loop calls it at each measurement
    return Parts(
        batches=loader.endless(progress.epoch, progress.start_index),
        num_samples=len(run.data.sampler),
        num_episodes=run.data.num_episodes,
        preprocessor=run.model.preprocessor,
        stepper=_make_stepper(run),
        guard=FiniteGuard(precision.device, _explain(run.data)),
        heldout=_make_heldout(run),
        save=make_saver(run.resolved, run.model, trained) if config.save_checkpoint else None,
        sink=sink,
        mirror=trackers.write if len(trackers) else None,
        overflows=overflows if trained.scaler is not None else None,
        # What is compiled would run plain while it is watched, and round differently from the steps after it.
        witness=None if config.accelerator.compile.enabled else MatmulWitness(),
        averaged=averaged,
        values=dict if ema is None else lambda: ema_values(ema),
        selection=trained.selection,
        saved=make_after_save(run.resolved, trained, trackers, pusher),
        bad_frames=lambda: loader.bad_frames,
        watch=run.watch,
        when_waiting=lambda hook: setattr(loader, "on_wait", hook),
        play=_make_play(run),
    )


def _make_play(run: _Run) -> Callable[[Path, Callable[[], bool]], Mapping[str, Any] | None] | None:
    play, model = run.play, run.model
    if play is None:
        return None
    return lambda folder, may_go_on: play(
        run.trained.policy, model.preprocessor, model.postprocessor, folder=folder, may_go_on=may_go_on
    )


def _make_stepper(run: _Run) -> Stepper:
    config, trained = run.resolved.config, run.trained
    assert config.optimizer is not None
    return Stepper(
        trained.policy,
        trained.optimizer,
        trained.scheduler,
        run.resolved.precision,
        clip_norm=config.optimizer.grad_clip_norm,
        accumulation=config.accelerator.gradient_accumulation.steps,
        micro_step=run.progress.micro_step,
        scaler=trained.scaler,
        pieces=run.progress.pieces,
        may_halve=config.out_of_memory == "halve",
        after_update=None if trained.ema is None else trained.ema.update,
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
        may_halve=config.out_of_memory == "halve",
    )


def _explain(data: TrainingData) -> Callable[[np.ndarray], str]:
    def explain(indices: np.ndarray) -> str:
        found = data.train.find_non_finite()
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"the dataset holds values that are not finite: {'; '.join(map(str, found[:3]))}{more}" if found else ""

    return explain


def _tell_end(parts: Parts) -> None:
    """Say what went differently from what a user may believe."""
    bad = parts.bad_frames()
    if bad:
        logger.warning("%d samples could not be read and were left out; metrics.jsonl names them", len(bad))
    if parts.overflows is not None and parts.overflows.skipped:
        logger.info(
            "%d of %d updates were left out because a float16 gradient overflowed",
            parts.overflows.skipped,
            parts.overflows.skipped + parts.overflows.landed,
        )


def _dry_run(run: _Run) -> None:
    precision = run.resolved.precision
    stepper = Stepper(
        run.trained.policy, run.trained.optimizer, run.trained.scheduler, precision, clip_norm=0.0, accumulation=1
    )
    run.trained.policy.train()
    positions = run.data.sampler.order(0)[: run.resolved.config.batch_size]
    raw = run.data.train.batch([int(p) for p in positions])
    with MatmulWitness() as witness:
        result = stepper.forward_backward(run.model.preprocessor(raw))
    logger.info("%s", witness.verdict(precision))
    guard = FiniteGuard(precision.device, _explain(run.data))
    guard.watch(1, raw, result.loss, result.grad_norm)
    guard.wait()
    logger.info("Dry run: one batch went forward and backward, loss %.3f; nothing was written", result.loss.item())
