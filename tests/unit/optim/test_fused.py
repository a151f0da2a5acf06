"""Fused updates are the plain ones up to float32's rounding, and their files are the same.

One update is a handful of float32 operations whose order differs: 2^-24 relative each on the moments. The step itself
is lr * m / (sqrt(v) + eps), relative error 1e-6; ten steps of 1e-2 on weights around 1 stay within 1e-6.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mimetic.names import OPTIMIZER_GROUPS_JSON, OPTIMIZER_STATE
from mimetic.optim.build import can_fuse, make_optimizer
from mimetic.optim.config import AdamConfig, AdamWConfig, SGDConfig
from mimetic.train.state import load_optimizer, save_optimizer

CONFIGS = [
    AdamWConfig(lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1),
    AdamWConfig(lr=1e-2, weight_decay=0.0),
    AdamConfig(lr=1e-2, weight_decay=0.1),
    SGDConfig(lr=1e-2),
    SGDConfig(lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1),
    SGDConfig(lr=1e-2, momentum=0.9, dampening=0.5),
]


def parameters(seed=0):
    """Trained, frozen (of another dtype), trained but never used, and of odd sizes and shapes."""
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((33, 7), (1,), (), (5, 3, 2))]
    return [*made, nn.Parameter(torch.ones(4).bfloat16(), requires_grad=False), nn.Parameter(torch.ones(6))]


def run(config, steps, *, fused, options=(), start=0, optimizer=None, tensors=None):
    tensors = parameters() if tensors is None else tensors
    optimizer = optimizer or make_optimizer(config, tensors, fused=fused)
    for group in optimizer.param_groups:
        group.update(options)
    for step in range(start, start + steps):
        generator = torch.Generator().manual_seed(step)
        for tensor in tensors[:4]:
            tensor.grad = torch.randn(tensor.shape, generator=generator)
        optimizer.param_groups[0]["lr"] = config.lr * (1 + step) / 10  # as a schedule does
        optimizer.step()
    return tensors, optimizer


def assert_same(found, expected):
    for a, b in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    states = [optimizer.state_dict()["state"] for _, optimizer in (found, expected)]
    assert states[0].keys() == states[1].keys()
    for number, entries in states[1].items():
        assert states[0][number].keys() == entries.keys()
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(states[0][number][name], value, rtol=1e-5, atol=1e-7)
            else:
                assert states[0][number][name] == value


@pytest.mark.parametrize("config", CONFIGS)
def test_ten_steps(config):
    fused, plain = (run(config, 10, fused=fused) for fused in (True, False))
    assert fused[1].param_groups[0]["fused"] is True
    assert plain[1].param_groups[0]["fused"] is None
    assert_same(fused, plain)
    start = parameters()
    assert all((a - b).abs().max() > 1e-3 for a, b in zip(fused[0][:4], start[:4], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(fused[0][4:], start[4:], strict=True))  # no gradient, no decay


@pytest.mark.parametrize("options", [{"amsgrad": True}, {"maximize": True}, {"amsgrad": True, "maximize": True}])
def test_options_that_a_file_may_bring(options):
    config = CONFIGS[0]
    assert_same(*(run(config, 10, fused=fused, options=options) for fused in (True, False)))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("saved_by", [True, False])
@pytest.mark.parametrize("resumed_by", [True, False])
def test_a_run_continues_in_the_other_kind(config, saved_by, resumed_by, tmp_path):
    whole = run(config, 6, fused=resumed_by)
    tensors, optimizer = run(config, 3, fused=saved_by)
    save_optimizer(tmp_path, optimizer)
    tensors = [nn.Parameter(tensor.detach().clone(), requires_grad=tensor.requires_grad) for tensor in tensors]
    fresh = make_optimizer(config, tensors, fused=resumed_by)
    load_optimizer(tmp_path, fresh)
    assert fresh.param_groups[0]["fused"] is (True if resumed_by else None)
    assert_same(run(config, 3, fused=None, start=3, optimizer=fresh, tensors=tensors), whole)


@pytest.mark.parametrize("config", CONFIGS)
def test_files_do_not_tell_which_kind_wrote_them(config, tmp_path):
    for fused in (True, False):
        folder = tmp_path / str(fused)
        folder.mkdir()
        save_optimizer(folder, run(config, 2, fused=fused)[1])
    groups = [json.loads((tmp_path / kind / OPTIMIZER_GROUPS_JSON).read_text()) for kind in ("True", "False")]
    assert groups[0] == groups[1]
    assert [*groups[0][0]] == [*groups[1][0]]
    assert groups[0][0]["fused"] is None
    states = [load_file(tmp_path / kind / OPTIMIZER_STATE) for kind in ("True", "False")]
    layouts = [{key: (value.dtype, tuple(value.shape)) for key, value in state.items()} for state in states]
    assert layouts[0] == layouts[1]


def test_a_file_that_asks_for_loops_over_lists_still_resumes_fused(tmp_path):
    """`foreach` may be set in files; torch refuses both at once when an optimiser is built."""
    config = CONFIGS[0]
    tensors, optimizer = run(config, 3, fused=False, options={"foreach": True})
    save_optimizer(tmp_path, optimizer)
    assert json.loads((tmp_path / OPTIMIZER_GROUPS_JSON).read_text())[0]["foreach"] is True
    copied = copy.deepcopy(tensors)
    fresh = make_optimizer(config, copied, fused=True)
    load_optimizer(tmp_path, fresh)
    assert_same(
        run(config, 3, fused=None, start=3, optimizer=fresh, tensors=copied),
        run(config, 3, fused=None, start=3, optimizer=optimizer, tensors=tensors),
    )


def test_only_float32_on_devices_with_fused_kernels():
    assert can_fuse(parameters())
    narrow = nn.Parameter(torch.ones(2).bfloat16())
    assert not can_fuse([*parameters(), narrow])  # rounded once instead of several times: not LeRobot's numbers
    assert can_fuse([narrow.requires_grad_(False)])
    assert not can_fuse([nn.Parameter(torch.ones(2, device="meta"))])


def test_without_gradients_nothing_happens():
    optimizer = make_optimizer(replace(CONFIGS[0]), tensors := parameters(), fused=True)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(tensors, parameters(), strict=True))
    assert optimizer.state_dict()["state"] == {}


def test_lerobot_s_files_continue_in_both_kinds(fixtures):
    """The state of a real run of LeRobot 0.6.1; parameters that it has no state for are frozen there."""
    folder = fixtures / "training/run_preset/checkpoints/000006/training_state"
    groups, stored = json.loads((folder / OPTIMIZER_GROUPS_JSON).read_text()), load_file(folder / OPTIMIZER_STATE)
    results = []
    for fused in (True, False):
        generator = torch.Generator().manual_seed(1)
        tensors = {
            number: nn.Parameter(torch.randn(moment.shape if moment is not None else (2,), generator=generator))
            for group in groups
            for number in group["params"]
            for moment in [stored.get(f"state/{number}/exp_avg")]
        }
        optimizer = make_optimizer(
            AdamWConfig(), [{"params": [tensors[n] for n in group["params"]]} for group in groups], fused=fused
        )
        load_optimizer(folder, optimizer)
        assert int(optimizer.state_dict()["state"][0]["step"]) == 6
        for tensor in tensors.values():
            tensor.grad = torch.randn(tensor.shape, generator=generator)
        optimizer.step()
        results.append((list(tensors.values()), optimizer))
    assert_same(*results)
