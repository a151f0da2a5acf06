"""The training loop: batches in; updates, log lines and checkpoints out (spec/training.md 5).

It knows no policy by name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mimetic.errors import CacheError, DatasetError, Interrupted, TrainingError
from mimetic.log import JsonLines
from mimetic.processing.pipeline import Pipeline
from mimetic.train.bar import progress_bar
from mimetic.train.config import TrainConfig
from mimetic.train.guard import FiniteGuard
from mimetic.train.heldout import Heldout
from mimetic.train.metrics import Counters, Window, log_line, peak_memory_gb, summarise
from mimetic.train.state import Progress
from mimetic.train.step import Stepper, StepResult
from mimetic.train.stop import StopRequest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What the loop works with.

    Args:
        batches: endless iterator over collated batches.
        num_samples: samples an epoch.
        num_episodes: episodes that they belong to.
        preprocessor: batch -> batch on the device.
        stepper: makes updates.
        guard: watches for values that are not finite.
        heldout: measures the held-out loss; None when there is none.
        save: writes a checkpoint and returns its folder; None when checkpoints are off.
        sink: metrics file; None writes none.
        mirror: gets every record of the metrics file too, and never fails; None: nobody does.
    """

    batches: Iterator[dict[str, Any]]
    num_samples: int
    num_episodes: int
    preprocessor: Pipeline
    stepper: Stepper
    guard: FiniteGuard
    heldout: Heldout | None
    save: Callable[[Progress], Path] | None
    sink: JsonLines | None
    mirror: Callable[[dict[str, Any]], None] | None = None


