"""Loads the policy of an evaluation: which device, and which settings differ from the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.devices import choose_device
from mimetic.accelerators.older_flags import OF_AMP
from mimetic.accelerators.precision import Precision, choose_precision
from mimetic.config.schema import settings_of
from mimetic.errors import DeviceError
from mimetic.policies.checkpoint import read_config
from mimetic.policies.config import PolicyConfig


def evaluation_device(policy: PolicyConfig, origins: Mapping[str, str]) -> tuple[torch.device, str]:
    """The device to run on, and why; one that only the checkpoint names is a hint.

    Raises:
        DeviceError: the user asked for a device that is not there.
    """
    is_asked = origins.get("policy.device", "flag") == "flag"
    try:
        device, reason = choose_device(policy.device)
    except DeviceError:
        if is_asked:
            raise
        device, reason = choose_device(None)
        return device, f"the checkpoint's {policy.device} is not there; {reason}"
    return device, reason if is_asked or policy.device is None else "the checkpoint's device"


def evaluation_precision(policy: PolicyConfig, device: torch.device) -> Precision:
    """The precision to predict in: `--policy.use_amp` means torch's autocast, as in LeRobot's evaluation.

    A policy that was trained with `use_amp` says so in its checkpoint. `--accelerator.mixed_precision` is a setting of
    training alone: without `use_amp`, weights are evaluated in the dtype that they have.

    Raises:
        PrecisionError: the device knows no such autocast.
    """
    wanted = OF_AMP.get(device.type, "no") if policy.use_amp else "no"
    chosen = choose_precision(wanted, device, grad_scaler=GradScalerConfig(enabled=False))
    if chosen.autocast_dtype is None:
        own = "the policy's own choice" if hasattr(policy, "precision") else "that of the weights"
        note = f"; --policy.use_amp=true has no effect on {device.type}" if policy.use_amp else ""
        return replace(chosen, reason=f"precision: {own}, no autocast, on {device}{note}")
    name = str(chosen.autocast_dtype).removeprefix("torch.")
    return replace(chosen, reason=f"precision: {name} autocast (--policy.use_amp=true), on {device}")


def changed_settings(policy: PolicyConfig, folder: Path) -> dict[str, object]:
    """Settings that differ from those in the checkpoint, such as a smaller `n_action_steps`."""
    stored = read_config(folder)
    if type(stored) is not type(policy):
        return {}
    skipped = {"device", "pretrained_path", "pretrained_revision"}
    cls: type = type(stored)
    names = [setting.key for setting in settings_of(cls) if setting.key not in skipped]
    return {name: getattr(policy, name) for name in names if getattr(policy, name) != getattr(stored, name)}
