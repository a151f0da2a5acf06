"""The arithmetic of normalisation (spec/policies.md 4), equal bit for bit to the formulas written out, in fewer passes.

    MEAN_STD              y = (x - mean) / (std + eps)                  x = y * std + mean
    MIN_MAX, QUANTILES    y = 2 * (x - low) / (high - low) - 1          x = (y + 1) / 2 * (high - low) + low

Dividing by half the range instead of doubling first is exact, for a factor of two only moves the exponent.

Near-constant dimensions. Where std (or high - low) is below `FLOOR * max(1, |value|)`, a formula turns the jitter of a
locked joint into values of 1e5. Such a dimension is treated as constant: y is what the formula gives for the constant
itself (0 for MEAN_STD, -1 for ranges) whatever x is, and the inverse gives the constant (mean, or low). Dimensions
above the floor are untouched. `exact=True` leaves the formulas as they are, with `high - low := eps` where it is 0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import Tensor

from mimetic import log
from mimetic.errors import ShapeError
from mimetic.features import FeatureType, NormalizationMode
from mimetic.processing.stats import STATS_OF_MODE

logger = logging.getLogger(__name__)

FLOOR = 1e-6
"""A spread below this share of max(1, |value|) is measurement noise of float32 data, not motion."""


class FeatureScaling:
    """Normalisation of one feature, both ways.

    Args:
        key: feature name, for messages.
        kind: role of the feature; integer images are divided by 255 first.
        mode: how it is normalised.
        stats: the feature's statistics, float32, shapes that broadcast over leading dims of the data.
        eps: guard of the divisions.
        exact: reproduce the plain formulas in near-constant dimensions.
    """

    def __init__(
        self,
        key: str,
        kind: FeatureType,
        mode: NormalizationMode,
        stats: Mapping[str, Tensor],
        *,
        eps: float,
        exact: bool,
    ) -> None:
        self.key = key
        self.kind = kind
        self.mode = mode
        self._eps = eps
        self._exact = exact
        self._constants: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}
        if mode is not NormalizationMode.IDENTITY:
            self._low, self._high = (stats[name] for name in STATS_OF_MODE[mode])
            constant = self.constant_dims()
            if constant and not exact:
                log.once(
                    logger,
                    logging.WARNING,
                    "`%s` hardly varies in dimension %s (its spread is below %g): it is treated as constant",
                    key,
                    ", ".join(map(str, constant)),
                    FLOOR,
                )

    def constant_dims(self) -> list[int]:
        """Indices (of the flattened statistic) of near-constant dimensions."""
        if self.mode is NormalizationMode.IDENTITY:
            return []
        return [int(i) for i in torch.nonzero(self._is_constant().flatten()).flatten()]

    def _is_constant(self) -> Tensor:
        if self.mode is NormalizationMode.MEAN_STD:
            return self._high < FLOOR * self._low.abs().clamp(min=1.0)
        size = torch.maximum(self._low.abs(), self._high.abs())
        return (self._high - self._low) < FLOOR * size.clamp(min=1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise.

        Args:
            x: (..., *shape), any dtype; integer images in 0..255.

        Returns:
            Same shape; float64 stays, float16 and bfloat16 are computed in float32 and cast back, integers become
            float32.

        Raises:
            ShapeError: the data do not fit the statistics.
        """
        is_image = self.kind is FeatureType.VISUAL and x.dtype == torch.uint8
        if self.mode is NormalizationMode.IDENTITY:
            return x.to(torch.float32).div_(255.0) if is_image else x
        wanted = x.dtype
        if not x.is_floating_point():
            wanted = torch.float32
            x = x.to(torch.float32)  # a fresh tensor, so the rest may work in place
            if is_image:
                x.div_(255.0)
            offset, divisor, _ = self._prepared(x)
            x.sub_(offset).div_(divisor)
        else:
            x = self._computing(x)
            offset, divisor, _ = self._prepared(x)
            x = (x - offset).div_(divisor)
        if self.mode is not NormalizationMode.MEAN_STD:
            x.sub_(1.0)
        return x if x.dtype == wanted else x.to(wanted)

    def inverse(self, x: Tensor) -> Tensor:
        """Undo `forward`; same shapes and dtypes.

        Raises:
            ShapeError: the data do not fit the statistics.
        """
        if self.mode is NormalizationMode.IDENTITY:
            return x
        wanted = x.dtype if x.is_floating_point() else torch.float32
        x = self._computing(x)
        offset, _, factor = self._prepared(x)
        if self.mode is NormalizationMode.MEAN_STD:
            x = (x * factor).add_(offset)
        else:
            x = (x + 1.0).mul_(factor).add_(offset)
        return x if x.dtype == wanted else x.to(wanted)

    @staticmethod
    def _computing(x: Tensor) -> Tensor:
        return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)

    def _prepared(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(offset, divisor, factor) on the device and in the dtype of `x`."""
        place = (x.device, x.dtype)
        constants = self._constants.get(place)
        if constants is None:
            constants = self._constants[place] = self._constants_for(x.device, x.dtype)
        self._check(x, constants[0])
        return constants

    def _check(self, x: Tensor, stat: Tensor) -> None:
        """Refuse data that would broadcast against the statistics in a way nobody meant."""
        dims = stat.dim()
        if dims and x.dim() >= dims:
            if dims == 1:
                # A feature of one element may arrive without its own dim, (B,).
                if x.shape[-1] == stat.shape[0] or (stat.shape[0] == 1 and x.dim() == 1):
                    return
            elif all(s in (1, d) for s, d in zip(stat.shape, x.shape[-dims:], strict=True)):
                return
        elif not dims:
            return
        raise ShapeError(
            f"`{self.key}` arrives with shape {tuple(x.shape)}, and its statistics have shape {tuple(stat.shape)}",
            "the data and the checkpoint describe different robots or cameras",
        )

    def _constants_for(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        low, high = self._low.to(dtype), self._high.to(dtype)
        constant = self._is_constant()
        has_constant = bool(constant.any()) and not self._exact
        if self.mode is NormalizationMode.MEAN_STD:
            divisor, factor = high + self._eps, high
        else:
            spread = high - low
            spread = torch.where(spread == 0, torch.full_like(spread, self._eps), spread)
            divisor = factor = spread / 2
        if has_constant:
            # x / inf = 0 for every finite x, and y * 0 + offset is the constant: no extra pass over the data.
            divisor = torch.where(constant, torch.full_like(divisor, torch.inf), divisor)
            factor = torch.where(constant, torch.zeros_like(factor), factor)
        return low.to(device), divisor.to(device), factor.to(device)
