"""Edits against those of LeRobot 0.6.1 (tests/fixtures/dataset/edits).

Exact: rows, files, numbers, tasks (as strings), bar codes of frames. Times in files 1e-6 s, since ours lie on the frame
grid. Moments of statistics 1e-5 of the range: LeRobot takes them from float32 squares. Where LeRobot is faulty (README of
the fixtures) the true value is asked for instead, and says so.
"""

import hashlib
import io
import json
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mimetic.data.edit.config import (
    ConvertImageToVideoConfig,
    DeleteEpisodesConfig,
    MergeConfig,
    ModifyTasksConfig,
    RecomputeStatsConfig,
    ReencodeVideosConfig,
    RemoveFeatureConfig,
    SplitConfig,
)
from mimetic.data.edit.run import add_features, edit_dataset
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.store.episode_rows import read_episode_rows

FIXTURES = Path(__file__).parents[1] / "fixtures" / "dataset"
NUMBERING = ("index", "episode_index", "frame_index", "task_index")
LEROBOTS_LIMITS = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}


def golden(name):
    return json.loads((FIXTURES / "edits" / f"{name}.json").read_text())


def sha(column, name):
    """As the fixtures have it: C-order float32 or int64 bytes, pictures as decoded pixels."""
    values = column.to_pylist()
    if isinstance(values[0], dict):
        pixels = [np.asarray(Image.open(io.BytesIO(cell["bytes"])).convert("RGB")) for cell in values]
        return hashlib.sha256(np.stack(pixels).tobytes()).hexdigest()
    array = np.asarray(values)
    return hashlib.sha256(array.astype(np.int64 if array.dtype.kind in "iu" else np.float32).tobytes()).hexdigest()


def bar_codes(path):
    found = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            picture = frame.to_ndarray(format="gray")
            height, width = picture.shape
            block = width // 8
            bits = [
                picture[height - 9 : height - 3, k * block + 2 : (k + 1) * block - 2].mean() > 127 for k in range(8)
            ]
            found.append(sum(int(bit) << (7 - k) for k, bit in enumerate(bits)))
    return found


def assert_rows(root, expected, *, same_files=True):
    """Every data file holds the same rows; without `same_files` only all of them together are compared."""
    texts = {number: text for text, number in expected["tasks"].items()}
    ours = Metadata.open(root).tasks
    together = {}
    for file in expected["data"]:
        together.setdefault("tasks", []).extend(texts[number] for number in file["task_index"])
        for name in ("index", "episode_index"):
            together.setdefault(name, []).extend(file[name])
        if not same_files:
            continue
        table = pq.read_table(root / file["file"], partitioning=None)
        assert table.num_rows == file["rows"]
        for name, digest in file["columns_sha256"].items():
            if name != "task_index":
                assert sha(table[name], name) == digest, (file["file"], name)
    tables = [pq.read_table(path, partitioning=None) for path in sorted((root / "data").glob("*/*.parquet"))]
    for name in ("index", "episode_index"):
        assert [value for table in tables for value in table[name].to_pylist()] == together[name]
    assert [ours[number] for table in tables for number in table["task_index"].to_pylist()] == together["tasks"]


def assert_episodes(root, expected):
    features = Metadata.open(root).features
    rows = read_episode_rows(root, features)
    assert len(rows) == len(expected["episodes"])
    for row, theirs in zip(rows, expected["episodes"], strict=True):
        assert (row.episode_index, row.length) == (theirs["episode_index"], theirs["length"])
        assert (row.from_index, row.to_index) == (theirs["dataset_from_index"], theirs["dataset_to_index"])
        assert (row.data_chunk, row.data_file) == (theirs["data/chunk_index"], theirs["data/file_index"])
        if "tasks" in theirs:
            assert set(row.tasks) == set(theirs["tasks"])
        for key, place in row.videos.items():
            assert (place.chunk, place.file) == (
                theirs[f"videos/{key}/chunk_index"],
                theirs[f"videos/{key}/file_index"],
            )
            assert abs(place.from_s - theirs[f"videos/{key}/from_timestamp"]) < 1e-6
            assert abs(place.to_s - theirs[f"videos/{key}/to_timestamp"]) < 1e-6
        assert (root / f"meta/episodes/chunk-{row.meta_chunk:03d}/file-{row.meta_file:03d}.parquet").is_file()


