"""`merge`: several datasets one after the other (spec/dataset.md 15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mimetic.data.edit.config import MergeConfig
from mimetic.data.edit.episodes import Plans
from mimetic.data.edit.plan import Camera, Cut, DataFile, Piece, Plan, VideoFile, coalesce, keep_all
from mimetic.data.edit.source import EditSource
from mimetic.data.edit.video_task import stream_facts
from mimetic.data.features import DatasetFeature
from mimetic.data.parquet import read_footer
from mimetic.data.store.shards import is_full, next_file
from mimetic.errors import ConfigError

_ENCODER_KEYS = ("g", "crf", "preset", "fast_decode", "extra_options")


def plan_merge(sources: Sequence[EditSource], config: MergeConfig) -> Plans:
    """All episodes of all datasets, in order.

    Raises:
        ConfigError: rates, robots or features differ; every difference is named.
    """
    problems = [text for other in sources[1:] for text in differences(sources[0], other)]
    if problems:
        raise ConfigError(
            "the datasets cannot be merged: " + "; ".join(problems[:8]),
            "make them equal first, with `rename`, `remove_feature` or `reencode_videos`",
        )
    plan = keep_all(sources[0], config.type_name)
    plan.sources = list(sources)
    plan.cuts = [
        Cut(source=number, episode=episode, start=0, stop=row.length)
        for number, source in enumerate(sources)
        for episode, row in source.episodes.items()
    ]
    limits = {}
    for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
        given = getattr(config, name)
        limits[name] = given if given is not None else max(getattr(source.metadata.info, name) for source in sources)
    plan.raw_info |= limits
    for key in plan.cameras:
        plan.features[key] = _merged_camera(key, sources)
        plan.cameras[key] = Camera(source_key=key)
    _lay_out_data(plan, limits["data_files_size_in_mb"], is_joined=config.concatenate_data)
    for key in plan.cameras:
        _lay_out_videos(plan, key, limits["video_files_size_in_mb"], is_joined=config.concatenate_videos)
    return [("", plan)]


def differences(one: EditSource, other: EditSource) -> list[str]:
    """Why two datasets cannot be one, as sentences."""
    found = []
    if one.fps != other.fps:
        found.append(f"`{other.root}` has {other.fps} Hz, `{one.root}` {one.fps} Hz")
    if one.metadata.robot_type != other.metadata.robot_type:
        found.append(f"`{other.root}` is of {other.metadata.robot_type}, `{one.root}` of {one.metadata.robot_type}")
    for name in dict.fromkeys([*one.features, *other.features]):
        if name not in other.features or name not in one.features:
            lacking = other if name not in other.features else one
            found.append(f"`{lacking.root}` has no `{name}`")
            continue
        a, b = one.features[name], other.features[name]
        found += [
            f"`{name}` has {what} {second} in `{other.root}`, {first} in `{one.root}`"
            for what, first, second in _compared(a, b)
            if first != second
        ]
    return found


def _compared(a: DatasetFeature, b: DatasetFeature) -> list[tuple[str, Any, Any]]:
    facts: list[tuple[str, Any, Any]] = [("the dtype", a.dtype, b.dtype), ("the shape", list(a.shape), list(b.shape))]
    if a.is_camera:
        facts.append(("depth", a.is_depth, b.is_depth))
        facts.append(("the depth unit", a.info.get("depth_unit"), b.info.get("depth_unit")))
        if a.is_depth and a.dtype == "video":
            facts += [
                (f"the {name}", a.info.get(f"video.{name}"), b.info.get(f"video.{name}"))
                for name in ("depth_min", "depth_max", "shift", "use_log")
            ]
    else:
        facts.append(("the names", a.flat_names, b.flat_names))
    return facts


def _merged_camera(key: str, sources: Sequence[EditSource]) -> dict[str, Any]:
    """Declaration of a camera; what its encoders disagree on becomes null, as LeRobot has it."""
    entries = [dict(source.raw_info["features"][key]) for source in sources]
    merged = dict(entries[0])
    blocks = [entry["info"] for entry in entries if isinstance(entry.get("info"), Mapping)]
    if len(blocks) == len(entries):
        info = dict(blocks[0])
        for name in _ENCODER_KEYS:
            values = [block.get(f"video.{name}") for block in blocks]
            if any(value != values[0] for value in values):
                info[f"video.{name}"] = {} if name == "extra_options" else None
        merged["info"] = info
    return merged


def _lay_out_data(plan: Plan, limit: float, *, is_joined: bool) -> None:
    """Append whole source files to the current file until it is full, by their uncompressed size."""
    groups: list[tuple[float, list[int]]] = []
    last = None
    for number, cut in enumerate(plan.cuts):
        place = plan.sources[cut.source].rows[cut.episode]
        if (cut.source, place.path) == last:
            groups[-1][1].append(number)
            continue
        last = (cut.source, place.path)
        size = _uncompressed(place.path)
        if groups and is_joined and not is_full(groups[-1][0], size, limit):
            groups[-1] = (groups[-1][0] + size, [*groups[-1][1], number])
        else:
            groups.append((size, [number]))
    plan.data_files = []
    chunk, file = 0, 0
    for _, episodes in groups:
        plan.data_files.append(DataFile(chunk=chunk, file=file, episodes=tuple(episodes)))
        chunk, file = next_file(chunk, file, plan.sources[0].metadata.info.chunks_size)


def _uncompressed(path: Any) -> float:
    footer = read_footer(path)
    return float(sum(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups)))


def _lay_out_videos(plan: Plan, key: str, limit: float, *, is_joined: bool) -> None:
    """Append whole source files to the current file until it is full; streams that differ get files of their own."""
    groups: list[tuple[float, list[int], Any]] = []
    last = None
    for number, cut in enumerate(plan.cuts):
        path = plan.sources[cut.source].frames(key, cut.episode).path
        if (cut.source, path) == last:
            groups[-1][1].append(number)
            continue
        last = (cut.source, path)
        size, facts = path.stat().st_size if path.is_file() else 0, stream_facts(path)
        fits = groups and is_joined and facts == groups[-1][2] and not is_full(groups[-1][0], size, limit)
        if fits:
            groups[-1] = (groups[-1][0] + size, [*groups[-1][1], number], facts)
        else:
            groups.append((size, [number], facts))
    chunk, file = 0, 0
    for _, episodes, _ in groups:
        pieces = []
        for number in episodes:
            span = plan.sources[plan.cuts[number].source].frames(key, plan.cuts[number].episode)
            pieces.append(Piece(path=span.path, first=span.first, count=span.count))
        plan.video_files.append(
            VideoFile(key=key, chunk=chunk, file=file, pieces=coalesce(pieces), episodes=tuple(episodes))
        )
        chunk, file = next_file(chunk, file, plan.sources[0].metadata.info.chunks_size)
