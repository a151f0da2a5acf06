"""What the writers of data files, tables and statistics make equals LeRobot's files in types, names, order, metadata.

Values are exact: they are the same numbers written again. Statistics differ on purpose (spec/dataset.md 20.12-20.14):
quantiles are true ones, deviations two-pass; minimum, maximum, mean agree to 1e-6 relative (LeRobot rounds through
float32), deviations to 1e-4 (LeRobot subtracts float32 squares).
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.statistics import PictureStats, numeric_stats, sample_indices, thin
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.episode_rows import read_episode_rows, write_episode_rows
from mimetic.data.store.schema import episode_table
from mimetic.data.store.tables import new_info, read_raw_info, write_info, write_stats, write_tasks

DATASETS = ["video_v30", "image_v30", "dtypes_v30"]


def columns_of(path, group):
    """Columns of one row group as `episode_table` takes them."""
    table = pq.ParquetFile(path).read_row_group(group)
    columns = {}
    for name in table.column_names:
        values = table.column(name).to_pylist()
        columns[name] = [(v["bytes"], v["path"]) for v in values] if isinstance(values[0], dict) else values
    return columns


@pytest.mark.parametrize("name", DATASETS)
def test_data_files_are_written_as_lerobot_writes_them(fixtures, tmp_path, name):
    features = Metadata.open(fixtures / "dataset" / name).features
    for path in sorted((fixtures / "dataset" / name).glob("data/*/*.parquet")):
        theirs = pq.ParquetFile(path)
        with DataFileWriter(tmp_path / path.name, features) as writer:
            for group in range(theirs.num_row_groups):
                writer.write(episode_table(features, columns_of(path, group)))
        ours = pq.ParquetFile(tmp_path / path.name)
        assert ours.num_row_groups == theirs.num_row_groups
        assert ours.metadata.format_version == theirs.metadata.format_version == "2.6"
        one, two = ours.metadata.row_group(0), theirs.metadata.row_group(0)
        for column in range(one.num_columns):
            assert one.column(column).compression == two.column(column).compression == "SNAPPY"
            assert set(one.column(column).encodings) == set(two.column(column).encodings)
        assert ours.schema_arrow.equals(theirs.schema_arrow, check_metadata=False)
        for mine, other in zip(ours.schema_arrow, theirs.schema_arrow, strict=True):
            assert mine.metadata == other.metadata, mine.name
        described = [json.loads(file.schema_arrow.metadata[b"huggingface"]) for file in (ours, theirs)]
        assert described[0]["info"] == described[1]["info"]
        assert len(described[0]["fingerprint"]) == 16
        assert ours.read().equals(theirs.read())


@pytest.mark.parametrize("name", DATASETS)
def test_the_table_of_episodes_is_written_as_lerobot_writes_it(fixtures, tmp_path, name):
    root = fixtures / "dataset" / name
    features = Metadata.open(root).features
    rows = read_episode_rows(root, features)
    assert [row.episode_index for row in rows] == list(range(len(rows)))
    for path in sorted(root.glob("meta/episodes/*/*.parquet")):
        theirs = pq.read_table(path)
        own = [row for row in rows if row.episode_index in theirs.column("episode_index").to_pylist()]
        write_episode_rows(tmp_path / "file.parquet", own, features)
        ours = pq.read_table(tmp_path / "file.parquet")
        assert ours.column_names == theirs.column_names
        assert ours.schema.equals(theirs.schema, check_metadata=True)
        assert ours.equals(theirs)


@pytest.mark.parametrize("name", DATASETS)
def test_the_small_files_keep_their_bytes(fixtures, tmp_path, name):
    root = fixtures / "dataset" / name
    write_info(tmp_path, read_raw_info(root))
    assert (tmp_path / "meta/info.json").read_bytes() == (root / "meta/info.json").read_bytes()
    metadata = Metadata.open(root)
    write_tasks(tmp_path, metadata.tasks)
    ours, theirs = (pq.read_table(place / "meta/tasks.parquet") for place in (tmp_path, root))
    assert ours.equals(theirs)
    assert ours.schema.equals(theirs.schema, check_metadata=False)
    pandas = [json.loads(table.schema.metadata[b"pandas"]) for table in (ours, theirs)]
    assert [entry["index_columns"] for entry in pandas] == [["task"], ["task"]]
    assert pandas[0]["columns"] == pandas[1]["columns"]
    write_stats(tmp_path, metadata.stats)
    assert json.loads((tmp_path / "meta/stats.json").read_text()) == json.loads((root / "meta/stats.json").read_text())


def test_a_new_info_has_lerobots_keys_in_their_order(fixtures):
    golden = json.loads((fixtures / "dataset/video_v30/meta/info.json").read_text())
    ours = new_info(fps=30, features=golden["features"], robot_type="so100_follower")
    assert list(ours) == list(golden)
    assert list(ours["features"]) == list(golden["features"])
    assert ours["features"] == golden["features"]


def test_numeric_statistics_agree_where_lerobots_are_right(fixtures):
    folder = fixtures / "dataset/stats"
    arrays, notes = load_file(folder / "stats.safetensors"), json.loads((folder / "stats.json").read_text())
    cases = {key.split("/")[0] for key in arrays if key.endswith("/input")} - {"image"}
    assert cases
    for case in cases:
        ours, seen = numeric_stats(arrays[f"{case}/input"]), 0
        for key, tolerance in (("min", 1e-6), ("max", 1e-6), ("mean", 1e-5), ("std", 1e-4)):
            theirs = arrays.get(f"{case}/out/{key}")
            if theirs is None or theirs.shape != ours[key].shape:
                continue
            if case == "large_offset_f32" and key == "std":
                theirs = np.asarray(notes["large_offset_true_std"])
            np.testing.assert_allclose(ours[key], theirs, rtol=tolerance, atol=1e-9, err_msg=f"{case} {key}")
            seen += 1
        assert seen, case


def test_quantiles_are_those_of_numpy():
    values = np.random.default_rng(0).normal(size=(1013, 3)).astype(np.float32)
    stats = numeric_stats(values)
    for key, level in (("q01", 0.01), ("q10", 0.1), ("q50", 0.5), ("q90", 0.9), ("q99", 0.99)):
        np.testing.assert_allclose(stats[key], np.quantile(values.astype(np.float64), level, axis=0), rtol=1e-12)


def test_two_separate_episodes_have_true_quantiles():
    """Hand-out case 10: LeRobot's averages say 47.6 and 52.2 here."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(0, 1, (1000, 1)), rng.normal(100, 1, (1000, 1))])
    stats = numeric_stats(values)
    assert -2.2 < stats["q01"][0] < -1.7
    assert 101.8 < stats["q99"][0] < 102.3
    constant = numeric_stats(np.repeat(np.arange(4.0), 250))
    assert (constant["q01"][0], constant["q99"][0]) == (0, 3)


