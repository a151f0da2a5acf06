"""What a training asks of whoever lets its policy play in an environment; `cli` passes it in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from mimetic.policies.base import Policy
from mimetic.processing.pipeline import Pipeline


class EnvironmentEvaluation(Protocol):
    """Lets a policy play, and counts its successes."""

    def check(self, policy: Policy, preprocessor: Pipeline, *, dataset: Path) -> None:
        """Refuse, before the first step, what could not be evaluated.

        Args:
            policy: that will be trained.
            preprocessor: raw batch -> batch on the device.
            dataset: folder of the training data.

        Raises:
            ConfigError: policy and environment do not fit together; everything that is wrong is listed.
            MissingExtra: a package is not installed.
        """

    def __call__(
        self,
        policy: Policy,
        preprocessor: Pipeline,
        postprocessor: Pipeline,
        *,
        folder: Path,
        may_go_on: Callable[[], bool],
    ) -> Mapping[str, Any] | None:
        """Let a policy play; the policy's mode and every global random generator are left as they were.

        Args:
            policy: with the weights to be judged.
            preprocessor: raw batch -> batch on the device.
            postprocessor: normalised action -> action in the units of the environment.
            folder: for films; made here.
            may_go_on: asked after each episode.

        Returns:
            Numbers for the log, with `pc_success`; None when it was told to stop.

        Raises:
            MimeticError: the environment or the policy failed.
        """
