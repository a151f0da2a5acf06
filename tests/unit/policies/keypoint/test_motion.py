"""How far the joints have moved: what training asks of a dataset, and what playing remembers instead."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from mimetic.errors import ShapeError
from mimetic.policies.keypoint.policy import KeypointPolicy
from mimetic.train.data import windows

STATE = "observation.state"


class Unreadable(Mapping):
    """What an evaluation gives where a policy said that it reads nothing."""

    def __getitem__(self, key):
        raise AssertionError("read")

    __iter__ = __len__ = __getitem__


def test_training_asks_for_two_joint_positions_and_one_picture(make_config):
    config = make_config(motion_frames=7)
    features = [*config.input_features, "action"]
    assert windows(config, features, {}) == {STATE: [-7, 0], "action": list(range(8))}
    assert windows(make_config(), features, {}) == {"action": list(range(8))}
    assert windows(make_config(motion_frames=7, state=0), ["observation.images.cam0"], {}) == {}


def test_a_window_is_asked_for_by_the_policy_s_name_and_given_the_dataset_s(make_config):
    features = ["observation.joints", STATE, "action"]
    found = windows(make_config(motion_frames=7), features, {"observation.joints": STATE, STATE: "observation.other"})
    assert found == {"observation.joints": [-7, 0], "action": list(range(8))}


def test_the_motion_changes_the_prediction_and_the_place_before_does_so_through_it_alone(make_config, make_batch):
    policy = KeypointPolicy(make_config(motion_frames=2))
    batch = make_batch(policy.config)
    still = {**batch, STATE: batch[STATE][:, 1:].expand(-1, 2, -1)}
    assert not torch.equal(policy.predict_chunk(batch), policy.predict_chunk(still))
    # Without the weights that read the motion, where the joints were makes no difference.
    with torch.no_grad():
        policy.model.head[0].weight[:, -4:] = 0
    assert torch.equal(policy.predict_chunk(batch), policy.predict_chunk(still))


def test_one_joint_position_where_two_are_read_is_refused(make_config, make_batch):
    policy = KeypointPolicy(make_config(motion_frames=2))
    batch = make_batch(policy.config)
    with pytest.raises(ShapeError, match=r"observation.state"):
        policy.predict_chunk({**batch, STATE: batch[STATE][:, 1]})


@pytest.mark.parametrize("motion", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n_steps", [1, 3, 5, 8])
def test_playing_remembers_what_a_dataset_would_give(make_config, make_batch, motion, n_steps):
    """Every prediction is that of the window of a dataset, in which frames before an episode repeat its first."""
    policy = KeypointPolicy(make_config(motion_frames=motion, n_action_steps=n_steps))
    frames = make_batch(policy.config, size=30)
    frames[STATE] = frames[STATE][:, 0]
    for _ in range(2):  # again after `reset`, which forgets the first episode
        policy.reset()
        expected = torch.zeros(0)
        n_read = 0
        for tick in range(30):
            now = {key: frames[key][tick : tick + 1] for key in policy.config.input_features}
            reads = policy.needs_observation()
            n_read += reads
            action = policy.select_action(now if reads else Unreadable())
            if tick % n_steps == 0:
                before = frames[STATE][max(0, tick - motion)]
                window = {**now, STATE: torch.stack([before, frames[STATE][tick]])[None]}
                expected = policy.predict_chunk(window)
            assert torch.equal(action, expected[:, tick % n_steps])
        assert n_read <= 2 * -(-30 // n_steps)
        frames = {key: value.flip(0) for key, value in frames.items()}


def test_a_motion_that_fits_the_chunk_costs_no_further_observation(make_config, make_batch):
    policy = KeypointPolicy(make_config(motion_frames=6, n_action_steps=3))
    frames = make_batch(policy.config)
    now = {key: frames[key][:1] for key in policy.config.input_features}
    now[STATE] = now[STATE][:, 0]
    found = []
    for _ in range(9):
        found.append(policy.needs_observation())
        policy.select_action(now)
    assert found == [True, False, False] * 3


def test_noise_reaches_the_motion_too(make_config, make_batch):
    policy = KeypointPolicy(make_config(still=True, motion_frames=2))
    batch = make_batch(policy.config)
    policy.config.__dict__["state_noise"] = 0.3
    with torch.no_grad():
        policy.model.head[0].weight[:, -8:-4] = 0  # of the joint positions themselves
    assert policy.train().loss(batch)[0] != policy.loss(batch)[0]
