"""mimetic's SmolVLA, step by step, against LeRobot 0.6.1 with the same weights and inputs (fixtures/smolvla).

Tolerances of its README for float32: masks exact, prepared frames 1e-6, activations 1e-5 absolute; where values reach
10 to 60 (embeddings times sqrt(48), squared errors) 1e-6 of the value is added. mimetic leaves out what nobody reads:
the embeddings of masked cameras, padded instructions, and the last layers' outputs.
"""

from __future__ import annotations

import pytest
import torch
from smolvla_cases import SMOLVLA, WITH_INTERMEDIATES, assert_near, case

from mimetic.policies.smolvla.flow import flow_target
from mimetic.policies.smolvla.network import time_embedding

pytestmark = pytest.mark.parametrize("name", WITH_INTERMEDIATES)


@pytest.fixture(autouse=True)
def in_the_fixtures(monkeypatch):
    monkeypatch.chdir(SMOLVLA)


def watch(policy):
    """Results of the network's steps by name, filled when the policy runs."""
    seen = {}
    for name in ("encode_frames", "embed_prefix", "embed_state", "read_prefix"):
        step = getattr(policy.model, name)

        def record(*args, name=name, step=step, **kwargs):
            result = step(*args, **kwargs)
            if name == "encode_frames" and name in seen:  # called for a few frames at a time
                seen[name] = (torch.cat([seen[name][0][0], args[0]]),), torch.cat([seen[name][1], result])
            else:
                seen[name] = args, result
            return result

        setattr(policy.model, name, record)
    policy.model.expert.norm.register_forward_hook(lambda *args: seen.update(suffix_out=args[-1]))
    return seen


def run(name):
    c = case(name)
    policy = c.policy()
    seen = watch(policy)
    with torch.no_grad():
        errors, _ = policy.errors(c.batch(), noise=c.expected["noise"], time=c.expected["time"])
    return c, policy, seen, errors


def columns(c):
    """Places of the golden prefix in front of its state token that mimetic keeps, and the place of the state token."""
    valid, flags = c.expected["prefix_pad_masks"], c.expected["prefix_att_masks"]
    state = int(flags[0].nonzero())
    longest = int(c.batch()["observation.language.attention_mask"].sum(dim=1).max())
    n_words = c.batch()["observation.language.tokens"].shape[1]
    assert valid[:, state].all()
    return torch.arange(state - n_words + longest), state


def test_prepared_frames_and_their_features(name):
    c, _, seen, _ = run(name)
    (pixels,), features = seen["encode_frames"]
    n_cameras = sum(key.startswith("image_prepared_first_sample") for key in c.expected)
    present = [key for key in c.config["input_features"] if ".images." in key and key in c.batch()]
    assert n_cameras == len(present)
    for i, (frames, found) in enumerate(zip(pixels.chunk(n_cameras), features.chunk(n_cameras), strict=True)):
        assert_near(frames[:1], c.expected[f"image_prepared_first_sample.{i}"], atol=1e-6)
        assert_near(found, c.expected[f"image_embedding.{i}"], atol=1e-5)


def test_embeddings_and_mask_of_the_prefix(name):
    c, _, seen, _ = run(name)
    embeds, mask = seen["embed_prefix"][1]
    before, state = columns(c)
    assert torch.equal(mask, c.expected["prefix_pad_masks"][:, before])
    expected = c.expected["prefix_embs"]
    assert_near(embeds[mask], expected[:, before][mask], atol=1e-5, rtol=1e-6)
    assert_near(seen["embed_state"][1][:, 0], expected[:, state], atol=1e-5)


def test_keys_and_values_of_every_layer_that_is_read(name):
    c, policy, seen, _ = run(name)
    keys, values = seen["read_prefix"][1]
    before, state = columns(c)
    place = torch.cat([before, torch.tensor([state])])
    valid = c.expected["prefix_pad_masks"][:, place]
    stride = policy.model.stride
    assert len(keys) == len(values) == (len(policy.model.expert.layers) - 1) * stride + 1
    for kind, found in (("keys", keys), ("values", values)):
        for i, tensor in enumerate(found):
            expected = c.expected[f"prefix_{kind}.{i}"][:, :, place]
            assert_near(tensor.transpose(1, 2)[valid], expected.transpose(1, 2)[valid], atol=1e-5)


def test_noisy_actions_target_and_time_embedding(name):
    c, policy, _, _ = run(name)
    actions = torch.zeros_like(c.expected["noise"])
    recorded = c.expected.get("aloha_action", c.batch()["action"])
    actions[:, :, : recorded.shape[2]] = recorded
    target = flow_target(actions, c.expected["noise"], c.expected["time"])
    assert_near(target.x_t, c.expected["x_t"], atol=1e-6)
    assert_near(target.u_t, c.expected["u_t"], atol=1e-6)
    expected = c.expected["time_embedding"]
    found = time_embedding(c.expected["time"], expected.shape[1], policy.config.min_period, policy.config.max_period)
    assert_near(found, expected, atol=1e-12)


def test_velocity_expert_output_and_each_squared_error(name):
    c, policy, seen, errors = run(name)
    assert_near(seen["suffix_out"], c.expected["suffix_out"], atol=1e-5)
    assert_near(errors, c.expected["losses_full"], atol=1e-5, rtol=1e-6)
    with torch.no_grad():
        velocity = policy.model.velocity(policy.prefix(c.batch()), c.expected["x_t"], c.expected["time"])
    assert_near(velocity, c.expected["v_t"], atol=1e-5)
