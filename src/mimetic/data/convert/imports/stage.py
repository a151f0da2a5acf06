"""An imported episode becomes a data file and a video a camera in the v2.1 layout; from there conversion goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from mimetic.data.convert.imports.formats import IMPORTS
from mimetic.data.convert.imports.recording import ImportEpisode, Recording
from mimetic.data.convert.legacy_source import EPISODES_STATS
from mimetic.data.convert.workplace import Record, keep
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.encoding.info import video_info
from mimetic.data.features import parse_features
from mimetic.data.info import LEGACY_DATA_PATH, LEGACY_VIDEO_PATH
from mimetic.data.layout import Layout
from mimetic.data.statistics import PictureStats, columns_stats, sample_indices, thin
from mimetic.data.store.atomic import replacing, write_bytes
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.schema import episode_table
from mimetic.data.store.tables import CHUNKS_SIZE, stats_json, with_default_features, write_info
from mimetic.data.video.index import open_container, reason
from mimetic.errors import DatasetFormatError, EpisodeError, VideoError
from mimetic.names import EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX, TIMESTAMP


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """An episode to stage.

    Args:
        record: its record.
        title: what a message calls it.
        root: folder in the v2.1 layout.
        recording: what is imported, without the other episodes.
        episode: this one.
        number: its number.
        first: `index` of its first frame.
        task_index: number of its task.
        settings: how pictures become videos.
        verify: decode the videos again and count their frames.
    """

    record: Path
    title: str
    root: Path
    recording: Recording
    episode: ImportEpisode
    number: int
    first: int
    task_index: int
    settings: RgbEncoderConfig
    verify: bool


def stage(part: StagePart) -> Record:
    """Write the files of one episode.

    Returns:
        Statistics of its features, and the histograms of its cameras.

    Raises:
        DatasetFormatError: values that are no numbers, or pictures that cannot be read.
        VideoError: a picture cannot be encoded.
    """
    features = parse_features(with_default_features(part.recording.features), where="the import")
    layout = Layout(part.root, LEGACY_DATA_PATH, LEGACY_VIDEO_PATH, legacy=True)
    chunk = part.number // CHUNKS_SIZE
    columns = _columns(part)
    data = layout.data_file(chunk, part.number)
    with DataFileWriter(data, features) as writer:
        writer.write(episode_table(features, columns))
    stats = stats_json(columns_stats(features, columns))
    counts, files = {}, [data]
    for camera in part.recording.cameras:
        out = layout.video_file(camera, chunk, part.number)
        pixels = _encode(part, camera, out)
        taken = len(sample_indices(part.episode.length))
        stats[camera] = stats_json({camera: pixels.result(count=taken)})[camera]
        counts[camera] = pixels.counts.tolist()
        files.append(out)
    return keep(part, {"stats": stats, "counts": counts}, files)


def _columns(part: StagePart) -> dict[str, Any]:
    found: dict[str, Any] = IMPORTS[part.recording.source_format].read_columns(part.recording, part.episode)
    length = part.episode.length
    for name, values in found.items():
        if len(values) != length:
            raise EpisodeError(f"`{name}` of {part.title} has {len(values)} rows instead of {length}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            frame = int(np.argwhere(~np.isfinite(values))[0][0])
            raise DatasetFormatError(
                f"`{name}` in frame {frame} of {part.title} is not a finite number",
                "a policy cannot learn from it: mend the recording, or leave it out",
            )
    frames = np.arange(length, dtype=np.int64)
    return {
        **found,
        TIMESTAMP: (frames / part.recording.fps).astype(np.float32),
        FRAME_INDEX: frames,
        EPISODE_INDEX: np.full(length, part.number, dtype=np.int64),
        INDEX: part.first + frames,
        TASK_INDEX: np.full(length, part.task_index, dtype=np.int64),
    }


def _encode(part: StagePart, camera: str, out: Path) -> PictureStats:
    """Encode a camera; statistics are those of the pictures before compression."""
    height, width = part.recording.features[camera]["shape"][:2]
    sampled = set(sample_indices(part.episode.length).tolist())
    pixels = PictureStats(3)
    frames = IMPORTS[part.recording.source_format].read_frames(part.recording, part.episode, camera)
    with replacing(out) as temporary:
        with VideoEncoder(
            temporary, fps=part.recording.fps, height=height, width=width, settings=part.settings, threads=1
        ) as encoder:
            for number, picture in enumerate(frames):
                encoder.add(picture)
                if number in sampled:
                    pixels.add(thin(picture))
        if encoder.n_frames != part.episode.length:
            raise EpisodeError(
                f"`{camera}` of {part.title} has {encoder.n_frames} pictures for {part.episode.length} rows"
            )
        if part.verify and (decoded := _count(temporary)) != part.episode.length:
            raise VideoError(
                f"{decoded} of {part.episode.length} frames of `{camera}` of {part.title} can be decoded again",
                "choose another encoder with `--rgb_encoder.vcodec`",
            )
    return pixels


def _count(path: Path) -> int:
    container, stream = open_container(path)
    try:
        return sum(1 for _ in container.decode(stream))
    except av.FFmpegError as error:
        raise VideoError(f"`{path}` cannot be decoded: {reason(error)}") from error
    finally:
        container.close()


def write_staged_tables(
    root: Path, recording: Recording, records: Sequence[Record], settings: RgbEncoderConfig
) -> None:
    """Write the tables of the staged dataset; info.json comes last."""
    tasks = list(dict.fromkeys(episode.task for episode in recording.episodes))
    layout = Layout(root, LEGACY_DATA_PATH, LEGACY_VIDEO_PATH, legacy=True)
    features = with_default_features(recording.features)
    for camera in recording.cameras:
        features[camera]["info"] = video_info(layout.video_file(camera, 0, 0), settings)
    count = len(recording.episodes)
    _write_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": task} for n, task in enumerate(tasks)])
    _write_lines(
        root / "meta/episodes.jsonl",
        [
            {"episode_index": number, "tasks": [episode.task], "length": episode.length}
            for number, episode in enumerate(recording.episodes)
        ],
    )
    _write_lines(
        root / EPISODES_STATS,
        [{"episode_index": number, "stats": record["stats"]} for number, record in enumerate(records)],
    )
    write_info(
        root,
        {
            "codebase_version": "v2.1",
            "robot_type": recording.robot_type,
            "total_episodes": count,
            "total_frames": sum(episode.length for episode in recording.episodes),
            "total_tasks": len(tasks),
            "total_videos": count * len(recording.cameras),
            "total_chunks": -(-count // CHUNKS_SIZE),
            "chunks_size": CHUNKS_SIZE,
            "fps": recording.fps,
            "splits": {"train": f"0:{count}"},
            "data_path": LEGACY_DATA_PATH,
            "video_path": LEGACY_VIDEO_PATH if recording.cameras else None,
            "features": features,
        },
    )


def _write_lines(path: Path, rows: Sequence[Any]) -> None:
    write_bytes(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8"))
