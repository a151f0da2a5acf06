"""The files of `training_state/`: optimiser, schedule, position in the data (spec/training.md 15.3 to 15.5).

The first four files are LeRobot's, so either side resumes from the other's. `mimetic_state.json` and
`accumulated_gradients.safetensors` are ours; without them the position is computed from the step, as LeRobot does.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.errors import CheckpointError
from mimetic.names import (
    OPTIMIZER_GROUPS_JSON,
    OPTIMIZER_STATE,
    SCALER_STATE_JSON,
    SCHEDULER_STATE_JSON,
    TRAINING_STEP_JSON,
)

logger = logging.getLogger(__name__)

MIMETIC_STATE_JSON = "mimetic_state.json"
ACCUMULATED_GRADIENTS = "accumulated_gradients.safetensors"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands.

    Args:
        step: steps (micro-batches) done.
        batch_size: samples a step.
        num_processes: processes that shared the work.
        samples: samples seen, as counted in the log.
        epoch: epoch of the next batch.
        start_index: samples of that epoch that were already used.
        grad_accum_steps: micro-batches an update.
        micro_step: micro-batches since the last update.
        pieces: parts in which a micro-batch is computed, because it did not fit the memory whole.
        landed_updates: float16 only: updates that changed the weights.
        skipped_updates: float16 only: updates that were left out because a gradient overflowed.
        skipped_in_a_row: how many of the latest ones.
        dataset: fingerprint of the frames that are trained on; compared on resume.
    """

    step: int
    batch_size: int
    num_processes: int = 1
    samples: int
    epoch: int
    start_index: int
    grad_accum_steps: int = 1
    micro_step: int = 0
    pieces: int = 1
    landed_updates: int = 0
    skipped_updates: int = 0
    skipped_in_a_row: int = 0
    dataset: dict[str, Any] = field(default_factory=dict)


