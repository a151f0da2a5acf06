"""Aggregated statistics and depth tables against LeRobot 0.6.1.

Tolerance: 1e-6 relative (float64 sums in another order); depth in millimetres exact.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from mimetic.data.depth import depth_table
from mimetic.data.metadata import Metadata
from mimetic.data.stats import aggregate_stats, parse_stats

FIXTURES = Path(__file__).parents[1] / "fixtures"
DATASETS = FIXTURES / "dataset"
RELATIVE = 1e-6


def grouped(tensors, prefix):
    found = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            feature, name = key[len(prefix) :].rsplit("/", 1)
            found.setdefault(feature, {})[name] = value
    return found


def assert_stats_equal(actual, expected):
    assert set(actual) == set(expected)
    for feature, entry in expected.items():
        assert set(actual[feature]) == set(entry), feature
        for name, value in entry.items():
            found = actual[feature][name]
            assert found.shape == np.atleast_1d(value).shape, (feature, name)
            np.testing.assert_allclose(found, value, rtol=RELATIVE, atol=1e-9, err_msg=f"{feature} {name}")


def test_aggregation_of_episode_statistics_equals_lerobots():
    paths = sorted((DATASETS / "video_v30" / "meta" / "episodes").glob("**/*.parquet"))
    parts = []
    for row in [row for path in paths for row in pq.read_table(path).to_pylist()]:
        part = {}
        for key, value in row.items():
            if key.startswith("stats/"):
                feature, name = key[len("stats/") :].rsplit("/", 1)
                part.setdefault(feature, {})[name] = value
        parts.append(parse_stats(part, where="episodes"))
    expected = grouped(load_file(DATASETS / "stats" / "stats.safetensors"), "aggregate_all/")
    assert_stats_equal(aggregate_stats(parts), expected)


def test_a_quantile_that_one_part_lacks_is_dropped():
    golden = load_file(DATASETS / "stats" / "stats.safetensors")
    entries = grouped(golden, "aggregate_missing_q50/")
    expected = entries.pop("out")
    actual = aggregate_stats([{"x": entries["a"]}, {"x": entries["b"]}])
    assert "q50" not in actual["x"]
    assert_stats_equal(actual, {"x": expected})


@pytest.mark.parametrize("name", ["v21", "real"])
def test_statistics_of_a_v21_folder_equal_those_of_lerobots_converter(name):
    if name == "v21":
        metadata = Metadata.open(DATASETS / "v21")
        expected = json.loads((DATASETS / "v21_converted" / "meta" / "stats.json").read_text())
    else:
        metadata = Metadata.open(FIXTURES / "real" / "g1_v21")
        expected = json.loads((FIXTURES / "real" / "g1_v21_golden" / "converted.json").read_text())["stats"]
    assert_stats_equal(metadata.stats, {key: {k: np.asarray(v) for k, v in e.items()} for key, e in expected.items()})


def test_episodes_of_the_real_v21_recording_equal_lerobots_conversion():
    metadata = Metadata.open(FIXTURES / "real" / "g1_v21")
    expected = json.loads((FIXTURES / "real" / "g1_v21_golden" / "converted.json").read_text())["episodes"]
    assert [(e.episode_index, e.length, list(e.tasks)) for e in metadata.episodes] == [
        (row["episode_index"], row["length"], row["tasks"]) for row in expected
    ]


@pytest.mark.parametrize(
    ("name", "info"),
    [
        ("default", {}),
        ("linear", {"video.use_log": False}),
        ("narrow", {"video.depth_min": 0.1, "video.depth_max": 2.0, "video.shift": 0.5}),
    ],
)
def test_depth_of_every_code_equals_lerobots(name, info):
    golden = load_file(DATASETS / "depth" / "depth.safetensors")
    in_mm, in_m = depth_table(info, "mm"), depth_table(info, "m")
    assert in_mm.dtype == in_m.dtype == np.float32
    np.testing.assert_array_equal(in_mm, golden[f"{name}/dequant_mm_tensor"].reshape(-1))
    # absolute part: exp(x) - shift cancels near 0, where float32 of the sum resolves 2e-7 m
    np.testing.assert_allclose(in_m, golden[f"{name}/dequant_m_tensor"].reshape(-1), rtol=1e-6, atol=5e-7)
