"""SmolVLA's chunks, queue, guidance and ALOHA conversions against LeRobot 0.6.1 (fixtures/smolvla).

Tolerance of its README for float32: 1e-5 absolute. Actions in the units of the dataset: times the largest deviation
of an action, 30.
"""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from smolvla_cases import FLOAT32, SMOLVLA, assert_near, case

from mimetic.errors import ConfigError
from mimetic.names import POSTPROCESSOR
from mimetic.policies.checkpoint import load_pretrained
from mimetic.policies.smolvla import aloha
from mimetic.policies.smolvla.flow import euler_times
from mimetic.policies.smolvla.guidance import prefix_weights
from mimetic.policies.smolvla.images import resize_with_padding
from mimetic.processing.store import load_pipeline


@pytest.fixture(autouse=True)
def in_the_fixtures(monkeypatch):
    monkeypatch.chdir(SMOLVLA)


@pytest.mark.parametrize("name", FLOAT32)
def test_chunk_and_every_euler_step(name, monkeypatch):
    c = case(name)
    policy = c.policy()
    steps = []

    def recorded(prefix, x, time, velocity=policy.model.velocity_at):
        steps.append((x, velocity(prefix, x, time)))
        return steps[-1][1]

    monkeypatch.setattr(policy, "_velocity", recorded)
    chunk = policy.predict_chunk(c.batch(), noise=c.sampling["noise"])
    assert_near(chunk, c.sampling["chunk"], atol=1e-5)
    times = torch.tensor(euler_times(c.config["num_steps"]))
    assert torch.equal(times[:, None].expand_as(c.sampling["timesteps"]), c.sampling["timesteps"])
    assert_near(torch.stack([x for x, _ in steps]), c.sampling["x_t"], atol=1e-5)
    assert_near(torch.stack([v for _, v in steps]), c.sampling["v_t"], atol=1e-5)


@pytest.mark.parametrize("name", FLOAT32)
def test_velocity_in_training_equals_the_first_euler_step(name):
    c = case(name)
    policy = c.policy()
    with torch.no_grad():
        velocity = policy.model.velocity(policy.prefix(c.batch()), c.sampling["noise"], torch.ones(3))
    assert_near(velocity, c.sampling["v_t"][0], atol=1e-5)


@pytest.mark.parametrize("name", FLOAT32)
def test_actions_in_the_units_of_the_dataset(name):
    c = case(name)
    postprocessor = load_pipeline(c.config_folder, POSTPROCESSOR)
    chunk = c.policy().predict_chunk(c.batch(), noise=c.sampling["noise"])
    assert_near(unnormalised(postprocessor, chunk), c.sampling["chunk_unnormalized"], atol=3e-4)


@pytest.mark.parametrize("name", FLOAT32)
def test_the_queue_is_refilled_after_n_action_steps(name):
    c = case(name)
    policy, postprocessor = c.policy(), load_pipeline(c.config_folder, POSTPROCESSOR)
    noise, n_steps = c.sampling["noise"], c.config["n_action_steps"]
    policy.reset()
    expected = c.sampling["select_action"]
    assert len(expected) == n_steps + 2
    actions = [policy.select_action(c.batch(), noise=noise if i < n_steps else -noise) for i in range(len(expected))]
    assert_near(torch.stack(actions), expected, atol=1e-5)
    assert (expected[0] - expected[n_steps]).abs().max() > 0.1  # the second chunk is another one
    found = torch.stack([unnormalised(postprocessor, action) for action in actions])
    assert_near(found, c.sampling["select_action_postprocessed"], atol=3e-4)


def unnormalised(postprocessor, actions):
    return postprocessor({"action": actions})["action"]


def test_guidance_by_the_previous_chunk():
    c, batch = case("rtc"), case("cross_b3").batch()
    policy, settings, noise = c.policy(), c.json("settings"), c.expected["noise"]
    assert_near(policy.predict_chunk(batch, noise=noise), c.expected["chunk_without_prev"], atol=1e-5)
    guided = {
        "noise": noise,
        "inference_delay": settings["inference_delay"],
        "prev_chunk_left_over": c.expected["prev_chunk_left_over"],
    }
    horizon = settings["execution_horizon"]
    assert c.config["rtc_config"]["execution_horizon"] == horizon
    assert_near(policy.predict_chunk(batch, execution_horizon=horizon, **guided), c.expected["chunk"], atol=1e-5)
    assert_near(policy.predict_chunk(batch, **guided), c.expected["chunk"], atol=1e-5)
    assert (policy.predict_chunk(batch, execution_horizon=3, **guided) - c.expected["chunk"]).abs().max() > 1e-2
    with torch.inference_mode():  # the reference cannot
        assert_near(policy.predict_chunk(batch, **guided), c.expected["chunk"], atol=1e-5)
    with pytest.raises(ConfigError, match="real-time chunking"):
        policy.select_action(batch)


