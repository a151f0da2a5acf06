"""Where a run starts: at step 0, or where a checkpoint left everything (spec/training.md 16)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.errors import CheckpointError
from mimetic.names import SCALER_STATE_JSON
from mimetic.optim.ema import Ema
from mimetic.policies.base import Policy
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.ema import load_ema
from mimetic.train.resolve import Resolved
from mimetic.train.resume import Checkpoint, check_same_data
from mimetic.train.retention import Selection
from mimetic.train.rng import load_rng
from mimetic.train.state import (
    Progress,
    load_gradients,
    load_optimizer,
    load_progress,
    load_scaler,
    load_scheduler,
    stored_scale,
)

logger = logging.getLogger(__name__)
_SCALER = "accelerator.grad_scaler."


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What changes while a policy is trained, besides its position in the data.

    Args:
        policy: in training mode, on its device.
        optimizer: over its parameters.
        scheduler: its learning rate; None keeps it.
        scaler: the loss scaler, in float16.
        ema: averaged weights, when there are any.
        selection: held-out losses so far; None without measurements.
    """

    policy: Policy
    optimizer: Optimizer
    scheduler: LRScheduler | None
    scaler: LossScaler | None
    ema: Ema | None
    selection: Selection | None


def start_position(resolved: Resolved, data: TrainingData, trained: Trained) -> Progress:
    """Put everything into the state of the checkpoint, if one is resumed, the generators last.

    Args:
        resolved: settings, and the checkpoint.
        data: what is trained on.
        trained: fresh objects, the policy with the checkpoint's weights.

    Returns:
        Where the run stands.

    Raises:
        CheckpointError: a file of the checkpoint is missing, broken, or does not fit.
        ConfigError: the data are others than before.
    """
    config = resolved.config
    accumulation = config.accelerator.gradient_accumulation.steps
    if resolved.checkpoint is None:
        return Progress(
            step=0,
            batch_size=config.batch_size,
            samples=0,
            epoch=0,
            start_index=0,
            grad_accum_steps=accumulation,
            dataset=data.fingerprint,
        )
    folder = resolved.checkpoint.state
    stored = load_progress(folder, num_frames=len(data.sampler), batch_size=config.batch_size)
    check_same_data(stored, data.fingerprint, batch_size=config.batch_size, reset=config.reset_data_order)
    if config.reset_optimizer:
        logger.info("The optimiser and the schedule start afresh, as asked")
        stored = replace(stored, micro_step=0)  # an unfinished accumulation goes with its optimiser
    else:
        load_optimizer(folder, trained.optimizer)
        if trained.scheduler is not None:
            load_scheduler(folder, trained.scheduler)
            _tell_changed_steps(resolved.checkpoint.settings().get("steps"), config.steps)
        if stored.micro_step:
            load_gradients(folder, trained.policy)
    if trained.scaler is not None:
        load_scaler(folder, trained.scaler, given=_given_flags(resolved.origins))
    if stored.micro_step:
        _scale_as_now(resolved.checkpoint, trained)
    if trained.ema is not None:
        load_ema(folder, trained.ema, trained.policy)
    load_rng(folder / "rng_state.safetensors")
    if stored.batch_size != config.batch_size:
        logger.warning(
            "The batch size changes from %d to %d; the run goes on at the same sample",
            stored.batch_size,
            config.batch_size,
        )
    if stored.pieces > 1:
        logger.info("Each batch is computed in %d parts, as before the run was stopped", stored.pieces)
    position = replace(stored, batch_size=config.batch_size, grad_accum_steps=accumulation, dataset=data.fingerprint)
    if config.reset_data_order:
        position = replace(position, epoch=stored.epoch + 1, start_index=0)
    logger.info("Resuming data order at epoch %d, sample %d", position.epoch, position.start_index)
    return position


def open_selection(config: TrainConfig, resolved: Resolved) -> Selection | None:
    """The held-out losses so far; None when none are measured.

    Raises:
        CheckpointError: the stored ones are broken.
    """
    if config.eval_steps <= 0:
        return None
    if resolved.checkpoint is None:
        return Selection(config.early_stop, config.keep)
    return Selection.load(resolved.checkpoint.state, config.early_stop, config.keep)


def _scale_as_now(checkpoint: Checkpoint, trained: Trained) -> None:
    """Give the gradients of an unfinished accumulation the scale of those that will be added to them.

    Raises:
        CheckpointError: the scale that they were stored with is lost.
    """
    stored = stored_scale(checkpoint.state)
    accelerator = checkpoint.settings().get("accelerator") or {}
    is_enabled = (accelerator.get("grad_scaler") or {}).get("enabled", True)
    if stored is None and is_enabled and accelerator.get("mixed_precision") == "fp16":
        raise CheckpointError(
            f"{checkpoint.state} holds the gradients of an unfinished update, and not the loss scale that is in them "
            f"({SCALER_STATE_JSON} is missing)",
            "an older checkpoint of the run may be complete; `--reset_optimizer=true` leaves those gradients out",
        )
    factor = (1.0 if trained.scaler is None else trained.scaler.value()) / (1.0 if stored is None else stored)
    gradients = [parameter.grad for parameter in trained.policy.parameters() if parameter.grad is not None]
    if factor != 1.0 and gradients:
        torch._foreach_mul_(gradients, factor)


def _given_flags(origins: Mapping[str, str]) -> set[str]:
    return {
        name.removeprefix(_SCALER) for name, origin in origins.items() if name.startswith(_SCALER) and origin == "flag"
    }


def _tell_changed_steps(before: object, now: int) -> None:
    if isinstance(before, int) and before != now:
        logger.info(
            "--steps changes from %d to %d: the schedule goes on along the curve of a run of %d", before, now, now
        )
