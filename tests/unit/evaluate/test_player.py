"""Several episodes of one policy at once, each as if it were the only one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from toy_env import CAMERA, SIZE_PX, layout, picture

from mimetic.errors import CheckpointError
from mimetic.evaluate.loading import evaluation_precision
from mimetic.evaluate.rollout.player import Player, evaluating
from mimetic.names import STATE
from mimetic.policies.checkpoint import load_pretrained
from mimetic.testing.act import tiny_act


class Pipe:
    """A pipeline that only keeps track of its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        return dict(batch)

    def run_action(self, action):
        return action


def act_player():
    policy = tiny_act(n_action_steps=3, chunk_size=8)
    policy.train()
    pipe = Pipe()
    return Player(policy, pipe, pipe), pipe


def observation(value):
    return {STATE: np.full(6, value, np.float32), "observation.environment_state": np.full(5, value, np.float32)}


def test_two_episodes_do_not_share_a_queue():
    player, _ = act_player()
    alone = [player.sit_down(0).act(observation(0.1), "") for _ in range(1)]
    first, second = player.sit_down(0), player.sit_down(1)
    a = [first.act(observation(0.1), "")]
    b = [second.act(observation(5.0), "")]
    a += [first.act(observation(0.1), "") for _ in range(4)]
    b += [second.act(observation(5.0), "") for _ in range(4)]
    assert np.array_equal(a[0], alone[0])
    assert not np.allclose(a[0], b[0])
    again = player.sit_down(0)
    assert np.array_equal(np.stack(a), np.stack([again.act(observation(0.1), "") for _ in range(5)]))


def test_the_observation_is_prepared_only_when_the_policy_predicts():
    player, pipe = act_player()
    seat = player.sit_down(0)
    for _ in range(7):
        seat.act(observation(0.1), "")
    assert pipe.calls == 3  # at calls 1, 4 and 7, of 3 executed steps each
    assert len(seat.timing.predictions_s) == 3
    assert seat.timing.actions == 7


def test_networks_are_shared_and_not_copied():
    player, _ = act_player()
    seat = player.sit_down(0)
    assert seat._policy.model is player.policy.model
    assert seat._policy._queue is not player.policy._queue


def test_every_episode_has_random_numbers_of_its_own_and_the_callers_stay(toys):
    loaded = load_pretrained(toys.checkpoint(noise=0.5))
    player = Player(loaded.policy, loaded.preprocessor, loaded.postprocessor)
    colour, points = layout(1000)
    seen = {STATE: np.zeros(2, np.float32), CAMERA: picture(points)}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    seats = [player.sit_down(seed) for seed in (5, 6, 5)]
    drawn = [[] for _ in seats]
    for _ in range(3):
        for seat, kept in zip(seats, drawn, strict=True):
            kept.append(seat.act(seen, f"Go to the {colour} point"))
            torch.randn(1)  # somebody else draws in between
    assert np.array_equal(drawn[0], drawn[2])
    assert not np.allclose(drawn[0], drawn[1])
    torch.manual_seed(3)
    player.sit_down(5).act(seen, f"Go to the {colour} point")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_vision_language_policy_has_noise_of_its_own_in_every_episode(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "fixtures/smolvla")  # of its backbone
    loaded = load_pretrained("tiny_cross", config_overrides={"precision": "float32"})
    player = Player(loaded.policy, loaded.preprocessor, loaded.postprocessor)
    inputs = loaded.config.input_features
    seen = {
        key: np.zeros((32, 32, 3), np.uint8) if "images" in key else np.zeros(feature.shape, np.float32)
        for key, feature in inputs.items()
    }
    first, second, again = (player.sit_down(seed).act(seen, "pick the cube") for seed in (3, 4, 3))
    assert np.array_equal(first, again)
    assert not np.allclose(first, second)


def test_an_action_that_is_not_finite_is_refused():
    player, _ = act_player()
    with torch.no_grad():
        for parameter in player.policy.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(CheckpointError, match="not finite"):
        player.sit_down(0).act(observation(0.1), "")


def test_autocast_is_on_where_use_amp_asks_for_it_and_nowhere_else():
    player, pipe = act_player()
    plain = player.sit_down(0).act(observation(0.3), "")
    config = replace(player.policy.config, use_amp=True)
    precision = evaluation_precision(config, torch.device("cpu"))
    assert precision.autocast_dtype is torch.bfloat16
    assert "bfloat16 autocast (--policy.use_amp=true)" in precision.reason
    seen = []
    player.policy.model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    narrow = Player(player.policy, pipe, pipe, precision=precision).sit_down(0).act(observation(0.3), "")
    player.sit_down(0).act(observation(0.3), "")
    assert seen == [True, False]
    assert not np.array_equal(narrow, plain)
    np.testing.assert_allclose(narrow, plain, atol=0.05)


def test_without_use_amp_weights_keep_their_dtype():
    config = tiny_act().config
    found = evaluation_precision(config, torch.device("cpu"))
    assert found.autocast_dtype is None
    assert found.reason == "precision: that of the weights, no autocast, on cpu"
    on_mps = evaluation_precision(replace(config, use_amp=True), torch.device("mps"))
    assert on_mps.autocast_dtype is None
    assert "--policy.use_amp=true has no effect on mps" in on_mps.reason


def test_a_vision_language_policy_plays_under_autocast_too(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "fixtures/smolvla")  # of its backbone
    loaded = load_pretrained("tiny_cross", config_overrides={"precision": "float32"})
    precision = evaluation_precision(replace(loaded.config, use_amp=True), torch.device("cpu"))
    player = Player(loaded.policy, loaded.preprocessor, loaded.postprocessor, precision=precision)
    seen = {
        key: np.zeros((32, 32, 3), np.uint8) if "images" in key else np.zeros(feature.shape, np.float32)
        for key, feature in loaded.config.input_features.items()
    }
    assert np.isfinite(player.sit_down(3).act(seen, "pick the cube")).all()


def test_modes_of_all_parts_come_back():
    net = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    net.train()
    net[1].eval()
    with evaluating(net):
        assert not any(module.training for module in net.modules())
    assert (net.training, net[0].training, net[1].training) == (True, True, False)


def test_cameras_reach_the_policy_channels_first():
    seen = {}

    class Looker(Pipe):
        def __call__(self, batch):
            seen.update(batch)
            return super().__call__(batch)

    player, _ = act_player()
    player.preprocessor = Looker()
    image = np.zeros((SIZE_PX, SIZE_PX, 3), np.uint8)
    image[0, 1, 2] = 9
    player.sit_down(0).act({**observation(0.0), CAMERA: image}, "go")
    assert seen[CAMERA].shape == (1, 3, SIZE_PX, SIZE_PX)
    assert seen[CAMERA][0, 2, 0, 1] == 9
    assert seen[CAMERA].dtype == torch.uint8
    assert seen["task"] == ["go"]
