"""Hostile and randomly damaged datasets: an error of ours with a short message, or the right values; nothing else."""

import io
import json
import os
import random
import shutil
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mimetic.data.reader import open_dataset
from mimetic.errors import DatasetError, DatasetFormatError, EpisodeError, MimeticError, VideoError
from mimetic.testing.datasets import build_dataset

CAMERA = "observation.images.front"
CAMERAS = {"front": (64, 64)}
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
DATA = "data/chunk-000/file-000.parquet"
DEEP = "[" * 50_000 + "]" * 50_000


def read_all(root):
    dataset = open_dataset(root=root)
    dataset.check_video_lengths()
    items = list(dataset)
    dataset.close()
    return items


def replace_column(path, name, values):
    table = pq.read_table(path)
    column = values if isinstance(values, pa.Array) else pa.array(values)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), path)


def edit_info(root, **changes):
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"fps": 10**400},
        {"fps": 1e300},
        {"chunks_size": 10**30},
        {"splits": "train"},
        {"codebase_version": "v²"},
        {"codebase_version": "x" * 100_000},
        {"total_frames": "x" * 100_000},
    ],
)
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_senseless_values_in_info_are_refused_briefly(tmp_path, changes, version):
    root = build_dataset(tmp_path / "set", version=version)
    edit_info(root, **changes)
    with pytest.raises(DatasetFormatError, match=next(iter(changes))) as caught:
        open_dataset(root=root)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["info.json", "stats.json"])
@pytest.mark.parametrize("depth", [100, 50_000])
def test_deep_nesting_is_refused(tmp_path, name, depth):
    root = build_dataset(tmp_path / "set")
    value = "[" * depth + "]" * depth
    (root / "meta" / name).write_text('{"action": {"mean": ' + value + "}}")
    with pytest.raises(DatasetFormatError, match="nested"):
        open_dataset(root=root)


def test_deep_nesting_in_a_line_names_the_line(tmp_path):
    root = build_dataset(tmp_path / "set", version="v2.1")
    path = root / "meta" / "episodes.jsonl"
    path.write_text(path.read_text() + DEEP)
    with pytest.raises(DatasetFormatError, match="line 4"):
        open_dataset(root=root)


@pytest.mark.parametrize("shape", [[10**9, 10**9, 3], [65536, 65536, 3], [10**30, 1, 3]])
def test_an_enormous_camera_is_refused_before_memory_is_asked_for(tmp_path, shape):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    features = json.loads((root / "meta" / "info.json").read_text())["features"]
    features[CAMERA]["shape"] = shape
    edit_info(root, features=features)
    with pytest.raises(DatasetFormatError, match="values a frame"):
        open_dataset(root=root)


@pytest.mark.parametrize("column", ["timestamp", "action", CAMERA])
def test_a_column_that_stands_twice_is_named(tmp_path, column):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS, camera_dtype="image")
    table = pq.read_table(root / DATA)
    pq.write_table(table.append_column(column, table[column]), root / DATA)
    with pytest.raises(DatasetFormatError, match=f"`{column}` more than once"):
        read_all(root)


def test_a_column_of_the_episodes_or_tasks_that_stands_twice_is_named(tmp_path):
    for number, (file, column) in enumerate([(EPISODES, "length"), ("meta/tasks.parquet", "task_index")]):
        root = build_dataset(tmp_path / str(number))
        table = pq.read_table(root / file)
        pq.write_table(table.append_column(column, table[column]), root / file)
        with pytest.raises(DatasetFormatError, match=f"`{column}` more than once"):
            open_dataset(root=root)


@pytest.mark.parametrize("values", [[["a"]], [None], ["zero"], [1.5]])
def test_task_numbers_that_are_none_are_refused(tmp_path, values):
    root = build_dataset(tmp_path / "set")
    replace_column(root / "meta" / "tasks.parquet", "task_index", values)
    with pytest.raises(DatasetFormatError, match=r"tasks\.parquet"):
        open_dataset(root=root)


def test_texts_that_are_no_texts_are_refused(tmp_path):
    root = build_dataset(tmp_path / "set")
    path = root / "meta" / "tasks.parquet"
    path.write_bytes(path.read_bytes().replace(b"pick up", b"\xff\xfe\xfd up".ljust(7, b"\xff")))
    with pytest.raises(DatasetFormatError, match=r"tasks\.parquet"):
        open_dataset(root=root)


@pytest.mark.parametrize(
    ("column", "value"),
    [("episode_index", -1), ("episode_index", 2**62), ("length", -5), ("length", 1e300), ("episode_index", 0.5)],
)
def test_senseless_numbers_in_the_table_of_episodes_are_refused_at_once(tmp_path, column, value):
    root = build_dataset(tmp_path / "set")
    replace_column(root / EPISODES, column, [*pq.read_table(root / EPISODES)[column].to_pylist()[:-1], value])
    with pytest.raises(DatasetError):
        open_dataset(root=root)


