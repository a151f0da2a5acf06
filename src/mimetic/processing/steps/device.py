"""`device_processor`: where the tensors of a batch live, and the precision of its floats."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from mimetic import log
from mimetic.accelerators.devices import choose_device
from mimetic.catalog import closest_hint
from mimetic.errors import ConfigError, DeviceError
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition

logger = logging.getLogger(__name__)

FLOAT_DTYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
}


class MoveToDevice(Step):
    """Moves every tensor to a device and, when asked, casts floating tensors.

    A device that a pipeline file names is a hint: a pipeline saved on a GPU opens on a computer without one. A device
    that the caller names must be there.

    Args:
        device: device such as "cpu", "cuda" or "cuda:1"; files hold the type without the index.
        float_dtype: name of a floating dtype, or None to keep each tensor's own.

    Raises:
        DeviceError: the device is unknown or not there.
        ConfigError: no such floating dtype.
    """

    registry_name: ClassVar[str] = "device_processor"
    stored: ClassVar[tuple[str, ...]] = ("device", "float_dtype")

    def __init__(self, device: str = "cpu", float_dtype: str | None = None) -> None:
        if float_dtype is not None and float_dtype not in FLOAT_DTYPES:
            raise ConfigError(
                f"`float_dtype={float_dtype}` is no floating dtype",
                closest_hint(str(float_dtype), FLOAT_DTYPES) or f"one of {', '.join(FLOAT_DTYPES)}",
            )
        self.device, _ = choose_device(str(device))
        self.float_dtype = float_dtype
        self._dtype = FLOAT_DTYPES[float_dtype] if float_dtype is not None else None
        # A pinned host tensor travels while the processor goes on; elsewhere the flag has no effect.
        self._non_blocking = self.device.type == "cuda"

    @classmethod
    def build(cls, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """Make the step; a stored device that is not there is replaced, with one note.

        Raises:
            ConfigError: an argument that this step does not have.
            DeviceError: the override names a device that is not there.
        """
        config = dict(config)
        if "device" not in overrides and "device" in config:
            try:
                choose_device(str(config["device"]))
            except DeviceError:
                here, reason = choose_device(None)
                log.once(
                    logger,
                    logging.INFO,
                    "the checkpoint was saved on `%s`, which is not here; its tensors go to `%s` (%s)",
                    config["device"],
                    here,
                    reason,
                )
                config["device"] = str(here)
        return super().build(config, overrides)

    def __call__(self, transition: Transition) -> None:
        """Move (and cast) all tensors of action, reward, done, truncated, observation and complementary data."""
        if transition.action is not None:
            transition.action = self._move(transition.action)
        for name in ("reward", "done", "truncated"):
            value = getattr(transition, name)
            if isinstance(value, torch.Tensor):
                setattr(transition, name, self._move(value))
        for entries in (transition.observation, transition.complementary):
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    entries[key] = self._move(value)

    def _move(self, tensor: Tensor) -> Tensor:
        if tensor.device != self.device:
            if self.device.type == "mps" and tensor.dtype == torch.float64:  # MPS has no float64
                tensor = tensor.to(torch.float32)
            tensor = tensor.to(self.device, non_blocking=self._non_blocking)
        if self._dtype is not None and tensor.dtype != self._dtype and tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        return tensor

    def config(self) -> dict[str, Any]:
        """`device` (type without index) and `float_dtype`."""
        return {"device": self.device.type, "float_dtype": self.float_dtype}
