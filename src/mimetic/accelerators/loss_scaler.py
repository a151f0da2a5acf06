"""Scaling of the loss in float16, by torch's own scaler (spec/training.md 17.3 and 17.4).

float16 has no numbers between 0 and 6e-8, where many gradients are. The loss is multiplied by a large scale before
the backward pass, and the gradients are divided by it afterwards. When a gradient overflows, the update is left out
and the scale shrinks; after a long time without overflows it grows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mimetic.accelerators.config import GradScalerConfig
from mimetic.errors import CheckpointError

_HYPER = ("growth_factor", "backoff_factor", "growth_interval")


class LossScaler:
    """A loss scale, and whether each update landed; nothing here waits for the device but `value` and `state`.

    (torch's optimisers that are not fused read the overflow flag back themselves, once an update.)

    Args:
        config: start value and factors.
        device: where the loss is.
    """

    def __init__(self, config: GradScalerConfig, device: torch.device) -> None:
        self._device = device
        self._scaler = torch.amp.GradScaler(
            device.type,
            init_scale=config.init_scale,
            growth_factor=config.growth_factor,
            backoff_factor=config.backoff_factor,
            growth_interval=config.growth_interval,
        )

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale."""
        scaled: Tensor = self._scaler.scale(loss)
        return scaled

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimiser's parameters by the scale, in place; once an update."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> Tensor:
        """Update the weights unless a gradient has overflowed, and adapt the scale; after `unscale`.

        Returns:
            Whether the update landed, a bool scalar on the device.
        """
        found = self._scaler._found_inf_per_device(optimizer)
        overflow = sum(flag.to(self._device) for flag in found.values())
        landed = torch.as_tensor(overflow, device=self._device) == 0
        self._scaler.step(optimizer)
        self._scaler.update()
        return landed

    def value(self) -> float:
        """The scale now; reads the device."""
        return float(self._scaler.get_scale())

    def tensor(self) -> Tensor:
        """The scale now, a float scalar on the device."""
        scale = self._scaler._scale
        return torch.tensor(self._scaler.get_scale(), device=self._device) if scale is None else scale

    def state(self) -> dict[str, Any]:
        """The five values of `scaler_state.json`; reads the device."""
        return dict(self._scaler.state_dict())

    def load(self, state: Mapping[str, Any], *, given: Collection[str] = (), where: str) -> None:
        """Go on with a stored scale; factors that the user gave now win over the stored ones.

        Args:
            state: content of a `scaler_state.json`.
            given: names of settings that were given as flags.
            where: name of the file, for messages.

        Raises:
            CheckpointError: a value is missing or cannot be one of a scaler.
        """
        wrong = [name for name in ("scale", *_HYPER, "_growth_tracker") if not _is_sound(name, state.get(name))]
        if wrong:
            listed = ", ".join(f"`{name}` = {state.get(name)!r}" for name in wrong)
            raise CheckpointError(
                f"{where} does not hold the state of a loss scaler: {listed}",
                "an older checkpoint of the run may be sound; without that file the scale starts afresh",
            )
        now = self._scaler.state_dict()
        kept = {name: now[name] for name in _HYPER if name in given}
        self._scaler.load_state_dict({name: state[name] for name in now} | kept)


def _is_sound(name: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    if name in ("growth_interval", "_growth_tracker"):
        return isinstance(value, int) and value >= (1 if name == "growth_interval" else 0)
    return {"growth_factor": value > 1, "backoff_factor": 0 < value < 1}.get(name, value > 0)


def describe_scaler(config: GradScalerConfig) -> str:
    """The settings as a phrase, such as `loss scale 65536, x2 after 2000 updates, x0.5 after an overflow`."""
    return (
        f"loss scale {config.init_scale:g}, x{config.growth_factor:g} after {config.growth_interval} updates, "
        f"x{config.backoff_factor:g} after an overflow"
    )
