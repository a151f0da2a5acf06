"""The loop on a policy of one weight, whose losses and gradients are prescribed by the batches."""

import itertools
import json
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.precision import choose_precision
from mimetic.data.config import DatasetConfig
from mimetic.errors import Interrupted, TrainingError, VideoError
from mimetic.log import JsonLines
from mimetic.train.config import TrainConfig
from mimetic.train.guard import FiniteGuard
from mimetic.train.heldout import HeldoutLoss
from mimetic.train.loop import Loop, Parts
from mimetic.train.overflows import OverflowWatch
from mimetic.train.state import Progress
from mimetic.train.step import OutOfMemory, Stepper
from mimetic.train.stop import StopRequest

CPU = torch.device("cpu")


class OneWeight(nn.Module):
    """loss = weight * batch["slope"]; its gradient is the slope."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, batch):
        loss = (self.weight * batch["slope"]).sum()
        if batch["slope"] > 100:  # a finite loss with a gradient that is not: a square root at zero
            loss = loss.abs().sqrt()
        return loss, {"extra": loss.detach()}


def batches(slopes):
    for number, slope in enumerate(slopes):
        index = torch.tensor([number])
        yield {"index": index, "episode_index": index, "frame_index": index, "slope": torch.tensor(float(slope))}


def loop(
    slopes,
    *,
    steps=None,
    accumulation=1,
    sink=None,
    save=None,
    heldout=None,
    num_samples=3,
    start=0,
    rates=None,
    is_scaled=False,
    **settings,
):
    policy = OneWeight()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    stepper = Stepper(
        policy,
        optimizer,
        None if rates is None else torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__),
        choose_precision("no", CPU),
        clip_norm=0.0,
        accumulation=accumulation,
        scaler=LossScaler(GradScalerConfig(init_scale=1024.0), CPU) if is_scaled else None,
    )
    parts = Parts(
        batches=batches(slopes),
        num_samples=num_samples,
        num_episodes=1,
        preprocessor=dict,
        stepper=stepper,
        guard=FiniteGuard(CPU),
        heldout=heldout,
        save=save,
        sink=sink,
        overflows=OverflowWatch(CPU) if is_scaled else None,
    )
    config = TrainConfig(
        dataset=DatasetConfig(repo_id="x"), batch_size=1, **{"steps": steps or len(slopes), "log_freq": 1} | settings
    )
    progress = Progress(step=start, batch_size=1, samples=start, epoch=0, start_index=0, grad_accum_steps=accumulation)
    return Loop(config, parts, progress), policy


@pytest.fixture
def sink(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    yield lines
    lines.close()


def records(sink):
    return [json.loads(line) for line in sink.path.read_text().splitlines()]


def test_an_update_uses_the_mean_of_its_micro_batches():
    run, policy = loop([1, 2, 6, 4], accumulation=3)
    run.run()
    assert policy.weight.item() == pytest.approx(-(1 + 2 + 6) / 3 - 4)


def test_the_last_unfinished_accumulation_has_the_learning_rate_of_its_step():
    """Many schedules end at 0 after the last step: with that rate the remainder would be lost in silence."""
    run, policy = loop([1, 2, 6, 4, 8], accumulation=3, rates=[9, 8, 7, 6, 5, 0])
    run.run()
    assert policy.weight.item() == pytest.approx(-7 * (1 + 2 + 6) / 3 - 5 * (4 + 8) / 2)
    assert run.parts.stepper.learning_rate() == 0


def test_the_last_unfinished_accumulation_makes_one_update_and_leaves_nothing():
    saved = []
    run, policy = loop([1, 2, 6, 4], accumulation=3, save=saved.append, save_freq=0)
    run.run()
    assert [progress.micro_step for progress in saved] == [0]
    assert policy.weight.grad is None
    run.parts.stepper.forward_backward({"slope": torch.tensor(3.0)})
    run.parts.stepper.update()  # the next accumulation is an open one again
    assert policy.weight.item() == pytest.approx(-(1 + 2 + 6) / 3 - 4)


def test_weights_that_are_no_numbers_are_never_saved():
    """A finite gradient times the learning rate may leave the range of float32, with a loss that is finite still."""
    saved = []
    run, policy = loop([1e-3, 90, 1], save=saved.append, save_freq=1)
    run.parts.stepper.optimizer.param_groups[0]["lr"] = 3.9e36
    with pytest.raises(
        TrainingError, match="the weights are no longer finite after step 2, so no checkpoint"
    ) as caught:
        run.run()
    assert not torch.isfinite(policy.weight)
    assert [progress.step for progress in saved] == [1]
    assert "lower the learning rate" in caught.value.hint


def test_an_accelerators_bad_loss_is_known_before_a_checkpoint_is_written():
    saved = []
    run, _ = loop([1, 1, float("nan"), 1, 1], save=saved.append, save_freq=2, log_freq=0)
    object.__setattr__(run.parts, "guard", FiniteGuard(torch.device("meta")))  # answers only when it is waited for
    run.parts.stepper.is_finite = lambda: True
    with pytest.raises(TrainingError, match="not finite at step 3; the batch was episode 2 frame 2"):
        run.run()
    assert [progress.step for progress in saved] == [2]


def test_a_heldout_batch_that_does_not_fit_costs_no_step():
    class Full:
        def measure(self, policy):
            raise OutOfMemory("2 held-out samples at once do not fit", "lower it")

    saved = []
    with pytest.raises(OutOfMemory) as caught:
        loop([1] * 5, save=saved.append, heldout=Full(), eval_steps=2)[0].run()
    assert [progress.step for progress in saved] == [2]
    assert "lower it\nstep 2 is saved; `mimetic train --resume=true" in caught.value.hint


def test_the_last_unfinished_accumulation_is_looked_at_before_it_is_applied():
    run, policy = loop([1, 1, 1, 101], accumulation=3)
    policy.weight.data.zero_()
    with pytest.raises(TrainingError, match="not finite at step 4; the batch was episode 3 frame 3"):
        # The square root at weight 0 has a finite value and an infinite slope.
        run.parts.stepper.optimizer.param_groups[0]["lr"] = 0.0
        run.run()
    assert torch.isfinite(policy.weight)


def test_weights_stay_finite_when_a_gradient_is_not():
    run, policy = loop([3, float("nan"), 1])
    with pytest.raises(TrainingError, match="step 2"):
        run.run()
    assert policy.weight.item() == -3.0


def test_a_log_line_holds_the_mean_of_its_window_and_then_a_new_window_starts(sink):
    run, _ = loop([1, 3, 5, 9, 7], sink=sink, log_freq=2)
    run.run()
    lines = records(sink)
    assert [line["steps"] for line in lines] == [2, 4]
    assert [line["grad_norm"] for line in lines] == [2.0, 7.0]
    # weight is 0, -1 then -4, -9 when the loss is taken
    assert [line["loss"] for line in lines] == [(0 - 3) / 2, (-4 * 5 - 9 * 9) / 2]
    assert [line["extra"] for line in lines] == [line["loss"] for line in lines]
    assert [line["samples"] for line in lines] == [2, 4]


def test_without_log_lines_nothing_is_collected():
    run, _ = loop([1] * 50, log_freq=0)
    run.run()
    assert run.window.means() == {}


def test_checkpoints_come_every_save_freq_and_once_at_the_end():
    for freq, expected in ((2, [2, 4, 5]), (5, [5]), (0, [5]), (100, [5])):
        saved = []
        loop([1] * 5, save=lambda progress, saved=saved: saved.append(progress), save_freq=freq)[0].run()
        assert [progress.step for progress in saved] == expected
        assert all(progress.samples == progress.step for progress in saved)


def test_the_position_wraps_at_the_end_of_an_epoch():
    saved = []
    loop([1] * 7, save=saved.append, save_freq=1, num_samples=3)[0].run()
    assert [(p.epoch, p.start_index) for p in saved] == [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]


def test_a_checkpoint_inside_an_accumulation_says_so():
    saved = []
    loop([1] * 5, save=saved.append, save_freq=1, accumulation=3)[0].run()
    assert [p.micro_step for p in saved] == [1, 2, 0, 1, 0]


def test_the_heldout_loss_is_measured_every_eval_steps_after_the_log_line(sink):
    class Fake:
        def measure(self, policy):
            return HeldoutLoss(0.5, {"pick": 0.5})

    loop([1] * 5, sink=sink, heldout=Fake(), eval_steps=2, log_freq=2)[0].run()
    assert [(r["kind"], r["steps"]) for r in records(sink)] == [
        ("train", 2),
        ("heldout", 2),
        ("train", 4),
        ("heldout", 4),
    ]


def test_one_draw_of_the_global_generator_opens_each_epoch():
    torch.manual_seed(3)
    loop([1] * 7, num_samples=3)[0].run()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    for _ in range(3):
        torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 99)])
def test_a_signal_ends_the_run_after_its_step_with_a_checkpoint(number, code):
    saved = []

    def slopes():
        yield from (1, 1)
        signal.raise_signal(number)
        yield from itertools.repeat(1)

    run, _ = loop(slopes(), steps=100, save=saved.append, save_freq=0)
    with pytest.raises(Interrupted) as caught:
        run.run()
    assert caught.value.exit_code == code
    assert [progress.step for progress in saved] == [3]
    assert "after step 3; its checkpoint is saved" in caught.value.message


def test_a_signal_while_a_checkpoint_is_written_does_not_disturb_it_nor_write_it_twice():
    saved = []

    def save(progress):
        signal.raise_signal(signal.SIGINT)
        saved.append(progress.step)

    run, _ = loop([1] * 10, save=save, save_freq=2)
    with pytest.raises(Interrupted):
        run.run()
    assert saved == [2]


def test_a_second_ctrl_c_interrupts_at_once_and_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_in_the_last_step_lets_the_run_end_well():
    def slopes():
        yield 1
        signal.raise_signal(signal.SIGINT)
        yield 1

    saved = []
    loop(slopes(), steps=2, save=saved.append)[0].run()
    assert [progress.step for progress in saved] == [2]


def test_damaged_data_in_the_middle_of_a_run_cost_none_of_the_steps_before():
    def slopes():
        yield from (1, 1, 1)
        raise VideoError("frame 12 cannot be decoded", "leave out its episode")

    saved = []
    run, policy = loop(slopes(), steps=10, save=saved.append, save_freq=0)
    torch.manual_seed(3)
    with pytest.raises(VideoError) as caught:
        run.run()
    assert [(p.step, p.epoch, p.start_index) for p in saved] == [(3, 1, 0)]
    assert policy.weight.item() == -3
    assert "leave out its episode\nstep 3 is saved" in caught.value.hint
    # The draw that opens an epoch belongs to its first step, which was not made: resuming makes it.
    after = torch.get_rng_state()
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(after, torch.get_rng_state())


def test_damaged_data_in_the_first_batch_save_nothing():
    def slopes():
        raise VideoError("frame 0 cannot be decoded")
        yield

    saved = []
    with pytest.raises(VideoError):
        loop(slopes(), steps=10, save=saved.append)[0].run()
    assert saved == []


def test_a_resumed_run_does_not_write_the_checkpoint_that_it_came_from_again():
    def slopes():
        raise VideoError("frame 0 cannot be decoded")
        yield

    saved = []
    with pytest.raises(VideoError):
        loop(slopes(), steps=10, start=3, resume=True, save=saved.append)[0].run()
    assert saved == []


def test_a_full_disk_under_the_metrics_is_an_error_with_a_remedy(tmp_path):
    class Full:
        path = tmp_path / "metrics.jsonl"

        def write(self, record):
            raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError) as caught:
        loop([1] * 3, sink=Full())[0].run()
    assert caught.value.message == f"{Full.path} could not be written at step 1: No space left on device"
    assert "--resume=true" in caught.value.hint


INF = float("inf")


@pytest.mark.parametrize("device", ["cpu", "meta"], ids=["at once", "only when waited for"])
def test_skipped_updates_move_the_schedule_and_are_counted_in_the_checkpoint(sink, device):
    saved = []
    rates = [1, 2, 4, 8, 16, 32]
    run, policy = loop([1, INF, 1, INF, INF], is_scaled=True, rates=rates, sink=sink, log_freq=5, save=saved.append)
    object.__setattr__(run.parts, "overflows", OverflowWatch(torch.device(device)))
    run.run()
    assert policy.weight.item() == -(1 + 4)
    counts = [(p.landed_updates, p.skipped_updates, p.skipped_in_a_row) for p in saved]
    assert counts == [(2, 3, 2)]
    assert run.parts.stepper.learning_rate() == 32
    (line,) = records(sink)
    assert (line["scale"], line["skip"], line["grad_norm"]) == (128.0, 3, 1.0)


@pytest.mark.parametrize("slopes", [[1, INF, 6, 3, 3], [1, 2, 6, 3, INF]], ids=["full", "last"])
def test_one_overflow_leaves_out_the_whole_update_also_the_last_unfinished_one(slopes):
    saved = []
    run, policy = loop(slopes, accumulation=3, is_scaled=True, save=saved.append)
    run.run()
    assert policy.weight.item() == pytest.approx(-3)
    assert [(p.landed_updates, p.skipped_updates, p.micro_step) for p in saved] == [(1, 1, 0)]
    assert run.parts.stepper.scaler.value() == 512.0
    assert policy.weight.grad is None


def test_the_norm_of_the_last_unfinished_update_is_clipped_unscaled_and_shown(sink):
    run, policy = loop([3, 3, 3, 8], accumulation=3, is_scaled=True, sink=sink, log_freq=4)
    run.parts.stepper.clip_norm = 2.0
    run.run()
    assert policy.weight.item() == pytest.approx(-4.0, rel=1e-5)
    assert records(sink)[0]["grad_norm"] == pytest.approx((3 + 8) / 2)


def full_memory(run, at):
    """From step `at` on nothing fits."""
    loss = run.parts.stepper.policy.loss

    def crowded(batch):
        torch.rand(3)
        if int(batch["index"]) + 1 >= at:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return loss(batch)

    run.parts.stepper.policy.loss = crowded


def test_the_step_before_one_that_did_not_fit_is_saved_as_it_was():
    """Step 4 opens an epoch: its draw for the reference's stream is taken back too."""
    states = []
    run, _ = loop([1] * 6, save=lambda p: states.append((p.step, p.start_index, torch.get_rng_state())), save_freq=0)
    full_memory(run, at=4)
    torch.manual_seed(3)
    with pytest.raises(OutOfMemory) as caught:
        run.run()
    after = [(step, start) for step, start, _ in states]
    assert after == [(3, 0)]
    assert "step 3 is saved" in caught.value.hint
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_()
    for _ in range(3):
        torch.rand(3)
    assert torch.equal(states[0][2], torch.get_rng_state())


def test_half_an_update_that_cannot_be_taken_back_is_not_saved():
    saved = []
    run, _ = loop([1] * 6, accumulation=3, save=saved.append, save_freq=0)
    full_memory(run, at=5)
    with pytest.raises(OutOfMemory):
        run.run()
    assert saved == []


def test_the_loader_keeps_nothing_of_a_run_that_has_ended():
    """A function of the loop that the loader kept would hold the loop, its policy and its iterator in memory."""
    for slopes, error in (([1, 2], None), ([1, float("nan")], TrainingError)):
        hooks = []
        run, _ = loop(slopes)
        run.parts = replace(run.parts, when_waiting=hooks.append)
        if error is None:
            run.run()
        else:
            with pytest.raises(error):
                run.run()
        assert callable(hooks[0])
        assert hooks[-1] is None