def test_pictures_are_counted_exactly(fixtures):
    dataset = open_dataset(root=fixtures / "dataset/image_v30")
    key = "observation.images.top"
    episode, theirs = dataset.meta.episodes[0], read_episode_rows(dataset.root, dataset.features)[0].stats[key]
    counted, pixels = PictureStats(3), []
    for index in sample_indices(episode.length):
        picture = np.rint(dataset[int(index)][key].numpy().transpose(1, 2, 0) * 255).astype(np.uint8)
        counted.add(thin(picture))
        pixels.append(picture.reshape(-1, 3))
    stats, values = counted.result(count=episode.length), np.concatenate(pixels).astype(np.float64) / 255
    np.testing.assert_allclose(stats["mean"].ravel(), values.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(stats["std"].ravel(), values.std(axis=0), rtol=1e-12)
    for name, level in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        np.testing.assert_allclose(stats[name].ravel(), np.quantile(values, level, axis=0), atol=1e-12)
    for name in ("min", "max"):
        np.testing.assert_allclose(stats[name], theirs[name], rtol=1e-6)
    np.testing.assert_allclose(stats["mean"], theirs["mean"], rtol=2e-4)  # LeRobot adds up in float32
    np.testing.assert_allclose(stats["std"], theirs["std"], rtol=2e-3)  # LeRobot's is off by 0.1 % (20.13)
    assert stats["count"].tolist() == theirs["count"].tolist()


def test_sampled_frames_equal_lerobots(fixtures):
    notes = json.loads((fixtures / "dataset/stats/stats.json").read_text())
    cases = notes["sample_indices"]
    for length, indices in cases.items():
        assert sample_indices(int(length)).tolist() == indices, length


def test_language_columns_have_the_types_that_lerobot_reads():
    from mimetic.data.features import parse_features

    features = parse_features(
        {
            name: {"dtype": "language", "shape": [1], "names": None}
            for name in ("language_persistent", "language_events")
        },
        where="test",
    )
    message = {"role": "user", "content": "wait", "style": None, "camera": None, "tool_calls": [{"name": "say"}]}
    table = episode_table(
        features,
        {
            "language_persistent": [[{**message, "style": "plan", "timestamp": 0.5}]] * 2,
            "language_events": [[], [message]],
        },
    )
    assert table.column("language_events").to_pylist()[1][0]["tool_calls"] in (['{"name": "say"}'], [{"name": "say"}])
    assert table.schema.field("language_persistent").type.value_type.field("timestamp").type == pa.float32()