def assert_videos(root, expected):
    assert {path.relative_to(root).as_posix() for path in (root / "videos").rglob("*.mp4")} == set(expected["videos"])
    for name, theirs in expected["videos"].items():
        with av.open(str(root / name)) as container:
            stream = container.streams.video[0]
            assert stream.codec_context.codec.canonical_name == theirs["codec"]
            assert (stream.width, stream.height, stream.frames) == (theirs["width"], theirs["height"], theirs["frames"])
            assert str(stream.time_base) == theirs["time_base"]
            assert abs(float(stream.duration * stream.time_base) - theirs["duration_s"]) < 1e-4
        assert bar_codes(root / name) == theirs["frame_barcodes"], name


def assert_stats(root, expected, *, cameras=True, but=()):
    """Moments as LeRobot's (but those of the numbering, which are stale there), quantiles as in the rows."""
    dataset = open_dataset(root=root)
    stats = dataset.meta.stats
    for name, feature in dataset.features.items():
        if name in but:
            continue
        if name in NUMBERING:
            column = dataset.column(name).astype(np.float64)
            assert [stats[name][key][0] for key in ("min", "max")] == [column.min(), column.max()]
            assert abs(stats[name]["mean"][0] - column.mean()) < 1e-9
            continue
        if feature.is_camera and not cameras:
            continue
        theirs = expected["stats"][name]
        spread = np.asarray(theirs["max"]) - np.asarray(theirs["min"])
        for key in ("min", "max", "mean", "std"):
            assert (np.abs(stats[name][key] - np.asarray(theirs[key])) <= 1e-5 * spread + 1e-9).all(), (name, key)
        assert stats[name]["count"].tolist() == theirs["count"]
        if feature.is_numeric:
            column = dataset.column(name).reshape(len(dataset), -1)
            for key, level in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
                exact = np.quantile(column.astype(np.float64), level, axis=0)
                np.testing.assert_allclose(stats[name][key].reshape(-1), exact, rtol=1e-6, atol=1e-6)
        else:
            for key in ("q01", "q10", "q50", "q90", "q99"):  # a mixture lies between the averages' bounds
                assert (stats[name]["min"] <= stats[name][key]).all()
                assert (stats[name][key] <= stats[name]["max"]).all()


def assert_info(root, expected, *, limits):
    ours = json.loads((root / "meta" / "info.json").read_text())
    theirs = {**expected["info"], **limits}
    assert ours == theirs
    assert list(ours) == list(expected["info"])


def limits_of(source):
    raw = json.loads((FIXTURES / source / "meta" / "info.json").read_text())
    return {name: raw[name] for name in LEROBOTS_LIMITS}


@pytest.mark.parametrize(
    ("name", "source", "episodes"),
    [("delete_episodes_1_4", "video_v30", [1, 4]), ("delete_episodes_image_0_3", "image_v30", [0, 3])],
)
def test_delete_equals_lerobots(tmp_path, name, source, episodes):
    edit_dataset(FIXTURES / source, DeleteEpisodesConfig(episode_indices=episodes), new_root=tmp_path / "out")
    expected = golden(name)
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_stats(tmp_path / "out", expected)
    assert_info(tmp_path / "out", expected, limits=limits_of(source))  # LeRobot forgets the limits
    if source == "video_v30":
        assert_videos(tmp_path / "out", expected)


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    root = tmp_path_factory.mktemp("splits")
    edit_dataset(
        FIXTURES / "video_v30", SplitConfig(splits={"train": [0, 1, 2, 3], "val": [4, 5]}), new_root=root / "lists"
    )
    edit_dataset(FIXTURES / "video_v30", SplitConfig(splits={"train": 0.5, "val": 0.34}), new_root=root / "fractions")
    return root


