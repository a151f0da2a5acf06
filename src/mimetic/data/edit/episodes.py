"""Operations that choose episodes: delete, keep, split, trim (spec/dataset.md 15)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mimetic.data.edit.config import DeleteEpisodesConfig, KeepConfig, SplitConfig, TrimConfig
from mimetic.data.edit.motion import moving_spans
from mimetic.data.edit.plan import Cut, Plan, keep_all, lay_out
from mimetic.data.edit.source import EditSource
from mimetic.data.episodes import listed
from mimetic.data.store.atomic import read_json
from mimetic.errors import ConfigError, DatasetFormatError

logger = logging.getLogger(__name__)

Plans = list[tuple[str, Plan]]
"""Output name -> plan; an empty name for operations with one output."""


def plan_delete(sources: Sequence[EditSource], config: DeleteEpisodesConfig) -> Plans:
    """All episodes but some, numbered anew.

    Raises:
        ConfigError: an episode that does not exist, or nothing is left.
    """
    source = sources[0]
    unwanted = set(require_episodes(source, config.episode_indices or [], "episode_indices"))
    kept = [episode for episode in source.episodes if episode not in unwanted]
    if not kept:
        raise ConfigError(
            f"`--operation.episode_indices` names all {len(source.episodes)} episodes of `{source.root}`",
            "a dataset keeps at least one episode",
        )
    return [("", subset(source, kept, config.type_name))]


def plan_keep(sources: Sequence[EditSource], config: KeepConfig) -> Plans:
    """Some episodes, numbered anew in their old order.

    Raises:
        ConfigError: an episode that does not exist.
        DatasetFormatError: the file is no list of episodes.
    """
    source = sources[0]
    wanted = read_keep_list(config.keep_list) if config.keep_list is not None else list(config.episode_indices or [])
    flag = "keep_list" if config.keep_list is not None else "episode_indices"
    return [("", subset(source, sorted(require_episodes(source, wanted, flag)), config.type_name))]


def read_keep_list(path: Path) -> list[int]:
    """Episode numbers of a JSON file: a list, or an object with the list under `keep` or `episodes`.

    Raises:
        DatasetFormatError: it holds something else, or nothing.
    """
    hint = "`mimetic dataset check` writes one with `--keep_list=FILE`"
    try:
        value = read_json(path)
    except DatasetFormatError as error:
        raise DatasetFormatError(error.message, f"`--operation.keep_list` is a JSON file; {hint}") from error
    if isinstance(value, Mapping):
        value = value.get("keep", value.get("episodes"))
    if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
        raise DatasetFormatError(f"`{path}` holds no list of episode numbers", hint)
    return list(dict.fromkeys(value))


def plan_split(sources: Sequence[EditSource], config: SplitConfig) -> Plans:
    """One plan a split; shares are taken in order, and the last one takes the rest, as LeRobot does it.

    Raises:
        ConfigError: an episode that does not exist, or no split gets an episode.
    """
    source = sources[0]
    episodes = list(source.episodes)
    chosen = split_episodes(episodes, config.splits or {})
    for name, wanted in chosen.items():
        require_episodes(source, wanted, f"splits` (`{name}`)")
    empty = [name for name, wanted in chosen.items() if not wanted]
    if empty:
        logger.warning("%s: the splits %s get no episode and are left out", source.root, ", ".join(empty))
    plans = [
        (name, subset(source, sorted(wanted), f"{config.type_name} {name}"))
        for name, wanted in chosen.items()
        if wanted
    ]
    if not plans:
        raise ConfigError(f"no split of `{source.root}` gets an episode; it has {len(episodes)}", "use larger shares")
    return plans


def split_episodes(episodes: Sequence[int], splits: Mapping[str, Any]) -> dict[str, list[int]]:
    """Episodes of each split.

    Args:
        episodes: all episode numbers, in order.
        splits: name -> share, or name -> episodes.
    """
    found: dict[str, list[int]] = {}
    at = 0
    for place, (name, value) in enumerate(splits.items()):
        if isinstance(value, (list, tuple)):
            found[name] = [int(episode) for episode in value]
            continue
        is_last = place == len(splits) - 1
        count = len(episodes) - at if is_last else int(len(episodes) * value)
        found[name] = list(episodes[at : at + count])
        at += count
    return found


def plan_trim(sources: Sequence[EditSource], config: TrimConfig) -> Plans:
    """Episodes without their idle ends, or without a fixed number of frames at them.

    Raises:
        ConfigError: an episode that does not exist, or nothing would be left of one, or nothing is to be cut.
        DatasetFormatError: there is no state by which motion could be judged.
    """
    source = sources[0]
    chosen = set(
        source.episodes
        if config.episode_indices is None
        else require_episodes(source, config.episode_indices, "episode_indices")
    )
    lengths = {number: row.length for number, row in source.episodes.items()}
    if config.by == "motion":
        spans = moving_spans(source, keep_s=config.keep_s, min_cut_s=config.min_cut_s)
    else:
        spans = {number: (config.head, length - config.tail) for number, length in lengths.items()}
    gone = sorted(number for number in chosen if spans[number][1] - spans[number][0] < 1)
    if gone:
        raise ConfigError(
            f"nothing would be left of episodes {listed(gone)} of `{source.root}`",
            "cut less, or delete these episodes first",
        )
    plan = keep_all(source, config.type_name)
    plan.cuts = [
        replace(cut, start=spans[cut.episode][0], stop=spans[cut.episode][1]) if cut.episode in chosen else cut
        for cut in plan.cuts
    ]
    if config.at_keyframes:
        plan.cuts = [replace(cut, start=_keyframe_before(plan, cut)) for cut in plan.cuts]
    cut_away = sum(lengths.values()) - plan.n_frames
    touched = sum(not plan.is_whole(cut) for cut in plan.cuts)
    if not cut_away:
        raise ConfigError(f"no episode of `{source.root}` has idle ends to cut", "lower `--operation.min_cut_s`")
    plan.notes.append(
        f"{cut_away} of {sum(lengths.values())} frames ({cut_away / source.fps:.1f} s) are cut off {touched} episodes"
    )
    lay_out(plan)
    return [("", plan)]


def _keyframe_before(plan: Plan, cut: Cut) -> int:
    """The last frame at or before the cut with which a span of every camera can begin."""
    start = cut.start
    source = plan.sources[cut.source]
    while start > 0:
        wanted = start
        for camera in plan.cameras.values():
            place = source.frames(camera.source_key, cut.episode)
            index = source.frame_index(place.path)
            key = int(index.keyframes[index.keyframe_before(place.first + start)])
            wanted = min(wanted, max(key - place.first, 0))
        if wanted == start:
            break
        start = wanted
    return start


def subset(source: EditSource, episodes: Sequence[int], operation: str) -> Plan:
    """The plan that keeps some whole episodes of one dataset."""
    plan = keep_all(source, operation)
    by_number = {cut.episode: cut for cut in plan.cuts}
    plan.cuts = [by_number[episode] for episode in episodes]
    lay_out(plan)
    return plan


def require_episodes(source: EditSource, episodes: Sequence[int], flag: str) -> list[int]:
    """The episodes, once each.

    Raises:
        ConfigError: some do not exist.
    """
    unknown = sorted({int(episode) for episode in episodes} - set(source.episodes))
    if unknown:
        raise ConfigError(
            f"`--operation.{flag}` names episodes {listed(unknown)}; "
            f"`{source.root}` has {source.metadata.episodes.described()}",
            "nothing was changed",
        )
    return list(dict.fromkeys(int(episode) for episode in episodes))
