"""An exponential moving average of the trained weights, kept beside them (spec/training.md 10).

After update number u: t = max(0, u - update_after_step - 1); d = 0 where t = 0, else
1 - (1 + t / inv_gamma) ^ -power between `min_decay` and `max_decay`; shadow <- shadow - (1 - d) * (shadow - weight).
Subtraction, product and subtraction are rounded one by one: torch's lerp would be faster and end in other bits than
LeRobot's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_AT_ONCE = 2**22
"""Numbers whose differences are in memory at a time: 16 MB."""


@dataclass(frozen=True, kw_only=True)
class EmaDecay:
    """Share of the old average that stays at an update.

    Args:
        max_decay: largest share, in [0, 1].
        min_decay: smallest share after the first updates, at most `max_decay`; equal to it: a constant share.
        update_after_step: updates before the warm-up, during which the average copies the weights.
        inv_gamma: updates after which the warm-up is half way for power 1; above 0.
        power: how fast the share rises; above 0.
    """

    max_decay: float = 0.9999
    min_decay: float = 0.0
    update_after_step: int = 0
    inv_gamma: float = 1.0
    power: float = 0.75

    def at(self, update: int) -> float:
        """The share at an update, counted from 1."""
        warm = update - self.update_after_step - 1
        if warm <= 0:
            return 0.0
        decay: float = 1 - (1 + warm / self.inv_gamma) ** -self.power
        return max(self.min_decay, min(self.max_decay, decay))

    def on_device(self, update: Tensor) -> Tensor:
        """The same for a number of updates that only the device knows; nothing is read back.

        Args:
            update: int64 scalar, counted from 1.

        Returns:
            A scalar on the same device, float64 where the device has it.
        """
        dtype = torch.float32 if update.device.type == "mps" else torch.float64
        warm = (update - self.update_after_step - 1).clamp(min=0).to(dtype)
        decay = (1 - (1 + warm / self.inv_gamma).pow(-self.power)).clamp(self.min_decay, self.max_decay)
        return torch.where(warm > 0, decay, torch.zeros_like(decay))


class Ema:
    """The average of a module's weights.

    Only trained parameters are averaged, in float32 or wider. The shadow of a frozen one is the parameter itself, so it
    costs no memory.

    Args:
        parameters: name -> parameter, on their device; `requires_grad` says which are trained.
        decay: how much of the old average stays.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: EmaDecay) -> None:
        self.schedule = decay
        self.averaged: dict[str, Tensor] = {
            name: parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for name, parameter in parameters.items()
            if parameter.requires_grad
        }
        """The shadows that have memory of their own, by name."""
        self._parameters = dict(parameters)
        self._live = [parameters[name] for name in self.averaged]
        self._pairs = list(_together(list(self.averaged.values()), self._live))
        self._updates: int | Tensor = 0
        self._is_swapped = False

    @property
    def shadow(self) -> dict[str, Tensor]:
        """Name -> averaged weight, for all parameters."""
        return {name: self.averaged.get(name, parameter) for name, parameter in self._parameters.items()}

    @property
    def updates(self) -> int:
        """Updates that landed; reads the device once `update` was told so by the device."""
        return int(self._updates)

    @property
    def decay(self) -> float:
        """The share that stayed at the last update; 0 before the first. Reads the device as `updates` does."""
        return self.schedule.at(self.updates)

    @torch.no_grad()
    def update(self, landed: Tensor | None = None) -> None:
        """Take in the weights after an optimiser update.

        Args:
            landed: scalar on the weights' device, true or not zero when the update was not skipped; a skipped one
                changes neither the average nor its count. None: it landed. From the first scalar on the count stays
                on the device, and nothing here waits for it.

        Raises:
            RuntimeError: the average is in the module (`swapped`), so there are no weights to take in.
        """
        if self._is_swapped:
            raise RuntimeError("the average cannot be updated while it stands in for the weights")
        share: float | Tensor
        if landed is None and isinstance(self._updates, int):
            self._updates += 1
            share = 1 - self.schedule.at(self._updates)
        else:
            share = self._count_on_device(landed)
        for shadows, live in self._pairs:
            wide = [new.to(old.dtype) for old, new in zip(shadows, live, strict=True)]
            difference = torch._foreach_sub(shadows, wide)
            torch._foreach_mul_(difference, share)
            torch._foreach_sub_(shadows, difference)

    def _count_on_device(self, landed: Tensor | None) -> Tensor:
        """Count an update if it landed; returns the share of the new weights, 0 for a skipped update."""
        if isinstance(self._updates, int):
            device = self._live[0].device if landed is None else landed.device
            self._updates = torch.full((), self._updates, dtype=torch.int64, device=device)
        share = 1 - self.schedule.on_device(self._updates + 1)
        if landed is None:
            self._updates += 1
        else:
            counts = landed.detach().reshape(()) != 0
            share = share * counts
            self._updates += counts
        return share.to(torch.float32)

    def restore(self, averaged: Mapping[str, Tensor], updates: int) -> None:
        """Go on from a stored average.

        Args:
            averaged: the tensors of `averaged` by name, on any device.
            updates: updates that went into them.
        """
        with torch.no_grad():
            for name, shadow in self.averaged.items():
                shadow.copy_(averaged[name])
        self._updates = updates

    @contextmanager
    def swapped(self, module: nn.Module) -> Iterator[None]:
        """While active, the module has the averaged weights; afterwards, also after an error, its own, bit for bit.

        The parameters stay the same objects at the same addresses, so optimisers and captured graphs do not notice.
        Takes the memory of the trained weights once more meanwhile. Buffers are not averaged.

        Args:
            module: the one that the parameters belong to, or one that contains it.

        Raises:
            ValueError: the module has other parameters.
            RuntimeError: it is active already.
        """
        if self._is_swapped:
            raise RuntimeError("the average stands in for the weights already")
        if not {id(parameter) for parameter in self._live} <= {id(parameter) for parameter in module.parameters()}:
            raise ValueError("the average is of another module's parameters")
        own = [parameter.detach().clone() for parameter in self._live]
        self._is_swapped = True
        try:
            _overwrite(module, self._live, list(self.averaged.values()))
            yield
        finally:
            _overwrite(module, self._live, own)
            self._is_swapped = False


@torch.no_grad()
def _overwrite(module: nn.Module, parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Copy values into parameters, and make layers drop what they derived from the former ones."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
    # Layers drop it when they enter training (see `policies/bricks/master_weights.py`); the modes stay as they were.
    modes = [(part, part.training) for part in module.modules()]
    module.train()
    for part, mode in modes:
        part.training = mode


def _together(shadows: Sequence[Tensor], live: Sequence[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """The two lists in pieces of one dtype and about `_AT_ONCE` numbers, in order."""
    start = count = 0
    for stop, shadow in enumerate(shadows):
        if stop > start and (count + shadow.numel() > _AT_ONCE or shadow.dtype != shadows[start].dtype):
            yield list(shadows[start:stop]), list(live[start:stop])
            start, count = stop, 0
        count += shadow.numel()
    if shadows:
        yield list(shadows[start:]), list(live[start:])
