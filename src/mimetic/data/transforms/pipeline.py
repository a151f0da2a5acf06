"""Random augmentation of camera frames: which transforms are applied, and in which order (spec/dataset.md 12)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from mimetic.data.config import ImageTransformConfig, ImageTransformsConfig
from mimetic.data.transforms.catalog import TRANSFORMS
from mimetic.errors import ConfigError


class ImageTransform(Protocol):
    """One augmentation."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., C, H, W), uint8 in 0..255 or float in [0, 1]; same shape and dtype out."""
        ...


class ImageTransforms:
    """Applies a few randomly drawn transforms to a stack of images of one camera, all images alike.

    Args:
        config: which transforms, how likely each is, and how many are applied.

    Raises:
        ConfigError: an unknown transform or wrong parameters; all problems at once.
    """

    def __init__(self, config: ImageTransformsConfig) -> None:
        wrong = {name: one.weight for name, one in config.tfs.items() if not _is_weight(one.weight)}
        if wrong:
            raise ConfigError(f"weights of image transforms are no finite numbers: {wrong!r:.200}", "0 leaves one out")
        named = {name: one for name, one in config.tfs.items() if one.weight > 0} if config.enable else {}
        self._transforms = _build_all(named)
        self._names = list(named)
        self._is_random_order = config.random_order
        self._count = max(0, min(len(self._transforms), config.max_num_transforms))
        weights = torch.tensor([one.weight for one in named.values()], dtype=torch.float32)
        self._weights = weights / weights.sum()

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images.

        Args:
            images: (..., C, H, W) uint8, or float in [0, 1].
            generator: where all random numbers come from.

        Returns:
            Images of the same shape and dtype.
        """
        for place in self._draw(generator):
            images = self._transforms[place](images, generator)
        return images

    @property
    def is_identity(self) -> bool:
        """Whether nothing is ever changed."""
        return self._count == 0

    @property
    def names(self) -> list[str]:
        """Names of the transforms that can be drawn."""
        return list(self._names)

    def _draw(self, generator: torch.Generator) -> list[int]:
        """Places of the transforms to apply, in order."""
        if self.is_identity:
            return []
        drawn: list[int] = torch.multinomial(self._weights, self._count, generator=generator).tolist()
        return drawn if self._is_random_order else sorted(drawn)


def _is_weight(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _build_all(named: Mapping[str, ImageTransformConfig]) -> list[ImageTransform]:
    built: list[ImageTransform] = []
    problems: list[ConfigError] = []
    for name, one in named.items():
        try:
            built.append(_build(name, one.type, one.kwargs))
        except ConfigError as error:
            problems.append(error)
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        raise ConfigError("\n".join(problem.message for problem in problems), "\n".join(hints))
    return built


def _build(name: str, kind: str, parameters: Mapping[str, Any]) -> ImageTransform:
    where = f"`--dataset.image_transforms.tfs.{name}`"
    try:
        transform: ImageTransform = TRANSFORMS.load(kind)(**parameters)
    except ConfigError as error:
        listing = f"available: {', '.join(TRANSFORMS.available())}"
        hint = error.hint if listing in error.hint or kind in TRANSFORMS else f"{error.hint}\n{listing}"
        raise ConfigError(f"{where}: {error.message}", hint) from error
    except TypeError as error:
        raise ConfigError(f"{where}: {kind} does not take {dict(parameters)}: {error}") from error
    return transform
