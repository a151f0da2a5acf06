"""`unnormalizer_processor`: what the network predicts, back in the units of the dataset."""

from __future__ import annotations

from typing import ClassVar

from mimetic.processing.normalization import FeatureScaling
from mimetic.processing.normalization_step import NormalizationStep
from mimetic.processing.transition import Transition


class Unnormalizer(NormalizationStep):
    """Undoes the normaliser for observations and the action."""

    registry_name: ClassVar[str] = "unnormalizer_processor"

    def __call__(self, transition: Transition) -> None:
        """Bring every feature that is present back to its units.

        Raises:
            ShapeError: data do not fit the statistics.
            StatsError: the action must be unnormalised and has no statistics.
        """
        self._apply(transition, FeatureScaling.inverse)
