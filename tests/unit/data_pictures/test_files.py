"""Damaged, hostile, absent and drawn pictures: findings, never a crash, and nothing judged that cannot be."""

import io
import json
import os
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_scene import build_scene
from PIL import Image

from mimetic.data.check.finding import Claim
from mimetic.data.check.pictures import reading
from mimetic.data.check.pictures.run import check_pictures
from mimetic.data.check.source import open_source
from mimetic.errors import VideoError
from mimetic.testing.datasets import build_dataset

SCENE = {"length": 10, "episodes": 4, "cameras": ("front",), "size": (64, 80), "camera_stats": False}
FRONT = "observation.images.front"


def look(root, **changes):
    return check_pictures(open_source(root, with_rows=True), **changes).findings


def defects(findings):
    return [(item.id, item.episodes) for item in findings if item.claim is Claim.DEFECT]


def videos(root):
    return sorted((root / "videos").rglob("*.mp4"))


@pytest.mark.parametrize("dtype", ["video", "image"])
def test_coded_images_are_not_judged_and_it_is_said(tmp_path, dtype):
    root = build_dataset(
        tmp_path / "set", lengths=(9, 12, 11, 8, 10), cameras={"top": (48, 64), "wrist": (48, 64)}, camera_dtype=dtype
    )
    findings = look(root)
    assert {item.claim for item in findings} <= {Claim.FACT, Claim.NOT_CHECKED}
    assert sum("no photographs" in item.message for item in findings) == 2


def test_a_dataset_without_cameras_or_rows(tmp_path):
    assert look(build_dataset(tmp_path / "set")) == []
    root = build_scene(tmp_path / "scene", **SCENE)
    findings = check_pictures(open_source(root, with_rows=False)).findings
    assert defects(findings) == []
    assert any(item.id == "image.duplicate_frames" and item.claim is Claim.NOT_CHECKED for item in findings)


@pytest.mark.parametrize("content", [b"", b"not a video at all" * 50, None], ids=["empty", "garbage", "cut"])
def test_a_damaged_video_file_is_a_finding(tmp_path, content):
    root = build_scene(tmp_path / "set", **{**SCENE, "episodes_per_file": 2})
    path = videos(root)[1]
    path.write_bytes(path.read_bytes()[:900] if content is None else content)
    assert defects(look(root)) == [("image.damaged", (2, 3))]


def test_damage_in_the_middle_names_the_frames(tmp_path):
    root = build_scene(tmp_path / "set", **{**SCENE, "episodes_per_file": 2, "size": (120, 160)})
    path = videos(root)[0]
    data = bytearray(path.read_bytes())
    half = len(data) // 3
    data[half : half + 2500] = bytes(2500)
    path.write_bytes(data)
    finding = next(item for item in look(root) if item.claim is Claim.DEFECT)
    assert finding.id == "image.damaged"
    assert finding.spans
    assert all(0 <= first <= last < 10 for _, first, last in finding.spans)


def test_a_missing_video_is_left_to_the_rule_on_files(tmp_path):
    root = build_scene(tmp_path / "set", **{**SCENE, "episodes_per_file": 2})
    videos(root)[0].unlink()
    findings = look(root)
    assert defects(findings) == []
    assert [item.episodes for item in findings if item.id == "image.damaged"] == [(0, 1)]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes among its files")
def test_a_pipe_in_the_place_of_a_video_is_not_waited_for(tmp_path, monkeypatch):
    root = build_dataset(tmp_path / "set", lengths=(5,), cameras={"top": (48, 64)})
    (path,) = videos(root)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(reading, "open_container", lambda path: pytest.fail("it was opened"))
    with pytest.raises(VideoError, match="no regular file"):
        reading.VideoFrames(path, is_depth=False)
    look(root)


def test_another_size_than_declared(tmp_path):
    root = build_scene(tmp_path / "set", **SCENE)
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"][FRONT]["shape"] = [60, 80, 3]
    path.write_text(json.dumps(info))
    finding = next(item for item in look(root) if item.claim is Claim.DEFECT)
    assert (finding.id, finding.episodes, finding.value, finding.threshold) == (
        "data.image_shape",
        (),
        "80x64 in 4 episodes",
        "80x60",
    )


