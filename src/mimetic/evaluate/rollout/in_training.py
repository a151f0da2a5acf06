"""Evaluation in an environment while a policy is trained (`--env_eval_freq`, spec/training.md 14)."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mimetic.evaluate.loading import evaluation_precision
from mimetic.evaluate.rollout.adapters import open_tasks
from mimetic.evaluate.rollout.documents import number
from mimetic.evaluate.rollout.fit import read_dataset, require_fit
from mimetic.evaluate.rollout.intervals import wilson
from mimetic.evaluate.rollout.passes import POLICY
from mimetic.evaluate.rollout.play import Episode, Plan, play
from mimetic.evaluate.rollout.player import Player, evaluating
from mimetic.evaluate.rollout.summary import latency, rates_by, task_title
from mimetic.policies.base import Policy
from mimetic.processing.pipeline import Pipeline
from mimetic.train.bar import progress_bar
from mimetic.train.config import TrainConfig

logger = logging.getLogger(__name__)
_FILMS = 4
"""LeRobot's number of films in an evaluation during training."""


class InTraining:
    """Plays the same episodes at every call, so that evaluations of a run compare; see `EnvironmentEvaluation`.

    Args:
        config: settings of the run, with `env`.

    Raises:
        MissingExtra: the environment needs a package that is not installed.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.tasks = open_tasks(config.env)

    def check(self, policy: Policy, preprocessor: Pipeline, *, dataset: Path) -> None:
        """Refuse what could not be evaluated; see `EnvironmentEvaluation.check`."""
        require_fit(policy.config, preprocessor, self.tasks[0], read_dataset(dataset))

    def __call__(
        self,
        policy: Policy,
        preprocessor: Pipeline,
        postprocessor: Pipeline,
        *,
        folder: Path,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Mapping[str, Any] | None:
        """Let the policy play; see `EnvironmentEvaluation`."""
        started = time.monotonic()
        # As `mimetic eval` would play the checkpoint, whatever precision the training has.
        precision = evaluation_precision(policy.config, policy.device)
        player = Player(policy, preprocessor, postprocessor, precision=precision)
        count = self.config.eval.n_episodes
        found: list[Episode] = []
        with (
            untouched_random_numbers(),
            evaluating(policy),
            progress_bar("Evaluating", "episode", count * len(self.tasks)) as advance,
        ):
            for task in self.tasks:
                with contextlib.closing(play(task, player, self._plan(folder), range(count))) as episodes:
                    for episode in episodes:
                        found.append(episode)
                        advance(len(found))
                        if not may_go_on():
                            return None
        return self._record(found, policy, time.monotonic() - started)

    def _plan(self, folder: Path) -> Plan:
        cores = os.cpu_count() or 1
        places = self.config.eval.places(cores)
        return Plan(
            run=POLICY,
            seed=self.config.seed or 0,
            places=places,
            processes=min(places, cores) if self.config.eval.use_async_envs and places > 1 else 0,
            folder=folder,
            videos=_FILMS,
            video_folder=".",
            strips=False,
        )

    def _record(self, found: list[Episode], policy: Policy, seconds: float) -> dict[str, Any]:
        successes = sum(one.success for one in found)
        low, high = wilson(successes, len(found))
        speed = latency(found, self.tasks[0].fps, int(getattr(policy.config, "n_action_steps", 1)))
        return {
            "pc_success": 100 * successes / len(found),
            "pc_success_low": 100 * low,
            "pc_success_high": 100 * high,
            "avg_sum_reward": float(np.mean([one.sum_reward for one in found])),
            "avg_max_reward": float(np.mean([one.max_reward for one in found])),
            "n_episodes": len(found),
            "eval_s": round(seconds, 3),
            "eval_ep_s": round(seconds / len(found), 4),
            "prediction_ms": None if speed is None else number(round(speed.median_ms, 3)),
            "pc_success_per_task": {one.title: 100 * one.share for one in rates_by(found, task_title)},
        }


@contextmanager
def untouched_random_numbers() -> Iterator[None]:
    """Leave every global random generator as it was, so that what is trained afterwards does not change."""
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - what a training saves
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            if mps is not None:
                torch.mps.set_rng_state(mps)
