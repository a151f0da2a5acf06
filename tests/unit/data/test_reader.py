import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mimetic.data.images import ImageCells
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError, EpisodeError, VideoError
from mimetic.testing.datasets import build_dataset, coded_image, read_code


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return build_dataset(tmp_path_factory.mktemp("plain") / "set", tasks=("pick", "place"))


def test_positions_slices_and_iteration_follow_the_rules_of_sequences(root):
    dataset = open_dataset(root=root)
    assert len(dataset) == dataset.num_frames == 18
    assert int(dataset[-1]["index"]) == 17
    assert int(dataset[np.int64(3)]["index"]) == 3
    assert [int(item["index"]) for item in dataset[4:10:3]] == [4, 7]
    assert [int(item["index"]) for item in dataset] == list(range(18))
    for position in (18, -19):
        with pytest.raises(IndexError, match="18 frames"):
            dataset[position]
    with pytest.raises(IndexError):
        dataset.batch([0, 18])


def test_views_share_columns_and_see_only_their_episodes(root):
    dataset = open_dataset(root=root)
    view = dataset.with_windows({"action": [0, 1]}, episodes=[2, 0])
    assert np.shares_memory(dataset.column("action"), dataset.with_windows(None).column("action"))
    assert view.episodes == [0, 2]
    assert [(int(a), int(b)) for a, b in zip(*view.episode_bounds(), strict=True)] == [(0, 5), (5, 11)]
    assert view.column("index").tolist() == [0, 1, 2, 3, 4, 12, 13, 14, 15, 16, 17]
    assert int(view[5]["episode_index"]) == 2
    assert view.address(5).episode == 2
    assert view[4]["action_is_pad"].tolist() == [False, True]
    with pytest.raises(EpisodeError, match="not opened"):
        open_dataset(root=root, episodes=[0]).with_windows(None, episodes=[1])


def test_tasks_follow_the_rows(root):
    dataset = open_dataset(root=root)
    assert [dataset[i]["task"] for i in (0, 5, 12)] == ["pick", "place", "pick"]
    assert dataset.batch([5, 0])["task"] == ["place", "pick"]


def test_windows_in_seconds_are_whole_frames_or_refused(root):
    dataset = open_dataset(root=root, delta_timestamps={"action": [-0.1, 0, 0.30000001]})
    assert dataset.delta_indices == {"action": [-1, 0, 3]}
    with pytest.raises(ConfigError, match="`action`") as caught:
        open_dataset(root=root, delta_timestamps={"action": [0.05], "observation.state": [0.1, 0.27]})
    assert "`observation.state`: [0.27]" in str(caught.value)


def test_windows_that_do_not_fit_are_all_named(root):
    with pytest.raises(ConfigError) as caught:
        open_dataset(root=root, delta_indices={"actoin": [0], "action": []})
    assert "`actoin` is not a feature" in str(caught.value)
    assert "did you mean `action`" in str(caught.value)
    assert "`action` has a window without an offset" in str(caught.value)
    with pytest.raises(ConfigError, match="twice"):
        open_dataset(root=root, delta_indices={}, delta_timestamps={})


def test_any_feature_may_have_a_window(root):
    item = open_dataset(root=root, delta_indices={"timestamp": [-1, 0], "task_index": [0, 5]})[4]
    assert item["timestamp"].tolist() == pytest.approx([0.3, 0.4])
    assert item["task_index"].tolist() == [0, 0]
    assert item["task_index_is_pad"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("episodes", "exclude", "expected"),
    [(None, None, [0, 1, 2]), ([2, 0, 0], None, [0, 2]), (None, [1], [0, 2]), ([0, 1], [1], [0])],
)
def test_episodes_are_chosen_and_left_out(root, episodes, exclude, expected):
    assert open_dataset(root=root, episodes=episodes, exclude_episodes=exclude).episodes == expected


def test_choices_of_episodes_that_cannot_be_met_are_refused(root, said):
    with pytest.raises(EpisodeError, match="has no episodes 3, 9; it has episodes 0 to 2"):
        open_dataset(root=root, episodes=[9, 0, 3])
    with pytest.raises(EpisodeError, match=r"no episode .* is selected"):
        open_dataset(root=root, exclude_episodes=[0, 1, 2])
    assert open_dataset(root=root, exclude_episodes=[7]).num_episodes == 3
    assert "excluded episodes 7 do not exist" in said.text


def test_a_filter_reads_only_the_files_that_it_needs(tmp_path):
    folder = build_dataset(tmp_path / "set")
    dataset = open_dataset(root=folder, episodes=[1])
    assert [path.name for path in dataset._source.rows.files] == ["file-001.parquet"]
    assert dataset.address(0).data_row == 0


@pytest.mark.parametrize("kind", ["video", "image"])
@pytest.mark.parametrize("deltas", [None, [0], [-1, 0]])
def test_windows_of_one_frame_have_lerobots_shapes(tmp_path, kind, deltas):
    folder = build_dataset(tmp_path / "set", cameras={"a": (48, 64)}, camera_dtype=kind)
    key = "observation.images.a"
    dataset = open_dataset(root=folder, delta_indices={key: deltas} if deltas else None)
    lead = () if deltas is None or (kind == "video" and len(deltas) == 1) else (len(deltas),)
    assert dataset[0][key].shape == (*lead, 3, 48, 64)
    assert dataset.batch([0, 1])[key].shape == (2, *lead, 3, 48, 64)
    assert dataset[0][key].dtype == torch.float32
    assert open_dataset(root=folder, return_uint8=True)[0][key].dtype == torch.uint8


