"""Damaged datasets: one clear error or one warning each, and never another episode's frames."""

import json
import logging
import shutil
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mimetic.data.reader import open_dataset
from mimetic.data.stats import with_imagenet_stats
from mimetic.errors import DatasetFormatError, DatasetNotFound, EpisodeError, VideoError
from mimetic.testing.datasets import build_dataset, coded_image, read_code, write_video

CAMERA = "observation.images.front"
CAMERAS = {"front": (64, 64)}
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())

    @property
    def text(self):
        return "\n".join(self.messages)


@pytest.fixture
def said():
    handler = Records()
    logger = logging.getLogger("mimetic.data")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def edit_info(root, change):
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def edit_table(path, change):
    pq.write_table(change(pq.read_table(path)), path)


def set_cell(table, name, row, value):
    values = table[name].to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(name), name, pa.array(values, table[name].type))


def assert_own_footage(dataset):
    for position in range(len(dataset)):
        item = dataset[position]
        expected = (int(item["episode_index"]), int(item["frame_index"]))
        assert read_code(item[CAMERA]) == expected
        assert item["observation.state"][0] == 100 * expected[0] + expected[1]


@pytest.mark.parametrize("per_file", [1, None])
def test_a_hole_in_the_numbering_is_reported_and_every_episode_keeps_its_footage(tmp_path, said, per_file):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6, 8), cameras=CAMERAS, episodes_per_file=per_file)
    edit_table(root / EPISODES, lambda table: table.filter(pc.not_equal(table["episode_index"], 1)))
    for path in sorted((root / "data").glob("*/*.parquet")):
        edit_table(path, lambda table: table.filter(pc.not_equal(table["episode_index"], 1)))
    dataset = open_dataset(root=root)
    assert dataset.episodes == [0, 2, 3]
    assert len(dataset) == 19
    assert "gap at 1" in said.text
    assert_own_footage(dataset)
    assert_own_footage(open_dataset(root=root, episodes=[2]))


def test_a_wrong_data_file_number_is_reported_and_the_right_rows_are_served(tmp_path, said):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6, 8), cameras=CAMERAS)
    edit_table(root / EPISODES, lambda table: set_cell(table, "data/file_index", 1, 0))
    dataset = open_dataset(root=root)
    assert "episode 1" in said.text
    assert "file-000.parquet" in said.text
    assert "file-001.parquet" in said.text
    assert_own_footage(dataset)
    subset = open_dataset(root=root, episodes=[1])
    assert subset.num_frames == 7
    assert_own_footage(subset)


def test_a_video_shorter_than_its_rows_is_found_before_training_and_named_at_run_time(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 12, 6), cameras=CAMERAS)
    dataset = open_dataset(root=root)
    assert dataset.check_video_lengths() == []
    path = dataset.address(5).videos[CAMERA][0]
    write_video(path, [coded_image(1, frame, (64, 64)) for frame in range(8)], fps=10)
    dataset = open_dataset(root=root)
    (found,) = dataset.check_video_lengths()
    assert (found.episode, found.camera, found.missing) == (1, CAMERA, 4)
    assert dataset[5 + 7]
    for read in (lambda: dataset[5 + 9], lambda: dataset.batch([0, 5 + 9, 3])):
        with pytest.raises(VideoError) as caught:
            read()
        assert "file-001.mp4" in str(caught.value)
        assert "episode 1, frame 9" in str(caught.value)


def test_a_damaged_video_counts_as_missing_all_its_frames(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 7), cameras=CAMERAS)
    path = open_dataset(root=root).address(5).videos[CAMERA][0]
    path.write_bytes(path.read_bytes()[:200])
    (found,) = open_dataset(root=root).check_video_lengths()
    assert (found.episode, found.missing) == (1, 7)
    assert found.reason


def test_a_merged_video_that_is_short_names_the_last_episodes_only(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6), cameras=CAMERAS, episodes_per_file=None)
    path = open_dataset(root=root).address(0).videos[CAMERA][0]
    write_video(path, [coded_image(0, frame, (64, 64)) for frame in range(10)], fps=10)
    found = open_dataset(root=root).check_video_lengths()
    assert [(entry.episode, entry.missing) for entry in found] == [(1, 2), (2, 6)]


def test_a_missing_video_file_is_named_with_its_camera_and_episodes(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6), cameras=CAMERAS)
    open_dataset(root=root).address(5).videos[CAMERA][0].unlink()
    with pytest.raises(VideoError) as caught:
        open_dataset(root=root)
    assert f"videos/{CAMERA}/chunk-000/file-001.mp4" in str(caught.value)
    assert "episodes 1 " in str(caught.value)
    assert "exclude_episodes=[1]" in caught.value.hint
    assert_own_footage(open_dataset(root=root, exclude_episodes=[1]))


