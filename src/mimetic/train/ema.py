"""Averaged weights of a run: made from the settings, saved beside each checkpoint, resumed (spec/training.md 10, 15.1).

`training_state/ema_state.safetensors` holds the average of the trained parameters by name, `ema_state.json` its count
and settings under LeRobot's names. `pretrained_model_ema/` is a policy folder like any other. The `ema_state.pt` of a
newer LeRobot is a pickle; it is read by torch's restricted reader only.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from mimetic.errors import CheckpointError, KeyMismatch
from mimetic.names import MIMETIC_JSON, PRETRAINED_DIR, TRAIN_CONFIG_JSON, TRAINING_STATE_DIR
from mimetic.optim.ema import Ema, EmaDecay
from mimetic.policies.base import Policy
from mimetic.policies.checkpoint import save_pretrained
from mimetic.policies.tensors import open_weights, save_weights
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.store import read_json, write_file
from mimetic.train.ema_config import EmaConfig

logger = logging.getLogger(__name__)

EMA_DIR = "pretrained_model_ema"
EMA_STATE = "ema_state.safetensors"
EMA_STATE_JSON = "ema_state.json"
EMA_STATE_PT = "ema_state.pt"

_WITHOUT = "`--ema.enable=false` resumes without the average"
_OLDER = f"an older checkpoint of the run may be complete; {_WITHOUT}"
_SAME_SETTINGS = f"resume with the settings of the run; {_WITHOUT}"
_SHOWN = 5
_COUNT = "optimization_step"
_WIDEST = 8
_PICKLE_BYTES = 10_000_000


def make_ema(config: EmaConfig, policy: Policy) -> Ema | None:
    """The average of a policy's trained weights, starting from what they are now.

    Args:
        config: settings.
        policy: on its device, with its weights loaded and its adapter attached.

    Returns:
        None when the settings do not enable it.
    """
    if not config.enable:
        return None
    highest, lowest = (config.max_decay, config.min_decay) if config.decay is None else (config.decay, config.decay)
    decay = EmaDecay(
        max_decay=highest,
        min_decay=lowest,
        update_after_step=config.update_after_step,
        inv_gamma=config.inv_gamma,
        power=config.power,
    )
    ema = Ema(dict(policy.named_parameters()), decay)
    size = sum(tensor.numel() * tensor.element_size() for tensor in ema.averaged.values())
    logger.info(
        "averaged weights: %d tensors, %.1f MB; %s%s",
        len(ema.averaged),
        size / 1e6,
        f"decay {highest:g}"
        if config.decay is not None
        else f"decay 1 - (1 + updates / {config.inv_gamma:g}) ^ -{config.power:g} from {lowest:g} to {highest:g}",
        f", after {config.update_after_step} updates" if config.update_after_step else "",
    )
    return ema


def ema_values(ema: Ema) -> dict[str, float]:
    """What the log tells of the average; reads the device when skipped updates are known only there."""
    return {"ema/decay": ema.decay, "ema/step": ema.updates}


def save_ema(step_folder: Path, ema: Ema, policy: Policy, preprocessor: Pipeline, postprocessor: Pipeline) -> None:
    """Write the average's state and the averaged policy into a checkpoint.

    Args:
        step_folder: the checkpoint, with its `training_state` folder and its policy. The run's settings beside that
            policy are copied, because evaluation reads there which episodes were trained on.
        ema: the average.
        policy: whose weights it averages; it has its own again afterwards.
        preprocessor: pipeline before the policy.
        postprocessor: pipeline after the policy.

    Raises:
        OSError: the disk refused.
    """
    state = step_folder / TRAINING_STATE_DIR
    save_weights(ema.averaged, state / EMA_STATE)
    write_file(state / EMA_STATE_JSON, json.dumps(_described(ema), indent=4).encode())
    with ema.swapped(policy):
        save_pretrained(policy, step_folder / EMA_DIR, preprocessor, postprocessor)
    for name in (TRAIN_CONFIG_JSON, MIMETIC_JSON):
        settings = step_folder / PRETRAINED_DIR / name
        if settings.is_file():
            write_file(step_folder / EMA_DIR / name, settings.read_bytes())


def load_ema(state_folder: Path, ema: Ema, policy: Policy) -> None:
    """Go on from the stored average of a checkpoint; where there is none, a warning, and it starts anew.

    The settings are those of the run; where they differ from the stored ones, the log says so.

    Args:
        state_folder: `training_state` folder.
        ema: of this policy, fresh.
        policy: with the weights of the checkpoint.

    Raises:
        CheckpointError: a file is missing or damaged, or holds more than tensors and numbers.
        KeyMismatch: the stored average is of other weights than those that are trained.
    """
    own = [state_folder / EMA_STATE, state_folder / EMA_STATE_JSON]
    other = state_folder / EMA_STATE_PT
    if other.is_file():
        if any(path.is_file() for path in own):  # mimetic writes no such file, so it is the newer one
            logger.warning("%s was written by another program after %s; it is taken", other, EMA_STATE)
        settings, averaged = _read_pickle(other, ema, policy)
        source = other
    elif any(path.is_file() for path in own):
        _require_there(own)
        settings, averaged = read_json(own[1]), _read_tensors(own[0], ema)
        source = own[1]
    else:
        logger.warning("%s holds no averaged weights; the average starts again from the current weights", state_folder)
        return
    updates = settings.get(_COUNT)
    if type(updates) is not int or updates < 0:
        raise CheckpointError(f"`{source}`: `{_COUNT}` is {updates!r:.60}, not a number of updates", _OLDER)
    _tell_changes(settings, ema)
    ema.restore(averaged, updates)
    logger.info("averaged weights: going on after %d updates", updates)


def _described(ema: Ema) -> dict[str, Any]:
    schedule = ema.schedule
    return {
        "decay": schedule.max_decay,
        "min_decay": schedule.min_decay,
        _COUNT: ema.updates,
        "update_after_step": schedule.update_after_step,
        "use_ema_warmup": True,
        "inv_gamma": schedule.inv_gamma,
        "power": schedule.power,
    }


def _tell_changes(stored: Mapping[str, Any], ema: Ema) -> None:
    now = _described(ema)
    changed = [
        f"{name} {stored[name]} -> {value}"
        for name, value in now.items()
        if name != _COUNT and name in stored and stored[name] != value
    ]
    if changed:
        logger.info("averaged weights: settings change from the next update on: %s", ", ".join(changed))


def _require_there(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.is_file():
            there = next(other for other in paths if other != path)
            raise CheckpointError(
                f"`{path}` is missing, and {there.name} is there",
                _OLDER,
            )


def _read_tensors(path: Path, ema: Ema) -> dict[str, Tensor]:
    """The stored average by name; its names and shapes are compared before any of it is read."""
    file = open_weights(path)
    _require_fit(path, {name: info.shape for name, info in file.tensors.items()}, ema.averaged)
    file.require_floats(ema.averaged)
    averaged = {}
    with file.reading() as read:
        for name in ema.averaged:
            averaged[name] = read(name)
            file.require_finite(name, averaged[name])
    return averaged


def _read_pickle(path: Path, ema: Ema, policy: Policy) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and averages from a newer LeRobot's file, which lists all parameters in the policy's order."""
    parameters = dict(policy.named_parameters())
    _require_plain_archive(path, sum(p.numel() for p in parameters.values()) * _WIDEST + _PICKLE_BYTES)
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(
            f"`{path}` names Python objects besides tensors and numbers; mimetic runs no code that a checkpoint names",
            f"do not use this checkpoint unless you know where it comes from; {_WITHOUT}",
        ) from error
    # Whatever a damaged pickle makes the reader stumble over.
    except (RuntimeError, EOFError, OSError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    shadows = stored.get("shadow_params") if isinstance(stored, dict) else None
    if not isinstance(shadows, list) or not all(_is_plain(item) for item in shadows):
        raise _damaged(path, "it holds no list `shadow_params` of floating-point tensors")
    if len(shadows) != len(parameters):
        raise KeyMismatch(
            f"`{path}` holds the average of {len(shadows)} parameters, and the policy has {len(parameters)}",
            _SAME_SETTINGS,
        )
    named = dict(zip(parameters, shadows, strict=True))
    _require_fit(path, {name: tuple(shadow.shape) for name, shadow in named.items()}, parameters)
    averaged = {name: named[name] for name in ema.averaged}
    for name, shadow in averaged.items():
        if not shadow.isfinite().all():
            raise _damaged(path, f"the average of `{name}` holds NaN or infinity")
    return {name: value for name, value in stored.items() if name != "shadow_params"}, averaged


def _require_plain_archive(path: Path, at_most: int) -> None:
    """Refuse what torch's restricted reader is not meant for: its older formats (which torch before 2.6 reads without
    restriction), and archives that unfold to more than a policy's weights.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
        if not is_archive:
            raise _damaged(path, "it is no archive as torch writes it")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _damaged(path, f"it is truncated or no archive as torch writes it ({error})") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise _damaged(path, "its parts are compressed, which torch does not do")
    size = sum(entry.file_size for entry in entries)
    pickled = sum(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
    if size > at_most or pickled > _PICKLE_BYTES:
        raise _damaged(path, f"it unfolds to {size / 1e6:,.0f} MB, more than the average of this policy can have")


def _is_plain(item: object) -> bool:
    return type(item) is Tensor and item.layout == torch.strided and item.is_floating_point() and not item.is_meta


def _require_fit(path: Path, stored: Mapping[str, tuple[int, ...]], wanted: Mapping[str, Tensor]) -> None:
    missing = [f"`{name}`" for name in wanted if name not in stored]
    unexpected = [f"`{name}`" for name in stored if name not in wanted]
    shapes = [
        f"`{name}` is {stored[name]} and should be {tuple(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in stored and stored[name] != tuple(tensor.shape)
    ]
    parts = [("missing", missing), ("unexpected", unexpected), ("other shape", shapes)]
    found = [f"{kind} {len(items)}: {_listed(items)}" for kind, items in parts if items]
    if found:
        raise KeyMismatch(
            f"`{path}` is the average of other weights than those that are trained; {'; '.join(found)}", _SAME_SETTINGS
        )


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else "")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"`{path}` cannot be used: {why}", _OLDER)
