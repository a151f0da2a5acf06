"""The held-out loss: a mean over samples with noise of its own, that leaves no trace in the training that follows."""

import logging

import numpy as np
import pytest
import torch
from torch import nn

from mimetic.accelerators.precision import choose_precision
from mimetic.train.heldout import Heldout, heldout_positions
from mimetic.train.step import OutOfMemory


class Rows:
    """Sample i has the value i."""

    def __init__(self, task_index):
        self.task_index = np.asarray(task_index)

    def column(self, name):
        assert name == "task_index"
        return self.task_index.reshape(-1, 1)

    def batch(self, positions):
        return {"value": torch.tensor(positions, dtype=torch.float32)}


class MeanValue(nn.Module):
    """Loss: mean value of the batch, in evaluation mode, plus noise when asked."""

    def __init__(self, noise=0.0):
        super().__init__()
        self.noise = noise
        self.sizes = []

    def loss(self, batch):
        assert not self.training
        assert not torch.is_grad_enabled()
        self.sizes.append(len(batch["value"]))
        return batch["value"].mean() + self.noise * torch.randn(()), {}


def heldout(tasks, *, batch_size=4, max_samples=0, **options):
    rows = Rows(tasks)
    return Heldout(
        rows,
        dict,
        choose_precision("no", torch.device("cpu")),
        batch_size=batch_size,
        positions=heldout_positions(rows, max_samples),
        tasks={0: "pick", 1: "place"},
        **options,
    )


def test_every_sample_weighs_alike_however_the_batches_fall():
    for batch_size in (1, 2, 4, 5, 100):
        result = heldout([0] * 5 + [1] * 4, batch_size=batch_size).measure(MeanValue())
        assert result.loss == pytest.approx(sum(range(9)) / 9)
        assert result.per_task == pytest.approx({"pick": 2.0, "place": 6.5})


def test_one_heldout_frame_is_enough():
    assert heldout([1]).measure(MeanValue()).per_task == {"place": 0.0}


def test_the_limit_is_shared_by_the_tasks_and_takes_their_first_frames():
    rows = Rows([1, 0, 1, 0, 0, 1, 1])
    assert heldout_positions(rows, 0) == {0: [1, 3, 4], 1: [0, 2, 5, 6]}
    assert heldout_positions(rows, 5) == {0: [1, 3], 1: [0, 2]}
    assert heldout_positions(rows, 1) == {0: [1], 1: [0]}
    assert heldout_positions(rows, 100) == {0: [1, 3, 4], 1: [0, 2, 5, 6]}


def test_noise_is_the_same_at_every_measurement_and_the_generator_stays():
    measure = heldout([0] * 9)
    policy = MeanValue(noise=1.0).train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = measure.measure(policy).loss
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert measure.measure(policy).loss == first
    assert policy.training


def test_the_policy_trains_again_after_a_failure():
    class Broken(MeanValue):
        def loss(self, batch):
            raise RuntimeError("no")

    policy = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        heldout([0]).measure(policy)
    assert policy.training


class Crowded(MeanValue):
    """Room for so many samples at once."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def loss(self, batch):
        if len(batch["value"]) > self.room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().loss(batch)


def test_a_batch_that_does_not_fit_is_measured_in_parts_where_that_is_allowed(caplog):
    policy, measure = Crowded(2).train(), heldout([0] * 7 + [1] * 4, batch_size=7, may_halve=True)
    with caplog.at_level(logging.WARNING, logger="mimetic"):
        result = measure.measure(policy)
    assert result.loss == pytest.approx(sum(range(11)) / 11)
    assert result.per_task == pytest.approx({"pick": 3.0, "place": 8.5})
    assert max(policy.sizes) == 2
    assert "from now on each is computed in 4 parts" in caplog.text
    policy.sizes.clear()
    measure.measure(policy)
    assert max(policy.sizes) == 2  # at once: it is not tried whole again
    assert policy.training


@pytest.mark.parametrize(
    ("room", "may_halve", "message", "hint"),
    [
        (
            2,
            False,
            "4 held-out samples at once do not fit the memory of cpu: CUDA out of memory",
            "--out_of_memory=halve",
        ),
        (0, True, "1 held-out sample at once do not fit", "--eval_steps=0"),
    ],
)
def test_what_cannot_be_measured_ends_with_one_clear_error(room, may_halve, message, hint):
    with pytest.raises(OutOfMemory, match=message) as caught:
        heldout([0] * 9, may_halve=may_halve).measure(Crowded(room))
    assert hint in caught.value.hint
