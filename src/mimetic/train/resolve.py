"""From the settings as given to the settings as used.

Every decision is announced once, with its reason (DESIGN.md law 11).
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from mimetic.accelerators.devices import choose_device, describe_device
from mimetic.accelerators.older_flags import older_precision_flags
from mimetic.accelerators.precision import Precision, choose_precision
from mimetic.accelerators.tf32 import apply_tf32
from mimetic.errors import ConfigError
from mimetic.names import CHECKPOINTS_DIR, TRAINING_STATE_DIR
from mimetic.policies.config import PolicyConfig
from mimetic.train.checkpoint import newest_name
from mimetic.train.config import TrainConfig
from mimetic.train.ema import EMA_STATE
from mimetic.train.idle_flags import idle_flags
from mimetic.train.preset import overwritten_flags, with_preset
from mimetic.train.resume import Checkpoint, check_overrides, find_checkpoint
from mimetic.train.run_folder import free_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """Settings as used.

    Args:
        config: complete settings; presets, names and the device are filled in.
        origins: where each value comes from, by dotted flag.
        precision: device and autocast.
        checkpoint: what the run continues from; None for a new run.
    """

    config: TrainConfig
    origins: dict[str, str]
    precision: Precision
    checkpoint: Checkpoint | None

    @property
    def policy(self) -> PolicyConfig:
        """The policy's settings."""
        assert self.config.policy is not None
        return self.config.policy

    @property
    def folder(self) -> Path:
        """Output folder of the run."""
        assert self.config.output_dir is not None
        return self.config.output_dir


def resolve(config: TrainConfig, origins: Mapping[str, str]) -> Resolved:
    """Fill in what the user left open.

    Args:
        config: settings as parsed.
        origins: "default", "flag", "file ..." by dotted flag; values decided here get "preset" or "resolved".

    Raises:
        ConfigError: the output folder exists already, or a flag cannot change on resume.
        DeviceError: the requested device is absent.
        PrecisionError: the device cannot train in the requested precision.
    """
    if config.policy is None:
        raise ConfigError(
            "no policy is chosen", "name one with `--policy.type=act` or load one with `--policy.path=FOLDER`"
        )
    origin = dict(origins)
    device, reason = choose_device(config.policy.device)
    logger.info("device: %s (%s)", device, reason)
    config = _with_older_flags(config, origin, device)
    tf32 = apply_tf32(config.tf32, device)
    precision = choose_precision(
        config.accelerator.mixed_precision, device, grad_scaler=config.accelerator.grad_scaler, tf32=tf32
    )
    if precision.autocast_dtype is None and hasattr(config.policy, "precision"):
        place = ", ".join(part for part in (describe_device(device), tf32) if part)
        logger.info("precision: the policy's own choice, no autocast, on %s", place)
    else:
        logger.info("%s", precision.reason)
    checkpoint = None
    if config.resume:
        checkpoint = find_checkpoint(_resumed_path(config))
        check_overrides(config, origin, checkpoint.settings())
        config = replace(config, checkpoint_path=checkpoint.folder)
        _tell_dropped_average(config, checkpoint)
    for sentence in idle_flags(config, origin, device.type):
        logger.warning("%s", sentence)
    config = _names(config, origin, checkpoint)
    config = _policy_settings(config, origin, device)
    given = overwritten_flags(config, origin)
    if given:
        logger.warning(
            "%s: no effect, the policy's preset sets optimiser and schedule; use --policy.optimizer_lr and the like, "
            "or --use_policy_training_preset=false",
            ", ".join(given),
        )
    config, origin = with_preset(config, origin)
    if config.eval.batch_size == 0:
        resolved = min(max(1, int(0.7 * (os.cpu_count() or 1))), config.eval.n_episodes, 64)
        config = replace(config, eval=replace(config.eval, batch_size=resolved))
        origin["eval.batch_size"] = "resolved"
    return Resolved(config, origin, precision, checkpoint)


