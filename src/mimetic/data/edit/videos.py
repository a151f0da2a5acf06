"""Operations on how pictures are stored, and on statistics: convert, reencode, recompute (spec/dataset.md 15)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mimetic.data.edit.config import ConvertImageToVideoConfig, RecomputeStatsConfig, ReencodeVideosConfig
from mimetic.data.edit.encoders import is_encoded_with
from mimetic.data.edit.episodes import Plans, require_episodes, subset
from mimetic.data.edit.plan import Camera, EncoderSettings, Piece, Plan, VideoFile, keep_all, lay_out
from mimetic.data.edit.source import EditSource
from mimetic.data.encoding.codecs import resolve_encoder
from mimetic.data.info import VIDEO_PATH
from mimetic.data.parquet import read_footer
from mimetic.data.store.shards import MEBIBYTE, next_file
from mimetic.errors import ConfigError
from mimetic.names import ACTION, STATE

_SIZE_AS_VIDEO = 0.5
"""Size of a video in relation to its pictures, guessed high, so that a file stays below the limit."""


def plan_convert(sources: Sequence[EditSource], config: ConvertImageToVideoConfig) -> Plans:
    """The same dataset with videos instead of pictures.

    Raises:
        ConfigError: there is no picture to convert, or an encoder cannot be used.
    """
    source = sources[0]
    keys = source.metadata.image_keys
    if not keys:
        raise ConfigError(f"`{source.root}` has no camera that is stored as pictures", "nothing was changed")
    episodes = list(source.episodes)
    if config.episode_indices is not None:
        episodes = sorted(require_episodes(source, config.episode_indices, "episode_indices"))
    plan = subset(source, episodes, config.type_name)
    for key in keys:
        feature = source.features[key]
        settings: EncoderSettings = config.depth_encoder if feature.is_depth else config.rgb_encoder
        resolve_encoder(settings, is_depth=feature.is_depth)
        plan.features[key] = {**plan.features[key], "dtype": "video"}
        del plan.columns[key]
        plan.cameras[key] = Camera(source_key=key, from_pictures=True, settings=settings)
    plan.cameras = {key: plan.cameras[key] for key in plan.features if key in plan.cameras}
    for key in keys:
        plan.video_files += _picture_files(plan, key, config)
    if plan.raw_info.get("video_path") is None:
        plan.raw_info["video_path"] = VIDEO_PATH
    return [("", plan)]


def _picture_files(plan: Plan, key: str, config: ConvertImageToVideoConfig) -> list[VideoFile]:
    """Group episodes into video files, by a guess of their size."""
    source = plan.sources[0]
    limit = source.metadata.info.video_files_size_in_mb * MEBIBYTE
    most_episodes = config.max_episodes_per_batch or len(plan.cuts)
    most_frames = config.max_frames_per_batch or plan.n_frames
    groups: list[list[int]] = [[]]
    size = frames = 0.0
    for number, cut in enumerate(plan.cuts):
        added = _picture_bytes(source, key, cut.episode) * _SIZE_AS_VIDEO
        is_full = len(groups[-1]) >= most_episodes or frames + cut.length > most_frames or size + added >= limit
        if groups[-1] and is_full:
            groups.append([])
            size = frames = 0.0
        groups[-1].append(number)
        size, frames = size + added, frames + cut.length
    files: list[VideoFile] = []
    chunk, file = 0, 0
    for group in groups:
        pieces = []
        for number in group:
            cut = plan.cuts[number]
            place = source.rows[cut.episode]
            where = f"episode {cut.episode}"
            pieces.append(Piece(path=place.path, first=place.start + cut.start, count=cut.length, where=where))
        files.append(
            VideoFile(
                key=key,
                chunk=chunk,
                file=file,
                pieces=tuple(pieces),
                episodes=tuple(group),
                method="encode",
                reason="pictures become a video",
                encoded_frames=sum(piece.count for piece in pieces),
            )
        )
        chunk, file = next_file(chunk, file, source.metadata.info.chunks_size)
    return files


def _picture_bytes(source: EditSource, key: str, episode: int) -> float:
    """Encoded bytes of an episode's pictures, by the footer of their file."""
    place = source.rows[episode]
    footer = read_footer(place.path)
    total = 0.0
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            if column.path_in_schema.split(".")[: key.count(".") + 1] == key.split("."):
                total += float(column.total_uncompressed_size)
    return float(total * (place.stop - place.start) / max(footer.num_rows, 1))


def plan_recompute(sources: Sequence[EditSource], config: RecomputeStatsConfig) -> Plans:
    """The same dataset with statistics computed anew.

    Raises:
        ConfigError: relative actions without an action and a state of the same width.
    """
    source = sources[0]
    plan = keep_all(source, config.type_name)
    lay_out(plan)
    plan.recompute_cameras = not config.skip_image_video
    if config.relative_action:
        action, state = source.features.get(ACTION), source.features.get(STATE)
        if action is None or state is None or action.shape != state.shape or len(action.shape) != 1:
            raise ConfigError(
                f"`--operation.relative_action` needs `{ACTION}` and `{STATE}` of the same width in `{source.root}`"
            )
        longest = max(cut.length for cut in plan.cuts)
        if longest < config.chunk_size:
            raise ConfigError(
                f"no episode of `{source.root}` has {config.chunk_size} frames",
                f"choose a chunk of at most {longest} with `--operation.chunk_size`",
            )
        plan.relative_action = config
    return [("", plan)]


def plan_reencode(sources: Sequence[EditSource], config: ReencodeVideosConfig) -> Plans:
    """The same frames, encoded anew where the encoder differs.

    Raises:
        ConfigError: there are no videos, all are encoded that way already, or an encoder cannot be used.
    """
    source = sources[0]
    plan = keep_all(source, config.type_name)
    if not plan.cameras:
        raise ConfigError(f"`{source.root}` has no videos", "nothing was changed")
    for key, camera in plan.cameras.items():
        feature = source.features[key]
        settings: EncoderSettings = config.rgb_encoder
        if feature.is_depth:
            # The codes in the file mean what the old parameters say: only how they are compressed may change.
            stored = {
                name: feature.info[f"video.{name}"]
                for name in ("depth_min", "depth_max", "shift", "use_log")
                if feature.info.get(f"video.{name}") is not None
            }
            settings = replace(config.depth_encoder, **stored)
        if not is_encoded_with(feature.info, settings, is_depth=feature.is_depth):
            resolve_encoder(settings, threads=config.encoder_threads, is_depth=feature.is_depth)
            plan.cameras[key] = replace(camera, settings=settings)
    if all(camera.settings is None for camera in plan.cameras.values()):
        raise ConfigError(f"all videos of `{source.root}` are encoded that way already", "nothing was changed")
    lay_out(plan)
    return [("", plan)]
