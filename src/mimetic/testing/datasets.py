"""Tiny datasets for tests and benchmarks, written from scratch in the v3.0 and v2.1 layouts.

Every value says where it belongs, so that a wrong row or a wrong frame is visible in numbers:

- `observation.state[i]` is `100 * episode + frame + i / 10`, `action[i]` the same of the next frame;
- frames are "coded images": black and white cells spell the episode (8 bits) and the frame (16 bits), `read_code` reads
  them back, also after lossy compression.

Written with pyarrow, PyAV and Pillow directly, not with mimetic's own writer, so that reader and writer are not tested
against themselves only.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.info import DATA_PATH, LEGACY_DATA_PATH, LEGACY_VIDEO_PATH, VIDEO_PATH

EPISODE_BITS, FRAME_BITS, BITS_A_ROW = 8, 16, 8
_DARK, _BRIGHT = 20, 235


@dataclass(frozen=True, kw_only=True)
class TinyDataset:
    """What to build.

    Args:
        lengths: frames of each episode.
        fps: frame rate [Hz].
        cameras: (height, width) by camera name; the key is `observation.images.<name>`.
        camera_dtype: cameras as mp4 files or as PNG in the data files.
        state_dim: dimensions of `observation.state`; 0 leaves it out.
        environment_dim: dimensions of `observation.environment_state`; 0 leaves it out.
        action_dim: dimensions of `action`.
        tasks: task strings; episode e has the task `tasks[e % len(tasks)]`.
        episodes_per_file: episodes in one data and one video file (v3.0); None puts all into one.
        version: layout to write.
        codec: FFmpeg encoder of the videos.
        gop: frames from keyframe to keyframe.
        robot_type: goes into info.json.
        camera_stats: whether the cameras get statistics.
        columns: further numeric columns, (frames, ...) each, declared with their own dtype.
        picture: (episode, frame, (height, width)) -> picture (H, W, 3) uint8, instead of coded images.
    """

    lengths: Sequence[int] = (5, 7, 6)
    fps: int = 10
    cameras: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    camera_dtype: Literal["video", "image"] = "video"
    state_dim: int = 3
    environment_dim: int = 0
    action_dim: int = 2
    tasks: Sequence[str] = ("pick up the cube",)
    episodes_per_file: int | None = 1
    version: Literal["v3.0", "v2.1", "v2.0"] = "v3.0"
    codec: str = "libx264"
    gop: int = 2
    robot_type: str | None = "so101_follower"
    camera_stats: bool = True
    columns: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    picture: Callable[[int, int, tuple[int, int]], npt.NDArray[np.uint8]] | None = None

    def draw(self, episode: int, frame: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """What a camera shows, (H, W, 3) uint8."""
        return (self.picture or coded_image)(episode, frame, size)

    @property
    def groups(self) -> list[list[int]]:
        """Episodes of each file."""
        size = 1 if self.version != "v3.0" else self.episodes_per_file or max(len(self.lengths), 1)
        return [list(range(first, min(first + size, len(self.lengths)))) for first in range(0, len(self.lengths), size)]


def build_dataset(root: Path, spec: TinyDataset | None = None, **changes: Any) -> Path:
    """Write a tiny dataset and return its folder.

    Args:
        root: folder to create.
        spec: what to build; the default is three episodes without cameras.
        changes: fields of `TinyDataset` that differ from `spec`.
    """
    from dataclasses import replace

    spec = replace(spec or TinyDataset(), **changes)
    (root / "meta").mkdir(parents=True)
    columns = make_columns(spec)
    _write_data(root, spec, columns)
    if spec.camera_dtype == "video":
        for name, size in spec.cameras.items():
            _write_videos(root, spec, f"observation.images.{name}", size)
    _write_info(root, spec)
    stats = [_episode_stats(spec, columns, episode) for episode in range(len(spec.lengths))]
    whole = _stats_of(columns, slice(None), spec)
    if spec.version == "v3.0":
        _write_episodes(root, spec, stats)
        _write_tasks(root, spec)
        _write_json(root / "meta" / "stats.json", whole)
    else:
        _write_legacy(root, spec, stats, whole)
    return root


def make_columns(spec: TinyDataset) -> dict[str, npt.NDArray[Any]]:
    """The low-dimensional columns, (frames, ...) each, in the order of the features."""
    lengths = np.asarray(spec.lengths)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths]) if len(lengths) else np.empty(0, dtype=np.int64)
    value = 100.0 * episode + frame

    def vector(size: int, offset: float) -> npt.NDArray[np.float32]:
        return (value[:, None] + offset + np.arange(size) / 10).astype(np.float32)

    columns: dict[str, npt.NDArray[Any]] = {}
    if spec.state_dim:
        columns["observation.state"] = vector(spec.state_dim, 0.0)
    if spec.environment_dim:
        columns["observation.environment_state"] = vector(spec.environment_dim, 0.5)
    columns["action"] = vector(spec.action_dim, 1.0)
    columns.update(spec.columns)
    columns["timestamp"] = (frame / spec.fps).astype(np.float32)
    columns["frame_index"] = frame.astype(np.int64)
    columns["episode_index"] = episode.astype(np.int64)
    columns["index"] = np.arange(len(frame), dtype=np.int64)
    columns["task_index"] = (episode % len(spec.tasks)).astype(np.int64)
    return columns


def coded_image(episode: int, frame: int, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Picture (H, W, 3) uint8 whose cells spell the episode and the frame, most significant bit first."""
    bits = [(episode >> bit) & 1 for bit in reversed(range(EPISODE_BITS))]
    bits += [(frame >> bit) & 1 for bit in reversed(range(FRAME_BITS))]
    cells = np.asarray(bits, dtype=np.uint8).reshape(-1, BITS_A_ROW)
    height, width = size
    rows = np.arange(height) * len(cells) // height
    columns = np.arange(width) * BITS_A_ROW // width
    grey = np.where(cells[rows[:, None], columns[None, :]], _BRIGHT, _DARK).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def read_code(picture: npt.ArrayLike) -> tuple[int, int]:
    """Episode and frame that a coded image shows.

    Args:
        picture: (3, H, W) or (H, W, 3), uint8 or float in [0, 1].
    """
    image = np.asarray(picture, dtype=np.float64)
    image = image.mean(axis=0 if image.shape[0] == 3 else 2)
    image = image * 255 if image.max() <= 1.0 else image
    n_rows = (EPISODE_BITS + FRAME_BITS) // BITS_A_ROW
    height, width = image.shape
    bits = []
    for row in range(n_rows):
        for column in range(BITS_A_ROW):
            # the middle of a cell: its borders suffer from compression
            y, x = (2 * row + 1) * height // (2 * n_rows), (2 * column + 1) * width // (2 * BITS_A_ROW)
            bits.append(int(image[y - 1 : y + 1, x - 1 : x + 1].mean() > 127))
    number = int("".join(str(bit) for bit in bits), 2)
    return number >> FRAME_BITS, number & ((1 << FRAME_BITS) - 1)


