import logging

import numpy as np
import pytest

from mimetic.data.sampler import EpisodeSampler, resume_position, shard_batches, steps_per_epoch
from mimetic.errors import ConfigError


def test_every_frame_of_short_episodes_is_a_sample():
    """Episodes of 1, 3 and 7 frames under a chunk of 8: padding is the policy's business, nothing is left out."""
    sampler = EpisodeSampler([0, 1, 4], [1, 4, 11], shuffle=True, seed=5)
    for epoch in range(3):
        assert sorted(sampler.order(epoch).tolist()) == list(range(11))


def test_episodes_that_become_empty_are_named_in_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="mimetic"):
        sampler = EpisodeSampler([0, 1, 4], [1, 4, 11], drop_n_last_frames=3)
    assert len(sampler) == 4
    assert "[0, 1]" in caplog.text


def test_nothing_left_is_refused_with_the_numbers():
    with pytest.raises(ConfigError) as caught:
        EpisodeSampler([0, 5], [5, 9], drop_n_first_frames=2, drop_n_last_frames=8)
    assert "2 frames dropped at the start and 8 at the end" in caught.value.message
    assert caught.value.hint


def test_unknown_episodes_are_refused():
    with pytest.raises(ConfigError, match=r"\[-1, 7\] do not exist, there are 2"):
        EpisodeSampler([0, 5], [5, 9], episodes=[7, 0, -1])


def test_the_order_of_the_list_of_episodes_does_not_matter():
    first = EpisodeSampler([0, 5, 9], [5, 9, 12], episodes=[2, 0], shuffle=True, seed=1)
    second = EpisodeSampler([0, 5, 9], [5, 9, 12], episodes=[0, 2, 2], shuffle=True, seed=1)
    assert np.array_equal(first.order(4), second.order(4))


def test_an_order_can_be_changed_without_changing_the_sampler():
    sampler = EpisodeSampler([0], [5])
    sampler.order(0)[:] = 9
    assert sampler.order(0).tolist() == [0, 1, 2, 3, 4]


def test_state_moves_on_as_soon_as_an_epoch_is_begun():
    sampler = EpisodeSampler([0], [5])
    sampler.load_state_dict({"epoch": 3, "start_index": 2})
    iterator = iter(sampler)
    assert sampler.state_dict() == {"epoch": 4, "start_index": 0}
    assert list(iterator) == [2, 3, 4]
    assert len(sampler) == 5


@pytest.mark.parametrize("num_processes", [1, 2, 3])
@pytest.mark.parametrize("n", [1, 5, 41, 48])
def test_the_tail_after_a_resume_equals_the_uninterrupted_run(n, num_processes):
    """Unlike LeRobot's, whose last step of a resumed epoch wraps around from the place of the resume."""
    steps = steps_per_epoch(n, 4, num_processes)
    for rank in range(num_processes):
        whole = shard_batches(n, 4, num_processes=num_processes, rank=rank)
        assert len(whole) == steps
        for step in range(steps):
            _, start = resume_position(step, n, 4, num_processes)
            tail = shard_batches(n, 4, num_processes=num_processes, rank=rank, start_index=start)
            assert [places.tolist() for places in tail] == [places.tolist() for places in whole[step:]]
