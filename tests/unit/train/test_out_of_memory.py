"""A batch that does not fit: computed in parts with the same result, or one clear error (`--out_of_memory`)."""

import logging

import pytest
import torch

from mimetic.accelerators.memory import is_out_of_memory
from mimetic.accelerators.precision import choose_precision
from mimetic.testing.act import act_batch, tiny_act
from mimetic.train.step import OutOfMemory, Stepper

CPU = torch.device("cpu")
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"


class Crowded:
    """A policy on a device with room for so many samples at once; noise and gradients are the policy's own."""

    def __init__(self, policy, room, *, late=False):
        self.policy = policy
        self.room = room
        self.late = late
        self.seen = []

    def parameters(self):
        return self.policy.parameters()

    def loss(self, batch):
        size = len(batch["action"])
        self.seen.append(size)
        loss, outputs = self.policy.loss(batch)
        if size > self.room and not self.late:
            raise torch.cuda.OutOfMemoryError(FULL)
        if size > self.room:  # in the middle of the backward pass, when some gradients are there already
            loss.register_hook(lambda grad: None)
            first = next(p for p in self.policy.parameters() if p.requires_grad)
            first.register_post_accumulate_grad_hook(self._burst)
        return loss, outputs

    def _burst(self, parameter):
        if self.seen[-1] > self.room:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )


def stepper(room=99, *, late=False, accumulation=1, pieces=1, may_halve=True, **settings):
    policy = tiny_act(**settings).train()
    crowded = Crowded(policy, room, late=late)
    made = Stepper(
        crowded,
        torch.optim.SGD(policy.parameters(), lr=0.05),
        None,
        choose_precision("no", CPU),
        clip_norm=10.0,
        accumulation=accumulation,
        pieces=pieces,
        may_halve=may_halve,
    )
    return made, crowded


def steps(made, crowded, number, *, size=8):
    """Losses and the weights after some steps on batches that depend on their number only."""
    losses = []
    torch.manual_seed(3)
    for n in range(number):
        batch = act_batch(crowded.policy.config, size=size, seed=n)
        losses.append(made.forward_backward(batch).loss.item())
        made.update()
    return losses, torch.cat([p.detach().flatten() for p in crowded.policy.parameters()])


@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("noise", [False, True])
def test_a_batch_in_parts_trains_like_one_that_was_in_parts_from_the_start(late, accumulation, noise):
    """Bit for bit, also when it failed in the middle of the backward pass or of an accumulation."""
    settings = {"use_vae": noise, "dropout": 0.1 if noise else 0.0}
    found = stepper(3, late=late, accumulation=accumulation, **settings)
    losses, weights = steps(*found, 6)
    assert found[0].pieces == 4
    assert max(found[1].seen[2:]) <= 3
    expected_losses, expected = steps(*stepper(pieces=4, accumulation=accumulation, **settings), 6)
    assert losses == expected_losses
    assert torch.equal(weights, expected)


@pytest.mark.parametrize("size", [8, 7, 5])
def test_a_batch_in_parts_equals_the_whole_batch_within_float_error(size):
    """Without noise; sums of float32 in another order: 1e-6 of a loss near 1, and of the weights after four updates."""
    settings = {"use_vae": False, "dropout": 0.0}
    losses, weights = steps(*stepper(2, **settings), 4, size=size)
    whole_losses, whole = steps(*stepper(**settings), 4, size=size)
    assert losses == pytest.approx(whole_losses, rel=1e-6)
    assert torch.allclose(weights, whole, atol=1e-6, rtol=0)


def test_it_is_said_once_what_is_done(caplog):
    with caplog.at_level(logging.WARNING, logger="mimetic"):
        steps(*stepper(4, use_vae=False), 5)
    assert len(caplog.records) == 1
    assert "each batch of 8 is computed in 2 parts instead of 1" in caplog.text
    assert "the update stays the same but for noise, which is drawn part by part" in caplog.text