def test_numbers_that_no_integer_holds_are_refused_and_infinite_ones_reported(tmp_path):
    root = build_dataset(tmp_path / "set")
    replace_column(root / DATA, "task_index", pa.array([2**63] * 5, pa.uint64()))
    with pytest.raises(DatasetFormatError, match="`task_index`"):
        open_dataset(root=root)
    root = build_dataset(tmp_path / "other", columns={"next.reward": np.full(18, 1e39)})
    dataset = open_dataset(root=root)
    assert {found.feature for found in dataset.find_non_finite()} == {"next.reward"}


def test_counts_of_zero_cannot_weigh_statistics(tmp_path):
    root = build_dataset(tmp_path / "set", version="v2.1")
    path = root / "meta" / "episodes_stats.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["stats"]["action"]["count"] = [0]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DatasetFormatError, match="`count`"):
        open_dataset(root=root)


def test_depth_parameters_that_are_no_numbers_are_refused(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS)
    features = json.loads((root / "meta" / "info.json").read_text())["features"]
    features[CAMERA] |= {"shape": [64, 64, 1], "info": {"is_depth_map": True, "video.depth_min": "near"}}
    edit_info(root, features=features)
    with pytest.raises(DatasetFormatError, match="'near'"):
        open_dataset(root=root)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(*, text=b"", pixels=None):
    raw = pixels if pixels is not None else zlib.compress(b"\0" * 64 * (64 * 3 + 1))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + text + chunk(b"IDAT", raw) + chunk(b"IEND", b"")


def gif():
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, format="GIF")
    return buffer.getvalue()


PICTURES = {
    "a text that grows to 200 MB": png(text=chunk(b"zTXt", b"note\0\0" + zlib.compress(b"0" * 200_000_000))),
    "broken pixels": png(pixels=b"\0\1\2\3"),
    "pixels that end early": png(pixels=zlib.compress(b"\0" * 99)),
    "half a file": png()[:60],
    "another format": gif(),
    "nothing": b"",
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_hostile_picture_is_named_with_its_frame(tmp_path, name):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS, camera_dtype="image", lengths=(3,))
    cells = pq.read_table(root / DATA)[CAMERA].to_pylist()
    cells[1]["bytes"] = PICTURES[name]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    replace_column(root / DATA, CAMERA, pa.array(cells, kind))
    dataset = open_dataset(root=root)
    assert dataset[0]
    with pytest.raises(DatasetFormatError, match="episode 0, frame 1"):
        dataset[1]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_among_the_files_does_not_hang(tmp_path):
    root = build_dataset(tmp_path / "set")
    os.mkfifo(root / "data" / "chunk-000" / "file-999.parquet")
    assert len(open_dataset(root=root)) == 18  # no episode needs it
    (root / DATA).unlink()
    os.mkfifo(root / DATA)
    with pytest.raises(DatasetFormatError, match="is not a file"):
        open_dataset(root=root)


def test_a_video_with_a_codec_of_the_future_is_refused_and_broken_titles_do_not_matter(tmp_path):
    root = build_dataset(tmp_path / "set", cameras=CAMERAS, lengths=(3,))
    path = open_dataset(root=root).address(0).videos[CAMERA][0]
    good = path.read_bytes()
    assert b"Lavf" in good
    path.write_bytes(good.replace(b"Lavf", b"\xff\xfe\xfd\xfc"))
    assert len(read_all(root)) == 3
    path.write_bytes(good.replace(b"avc1", b"zz9z"))
    with pytest.raises(VideoError, match=r"file-000\.mp4"):
        list(open_dataset(root=root))


def damage(path, chance):
    data = bytearray(path.read_bytes())
    kind = chance.random()
    if kind < 0.6:
        for _ in range(chance.choice([1, 2, 20])):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind < 0.8:
        del data[chance.randrange(len(data)) :]
    else:
        start = chance.randrange(len(data))
        del data[start : start + chance.randrange(1, 200)]
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_random_damage_gives_nothing_but_our_errors(tmp_path, version):
    base = build_dataset(tmp_path / "base", cameras=CAMERAS, version=version)
    chance = random.Random(20)
    n_refused = 0
    for _ in range(60):
        root = tmp_path / "damaged"
        shutil.copytree(base, root)
        damage(chance.choice(sorted(path for path in root.rglob("*") if path.is_file())), chance)
        try:
            read_all(root)
        except MimeticError as error:
            n_refused += 1
            assert str(error)
            assert len(str(error)) < 2000
        shutil.rmtree(root)
    assert n_refused > 20


def test_gaps_of_any_size_are_listed_briefly(tmp_path):
    root = build_dataset(tmp_path / "set")
    table = pq.read_table(root / EPISODES)
    numbers = [0, 1, 2**40]
    replace_column(root / EPISODES, "episode_index", numbers)
    assert table.num_rows == len(numbers)
    with pytest.raises(EpisodeError) as caught:
        open_dataset(root=root)
    assert len(str(caught.value)) < 600
