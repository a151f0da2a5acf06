"""Rules on the statistics that values are normalised with (dataset_quality 10)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.channels import true_stats
from mimetic.data.check.data_rules import channel_name
from mimetic.data.check.finding import Claim
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource
from mimetic.data.episodes import listed
from mimetic.data.statistics import LEVELS
from mimetic.data.stats import QUANTILES, FeatureStats
from mimetic.names import ACTION, DEFAULT_FEATURES, EPISODE_INDEX, INDEX, OBSERVATION, STATE, TASK_INDEX

Floats = npt.NDArray[np.float64]

KEYS_OF_MODE: Mapping[str, tuple[str, ...]] = {
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "IDENTITY": (),
}
_PLAIN = ("min", "max", "mean", "std")
_MATCH, _MATCH_QUANTILE = 0.01, 0.05
_PART = 0.10
"""Statistics of more frames than are there, as when episodes were taken out, are stale but not wrong up to this."""
_SPREAD = 0.8
_OUTLIER = 5.0
_ZERO = 1e-8
_NUMBERING = (INDEX, EPISODE_INDEX, TASK_INDEX)
_QUANTILE_MODES = ("QUANTILES", "QUANTILE10")


def check_statistics(
    source: CheckSource, results: Results, needs: PolicyNeeds | None, *, most_rows: int | None = None
) -> None:
    """Rules `stats.*`.

    Args:
        source: the dataset.
        results: where findings go.
        needs: the policy that will be trained; None when it is not known.
        most_rows: be quick: look at the policy's features only, and compute all but the extremes from so many rows.
    """
    if source.stats is None:
        results.skip(("stats.present", "stats.match", "stats.quantile_mean"), "the statistics cannot be read")
        return
    _check_present(source, results, needs)
    _check_counts(source, results)
    if needs is None:
        results.skip(("stats.zero", "stats.outlier"), "no policy is named (--policy.type or --policy.path)")
    else:
        _check_zero(source, results, needs)
    rows = source.rows
    if rows is None or not len(rows):
        results.skip(("stats.match", "stats.quantile_mean", "stats.index"), "the rows were not read")
        return
    lost = [item for item in source.unreadable if item.part == "data"]
    if lost:
        results.skip(
            ("stats.match", "stats.quantile_mean", "stats.index"),
            f"`{source.relative(lost[0].path)}` cannot be read, so the statistics cannot be computed again",
        )
        return
    results.apply("stats.match", "stats.quantile_mean", "stats.index")
    means: dict[str, Floats] = {}
    for key, column in rows.columns.items():
        stored = source.stats.get(key)
        if not stored or column.dtype.kind == "b" or not source.features[key].is_numeric:
            continue
        flat = column.reshape(-1, column.shape[-1] if column.ndim > 1 else 1)
        if key in DEFAULT_FEATURES:
            if key in _NUMBERING:
                _check_numbering(key, stored, flat, results)
        elif most_rows is None or (needs is not None and key in needs.modes):
            step = 1 if most_rows is None else max(1, len(flat) // most_rows)
            _check_match(source, key, stored, flat, results, means, step=step)
    _tell_means(source, means, results, needs)
    if needs is not None:
        _check_outliers(source, results, needs)


def _modes(needs: PolicyNeeds | None, key: str) -> str:
    return needs.modes.get(key, "") if needs is not None else ""


def _check_present(source: CheckSource, results: Results, needs: PolicyNeeds | None) -> None:
    stats = source.stats
    assert stats is not None
    results.apply("stats.present")
    if not stats and any(finding.id == "meta.files" for finding in results.findings):
        return  # the missing file has been told
    wanted: dict[str, tuple[str, ...]] = {
        key: _PLAIN for key in (STATE, ACTION) if key in source.features and source.features[key].is_numeric
    }
    if needs is not None:
        wanted = {key: KEYS_OF_MODE.get(mode, ()) for key, mode in needs.modes.items() if key in source.features}
    for key, names in wanted.items():
        missing = [name for name in names if name not in stats.get(key, {})]
        if missing:
            who = f"{needs.name} ({_modes(needs, key)}) needs" if needs is not None else "every policy may need"
            results.add(
                "stats.present",
                f"the statistics of `{key}` lack {', '.join(missing)}, which {who}",
                feature=key,
                value=", ".join(missing),
            )
        wrong = _wrong_width(source, key)
        if wrong:
            results.add("stats.present", wrong, feature=key)
    if needs is not None:
        return
    # Without a policy nobody needs quantiles; but some without the others is an accident.
    partly = {key for key in wanted if 0 < len(set(QUANTILES) & set(stats.get(key, {}))) < len(QUANTILES)}
    has = {key for key in wanted if set(QUANTILES) <= set(stats.get(key, {}))}
    for key in wanted:
        lacking = [name for name in QUANTILES if name not in stats.get(key, {})]
        if lacking and stats.get(key) and (key in partly or has):
            results.add(
                "stats.present",
                f"the statistics of `{key}` lack {', '.join(lacking)}, which policies with quantile normalisation need",
                claim=Claim.RISK,
                feature=key,
                value=", ".join(lacking),
                impact="such policies refuse the dataset",
            )


def _wrong_width(source: CheckSource, key: str) -> str:
    stats = source.stats or {}
    width = source.features[key].shape[-1] if source.features[key].is_numeric else 0
    for name, value in stats.get(key, {}).items():
        if width and name != "count" and value.shape[-1] != width:
            return f"`{name}` of `{key}` has {value.shape[-1]} values in the statistics; {width} are declared"
    return ""


def _check_counts(source: CheckSource, results: Results) -> None:
    ledger = source.ledger
    if ledger is None or not ledger.counts:
        return
    results.apply("stats.count")
    stale = {e for finding in results.findings if finding.id == "meta.ledger" for e in finding.episodes}
    length = np.asarray([source.length(int(episode)) for episode in ledger.index])
    bad: dict[int, str] = {}
    for key, counts in ledger.counts.items():
        if key not in source.features or not source.features[key].is_numeric or key == ACTION:
            continue  # statistics of relative actions count every step of every chunk
        for row in np.flatnonzero((counts >= 0) & (counts != length)):
            if int(ledger.index[row]) not in stale:
                bad.setdefault(int(ledger.index[row]), f"`{key}`: {counts[row]}, the episode has {length[row]} frames")
    if bad:
        episode, what = next(iter(bad.items()))
        results.add(
            "stats.count",
            f"statistics of episodes {listed(list(bad))} count other frames than the episodes have (episode {episode}, "
            f"{what})",
            episodes=bad,
        )


def _check_zero(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    stats = source.stats
    assert stats is not None
    results.apply("stats.zero")
    for key, mode in needs.modes.items():
        entry = stats.get(key, {})
        names = KEYS_OF_MODE.get(mode, ())
        if key not in source.features or not names or any(name not in entry for name in names):
            continue
        spread = entry["std"] if mode == "MEAN_STD" else entry[names[1]].astype(np.float64) - entry[names[0]]
        flat = np.flatnonzero(np.abs(np.asarray(spread, dtype=np.float64)).reshape(-1) < _ZERO)
        dead = _constant(source, key)
        hidden = [channel for channel in flat.tolist() if channel not in dead]
        names_of = [channel_name(source, key, channel) for channel in (hidden or flat.tolist())][:4]
        if hidden and mode in _QUANTILE_MODES:
            results.add(
                "stats.quantile_mean",
                f"{', '.join(names_of)}: {names[0]} = {names[1]} in the statistics, although the values differ; "
                f"{needs.name} would divide by zero",
                claim=Claim.DEFECT,
                feature=key,
                value=0.0,
            )
        elif len(flat):
            results.add(
                "stats.zero",
                f"{', '.join(names_of)} ha{'s' if len(flat) == 1 else 've'} no spread under {mode}; mimetic centres "
                "such channels and does not scale them, so nothing is divided by zero",
                claim=Claim.FACT if not hidden else Claim.RISK,
                feature=key,
                value=float(len(flat)),
                unit="channels",
            )


def _constant(source: CheckSource, key: str) -> set[int]:
    """Channels that really never change, by the rows, else by min and max of the statistics."""
    rows = source.rows
    if rows is not None and key in rows.columns and len(rows):
        flat = rows.columns[key].reshape(len(rows), -1)
        return set(np.flatnonzero(flat.max(axis=0) == flat.min(axis=0)).tolist())
    entry = (source.stats or {}).get(key, {})
    if "min" not in entry or "max" not in entry:
        return set()
    return set(np.flatnonzero((entry["max"] == entry["min"]).reshape(-1)).tolist())


def _check_numbering(key: str, stored: FeatureStats, flat: npt.NDArray[Any], results: Results) -> None:
    for name, actual in (("min", flat.min()), ("max", flat.max())):
        if name in stored and stored[name].size == 1 and float(stored[name].reshape(-1)[0]) != float(actual):
            results.add(
                "stats.index",
                f"the statistics say {name} {float(stored[name].reshape(-1)[0]):g} for `{key}`, the rows {actual}",
                feature=key,
                value=float(stored[name].reshape(-1)[0]),
                threshold=float(actual),
            )
            return


def _check_match(
    source: CheckSource,
    key: str,
    stored: FeatureStats,
    flat: npt.NDArray[Any],
    results: Results,
    means: dict[str, Floats],
    *,
    step: int,
) -> None:
    width = flat.shape[1]
    usable = {name: np.asarray(v, dtype=np.float64).reshape(-1) for name, v in stored.items() if v.size == width}
    count = int(stored["count"].reshape(-1)[0]) if "count" in stored and stored["count"].size else len(flat)
    if key == ACTION and count > 2 * len(flat):
        results.skip("stats.match", f"statistics of `{key}` count {count} values: they are those of relative actions")
        return
    finite = np.isfinite(flat).all(axis=0) if flat.dtype.kind == "f" else np.ones(width, dtype=np.bool_)
    if not finite.any():
        return
    true = true_stats(flat[::step])
    if step > 1:
        with np.errstate(invalid="ignore"):
            true = {**true, "min": flat.min(axis=0).astype(np.float64), "max": flat.max(axis=0).astype(np.float64)}
    spread = np.maximum(true["max"] - true["min"], 1e-6 * np.maximum(np.abs(true["max"]), 1e-6))
    off = {name: np.where(finite, np.abs(usable[name] - true[name]) / spread, 0.0) for name in _PLAIN if name in usable}
    worst_name, worst_channel, worst = "", 0, 0.0
    for name, values in off.items():
        values = np.where(np.isfinite(values), values, np.inf)
        if values.max() > worst:
            worst_name, worst_channel, worst = name, int(values.argmax()), float(values.max())
    if worst > _MATCH:
        is_part = count > len(flat) and worst <= _PART and worst_name in ("mean", "std")
        results.add(
            "stats.match",
            f"{worst_name} of `{channel_name(source, key, worst_channel)}` is {usable[worst_name][worst_channel]:.5g} "
            f"in the statistics, {true[worst_name][worst_channel]:.5g} in the rows ({_percent(worst)} of the range)"
            + (f"; they are those of {count} frames, of which {len(flat)} are there" if is_part else ""),
            claim=Claim.RISK if is_part else Claim.DEFECT,
            feature=channel_name(source, key, worst_channel),
            value=round(float(usable[worst_name][worst_channel]), 6),
            threshold=round(float(true[worst_name][worst_channel]), 6),
        )
        return
    _check_quantiles(source, key, flat[::step], usable, true, spread, finite, results, means)


def _percent(share: float) -> str:
    return f"{share:.0%}" if share < 100 else "many times"


def _check_quantiles(
    source: CheckSource,
    key: str,
    flat: npt.NDArray[Any],
    usable: Mapping[str, Floats],
    true: FeatureStats,
    spread: Floats,
    finite: npt.NDArray[np.bool_],
    results: Results,
    means: dict[str, Floats],
) -> None:
    present = [name for name in QUANTILES if name in usable]
    order = [name for name in ("min", *QUANTILES, "max") if name in usable]
    slack = 1e-6 * spread + 1e-9
    for low, high in itertools.pairwise(order):
        wrong = np.flatnonzero(finite & (usable[low] > usable[high] + slack))
        if len(wrong):
            name = channel_name(source, key, int(wrong[0]))
            results.add(
                "stats.match",
                f"{low} of `{name}` ({usable[low][wrong[0]]:.5g}) is above its {high} ({usable[high][wrong[0]]:.5g})",
                feature=name,
            )
            return
    least, most = quantile_bounds(flat)
    off = {name: np.where(finite, _outside(usable[name], least[name], most[name]) / spread, 0.0) for name in present}
    wrong_names = [name for name in present if (off[name] > _MATCH_QUANTILE).any()]
    if not wrong_names:
        return
    narrow = np.full(len(spread), np.inf)
    if "q01" in usable and "q99" in usable:
        # The narrowest spread that the rows allow: in few rows a quantile may be any of two or three values.
        true_spread = least["q99"] - most["q01"]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(finite & (true_spread > 1e-9), (usable["q99"] - usable["q01"]) / true_spread, np.inf)
        narrow = np.where(ratio < _SPREAD, ratio, np.inf)
    if np.isfinite(narrow).any() or _are_means_of_episodes(source, key, usable, spread, finite):
        means[key] = narrow
        return
    name = wrong_names[0]
    channel = int(np.argmax(off[name]))
    results.add(
        "stats.match",
        f"{name} of `{channel_name(source, key, channel)}` is {usable[name][channel]:.5g} in the statistics, "
        f"{true[name][channel]:.5g} in the rows",
        feature=channel_name(source, key, channel),
        value=round(float(usable[name][channel]), 6),
        threshold=round(float(true[name][channel]), 6),
    )


def _outside(value: Floats, low: Floats, high: Floats) -> Floats:
    return np.asarray(np.maximum(np.maximum(low - value, value - high), 0.0))


def quantile_bounds(flat: npt.NDArray[Any]) -> tuple[FeatureStats, FeatureStats]:
    """Lowest and highest value that some rule of computing quantiles gives, by name, (D,) each.

    Rules differ by a rank: numpy's puts a value between two samples, LeRobot's histogram at one of them.
    """
    count = len(flat)
    ranks = {name: level * (count - 1) for name, level in LEVELS.items()}
    below = {name: max(int(np.floor(rank)) - 1, 0) for name, rank in ranks.items()}
    above = {name: min(int(np.ceil(rank)) + 1, count - 1) for name, rank in ranks.items()}
    ordered = np.empty_like(flat)
    for channel in range(flat.shape[1]):
        ordered[:, channel] = np.partition(flat[:, channel], sorted({*below.values(), *above.values()}))
    low = {name: ordered[rank].astype(np.float64) for name, rank in below.items()}
    high = {name: ordered[rank].astype(np.float64) for name, rank in above.items()}
    return low, high


def _are_means_of_episodes(
    source: CheckSource, key: str, usable: Mapping[str, Floats], spread: Floats, finite: npt.NDArray[np.bool_]
) -> bool:
    """Whether the stored quantiles are the episodes' quantiles averaged by length, as LeRobot 0.6.1 has them."""
    names = [name for name in QUANTILES if name in usable]
    least, most = np.zeros((len(names), len(spread))), np.zeros((len(names), len(spread)))
    frames = 0
    for episode in source.episodes.tolist():
        column = source.columns_of(episode).get(key)
        if column is None or not len(column):
            continue
        low, high = quantile_bounds(column.reshape(-1, len(spread)))
        least += len(column) * np.stack([low[name] for name in names])
        most += len(column) * np.stack([high[name] for name in names])
        frames += len(column)
    if not frames:
        return False
    stored = np.stack([usable[name] for name in names])
    off = _outside(stored, least / frames, most / frames) / spread
    return bool((off[:, finite] <= 0.02).all())