def test_guidance_leaves_a_policy_without_it_alone():
    c, batch = case("cross_b3"), case("cross_b3").batch()
    rest = case("rtc").expected["prev_chunk_left_over"]
    chunk = c.policy().predict_chunk(batch, noise=c.sampling["noise"], inference_delay=2, prev_chunk_left_over=rest)
    assert_near(chunk, c.sampling["chunk"], atol=1e-5)


def test_weights_of_the_guidance():
    expected = {key: value for key, value in case("rtc").expected.items() if key.startswith("weights.")}
    assert len(expected) == 16
    for key, weights in expected.items():
        _, schedule, sizes = key.split(".")
        assert_near(prefix_weights(schedule, *map(int, sizes.split("_"))), weights, atol=1e-6)


def test_aloha_conversions_leave_the_batch_alone():
    c = case("aloha")
    batch = c.batch()
    assert_near(aloha.decode_state(batch["observation.state"]), c.expected["aloha_state"], atol=1e-6)
    assert_near(aloha.decode_actions(batch["action"]), c.expected["aloha_action"], atol=1e-6)
    table = load_file(c.folder / "gripper_functions.safetensors")
    for function in (aloha.to_angular, aloha.from_angular, aloha.from_angular_inv):
        assert_near(function(table["x"]), table[function.__name__], atol=1e-6)
    policy, before = c.policy(), c.batch()
    policy.loss(batch, noise=c.expected["noise"], time=c.expected["time"])
    policy.predict_chunk(batch)
    assert all(torch.equal(batch[key], before[key]) for key in before)


def test_aloha_trains_with_the_time_axis_of_training_batches():
    """LeRobot raises an IndexError there (spec/smolvla.md 8.4)."""
    c = case("aloha")
    batch = c.batch()
    batch["observation.state"] = batch["observation.state"][:, None]
    loss, _ = c.policy().loss(batch, noise=c.expected["noise"], time=c.expected["time"])
    assert loss.item() == pytest.approx(c.numbers["loss"], rel=1e-6)


def test_a_robot_s_observation_becomes_actions():
    folder = SMOLVLA / "cases/robot_obs"
    expected, text = load_file(folder / "expected.safetensors"), json.loads((folder / "text.json").read_text())
    observation = {
        key: value.permute(2, 0, 1).float().contiguous() / 255 if value.dtype == torch.uint8 else value
        for key, value in load_file(folder / "observation.safetensors").items()
    }
    loaded = load_pretrained(SMOLVLA / "tiny_cross", config_overrides={"precision": "float32"})
    batch = loaded.preprocessor({**observation, **text})
    for key in ("observation.language.tokens", "observation.language.attention_mask", "observation.state"):
        assert_near(batch[key], expected[key], atol=1e-6)
    for wanted in expected["actions"]:
        action = loaded.policy.select_action(batch, noise=expected["noise"])
        assert_near(unnormalised(loaded.postprocessor, action), wanted, atol=3e-4)


@pytest.mark.parametrize("number", range(7))
def test_resizing_with_padding_on_the_left_and_on_top(number):
    folder = SMOLVLA / "cases/resize"
    tensors = load_file(folder / "resize.safetensors")
    height, width = json.loads((folder / "cases.json").read_text())[number]["target_hw"]
    if number == 4:  # too large to be stored; made by the README's formula
        y, x = torch.linspace(0, 1, 480)[:, None], torch.linspace(0, 1, 640)[None]
        frames = (torch.sin(40 * y) * torch.cos(55 * x) * 0.5 + 0.5)[None, None]
    else:
        frames = tensors[f"{number}.in"]
    assert_near(resize_with_padding(frames, width, height), tensors[f"{number}.out"], atol=1e-6)
