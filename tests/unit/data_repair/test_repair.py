"""Repairs: each fault is found, mended, and nothing else is touched; a second run finds nothing."""

import hashlib
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_faults import (
    FAULTS,
    KEY,
    LEDGER,
    SIZE,
    build_sound,
    change_data,
    change_info,
    change_ledger,
    drop_episode,
)
from dataset_invariants import assert_is_sound

from mimetic.data.edit.config import ModifyTasksConfig, RecomputeStatsConfig
from mimetic.data.edit.run import edit_dataset
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.repair import apply
from mimetic.data.repair.lock import only_repair
from mimetic.data.repair.run import RULES, repair
from mimetic.data.repair.tasks import normalised
from mimetic.data.store.beside import FolderBuild
from mimetic.errors import ConfigError, DatasetError, EpisodeError
from mimetic.testing.datasets import build_dataset, read_code, write_video

DATA = "data/chunk-000/file-000.parquet"


@pytest.fixture
def root(tmp_path):
    return build_sound(tmp_path)


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".")
    }


def ids(result):
    return {one.id for one in result.repairs}


def codes(root):
    dataset = open_dataset(root=root, return_uint8=True)
    return [read_code(dataset[i][KEY].numpy()) for i in range(len(dataset))]


def test_a_sound_dataset_needs_nothing(root):
    before = files_of(root)
    result = repair(root, apply=True)
    assert result.repairs == ()
    assert not result.is_applied
    assert files_of(root) == before
    assert not [path for path in root.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("rule", FAULTS)
def test_one_fault_is_mended_alone(root, rule):
    sound = files_of(root)
    break_it, changed = FAULTS[rule]
    break_it(root)
    broken = files_of(root)
    dry = repair(root, only=[rule])
    assert rule in ids(dry)
    assert files_of(root) == broken
    assert not [path for path in root.iterdir() if path.name.startswith(".")]
    result = repair(root, only=[rule], apply=True)
    assert rule in ids(result)
    assert result.is_applied
    after = files_of(root)
    assert {name for name in after if after[name] != broken[name]} == changed
    assert_is_sound(root)
    assert repair(root, apply=True).repairs == ()
    assert set(after) == set(sound)


@pytest.mark.parametrize("rule", FAULTS)
def test_a_run_for_all_rules_finds_the_fault_and_mends_it(root, rule):
    FAULTS[rule][0](root)
    assert rule in ids(repair(root, apply=True))
    assert_is_sound(root)
    assert repair(root).repairs == ()


def test_backups_and_their_list_hold_what_was(root):
    before = {name: (root / name).read_bytes() for name in (LEDGER,)}
    change_ledger(root, "data/file_index", [0, 0, 2, 3])
    broken = (root / LEDGER).read_bytes()
    result = repair(root, only=["meta.data_file"], apply=True)
    assert (result.backup / LEDGER).read_bytes() == broken
    manifest = json.loads((result.backup / "manifest.json").read_text())
    assert manifest["changed"] == [LEDGER]
    assert manifest["repairs"][0]["id"] == "meta.data_file"
    assert manifest["repairs"][0]["episodes"] == [1]
    assert pq.read_table(root / LEDGER)["data/file_index"].to_pylist() == [0, 1, 2, 3]
    assert before


def test_only_the_wrong_value_changes(root):
    """Case 6: of the whole table one number is other than before."""
    sound = pq.read_table(root / LEDGER)
    change_ledger(root, "data/file_index", [0, 0, 2, 3])
    repair(root, only=["meta.data_file"], apply=True)
    mended = pq.read_table(root / LEDGER)
    assert mended.to_pylist() == sound.to_pylist()
    subset = open_dataset(root=root, episodes=[1])
    assert subset.column("observation.state")[0, 0] == 100


def test_a_gap_is_closed_and_every_episode_keeps_its_own_footage(root):
    """Case 5: frames of episode 2 never show episode 3."""
    drop_episode(root)
    result = repair(root, only=["meta.ledger"], apply=True)
    assert "gap at 1" in result.mended[-1].message
    assert codes(root) == [(0, f) for f in range(6)] + [(2, f) for f in range(5)] + [(3, f) for f in range(7)]
    dataset = open_dataset(root=root)
    assert dataset.episodes == [0, 1, 2]
    assert dataset.column("index").tolist() == list(range(18))
    assert dataset.column("observation.state")[6, 0] == 200
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (3, 18)
    assert (root / f"videos/{KEY}/chunk-000/file-001.mp4").is_file()  # an orphan now, for its own rule
    repair(root, apply=True)
    assert_is_sound(root)
    removed = list((root / ".mimetic-removed").rglob("*.mp4"))
    assert [path.name for path in removed] == ["file-001.mp4"]


def test_footage_that_ends_early_shortens_its_episode(root):
    """Case 7: 12 rows, 8 frames."""
    path = root / f"videos/{KEY}/chunk-000/file-001.mp4"
    keep = codes(root)
    shutil.copy(path, root.parent / "whole.mp4")
    pictures = [np.asarray(frame) for frame in frames_of(path)][:8]
    write_video(path, pictures, fps=10)
    result = repair(root, only=["meta.video_span"], apply=True)
    assert "lacks 4 of 12 frames" in result.mended[0].message
    assert codes(root) == [code for number, code in enumerate(keep) if not 14 <= number < 18]
    assert_is_sound(root)
    assert repair(root).repairs == ()


def test_footage_that_ends_early_drops_its_episode_when_told_so(root):
    path = root / f"videos/{KEY}/chunk-000/file-001.mp4"
    write_video(path, [np.zeros((*SIZE, 3), np.uint8)] * 8, fps=10)
    repair(root, only=["meta.video_span", "meta.orphans"], short_video="drop", apply=True)
    assert [code[0] for code in codes(root)] == [0] * 6 + [2] * 5 + [3] * 7
    assert_is_sound(root)


def frames_of(path):
    import av

    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_missing_video_is_left_unless_its_episode_may_go(root):
    (root / f"videos/{KEY}/chunk-000/file-001.mp4").unlink()
    left = repair(root, only=["meta.video_file"])
    assert [one.is_mended for one in left.repairs] == [False]
    assert "--short_video=drop" in left.left[0].message
    repair(root, only=["meta.video_file"], short_video="drop", apply=True)
    assert [code[0] for code in codes(root)] == [0] * 6 + [2] * 5 + [3] * 7
    repair(root, apply=True)
    assert_is_sound(root)


def test_spans_that_overlap_are_laid_in_order_when_the_file_fits(tmp_path):
    raw = build_dataset(tmp_path / "raw", lengths=(6, 5), cameras={"top": SIZE}, episodes_per_file=None)
    edit_dataset(raw, RecomputeStatsConfig(), new_root=tmp_path / "set")
    change_ledger(tmp_path / "set", f"videos/{KEY}/from_timestamp", [0.0, 0.0])
    result = repair(tmp_path / "set", only=["meta.video_order"], apply=True)
    assert "overlap" in result.mended[0].message
    assert codes(tmp_path / "set")[6:] == [(1, f) for f in range(5)]


def test_a_start_beyond_the_end_does_not_cost_the_episode(tmp_path):
    """The file has just the frames of its episodes: the start is wrong, and no row is left out for it."""
    raw = build_dataset(tmp_path / "raw", lengths=(6, 5), cameras={"top": SIZE}, episodes_per_file=None)
    change_ledger(raw, f"videos/{KEY}/from_timestamp", [0.0, 1e300])
    with pytest.raises(EpisodeError, match=r"episode 1 lacks 5 frames"):
        edit_dataset(raw, RecomputeStatsConfig(), new_root=tmp_path / "set")
    result = repair(raw, apply=True)
    assert "end after" in next(one.message for one in result.mended if one.id == "meta.video_order")
    assert codes(raw) == [(0, f) for f in range(6)] + [(1, f) for f in range(5)]
    assert repair(raw).repairs == ()


def test_footage_that_is_missing_is_named_with_what_helps(root):
    next((root / f"videos/{KEY}").glob("*/file-001.mp4")).unlink()
    change_info(root, total_frames=1)
    with pytest.raises(DatasetError, match="still cannot be opened") as caught:
        repair(root, apply=True)
    assert "`--short_video=drop`" in caught.value.hint


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_no_finite_numbers_are_repaired_once_and_without_noise(root, value):
    table = pq.read_table(root / DATA)
    rows = np.asarray(table["action"].to_pylist(), dtype=np.float32)
    rows[0] = value
    column = pa.array(rows.tolist(), type=table.schema.field("action").type)
    pq.write_table(
        table.set_column(table.column_names.index("action"), table.schema.field("action"), column), root / DATA
    )
    assert "stats.match" in ids(repair(root, apply=True))
    assert repair(root).repairs == ()


def test_spans_that_overlap_are_left_when_nobody_can_tell(tmp_path):
    raw = build_dataset(tmp_path / "raw", lengths=(6, 5), cameras={"top": SIZE}, episodes_per_file=None)
    write_video(raw / f"videos/{KEY}/chunk-000/file-000.mp4", [np.zeros((*SIZE, 3), np.uint8)] * 15, fps=10)
    change_ledger(raw, f"videos/{KEY}/from_timestamp", [0.0, 0.2])
    result = repair(raw, only=["meta.video_order"], apply=True)
    assert [one.is_mended for one in result.repairs] == [False]
    assert result.backup is None


# Orphans


def test_rows_that_nobody_refers_to_are_left_out_and_files_moved_aside(root):
    pq.write_table(pq.read_table(root / LEDGER).take([0, 1, 3]), root / LEDGER)
    result = repair(root, apply=True)
    assert "meta.orphans" in ids(result)
    assert [code[0] for code in codes(root)] == [0] * 6 + [1] * 12 + [3] * 7
    removed = {
        path.relative_to(root).as_posix().split("/", 2)[2]
        for path in (root / ".mimetic-removed").rglob("*.*")
        if path.is_file()
    }
    assert removed == {f"videos/{KEY}/chunk-000/file-002.mp4", "data/chunk-000/file-002.parquet"}
    assert_is_sound(root)
    assert repair(root).repairs == ()


def test_rows_without_an_entry_get_one_where_their_footage_is_certain(tmp_path):
    raw = build_dataset(tmp_path / "raw", lengths=(6, 5, 4), cameras={"top": SIZE}, episodes_per_file=None)
    edit_dataset(raw, RecomputeStatsConfig(), new_root=tmp_path / "set")
    root = tmp_path / "set"
    pq.write_table(pq.read_table(root / LEDGER).take([0, 2]), root / LEDGER)
    repair(root, only=["meta.ledger"], apply=True)
    assert codes(root) == [(0, f) for f in range(6)] + [(1, f) for f in range(5)] + [(2, f) for f in range(4)]
    assert repair(root, only=["meta.ledger"]).repairs == ()


def test_rows_without_an_entry_are_left_where_nobody_knows_their_footage(root):
    pq.write_table(pq.read_table(root / LEDGER).take([0, 1, 3]), root / LEDGER)
    result = repair(root, only=["meta.ledger"])
    assert [one.is_mended for one in result.repairs] == [False, False]
    assert "meta.orphans" in result.left[0].message


# Tasks


@pytest.mark.parametrize(
    ("one", "two", "is_same"),
    [
        ("Pick up the cube.", "pick up  the CUBE", True),
        ("Pick-up the cube", "pick up the cube", True),
        ("Ｐｉｃｋ up", "pick up", True),
        ("Pick up the cube", "Pick up the cubes", False),
        ("Füge ein", "fuge ein", False),
    ],
)
def test_what_counts_as_one_task(one, two, is_same):
    assert (normalised(one) == normalised(two)) is is_same


def test_spellings_of_one_task_become_the_most_frequent_one(root):
    edit_dataset(
        root, ModifyTasksConfig(episode_tasks={0: "Pick it up.", 1: "pick it up", 2: "Pick it up.", 3: "other"})
    )
    result = repair(root, only=["task.variants"], apply=True)
    assert result.mended[0].message == "`Pick it up.` becomes `pick it up`"  # 11 frames against 12
    dataset = open_dataset(root=root)
    assert list(dataset.meta.tasks.values()) == ["other", "pick it up"]
    assert [dataset[i]["task"] for i in (0, 6, 18, 23)] == ["pick it up"] * 3 + ["other"]
    assert_is_sound(root)


def test_a_task_that_is_missing_from_the_table_is_taken_from_the_episodes(root):
    (root / "meta/tasks.parquet").unlink()
    result = repair(root, apply=True)
    assert "data.task" in ids(result)
    assert list(Metadata.open(root).tasks.values()) == ["one", "two"]
    assert_is_sound(root)


def test_a_task_that_nobody_names_is_left(root):
    change_data(root, 2, "task_index", [7] * 5)
    change_ledger(root, "tasks", [["one"], ["two"], ["one", "two"], ["two"]])
    result = repair(root, only=["data.task"], apply=True)
    assert [one.is_mended for one in result.repairs] == [False]
    assert not result.is_applied


# Files


def test_missing_statistics_are_computed_cameras_too(root):
    whole = json.loads((root / "meta/stats.json").read_text())
    (root / "meta/stats.json").unlink()
    repair(root, only=["stats.present"], apply=True)
    again = json.loads((root / "meta/stats.json").read_text())
    assert set(again) == set(whole)
    np.testing.assert_allclose(again[KEY]["mean"], whole[KEY]["mean"], atol=1e-9)
    assert_is_sound(root)


def test_columns_of_features_that_are_gone_go_and_unknown_ones_stay(root):
    """What LeRobot's `remove_feature` leaves behind (spec/dataset.md 20.19)."""
    table = pq.read_table(root / LEDGER)
    table = table.append_column("stats/observation.images.gone/min", pa.array([[0.0]] * 4))
    table = table.append_column("operator", pa.array(["a", "b", "c", "d"]))
    pq.write_table(table, root / LEDGER)
    repair(root, only=["meta.ledger"], apply=True)
    names = pq.read_table(root / LEDGER).column_names
    assert "stats/observation.images.gone/min" not in names
    assert pq.read_table(root / LEDGER)["operator"].to_pylist() == ["a", "b", "c", "d"]


def test_rows_whose_numbers_contradict_the_table_are_counted_anew(root):
    change_data(root, 1, "index", np.arange(12))
    assert "meta.ledger" in ids(repair(root, only=["meta.ledger"], apply=True))
    assert_is_sound(root)


def test_entries_that_name_a_file_that_is_not_there_are_corrected(root):
    """What LeRobot's `merge` leaves behind (spec/dataset.md 20.19)."""
    change_ledger(root, "meta/episodes/file_index", [0, 0, 1, 1])
    assert "meta.ledger" in ids(repair(root, only=["meta.ledger"], apply=True))
    assert pq.read_table(root / LEDGER)["meta/episodes/file_index"].to_pylist() == [0, 0, 0, 0]


def test_unknown_keys_of_info_stay(root):
    change_info(root, total_frames=1, lab={"bench": 3})
    repair(root, only=["meta.counts"], apply=True)
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["lab"], info["total_frames"]) == ({"bench": 3}, 30)