def _tell_means(source: CheckSource, means: Mapping[str, Floats], results: Results, needs: PolicyNeeds | None) -> None:
    """One finding for the features whose policy uses quantiles, one for the others that a policy may read."""
    used = {key for key in means if _modes(needs, key) in _QUANTILE_MODES}
    read = {key for key in means if key.startswith((OBSERVATION, ACTION))} - used
    for keys, is_used in ((used, True), (read, False)):
        if not keys:
            continue
        key = min(keys, key=lambda name: float(means[name].min()))
        ratio, channel = float(means[key].min()), int(means[key].argmin())
        name = channel_name(source, key, channel) if np.isfinite(ratio) else key
        text = (
            f"q01 to q99 of `{name}` spans {ratio:.0%} of what the rows span"
            if np.isfinite(ratio)
            else f"quantiles of `{name}` are not those of the rows"
        )
        more = f" ({len(keys) - 1} more features)" if len(keys) > 1 else ""
        who = f"; {needs.name} uses {_modes(needs, key)}" if is_used and needs is not None else ""
        results.add(
            "stats.quantile_mean",
            f"{text}{more}: quantiles of episodes were averaged{who}",
            claim=Claim.DEFECT if is_used else Claim.RISK if np.isfinite(ratio) else Claim.FACT,
            feature=name,
            value=round(ratio, 4) if np.isfinite(ratio) else None,
            threshold=_SPREAD,
        )


def _check_outliers(source: CheckSource, results: Results, needs: PolicyNeeds) -> None:
    results.apply("stats.outlier")
    rows = source.rows
    assert rows is not None
    for key, mode in needs.modes.items():
        if mode != "MIN_MAX" or not key.startswith(ACTION) or key not in rows.columns:
            continue
        column = rows.columns[key]
        if column.dtype.kind != "f":
            continue
        true = true_stats(column.reshape(len(column), -1))
        usual = true["q99"] - true["q01"]
        ratio = np.where(usual > 1e-9, (true["max"] - true["min"]) / np.maximum(usual, 1e-9), 0.0)
        for channel in np.flatnonzero(ratio > _OUTLIER).tolist():
            name = channel_name(source, key, channel)
            results.add(
                "stats.outlier",
                f"the extremes of `{name}` are {ratio[channel]:.1f} times as far apart as its q01 and q99; MIN_MAX "
                "squeezes the usual range. A policy with QUANTILES would not",
                feature=name,
                value=round(float(ratio[channel]), 3),
                threshold=_OUTLIER,
            )
