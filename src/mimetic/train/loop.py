"""The training loop: batches in; updates, log lines and checkpoints out (spec/training.md 5).

It knows no policy by name.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mimetic.accelerators.witness import MatmulWitness
from mimetic.data.bad_frames import BadFrame
from mimetic.errors import CacheError, DatasetError, HubError, Interrupted, MimeticError, TrainingError
from mimetic.log import JsonLines
from mimetic.processing.pipeline import Pipeline
from mimetic.train.bar import progress_bar
from mimetic.train.checkpoint import step_name
from mimetic.train.config import TrainConfig
from mimetic.train.guard import FiniteGuard
from mimetic.train.heldout import Heldout
from mimetic.train.metrics import Counters, Window, log_line, peak_memory_gb, summarise
from mimetic.train.overflows import OverflowWatch
from mimetic.train.retention import Judgement, Selection
from mimetic.train.state import Progress
from mimetic.train.step import OutOfMemory, Stepper, StepResult
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
        overflows: counts skipped float16 updates; None in other precisions.
        witness: looks at what precision the first step really computes in; None: nobody does.
        averaged: puts the averaged weights into the policy while it is active; None measures the weights as they are.
        values: further numbers for the records of a window, such as the decay of the average.
        selection: judges held-out losses; None without them.
        saved: called after each checkpoint with its folder and step.
        bad_frames: frames that could not be read so far and were left out.
        watch: gets the record of each log window, to say what limits the run.
        when_waiting: takes a function to be called now and then while a batch is waited for; None ends that.
        play: lets the policy play in an environment, in a folder for films; None: there is no environment. It is given
            what says whether it may go on, and returns nothing when it may not.
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
    overflows: OverflowWatch | None = None
    witness: MatmulWitness | None = None
    averaged: Callable[[], AbstractContextManager[object]] | None = None
    values: Callable[[], dict[str, float]] = dict
    selection: Selection | None = None
    saved: Callable[[Path, int], None] = lambda folder, step: None
    bad_frames: Callable[[], Sequence[BadFrame]] = list
    watch: Callable[[Mapping[str, float]], None] = lambda record: None
    when_waiting: Callable[[Callable[[], None] | None], None] = lambda hook: None
    play: Callable[[Path, Callable[[], bool]], Mapping[str, Any] | None] | None = None


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
        self.window = Window(finite_only=parts.overflows is not None)
        self.device = parts.stepper.precision.device
        self._window_start = time.perf_counter()
        self._waited = self._prepared = 0.0
        self._window_steps = 0
        self._saved_step: int | None = progress.step if config.resume else None
        self._witness = parts.witness
        self._noted_bad_frames = 0

    def run(self) -> Progress:
        """Train to the end, or until the held-out loss has not fallen for long enough.

        Raises:
            Interrupted: the user or a scheduler stopped the run; a checkpoint was written.
            TrainingError: a loss was not finite, the loss scale collapsed, or the memory did not suffice.
        """
        config, parts = self.config, self.parts
        parts.stepper.policy.train()
        try:
            with StopRequest() as stop, progress_bar("Training", "step", config.steps, self.progress.step) as advance:
                parts.when_waiting(lambda: self._end_waiting(stop))
                self._window_start = time.perf_counter()
                while self.progress.step < config.steps:
                    self._one_step()
                    advance(self.progress.step)
                    if self._after_step(stop):
                        break
        finally:
            parts.when_waiting(None)  # the loader would keep this loop alive, and with it everything of the run
        self._wait()
        self._note_bad_frames()
        return self.progress

    def _after_step(self, stop: StopRequest) -> bool:
        """Log, measure and save where it is due; whether the run ends early."""
        config, parts, step = self.config, self.parts, self.progress.step
        last = step == config.steps
        if config.log_freq > 0 and step % config.log_freq == 0:
            self._log()
        judged = None
        if parts.heldout is not None and config.eval_steps > 0 and step % config.eval_steps == 0:
            judged = self._measure_heldout(parts.heldout)
        ends_early = judged is not None and judged.stop and not last
        is_wanted = judged is not None and judged.is_best and config.keep.best > 0
        if last or ends_early or is_wanted or (config.save_freq > 0 and step % config.save_freq == 0):
            self._save()
        if parts.play is not None and config.env_eval_freq > 0 and step % config.env_eval_freq == 0:
            self._play(parts.play, stop)
        if judged is not None and ends_early:
            logger.info("%s", judged.reason)
            return True
        if stop.requested and not last:
            self._interrupt(stop)
        return False

    def _one_step(self) -> None:
        parts, clock = self.parts, time.perf_counter
        started = clock()
        raw = self._next_batch()
        loaded = clock()
        before = torch.get_rng_state() if self.progress.start_index == 0 else None
        if before is not None:
            _match_reference_stream()
        batch = parts.preprocessor(raw)
        prepared = clock()
        try:
            result = self._forward_backward(batch)
        except OutOfMemory as error:
            if before is not None:
                torch.set_rng_state(before)
            self._save_before(error)
            raise
        step = self.progress.step + 1
        if parts.overflows is None:
            parts.guard.watch(step, raw, result.loss, result.grad_norm)
        last_norm = self._close_accumulation(step, raw) if step == self.config.steps else None
        self._watch_overflow(step, parts.stepper.update())
        self._waited += loaded - started
        self._prepared += prepared - loaded
        self._window_steps += 1
        if self.config.log_freq > 0:  # without log lines nobody would ever read the window, and it would only grow
            self._remember(result)
            if last_norm is not None:
                self.window.add("grad_norm", last_norm)
        self.counters.advance()
        self.progress = self._advanced(step, len(raw["index"]))

    def _forward_backward(self, batch: dict[str, Any]) -> StepResult:
        if self._witness is None:
            return self.parts.stepper.forward_backward(batch)
        witness, self._witness = self._witness, None
        with witness:
            result = self.parts.stepper.forward_backward(batch)
        logger.info("%s", witness.verdict(self.parts.stepper.precision))
        return result

    def _watch_overflow(self, step: int, landed: Tensor | None) -> None:
        scaler = self.parts.stepper.scaler
        if self.parts.overflows is not None and scaler is not None and landed is not None:
            self.parts.overflows.watch(step, landed, scaler.tensor())

    def _wait(self) -> None:
        """Read every answer of the device that is still on its way."""
        self.parts.guard.wait()
        if self.parts.overflows is not None:
            self.parts.overflows.wait()

    def _save_before(self, error: OutOfMemory) -> None:
        """Save the step before the one that did not fit: it is whole, and may be hours of work."""
        if error.is_clean and self.progress.step and self.parts.save is not None:
            self._save()
            error.hint += (
                f"\nstep {self.progress.step} is saved; "
                f"`mimetic train --resume=true --config_path={self.config.output_dir}` continues from it"
            )

    def _next_batch(self) -> dict[str, Any]:
        try:
            return next(self.parts.batches)
        except (DatasetError, CacheError, HubError, TrainingError) as error:
            self._save_whole_steps(error)
            raise

    def _save_whole_steps(self, error: MimeticError) -> None:
        """Save the steps before a fault of the data: they are whole, and may be hours of work."""
        if self.progress.step == 0 or self.parts.save is None:
            return
        self._save()
        command = f"mimetic train --resume=true --config_path={self.config.output_dir}"
        if isinstance(error, DatasetError):
            error.hint += (
                f"\nstep {self.progress.step} is saved; with the episodes left out, "
                f"`{command} --reset_data_order=true` continues from it"
            )
        else:
            error.hint += f"\nstep {self.progress.step} is saved; `{command}` continues from it"

    def _end_waiting(self, stop: StopRequest) -> None:
        """A batch that does not come must not keep a run from ending when it is asked to."""
        if stop.requested and self.progress.step:
            self._interrupt(stop)

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
            pieces=self.parts.stepper.pieces,
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

    def _close_accumulation(self, step: int, raw: dict[str, Any]) -> Tensor | None:
        """Make the last step's update one of the micro-batches that are left over."""
        stepper = self.parts.stepper
        norm = stepper.close_accumulation()
        if norm is not None:
            if self.parts.overflows is None:
                self.parts.guard.watch(step, raw, norm)
            logger.info("The last update has %d of %d micro-batches", stepper.micro_step, stepper.accumulation)
        return norm

    def _log(self) -> None:
        means = self.window.means()  # reads the device: the one place where a step waits for it
        self._wait()
        steps = max(1, self._window_steps)
        step_s = (time.perf_counter() - self._window_start) / steps
        means["dataloading_s"] = self._waited / steps
        means["preprocessing_s"] = self._prepared / steps
        means["update_s"] = max(0.0, step_s - means["dataloading_s"] - means["preprocessing_s"])
        means["step_s"] = step_s
        if self.device.type == "cuda":
            means["gpu_mem_gb"] = torch.cuda.max_memory_allocated(self.device) / 2**30
            torch.cuda.reset_peak_memory_stats(self.device)
        scaler, overflows = self.parts.stepper.scaler, self.parts.overflows
        if scaler is not None and overflows is not None:
            means["scale"] = scaler.value()
            means["skip"] = overflows.take_window()
        memory = peak_memory_gb()
        if memory is not None:
            means["ram_gb"] = memory
        record = summarise(self.counters, means)
        logger.info("%s", log_line(record))
        self.parts.watch(record)
        self._note({"kind": "train", **record, **self.parts.values()})
        self._note_bad_frames()
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

    def _note_bad_frames(self) -> None:
        """Write the frames that were left out since the last time into the metrics file."""
        found = self.parts.bad_frames()
        for bad in found[self._noted_bad_frames :]:
            self._note({"kind": "bad_frame", "steps": self.progress.step, **bad.record()})
        self._noted_bad_frames = len(found)

    def _measure_heldout(self, heldout: Heldout) -> Judgement | None:
        paused = time.perf_counter()
        averaged = self.parts.averaged
        try:
            with averaged() if averaged is not None else contextlib.nullcontext():
                result = heldout.measure(self.parts.stepper.policy)
        except (DatasetError, OutOfMemory) as error:
            self._save_whole_steps(error)
            raise
        which = " (averaged weights)" if averaged is not None else ""
        logger.info("step %d: eval_loss=%.4f%s", self.progress.step, result.loss, which)
        record = {"kind": "heldout", "steps": self.progress.step, "eval_loss": result.loss}
        self._note({**record, "eval_loss_per_task": result.per_task})
        self._window_start += time.perf_counter() - paused
        return self.parts.selection.note(self.progress.step, result.loss) if self.parts.selection is not None else None

    def _play(self, play: Callable[[Path, Callable[[], bool]], Mapping[str, Any] | None], stop: StopRequest) -> None:
        """Count successes in an environment; a failure there costs the measurement and not the training."""
        paused, step = time.perf_counter(), self.progress.step
        assert self.config.output_dir is not None
        folder = self.config.output_dir / "eval" / f"videos_step_{step_name(step, self.config.steps)}"
        logger.info("Eval policy at step %d", step)
        try:
            with self.parts.averaged() if self.parts.averaged is not None else contextlib.nullcontext():
                found = play(folder, lambda: not stop.requested)
        except MimeticError as error:
            if isinstance(error, Interrupted):
                raise
            logger.warning("step %d: no evaluation in the environment: %s; %s", step, error.message, error.hint)
            found = {"error": error.message}
        self._window_start += time.perf_counter() - paused
        if found is None:
            return
        if "pc_success" in found:
            logger.info(
                "step %d: success %.1f %% of %d episodes (95 %% interval %.0f to %.0f %%), %.0f s%s",
                step,
                found["pc_success"],
                found["n_episodes"],
                found["pc_success_low"],
                found["pc_success_high"],
                found["eval_s"],
                " (averaged weights)" if self.parts.averaged is not None else "",
            )
        self._note({"kind": "environment", "steps": step, **found})

    def _save(self) -> None:
        if self.parts.save is None or self._saved_step == self.progress.step:
            return
        paused = time.perf_counter()
        self._wait()
        self._require_finite_weights()
        overflows = self.parts.overflows
        if overflows is not None:
            self.progress = replace(
                self.progress,
                landed_updates=overflows.landed,
                skipped_updates=overflows.skipped,
                skipped_in_a_row=overflows.in_a_row,
            )
        logger.info("Checkpoint policy after step %d", self.progress.step)
        folder = self.parts.save(self.progress)
        self._saved_step = self.progress.step
        self.parts.saved(folder, self.progress.step)
        self._window_start += time.perf_counter() - paused

    def _require_finite_weights(self) -> None:
        """An update of finite gradients may still be too large for the weights; such a policy is not worth a file."""
        if not self.parts.stepper.is_finite():
            raise TrainingError(
                f"the weights are no longer finite after step {self.progress.step}, so no checkpoint of it is written",
                "lower the learning rate, and go on from an older checkpoint of the run",
            )

    def _interrupt(self, stop: StopRequest) -> None:
        self._save()
        what = f"stopped by {stop.reason} after step {self.progress.step}"
        if self.parts.save is None:
            error = Interrupted(f"{what}; checkpoints are off, nothing was saved")
        else:
            folder = self.config.output_dir
            error = Interrupted(
                f"{what}; its checkpoint is saved",
                f"`mimetic train --resume=true --config_path={folder}` continues",
            )
        error.exit_code = stop.exit_code(self.parts.save is not None, self.config.requeue_exit_code)
        raise error


def _match_reference_stream() -> None:
    """Draw once from the global generator at the start of an epoch, and drop it.

    LeRobot's loader draws a seed for its workers there. With the same draw, a run with the same seed on the same torch
    has LeRobot's noise and dropout, so that loss curves can be laid over each other (spec/training.md 6).
    """
    torch.empty((), dtype=torch.int64).random_()