def test_a_camera_without_names_and_statistics_opens_and_can_be_filled_in(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"front": (64, 48)}, camera_stats=False)
    edit_info(root, lambda info: info["features"][CAMERA].update(names=None))
    dataset = open_dataset(root=root)
    assert CAMERA not in dataset.meta.stats
    assert dataset.meta.policy_features[CAMERA].shape == (3, 64, 48)
    assert dataset[0][CAMERA].shape == (3, 64, 48)
    stats = with_imagenet_stats(dataset.meta.stats, dataset.meta.colour_keys)
    assert stats[CAMERA]["mean"].shape == stats[CAMERA]["std"].shape == (3, 1, 1)
    assert CAMERA not in dataset.meta.stats


@pytest.mark.parametrize("frame", [15_363, 20_001, 30_727, 39_999])
def test_frames_of_a_long_episode_at_15_fps_are_addressed_exactly(long_episode, frame):
    row = long_episode.address(frame)
    assert (row.episode, row.frame, row.videos[CAMERA][1]) == (0, frame, frame)
    assert read_code(long_episode[frame][CAMERA]) == (0, frame)


@pytest.fixture(scope="module")
def long_episode(tmp_path_factory):
    root = tmp_path_factory.mktemp("long") / "set"
    build_dataset(root, lengths=(40_000,), fps=15, cameras={"front": (24, 32)}, gop=30)
    return open_dataset(root=root)


def test_short_episodes_give_every_frame_with_exact_padding(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(1, 3, 7))
    dataset = open_dataset(root=root, delta_indices={"action": range(8), "observation.state": [-1, 0]})
    assert len(dataset) == 11
    for item in dataset:
        length, frame = (1, 3, 7)[int(item["episode_index"])], int(item["frame_index"])
        assert item["action_is_pad"].tolist() == [frame + step >= length for step in range(8)]
        assert item["observation.state_is_pad"].tolist() == [frame == 0, False]


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_a_wrong_folder_fails_at_once_with_the_nearest_datasets(tmp_path, monkeypatch, kind):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    build_dataset(tmp_path / "pick_cube")
    root = tmp_path / "pick_cub"
    if kind == "empty":
        (root / "data").mkdir(parents=True)
    begin = time.monotonic()
    with pytest.raises(DatasetNotFound) as caught:
        open_dataset("me/pick_cub", root=root)
    assert time.monotonic() - begin < 20  # a loaded machine is no failure; asking a network for it takes longer
    assert str(caught.value) == f"no dataset at `{root}` (expected meta/info.json)"
    assert str(tmp_path / "pick_cube") in caught.value.hint
    assert caught.value.exit_code == 2


def test_the_folder_above_or_below_is_offered(tmp_path):
    root = build_dataset(tmp_path / "a" / "set")
    for wrong in (tmp_path / "a", root / "data", root / "meta"):
        with pytest.raises(DatasetNotFound) as caught:
            open_dataset(root=wrong)
        assert str(root) in caught.value.hint


def test_a_killed_recorder_leaves_an_error_that_names_the_file_and_counts_episodes(tmp_path):
    """LeRobot writes footers only at the end: data file without footer, no episodes file, info.json says 3."""
    root = build_dataset(tmp_path / "set", lengths=(10, 10, 10), episodes_per_file=None)
    data = root / "data" / "chunk-000" / "file-000.parquet"
    data.write_bytes(data.read_bytes()[:-500])
    with pytest.raises(DatasetFormatError) as caught:
        open_dataset(root=root)
    assert str(data) in str(caught.value)
    assert "0 of 3 episodes are complete" in str(caught.value)
    shutil.rmtree(root / "meta" / "episodes")
    with pytest.raises(DatasetFormatError, match="no episode of this dataset is complete"):
        open_dataset(root=root)


def test_the_complete_episodes_beside_a_cut_file_can_be_read(tmp_path, said):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6), cameras=CAMERAS)
    cut = root / "data" / "chunk-000" / "file-002.parquet"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(DatasetFormatError) as caught:
        open_dataset(root=root)
    assert "2 of 3 episodes are complete" in str(caught.value)
    assert "--dataset.exclude_episodes=[2]" in caught.value.hint
    dataset = open_dataset(root=root, exclude_episodes=[2])
    assert dataset.episodes == [0, 1]
    assert "file-002.parquet" in said.text
    assert_own_footage(dataset)


