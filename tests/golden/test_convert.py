"""`mimetic dataset convert` against LeRobot 0.6.1's converter (tests/fixtures/dataset/v21_converted, fixtures/real).

Exact: info.json, tables, rows. Times: 1e-9 s. Statistics: those of numbers are computed anew in float64, the golden ones
are float32 sums of the v2.1 file, so they may differ by 1e-6 of the feature's largest value; quantiles, which the golden
ones lack, are compared with numpy's on the rows. Colour: at most 2 of 255 (another FFmpeg may round otherwise; 0 here).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.reader import open_dataset

FIXTURES = Path(__file__).parents[1] / "fixtures"
V21, CONVERTED = FIXTURES / "dataset" / "v21", FIXTURES / "dataset" / "v21_converted"
G1, G1_GOLDEN = FIXTURES / "real" / "g1_v21", FIXTURES / "real" / "g1_v21_golden"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    target = tmp_path_factory.mktemp("golden") / "out"
    return convert(
        ConvertConfig(
            root=V21, output_dir=target, data_file_size_in_mb=0.008, video_file_size_in_mb=0.025, engine="serial"
        )
    )


@pytest.fixture(scope="module")
def g1(tmp_path_factory):
    target = tmp_path_factory.mktemp("golden") / "g1"
    return convert(ConvertConfig(root=G1, output_dir=target, engine="serial"))


def load(path):
    return json.loads(path.read_text())


def table(root):
    return pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")


def assert_stats_equal(mine, golden, where):
    scale = max(np.abs(np.asarray(golden["max"])).max(), np.abs(np.asarray(golden["min"])).max())
    for key, value in golden.items():
        assert np.asarray(mine[key]).shape == np.asarray(value).shape, (where, key)
        np.testing.assert_allclose(mine[key], value, rtol=1e-6, atol=1e-6 * scale, err_msg=f"{where} {key}")


def test_info_is_that_of_lerobot_to_the_order_of_its_keys(ours):
    mine, golden = load(ours / "meta/info.json"), load(CONVERTED / "meta/info.json")
    assert mine == golden
    assert json.dumps(mine) == json.dumps(golden)


def test_the_table_of_episodes_has_lerobots_values(ours):
    mine, golden = table(ours), table(CONVERTED)
    plain = [name for name in golden.column_names if not name.startswith("stats/")]
    assert len(plain) == 17
    for name in plain:
        values, expected = mine[name].to_pylist(), golden[name].to_pylist()
        if name.endswith("_timestamp"):
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-9, err_msg=name)
        else:
            assert values == expected, name


def test_statistics_of_episodes_are_those_of_lerobot_and_have_quantiles(ours):
    mine, golden = table(ours).to_pylist(), table(CONVERTED).to_pylist()
    features = [name.split("/")[1] for name in golden[0] if name.startswith("stats/") and name.endswith("/min")]
    assert len(features) == 9
    for number, (row, expected) in enumerate(zip(mine, golden, strict=True)):
        for feature in features:
            keys = [name.split("/")[2] for name in expected if name.startswith(f"stats/{feature}/")]
            assert_stats_equal(
                {key: row[f"stats/{feature}/{key}"] for key in keys},
                {key: expected[f"stats/{feature}/{key}"] for key in keys},
                f"episode {number} {feature}",
            )
    rows = pq.read_table(V21 / "data/chunk-000/episode_000003.parquet")
    action = np.asarray(rows["action"].to_pylist())
    for key, level in QUANTILES.items():
        np.testing.assert_allclose(mine[3][f"stats/action/{key}"], np.quantile(action, level, axis=0), rtol=1e-6)


def test_statistics_of_the_whole_are_true_quantiles_of_all_rows(ours):
    mine, golden = load(ours / "meta/stats.json"), load(CONVERTED / "meta/stats.json")
    assert set(mine) == set(golden)
    for feature, expected in golden.items():
        assert_stats_equal(mine[feature], expected, feature)
    rows = [pq.read_table(path) for path in sorted((V21 / "data").rglob("*.parquet"))]
    state = np.concatenate([np.asarray(part["observation.state"].to_pylist()) for part in rows])
    for key, level in QUANTILES.items():
        np.testing.assert_allclose(mine["observation.state"][key], np.quantile(state, level, axis=0), rtol=1e-6)
        np.testing.assert_allclose(mine["index"][key], [np.quantile(np.arange(115), level)], rtol=1e-9)


def test_rows_and_tasks_are_those_of_lerobot(ours):
    for name in ("data/chunk-000/file-000.parquet", "data/chunk-000/file-001.parquet"):
        mine, golden = pq.read_table(ours / name), pq.read_table(CONVERTED / name)
        assert mine.column_names == golden.column_names
        for column in golden.column_names:
            assert mine[column].to_pylist() == golden[column].to_pylist(), column
    tasks = [pq.read_table(root / "meta/tasks.parquet").to_pylist() for root in (ours, CONVERTED)]
    assert [row["task_index"] for row in tasks[0]] == [row["task_index"] for row in tasks[1]]
    assert [row["task"] for row in tasks[0]] == ["Pick up the red cube.", "Push the green ball to the left."]


def test_a_data_file_has_a_row_group_for_each_episode_and_lerobots_types(ours):
    file = pq.ParquetFile(ours / "data/chunk-000/file-000.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [18, 25, 12, 30, 9]
    assert str(file.schema_arrow.field("action").type) == "fixed_size_list<element: float>[6]"
    assert b"huggingface" in file.schema_arrow.metadata


def test_every_item_is_that_of_lerobots_conversion(ours):
    mine = open_dataset(root=ours, return_uint8=True, video_backend="pyav")
    golden = open_dataset(root=CONVERTED, return_uint8=True, video_backend="pyav")
    assert len(mine) == len(golden) == 115
    for index in range(len(golden)):
        one, other = mine[index], golden[index]
        assert list(one) == list(other)
        for key, value in other.items():
            assert value == one[key] if key == "task" else bool((value == one[key]).all()), (index, key)


def test_the_real_recording_is_converted_as_lerobot_does_it(g1):
    golden = load(G1_GOLDEN / "converted.json")
    assert load(g1 / "meta/info.json") == golden["info"]
    mine = table(g1).to_pylist()
    assert len(mine) == len(golden["episodes"]) == 3
    for row, expected in zip(mine, golden["episodes"], strict=True):
        for key, value in expected.items():
            assert row[key] == pytest.approx(value, abs=1e-9) if isinstance(value, float) else row[key] == value, key
    stats = load(g1 / "meta/stats.json")
    for feature, expected in golden["stats"].items():
        assert_stats_equal(stats[feature], expected, feature)


def test_items_of_the_real_recording_are_those_that_lerobot_reads(g1):
    golden, described = load_file(G1_GOLDEN / "items.safetensors"), load(G1_GOLDEN / "converted.json")["items"]
    dataset = open_dataset(
        root=g1, delta_timestamps={"action": [0, 1 / 30, 2 / 30, 3 / 30]}, return_uint8=True, video_backend="pyav"
    )
    assert len(described) == 6
    for index, expected in described.items():
        item = dataset[int(index)]
        assert {key: int(item[key]) if key != "task" else item[key] for key in expected} == expected
        for key in (name.split("/", 1)[1] for name in golden if name.split("/")[0] == index):
            value = np.asarray(item[key])
            if key.startswith("observation.images"):
                difference = np.abs(value[:, ::4, ::4].astype(int) - golden[f"{index}/{key}"])
                assert difference.max() <= 2, key
                assert difference.mean() <= 0.5, key
            else:
                np.testing.assert_array_equal(value, golden[f"{index}/{key}"], err_msg=key)
