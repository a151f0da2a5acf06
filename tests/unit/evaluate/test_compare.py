import numpy as np
import pytest

from mimetic.errors import CheckpointError
from mimetic.evaluate.compare import compare
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.metrics import POLICY
from mimetic.evaluate.recording import Recording, spans_from_bounds

STATE = HoldPose((0, 1), "")
MEAN = np.zeros(2)


def recording(lengths=(30, 20, 25, 10)):
    ends = np.cumsum(lengths)
    actions = np.cumsum(np.random.default_rng(0).normal(size=(ends[-1], 2)), axis=0)
    spans = spans_from_bounds(range(len(lengths)), ends - np.array(lengths), ends, [""] * len(lengths))
    return Recording(actions=actions, states=np.vstack([actions[:1], actions[:-1]]), spans=spans)


def perfect(recorded, rows, steps=8, size=5):
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        chunks, valid = recorded.chunks(part, steps)
        yield part, np.where(valid[..., None], chunks, np.nan)  # what lies beyond the end is never looked at


def test_perfect_predictions_are_perfect_in_every_episode_and_at_every_step():
    recorded = recording()
    found = compare(recorded, perfect(recorded, recorded.starts(4)), hold=STATE, mean=MEAN)
    assert found.scores.overall_skill_hold == found.scores.overall_skill_mean == 1.0
    assert [item.scores.overall_skill_hold for item in found.episodes] == [1.0] * 4
    assert found.horizon[POLICY].tolist() == [0.0] * 8
    assert found.chunk_size == 8


def test_the_size_of_batches_does_not_change_the_numbers():
    recorded = recording()
    rows = recorded.starts(3)
    noise = np.random.default_rng(1).normal(size=(len(recorded.actions), 8, 2))
    results = []
    for size in (1, 7, 1000):
        batches = ((part, np.nan_to_num(chunks) + noise[part]) for part, chunks in perfect(recorded, rows, size=size))
        results.append(compare(recorded, batches, hold=STATE, mean=MEAN))
    for other in results[1:]:
        np.testing.assert_allclose(other.scores.mae, results[0].scores.mae, rtol=1e-12)
        np.testing.assert_allclose(other.bounds.skill_hold, results[0].bounds.skill_hold, rtol=1e-9)
        np.testing.assert_array_equal(other.traces[0].predicted, results[0].traces[0].predicted)


def test_a_few_episodes_spread_over_all_are_kept_for_pictures():
    recorded = recording()
    found = compare(recorded, perfect(recorded, recorded.starts(4)), hold=STATE, mean=MEAN)
    assert [trace.episode for trace in found.traces] == [0, 2, 3]
    trace = found.traces[1]
    np.testing.assert_array_equal(trace.recorded, recorded.actions[50:75])
    assert trace.starts.tolist() == [0, 4, 8, 12, 16, 20, 24]
    np.testing.assert_array_equal(trace.predicted[0], recorded.actions[50:58])
    np.testing.assert_array_equal(trace.hold[1], recorded.states[54])


def test_a_prediction_that_is_not_finite_is_refused_with_its_place():
    recorded = recording()
    rows = recorded.starts(4)

    def broken():
        for part, chunks in perfect(recorded, rows):
            if 42 in part:
                chunks[part.tolist().index(42), 2, 1] = np.inf
            yield part, chunks

    with pytest.raises(CheckpointError, match="not finite, first in episode 1 at frame 12"):
        compare(recorded, broken(), hold=STATE, mean=MEAN)