@pytest.mark.parametrize("version", ["v3.0", "v2.1", "v2.0"])
def test_a_missing_data_file_is_named(tmp_path, version):
    root = build_dataset(tmp_path / "set", version=version)
    sorted((root / "data").glob("*/*.parquet"))[1].unlink()
    with pytest.raises(EpisodeError) as caught:
        open_dataset(root=root)
    assert "episode 1 has 0 rows" in str(caught.value)
    assert ("file-001.parquet" if version == "v3.0" else "episode_000001.parquet") in str(caught.value)
    assert "2 of 3 episodes" in str(caught.value)
    assert open_dataset(root=root, episodes=[0, 2]).num_frames == 11


@pytest.mark.parametrize("name", ["episodes.jsonl", "tasks.jsonl", "episodes_stats.jsonl"])
def test_a_cut_jsonl_file_of_v21_names_the_line(tmp_path, name):
    root = build_dataset(tmp_path / "set", version="v2.1", tasks=("a", "b"))
    path = root / "meta" / name
    path.write_text(path.read_text()[:-15])
    with pytest.raises(DatasetFormatError, match=rf"line \d of .*{name}"):
        open_dataset(root=root)


def test_a_missing_episodes_jsonl_of_v21_is_named(tmp_path):
    root = build_dataset(tmp_path / "set", version="v2.1")
    (root / "meta" / "episodes.jsonl").unlink()
    with pytest.raises(DatasetFormatError, match=r"episodes\.jsonl"):
        open_dataset(root=root)


def test_not_a_number_in_the_rows_is_found(tmp_path):
    state = np.zeros((18, 4), dtype=np.float32)
    state[7, 2], state[8, 0], state[17, 1] = np.nan, np.inf, np.nan
    root = build_dataset(tmp_path / "set", columns={"observation.environment_state": state})
    dataset = open_dataset(root=root)
    found = [(entry.feature, entry.episode, entry.frames) for entry in dataset.find_non_finite()]
    assert found == [("observation.environment_state", 1, (2, 3)), ("observation.environment_state", 2, (5,))]
    assert [entry.episode for entry in dataset.with_windows(None, episodes=[0, 2]).find_non_finite()] == [2]


def test_counters_that_disagree_are_reported_and_the_tables_are_used(tmp_path, said):
    root = build_dataset(tmp_path / "set")
    edit_info(root, lambda info: info.update(total_episodes=7, total_frames=5, total_tasks=3))
    dataset = open_dataset(root=root)
    assert (dataset.num_episodes, dataset.num_frames) == (3, 18)
    assert all(f"says {name}" in said.text for name in ("total_episodes 7", "total_frames 5", "total_tasks 3"))


def test_stale_numbers_of_episodes_files_after_a_merge_do_not_matter(tmp_path, said):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_table(root / EPISODES, lambda table: set_cell(table, "meta/episodes/file_index", 1, 9))
    assert_own_footage(open_dataset(root=root))
    assert said.messages == []


def test_global_row_numbers_that_disagree_are_reported_and_not_relied_on(tmp_path, said):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_table(root / EPISODES, lambda table: set_cell(table, "dataset_from_index", 2, 0))
    assert_own_footage(open_dataset(root=root))
    assert "episode 2: meta/episodes says rows 0 to 18, its rows say 12 to 18" in said.text


def test_episodes_table_out_of_order_serves_the_right_footage(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(5, 7, 6), cameras=CAMERAS)
    edit_table(root / EPISODES, lambda table: table.take([2, 0, 1]))
    assert_own_footage(open_dataset(root=root))


def test_an_episode_with_too_few_rows_is_refused_with_the_way_to_leave_it_out(tmp_path):
    root = build_dataset(tmp_path / "set")
    edit_table(root / "data" / "chunk-000" / "file-001.parquet", lambda table: table.slice(0, 4))
    with pytest.raises(EpisodeError, match="episode 1 has 4 rows in the data files, 7 in its table") as caught:
        open_dataset(root=root)
    assert "--dataset.exclude_episodes=[1]" in caught.value.hint


def test_a_hole_in_the_frames_of_an_episode_is_refused(tmp_path):
    root = build_dataset(tmp_path / "set")
    edit_table(root / "data" / "chunk-000" / "file-001.parquet", lambda table: set_cell(table, "frame_index", 3, 4))
    with pytest.raises(EpisodeError, match="episode 1: row 3 says frame_index 4"):
        open_dataset(root=root)


