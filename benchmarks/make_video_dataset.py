"""Makes the datasets that the reading benchmarks use: two cameras of 640x480 at 30 fps, 6 episodes of 300 frames.

Three variants with the same rows, in the LeRobotDataset v3.0 layout: `av1` (libsvtav1, g=2, crf 30, preset 12) and
`h264` (libx264, g=2, crf 30), which are LeRobot's own encoder defaults for the two codecs, and `rows` without cameras.
The pictures are a textured static background, moving shapes and slight noise, chosen so that a frame takes about as
many bytes as in a real recording of this size (AV1: 10 kB here, 8 kB there; H.264: 8 and 4 kB). All frames of a camera
are in one mp4, as LeRobot's shards of 200 MB would have them.

    python -m benchmarks.make_video_dataset [FOLDER]
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.measure import WORK

FPS = 30
EPISODES = 6
LENGTH = 300
FRAMES = EPISODES * LENGTH
HEIGHT, WIDTH = 480, 640
CAMERAS = ("observation.images.front", "observation.images.wrist")
JOINTS = [f"joint_{number}.pos" for number in range(6)]
VARIANTS = ("av1", "h264", "rows")
ENCODERS = {
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "fast-decode=0"}),
    "h264": ("libx264", {"g": "2", "crf": "30"}),
}
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def dataset(variant: str, folder: Path | None = None) -> Path:
    """Folder of the variant; made when it does not exist yet."""
    root = (folder or WORK) / f"two_cameras_{variant}"
    if not (root / "meta" / "info.json").exists():
        partial = root.with_name(root.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _make(partial, variant)
        partial.rename(root)
    return root


def pictures(camera: int) -> Iterator[np.ndarray]:
    """All frames of a camera: (H, W, 3) uint8."""
    rng = np.random.default_rng(camera)
    coarse = Image.fromarray(rng.integers(40, 216, (HEIGHT // 16, WIDTH // 16, 3)).astype(np.uint8))
    smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    background = smooth + rng.normal(0, 2, (HEIGHT, WIDTH, 1)).round().astype(np.int16)
    noise = rng.normal(0, 2, (16, HEIGHT, WIDTH, 3)).round().astype(np.int16)
    colours = rng.integers(0, 256, (4, 3))
    for frame in range(FRAMES):
        image = background.copy()
        for shape, colour in enumerate(colours):
            phase = frame / FPS * (0.6 + 0.2 * shape) + camera + shape
            y = int((0.5 + 0.35 * np.sin(phase)) * (HEIGHT - 80))
            x = int((0.5 + 0.35 * np.cos(1.3 * phase)) * (WIDTH - 80))
            image[y : y + 70, x : x + 70] = colour
        image += noise[(frame * 7) % 16]
        yield np.clip(image, 0, 255).astype(np.uint8)


def _make(root: Path, variant: str) -> None:
    features = _features(variant)
    rows = _rows()
    stats = {name: _stats(rows[name]) for name in rows}
    if variant != "rows":
        for number, camera in enumerate(CAMERAS):
            path = root / VIDEO_PATH.format(video_key=camera, chunk_index=0, file_index=0)
            path.parent.mkdir(parents=True)
            stats[camera] = _encode(path, variant, number)
    data = root / DATA_PATH.format(chunk_index=0, file_index=0)
    data.parent.mkdir(parents=True)
    table = pa.table({name: _column(values) for name, values in rows.items()})
    pq.write_table(table, data, row_group_size=LENGTH)
    _write_meta(root, features, stats, variant)


def _features(variant: str) -> dict[str, Any]:
    features: dict[str, Any] = {
        name: {"dtype": "float32", "shape": [6], "names": JOINTS} for name in ("action", "observation.state")
    }
    if variant != "rows":
        info = {
            "is_depth_map": False,
            "video.height": HEIGHT,
            "video.width": WIDTH,
            "video.codec": variant,
            "video.pix_fmt": "yuv420p",
            "video.fps": FPS,
            "video.channels": 3,
            "has_audio": False,
        }
        for camera in CAMERAS:
            shape = [HEIGHT, WIDTH, 3]
            names = ["height", "width", "channels"]
            features[camera] = {"dtype": "video", "shape": shape, "names": names, "info": info}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    return features


def _rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    steps = rng.normal(0, 0.05, (EPISODES, LENGTH, 6)).cumsum(1).astype(np.float32).reshape(FRAMES, 6)
    frame = np.tile(np.arange(LENGTH), EPISODES)
    return {
        "action": steps,
        "observation.state": steps + rng.normal(0, 0.01, steps.shape).astype(np.float32),
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(EPISODES), LENGTH),
        "index": np.arange(FRAMES),
        "task_index": np.zeros(FRAMES, dtype=np.int64),
    }


def _column(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _encode(path: Path, variant: str, camera: int) -> dict[str, list[Any]]:
    os.environ.setdefault("SVT_LOG", "1")  # errors only
    codec, options = ENCODERS[variant]
    sample = []
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, image in enumerate(pictures(camera)):
            if number % 30 == 0:
                sample.append(image[::4, ::4].reshape(-1, 3) / 255)
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    pixels = np.concatenate(sample)
    values = {k: getattr(pixels, k)(0).reshape(3, 1, 1).tolist() for k in ("min", "max", "mean", "std")}
    return values | {"count": [len(sample)]}


def _stats(values: np.ndarray) -> dict[str, list[Any]]:
    flat = values.reshape(len(values), -1).astype(np.float64)
    return {k: getattr(flat, k)(0).tolist() for k in ("min", "max", "mean", "std")} | {"count": [len(values)]}


def _write_meta(root: Path, features: dict[str, Any], stats: dict[str, Any], variant: str) -> None:
    meta = root / "meta"
    episodes = meta / "episodes" / "chunk-000" / "file-000.parquet"
    episodes.parent.mkdir(parents=True)
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "features": features,
        "total_episodes": EPISODES,
        "total_frames": FRAMES,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "data_path": DATA_PATH,
        "video_path": None if variant == "rows" else VIDEO_PATH,
        "robot_type": "made_up",
        "splits": {"train": f"0:{EPISODES}"},
    }
    (meta / "info.json").write_text(json.dumps(info, indent=4))
    (meta / "stats.json").write_text(json.dumps(stats, indent=4))
    tasks = pa.table({"task_index": pa.array([0]), "task": pa.array(["move the shapes"])})
    index = {"index_columns": ["task"], "column_indexes": [], "columns": [], "pandas_version": "2.3.0"}
    names = [("task_index", "int64"), ("task", "unicode")]
    index["columns"] = [
        {"name": n, "field_name": n, "pandas_type": t, "numpy_type": "int64" if t == "int64" else "object",
         "metadata": None}
        for n, t in names
    ]  # fmt: skip
    pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(index)}), meta / "tasks.parquet")
    numbers = np.arange(EPISODES)
    zeros = np.zeros(EPISODES, dtype=np.int64)
    columns: dict[str, Any] = {
        "episode_index": numbers,
        "tasks": pa.array([["move the shapes"]] * EPISODES),
        "length": np.full(EPISODES, LENGTH),
        "data/chunk_index": zeros,
        "data/file_index": zeros,
        "dataset_from_index": numbers * LENGTH,
        "dataset_to_index": (numbers + 1) * LENGTH,
    }
    for camera in CAMERAS if variant != "rows" else ():
        columns |= {
            f"videos/{camera}/chunk_index": zeros,
            f"videos/{camera}/file_index": zeros,
            f"videos/{camera}/from_timestamp": numbers * (LENGTH / FPS),
            f"videos/{camera}/to_timestamp": (numbers + 1) * (LENGTH / FPS),
        }
    columns |= {"meta/episodes/chunk_index": zeros, "meta/episodes/file_index": zeros}
    pq.write_table(pa.table(columns), episodes)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for variant in VARIANTS:
        root = dataset(variant, folder)
        size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        print(f"{root}: {FRAMES} frames, {size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
