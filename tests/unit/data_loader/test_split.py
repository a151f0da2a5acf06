from dataclasses import dataclass

import pytest

from mimetic.data.split import split_episodes
from mimetic.errors import ConfigError


@dataclass
class Row:
    episode_index: int
    tasks: tuple[str, ...]


ROWS = [Row(4, ("b",)), Row(9, ("a", "b")), Row(2, ("b",)), Row(7, ("a",)), Row(1, ("b",))]


def test_the_last_episodes_of_each_task_are_held_out_in_the_order_given():
    assert split_episodes(ROWS, 0.4) == ([4, 9], [2, 1, 7])


def test_nothing_is_held_out_for_zero():
    assert split_episodes(ROWS, 0.0) == ([4, 2, 1, 9, 7], [])


def test_an_episode_without_task_forms_a_group_of_its_own():
    assert split_episodes([Row(0, ()), Row(1, ()), Row(2, ("a",)), Row(3, ("a",))], 0.5) == ([0, 2], [1, 3])


@pytest.mark.parametrize("share", [-0.1, 1.0, 2.0])
def test_a_share_outside_of_its_range_is_refused(share):
    with pytest.raises(ConfigError, match="eval_split"):
        split_episodes(ROWS, share)


def test_no_training_episode_is_refused_with_the_tasks():
    with pytest.raises(ConfigError) as caught:
        split_episodes(ROWS, 0.9)
    assert "3 of `b`, 2 of `a`" in caught.value.message
    assert "rounded up" in caught.value.hint
