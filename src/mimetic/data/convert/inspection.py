"""A quick look into every file before hours of work: row counts, columns, and the headers of videos."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mimetic.data.convert.legacy_source import SourceEpisode
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_footer
from mimetic.data.video.index import build_index, open_container
from mimetic.errors import DatasetFormatError, EpisodeError, VideoError
from mimetic.names import TASK_INDEX

_GRID = 0.25
"""How far a video may be from a whole number of frames before the next one must not follow it in the same file."""


@dataclass(frozen=True, kw_only=True)
class InspectTask:
    """Episodes to look at.

    Args:
        episodes: their files.
        features: declared features.
        fps: declared frame rate [Hz].
        task_numbers: known task numbers.
    """

    episodes: tuple[SourceEpisode, ...]
    features: Mapping[str, DatasetFeature]
    fps: int
    task_numbers: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class VideoFacts:
    """What the header of a video file says.

    Args:
        size: of the file [bytes].
        stream: codec, size, pixel format, rate and codec header, as a short text; files can be joined when it is equal.
        is_regular: whether it lasts as long as its frames at the declared rate, so that another may follow it.
        surplus: frames beyond those that the episode has.
        has_audio: whether there is sound, which v3.0 has no place for.
    """

    size: int
    stream: str
    is_regular: bool
    surplus: int
    has_audio: bool


@dataclass(frozen=True, kw_only=True)
class EpisodeFacts:
    """What was found in the files of one episode.

    Args:
        data_size: of its rows, uncompressed [bytes].
        undeclared: columns that info.json does not declare.
        videos: by camera.
    """

    data_size: int
    undeclared: tuple[str, ...]
    videos: Mapping[str, VideoFacts]


def inspect(task: InspectTask) -> list[EpisodeFacts]:
    """Look at the files of some episodes.

    Raises:
        DatasetFormatError: a data file is damaged, or its columns are not those declared.
        EpisodeError: another number of rows than the table of episodes says.
        VideoError: a video is damaged, or has too few frames, or another size or rate than declared.
    """
    return [_inspect_episode(episode, task) for episode in task.episodes]


def _inspect_episode(episode: SourceEpisode, task: InspectTask) -> EpisodeFacts:
    footer = read_footer(episode.data)
    if footer.num_rows != episode.length:
        raise EpisodeError(
            f"`{episode.data}` has {footer.num_rows} rows; meta/episodes.jsonl says {episode.length} for episode "
            f"{episode.index}",
            "correct `length` there, or restore the file from a copy",
        )
    names = footer.schema.to_arrow_schema().names
    _check_columns(episode, footer, names, task.features)
    _check_tasks(episode, footer, task.task_numbers)
    return EpisodeFacts(
        data_size=sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups)),
        undeclared=tuple(name for name in names if name not in task.features),
        videos={
            camera: inspect_video(
                path, task.features[camera], episode.length, task.fps, where=f"episode {episode.index}"
            )
            for camera, path in episode.videos.items()
        },
    )


def _check_columns(
    episode: SourceEpisode, footer: Any, names: Sequence[str], features: Mapping[str, DatasetFeature]
) -> None:
    schema = footer.schema.to_arrow_schema()
    columns = _columns(schema)
    problems = []
    for name, feature in features.items():
        if feature.dtype == "video":
            continue
        if name not in names:
            problems.append(f"`{name}` is missing")
            continue
        kind = schema.field(name).type
        if feature.is_numeric:
            problems += _numeric_problem(name, feature, _leaf(kind), columns[name], footer)
        elif feature.dtype == "string" and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            problems.append(f"`{name}` is declared as string and holds {kind}")
        elif feature.dtype == "image" and not (pa.types.is_struct(kind) or pa.types.is_binary(kind)):
            problems.append(f"`{name}` is declared as image and holds {kind}")
    if problems:
        raise DatasetFormatError(
            f"the columns of `{episode.data}` are not those of meta/info.json: {'; '.join(problems)}",
            "correct the features in meta/info.json of a copy, or restore the file",
        )


def _numeric_problem(name: str, feature: DatasetFeature, leaf: Any, column: int, footer: Any) -> list[str]:
    if not (pa.types.is_floating(leaf) or pa.types.is_integer(leaf) or pa.types.is_boolean(leaf)):
        return [f"`{name}` holds {leaf} instead of numbers"]
    values = sum(footer.row_group(group).column(column).num_values for group in range(footer.num_row_groups))
    wanted = footer.num_rows * int(np.prod(feature.shape, dtype=np.int64))
    return (
        [] if values == wanted else [f"`{name}` has {values} values instead of {wanted} ({list(feature.shape)} a row)"]
    )


def _columns(schema: Any) -> dict[str, int]:
    """Number of the first stored column of each field; lists have one, structs as many as they have parts."""
    found, number = {}, 0
    for field in schema:
        found[field.name] = number
        number += _leaves(field.type)
    return found


def _leaves(kind: Any) -> int:
    leaf = _leaf(kind)
    if pa.types.is_struct(leaf):
        return sum(_leaves(leaf.field(place).type) for place in range(leaf.num_fields))
    return 2 if pa.types.is_map(leaf) else 1


def _leaf(kind: Any) -> Any:
    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return kind


def _check_tasks(episode: SourceEpisode, footer: Any, known: frozenset[int]) -> None:
    """Look at the smallest and largest task number in the footer; every number is looked at when rows are copied."""
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(paths.index(TASK_INDEX)).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        for number in (statistics.min, statistics.max):
            if number not in known:
                raise EpisodeError(
                    f"`{episode.data}` has the task_index {number}, which meta/tasks.jsonl does not have",
                    "add the task there in a copy of the dataset",
                )


def inspect_video(path: Path, feature: DatasetFeature, length: int, fps: int, *, where: str) -> VideoFacts:
    """Look at the header of a video file.

    Args:
        path: the file.
        feature: the camera as declared.
        length: frames of the episode.
        fps: declared frame rate [Hz].
        where: the episode, for messages.

    Raises:
        VideoError: damaged, too few frames, or another size or rate than declared.
    """
    container, stream = open_container(path)
    try:
        index = build_index(path, container, stream)
        context = stream.codec_context
        if len(index) < length:
            cut = f" (its header announces {index.announced})" if index.announced > len(index) else ""
            raise VideoError(
                f"`{path}` has {len(index)} frames{cut}; {where} has {length} rows",
                "restore the file from a copy, or take the episode out of meta/episodes.jsonl in a copy of the dataset",
            )
        if (context.height, context.width) != feature.chw[1:]:
            raise VideoError(
                f"`{path}` shows {context.width}x{context.height} pixels; meta/info.json declares "
                f"{feature.chw[2]}x{feature.chw[1]}",
                "correct the shape in meta/info.json of a copy, or encode the video again",
            )
        times = (index.pts[:length] - index.pts[0]) * float(index.time_base)
        worst = int(np.abs(times - np.arange(length) / fps).argmax())
        if index.time_error_s(worst, fps) * fps > _GRID:
            raise VideoError(
                f"frame {worst} of `{path}` is shown at {index.time_s(worst):.4f} s, but at {fps} Hz it belongs to "
                f"{worst / fps:.4f} s: the file's rate is not the dataset's",
                "correct `fps` in meta/info.json of a copy, or encode the video again at the dataset's rate",
            )
        duration = _duration(stream, index)
        header = hashlib.sha256(bytes(context.extradata or b"")).hexdigest()[:16]
        rate = stream.base_rate
        return VideoFacts(
            size=path.stat().st_size,
            stream=f"{context.codec.canonical_name} {context.width}x{context.height} {context.pix_fmt} {rate} {header}",
            is_regular=abs(float(duration) * fps - len(index)) <= _GRID,
            surplus=len(index) - length,
            has_audio=bool(container.streams.audio),
        )
    finally:
        container.close()


def _duration(stream: Any, index: Any) -> Fraction:
    """Seconds by the header, or up to the last frame plus one of its ticks."""
    if stream.duration:
        return Fraction(stream.duration) * Fraction(stream.time_base)
    return Fraction(int(index.pts[-1]) - int(index.pts[0])) * Fraction(stream.time_base)