def test_without_leave_the_run_ends_with_the_flag_that_helps():
    made, crowded = stepper(4, may_halve=False)
    with pytest.raises(
        OutOfMemory, match="8 samples at once do not fit the memory of cpu: CUDA out of memory"
    ) as caught:
        steps(made, crowded, 1)
    assert "--out_of_memory=halve" in caught.value.hint
    assert caught.value.is_clean
    assert all(parameter.grad is None for parameter in crowded.policy.parameters())


def test_generators_are_as_before_the_step_that_failed():
    made, crowded = stepper(4, may_halve=False, use_vae=True)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    with pytest.raises(OutOfMemory):
        made.forward_backward(act_batch(crowded.policy.config, size=8, seed=0))
    assert torch.equal(before, torch.get_rng_state())


def test_a_single_sample_that_does_not_fit_ends_the_run():
    with pytest.raises(OutOfMemory, match="1 sample at once do not fit") as caught:
        steps(*stepper(0), 1)
    assert "a smaller policy, or smaller camera pictures" in caught.value.hint


def test_a_failure_in_an_accumulation_that_may_not_be_redone_is_not_clean():
    made, crowded = stepper(accumulation=2, may_halve=False)
    made.forward_backward(act_batch(crowded.policy.config, size=4, seed=0))
    crowded.room = 2
    with pytest.raises(OutOfMemory) as caught:
        made.forward_backward(act_batch(crowded.policy.config, size=8, seed=0))
    assert not caught.value.is_clean


def test_an_accumulation_begun_before_a_resume_cannot_be_redone():
    made, crowded = stepper(4, accumulation=3)
    made.micro_step = 1
    with pytest.raises(OutOfMemory, match="8 samples at once") as caught:
        made.forward_backward(act_batch(crowded.policy.config, size=8, seed=0))
    assert "begun before the run was resumed" in caught.value.hint
    assert not caught.value.is_clean


def test_other_errors_pass_unchanged():
    made, crowded = stepper()
    crowded.loss = lambda batch: (_ for _ in ()).throw(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        made.forward_backward(act_batch(crowded.policy.config, size=2, seed=0))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.cuda.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_a_full_memory(error, expected):
    assert is_out_of_memory(error) is expected


def test_an_optimiser_whose_state_does_not_fit_is_one_clear_error(monkeypatch):
    made, crowded = stepper()
    made.forward_backward(act_batch(crowded.policy.config, size=2, seed=0))

    def full():
        raise torch.cuda.OutOfMemoryError(FULL)

    monkeypatch.setattr(made.optimizer, "step", full)
    with pytest.raises(OutOfMemory, match="the state of the optimiser does not fit the memory of cpu") as caught:
        made.update()
    assert not caught.value.is_clean
    assert "--peft" in caught.value.hint


@pytest.mark.parametrize("may_halve", [False, True])
def test_batches_are_kept_for_a_second_attempt_only_while_one_is_possible(may_halve):
    made, crowded = stepper(accumulation=3, may_halve=may_halve)
    held = []
    for n in range(4):
        made.forward_backward(act_batch(crowded.policy.config, size=2, seed=n))
        held.append(len(made._replay))
        made.update()
    assert held == ([1, 2, 0, 1] if may_halve else [0, 0, 0, 0])


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_an_accelerators_generator_goes_back_too(monkeypatch, kind):
    """Its module is a stand-in; that the real ones have these two functions is looked up."""
    calls, device = [], torch.device(kind, 0)

    class Module:
        def get_rng_state(self, *where):
            return torch.tensor([7], dtype=torch.uint8)

        def set_rng_state(self, state, *where):
            calls.append((state.item(), *where))

    assert all(hasattr(getattr(torch, kind), name) for name in ("get_rng_state", "set_rng_state"))
    monkeypatch.setattr(torch, "get_device_module", lambda device: Module())
    monkeypatch.setattr(torch.mps, "get_rng_state", Module().get_rng_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state: calls.append((state.item(), device)))
    made, _ = stepper()
    made.precision = type("Elsewhere", (), {"device": device})()
    states = made._generators()
    made._restore(states)
    assert calls == [(7, device)]
