"""Edits: what they refuse, what they leave alone, and what they get right where LeRobot does not."""

import hashlib
import json

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from dataset_invariants import assert_is_sound

from mimetic.data.edit.build import execute
from mimetic.data.edit.config import (
    AddFeaturesConfig,
    DeleteEpisodesConfig,
    KeepConfig,
    MergeConfig,
    ModifyFeaturesConfig,
    ModifyTasksConfig,
    RecomputeStatsConfig,
    ReencodeVideosConfig,
    RemoveFeatureConfig,
    RenameConfig,
    SplitConfig,
    TrimConfig,
)
from mimetic.data.edit.run import add_features, edit_dataset, modify_features, plan_edit
from mimetic.data.edit.summary import mixture_quantiles
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.engine.config import EngineConfig
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.store.episode_rows import read_episode_rows
from mimetic.errors import ConfigError, DatasetError, DatasetFormatError, EpisodeError
from mimetic.testing.datasets import build_dataset, read_code, write_video

SIZE = (40, 64)


@pytest.fixture
def root(tmp_path):
    return build_dataset(tmp_path / "set", lengths=(6, 5, 7), cameras={"top": SIZE}, tasks=("one", "two"))


def state_of(folder):
    """Name, content and time of every file."""
    return {
        path.relative_to(folder).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def codes(root, key="observation.images.top"):
    dataset = open_dataset(root=root, return_uint8=True)
    return [read_code(dataset[i][key].numpy()) for i in range(len(dataset))]


WRONG = {
    "no such episode": DeleteEpisodesConfig(episode_indices=[0, 9]),
    "all episodes": DeleteEpisodesConfig(episode_indices=[0, 1, 2]),
    "no episodes": DeleteEpisodesConfig(episode_indices=[]),
    "negative": DeleteEpisodesConfig(episode_indices=[-1]),
    "twice": DeleteEpisodesConfig(episode_indices=[1, 1]),
    "unknown feature": RemoveFeatureConfig(feature_names=["observation.images.tops"]),
    "default feature": RemoveFeatureConfig(feature_names=["timestamp"]),
    "unknown task": ModifyTasksConfig(task_replacements={"three": "four"}),
    "task of no episode": ModifyTasksConfig(episode_tasks={"7": "x"}),
    "nothing left": TrimConfig(by="frames", head=3, tail=2),
    "nothing to cut": TrimConfig(by="frames"),
    "name that is taken": RenameConfig(features={"action": "observation.state"}),
    "unknown joint": RenameConfig(joints={"elbow": "knee"}),
    "name with a slash": RenameConfig(features={"action": "a/b"}),
    "no encoder": ReencodeVideosConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264_qsvx")),
    "missing file": AddFeaturesConfig(features={"x": "/nowhere/x.npy"}),
    "keep what is not there": KeepConfig(episode_indices=[3]),
    "chunk longer than episodes": RecomputeStatsConfig(relative_action=True, chunk_size=8),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_edit_in_place_leaves_everything_as_it_was(root, name):
    before = state_of(root)
    with pytest.raises((ConfigError, DatasetError)) as caught:
        edit_dataset(root, WRONG[name])
    assert state_of(root) == before
    assert [path.name for path in root.parent.iterdir()] == ["set"]
    assert caught.value.message


def test_the_message_names_the_missing_episodes_and_those_there(root):
    with pytest.raises(ConfigError, match=r"names episodes 9; .* has episodes 0 to 2"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0, 9]))


def test_an_edit_in_place_keeps_every_earlier_state(root):
    before = state_of(root)
    first = edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))[0]
    between = state_of(root)
    second = edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))[0]
    assert (first.backup.name, second.backup.name) == ("set_old", "set_old_2")
    assert state_of(first.backup) == before
    assert state_of(second.backup) == between
    assert open_dataset(root=root).num_frames == 7
    assert_is_sound(root)


def test_an_edit_never_writes_into_the_files_of_its_source(root, tmp_path):
    before = state_of(root)
    for number, config in enumerate(
        (
            DeleteEpisodesConfig(episode_indices=[1]),
            TrimConfig(by="frames", head=1),
            ModifyTasksConfig(new_task="x"),
            RecomputeStatsConfig(skip_image_video=False),
        )
    ):
        edit_dataset(root, config, new_root=tmp_path / f"out{number}")
    assert state_of(root) == before


