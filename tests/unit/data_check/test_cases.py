"""Inputs of cases.md, as far as the check is concerned, and damage that reading refuses."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.run import check_dataset
from mimetic.testing.datasets import build_dataset, write_video
from mimetic.testing.faults import change_json, change_rows, read_episodes, set_value, write_clocks, write_episodes
from mimetic.testing.recordings import Recording, build_recording

QUANTILES = PolicyNeeds(name="policy `pi05`", modes={"action": "QUANTILES", "observation.state": "QUANTILES"})


def by_id(report, claim=Claim.DEFECT):
    return {finding.id: finding for finding in report.findings if finding.claim is claim}


def four(tmp_path, **changes):
    return build_dataset(tmp_path / "set", lengths=(8, 12, 10, 9), **changes)


def test_case_4_a_killed_recorder_leaves_findings_and_no_crash(fixtures):
    report = check_dataset(fixtures / "dataset" / "killed_v30")
    assert not report.passed
    files = [finding.message for finding in report.findings if finding.id == "meta.files"]
    assert any("meta/episodes" in text and "recorder was stopped" in text for text in files)
    assert any("data/chunk-000/file-000.parquet" in text for text in files)
    unchecked = {finding.id for finding in report.findings if finding.claim is Claim.NOT_CHECKED}
    assert {"meta.ledger", "data.index", "state.frozen", "motion.idle_head"} <= unchecked
    assert not unchecked & set(report.rules)


def test_case_5_a_hole_is_one_finding_with_the_shifted_episodes(tmp_path):
    root = four(tmp_path)
    table = read_episodes(root)
    write_episodes(root, table.take([0, 2, 3]))
    sorted(root.glob("data/*/*.parquet"))[1].unlink()
    found = by_id(check_dataset(root))
    assert "gap at 1" in found["meta.ledger"].message
    assert found["meta.ledger"].episodes == (2, 3)
    assert "--only=meta.ledger --apply=true" in found["meta.ledger"].repair
    assert "meta.counts" in found
    assert (
        "total_frames 39, there are 27" in found["meta.counts"].message
        or "total_episodes" in found["meta.counts"].message
    )


def test_case_6_a_wrong_file_number_is_named_with_the_right_one(tmp_path):
    root = four(tmp_path)
    set_value(root, 1, "data/file_index", 0)
    report = check_dataset(root)
    assert set(by_id(report)) == {"meta.data_file"}
    assert by_id(report)["meta.data_file"].episodes == (1,)
    assert by_id(report)["meta.data_file"].threshold == "data/chunk-000/file-001.parquet"


def test_case_7_a_short_video_is_found_before_training(tmp_path):
    root = four(tmp_path, cameras={"front": (32, 32)})
    path = sorted(root.glob("videos/*/*/*.mp4"))[1]
    write_video(path, (np.full((32, 32, 3), 80, np.uint8) for _ in range(8)), fps=10)
    report = check_dataset(root)
    assert set(by_id(report)) == {"meta.video_file"}
    finding = by_id(report)["meta.video_file"]
    assert (finding.episodes, finding.feature) == ((1,), "observation.images.front")
    assert "lacks 4 frames" in finding.message
    assert finding.spans == ((1, 8, 11),)


def test_case_8_a_camera_without_names_and_statistics_is_no_defect(tmp_path):
    root = four(tmp_path, cameras={"front": (32, 32)})
    change_json(
        root / "meta" / "info.json", lambda info: info["features"]["observation.images.front"].update(names=None)
    )
    change_json(root / "meta" / "stats.json", lambda stats: stats.pop("observation.images.front"))
    needs = PolicyNeeds(name="policy `act`", modes={"action": "MEAN_STD", "observation.state": "MEAN_STD"})
    assert by_id(check_dataset(root, needs=needs)) == {}


def test_case_9_stale_numbering_statistics_of_a_merge_are_told(tmp_path):
    root = four(tmp_path)
    change_json(root / "meta" / "stats.json", lambda stats: stats["episode_index"].update(max=[1.0]))
    report = check_dataset(root)
    assert by_id(report) == {}
    found = by_id(report, Claim.RISK)["stats.index"]
    assert (found.value, found.threshold, found.feature) == (1.0, 3.0, "episode_index")


def two_levels(tmp_path):
    """Two episodes, action about N(0, 1) and N(100, 1), with quantiles averaged as LeRobot does."""
    generator = np.random.default_rng(0)
    action = np.concatenate([generator.normal(0, 1, (1000, 2)), generator.normal(100, 1, (1000, 2))]).astype(np.float32)
    root = build_dataset(tmp_path / "set", lengths=(1000, 1000), fps=30, columns={"action": action})

    def averaged(stats):
        for name, level in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
            parts = [np.quantile(part, level, axis=0) for part in (action[:1000], action[1000:])]
            stats["action"][name] = np.mean(parts, axis=0).tolist()

    change_json(root / "meta" / "stats.json", averaged)
    return root


def test_case_10_averaged_quantiles_are_a_defect_only_for_a_policy_that_uses_them(tmp_path):
    root = two_levels(tmp_path)
    plain = check_dataset(root)
    assert "stats.quantile_mean" not in by_id(plain)
    assert by_id(plain, Claim.RISK)["stats.quantile_mean"].value == pytest.approx(4.6 / 104, abs=0.01)
    used = check_dataset(root, needs=QUANTILES)
    assert "QUANTILES" in by_id(used)["stats.quantile_mean"].message
    assert "--only=stats.quantile_mean" in by_id(used)["stats.quantile_mean"].repair
    mean = PolicyNeeds(name="policy `act`", modes={"action": "MEAN_STD"})
    assert "stats.quantile_mean" not in by_id(check_dataset(root, needs=mean))


def test_case_10_constant_episodes_would_divide_by_zero(tmp_path):
    state = np.repeat(np.arange(4, dtype=np.float32), 30)[:, None] * np.ones((1, 3), np.float32)
    root = build_dataset(tmp_path / "set", lengths=(30,) * 4, columns={"observation.state": state})
    change_json(
        root / "meta" / "stats.json",
        lambda stats: [stats["observation.state"].update({q: [1.51] * 3}) for q in ("q01", "q10", "q50", "q90", "q99")],
    )
    found = [f for f in check_dataset(root, needs=QUANTILES).findings if f.id == "stats.quantile_mean"]
    assert any("divide by zero" in finding.message for finding in found)
    assert all(finding.claim is Claim.DEFECT for finding in found)


def test_case_15_the_true_rate_is_read_from_the_recorders_clock(tmp_path):
    spec = Recording(episodes=4)
    root = build_recording(tmp_path / "set", spec)
    write_clocks(root, spec, [20.0] * 4)
    finding = by_id(check_dataset(root))["time.true_rate"]
    assert finding.value == pytest.approx(20.0, rel=1e-2)
    assert "1.50 times as fast" in finding.message


def test_a_right_clock_is_no_finding_and_no_clock_is_not_checked(tmp_path):
    spec = Recording(episodes=4)
    root = build_recording(tmp_path / "set", spec)
    skipped = {f.id for f in check_dataset(root).findings if f.claim is Claim.NOT_CHECKED}
    assert {"time.true_rate", "time.jitter"} <= skipped
    write_clocks(root, spec, [30.0] * 4)
    report = check_dataset(root)
    assert by_id(report) == {}
    assert "time.true_rate" in report.rules


def test_a_loop_that_stalls_is_found_in_its_episode(tmp_path):
    spec = Recording(episodes=4)
    root = build_recording(tmp_path / "set", spec)
    write_clocks(root, spec, [30.0] * 4)
    path = next(root.glob("meta/mimetic/clocks/*/*.parquet"))
    table = pq.read_table(path)
    loop = table["loop_s"].to_numpy().copy()
    late = (table["episode_index"].to_numpy() == 2) & (table["frame_index"].to_numpy() >= 50)
    loop[late] += 0.5
    pq.write_table(table.set_column(2, "loop_s", pa.array(loop)), path)
    finding = by_id(check_dataset(root))["time.jitter"]
    assert finding.episodes == (2,)
    assert finding.spans == ((2, 49, 50),)
    assert finding.value == pytest.approx(16, abs=0.2)


def test_case_25_the_padded_share_is_told(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(1, 3, 7))
    needs = PolicyNeeds(name="policy `act`", chunk=8)
    report = check_dataset(root, needs=needs)
    finding = by_id(report, Claim.RISK)["policy.chunk"]
    # Of 8 actions a sample: 7, then 5+6+7, then 1+2+...+7 lie beyond the end.
    assert finding.value == pytest.approx((7 + 18 + 28) / (11 * 8), abs=1e-4)
    assert "60.2%" in finding.message
    assert "3 of 3 episodes" in finding.message


def test_repeated_and_unsorted_episodes_are_described(tmp_path):
    root = four(tmp_path)
    table = read_episodes(root)
    write_episodes(root, table.take([0, 1, 1, 2, 3]))
    assert "more than once" in by_id(check_dataset(root))["meta.ledger"].message
    write_episodes(root, table.take([0, 2, 1, 3]))
    assert "not sorted" in by_id(check_dataset(root))["meta.ledger"].message


def test_rows_of_one_episode_in_two_places_are_described(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(12, 12, 12), episodes_per_file=None)
    order = [*range(6), *range(12, 24), *range(6, 12), *range(24, 36)]
    change_rows(root, lambda table: table.take(order))
    found = by_id(check_dataset(root))
    assert found["data.index"].episodes == (0,)


def test_a_data_file_of_another_width_leaves_its_feature_out(tmp_path):
    root = four(tmp_path)

    def widen(table):
        values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(3 * len(table), np.float32)), 3)
        return table.set_column(table.column_names.index("action"), "action", values)

    change_rows(root, widen, file=1)
    report = check_dataset(root)
    assert set(by_id(report)) == {"data.schema"}
    assert by_id(report)["data.schema"].feature == "action"
    assert "action.lag" in {f.id for f in report.findings if f.claim is Claim.NOT_CHECKED}


def test_integer_actions_are_a_risk(tmp_path):
    action = np.arange(39 * 2, dtype=np.int64).reshape(39, 2)
    report = check_dataset(four(tmp_path, columns={"action": action}))
    assert by_id(report, Claim.RISK)["data.int_state"].feature == "action"


def test_overlapping_video_spans_are_a_defect(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(8, 12, 10), cameras={"front": (32, 32)}, episodes_per_file=None)
    set_value(root, 1, "videos/observation.images.front/from_timestamp", 0.4)
    set_value(root, 1, "videos/observation.images.front/to_timestamp", 1.6)
    found = by_id(check_dataset(root))
    assert found["meta.video_order"].episodes == (1,)
    assert found["meta.video_order"].value == pytest.approx(0.4)


def test_a_video_of_another_size_is_a_defect(tmp_path):
    root = four(tmp_path, cameras={"front": (32, 32)})
    path = sorted(root.glob("videos/*/*/*.mp4"))[2]
    write_video(path, (np.full((48, 32, 3), 80, np.uint8) for _ in range(10)), fps=10)
    found = by_id(check_dataset(root))
    assert found["data.image_shape"].episodes == (2,)
    assert (found["data.image_shape"].value, found["data.image_shape"].threshold) == ("32x48", "32x32")


def test_levels_say_what_they_leave_out(tmp_path):
    root = four(tmp_path)
    quick = check_dataset(root, level="quick")
    skipped = {finding.id for finding in quick.findings if finding.claim is Claim.NOT_CHECKED}
    assert {"data.index", "state.frozen", "stats.match", "time.grid"} <= skipped
    assert {"meta.ledger", "meta.counts", "stats.present", "task.variants", "variety.amount"} <= set(quick.rules)
    assert quick.passed
    rows = check_dataset(root)
    assert {"data.index", "time.grid", "stats.match"} <= set(rows.rules)


def test_without_statistics_nothing_is_called_right(tmp_path):
    root = four(tmp_path)
    (root / "meta" / "stats.json").write_text("{}", encoding="utf-8")
    found = by_id(check_dataset(root))
    assert set(found) == {"stats.present"}
    shutil.rmtree(root / "data")
    assert "meta.files" in by_id(check_dataset(root))
    info = json.loads((root / "meta" / "info.json").read_text())
    assert info["total_episodes"] == 4
