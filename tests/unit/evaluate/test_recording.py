import numpy as np
import pytest

from mimetic.errors import DatasetFormatError
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.recording import Recording, spans_from_bounds


def recording(lengths=(5, 3), episodes=(4, 7)):
    """Actions that spell their row; the states are their negatives."""
    ends = np.cumsum(lengths)
    actions = np.arange(ends[-1], dtype=float)[:, None] + [0.0, 0.5]
    spans = spans_from_bounds(episodes, ends - np.array(lengths), ends, ["a", "b"])
    return Recording(actions=actions, states=-actions, spans=spans)


def test_chunks_stop_being_valid_at_the_end_of_their_episode():
    actions, valid = recording().chunks(np.array([0, 3, 4, 7]), 3)
    assert actions[..., 0].tolist() == [[0, 1, 2], [3, 4, 4], [4, 4, 4], [7, 7, 7]]
    assert valid.tolist() == [[True] * 3, [True, True, False], [True, False, False], [True, False, False]]


def test_rows_know_their_episode():
    episodes, last = recording().spans_of(np.array([0, 4, 5, 7]))
    assert episodes.tolist() == [4, 4, 7, 7]
    assert last.tolist() == [5, 5, 8, 8]


def test_predictions_start_anew_in_every_episode():
    assert recording().starts(2).tolist() == [0, 2, 4, 5, 7]
    assert recording().starts(2, most=3).tolist() == [0, 4, 7]


def test_poses_are_the_chosen_columns_of_the_state_or_the_action():
    rows = np.array([2, 6])
    assert recording().poses(rows, HoldPose((1, 0), "")).tolist() == [[-2.5, -2.0], [-6.5, -6.0]]
    assert recording().poses(rows, HoldPose(None, "")).tolist() == [[2.0, 2.5], [6.0, 6.5]]


def test_a_recorded_action_that_is_not_finite_is_refused_with_its_place():
    broken = recording()
    broken.actions[6, 1] = np.nan
    with pytest.raises(DatasetFormatError, match="nan in episode 7, frame 1, dimension 1") as caught:
        broken.check()
    assert caught.value.hint == "leave the episode out: `--dataset.exclude_episodes=[7]`"
