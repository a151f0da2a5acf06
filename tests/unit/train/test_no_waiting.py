"""A step between two log lines reads nothing back from the device.

On a CPU nothing would be noticed, so each operation that makes a host wait for a GPU is forbidden while a step runs:
scalars, and results whose size only the device knows.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.loss_scaler import LossScaler
from mimetic.accelerators.precision import Precision
from mimetic.data.config import DatasetConfig
from mimetic.optim.ema import Ema, EmaDecay
from mimetic.testing.act import act_batch, tiny_act
from mimetic.train.config import TrainConfig
from mimetic.train.deferred import Deferred
from mimetic.train.guard import FiniteGuard
from mimetic.train.loop import Loop, Parts
from mimetic.train.overflows import OverflowWatch
from mimetic.train.state import Progress
from mimetic.train.step import Stepper

CPU = torch.device("cpu")
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim", "_unique2")


class NoWaiting(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name == "index" else ()
        if name in WAITS or any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            raise AssertionError(f"{name} makes the host wait for the device")
        return function(*args, **(kwargs or {}))


def settle_later(watcher):
    """What a watcher does on an accelerator."""
    watcher._deferred = Deferred(torch.device("meta"), watcher._settle)
    return watcher


def make_loop(mixed_precision, *, accumulation=1, pieces=1, steps=6, fused=True):
    cameras = {"observation.images.top": (3, 32, 32)} if mixed_precision == "no" else {}  # slow in halves on a CPU
    policy = tiny_act(use_vae=True, dropout=0.1, cameras=cameras)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, fused=fused)
    is_scaled = mixed_precision == "fp16"
    dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[mixed_precision]
    scaler = LossScaler(GradScalerConfig(init_scale=1024.0), CPU) if is_scaled else None
    ema = Ema(dict(policy.named_parameters()), EmaDecay())
    stepper = Stepper(
        policy,
        optimizer,
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
        Precision(CPU, dtype, "for this test", scaler=is_scaled),
        clip_norm=1.0,
        accumulation=accumulation,
        scaler=scaler,
        pieces=pieces,
        may_halve=True,
        after_update=ema.update,
    )

    def batches():
        for number in range(steps):
            index = torch.arange(4)
            address = {"index": index, "episode_index": index, "frame_index": index}
            yield act_batch(policy.config, size=4, seed=number) | address

    parts = Parts(
        batches=batches(),
        num_samples=100,
        num_episodes=1,
        preprocessor=dict,
        stepper=stepper,
        guard=settle_later(FiniteGuard(CPU)),
        heldout=None,
        save=None,
        sink=None,
        overflows=settle_later(OverflowWatch(CPU)) if is_scaled else None,
    )
    config = TrainConfig(dataset=DatasetConfig(repo_id="x"), batch_size=4, steps=steps, log_freq=100)
    progress = Progress(step=0, batch_size=4, samples=0, epoch=0, start_index=0, grad_accum_steps=accumulation)
    return Loop(config, parts, progress), ema


@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize(("accumulation", "pieces"), [(1, 1), (2, 1), (4, 2)])
def test_nothing_is_read_in_a_step_without_a_log_line(mixed_precision, accumulation, pieces):
    """All of it: preprocessed batch to update, average, schedule, guard, and the last unfinished accumulation."""
    run, ema = make_loop(mixed_precision, accumulation=accumulation, pieces=pieces)
    run.parts.stepper.policy.train()
    with NoWaiting():
        for _ in range(6):
            run._one_step()
    assert run.progress.step == 6
    assert 1 <= ema.updates <= -(-6 // accumulation)
    run._wait()


@pytest.mark.parametrize("what", [lambda x: x.item(), bool, float, lambda x: x[x > 0], torch.nonzero])
def test_the_test_would_notice(what):
    with NoWaiting(), pytest.raises(AssertionError, match="makes the host wait"):
        what(torch.tensor([1.0]))


def test_a_plain_optimiser_reads_the_overflow_flag_back_once_an_update():
    """torch's own doing, and why the optimisers are fused where they can be."""
    run, _ = make_loop("fp16", fused=False)
    run.parts.stepper.policy.train()
    with NoWaiting(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        run._one_step()