def test_merged_files_and_one_file_an_episode_give_the_same_samples(tmp_path):
    one = open_dataset(root=build_dataset(tmp_path / "a", cameras={"a": (48, 64)}))
    merged = open_dataset(root=build_dataset(tmp_path / "b", cameras={"a": (48, 64)}, episodes_per_file=None))
    assert one.address(9).videos != merged.address(9).videos
    for position in range(18):
        a, b = one[position], merged[position]
        assert read_code(a["observation.images.a"]) == read_code(b["observation.images.a"])
        assert torch.equal(a["action"], b["action"])


def test_language_columns_come_as_lists_with_decoded_tool_calls(tmp_path):
    folder = build_dataset(tmp_path / "set", lengths=(3,))
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    message = {"role": "user", "content": "go", "style": "subtask", "timestamp": 0.0, "tool_calls": ['{"name": "say"}']}
    events = [[], [{"role": "user", "content": None, "style": None, "tool_calls": None}], None]
    table = pq.read_table(path)
    table = table.append_column("language_persistent", pa.array([[message]] * 3)).append_column(
        "language_events", pa.array(events)
    )
    pq.write_table(table, path)
    info = json.loads((folder / "meta" / "info.json").read_text())
    for key in ("language_persistent", "language_events"):
        info["features"][key] = {"dtype": "language", "shape": [1], "names": None}
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    dataset = open_dataset(root=folder)
    items = list(dataset)
    assert items[0]["language_persistent"] == [message | {"tool_calls": [{"name": "say"}]}]
    assert [len(item["language_events"]) for item in items] == [0, 1, 0]
    assert not {"language_persistent", "language_events"} & set(dataset.batch([0, 1]))


def test_language_columns_that_are_not_declared_are_ignored_with_a_warning(tmp_path, said):
    folder = build_dataset(tmp_path / "set", lengths=(2,))
    path = folder / "data" / "chunk-000" / "file-000.parquet"
    pq.write_table(pq.read_table(path).append_column("language_events", pa.array([["x"], []])), path)
    assert "language_events" not in open_dataset(root=folder)[0]
    assert "language_events" in said.text


def test_pictures_beyond_the_memory_budget_are_mapped_and_equal(tmp_path, said):
    folder = build_dataset(tmp_path / "set", cameras={"a": (48, 64)}, camera_dtype="image")
    dataset = open_dataset(root=folder)
    rows = dataset._source.rows
    small = ImageCells(rows.files, rows.starts, budget=0)
    for row in range(18):
        assert small.read("observation.images.a", row) == dataset._source.cells.read("observation.images.a", row)
    assert "temporary file" in said.text


def test_a_dataset_needs_a_name_or_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="no dataset is named"):
        open_dataset()
    with pytest.raises(ConfigError, match="depth unit"):
        open_dataset(root=tmp_path, depth_output_unit="cm")


def test_coded_images_survive_compression(tmp_path):
    for episode, frame in ((0, 0), (255, 65535), (3, 40_000)):
        assert read_code(coded_image(episode, frame, (48, 64))) == (episode, frame)
    dataset = open_dataset(root=build_dataset(tmp_path / "set", lengths=(300,), cameras={"a": (48, 64)}, gop=30))
    for position in (299, 255, 256, 0, 128):
        assert read_code(dataset[position]["observation.images.a"]) == (0, position)


def test_a_skipped_camera_is_neither_delivered_nor_decoded(tmp_path):
    cameras = {"front": (64, 64), "wrist": (64, 64)}
    root = build_dataset(tmp_path / "set", cameras=cameras)
    dataset = open_dataset(root=root, delta_indices={"action": [0, 1]})
    wrist = "observation.images.wrist"
    view = dataset.with_windows({"action": [0, 1]}, skip=[wrist])
    for path in (root / "videos" / wrist).glob("*/*.mp4"):
        path.write_bytes(b"not a video")
    whole = [key for key in open_dataset(root=root, delta_indices={"action": [0, 1]}).features if key != wrist]
    assert sorted(view[3]) == sorted([*whole, "action_is_pad", "task"])
    assert list(view.batch([3, 9])) == list(view[3])
    assert read_code(view.batch([3, 9])["observation.images.front"][1]) == (1, 4)
    assert wrist in view.features
    assert view.with_windows(None).skipped == frozenset()
    with pytest.raises(VideoError):
        dataset[3]


def test_names_that_cannot_be_skipped_are_named_all_at_once(root):
    dataset = open_dataset(root=root)
    with pytest.raises(ConfigError) as caught:
        dataset.with_windows({"action": [0]}, skip=["action", "observation.stat"])
    assert "`action` cannot be skipped: it has a window" in str(caught.value)
    assert "did you mean `observation.state`" in str(caught.value)


@pytest.mark.parametrize("offset", [float("nan"), float("inf"), "one", None, 0.5, 10**30])
def test_a_window_offset_that_is_no_frame_is_refused(root, offset):
    with pytest.raises(ConfigError, match="whole number"):
        open_dataset(root=root).with_windows({"action": [offset]})
