"""The rate of the loop: measured, judged, warned about, and kept beside the data (case 15)."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from mimetic.data.check.clocks import read_clocks
from mimetic.data.record.clocks import read_verdicts
from mimetic.data.record.rate import is_live, judge_rate
from mimetic.data.writer import DatasetWriter

from .conftest import FEATURES, WITHOUT, files, frame


def times(n, period_s, *, pauses=()):
    periods = np.full(n - 1, period_s)
    periods[list(pauses)] += 3 * period_s
    return np.concatenate([[50.0], 50.0 + np.cumsum(periods)])


@pytest.mark.parametrize(
    ("loop_s", "said"),
    [
        (times(90, 1 / 30), ""),
        (times(90, 1.029 / 30), ""),
        (times(90, 1.031 / 30), "29.1 Hz"),
        (times(90, 0.968 / 30), "31.0 Hz"),
        (times(60, 0.05), "the loop ran at 20.0 Hz (median period 50.0 ms) and 30 Hz is declared"),
        (times(150, 1 / 30, pauses=(10,)), ""),
        (times(90, 1 / 30, pauses=(10, 20, 30)), "one period in a hundred takes 133 ms or more, 4.0 times"),
        (np.full(10, 3.0), "stands still"),
    ],
)
def test_the_verdict(loop_s, said):
    report = judge_rate(loop_s, 30)
    assert said in report.problem
    assert bool(said) == bool(report.problem)


def test_too_few_frames_have_no_rate():
    assert judge_rate([1.0, 2.0], 30) is None
    assert judge_rate([1.0, np.nan, 3.0, 4.0], 30) is None


def test_a_program_that_writes_stored_frames_is_not_a_loop():
    assert not is_live(times(50, 0.001), 30)
    assert is_live(times(50, 0.02), 30)
    assert not is_live([1.0], 30)


class Clock:
    """Seconds that pass as told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_case_15_a_loop_of_20_hz_is_not_stored_as_30_hz_in_silence(root, caplog):
    clock = Clock()
    with DatasetWriter.create("local/slow", 30, WITHOUT, root, clock=clock) as writer:
        for episode, (period_s, n_frames) in enumerate(((0.05, 60), (1 / 30, 60))):
            for k in range(n_frames):
                writer.add_frame(frame(episode, k, WITHOUT))
                clock.now += period_s  # the robot takes its time
            saved = writer.save_episode()
            assert saved.rate.rate_hz == pytest.approx(1 / period_s)
            assert bool(saved.rate.problem) == (episode == 0)
    assert "episode 0 is saved and marked: the loop ran at 20.0 Hz" in caplog.text
    assert "episode 1" not in caplog.text
    verdicts = read_verdicts(root)
    assert verdicts[0]["measured_rate_hz"] == pytest.approx(20.0)
    assert "30 Hz is declared" in verdicts[0]["problem"]
    assert verdicts[1]["problem"] == ""
    clocks, broken = read_clocks(root)
    assert broken == []
    np.testing.assert_allclose(np.diff(clocks.loop_s[clocks.of(0)]), 0.05)
    np.testing.assert_allclose(np.diff(clocks.loop_s[clocks.of(1)]), 1 / 30)
    assert clocks.frame[clocks.of(1)].tolist() == list(range(60))


def test_clocks_of_cameras_are_kept(root):
    with DatasetWriter.create("local/clocks", 10, FEATURES, root) as writer:
        for k in range(4):
            camera = {} if k == 2 else {"observation.images.top": 5.0 + k / 10 - 0.02}
            writer.add_frame(frame(0, k), clock_s=5.0 + k / 10, camera_clocks_s=camera)
        writer.save_episode()
    clocks, _ = read_clocks(root)
    np.testing.assert_allclose(clocks.loop_s, [5.0, 5.1, 5.2, 5.3])
    np.testing.assert_allclose(clocks.cameras["observation.images.top"], [4.98, 5.08, np.nan, 5.28])


def test_without_a_loop_nothing_is_kept_and_nothing_is_said(root, caplog):
    with DatasetWriter.create("local/offline", 30, WITHOUT, root) as writer:
        for k in range(20):
            writer.add_frame(frame(0, k, WITHOUT))
        assert writer.save_episode().rate is None
    clock = Clock()
    with DatasetWriter.resume("local/offline", root, live=False, clock=clock) as writer:
        for k in range(20):
            writer.add_frame(frame(1, k, WITHOUT))
            clock.now += 0.05
        assert writer.save_episode().rate is None
    assert [name for name in files(root) if "clocks" in name] == []
    assert caplog.text == ""


def test_clocks_survive_packing_and_a_second_session(root):
    for session in range(2):
        clock = Clock()
        writer = (
            DatasetWriter.create("local/packed", 10, WITHOUT, root, clock=clock)
            if session == 0
            else DatasetWriter.resume("local/packed", root, clock=clock)
        )
        for _ in range(3):
            for k in range(5):
                writer.add_frame(frame(writer.num_episodes, k, WITHOUT))
                clock.now += 0.1
            writer.save_episode()
        writer.finalize()
    names = [name for name in files(root) if "clocks" in name]
    assert names == [f"meta/mimetic/clocks/chunk-000/file-00{n}.parquet" for n in (0, 1)]
    assert list(read_verdicts(root)) == list(range(6))
    assert sum(pq.read_metadata(root / name).num_rows for name in names) == 30
