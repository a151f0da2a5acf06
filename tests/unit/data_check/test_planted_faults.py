"""Each planted fault is found with its id and its episodes, and nothing else is (dataset_quality 12)."""

import numpy as np
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.pictures.run import check_pictures
from mimetic.data.check.run import check_dataset
from mimetic.testing.faults import FAULTS, FROZEN_FRAMES, REAL_RATE, build_faulty, picture_recording

SERIOUS = (Claim.DEFECT, Claim.RISK)
ALWAYS = {"variety.amount", "variety.contexts"}
"""What is true of every small recording, faulty or not."""


def look(root):
    return check_dataset(root, level="video", pictures=lambda source: check_pictures(source, full=False))


def serious(report):
    return [finding for finding in report.findings if finding.claim in SERIOUS and finding.id not in ALWAYS]


def with_rule(report, rule):
    return [finding for finding in report.findings if finding.id == rule and finding.claim in SERIOUS]


@pytest.mark.parametrize("spec", [None, picture_recording(episodes=10)], ids=["rows", "pictures"])
def test_a_recording_without_faults_gives_no_finding(tmp_path, spec):
    report = look(build_faulty(tmp_path / "set", "", spec))
    assert [(finding.id, finding.message) for finding in serious(report)] == []
    assert report.passed
    assert report.grade == 100
    assert report.keep == report.episodes


@pytest.mark.parametrize("name", list(FAULTS))
def test_the_fault_is_found_and_nothing_else(tmp_path, name):
    fault = FAULTS[name]
    root = build_faulty(tmp_path / "set", name)
    report = look(root) if fault.needs_pictures else check_dataset(root)
    found = with_rule(report, fault.rule)
    assert found, [finding.message for finding in serious(report)]
    assert {str(finding.claim) for finding in found} == {fault.claim}
    assert sorted({episode for finding in found for episode in finding.episodes}) == list(fault.episodes)
    assert {finding.id for finding in serious(report)} == {fault.rule, *fault.also}
    assert all(finding.message and finding.impact for finding in found)
    assert report.passed is (fault.claim != "DEFECT" and not fault.also)


def one(tmp_path, name):
    report = check_dataset(build_faulty(tmp_path / "set", name))
    return with_rule(report, FAULTS[name].rule)[0]


def test_values_of_the_faults_are_those_that_were_planted(tmp_path):
    frozen = one(tmp_path / "a", "frozen_state")
    assert frozen.value == FROZEN_FRAMES
    assert frozen.spans == ((5, 20, 20 + FROZEN_FRAMES - 1),)
    assert one(tmp_path / "b", "nan").spans == ((3, 10, 12),)
    wrapped = one(tmp_path / "c", "wrapped_frame")
    assert wrapped.spans == ((7, 40, 40),)
    assert wrapped.value == pytest.approx(360, abs=1)
    assert wrapped.feature == "observation.state[wrist_roll.pos]"
    assert one(tmp_path / "d", "shifted_action").value == -6
    assert one(tmp_path / "e", "slow_loop").value == pytest.approx(REAL_RATE, rel=1e-3)
    assert one(tmp_path / "f", "resumed_clock").value == pytest.approx(12.5)
    assert one(tmp_path / "g", "drifting_clock").value == pytest.approx(0.8 / 30, rel=0.02)
    assert one(tmp_path / "h", "idle_head").value == pytest.approx(0.45, abs=0.1)
    # 6 Hz turn twelve times a second; a second that begins with a turn holds one more
    assert one(tmp_path / "i", "gripper_chatter").value in (12, 13)
    boundary = one(tmp_path / "j", "boundary_row")
    assert (boundary.value, boundary.threshold) == (
        "data/chunk-000/file-000.parquet",
        "data/chunk-000/file-001.parquet",
    )
    assert "--only=meta.data_file --apply=true" in boundary.repair
    length = one(tmp_path / "k", "stale_length")
    assert length.value == length.threshold + 3
    jump = one(tmp_path / "l", "jump")
    assert jump.spans == ((9, 50, 50),)
    assert jump.value == pytest.approx(180, abs=5)
    short = one(tmp_path / "m", "video_short")
    assert short.value == pytest.approx(0.5)
    assert short.spans[0][2] - short.spans[0][1] + 1 == 5


def test_only_a_fault_decides_and_the_worst_rule_grades(tmp_path):
    report = check_dataset(build_faulty(tmp_path / "set", "shifted_action"))
    assert not report.passed
    assert report.grade == 85
    assert report.keep == [episode for episode in range(20) if episode not in (2, 9, 14)]


def test_a_fault_does_not_make_the_measures_of_other_episodes_move(tmp_path):
    clean = check_dataset(build_faulty(tmp_path / "a", ""))
    faulty = check_dataset(build_faulty(tmp_path / "b", "frozen_state"))
    others = np.arange(20) != 5
    for name in ("sal", "idle_tail_s", "lag_frames", "tracking_error"):
        assert clean.measures[name][others] == pytest.approx(faulty.measures[name][others], nan_ok=True)