def write_json(path: Path, value: Any) -> None:
    """Write JSON the way LeRobot's checkpoints have it: indent 4, no newline at the end."""
    path.write_text(json.dumps(value, indent=4), encoding="utf-8")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing", "an older checkpoint of the run may be complete") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} is not valid JSON ({error})", "an older checkpoint of the run may be complete"
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file onto the CPU.

    Raises:
        CheckpointError: the file is missing, truncated or not safetensors.
    """
    if not path.is_file():
        raise CheckpointError(f"{path} is missing", "an older checkpoint of the run may be complete")
    try:
        tensors: dict[str, Tensor] = load_file(str(path))
    except SafetensorError as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error})", "an older checkpoint of the run may be complete"
        ) from error
    return tensors


def save_progress(folder: Path, progress: Progress) -> None:
    """Write `training_step.json` (the union of LeRobot's versions) and `mimetic_state.json`."""
    write_json(
        folder / TRAINING_STEP_JSON,
        {
            "step": progress.step,
            "num_processes": progress.num_processes,
            "batch_size": progress.batch_size,
            "dp_world_size": progress.num_processes,
            "grad_accum_steps": progress.grad_accum_steps,
            "parallelism": {
                "dp_replicate": progress.num_processes,
                "dp_shard": 1,
                "ring_degree": 1,
                "ulysses_degree": 1,
            },
        },
    )
    write_json(folder / MIMETIC_STATE_JSON, asdict(progress))


def load_progress(folder: Path, *, num_frames: int, batch_size: int) -> Progress:
    """Read where a run stands; LeRobot's checkpoints give the position through their step count.

    Args:
        folder: `training_state` folder.
        num_frames: frames that the sampler draws from now.
        batch_size: samples a step now; used for old files that do not store theirs.

    Raises:
        CheckpointError: a file is missing or broken.
    """
    from mimetic.data.sampler import resume_position

    stored = read_json(folder / TRAINING_STEP_JSON)
    if not isinstance(stored, dict) or not isinstance(stored.get("step"), int):
        raise CheckpointError(f"{folder / TRAINING_STEP_JSON} holds no step number")
    step = stored["step"]
    size = int(stored.get("batch_size", batch_size))
    processes = int(stored.get("dp_world_size") or stored.get("num_processes") or 1)
    own = _own_progress(folder / MIMETIC_STATE_JSON)
    if own is not None and (own.step, own.batch_size) == (step, size):
        return own
    if own is not None:
        logger.warning(
            "%s is of step %d and batch size %d, but the checkpoint was written anew by another program; "
            "the position follows from its step %d",
            folder / MIMETIC_STATE_JSON,
            own.step,
            own.batch_size,
            step,
        )
    epoch, start = resume_position(step, num_frames, size, processes)
    return Progress(
        step=step,
        batch_size=size,
        num_processes=processes,
        samples=step * size * processes,
        epoch=epoch,
        start_index=start,
        grad_accum_steps=int(stored.get("grad_accum_steps", 1)),
    )


def _own_progress(path: Path) -> Progress | None:
    if not path.is_file():
        return None
    stored = read_json(path)
    try:
        progress = Progress(**stored)
    except TypeError as error:
        raise CheckpointError(f"{path} does not hold the position of a run ({error})") from error
    wrong = [name for name, value in stored.items() if name != "dataset" and (type(value) is not int or value < 0)]
    if not isinstance(stored.get("dataset", {}), dict):
        wrong.append("dataset")
    wrong += [] if wrong or progress.pieces else ["pieces"]
    if wrong or progress.micro_step >= progress.grad_accum_steps:
        raise CheckpointError(f"{path} does not hold the position of a run (wrong: {', '.join(wrong) or 'micro_step'})")
    return progress


def save_optimizer(folder: Path, optimizer: Optimizer) -> None:
    """Write groups (JSON) and state tensors; a parameter's number is its position over all groups in order."""
    state = optimizer.state_dict()
    # Which kernel updates is this machine's choice, not the run's; the format has torch's default.
    write_json(folder / OPTIMIZER_GROUPS_JSON, [{**group, "fused": None} for group in state["param_groups"]])
    tensors = {
        f"state/{number}/{name}": value.detach().contiguous().cpu()
        for number, entries in state["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }
    save_file(tensors, str(folder / OPTIMIZER_STATE))


def load_optimizer(folder: Path, optimizer: Optimizer) -> None:
    """Put a stored state into a fresh optimiser with the same parameters.

    Settings that this torch does not know are left out with a note; settings that the file does not know keep their
    defaults.

    Raises:
        CheckpointError: files are missing or broken, or group sizes differ.
    """
    groups = read_json(folder / OPTIMIZER_GROUPS_JSON)
    tensors = read_tensors(folder / OPTIMIZER_STATE)
    fresh = optimizer.state_dict()["param_groups"]
    try:
        stored_sizes = [len(group["params"]) for group in groups]
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            f"{folder / OPTIMIZER_GROUPS_JSON} holds no groups of an optimiser",
            "an older checkpoint of the run may be complete",
        ) from error
    fresh_sizes = [len(group["params"]) for group in fresh]
    if stored_sizes != fresh_sizes:
        raise CheckpointError(
            f"{folder / OPTIMIZER_GROUPS_JSON}: the stored optimiser has groups of {stored_sizes} parameters, "
            f"this policy gives {fresh_sizes}",
            "use the optimiser settings of the run, or start it afresh with `--reset_optimizer=true`",
        )
    merged = []
    for stored, now in zip(groups, fresh, strict=True):
        unknown = sorted(set(stored) - set(now) - {"initial_lr"})
        if unknown:
            logger.info("Optimiser settings that this torch does not know are left out: %s", ", ".join(unknown))
        known = {key: value for key, value in stored.items() if key in now or key == "initial_lr"}
        kept = {"params": now["params"], "fused": now["fused"]}
        merged.append(now | {k: tuple(v) if k == "betas" else v for k, v in known.items()} | kept)
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        found = re.fullmatch(r"state/(\d+)/(\w+)", key)
        if found is None:
            raise CheckpointError(f"{folder / OPTIMIZER_STATE} holds `{key}`, which is no state of a parameter")
        state.setdefault(int(found[1]), {})[found[2]] = value
    _check_state_shapes(folder / OPTIMIZER_STATE, state, optimizer)
    optimizer.load_state_dict({"state": state, "param_groups": merged})


def _check_state_shapes(path: Path, state: dict[int, dict[str, Tensor]], optimizer: Optimizer) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, entries in state.items():
        if number >= len(parameters):
            raise CheckpointError(f"{path}: parameter number {number} of {len(parameters)} does not exist")
        for name, value in entries.items():
            if value.ndim and value.shape != parameters[number].shape:
                raise CheckpointError(
                    f"{path}: `state/{number}/{name}` has shape {tuple(value.shape)}, "
                    f"the parameter has {tuple(parameters[number].shape)}",
                    "use the settings of the run, or start the optimiser afresh with `--reset_optimizer=true`",
                )


def save_scheduler(folder: Path, scheduler: LRScheduler) -> None:
    """Write the schedule's state in LambdaLR's layout."""
    write_json(folder / SCHEDULER_STATE_JSON, _scheduler_dict(scheduler))


_SCHEDULER_KEYS = (
    "base_lrs",
    "last_epoch",
    "_step_count",
    "_is_initial",
    "_get_lr_called_within_step",
    "_last_lr",
    "lr_lambdas",
)


def _scheduler_dict(scheduler: LRScheduler) -> dict[str, Any]:
    state = scheduler.state_dict()
    return {
        key: [float(v) for v in state[key]] if key == "_last_lr" else state[key]
        for key in _SCHEDULER_KEYS
        if key in state
    }


def load_scheduler(folder: Path, scheduler: LRScheduler) -> None:
    """Put a stored state into a fresh schedule; the curve itself comes from the config.

    Raises:
        CheckpointError: the file is missing or broken, or has another number of groups.
    """
    path = folder / SCHEDULER_STATE_JSON
    stored = read_json(path)
    fresh = scheduler.state_dict()
    rates = stored.get("base_lrs", []) if isinstance(stored, dict) else []
    if not isinstance(rates, list) or len(rates) != len(fresh["base_lrs"]):
        raise CheckpointError(
            f"{path} holds the learning rates {rates}, this run has {len(fresh['base_lrs'])}",
            "use the optimiser settings of the run, or start it afresh with `--reset_optimizer=true`",
        )
    scheduler.load_state_dict({key: stored.get(key, value) for key, value in fresh.items()})


def save_scaler(folder: Path, scaler: LossScaler) -> None:
    """Write the loss scale and its settings."""
    write_json(folder / SCALER_STATE_JSON, scaler.state())


def load_scaler(folder: Path, scaler: LossScaler, *, given: Collection[str] = ()) -> None:
    """Go on with the stored loss scale; without a file it starts afresh, with a warning.

    Args:
        folder: `training_state` folder.
        scaler: a fresh one.
        given: settings of the scaler that were given as flags and win over the stored ones.

    Raises:
        CheckpointError: the file is broken.
    """
    path = folder / SCALER_STATE_JSON
    if not path.is_file():
        logger.warning("%s is not there: the loss scale starts afresh at %g", path, scaler.value())
        return
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise CheckpointError(f"{path} does not hold the state of a loss scaler")
    scaler.load(stored, given=given, where=str(path))


def stored_scale(folder: Path) -> float | None:
    """The loss scale of a checkpoint; None when the run had none.

    Raises:
        CheckpointError: the file is broken.
    """
    path = folder / SCALER_STATE_JSON
    if not path.is_file():
        return None
    stored = read_json(path)
    scale = stored.get("scale") if isinstance(stored, dict) else None
    if not isinstance(scale, float | int) or isinstance(scale, bool) or not 0 < scale < math.inf:
        raise CheckpointError(f"{path} does not hold the state of a loss scaler: `scale` = {scale!r}")
    return float(scale)


def save_gradients(folder: Path, module: nn.Module) -> None:
    """Write the gradients of an unfinished accumulation, so that a resumed run continues inside it."""
    gradients = {
        name: parameter.grad.detach().contiguous().cpu()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    save_file(gradients, str(folder / ACCUMULATED_GRADIENTS))


def load_gradients(folder: Path, module: nn.Module) -> None:
    """Put stored gradients of an unfinished accumulation back."""
    gradients = read_tensors(folder / ACCUMULATED_GRADIENTS)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter.device)