@pytest.mark.parametrize("kind", ["lists", "fractions"])
@pytest.mark.parametrize("part", ["train", "val"])
def test_splits_equal_lerobots(splits, kind, part):
    expected = golden(f"split_{kind}_{part}")
    root = splits / kind / part
    assert_rows(root, expected)
    assert_episodes(root, expected)
    assert_videos(root, expected)
    assert_stats(root, expected)
    assert_info(root, expected, limits={})  # a split keeps the limits, in LeRobot too


@pytest.mark.parametrize(
    ("name", "is_joined"), [("merge_val_train", True), ("merge_val_train_no_concat", False), ("merge_self_twice", True)]
)
def test_merges_equal_lerobots(splits, tmp_path, name, is_joined):
    roots = [FIXTURES / "video_v30"] * 2 if "twice" in name else [splits / "lists" / "val", splits / "lists" / "train"]
    config = MergeConfig(
        roots=[str(root) for root in roots], concatenate_data=is_joined, concatenate_videos=is_joined, **LEROBOTS_LIMITS
    )
    edit_dataset(roots, config, new_root=tmp_path / "out")
    expected = golden(name)
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert_stats(tmp_path / "out", expected)
    assert_info(tmp_path / "out", expected, limits={})
    groups = [[file["row_groups"]] for file in expected["data"]]
    ours = [
        [[pq.ParquetFile(path).metadata.row_group(i).num_rows for i in range(pq.ParquetFile(path).num_row_groups)]]
        for path in sorted((tmp_path / "out" / "data").glob("*/*.parquet"))
    ]
    assert ours == groups


def test_a_merge_keeps_the_limits_of_its_sources(splits, tmp_path):
    roots = [splits / "lists" / "val", splits / "lists" / "train"]
    edit_dataset(roots, MergeConfig(roots=[str(root) for root in roots]), new_root=tmp_path / "out")
    assert len(list((tmp_path / "out" / "data").glob("*/*.parquet"))) == 3  # LeRobot puts them into one
    assert_info(tmp_path / "out", golden("merge_val_train"), limits=limits_of("video_v30"))
    assert_rows(tmp_path / "out", golden("merge_val_train"), same_files=False)


def test_remove_feature_equals_lerobots_without_the_removed_columns(tmp_path):
    camera = "observation.images.wrist"
    edit_dataset(FIXTURES / "video_v30", RemoveFeatureConfig(feature_names=[camera]), new_root=tmp_path / "out")
    expected = golden("remove_feature_wrist")
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert_stats(tmp_path / "out", expected)
    assert_info(tmp_path / "out", expected, limits=limits_of("video_v30"))
    columns = pq.read_schema(tmp_path / "out" / "meta/episodes/chunk-000/file-000.parquet").names
    assert not [name for name in columns if camera in name]  # LeRobot leaves them, and cannot edit its result


def test_add_features_equals_lerobots_and_has_their_statistics(tmp_path):
    reward = np.arange(115, dtype=np.float32) / 10
    extra = np.arange(230, dtype=np.float32).reshape(115, 2)
    add_features(
        FIXTURES / "video_v30",
        {
            "next.reward": (reward, {"dtype": "float32", "shape": [1], "names": None}),
            "extra": (
                lambda row, episode, frame: extra[row["index"]],
                {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
            ),
        },
        new_root=tmp_path / "out",
    )
    expected = golden("add_features")
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert_stats(tmp_path / "out", expected, but=("next.reward", "extra"))
    stats = Metadata.open(tmp_path / "out").stats  # LeRobot says that it computes them, and does not
    assert stats["next.reward"]["max"].tolist() == [pytest.approx(11.4)]
    assert stats["extra"]["mean"].tolist() == [114.0, 115.0]
    ours = json.loads((tmp_path / "out" / "meta" / "info.json").read_text())
    order = [name for name in ours["features"] if name in ("next.reward", "extra", "timestamp")]
    assert order[-1] == "timestamp"  # default columns come last (spec 3)
    assert ours["features"] == expected["info"]["features"]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("modify_tasks_new_task", ModifyTasksConfig(new_task="Tidy the table.")),
        (
            "modify_tasks_episode_tasks",
            ModifyTasksConfig(new_task="Z default", episode_tasks={"0": "B task", "5": "A task"}),
        ),
    ],
)
def test_modify_tasks_equals_lerobots(tmp_path, name, config):
    edit_dataset(FIXTURES / "video_v30", config, new_root=tmp_path / "out")
    expected = golden(name)
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert {text: n for n, text in Metadata.open(tmp_path / "out").tasks.items()} == expected["tasks"]  # alphabetical
    assert_stats(tmp_path / "out", expected)


