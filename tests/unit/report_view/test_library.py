"""What the viewer reads of a dataset: one episode at a time, exactly, and whatever can be read of a damaged one."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mimetic.errors import DatasetError, DatasetNotFound, EpisodeError
from mimetic.report.view import library as module
from mimetic.report.view.curves import thinned, thinned_places
from mimetic.report.view.kept import Kept
from mimetic.report.view.library import Library
from mimetic.testing.datasets import build_dataset, read_code

TOP = "observation.images.top"
SPEC = {"lengths": (6, 5, 7), "cameras": {"top": (48, 64)}, "tasks": ("pick", "Stack the cup")}


def picture(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("dtype", ["video", "image"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("per_file", [None, 1, 2])
def test_frames_and_rows_are_those_of_the_episode(tmp_path, dtype, version, per_file):
    root = build_dataset(tmp_path / "set", camera_dtype=dtype, version=version, episodes_per_file=per_file, **SPEC)
    library = Library(root)
    for episode, frame in [(0, 0), (2, 6), (1, 3), (1, 2), (0, 5)]:
        assert read_code(picture(library.frame(TOP, episode, frame))) == (episode, frame)
    curves = library.curves(1)
    assert curves["frames"] == 5
    by_name = {curve["feature"] + curve["name"]: curve["values"] for curve in curves["curves"]}
    assert by_name["observation.statejoint_0.pos"] == [100.0, 101.0, 102.0, 103.0, 104.0]
    assert by_name["actionjoint_1.pos"] == pytest.approx([101.1, 102.1, 103.1, 104.1, 105.1])
    library.close()


def test_only_the_row_groups_of_the_episode_are_read(tmp_path, monkeypatch):
    root = build_dataset(tmp_path / "set", episodes_per_file=None, **SPEC)
    path = next((root / "data").rglob("*.parquet"))
    assert pq.read_metadata(path).num_row_groups == 3
    read = []
    original = pq.ParquetFile.read_row_groups
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_groups",
        lambda self, groups, **more: read.append(groups) or original(self, groups, **more),
    )
    Library(root).rows(1)
    assert read == [[1]]


def test_the_list_is_paged_and_filtered(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAGE", 4)
    library = Library(build_dataset(tmp_path / "set", lengths=[3] * 10, tasks=SPEC["tasks"]))
    first, second = library.list_episodes(), library.list_episodes(offset=8)
    assert (first["total"], [item["episode"] for item in first["episodes"]]) == (10, [0, 1, 2, 3])
    assert [item["episode"] for item in second["episodes"]] == [8, 9]

    def matching(words, **more):
        return [item["episode"] for item in library.list_episodes(words=words, **more)["episodes"]]

    assert matching("7") == [7]
    assert matching("3-4, 9") == [3, 4, 9]
    assert matching("STACK") == [1, 3, 5, 7]
    assert matching("nothing") == []
    assert matching("²") == []  # a digit, and no number
    assert matching("", only=[2, 99]) == [2]
    assert first["episodes"][1] == {"episode": 1, "length": 3, "task": "Stack the cup"}
    assert (library.neighbour(0, -1), library.neighbour(9, 1), library.neighbour(4, 1)) == (0, 9, 5)


def test_pictures_can_be_smaller(tmp_path):
    library = Library(build_dataset(tmp_path / "set", **SPEC))
    assert picture(library.frame(TOP, 0, 0, width=32)).shape == (24, 32, 3)
    assert picture(library.frame(TOP, 0, 0, width=5000)).shape == (48, 64, 3)


def test_what_is_not_there_is_said(tmp_path):
    root = build_dataset(tmp_path / "set", **SPEC)
    library = Library(root)
    with pytest.raises(EpisodeError, match="there is no episode 9"):
        library.frame(TOP, 9, 0)
    with pytest.raises(EpisodeError, match="has 6 frames, 6 was asked"):
        library.frame(TOP, 0, 6)
    with pytest.raises(DatasetError, match="no camera"):
        library.frame("observation.images.none", 0, 0)
    with pytest.raises(DatasetNotFound):
        Library(tmp_path / "nothing")
    sorted((root / "data").rglob("*.parquet"))[0].unlink()
    with pytest.raises(DatasetError):
        library.rows(0)
    sorted((root / "videos").rglob("*.mp4"))[0].write_bytes(b"no video")
    with pytest.raises(DatasetError):
        Library(root).frame(TOP, 0, 0)
    assert read_code(picture(library.frame(TOP, 1, 2))) == (1, 2)


def test_rows_in_another_file_than_the_table_says(tmp_path):
    root = build_dataset(tmp_path / "set", **SPEC)
    path = next((root / "meta" / "episodes").rglob("*.parquet"))
    table = pq.read_table(path)
    place = table.column_names.index("data/file_index")
    pq.write_table(table.set_column(place, "data/file_index", pa.array([0, 0, 2])), path)
    with pytest.raises(DatasetError, match="holds no rows of episode 1"):
        Library(root).rows(1)


def test_a_description_that_cannot_be_read_is_said(tmp_path):
    root = build_dataset(tmp_path / "set", **SPEC)
    (root / "meta" / "info.json").write_text("{")
    with pytest.raises(DatasetError, match="cannot be shown") as caught:
        Library(root)
    assert "mimetic dataset check" in caught.value.hint


def test_values_that_are_no_numbers_become_gaps(tmp_path):
    state = np.arange(18, dtype=np.float32)[:, None].repeat(2, axis=1)
    state[2, 0] = np.nan
    root = build_dataset(tmp_path / "set", columns={"observation.state": state}, state_dim=2, **SPEC)
    curves = Library(root).curves(0)["curves"]
    assert curves[0]["values"][:4] == [0.0, 1.0, None, 3.0]
    json.dumps(curves, allow_nan=False)


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 5000, 123_457])
def test_thinned_curves_keep_the_peaks(count):
    values = np.sin(np.arange(count) / 50)
    if count > 100:
        values[count // 3], values[2 * count // 3] = 9, -9
    frames = thinned_places(count)
    out = thinned(values, frames)
    assert len(out) == len(frames) <= 2000
    assert (np.diff(frames) > 0).all()
    if count > 100:
        assert out.max() == 9
        assert out.min() == -9
    if count <= 2000:
        assert np.array_equal(out, values)


def test_thinning_survives_stretches_without_numbers():
    values = np.full(8000, np.nan)
    values[4000:] = 1.0
    out = thinned(values, thinned_places(8000))
    assert np.isnan(out[:900]).all()
    assert (out[1100:] == 1.0).all()


def test_few_files_stay_open_and_dropped_ones_are_closed():
    closed = []
    kept = Kept(2, on_drop=closed.append)
    for key in "abcab":
        assert kept.get(key, lambda key=key: key.upper()) == key.upper()
    assert closed == ["A", "B", "C"]
    kept.clear()
    assert sorted(closed) == ["A", "A", "B", "B", "C"]
