"""What holds of every dataset that was written well, in LeRobot's eyes too (spec/dataset.md 2 to 8)."""

import json
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq

from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.store.episode_rows import read_episode_rows

NUMBERING = ("timestamp", "frame_index", "episode_index", "index", "task_index")


def assert_is_sound(root: Path) -> None:
    """Ledger without gaps, numbers as counted, files that exist, statistics that fit."""
    info = json.loads((root / "meta" / "info.json").read_text())
    metadata = Metadata.open(root)
    rows = read_episode_rows(root, metadata.features)
    assert [row.episode_index for row in rows] == list(range(info["total_episodes"]))
    at = 0
    for row in rows:
        assert (row.from_index, row.to_index) == (at, at + row.length)
        at = row.to_index
        assert (root / f"meta/episodes/chunk-{row.meta_chunk:03d}/file-{row.meta_file:03d}.parquet").is_file()
    assert at == info["total_frames"]
    assert info["total_tasks"] == len(metadata.tasks)
    assert list(metadata.tasks) == list(range(len(metadata.tasks)))
    assert info["splits"] == {"train": f"0:{len(rows)}"}
    assert_data(root, rows, metadata)
    assert_videos(root, rows, metadata)
    assert_statistics(root, rows, metadata)


def assert_data(root, rows, metadata):
    index = 0
    used = set()
    for path in sorted((root / "data").glob("*/*.parquet")):
        table = pq.read_table(path, partitioning=None)
        expected = [name for name, feature in metadata.features.items() if feature.dtype != "video"]
        assert table.column_names == expected
        assert table["index"].to_pylist() == list(range(index, index + table.num_rows))
        index += table.num_rows
    for row in rows:
        path = root / f"data/chunk-{row.data_chunk:03d}/file-{row.data_file:03d}.parquet"
        table = pq.read_table(path, partitioning=None)
        mine = table.filter(np.asarray(table["episode_index"]) == row.episode_index)
        assert mine["index"].to_pylist() == list(range(row.from_index, row.to_index))
        assert mine["frame_index"].to_pylist() == list(range(row.length))
        times = np.asarray(mine["timestamp"], dtype=np.float64)
        assert np.abs(times - np.arange(row.length) / metadata.fps).max() < 1e-4
        numbers = mine["task_index"].to_pylist()
        assert list(row.tasks) == [metadata.tasks[number] for number in dict.fromkeys(numbers)]
        used |= set(numbers)
    assert used == set(metadata.tasks)


def assert_videos(root, rows, metadata):
    known = set()
    for key in metadata.video_keys:
        spans = {}
        for row in rows:
            place = row.videos[key]
            path = root / f"videos/{key}/chunk-{place.chunk:03d}/file-{place.file:03d}.mp4"
            first = place.from_s * metadata.fps
            assert abs(first - round(first)) < 1e-6
            assert abs((place.to_s - place.from_s) * metadata.fps - row.length) < 1e-6
            spans.setdefault(path, []).append((round(first), round(first) + row.length))
        for path, members in spans.items():
            with av.open(str(path)) as container:
                assert container.streams.video[0].frames >= members[-1][1]
            assert all(one[1] <= two[0] for one, two in pairwise(members))
        known |= set(spans)
    assert set(root.glob("videos/**/*.mp4")) == known


def assert_statistics(root, rows, metadata):
    dataset = open_dataset(root=root)
    for name, feature in metadata.features.items():
        if feature.dtype in ("string", "language"):
            continue
        stats = metadata.stats[name]
        assert set(stats) == {"min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"}
        if feature.is_camera:
            channels = feature.chw[0]
            assert all(value.shape == ((1,) if key == "count" else (channels, 1, 1)) for key, value in stats.items())
            levels = [stats[key] for key in ("min", "q01", "q10", "q50", "q90", "q99", "max")]
            assert all((one <= two + 1e-9).all() for one, two in pairwise(levels))
            continue
        values = dataset.column(name).astype(np.float64)
        values = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
        for key, true in (("min", values.min(0)), ("max", values.max(0)), ("q01", np.quantile(values, 0.01, axis=0))):
            np.testing.assert_allclose(stats[key], true, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(stats["mean"], values.mean(0), rtol=1e-6, atol=1e-6)
        assert stats["count"].tolist() == [len(dataset)]
    for row in rows:
        part = dataset.column("index")[row.from_index : row.to_index]
        assert row.stats["index"]["max"].tolist() == [part.max()]
        assert row.stats["index"]["count"].tolist() == [row.length]
    dataset.close()