def test_a_replaced_task_leaves_the_other_task_of_its_episode_alone(tmp_path):
    config = ModifyTasksConfig(task_replacements={"Pick up the red cube.": "Lift the cube."})
    edit_dataset(FIXTURES / "video_v30", config, new_root=tmp_path / "out")
    dataset = open_dataset(root=tmp_path / "out")
    texts = [dataset.meta.tasks[int(n)] for n in dataset.column("task_index")]
    push = "Push the green ball to the left."
    assert texts[55:85] == ["Lift the cube."] * 15 + [push] * 15  # LeRobot relabels all 30
    before = open_dataset(root=FIXTURES / "video_v30")
    was = [before.meta.tasks[int(n)] for n in before.column("task_index")]
    assert [text if text != "Lift the cube." else "Pick up the red cube." for text in texts] == was


def test_pictures_become_the_videos_that_lerobot_makes(tmp_path):
    config = ConvertImageToVideoConfig()
    shutil.copytree(FIXTURES / "image_v30", tmp_path / "in")
    info = tmp_path / "in" / "meta" / "info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "video_files_size_in_mb": 200}))
    edit_dataset(tmp_path / "in", config, new_root=tmp_path / "out")
    expected = golden("convert_image_to_video")
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert_info(tmp_path / "out", expected, limits={})
    rows = read_episode_rows(tmp_path / "out", Metadata.open(tmp_path / "out").features)
    assert rows[3].tasks == ("Pick up the red cube.", "Push the green ball to the left.")  # LeRobot: no tasks,
    assert set(rows[0].stats) == set(Metadata.open(tmp_path / "out").stats)  # no statistics


def test_encoding_again_equals_lerobots(tmp_path):
    config = ReencodeVideosConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264", crf=23))
    edit_dataset(FIXTURES / "video_v30", config, new_root=tmp_path / "out")
    expected = golden("reencode_h264")
    assert_rows(tmp_path / "out", expected)
    assert_episodes(tmp_path / "out", expected)
    assert_videos(tmp_path / "out", expected)
    assert_stats(tmp_path / "out", expected)
    assert_info(tmp_path / "out", expected, limits={})


def test_recomputed_statistics_equal_lerobots(tmp_path):
    edit_dataset(FIXTURES / "video_v30", RecomputeStatsConfig(), new_root=tmp_path / "out")
    assert_rows(tmp_path / "out", golden("recompute_stats"))
    assert_stats(tmp_path / "out", golden("recompute_stats"))


def test_relative_action_statistics_equal_lerobots(tmp_path):
    config = RecomputeStatsConfig(relative_action=True, chunk_size=8)
    edit_dataset(FIXTURES / "video_v30", config, new_root=tmp_path / "out")
    ours, theirs = (
        Metadata.open(tmp_path / "out").stats["action"],
        golden("recompute_stats_relative")["stats"]["action"],
    )
    spread = np.asarray(theirs["max"]) - np.asarray(theirs["min"])
    for key in ("min", "max", "mean", "std"):
        np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-4)
    for key in ("q01", "q10", "q50", "q90", "q99"):  # theirs are read off a histogram of 5000 bins
        assert (np.abs(ours[key] - np.asarray(theirs[key])) <= 0.02 * spread).all(), key
    assert ours["count"].tolist() == theirs["count"] == [584]
    assert_stats(tmp_path / "out", golden("recompute_stats_relative"), but=("action",))