def write_video(
    path: Path, pictures: Iterable[npt.NDArray[np.uint8]], *, fps: int, codec: str = "libx264", gop: int = 2
) -> None:
    """Encode pictures (H, W, 3) uint8, one after the other, as an mp4 file."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"g": str(gop), "crf": "18"} if codec.startswith("libx26") else {"g": str(gop), "crf": "30"}
    options |= {"preset": "12"} if codec == "libsvtav1" else {"preset": "ultrafast", "threads": "1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=Fraction(fps), options=options)
        stream.pix_fmt = "yuv420p"
        for picture in pictures:
            if not stream.codec_context.is_open:
                stream.height, stream.width = picture.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def features_of(spec: TinyDataset) -> dict[str, dict[str, Any]]:
    """The `features` object of info.json."""
    columns = make_columns(spec)
    defaults = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    cameras = {f"observation.images.{name}": _camera_feature(spec, size) for name, size in spec.cameras.items()}
    features: dict[str, dict[str, Any]] = {}
    for key, column in columns.items():
        if key == "timestamp":  # cameras stand before the default columns
            features.update(cameras)
        names = [f"joint_{i}.pos" for i in range(column.shape[1])] if column.ndim == 2 and key not in defaults else None
        features[key] = {"dtype": str(column.dtype), "shape": list(column.shape[1:]) or [1], "names": names}
    return features


def _camera_feature(spec: TinyDataset, size: tuple[int, int]) -> dict[str, Any]:
    feature: dict[str, Any] = {
        "dtype": spec.camera_dtype,
        "shape": [*size, 3],
        "names": ["height", "width", "channels"],
        "info": {"is_depth_map": False},
    }
    if spec.camera_dtype == "video":
        codec = {"libx264": "h264", "libsvtav1": "av1", "libx265": "hevc"}.get(spec.codec, spec.codec)
        feature["info"] |= {
            "video.height": size[0],
            "video.width": size[1],
            "video.codec": codec,
            "video.pix_fmt": "yuv420p",
            "video.fps": spec.fps,
            "video.channels": 3,
            "has_audio": False,
        }
    return feature


def _write_data(root: Path, spec: TinyDataset, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    starts = np.concatenate([[0], np.cumsum(spec.lengths)]).astype(np.int64)
    features = features_of(spec)
    for number, group in enumerate(spec.groups):
        path = root / _data_name(spec, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = None
        writer = None
        for episode in group:
            rows = slice(int(starts[episode]), int(starts[episode + 1]))
            arrays = {key: _arrow(columns[key][rows]) for key in columns}
            if spec.camera_dtype == "image":
                for name, size in spec.cameras.items():
                    arrays[f"observation.images.{name}"] = _pictures(spec, episode, size)
            table = pa.table({key: arrays[key] for key in features if key in arrays})
            schema = schema or table.schema
            writer = writer or pq.ParquetWriter(path, schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def _arrow(values: npt.NDArray[Any]) -> Any:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]  # a shape of (1,) is stored as a plain number, never as a list of one
    if values.ndim == 1:
        return pa.array(values)
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values.tolist())


def _pictures(spec: TinyDataset, episode: int, size: tuple[int, int]) -> Any:
    from PIL import Image

    cells = []
    for frame in range(spec.lengths[episode]):
        buffer = io.BytesIO()
        Image.fromarray(spec.draw(episode, frame, size)).save(buffer, format="PNG", compress_level=1)
        cells.append({"bytes": buffer.getvalue(), "path": f"frame-{frame:06d}.png"})
    return pa.array(cells, type=pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def _write_videos(root: Path, spec: TinyDataset, key: str, size: tuple[int, int]) -> None:
    for number, group in enumerate(spec.groups):
        pictures = (spec.draw(episode, frame, size) for episode in group for frame in range(spec.lengths[episode]))
        if group:
            write_video(root / _video_name(spec, key, number), pictures, fps=spec.fps, codec=spec.codec, gop=spec.gop)


def _data_name(spec: TinyDataset, number: int) -> str:
    if spec.version == "v3.0":
        return DATA_PATH.format(chunk_index=0, file_index=number)
    return LEGACY_DATA_PATH.format(episode_chunk=0, episode_index=number)


def _video_name(spec: TinyDataset, key: str, number: int) -> str:
    if spec.version == "v3.0":
        return VIDEO_PATH.format(video_key=key, chunk_index=0, file_index=number)
    return LEGACY_VIDEO_PATH.format(video_key=key, episode_chunk=0, episode_index=number)


def _write_info(root: Path, spec: TinyDataset) -> None:
    has_videos = bool(spec.cameras) and spec.camera_dtype == "video"
    is_new = spec.version == "v3.0"
    info: dict[str, Any] = {
        "codebase_version": spec.version,
        "fps": spec.fps,
        "features": features_of(spec),
        "total_episodes": len(spec.lengths),
        "total_frames": int(sum(spec.lengths)),
        "total_tasks": len(spec.tasks),
        "chunks_size": 1000,
        "data_path": DATA_PATH if is_new else LEGACY_DATA_PATH,
        "video_path": (VIDEO_PATH if is_new else LEGACY_VIDEO_PATH) if has_videos else None,
        "robot_type": spec.robot_type,
        "splits": {"train": f"0:{len(spec.lengths)}"},
    }
    if is_new:
        info |= {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
    else:
        info |= {"total_videos": len(spec.lengths) * len(spec.cameras) * has_videos, "total_chunks": 1}
    _write_json(root / "meta" / "info.json", info)


def _write_episodes(root: Path, spec: TinyDataset, stats: Sequence[Mapping[str, Mapping[str, Any]]]) -> None:
    ends = np.cumsum(spec.lengths)
    rows = []
    for number, group in enumerate(spec.groups):
        start_in_file = 0
        for episode in group:
            length = spec.lengths[episode]
            row: dict[str, Any] = {
                "episode_index": episode,
                "tasks": [spec.tasks[episode % len(spec.tasks)]],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": number,
                "dataset_from_index": int(ends[episode]) - length,
                "dataset_to_index": int(ends[episode]),
            }
            for name in spec.cameras if spec.camera_dtype == "video" else ():
                prefix = f"videos/observation.images.{name}"
                row |= {f"{prefix}/chunk_index": 0, f"{prefix}/file_index": number}
                row[f"{prefix}/from_timestamp"] = start_in_file / spec.fps
                row[f"{prefix}/to_timestamp"] = (start_in_file + length) / spec.fps
            start_in_file += length
            for feature, entry in stats[episode].items():
                row |= {f"stats/{feature}/{name}": value for name, value in entry.items()}
            row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            rows.append(row)
    path = root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _write_tasks(root: Path, spec: TinyDataset) -> None:
    table = pa.table({"task_index": pa.array(range(len(spec.tasks)), pa.int64()), "task": list(spec.tasks)})
    # Complete, so that pandas (through which LeRobot reads this file) finds its index, too.
    kinds = (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": storage, "metadata": None}
        for name, kind, storage in kinds
    ]
    pandas = json.dumps(
        {"index_columns": ["task"], "column_indexes": [], "columns": described, "pandas_version": "2.2.3"}
    )
    pq.write_table(table.replace_schema_metadata({"pandas": pandas}), root / "meta" / "tasks.parquet")


def _write_legacy(
    root: Path, spec: TinyDataset, stats: Sequence[Mapping[str, Mapping[str, Any]]], whole: Mapping[str, Any]
) -> None:
    episodes = [
        {"episode_index": episode, "tasks": [spec.tasks[episode % len(spec.tasks)]], "length": length}
        for episode, length in enumerate(spec.lengths)
    ]
    _write_lines(root / "meta" / "episodes.jsonl", episodes)
    _write_lines(root / "meta" / "tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(spec.tasks)])
    if spec.version == "v2.0":
        _write_json(root / "meta" / "stats.json", whole)
    else:
        rows = [{"episode_index": episode, "stats": entry} for episode, entry in enumerate(stats)]
        _write_lines(root / "meta" / "episodes_stats.jsonl", rows)


def _episode_stats(spec: TinyDataset, columns: Mapping[str, npt.NDArray[Any]], episode: int) -> dict[str, Any]:
    start = int(sum(spec.lengths[:episode]))
    return _stats_of(columns, slice(start, start + spec.lengths[episode]), spec)


def _stats_of(columns: Mapping[str, npt.NDArray[Any]], rows: slice, spec: TinyDataset) -> dict[str, Any]:
    """Exact statistics; v2.x layouts have no quantiles."""
    quantiles = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99} if spec.version == "v3.0" else {}
    stats: dict[str, Any] = {}
    for key, column in columns.items():
        part = column[rows]
        values = part.reshape(-1, part.shape[-1] if part.ndim > 1 else 1).astype(np.float64)
        with np.errstate(invalid="ignore"):  # tests put NaN and infinities into columns
            entry = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
            entry |= {name: np.quantile(values, share, axis=0) for name, share in quantiles.items()}
        stats[key] = {name: value.tolist() for name, value in entry.items()} | {"count": [len(values)]}
    if spec.camera_stats:
        for name, size in spec.cameras.items():
            flat = (
                _flat_camera(quantiles) if spec.picture is None else _drawn_camera(spec, columns, rows, size, quantiles)
            )
            stats[f"observation.images.{name}"] = {
                stat: [[[float(value)]] for value in channels] for stat, channels in flat.items()
            } | {"count": [len(columns["index"][rows])]}
    return stats


def _flat_camera(quantiles: Mapping[str, float]) -> dict[str, npt.NDArray[np.float64]]:
    """Statistics that suit coded images, by channel, in [0, 1]."""
    dark, bright = _DARK / 255, _BRIGHT / 255
    flat = {"min": dark, "max": bright, "mean": (dark + bright) / 2, "std": (bright - dark) / 2}
    flat |= {name: dark + share * (bright - dark) for name, share in quantiles.items()}
    return {stat: np.full(3, value) for stat, value in flat.items()}


def _drawn_camera(
    spec: TinyDataset,
    columns: Mapping[str, npt.NDArray[Any]],
    rows: slice,
    size: tuple[int, int],
    quantiles: Mapping[str, float],
) -> dict[str, npt.NDArray[np.float64]]:
    """Statistics of up to 32 of the pictures, by channel, in [0, 1]."""
    places = list(zip(columns["episode_index"][rows], columns["frame_index"][rows], strict=True))
    step = max(1, -(-len(places) // 32))
    pictures = np.stack([spec.draw(int(episode), int(frame), size) for episode, frame in places[::step]])
    pixels = pictures.reshape(-1, 3) / 255
    found = {"min": pixels.min(0), "max": pixels.max(0), "mean": pixels.mean(0), "std": pixels.std(0)}
    return found | {name: np.quantile(pixels, share, axis=0) for name, share in quantiles.items()}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