def _with_older_flags(config: TrainConfig, origin: dict[str, str], device: torch.device) -> TrainConfig:
    """Settings in which LeRobot's older precision flags are expressed by the newer one."""
    assert config.policy is not None
    name = "accelerator.mixed_precision"
    mixed_precision, note = older_precision_flags(
        config.accelerator.mixed_precision,
        is_given=origin.get(name, "default") != "default",
        use_amp=config.policy.use_amp,
        device=device,
        dtype=getattr(config.policy, "dtype", None),
    )
    if note is not None:
        logger.info("%s", note)
    if mixed_precision == config.accelerator.mixed_precision:
        return config
    origin[name] = "resolved"
    return replace(config, accelerator=replace(config.accelerator, mixed_precision=mixed_precision))


def _tell_dropped_average(config: TrainConfig, checkpoint: Checkpoint) -> None:
    if not config.ema.enable and (checkpoint.folder / TRAINING_STATE_DIR / EMA_STATE).is_file():
        logger.warning(
            "%s holds averaged weights, which this run no longer keeps (--ema.enable=false); turned on again later, "
            "the average starts anew",
            checkpoint.folder,
        )


def _resumed_path(config: TrainConfig) -> Path:
    path = config.checkpoint_path or config.output_dir
    if path is None:
        raise ConfigError(
            "`--resume=true` does not say which run", "`--resume=true --config_path=outputs/train/RUN` continues a run"
        )
    return path


def _names(config: TrainConfig, origin: dict[str, str], checkpoint: Checkpoint | None) -> TrainConfig:
    assert config.policy is not None
    if config.job_name is None:
        config = replace(config, job_name=config.policy.type_name)
        origin["job_name"] = "resolved"
    if checkpoint is not None:
        return _resumed_folder(config, origin, checkpoint)
    if config.output_dir is None:
        now = datetime.datetime.now()
        name = f"{now:%H-%M-%S}_{config.job_name}"
        config = replace(config, output_dir=free_name(Path("outputs") / "train" / f"{now:%Y-%m-%d}" / name))
        origin["output_dir"] = "resolved"
    assert config.output_dir is not None
    if config.output_dir.is_file():
        raise ConfigError(f"`--output_dir={config.output_dir}` is a file", "choose another folder")
    if config.output_dir.exists() and not config.dry_run:
        has_run = newest_name(config.output_dir / CHECKPOINTS_DIR) is not None
        go_on = f", or continue that run: `mimetic train --resume=true --config_path={config.output_dir}`"
        raise ConfigError(
            f"`--output_dir={config.output_dir}` exists already, and a run never writes over another one",
            "choose another folder" + (go_on if has_run else " (that one holds no checkpoint to continue from)"),
        )
    return config


def _resumed_folder(config: TrainConfig, origin: Mapping[str, str], checkpoint: Checkpoint) -> TrainConfig:
    given = config.output_dir
    if given is not None and given.resolve() == checkpoint.run:
        return config  # as it was typed when the run began: what is saved must not tell that the run was stopped
    if given is None or origin.get("output_dir") != "flag":
        return replace(config, output_dir=checkpoint.run)
    if given.exists() and not (given.is_dir() and not any(given.iterdir())):
        raise ConfigError(
            f"`--output_dir={given}` exists already and is not the run that is continued, {checkpoint.run}",
            "choose another folder, or leave `--output_dir` out to go on in the run's own",
        )
    return config


def _policy_settings(config: TrainConfig, origin: dict[str, str], device: torch.device) -> TrainConfig:
    policy = config.policy
    assert policy is not None
    if policy.device != str(device):
        policy = replace(policy, device=str(device))
        origin["policy.device"] = "resolved"
    if policy.repo_id is not None and origin.get("policy.repo_id", "").startswith("checkpoint"):
        logger.info("the base policy's --policy.repo_id=%s is not taken over; name one to push to", policy.repo_id)
        policy = replace(policy, repo_id=None)
        origin["policy.repo_id"] = "resolved"
    if policy.push_to_hub and policy.repo_id is None:
        if origin.get("policy.push_to_hub") == "flag":
            raise ConfigError(
                "`--policy.push_to_hub=true` needs `--policy.repo_id`", "add `--policy.repo_id=USER/NAME`"
            )
        logger.info("nothing will be pushed to the hub: no --policy.repo_id is named")
        policy = replace(policy, push_to_hub=False)
        origin["policy.push_to_hub"] = "resolved"
    elif policy.push_to_hub:
        logger.info("the trained policy will be pushed to %s", policy.repo_id)
    return replace(config, policy=policy)
