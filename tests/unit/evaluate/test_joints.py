import numpy as np

from mimetic.evaluate.joints import choose_hold, joint_names

FRAMES = 200
ACTIONS = np.cumsum(np.random.default_rng(0).normal(size=(FRAMES, 3)), axis=0)
STATES = np.vstack([ACTIONS[:1], ACTIONS[:-1]])  # the arm follows its command one frame later


def test_dimensions_without_names_are_numbered():
    assert joint_names(["a", "b"], 2, "action") == ["a", "b"]
    for names in (None, ["a"], ["a", "a"]):
        assert joint_names(names, 2, "action") == ["action[0]", "action[1]"]


def test_the_state_is_held_by_name_whatever_its_order():
    hold = choose_hold(["a", "b", "c"], ["c", "a", "b", "x"], ACTIONS, np.c_[STATES[:, 2], STATES])
    assert hold.columns == (1, 2, 0)
    assert "same names" in hold.explanation


def test_the_state_is_held_by_position_when_only_the_number_agrees():
    hold = choose_hold(["a", "b", "c"], ["u", "v", "w"], ACTIONS, STATES)
    assert hold.columns == (0, 1, 2)
    assert "same order" in hold.explanation


def test_the_recorded_action_is_held_when_sizes_differ_or_there_is_no_state():
    for names, states in ((["u", "v"], STATES[:, :2]), (None, None)):
        hold = choose_hold(["a", "b", "c"], names, ACTIONS, states)
        assert hold.columns is None
        assert hold.explanation.startswith("holding still means repeating the recorded action")


def test_a_state_in_other_units_or_a_relative_action_is_not_held():
    for actions in (ACTIONS * 57.3 + 300, np.diff(ACTIONS, axis=0, prepend=ACTIONS[:1])):
        hold = choose_hold(["a", "b", "c"], ["a", "b", "c"], actions, STATES)
        assert hold.columns is None
        assert "not the same quantity" in hold.explanation


def test_actions_that_never_move_do_not_disturb_the_choice():
    still = np.ones((FRAMES, 3))
    assert choose_hold(["a", "b", "c"], ["a", "b", "c"], still, still).columns == (0, 1, 2)
