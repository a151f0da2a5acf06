import pytest

from mimetic.errors import ConfigError
from mimetic.evaluate.episodes import Training, choose_episodes, spread

PRESENT = list(range(10))


def trained(on, held_out=(), is_same=True):
    return Training("me/pick", is_same=is_same, trained=frozenset(on), held_out=frozenset(held_out))


def test_the_held_out_episodes_are_the_default():
    choice = choose_episodes(PRESENT, None, trained(range(8), {8, 9}))
    assert choice.episodes == (8, 9)
    assert choice.were_trained_on is False
    assert "held out" in choice.note


def test_without_held_out_ones_the_unused_episodes_are_the_default():
    choice = choose_episodes(PRESENT, None, trained(range(3)))
    assert choice.episodes == tuple(range(3, 10))
    assert choice.were_trained_on is False


def test_when_all_were_trained_on_all_are_evaluated_and_it_is_said():
    choice = choose_episodes(PRESENT, None, trained(PRESENT))
    assert choice.episodes == tuple(PRESENT)
    assert choice.were_trained_on is True
    assert choice.note.startswith("All of these episodes were part of the training data")


def test_wanted_episodes_win_and_seen_ones_among_them_are_named():
    choice = choose_episodes(PRESENT, [9, 0, 1], trained(range(8), {8, 9}))
    assert choice.episodes == (0, 1, 9)
    assert choice.were_trained_on is True
    assert choice.note.startswith("2 of these 3 episodes (0-1) were part of the training data")


@pytest.mark.parametrize("training", [None, trained(PRESENT, is_same=False)])
def test_what_is_not_known_is_not_claimed(training):
    choice = choose_episodes(PRESENT, None, training)
    assert choice.episodes == tuple(PRESENT)
    assert choice.were_trained_on is None
    assert "may have been trained on" in choice.note


def test_held_out_episodes_that_are_gone_are_not_chosen():
    assert choose_episodes([0, 1, 2, 8], None, trained(range(8), {8, 9})).episodes == (8,)


def test_absent_episodes_are_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match=r"does not have: \[11, 12\]") as caught:
        choose_episodes([0, 1, 2, 5], [1, 11, 12], None)
    assert caught.value.hint == "it has 0-2, 5"


@pytest.mark.parametrize(
    ("count", "most", "wanted"), [(5, 0, [0, 1, 2, 3, 4]), (5, 9, [0, 1, 2, 3, 4]), (9, 3, [0, 4, 8]), (9, 1, [4])]
)
def test_positions_are_spread_evenly(count, most, wanted):
    assert spread(count, most) == wanted
