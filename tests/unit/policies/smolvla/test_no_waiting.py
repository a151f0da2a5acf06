"""Nothing in a training step or between Euler steps makes the host wait for an accelerator.

The policy lies on the meta device here, whose tensors have no values: whatever would read one back (`item`, `bool`,
`tolist`, `nonzero`, a mask as an index) is an error, and every device other than the CPU takes the same branches. A
dispatch mode counts the copies between host and device, which wait too when memory is pageable.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mimetic.names import LANGUAGE_LONGEST
from mimetic.optim.clip import clip_gradients
from mimetic.policies.build import make_policy
from mimetic.policies.smolvla.config import RTCConfig
from mimetic.policies.smolvla.flow import draw_time
from mimetic.testing.smolvla import FRONT, tiny_smolvla_batch, tiny_smolvla_config, write_tiny_vlm

SETTINGS = [
    {},
    {"noise_draws": 2, "empty_cameras": 1, "prefix_length": 60},
    {"attention_mode": "self_attn", "add_image_special_tokens": True},
    {"self_attn_every_n_layers": 0, "num_expert_layers": 2, "train_expert_only": False},
]


class Crossings(TorchDispatchMode):
    """Notes the operations that have tensors of two devices."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor)]
        if len({x.device.type for x in tensors if x.ndim}) > 1:
            self.seen.append(func)
        return out


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


def on_meta(vlm, **settings):
    policy = make_policy(tiny_smolvla_config(vlm, **settings), init_backbone=False).to("meta")
    batch = {key: value.to("meta") for key, value in tiny_smolvla_batch(policy.config, 2).items()}
    batch[f"{FRONT}_padding_mask"] = torch.ones(2, dtype=torch.bool, device="meta")
    return policy, {**batch, LANGUAGE_LONGEST: 7}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("precision", ["float32", "mixed", "released"])
def test_a_training_step(vlm, precision, settings):
    policy, batch = on_meta(vlm, precision=precision, **settings)
    with Crossings() as crossings:
        loss, parts = policy.train().loss(batch)
        loss.backward()
        norm = clip_gradients([p for p in policy.parameters() if p.requires_grad], 10.0)
    assert {x.device.type for x in (loss, norm, *parts.values())} == {"meta"}
    assert len(crossings.seen) == 1, crossings.seen  # flow times, drawn on the host
    assert all(p.grad is not None for p in policy.parameters() if p.requires_grad)


@pytest.mark.parametrize("settings", [*SETTINGS[:3], {"rtc_config": RTCConfig()}])
@pytest.mark.parametrize("precision", ["float32", "mixed", "released"])
def test_a_chunk(vlm, precision, settings):
    policy, batch = on_meta(vlm, precision=precision, num_steps=5, **settings)
    rest = {"inference_delay": 2, "prev_chunk_left_over": torch.zeros(2, 4, 4)} if "rtc_config" in settings else {}
    at_start = []
    prefix = policy.prefix
    policy.prefix = lambda batch: (at_start.append(len(crossings.seen)), prefix(batch))[1]
    with Crossings() as crossings:
        chunk = policy.predict_chunk(batch, **rest)
    assert chunk.device.type == "meta"
    # Times of the steps, and what guides them; all before the prefix, so that they wait for nothing.
    assert at_start == [len(crossings.seen)] == [3 if rest else 1]


def test_the_check_finds_what_waits(vlm):
    policy, batch = on_meta(vlm)
    project = policy.model.embed_state
    policy.model.embed_state = lambda state: project(state) * bool(state.isfinite().all())
    with pytest.raises(RuntimeError, match="meta"):
        policy.loss(batch)
    policy.model.embed_state = lambda state: project(state + torch.zeros(2, 1).to("meta"))
    with Crossings() as crossings:
        policy.loss(batch)
    assert len(crossings.seen) == 2


def test_times_are_drawn_on_the_host_whatever_the_default_device_is():
    torch.manual_seed(3)
    expected = draw_time(4, torch.device("cpu"))
    torch.manual_seed(3)
    with torch.device("meta"):
        assert torch.equal(draw_time(4, torch.device("cpu")), expected)
