"""v3.0 to v2.1 and back: the same items, the same bytes after the round trip, packets copied wherever that is possible."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from mimetic.data.convert import split
from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.reader import open_dataset
from mimetic.errors import DatasetError, VideoError
from mimetic.testing.datasets import TinyDataset, build_dataset, read_code

FIXTURES = Path(__file__).parents[2] / "fixtures"
CAMERA = "observation.images.top"


def back(root, target, **changes):
    return convert(ConvertConfig(root=root, output_dir=target, to="v2.1", engine="serial", **changes))


def forth(root, target, **changes):
    return convert(ConvertConfig(root=root, output_dir=target, engine="serial", **changes))


def assert_same_items(one, other):
    mine = open_dataset(root=one, return_uint8=True, video_backend="pyav")
    theirs = open_dataset(root=other, return_uint8=True, video_backend="pyav")
    assert len(mine) == len(theirs)
    for index in range(len(theirs)):
        for key, value in theirs[index].items():
            is_same = value == mine[index][key]
            assert is_same if isinstance(value, str) else bool(is_same.all()), (index, key)


def test_the_round_trip_gives_the_same_bytes(v21, content, tmp_path):
    new = forth(v21, tmp_path / "new")
    assert content(forth(back(new, tmp_path / "old"), tmp_path / "again")) == content(new)


def test_the_round_trip_through_several_shards_gives_the_same_items(v30, tmp_path):
    again = forth(back(v30, tmp_path / "old"), tmp_path / "again")
    assert_same_items(again, v30)
    info = json.loads((again / "meta/info.json").read_text())
    assert (info["data_files_size_in_mb"], info["video_files_size_in_mb"]) == (0.004, 0.004)


@pytest.mark.parametrize("name", ["dataset/video_v30", "dataset/image_v30"])
def test_lerobots_own_datasets_survive_the_round_trip(name, tmp_path):
    old = back(FIXTURES / name, tmp_path / "old")
    assert_same_items(old, FIXTURES / name)
    new = forth(old, tmp_path / "new")
    assert_same_items(new, FIXTURES / name)
    mine, theirs = (json.loads((root / "meta/info.json").read_text()) for root in (new, FIXTURES / name))
    for entry in mine["features"].values():
        entry.pop("fps", None)
    assert mine == theirs
    rows = [
        [row for path in sorted((root / "meta/episodes").rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        for root in (new, FIXTURES / name)
    ]
    for one, other in zip(*rows, strict=True):
        for key in other:
            if key.endswith("_timestamp"):
                assert one[key] - one[key.replace("/to_", "/from_")] == pytest.approx(
                    other[key] - other[key.replace("/to_", "/from_")], abs=1e-9
                )
            elif key.startswith(f"stats/{CAMERA}") or key in ("length", "dataset_from_index"):
                assert one[key] == other[key], key


def test_odd_types_survive_the_round_trip(tmp_path):
    root = FIXTURES / "dataset" / "dtypes_v30"
    old = back(root, tmp_path / "old")
    assert_same_items(old, root)
    assert_same_items(forth(old, tmp_path / "new"), root)


def test_the_layout_is_that_of_v21(v30, v21, tmp_path):
    old = back(v30, tmp_path / "old")
    info, theirs = (json.loads((root / "meta/info.json").read_text()) for root in (old, v21))
    assert info["codebase_version"] == "v2.1"
    assert {key: info[key] for key in theirs if key != "features"} == {
        key: theirs[key] for key in theirs if key != "features"
    }
    names = {path.relative_to(old).as_posix() for path in old.rglob("*") if path.is_file()}
    assert names == {path.relative_to(v21).as_posix() for path in v21.rglob("*") if path.is_file()}
    for name in ("episodes", "tasks"):
        mine, other = (
            [json.loads(line) for line in (root / f"meta/{name}.jsonl").read_text().splitlines()] for root in (old, v21)
        )
        assert mine == other
    stats = json.loads((old / "meta/episodes_stats.jsonl").read_text().splitlines()[3])["stats"]
    assert np.asarray(stats[CAMERA]["mean"]).shape == (3, 1, 1)
    assert set(stats["action"]) >= {"min", "max", "mean", "std", "count"}


def test_packets_are_copied(v30, v21, tmp_path):
    old = back(v30, tmp_path / "old")
    for path in sorted(old.rglob("*.mp4")):
        assert split.packet_hashes(path) == split.packet_hashes(v21 / path.relative_to(old))


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_videos_with_long_groups_of_pictures_survive_the_round_trip(tmp_path, codec, caplog):
    """H.264 stores such frames in another order than it shows them (B-frames)."""
    spec = TinyDataset(version="v2.1", lengths=(13, 17, 9), cameras={"top": (32, 48)}, gop=12, fps=10, codec=codec)
    root = build_dataset(tmp_path / "pick", spec)
    new = forth(root, tmp_path / "new")
    old = back(new, tmp_path / "old")
    assert_same_items(new, root)
    assert_same_items(old, root)
    assert "encoded again" not in caplog.text
    assert len(list((new / "videos").rglob("*.mp4"))) == 1


def test_an_episode_that_does_not_begin_with_a_keyframe_is_encoded_there(tmp_path, caplog):
    spec = TinyDataset(
        lengths=(5, 7), cameras={"top": (32, 48)}, episodes_per_file=None, gop=100, fps=10, codec="libsvtav1"
    )
    root = build_dataset(tmp_path / "new", spec)
    old = back(root, tmp_path / "old")
    assert "1 videos do not begin with a keyframe in their shard" in caplog.text
    dataset = open_dataset(root=old, return_uint8=True)
    assert [read_code(dataset[index][CAMERA].permute(1, 2, 0)) for index in range(12)] == [
        *((0, frame) for frame in range(5)),
        *((1, frame) for frame in range(7)),
    ]


def test_a_shard_that_is_too_short_is_named_before_any_work(v30, tmp_path):
    root = shutil.copytree(v30, tmp_path / "broken")
    files = sorted((root / "videos").rglob("*.mp4"))
    shutil.copyfile(files[-1], files[0])
    with pytest.raises(VideoError, match=r"Nothing was converted"):
        back(root, tmp_path / "old")
    assert not (tmp_path / "old").exists()


def test_a_missing_shard_is_named_before_any_work(v30, tmp_path):
    root = shutil.copytree(v30, tmp_path / "broken")
    next((root / "videos").rglob("*.mp4")).unlink()
    with pytest.raises(VideoError, match=r"does not exist"):
        back(root, tmp_path / "old")


def test_the_input_is_not_touched(v30, content, tmp_path):
    before = content(v30)
    back(v30, tmp_path / "old")
    assert content(v30) == before


def test_a_wrong_cut_is_found(v30, tmp_path, monkeypatch):
    real = split.make_video

    def wrong(task):
        piece = task.pieces[0]
        moved = piece.first - 2 if piece.first else piece.first
        return real(split.VideoTask(**{**vars(task), "pieces": (type(piece)(**{**vars(piece), "first": moved}),)}))

    monkeypatch.setattr(split, "make_video", wrong)
    with pytest.raises(DatasetError, match=r"holds other packets"):
        back(v30, tmp_path / "old")
    assert not (tmp_path / "old").exists()


def test_a_v21_dataset_is_not_converted_back(v21, tmp_path):
    with pytest.raises(DatasetError, match=r"v2.1"):
        back(v21, tmp_path / "old")
