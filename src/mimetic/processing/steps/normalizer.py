"""`normalizer_processor`: features to the range that the network was trained on."""

from __future__ import annotations

from typing import ClassVar

from mimetic.processing.normalization import FeatureScaling
from mimetic.processing.normalization_step import NormalizationStep
from mimetic.processing.transition import Transition


class Normalizer(NormalizationStep):
    """Normalises observations and the action; uint8 images become float32 in [0, 1] first."""

    registry_name: ClassVar[str] = "normalizer_processor"

    def __call__(self, transition: Transition) -> None:
        """Normalise every feature that is present.

        Raises:
            ShapeError: data do not fit the statistics.
            StatsError: the action must be normalised and has no statistics.
        """
        self._apply(transition, FeatureScaling.forward)