def test_whole_videos_are_linked_and_not_copied(root, tmp_path):
    result = edit_dataset(root, ModifyTasksConfig(new_task="x"), new_root=tmp_path / "out")[0]
    assert result.methods == {"link": 3}
    name = "videos/observation.images.top/chunk-000/file-000.mp4"
    assert (root / name).samefile(tmp_path / "out" / name)


def test_rows_are_never_shared_between_two_datasets(root, tmp_path):
    """LeRobot's `modify_tasks` writes into data files: a shared one would change the backup of an edit in place too."""
    copied = edit_dataset(root, RenameConfig(joints={"joint_0.pos": "base.pos"}), new_root=tmp_path / "out")[0].root
    for name in ("data/chunk-000/file-000.parquet",):
        assert (root / name).read_bytes() == (copied / name).read_bytes()
        assert not (root / name).samefile(copied / name)


def test_a_source_that_another_edit_replaces_meanwhile_is_noticed(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 5, 5), cameras={"top": SIZE}, episodes_per_file=None)
    late = plan_edit([root], DeleteEpisodesConfig(episode_indices=[2]), root, is_in_place=True)
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))
    before = state_of(root)
    with pytest.raises(DatasetError, match="another program changed"):
        execute(late, replaces=root)
    assert state_of(root) == before
    assert {path.name for path in tmp_path.iterdir()} == {"set", "set_old"}


def test_an_edit_that_was_killed_between_its_two_renames_is_finished(root, tmp_path):
    result = edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))[0]
    (root / ".mimetic-building.json").write_text(json.dumps({"process": 2**22 + 1, "complete": True}))
    root.rename(tmp_path / "set.building")  # as the kill left it; the old dataset is `set_old`
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))
    assert open_dataset(root=root).num_episodes == 1
    assert open_dataset(root=result.backup).num_episodes == 3


def test_a_repair_that_was_broken_off_comes_first(root):
    (root / ".mimetic-repair").mkdir()
    (root / ".mimetic-repair" / "journal.json").write_text("{}")
    with pytest.raises(DatasetError, match="a repair of") as caught:
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))
    assert "mimetic dataset repair" in caught.value.hint


def test_a_target_that_exists_is_refused(root, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(DatasetError, match="exists already"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]), new_root=tmp_path / "out")
    assert (tmp_path / "out" / "precious").read_text() == "x"


def test_a_result_is_not_written_into_its_source(root):
    with pytest.raises(ConfigError, match="inside the dataset"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]), new_root=root / "new")
    assert not (root / "new").exists()


def test_the_working_folder_can_be_edited_in_place(root, monkeypatch):
    monkeypatch.chdir(root)
    result = edit_dataset(".", DeleteEpisodesConfig(episode_indices=[0]))[0]
    assert result.backup == root.with_name("set_old")
    assert open_dataset(root=root).num_episodes == 2


def test_the_old_layout_is_refused_with_the_command_that_helps(tmp_path):
    old = build_dataset(tmp_path / "old", version="v2.1")
    with pytest.raises(DatasetError) as caught:
        edit_dataset(old, DeleteEpisodesConfig(episode_indices=[0]))
    assert "mimetic dataset convert" in caught.value.hint


def test_files_of_the_hubs_cache_are_not_edited_in_place(root, tmp_path):
    blob = tmp_path / "blob"
    data = root / "data" / "chunk-000" / "file-000.parquet"
    data.rename(root / "blob")
    data.symlink_to(root / "blob")
    with pytest.raises(DatasetError, match="hub's cache"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[1]), new_root=tmp_path / "out")
    assert not blob.exists()
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def test_footage_that_is_too_short_is_refused_with_the_repair(root):
    """Case 7: the edit would carry a hole on."""
    path = root / "videos/observation.images.top/chunk-000/file-001.mp4"
    write_video(path, [np.zeros((*SIZE, 3), np.uint8)] * 3, fps=10)
    with pytest.raises(EpisodeError, match="episode 1 lacks 2 frames") as caught:
        edit_dataset(root, ModifyTasksConfig(new_task="x"))
    assert f"mimetic dataset repair --root={root} --only=meta.video_span" in caught.value.hint
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[1]))  # without that episode nothing is missing
    assert_is_sound(root)


