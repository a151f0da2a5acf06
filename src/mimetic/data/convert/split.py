"""Shards to one file an episode: the parts of a conversion to v2.1."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import av

from mimetic.data.convert.rows import EpisodeRows, read_episode, same_columns
from mimetic.data.convert.workplace import Record, keep
from mimetic.data.edit.plan import Piece
from mimetic.data.edit.video_task import VideoTask, make_video
from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_table
from mimetic.data.statistics import columns_stats
from mimetic.data.store.atomic import replacing
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.schema import episode_table
from mimetic.data.store.tables import stats_json
from mimetic.data.video.index import open_container, reason
from mimetic.errors import DatasetError, VideoError

_HINT = "nothing was given its name; report this, and keep the input"


@dataclass(frozen=True, kw_only=True)
class RowsCut:
    """One episode out of a shard.

    Args:
        rows: where it is, and its numbers in the result.
        start: its first row in the file.
        out: file to write.
    """

    rows: EpisodeRows
    start: int
    out: Path


@dataclass(frozen=True, kw_only=True)
class SplitPart:
    """A data file to split.

    Args:
        record: its record.
        title: what a message calls it.
        path: the file.
        features: declared features.
        cuts: its episodes.
    """

    record: Path
    title: str
    path: Path
    features: Mapping[str, DatasetFeature]
    cuts: tuple[RowsCut, ...]


def split_data(part: SplitPart) -> Record:
    """Write one file an episode.

    Returns:
        Statistics of the numbers of each episode.
    """
    table = read_table(part.path)
    found = []
    for cut in part.cuts:
        columns = read_episode(cut.rows, part.features, table.slice(cut.start, cut.rows.length))
        with DataFileWriter(cut.out, part.features) as writer:
            writer.write(episode_table(part.features, columns))
        found.append({"stats": stats_json(columns_stats(part.features, columns))})
    return keep(part, {"episodes": found}, [cut.out for cut in part.cuts])


def check_split_data(part: SplitPart) -> Record:
    """Compare every value of every row with the shard.

    Raises:
        DatasetError: something differs.
    """
    table = read_table(part.path)
    for cut in part.cuts:
        theirs = read_episode(cut.rows, part.features, table.slice(cut.start, cut.rows.length))
        made = EpisodeRows(
            path=cut.out,
            episode=cut.rows.number,
            length=cut.rows.length,
            number=cut.rows.number,
            first=cut.rows.first,
            tasks={number: number for number in cut.rows.tasks.values()},
        )
        different = same_columns(theirs, read_episode(made, part.features))
        if different:
            raise DatasetError(f"`{different}` in `{cut.out}` is not that of `{part.path}`", _HINT)
    return keep(part, {})


@dataclass(frozen=True, kw_only=True)
class FramesCut:
    """One episode out of a video shard.

    Args:
        first: number of its first frame in the file.
        count: frames.
        out: file to write.
    """

    first: int
    count: int
    out: Path


@dataclass(frozen=True, kw_only=True)
class CutPart:
    """A video file to cut at the borders of episodes.

    Args:
        record: its record.
        title: what a message calls it.
        path: the file.
        camera: as declared.
        fps: frame rate [Hz].
        settings: of the encoder, for episodes that do not begin with a keyframe.
        cuts: its episodes.
    """

    record: Path
    title: str
    path: Path
    camera: DatasetFeature
    fps: int
    settings: EncoderConfig
    cuts: tuple[FramesCut, ...]


def cut_video(part: CutPart) -> Record:
    """Write one file an episode, by copying packets where an episode begins with a keyframe.

    Returns:
        How each was made ("copy", "cut" or "encode").
    """
    methods = []
    for cut in part.cuts:
        piece = Piece(path=part.path, first=cut.first, count=cut.count, where=part.title)
        with replacing(cut.out) as temporary:
            task = VideoTask(
                out=temporary,
                pieces=(piece,),
                fps=part.fps,
                method="cut",
                settings=part.settings,
                camera=part.camera,
                threads=1,
            )
            result = make_video(task)
            methods.append("copy" if result.method == "cut" and not result.encoded_frames else result.method)
    return keep(part, {"methods": methods}, [cut.out for cut in part.cuts])


@dataclass(frozen=True, kw_only=True)
class CutCheck:
    """Cut files to compare with their shard.

    Args:
        record: its record.
        title: what a message calls it.
        part: what was cut.
        methods: how each was made.
    """

    record: Path
    title: str
    part: CutPart
    methods: tuple[str, ...]


def check_cuts(check: CutCheck) -> Record:
    """Compare the content of every copied packet; count the frames where something was encoded again.

    Raises:
        DatasetError: something differs.
    """
    source = packet_hashes(check.part.path)
    for cut, method in zip(check.part.cuts, check.methods, strict=True):
        made = packet_hashes(cut.out)
        if len(made) != cut.count:
            raise DatasetError(f"`{cut.out}` has {len(made)} frames instead of {cut.count}", _HINT)
        if method == "copy" and made != source[cut.first : cut.first + cut.count]:
            raise DatasetError(f"`{cut.out}` holds other packets than `{check.part.path}`", _HINT)
    return keep(check, {})


def packet_hashes(path: Path) -> list[bytes]:
    """SHA-256 of each video packet, in the order of decoding.

    Raises:
        VideoError: the file cannot be read to its end.
    """
    container, stream = open_container(path)
    try:
        return [
            hashlib.sha256(bytes(packet)).digest()
            for packet in container.demux(stream)
            if packet.pts is not None and packet.size
        ]
    except av.FFmpegError as error:
        raise VideoError(f"`{path}` cannot be read to its end: {reason(error)}") from error
    finally:
        container.close()
