"""Tasks, episodes, statistics and columns: small files in every spelling."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mimetic.data.episodes import Episodes, listed
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import fill_from_column, storage_dtype
from mimetic.data.runs import find_runs
from mimetic.data.stats import aggregate_stats, parse_stats, read_stats, with_depth_unit, with_imagenet_stats
from mimetic.data.tasks import read_tasks
from mimetic.errors import DatasetFormatError, EpisodeError


def write_tasks(root, table, index_columns=None):
    (root / "meta").mkdir(exist_ok=True)
    if index_columns is not None:
        table = table.replace_schema_metadata({"pandas": json.dumps({"index_columns": index_columns})})
    pq.write_table(table, root / "meta" / "tasks.parquet")


@pytest.mark.parametrize(
    ("columns", "index_columns"),
    [
        ({"task_index": [1, 0], "task": ["b", "a"]}, ["task"]),
        ({"task_index": [1, 0], "__index_level_0__": ["b", "a"]}, ["__index_level_0__"]),
        ({"task_index": [1, 0], "task": ["b", "a"]}, None),
        ({"task": ["b", "a"], "task_index": [1, 0], "note": ["x", "y"]}, ["task"]),
        ({"task_index": [1, 0], "task": ["b", "a"]}, [{"kind": "range"}]),
    ],
)
def test_tasks_are_read_by_number_in_every_spelling(tmp_path, columns, index_columns):
    write_tasks(tmp_path, pa.table(columns), index_columns)
    assert read_tasks(tmp_path) == {0: "a", 1: "b"}


def test_tasks_without_a_text_column_or_with_a_number_twice_are_refused(tmp_path):
    assert read_tasks(tmp_path) == {}
    write_tasks(tmp_path, pa.table({"task_index": [0], "other": [1]}))
    with pytest.raises(DatasetFormatError, match="one text column"):
        read_tasks(tmp_path)
    write_tasks(tmp_path, pa.table({"task_index": [0, 0], "task": ["a", "b"]}))
    with pytest.raises(DatasetFormatError, match="same number"):
        read_tasks(tmp_path)


def episodes_of(*numbers):
    index = np.asarray(numbers, dtype=np.int64)
    nothing = np.full(len(index), -1)
    return Episodes(index, index + 1, (("t",),) * len(index), nothing, nothing, nothing, nothing)


def test_episodes_are_found_by_number_whatever_their_order():
    episodes = episodes_of(7, 2, 4)
    assert episodes.positions(np.asarray([[2, 7], [3, 4]])).tolist() == [[1, 0], [-1, 2]]
    assert episodes[4].length == 5
    assert 4 in episodes
    assert 5 not in episodes
    assert episodes.gaps == [0, 1, 3, 5, 6]
    with pytest.raises(EpisodeError, match="no episode 5"):
        episodes[5]


def test_long_lists_of_numbers_are_cut_in_messages():
    assert listed([1, 2]) == "1, 2"
    assert listed(list(range(10)), limit=3) == "0, 1, 2 and 7 more"


def test_runs_follow_the_rows_and_point_into_the_table():
    runs = find_runs(np.asarray([4, 4, 9, 2, 2, 2]), episodes_of(2, 4))
    assert runs.episode.tolist() == [4, 9, 2]
    assert runs.start.tolist() == [0, 2, 3]
    assert runs.length.tolist() == [2, 1, 3]
    assert runs.of_row.tolist() == [0, 0, 1, 2, 2, 2]
    assert runs.table.tolist() == [1, -1, 0]
    assert len(find_runs(np.empty(0, dtype=np.int64), episodes_of(0)).episode) == 0


def array2d(values):
    class Array2D(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.list_(pa.list_(pa.float32())), "test.Array2D")

        def __arrow_ext_serialize__(self):
            return b""

    return pa.ExtensionArray.from_storage(Array2D(), pa.array(values, pa.list_(pa.list_(pa.float32()))))


VECTORS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    ("array", "shape", "expected"),
    [
        (pa.array(VECTORS, pa.list_(pa.float32(), 2)), (2,), VECTORS),
        (pa.array(VECTORS, pa.list_(pa.float32())), (2,), VECTORS),
        (pa.array(VECTORS, pa.large_list(pa.float64())), (2,), VECTORS),
        (pa.array(VECTORS, pa.list_(pa.float32(), 2)).slice(1), (2,), VECTORS[1:]),
        (array2d([VECTORS, VECTORS]), (3, 2), [VECTORS, VECTORS]),
        (pa.array([1.5, None], pa.float32()), (), [1.5, np.nan]),
        (pa.array([[1.5], [2.5]], pa.list_(pa.float32())), (), [1.5, 2.5]),
        (pa.array([1, 2], pa.int16()), (), [1, 2]),
    ],
)
def test_every_dialect_of_a_column_gives_the_same_array(array, shape, expected):
    out = np.empty((len(array), *shape), dtype=np.float32)
    fill_from_column(out, pa.chunked_array([array]), name="x", where="file")
    np.testing.assert_array_equal(out, np.asarray(expected, dtype=np.float32))


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([[1.0, 2.0], [3.0]]), np.float32, "rows of 1 to 2 values"),
        (pa.array([[1.0, 2.0], None]), np.float32, "1 rows without a value"),
        (pa.array([[1.0, 2.0, 3.0]]), np.float32, "3 values a row; 2 are declared"),
        (pa.array([["a", "b"]]), np.float32, "instead of numbers"),
        (pa.array([[1, None]]), np.int64, "1 missing values"),
        (pa.array([[1.5, 2.0]]), np.int64, "holds fractions"),
    ],
)
def test_values_that_are_not_as_declared_are_refused(array, dtype, message):
    out = np.empty((len(array), 2), dtype=dtype)
    with pytest.raises(DatasetFormatError, match=message):
        fill_from_column(out, pa.chunked_array([array]), name="x", where="file")


def test_numbers_are_kept_as_float32_int64_or_bool():
    kinds = {"float16": "f4", "float64": "f4", "int8": "i8", "uint16": "i8", "bool": "?"}
    for dtype, kind in kinds.items():
        assert storage_dtype(DatasetFeature(dtype, (1,))) == np.dtype(kind)


def test_statistics_become_arrays_and_nan_tokens_stay(tmp_path):
    assert read_stats(tmp_path) == {}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "stats.json").write_text(
        '{"x": {"mean": [1.5, NaN], "std": 2.0, "count": [3], "min": [null]}}'
    )
    stats = read_stats(tmp_path)["x"]
    assert stats["mean"].shape == (2,)
    assert np.isnan(stats["mean"][1])
    assert stats["std"].shape == (1,)
    assert stats["count"].dtype.kind == "i"
    assert np.isnan(stats["min"][0])
    for raw in ([], {"x": 3}, {"x": {"mean": "no"}}, {"x": {"mean": [[1], [1, 2]]}}):
        with pytest.raises(DatasetFormatError):
            parse_stats(raw, where="stats.json")


def test_aggregation_equals_statistics_of_all_samples_together():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n, 3)) * n for n in (2, 5, 11)]

    def of(x):
        return {"min": x.min(0), "max": x.max(0), "mean": x.mean(0), "std": x.std(0), "count": np.asarray([len(x)])}

    merged = aggregate_stats([{"x": of(part)} for part in parts])["x"]
    for name, value in of(np.concatenate(parts)).items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-12)


def test_imagenet_values_replace_mean_and_deviation_of_the_given_cameras_only():
    stats = {"a": {"mean": np.zeros((3, 1, 1)), "min": np.zeros((3, 1, 1))}, "s": {"mean": np.ones(2)}}
    found = with_imagenet_stats(stats, ["a", "new"])
    for key in ("a", "new"):
        assert found[key]["mean"].dtype == np.float32
        np.testing.assert_allclose(found[key]["mean"][:, 0, 0], [0.485, 0.456, 0.406], rtol=1e-6)
        np.testing.assert_allclose(found[key]["std"][:, 0, 0], [0.229, 0.224, 0.225], rtol=1e-6)
    assert found["s"]["mean"].tolist() == [1, 1]
    assert "min" in found["a"]
    assert stats["a"]["mean"].max() == 0


def test_depth_statistics_follow_the_output_unit_but_counts_do_not(said):
    def camera(unit):
        return DatasetFeature("video", (4, 4, 1), None, {"depth_unit": unit} if unit else {}, is_depth=True)

    entry = {"mean": np.full((1, 1, 1), 2.0), "count": np.asarray([7])}
    stats = {"m": entry, "mm": entry, "unknown": entry}
    found = with_depth_unit(stats, {"m": camera("m"), "mm": camera("mm"), "unknown": camera(None)}, "mm")
    assert [found[key]["mean"].item() for key in stats] == [2000, 2, 2]
    assert [found[key]["count"].item() for key in stats] == [7, 7, 7]
    assert "`unknown`" in said.text