def test_rows_are_found_by_their_own_numbers_whatever_the_table_says(root, tmp_path):
    """Case 6: the entry of episode 1 names the data file of episode 0."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("data/file_index")
    pq.write_table(table.set_column(place, "data/file_index", [[0, 0, 2]]), path)
    edit_dataset(root, KeepConfig(episode_indices=[1]), new_root=tmp_path / "out")
    assert open_dataset(root=tmp_path / "out").column("observation.state")[:, 0].tolist() == [100, 101, 102, 103, 104]


def test_a_gap_in_the_numbers_is_closed_with_each_episodes_own_footage(root, tmp_path):
    """Case 5 as an input of an edit: episodes 0, 2 without 1."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take([0, 2]), path)
    (root / "data/chunk-000/file-001.parquet").unlink()
    edit_dataset(root, ModifyTasksConfig(new_task="x"), new_root=tmp_path / "out")
    assert codes(tmp_path / "out") == [(0, f) for f in range(6)] + [(2, f) for f in range(7)]
    assert_is_sound(tmp_path / "out")


def test_pictures_that_only_name_a_file_are_refused(tmp_path):
    """spec/dataset.md 20.6: the file that is named must not get into the result."""
    import pyarrow as pa

    root = build_dataset(tmp_path / "set", lengths=(3,), cameras={"top": SIZE}, camera_dtype="image")
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path, partitioning=None)
    name = "observation.images.top"
    cells = pa.array([{"bytes": None, "path": str(secret)}] * 3, type=table.schema.field(name).type)
    pq.write_table(table.set_column(table.schema.get_field_index(name), name, cells), path)
    with pytest.raises(DatasetFormatError, match="not opened"):
        edit_dataset(root, RenameConfig(features={"action": "action.arm"}), new_root=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Merging


def test_statistics_of_a_merge_are_those_of_its_rows(tmp_path):
    """Case 9: task_index, episode_index and index of two single-task sets."""
    one = build_dataset(tmp_path / "a", lengths=(6, 7), tasks=("pick",))
    two = build_dataset(tmp_path / "b", lengths=(8, 5), tasks=("place",))
    edit_dataset([one, two], MergeConfig(roots=["a", "b"]), new_root=tmp_path / "out")
    stats = Metadata.open(tmp_path / "out").stats
    assert stats["task_index"]["max"].tolist() == [1]
    assert stats["episode_index"]["max"].tolist() == [3]
    assert stats["index"]["max"].tolist() == [25]
    assert stats["index"]["q50"].tolist() == [12.5]
    assert list(Metadata.open(tmp_path / "out").tasks.values()) == ["pick", "place"]
    assert_is_sound(tmp_path / "out")


def test_quantiles_of_a_merge_are_those_of_all_rows(tmp_path):
    """Case 10: N(0, 1) and N(100, 1)."""
    generator = np.random.default_rng(0)
    sets = []
    for name, centre in (("a", 0.0), ("b", 100.0)):
        values = (centre + generator.standard_normal((1000, 1))).astype(np.float32)
        sets.append(build_dataset(tmp_path / name, lengths=(1000,), columns={"extra": values}))
    edit_dataset(sets, MergeConfig(roots=["a", "b"]), new_root=tmp_path / "out")
    stats = Metadata.open(tmp_path / "out").stats["extra"]
    values = open_dataset(root=tmp_path / "out").column("extra").astype(np.float64)
    for key, level in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
        assert stats[key].reshape(-1)[0] == pytest.approx(np.quantile(values, level), abs=1e-6)
    assert -2.5 < stats["q01"].reshape(-1)[0] < -1.5
    assert 101 < stats["q99"].reshape(-1)[0] < 103


def test_quantiles_of_cameras_are_those_of_the_mixture():
    dark = [0.0, 0.01, 0.05, 0.1, 0.15, 0.19, 0.2]
    bright = [0.8, 0.81, 0.85, 0.9, 0.95, 0.99, 1.0]
    found = mixture_quantiles(np.asarray([dark, bright]), np.asarray([1.0, 1.0]))
    assert found[0] < 0.05  # an average of quantiles would say 0.41
    assert found[4] > 0.95
    assert 0.1 < found[1] < 0.2 < found[2] < 0.8 < found[3] < 0.95 or found[2] == pytest.approx(0.2, abs=0.01)
    assert mixture_quantiles(np.full((3, 7), 0.5), np.ones(3)).tolist() == [0.5] * 5
    assert mixture_quantiles(np.asarray([bright, dark]), np.asarray([0.01, 1.0]))[3] < 0.2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fps": 20}, "Hz"),
        ({"robot_type": "koch"}, "koch"),
        ({"action_dim": 3}, "`action` has the shape"),
        ({"cameras": {"side": SIZE}}, "no `observation.images.top`"),
    ],
)
def test_datasets_that_differ_are_not_merged(root, tmp_path, change, word):
    settings = {"lengths": (3,), "cameras": {"top": SIZE}} | change
    other = build_dataset(tmp_path / "other", **settings)
    with pytest.raises(ConfigError, match=word):
        edit_dataset([root, other], MergeConfig(roots=["a", "b"]), new_root=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_streams_with_different_headers_get_files_of_their_own(root, tmp_path):
    other = build_dataset(tmp_path / "other", lengths=(4,), cameras={"top": SIZE}, codec="libsvtav1")
    info = other / "meta" / "info.json"
    edit_dataset([root, other], MergeConfig(roots=["a", "b"]), new_root=tmp_path / "out")
    assert len(list((tmp_path / "out/videos").rglob("*.mp4"))) == 2
    assert codes(tmp_path / "out") == [*codes(root), *codes(other)]
    assert info.is_file()


# Trimming


def test_only_the_frames_up_to_the_next_keyframe_are_encoded_again(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(12,), cameras={"top": SIZE}, codec="libsvtav1", gop=4)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.top"]["info"] |= {"video.g": 4, "video.crf": 30, "video.preset": 12}
    (root / "meta/info.json").write_text(json.dumps(info))
    result = edit_dataset(root, TrimConfig(by="frames", head=3, tail=2), new_root=tmp_path / "out")[0]
    assert (result.methods, result.encoded_frames) == ({"cut": 1}, 1)
    name = "videos/observation.images.top/chunk-000/file-000.mp4"
    before, after = pixels(root / name), pixels(tmp_path / "out" / name)
    assert len(after) == 7
    assert all(np.array_equal(after[i], before[i + 3]) for i in range(1, 7))
    assert np.abs(after[0].astype(int) - before[3]).mean() < 10
    assert codes(tmp_path / "out") == [(0, frame) for frame in range(3, 10)]


def pixels(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_cut_at_keyframes_encodes_nothing(root, tmp_path):
    config = TrimConfig(by="frames", head=1, at_keyframes=True, episode_indices=[0])
    with pytest.raises(ConfigError, match="no episode"):
        edit_dataset(root, config, new_root=tmp_path / "none")  # frame 0 is the keyframe before frame 1
    config = TrimConfig(by="frames", head=3, at_keyframes=True)
    result = edit_dataset(root, config, new_root=tmp_path / "out")[0]
    assert (result.methods, result.encoded_frames) == ({"copy": 3}, 0)
    assert codes(tmp_path / "out")[:4] == [(0, frame) for frame in range(2, 6)]
    assert open_dataset(root=tmp_path / "out").column("timestamp")[:2].tolist() == [0.0, pytest.approx(0.1)]


def moving_set(folder, still_head=30, still_tail=40, moving=60):
    """Two episodes at 30 fps: they stand still, move, stand still, with a little noise."""
    generator = np.random.default_rng(1)
    ramp = np.linspace(0, 1, moving)
    path = np.concatenate([np.zeros(still_head), ramp, np.ones(still_tail)])
    both = np.concatenate([path, path])[:, None] * np.asarray([30.0, -20.0, 10.0]) + generator.normal(
        0, 0.02, (2 * len(path), 3)
    )
    columns = {"observation.state": both.astype(np.float32)}
    return build_dataset(folder, lengths=(len(path),) * 2, fps=30, state_dim=0, columns=columns)


def test_what_stands_still_at_both_ends_is_cut(tmp_path):
    root = moving_set(tmp_path / "set")
    edit_dataset(root, TrimConfig(keep_s=0.2), new_root=tmp_path / "out")
    rows = read_episode_rows(tmp_path / "out", Metadata.open(tmp_path / "out").features)
    assert len(rows) == 2
    for row in rows:
        assert (
            60 + 2 * 6 - 8 <= row.length <= 60 + 2 * 6 + 2
        )  # the movement and 0.2 s at both ends; slow edges may count as still
    state = open_dataset(root=tmp_path / "out").column("observation.state")
    assert state[:, 0].min() < 0.2
    assert state[:, 0].max() > 29.8  # nothing of the movement is lost


def test_waits_shorter_than_asked_for_stay(tmp_path):
    root = moving_set(tmp_path / "set", still_head=8, still_tail=8)
    with pytest.raises(ConfigError, match="has idle ends"):
        edit_dataset(root, TrimConfig(), new_root=tmp_path / "out")


def test_motion_needs_a_state(tmp_path):
    root = build_dataset(tmp_path / "set", state_dim=0)
    with pytest.raises(DatasetFormatError, match=r"no `observation.state`"):
        edit_dataset(root, TrimConfig(), new_root=tmp_path / "out")


# Episodes


@pytest.mark.parametrize("content", ["[2, 0]", '{"keep": [0, 2]}', '{"episodes": [0, 2]}'])
def test_the_list_of_a_check_is_kept(root, tmp_path, content):
    (tmp_path / "keep.json").write_text(content)
    edit_dataset(root, KeepConfig(keep_list=tmp_path / "keep.json"), new_root=tmp_path / "out")
    assert codes(tmp_path / "out") == [(0, f) for f in range(6)] + [(2, f) for f in range(7)]


@pytest.mark.parametrize("content", ["{}", "[]", '["a"]', "[-1]", "[true]", "nonsense"])
def test_a_list_that_is_none_is_refused(root, tmp_path, content):
    (tmp_path / "keep.json").write_text(content)
    with pytest.raises(DatasetFormatError):
        edit_dataset(root, KeepConfig(keep_list=tmp_path / "keep.json"), new_root=tmp_path / "out")


@pytest.mark.parametrize(
    "splits",
    [{"a": 0.7, "b": 0.6}, {"a": [0], "b": [0]}, {"a": 0.5, "b": [0]}, {"a": []}, {"../a": 0.5}, {}, {"a": [7]}],
)
def test_splits_that_contradict_themselves_are_refused(root, tmp_path, splits):
    with pytest.raises(ConfigError):
        edit_dataset(root, SplitConfig(splits=splits), new_root=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_if_one_split_cannot_be_written_none_is(root, tmp_path):
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "x").write_text("")
    with pytest.raises(DatasetError, match="exists already"):
        edit_dataset(root, SplitConfig(splits={"a": 0.5, "b": 0.5}), new_root=tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b"]


def test_a_share_that_gets_no_episode_is_left_out(root, tmp_path):
    results = edit_dataset(root, SplitConfig(splits={"a": 0.1, "b": 0.9}), new_root=tmp_path / "out")
    assert [(result.root.name, result.episodes) for result in results] == [("b", 3)]


# Features


def test_columns_from_files(root, tmp_path):
    import pyarrow as pa

    np.save(tmp_path / "score.npy", np.arange(18, dtype=np.float32))
    pq.write_table(pa.table({"label": [f"text {i}" for i in range(18)], "other": range(18)}), tmp_path / "l.parquet")
    config = AddFeaturesConfig(
        features={"score": str(tmp_path / "score.npy"), "label": str(tmp_path / "l.parquet")}, names={"score": ["s"]}
    )
    edit_dataset(root, config, new_root=tmp_path / "out")
    dataset = open_dataset(root=tmp_path / "out")
    assert dataset.column("score").tolist() == list(range(18))
    assert dataset[7]["label"] == "text 7"
    assert dataset.features["score"].names == ["s"]
    assert_is_sound(tmp_path / "out")


def test_a_file_with_code_in_it_is_not_run(root, tmp_path):
    np.save(tmp_path / "evil.npy", np.asarray([print] * 18, dtype=object), allow_pickle=True)
    with pytest.raises(DatasetFormatError, match="plain numbers"):
        edit_dataset(root, AddFeaturesConfig(features={"x": str(tmp_path / "evil.npy")}), new_root=tmp_path / "out")


def test_a_number_of_values_that_does_not_fit_is_refused(root, tmp_path):
    with pytest.raises(ConfigError, match="has 17 values; the dataset has 18 frames"):
        add_features(root, {"x": (np.zeros(17), {"dtype": "float32", "shape": [1]})}, new_root=tmp_path / "out")
    with pytest.raises(ConfigError, match="declared with the shape"):
        add_features(root, {"x": (np.zeros((18, 2)), {"dtype": "float32", "shape": [3]})}, new_root=tmp_path / "out")


def test_a_column_is_replaced_by_a_function_of_its_old_values(root, tmp_path):
    modify_features(
        root,
        remove_features=["action"],
        add_features={
            "action": (
                lambda row, episode, frame: row["action"] * 2,
                {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
            )
        },
        new_root=tmp_path / "out",
    )
    before, after = open_dataset(root=root).column("action"), open_dataset(root=tmp_path / "out").column("action")
    assert np.array_equal(after, before * 2)


def test_modify_features_on_the_command_line_replaces_what_it_adds(root, tmp_path):
    np.save(tmp_path / "a.npy", np.ones((18, 2), dtype=np.float32))
    config = ModifyFeaturesConfig(
        add_features={"action": str(tmp_path / "a.npy")}, remove_features=["observation.images.top"]
    )
    edit_dataset(root, config, new_root=tmp_path / "out")
    dataset = open_dataset(root=tmp_path / "out")
    assert (dataset.column("action") == 1).all()
    assert dataset.meta.camera_keys == []
    assert not (tmp_path / "out" / "videos").exists()


def test_cameras_and_joints_get_other_names_in_every_file(root, tmp_path):
    config = RenameConfig(
        features={"observation.images.top": "observation.images.front"}, joints={"joint_0.pos": "base.pos"}
    )
    edit_dataset(root, config, new_root=tmp_path / "out")
    metadata = Metadata.open(tmp_path / "out")
    assert metadata.features["action"].names == ["base.pos", "joint_1.pos"]
    assert metadata.features["observation.state"].names[0] == "base.pos"
    assert codes(tmp_path / "out", "observation.images.front") == codes(root)
    names = pq.read_schema(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").names
    assert not [name for name in names if "images.top" in name]
    assert_is_sound(tmp_path / "out")


# Statistics


def test_camera_statistics_are_really_computed_when_asked_for(root, tmp_path):
    edit_dataset(root, RecomputeStatsConfig(skip_image_video=False), new_root=tmp_path / "out")
    stats = Metadata.open(tmp_path / "out").stats["observation.images.top"]
    pictures = np.stack([frame for path in sorted((root / "videos").rglob("*.mp4")) for frame in pixels(path)]) / 255.0
    for channel in range(3):
        assert stats["mean"][channel, 0, 0] == pytest.approx(pictures[..., channel].mean(), abs=1e-6)
        assert stats["std"][channel, 0, 0] == pytest.approx(pictures[..., channel].std(), abs=1e-6)
        assert stats["q10"][channel, 0, 0] == pytest.approx(np.quantile(pictures[..., channel], 0.1), abs=1e-6)
    assert stats["count"].tolist() == [18]


def test_it_is_said_when_statistics_of_relative_actions_get_lost(root, tmp_path):
    edit_dataset(root, RecomputeStatsConfig(relative_action=False), new_root=tmp_path / "a")
    raw = json.loads((tmp_path / "a/meta/stats.json").read_text())
    raw["action"]["count"] = [500]
    (tmp_path / "a/meta/stats.json").write_text(json.dumps(raw))
    result = edit_dataset(tmp_path / "a", DeleteEpisodesConfig(episode_indices=[0]), new_root=tmp_path / "b")[0]
    assert "relative actions" in result.notes[0]


def test_unknown_keys_of_info_stay(root, tmp_path):
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps({**info, "lab": {"bench": 3}}))
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]), new_root=tmp_path / "out")
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["lab"] == {"bench": 3}


def test_a_pool_of_processes_writes_what_one_process_writes(root, tmp_path):
    config = TrimConfig(by="frames", head=1, tail=1)
    edit_dataset(root, config, new_root=tmp_path / "one")
    edit_dataset(root, config, new_root=tmp_path / "pool", engine=EngineConfig(engine="pool", num_workers=2))
    one, pool = ({name: digest for name, (digest, _) in state_of(tmp_path / name).items()} for name in ("one", "pool"))
    assert one == pool


# Measured clocks


def with_clocks(root):
    from mimetic.data.record.clocks import EpisodeClocks, clocks_file, clocks_table, join_tables, write_clocks
    from mimetic.data.record.rate import RateReport

    tables = [
        clocks_table(
            EpisodeClocks(
                episode=episode,
                loop_s=[100.0 * episode + frame for frame in range(length)],
                cameras={"observation.images.top": [0.5 + frame for frame in range(length)]},
                rate=RateReport(rate_hz=10.0 + episode, p99_s=0.1, longest_s=0.2),
                repeated={"observation.images.top": [2, 3]},
            )
        )
        for episode, length in enumerate((6, 5, 7))
    ]
    path = clocks_file(root, 0, 0)
    path.parent.mkdir(parents=True)
    write_clocks(path, join_tables(tables))
    return root


def test_measured_clocks_follow_their_frames(root, tmp_path):
    from mimetic.data.record.clocks import clocks_file, read_verdicts

    with_clocks(root)
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]), new_root=tmp_path / "a")
    edit_dataset(tmp_path / "a", TrimConfig(by="frames", head=2, tail=1), new_root=tmp_path / "b")
    edit_dataset(
        tmp_path / "b",
        RenameConfig(features={"observation.images.top": "observation.images.front"}),
        new_root=tmp_path / "c",
    )
    table = pq.read_table(clocks_file(tmp_path / "c", 0, 0), partitioning=None)
    assert table["episode_index"].to_pylist() == [0, 0, 1, 1, 1, 1]
    assert table["frame_index"].to_pylist() == [0, 1, 0, 1, 2, 3]
    assert table["loop_s"].to_pylist() == [102, 103, 202, 203, 204, 205]
    assert table["observation.images.front"].to_pylist() == [2.5, 3.5, 2.5, 3.5, 4.5, 5.5]
    verdicts = read_verdicts(tmp_path / "c")
    assert [verdicts[episode]["measured_rate_hz"] for episode in (0, 1)] == [11.0, 12.0]
    assert verdicts[1]["repeated_frames"] == {"observation.images.front": [0, 1]}
    edit_dataset(
        tmp_path / "c", RemoveFeatureConfig(feature_names=["observation.images.front"]), new_root=tmp_path / "d"
    )
    assert "observation.images.front" not in pq.read_schema(clocks_file(tmp_path / "d", 0, 0)).names


