"""Repairs of statistics (`stats.present`, `stats.match`, `stats.quantile_mean`, `stats.index`, `stats.count`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.edit.data_task import native_column
from mimetic.data.edit.summary import PictureTask, carried, look_at_pictures, merged_pictures, picture_stats
from mimetic.data.episodes import listed
from mimetic.data.parquet import read_table
from mimetic.data.repair.state import NUMBERS, State
from mimetic.data.statistics import LEVELS, numeric_stats
from mimetic.data.stats import QUANTILES, FeatureStats
from mimetic.names import ACTION, DEFAULT_FEATURES, EPISODE_INDEX, INDEX, TASK_INDEX, TIMESTAMP

_MOMENTS = ("min", "max", "mean", "std")
_KEYS = (*_MOMENTS, "count", *QUANTILES)
_NUMBERING = (INDEX, EPISODE_INDEX, TASK_INDEX)
_MANY_TIMES = 2
_MOMENT_SHARE, _QUANTILE_SHARE, _SPREAD_SHARE = 0.01, 0.05, 0.8
STATS_RULES = ("stats.present", "stats.match", "stats.quantile_mean", "stats.index", "stats.count")


@dataclass
class _Columns:
    """Numeric columns as they will be after the repair, one at a time."""

    state: State
    _held: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def read(self, name: str) -> npt.NDArray[Any]:
        """All rows that stay."""
        state = self.state
        if name in NUMBERS:
            values = state.columns[name]
            return (values.astype(np.float32) if name == TIMESTAMP else values)[state.kept]
        if name not in self._held:
            feature = state.features[name]
            parts = [
                native_column(read_table(path, [name])[name], feature, name=name, where=str(path))
                for path in state.files
            ]
            self._held = {name: np.concatenate(parts)}
        return self._held[name][state.kept]


def mend_stats(state: State, rules: set[str]) -> None:
    """Compare stored statistics with the rows, and write what the rules name anew.

    What other repairs changed (numbers, tasks, times, rows) is computed anew whatever the rules say.

    Args:
        state: the dataset, with all other repairs done.
        rules: of `STATS_RULES`.
    """
    changed = _changed_features(state)
    if not rules and not changed:
        return
    columns = _Columns(state)
    findings: dict[str, list[str]] = {rule: [] for rule in STATS_RULES}
    for name, feature in state.features.items():
        if not feature.is_numeric or not state.kept.any():
            continue
        stored = state.stats.get(name, {})
        values = columns.read(name)
        true = numeric_stats(values)
        if name == ACTION and _is_relative(stored, len(state.kept)):
            continue
        keys = _wrong_keys(name, stored, true, values, rules)
        wanted = set(_KEYS) if name in changed and not _same(true, stored) else set()
        for rule, wrong in keys.items():
            if rule in rules:
                findings[rule].append(name)
                wanted |= wrong
        if wanted:
            state.stats[name] = {
                key: true[key] if key in wanted else stored[key] for key in _KEYS if key in wanted or key in stored
            }
            state.are_stats_changed = True
    if "stats.present" in rules:
        findings["stats.present"] += _mend_cameras(state)
    if not state.kept.all():
        _refresh_cameras(state)
    texts = {
        "stats.present": "statistics are missing and are computed",
        "stats.match": "statistics do not fit the rows and are computed anew",
        "stats.quantile_mean": "quantiles are means of the episodes' quantiles; the true ones are written",
        "stats.index": "statistics of the numbering are stale and are computed anew",
    }
    for rule, text in texts.items():
        if findings[rule]:
            state.note(rule, f"{', '.join(f'`{name}`' for name in findings[rule])}: {text}")
    _mend_episode_stats(state, columns, changed, is_asked="stats.count" in rules)


def _changed_features(state: State) -> set[str]:
    """Features whose values another repair changed; all of them when rows went."""
    if not state.kept.all():
        return {name for name, feature in state.features.items() if feature.is_numeric}
    return {
        name
        for name in NUMBERS
        if not np.array_equal(state.columns[name], state.before[name], equal_nan=name == TIMESTAMP)
    }


def _is_relative(stored: FeatureStats, frames: int) -> bool:
    """Whether statistics of actions are those of relative ones, which count every step of every chunk."""
    return "count" in stored and int(np.asarray(stored["count"]).reshape(-1)[0]) > _MANY_TIMES * frames


@np.errstate(invalid="ignore", over="ignore")  # values that are not finite
def _wrong_keys(
    name: str, stored: FeatureStats, true: FeatureStats, values: npt.NDArray[Any], rules: set[str]
) -> dict[str, set[str]]:
    """By rule, which statistics of a feature are wrong; one cause is told once."""
    missing = {key for key in _KEYS if key not in stored or np.asarray(stored[key]).shape != true[key].shape}
    found: dict[str, set[str]] = {"stats.present": missing} if missing else {}
    there = {key: np.asarray(stored[key], dtype=np.float64) for key in (*_MOMENTS, *QUANTILES) if key not in missing}
    known = {key for key in _KEYS if key not in missing}
    is_miscounted = "count" not in missing and int(stored["count"][0]) != int(true["count"][0])
    if name in DEFAULT_FEATURES:
        is_stale = name in _NUMBERING and any(
            key in there and not np.array_equal(there[key], true[key]) for key in ("min", "max")
        )
        return found | ({"stats.index": known} if is_stale or is_miscounted else {})
    spread = np.maximum(true["max"] - true["min"], 1e-6 * np.maximum(np.abs(true["max"]), 1e-6))
    is_off = any(key in there and not _is_near(there[key], true[key], spread) for key in _MOMENTS)
    is_off |= "count" not in missing and int(stored["count"][0]) != int(true["count"][0])
    order = [there[key] for key in ("min", *QUANTILES, "max") if key in there]
    is_off |= any((low > high + 1e-6 * spread + 1e-9).any() for low, high in pairwise(order))
    if is_off:
        return found | {"stats.match": known}
    least, most = _quantile_bounds(values)
    outside = [
        np.maximum(np.maximum(least[key] - there[key], there[key] - most[key]), 0.0) / spread
        for key in QUANTILES
        if key in there
    ]
    if any((off > _QUANTILE_SHARE).any() for off in outside):
        narrow = {"q01", "q99"} <= set(there) and bool(
            (there["q99"] - there["q01"] < _SPREAD_SHARE * (least["q99"] - most["q01"])).any()
        )
        rule = "stats.match" if "stats.match" in rules and not narrow else "stats.quantile_mean"
        found[rule] = known & set(QUANTILES)
    return found


def _is_near(stored: npt.NDArray[Any], true: npt.NDArray[Any], spread: npt.NDArray[Any]) -> bool:
    """Whether a statistic is right; of values that are not finite it may be NaN or infinite, and is right then too."""
    is_same = (stored == true) | (np.isnan(stored) & np.isnan(true))
    return bool((is_same | (np.abs(stored - true) / spread <= _MOMENT_SHARE)).all())


@np.errstate(invalid="ignore", over="ignore")
def _quantile_bounds(values: npt.NDArray[Any]) -> tuple[FeatureStats, FeatureStats]:
    """Lowest and highest value that some rule of computing quantiles gives: rules differ by a rank."""
    ordered = np.sort(values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1).astype(np.float64), axis=0)
    last = len(ordered) - 1
    ranks = {key: level * last for key, level in LEVELS.items()}
    low = {key: ordered[max(int(np.floor(rank)) - 1, 0)] for key, rank in ranks.items()}
    return low, {key: ordered[min(int(np.ceil(rank)) + 1, last)] for key, rank in ranks.items()}


def _mend_cameras(state: State) -> list[str]:
    """Look at the pictures of cameras without statistics."""
    found = []
    for name, feature in state.features.items():
        if not feature.is_camera or all(key in state.stats.get(name, {}) for key in _KEYS):
            continue
        if not state.has_pictures(name):
            state.note(
                "stats.present", f"`{name}` has no statistics, and its pictures cannot all be read", is_mended=False
            )
            continue
        total, frames = picture_stats(feature), 0
        for row in state.episodes:
            path, first, column = _place(state, name, row.episode_index)
            task = PictureTask(path=path, first=first, length=row.length, camera=feature, column=column)
            counts, looked_at = look_at_pictures(task)
            part = picture_stats(feature)
            part.counts = counts
            total.merge(part)
            frames += looked_at
        state.stats[name] = total.result(count=frames)
        state.are_stats_changed = True
        found.append(name)
    return found


def _refresh_cameras(state: State) -> None:
    """Let camera statistics follow when rows went: those of shortened episodes are taken anew, the whole is merged."""
    for name, feature in state.features.items():
        if not feature.is_camera or not state.has_pictures(name):
            continue
        parts: list[FeatureStats | None] = []
        for place, row in enumerate(state.episodes):
            part = carried(row.stats.get(name), row.length)
            if part is not None and row.episode_index in state.redo_episodes:
                path, first, column = _place(state, name, row.episode_index)
                task = PictureTask(path=path, first=first, length=row.length, camera=feature, column=column)
                histogram = picture_stats(feature)
                histogram.counts, looked_at = look_at_pictures(task)
                part = histogram.result(count=looked_at)
                state.episodes[place] = replace(row, stats={**row.stats, name: part})
                state.is_ledger_changed = True
            parts.append(part)
        complete = [part for part in parts if part is not None]
        if name in state.stats and len(complete) == len(parts):
            state.stats[name] = merged_pictures(complete)
            state.are_stats_changed = True


def _place(state: State, name: str, episode: int) -> tuple[Path, int, str]:
    row = next(row for row in state.episodes if row.episode_index == episode)
    if state.features[name].dtype == "video":
        place = row.videos[name]
        path = state.layout.video_file(name, place.chunk, place.file)
        return path, round(place.from_s * state.fps), ""
    rows = state.rows_of(episode)
    file = int(state.file[rows[0]])
    return state.files[file], int(rows[0] - np.argmax(state.file == file)), name


def _mend_episode_stats(state: State, columns: _Columns, changed: set[str], *, is_asked: bool) -> None:
    """Statistics of single episodes: where rows changed, or where they count other rows than the episode has."""
    numeric = [name for name, feature in state.features.items() if feature.is_numeric]
    wrong: dict[int, set[str]] = {}
    said: list[int] = []
    for place, row in enumerate(state.episodes):
        names = set(numeric) if row.episode_index in state.redo_episodes else changed & set(row.stats)
        if is_asked:
            counted = {
                name
                for name in numeric
                if "count" in row.stats.get(name, {}) and int(row.stats[name]["count"][0]) != row.length
            }
            if counted:
                said.append(row.episode_index)
                names |= counted
        if names:
            wrong[place] = names
    if not wrong:
        return
    episode = state.columns[EPISODE_INDEX][state.kept]
    for name in sorted({name for names in wrong.values() for name in names}):
        values = columns.read(name)
        for place, names in wrong.items():
            if name in names:
                row = state.episodes[place]
                stats = dict(row.stats)
                stats[name] = numeric_stats(values[episode == row.episode_index])
                if not _same(stats[name], row.stats.get(name, {})):
                    state.episodes[place] = replace(row, stats=stats)
                    state.is_ledger_changed = True
    if said:
        state.note(
            "stats.count",
            f"statistics of episodes {listed(said)} count other frames than they have; computed anew",
            said,
        )


def _same(one: FeatureStats, other: Mapping[str, Any]) -> bool:
    return set(one) == set(other) and all(
        np.array_equal(one[key], np.asarray(other[key]), equal_nan=key != "count") for key in one
    )