class Loop:
    """Runs the steps from a position to `config.steps`.

    Args:
        config: settings of the run.
        parts: what the loop works with.
        progress: where the run stands.
    """

    def __init__(self, config: TrainConfig, parts: Parts, progress: Progress) -> None:
        self.config = config
        self.parts = parts
        self.progress = progress
        self.counters = Counters(
            batch_size=config.batch_size,
            num_frames=parts.num_samples,
            num_episodes=parts.num_episodes,
            step=progress.step,
            samples=progress.samples,
        )
        self.window = Window()
        self.device = parts.stepper.precision.device
        self._window_start = time.perf_counter()
        self._waited = self._prepared = 0.0
        self._window_steps = 0
        self._saved_step: int | None = progress.step if config.resume else None

    def run(self) -> Progress:
        """Train to the end.

        Raises:
            Interrupted: the user or a scheduler stopped the run; a checkpoint was written.
            TrainingError: a loss was not finite.
        """
        config, parts = self.config, self.parts
        parts.stepper.policy.train()
        with StopRequest() as stop, progress_bar("Training", "step", config.steps, self.progress.step) as advance:
            self._window_start = time.perf_counter()
            while self.progress.step < config.steps:
                self._one_step()
                step = self.progress.step
                advance(step)
                last = step == config.steps
                if config.log_freq > 0 and step % config.log_freq == 0:
                    self._log()
                if parts.heldout is not None and config.eval_steps > 0 and step % config.eval_steps == 0:
                    self._measure_heldout(parts.heldout)
                if last or (config.save_freq > 0 and step % config.save_freq == 0):
                    self._save()
                if stop.requested and not last:
                    self._interrupt(stop)
        parts.guard.wait()
        return self.progress

    def _one_step(self) -> None:
        parts, clock = self.parts, time.perf_counter
        started = clock()
        raw = self._next_batch()
        loaded = clock()
        if self.progress.start_index == 0:
            _match_reference_stream()
        batch = parts.preprocessor(raw)
        prepared = clock()
        result = parts.stepper.forward_backward(batch)
        step = self.progress.step + 1
        parts.guard.watch(step, raw, result.loss, result.grad_norm)
        parts.stepper.update()
        last_norm = self._finish_accumulation(step, raw) if step == self.config.steps else None
        self._waited += loaded - started
        self._prepared += prepared - loaded
        self._window_steps += 1
        if self.config.log_freq > 0:  # without log lines nobody would ever read the window, and it would only grow
            self._remember(result)
            if last_norm is not None:
                self.window.add("grad_norm", last_norm)
        self.counters.advance()
        self.progress = self._advanced(step, len(raw["index"]))

    def _next_batch(self) -> dict[str, Any]:
        try:
            return next(self.parts.batches)
        except (DatasetError, CacheError) as error:
            # The steps before the damaged frame are whole, and may be hours of work.
            if self.progress.step and self.parts.save is not None:
                self._save()
                command = f"mimetic train --resume=true --config_path={self.config.output_dir}"
                if isinstance(error, CacheError):
                    error.hint += f"\nstep {self.progress.step} is saved; `{command}` continues from it"
                else:
                    error.hint += (
                        f"\nstep {self.progress.step} is saved; with the episodes left out, "
                        f"`{command} --reset_data_order=true` continues from it"
                    )
            raise

    def _advanced(self, step: int, batch_length: int) -> Progress:
        start = self.progress.start_index + batch_length
        epoch = self.progress.epoch
        if start >= self.parts.num_samples:
            epoch, start = epoch + 1, 0
        return replace(
            self.progress,
            step=step,
            samples=self.counters.samples,
            epoch=epoch,
            start_index=start,
            micro_step=self.parts.stepper.micro_step,
        )

    def _remember(self, result: StepResult) -> None:
        add = self.window.add
        add("loss", result.loss)
        if result.grad_norm is not None:
            add("grad_norm", result.grad_norm)
        add("lr", self.parts.stepper.learning_rate())
        for name, value in result.outputs.items():
            if name != "loss":
                add(name, value)

    def _finish_accumulation(self, step: int, raw: dict[str, Any]) -> Tensor | None:
        stepper = self.parts.stepper
        left = stepper.micro_step
        norm = stepper.close_accumulation()
        if norm is not None:
            self.parts.guard.watch(step, raw, norm)
            stepper.apply()
            logger.info("The last update has %d of %d micro-batches", left, stepper.accumulation)
        return norm

    def _log(self) -> None:
        means = self.window.means()  # reads the device: the one place where a step waits for it
        self.parts.guard.wait()
        steps = max(1, self._window_steps)
        step_s = (time.perf_counter() - self._window_start) / steps
        means["dataloading_s"] = self._waited / steps
        means["preprocessing_s"] = self._prepared / steps
        means["update_s"] = max(0.0, step_s - means["dataloading_s"] - means["preprocessing_s"])
        means["step_s"] = step_s
        if self.device.type == "cuda":
            means["gpu_mem_gb"] = torch.cuda.max_memory_allocated(self.device) / 2**30
            torch.cuda.reset_peak_memory_stats(self.device)
        memory = peak_memory_gb()
        if memory is not None:
            means["ram_gb"] = memory
        record = summarise(self.counters, means)
        logger.info("%s", log_line(record))
        self._note({"kind": "train", **record})
        self._restart_window()

    def _note(self, record: dict[str, Any]) -> None:
        if self.parts.mirror is not None:
            self.parts.mirror(record)
        sink = self.parts.sink
        if sink is None:
            return
        try:
            sink.write(record)
        except OSError as error:
            raise TrainingError(
                f"{sink.path} could not be written at step {self.progress.step}: {error.strerror or error}",
                f"make room there, then `mimetic train --resume=true --config_path={self.config.output_dir}`",
            ) from error

    def _restart_window(self) -> None:
        self.window.clear()
        self._waited = self._prepared = 0.0
        self._window_steps = 0
        self._window_start = time.perf_counter()

    def _measure_heldout(self, heldout: Heldout) -> None:
        paused = time.perf_counter()
        result = heldout.measure(self.parts.stepper.policy)
        logger.info("step %d: eval_loss=%.4f", self.progress.step, result.loss)
        record = {"kind": "heldout", "steps": self.progress.step, "eval_loss": result.loss}
        self._note({**record, "eval_loss_per_task": result.per_task})
        self._window_start += time.perf_counter() - paused

    def _save(self) -> None:
        if self.parts.save is None or self._saved_step == self.progress.step:
            return
        paused = time.perf_counter()
        self.parts.guard.wait()
        logger.info("Checkpoint policy after step %d", self.progress.step)
        self.parts.save(self.progress)
        self._saved_step = self.progress.step
        self._window_start += time.perf_counter() - paused

    def _interrupt(self, stop: StopRequest) -> None:
        self._save()
        if self.parts.save is None:
            error = Interrupted(f"stopped after step {self.progress.step}; checkpoints are off, nothing was saved")
        else:
            folder = self.config.output_dir
            error = Interrupted(
                f"stopped after step {self.progress.step}; its checkpoint is saved",
                f"`mimetic train --resume=true --config_path={folder}` continues",
            )
        error.exit_code = stop.exit_code
        raise error


def _match_reference_stream() -> None:
    """Draw once from the global generator at the start of an epoch, and drop it.

    LeRobot's loader draws a seed for its workers there. With the same draw, a run with the same seed on the same torch
    has LeRobot's noise and dropout, so that loss curves can be laid over each other (spec/training.md 6).
    """
    torch.empty((), dtype=torch.int64).random_()