# Verification


def other_action(folder):
    path = folder / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index("action")
    pq.write_table(
        table.set_column(place, table.schema.field(place), table["observation.state"].combine_chunks()), path
    )


def other_tasks(folder):
    from mimetic.data.store.tables import write_tasks

    write_tasks(folder, {0: "two", 1: "one"})


def shorter_video(folder):
    path = folder / "videos/observation.images.top/chunk-000/file-000.mp4"
    path.unlink()  # it is a second name of the source's
    write_video(path, [np.zeros((*SIZE, 3), np.uint8)] * 3, fps=10)


def other_counters(folder):
    info = folder / "meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "total_frames": 5}))


@pytest.mark.parametrize("damage", [other_action, other_tasks, shorter_video, other_counters])
def test_a_result_that_is_not_what_was_planned_replaces_nothing(tmp_path, monkeypatch, damage):
    from mimetic.data.edit import build

    root = build_dataset(
        tmp_path / "set", lengths=(6, 5, 7), cameras={"top": SIZE}, tasks=("one", "two"), state_dim=2, action_dim=2
    )
    before, real = state_of(root), build.write_meta

    def write_meta(plan, folder, *rest):
        real(plan, folder, *rest)
        damage(folder)

    monkeypatch.setattr(build, "write_meta", write_meta)
    with pytest.raises(DatasetError, match="not what was planned"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[2]))
    assert state_of(root) == before
    assert [path.name for path in tmp_path.iterdir()] == ["set"]