def test_a_video_at_another_rate(tmp_path):
    root = build_scene(tmp_path / "set", **SCENE)
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["fps"] = 12
    path.write_text(json.dumps(info))
    finding = next(item for item in look(root) if item.id == "data.image_shape")
    assert finding.claim is Claim.DEFECT
    assert finding.value == pytest.approx(10.0)


def with_cells(root, cells):
    """Replace the pictures of the first data file."""
    path = sorted((root / "data").rglob("*.parquet"))[0]
    table = pq.read_table(path)
    place = table.column_names.index(FRONT)
    old = table[FRONT].to_pylist()
    new = [{"bytes": cells.get(row, cell["bytes"]), "path": cell["path"]} for row, cell in enumerate(old)]
    pq.write_table(table.set_column(place, FRONT, pa.array(new, type=table[FRONT].type)), path)


def png_that_claims(width, height):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def test_pictures_in_data_files_that_are_damaged_or_bombs(tmp_path):
    root = build_scene(tmp_path / "set", **{**SCENE, "dtype": "image", "episodes_per_file": 4})
    other = io.BytesIO()
    Image.fromarray(np.zeros((10, 12, 3), dtype=np.uint8)).save(other, format="PNG")
    with_cells(root, {3: b"GIF89a broken", 11: png_that_claims(9000, 9000), 12: None, 25: other.getvalue()})
    findings = look(root)
    by_rule = {item.id: item for item in findings if item.claim is Claim.DEFECT}
    assert set(by_rule) == {"image.damaged", "data.image_shape"}
    assert by_rule["image.damaged"].spans == ((0, 3, 3), (1, 2, 2))
    assert by_rule["data.image_shape"].episodes == (1, 2)
    assert "9000x9000" in by_rule["data.image_shape"].message


def test_a_picture_beyond_the_limit_is_never_decoded(tmp_path, monkeypatch):
    root = build_scene(tmp_path / "set", **SCENE)
    monkeypatch.setattr(reading, "MOST_PIXELS", 64 * 80 - 1)
    monkeypatch.setattr(reading, "PyavDecoder", None)
    findings = look(root)
    assert defects(findings) == [("image.damaged", (0, 1, 2, 3))]
    assert "80x64 pixels" in findings[0].message


def test_a_length_from_a_hostile_table_costs_nothing(tmp_path):
    root = build_scene(tmp_path / "set", **SCENE)
    path = next((root / "meta" / "episodes").rglob("*.parquet"))
    table = pq.read_table(path)
    place = table.column_names.index("length")
    pq.write_table(table.set_column(place, "length", pa.array([10, 10, 10, 10**12])), path)
    findings = look(root, full=True)
    assert ("meta.video_span", (3,)) in defects(findings)


def test_depth_cameras_are_judged_for_what_applies(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(8, 8), cameras={"depth": (24, 32)}, camera_dtype="image")
    info = json.loads((root / "meta" / "info.json").read_text())
    info["features"]["observation.images.depth"]["shape"] = [24, 32, 1]
    info["features"]["observation.images.depth"]["info"]["is_depth_map"] = True
    (root / "meta" / "info.json").write_text(json.dumps(info))
    key = "observation.images.depth"
    for number, path in enumerate(sorted((root / "data").rglob("*.parquet"))):
        table = pq.read_table(path)
        cells = []
        for row in range(table.num_rows):
            depth = np.zeros((24, 32), dtype=np.uint16) if number else np.full((24, 32), 500 + row, dtype=np.uint16)
            depth[0] += 0 if number else 90
            buffer = io.BytesIO()
            Image.fromarray(depth).save(buffer, format="PNG")
            cells.append({"bytes": buffer.getvalue(), "path": None})
        column = pa.array(cells, type=table[key].type)
        pq.write_table(table.set_column(table.column_names.index(key), key, column), path)
    findings = look(root)
    assert defects(findings) == [("image.black", (1,))]
    assert {item.id for item in findings} <= {"image.black", "image.duplicate_frames", "image.frozen"}