def test_relative_action_statistics_are_not_taken_for_stale_ones(root):
    config = RecomputeStatsConfig(relative_action=True, chunk_size=5)
    edit_dataset(wide_state(root), config)
    target = root.parent / "wide"
    before = (target / "meta/stats.json").read_bytes()
    repair(target, apply=True)
    assert (target / "meta/stats.json").read_bytes() == before


def wide_state(root):
    raw = build_dataset(root.parent / "wide_raw", lengths=(20, 20), state_dim=2)
    edit_dataset(raw, RecomputeStatsConfig(), new_root=root.parent / "wide")
    return root.parent / "wide"


# Safety


def test_a_rule_that_nothing_mends_is_refused(root):
    with pytest.raises(ConfigError, match="cannot be mended") as caught:
        repair(root, only=["meta.ledgers"])
    assert "meta.ledger" in caught.value.hint


def test_a_result_that_cannot_be_opened_is_not_written(root):
    """The wrong count would be mended, but the dataset stays unreadable: then nothing is touched."""
    change_info(root, total_frames=1)
    change_data(root, 1, "frame_index", [5] * 12)
    before = files_of(root)
    with pytest.raises(DatasetError, match="still cannot be opened"):
        repair(root, only=["meta.counts"], apply=True)
    assert files_of(root) == before
    assert not (root / apply.WORK).exists()


