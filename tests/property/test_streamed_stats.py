"""Statistics of rows that come piece by piece are those of all rows sorted together, to the last bit of float32."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mimetic.data.convert import tables
from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.convert.streamed_stats import streamed_stats
from mimetic.data.statistics import numeric_stats
from mimetic.errors import DatasetError
from mimetic.testing.datasets import TinyDataset, build_dataset

FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1e-40, -1e-40, 5.0])


def assert_equal(values, pieces):
    expected = numeric_stats(values)
    found = streamed_stats(lambda: iter(np.array_split(values, pieces)))
    assert set(found) == set(expected)
    for name, value in expected.items():
        if name in ("mean", "std"):  # another order of summation
            scale = np.nanmax(np.abs(values.astype(np.float64)), initial=1e-30)
            np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9 * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@settings(max_examples=60)
@given(
    values=arrays(np.float32, array_shapes(min_dims=1, max_dims=3, max_side=9), elements=FLOATS),
    pieces=st.integers(1, 4),
)
def test_any_rows_in_any_pieces(values, pieces):
    assert_equal(values, pieces)


@pytest.mark.parametrize("kind", ["normal", "constant", "far from zero", "whole numbers", "two values", "not a number"])
def test_rows_as_robots_send_them(kind):
    generator = np.random.default_rng(3)
    values = generator.normal(size=(5000, 4)).astype(np.float32)
    if kind == "constant":
        values[:] = 0.1
    elif kind == "far from zero":
        values += 1e6
    elif kind == "whole numbers":
        values = generator.integers(-1000, 1000, (5000,))
    elif kind == "two values":
        values = (values > 0).astype(bool)
    elif kind == "not a number":
        values[17, 2] = np.nan
    assert_equal(values, 7)


def test_no_row_is_said():
    with pytest.raises(DatasetError, match="at least one frame"):
        streamed_stats(lambda: iter([]))


def test_a_conversion_of_more_rows_than_can_be_sorted_has_the_same_statistics(tmp_path, monkeypatch):
    root = build_dataset(tmp_path / "pick", TinyDataset(version="v2.1", lengths=(20, 31, 7)))
    limits = {"data_file_size_in_mb": 0.002, "engine": "serial"}
    sorted_ = convert(ConvertConfig(root=root, output_dir=tmp_path / "sorted", **limits))
    monkeypatch.setattr(tables, "LARGEST_SORT", 10)
    counted = convert(ConvertConfig(root=root, output_dir=tmp_path / "counted", **limits))
    mine, theirs = (json.loads((folder / "meta/stats.json").read_text()) for folder in (counted, sorted_))
    assert set(mine) == set(theirs)
    for feature, entry in theirs.items():
        for name, value in entry.items():
            np.testing.assert_allclose(mine[feature][name], value, rtol=1e-9, atol=1e-9, err_msg=f"{feature} {name}")
