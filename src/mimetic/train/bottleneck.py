"""Which side of a run waits for the other, said once with the figures of this run, and what would help."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from mimetic.data.frames.plan import FramePlan, size_text
from mimetic.train.config import TrainConfig

logger = logging.getLogger(__name__)

_LIMIT = 1 / 3
"""Share of a step's time in which it waits for data, from which the data limit the run."""
_WINDOW = 2  # the first one holds what happens only once


class Bottleneck:
    """Watches the records of the log windows.

    Args:
        config: settings of the run.
        plan: what became of its frames.
    """

    def __init__(self, config: TrainConfig, plan: FramePlan) -> None:
        self._config = config
        self._plan = plan
        self._windows = 0

    def watch(self, record: Mapping[str, float]) -> None:
        """Take the record of a window; the second one is judged."""
        self._windows += 1
        if self._windows == _WINDOW:
            logger.info("%s", self.verdict(record))

    def verdict(self, record: Mapping[str, float]) -> str:
        """Which side limits a window, and the remedy, as one sentence.

        Args:
            record: `dataloading_s` and `step_s`, seconds a step.
        """
        waited, step = record["dataloading_s"], record["step_s"]
        share = f"{waited / step if step > 0 else 0:.0%} of the time ({waited:.3f} of {step:.3f} s a step)"
        if waited <= step * _LIMIT:
            return f"computing limits this run, not its data: the step waits for data {share}"
        side = "decoding frames" if self._plan.jobs and self._plan.mode == "off" else "reading data"
        return f"{side} limits this run: the step waits for data {share}; {self._remedy(waited, step)}"

    def _remedy(self, waited: float, step: float) -> str:
        config, plan = self._config, self._plan
        threads = f"more loader threads may help: --num_workers is {config.num_workers}"
        if plan.mode != "off" or not plan.jobs:
            disk = "a faster disk for --dataset.cache_folder, or " if plan.mode == "frames" else ""
            return f"{disk}{threads}"
        frames = sum(len(job.rows) for job in plan.jobs)
        decoded_a_second = config.batch_size * len(plan.jobs) / step
        flags = (
            "--dataset.streaming=false --dataset.cache=frames" if config.dataset.streaming else "--dataset.cache=frames"
        )
        return (
            f"{flags} would decode each frame once ({size_text(plan.total_bytes)}, at most "
            f"{_time_text(frames / decoded_a_second)} at the pace of this run), and a step would take about "
            f"{step - waited:.3f} s; {threads}"
        )


def _time_text(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 90 else f"{round(seconds / 60)} min"