def test_rows_of_one_episode_in_two_places_are_refused(tmp_path):
    root = build_dataset(tmp_path / "set")
    folder = root / "data" / "chunk-000"
    shutil.copy(folder / "file-000.parquet", folder / "file-003.parquet")
    with pytest.raises(EpisodeError, match="episodes 0 lie in several places"):
        open_dataset(root=root)


def test_an_episode_twice_in_the_table_is_refused(tmp_path):
    root = build_dataset(tmp_path / "set")
    edit_table(root / EPISODES, lambda table: pa.concat_tables([table, table.slice(1, 1)]))
    with pytest.raises(EpisodeError, match="more than one row for episodes 1"):
        open_dataset(root=root)


def test_rows_that_no_episode_claims_are_ignored_with_a_warning(tmp_path, said):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_table(root / EPISODES, lambda table: table.slice(0, 2))
    dataset = open_dataset(root=root)
    assert dataset.episodes == [0, 1]
    assert len(dataset) == 12
    assert "rows of episodes 2 are ignored" in said.text
    assert_own_footage(dataset)


def test_times_that_contradict_the_rate_are_refused_for_videos(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_table(root / "data" / "chunk-000" / "file-001.parquet", lambda table: set_cell(table, "timestamp", 3, 0.35))
    with pytest.raises(EpisodeError, match=r"episode 1, frame 3: timestamp 0\.35"):
        open_dataset(root=root)
    assert len(open_dataset(root=root, tolerance_s=0.1)) == 18


def test_a_rate_that_is_not_the_videos_is_refused(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_info(root, lambda info: info.update(fps=20))
    with pytest.raises(EpisodeError, match="differs from"):
        open_dataset(root=root)


def test_a_start_time_off_the_frame_grid_is_refused_for_the_episodes_that_are_read(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS, episodes_per_file=None)
    name = f"videos/{CAMERA}/from_timestamp"
    edit_table(root / EPISODES, lambda table: set_cell(table, name, 1, 0.54))
    with pytest.raises(VideoError, match=r"episodes 1 .* not a whole frame at 10 Hz: 0\.54"):
        open_dataset(root=root)
    assert_own_footage(open_dataset(root=root, exclude_episodes=[1]))
    edit_table(root / EPISODES, lambda table: set_cell(table, name, 1, 0.5004))  # accumulated rounding is snapped
    assert_own_footage(open_dataset(root=root))


def test_a_declared_column_that_is_missing_is_named(tmp_path):
    root = build_dataset(tmp_path / "set")
    edit_info(root, lambda info: info["features"].update(gripper={"dtype": "float32", "shape": [1], "names": None}))
    with pytest.raises(DatasetFormatError, match="lacks the declared columns `gripper`"):
        open_dataset(root=root)


def test_a_width_that_is_not_the_declared_one_is_named(tmp_path):
    root = build_dataset(tmp_path / "set")
    edit_info(root, lambda info: info["features"]["action"].update(shape=[5]))
    with pytest.raises(DatasetFormatError, match=r"`action` in .* has 2 values a row; 5 are declared"):
        open_dataset(root=root)


def test_task_numbers_without_a_task_are_named(tmp_path):
    root = build_dataset(tmp_path / "set", tasks=("a", "b"))
    edit_table(root / "meta" / "tasks.parquet", lambda table: table.slice(0, 1))
    with pytest.raises(DatasetFormatError, match="rows use task_index 1"):
        open_dataset(root=root)


def test_a_frame_of_another_size_than_declared_is_refused(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    edit_info(root, lambda info: info["features"][CAMERA].update(shape=[32, 64, 3]))
    dataset = open_dataset(root=root)
    with pytest.raises(VideoError, match="episode 0"):
        dataset[0]


@pytest.mark.parametrize(("episodes_per_file", "n_complete"), [(None, 0), (1, 2)])
def test_a_cut_data_file_says_what_is_complete_without_it(tmp_path, episodes_per_file, n_complete):
    # cases.md 4: what a killed recorder leaves; leaving episodes out is offered only where some remain
    root = build_dataset(tmp_path / "set", episodes_per_file=episodes_per_file)
    path = sorted((root / "data").rglob("*.parquet"))[-1]
    path.write_bytes(path.read_bytes()[:-60])
    with pytest.raises(DatasetFormatError) as caught:
        open_dataset(root=root)
    assert f"{n_complete} of 3 episodes are complete without it" in caught.value.message
    assert path.name in caught.value.message
    assert ("--dataset.exclude_episodes=[2]" in caught.value.hint) == (n_complete > 0)