@pytest.mark.parametrize("stage", ["writing", "before", "first", "second"])
def test_a_swap_that_was_interrupted_is_finished_by_the_next_run(root, monkeypatch, stage):
    change_ledger(root, "data/file_index", [0, 0, 2, 3])
    change_info(root, total_frames=1)
    count = {"writing": 0, "before": 0, "first": 1, "second": 2}[stage]
    real, calls = apply.os.replace, []

    def stop(source, target):
        is_swap = str(apply.WORK) not in str(target)
        if "view" in str(source) and is_swap is (stage != "writing"):
            if len(calls) == count:
                raise KeyboardInterrupt
            calls.append(target)
        real(source, target)

    real_rmtree = apply.shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(apply.os, "replace", stop)
        if stage == "second":
            patch.setattr(apply.shutil, "rmtree", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            repair(root, apply=True)
    assert real_rmtree is apply.shutil.rmtree
    result = repair(root, apply=True)
    assert apply.WORK not in {path.name for path in root.iterdir()}
    if stage in ("before", "first"):
        assert "interrupted" in result.repairs[0].message
    assert not (root / apply.WORK).exists()
    assert_is_sound(root)
    assert repair(root).repairs == ()


def test_one_repair_at_a_time(root):
    change_info(root, total_frames=1)
    with only_repair(root):
        with pytest.raises(DatasetError, match=f"process {os.getpid()} repairs"):
            repair(root, apply=True)
        assert "meta.counts" in ids(repair(root))  # looking is allowed
    assert repair(root, apply=True).is_applied
    assert not (root / ".mimetic-repair.lock").exists()


def test_a_dataset_that_is_edited_in_place_just_now_is_not_repaired(root):
    change_info(root, total_frames=1)
    with FolderBuild(root, replaces=root) as build:
        (build.folder / ".mimetic-building.json").write_text(json.dumps({"process": os.getppid()}))
        with pytest.raises(DatasetError, match=f"process {os.getppid()} edits"):
            repair(root, apply=True)


def test_files_of_the_hubs_cache_are_not_repaired_in_place(root):
    change_info(root, total_frames=1)
    blob = root.parent / "blob"
    (root / "meta/info.json").rename(blob)
    (root / "meta/info.json").symlink_to(blob)
    before = blob.read_bytes()
    with pytest.raises(DatasetError, match="cache"):
        repair(root, apply=True)
    assert blob.read_bytes() == before


def test_half_a_copy_is_never_taken_for_the_backup(root, monkeypatch):
    """Where the disk has no links, the old file is copied; a kill in the middle may not cost its content."""
    change_info(root, total_frames=1)
    before = files_of(root)["meta/info.json"]

    def cut(source, target):
        target.write_bytes(source.read_bytes()[:10])
        raise KeyboardInterrupt

    real = apply.link_or_copy
    with monkeypatch.context() as patch:
        patch.setattr(apply, "link_or_copy", lambda a, b: cut(a, b) if ".bak" in b.parts else real(a, b))
        with pytest.raises(KeyboardInterrupt):
            repair(root, apply=True)
    repair(root, apply=True)
    (kept,) = root.glob(".bak/*/meta/info.json")
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == before


def test_every_rule_of_the_check_that_can_be_mended_is_one_here():
    from mimetic.data.check.rules import RULES as CHECKED

    assert {name for name, rule in CHECKED.items() if rule.mends} <= set(RULES)
    assert set(RULES) <= set(CHECKED)


def test_measured_clocks_follow_the_numbers(root):
    from mimetic.data.record.clocks import EpisodeClocks, clocks_file, clocks_table, join_tables, write_clocks

    tables = [
        clocks_table(EpisodeClocks(episode=number, loop_s=[float(number)] * length))
        for number, length in enumerate((6, 12, 5, 7))
    ]
    clocks_file(root, 0, 0).parent.mkdir(parents=True)
    write_clocks(clocks_file(root, 0, 0), join_tables(tables))
    drop_episode(root)
    result = repair(root, only=["meta.ledger"], apply=True)
    table = pq.read_table(clocks_file(root, 0, 0), partitioning=None)
    assert table["episode_index"].to_pylist() == [0] * 6 + [1] * 5 + [2] * 7
    assert table["loop_s"].to_pylist() == [0.0] * 6 + [2.0] * 5 + [3.0] * 7
    assert (result.backup / "meta/mimetic/clocks/chunk-000/file-000.parquet").is_file()
    assert (root / "meta/mimetic/clocks/chunk-000/file-000.parquet").is_file()


def test_a_recording_that_was_broken_off_is_tidied(root):
    (root / ".mimetic-recording").mkdir()
    assert "broken off" in repair(root, only=["meta.files"]).repairs[0].message
    assert (root / ".mimetic-recording").is_dir()
    repair(root, only=["meta.files"], apply=True)
    assert not (root / ".mimetic-recording").exists()
    assert_is_sound(root)


def cut_session(root):
    """What LeRobot leaves when a second session is killed (spec/dataset.md 9): no footers, counters that run ahead."""
    pq.write_table(pq.read_table(root / LEDGER).take([0, 1, 2]), root / LEDGER)
    (root / "meta/episodes/chunk-000/file-001.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    (root / "data/chunk-000/file-003.parquet").write_bytes(b"PAR1" + b"\0" * 50)


def test_the_sessions_before_a_killed_one_are_saved(root):
    cut_session(root)
    with pytest.raises(DatasetError):
        open_dataset(root=root)
    with pytest.raises(DatasetError, match="footer"):
        repair(root, only=["meta.counts"])
    result = repair(root, apply=True)
    assert {"meta.files", "meta.counts", "meta.orphans"} <= ids(result)
    assert codes(root) == [(0, f) for f in range(6)] + [(1, f) for f in range(12)] + [(2, f) for f in range(5)]
    assert_is_sound(root)
    removed = sorted(path.name for path in (root / ".mimetic-removed").rglob("*.*") if path.is_file())
    assert removed == ["file-001.parquet", "file-003.mp4", "file-003.parquet"]
    assert repair(root).repairs == ()


def test_a_dataset_without_one_whole_file_is_not_touched(root):
    for path in root.glob("data/*/*.parquet"):
        path.write_bytes(b"PAR1")
    before = files_of(root)
    with pytest.raises(DatasetError, match="no data file that can be read"):
        repair(root, apply=True)
    assert files_of(root) == before


def test_times_of_a_long_episode_are_on_the_grid():
    """Case 14: float32 holds late times only roughly."""
    from mimetic.data.repair.times import _grid_fault

    times = (np.arange(40_000) / 15).astype(np.float32).astype(np.float64)
    assert _grid_fault(times, 15) == ""
    assert _grid_fault(times + np.where(np.arange(40_000) == 39_000, 0.002, 0), 15) == "time.grid"
    assert _grid_fault(np.arange(40_000) / 15.01, 15) == "time.drift"
