"""Rules on how the state follows the action (dataset_quality 5.1 to 5.3)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mimetic.data.check.lag import position_correlation
from mimetic.data.check.motion import ABSOLUTE, DELTA, Motion
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES, robust_z
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]

_PAIR_RULES = ("action.lag", "action.late", "action.unfollowed", "action.tracking", "action.offset")
LAG_FRAMES = 4
FLAT = 1.3
_UNFOLLOWED = 0.3
_MOVES = 0.02
_OFFSET, _OFFSET_CORRELATION = 0.05, 0.9
_Z = 3.5
_TRACKING_FLOOR = 0.02
EDGE, EDGE_S, EDGE_SHARE = 0.01, 0.2, 0.10
_PILE, _FEW = 0.01, 20


def check_following(motion: Motion, results: Results) -> None:
    """Rules `action.*`."""
    if motion.action is None:
        results.skip((*_PAIR_RULES, "action.saturation"), "there is no float `action`")
        return
    if motion.state is None:
        results.skip(_PAIR_RULES, "there is no float `observation.state`")
    elif motion.semantics != ABSOLUTE:
        what = "are changes or velocities" if motion.semantics == DELTA else "could not be interpreted"
        results.skip(_PAIR_RULES, f"the actions {what}, so they are not compared with the state one by one")
    else:
        results.apply("action.lag", "action.late", "action.unfollowed", "action.offset")
        shifted = _check_lag(motion, results)
        unfollowed = _check_unfollowed(motion, shifted, results)
        _check_tracking(motion, shifted | unfollowed, results)
    if motion.semantics == DELTA:
        results.skip("action.saturation", "the actions are changes or velocities, whose limits are often reached")
    else:
        _check_saturation(motion, results)


def _check_lag(motion: Motion, results: Results) -> set[int]:
    usual = motion.lag
    assert usual is not None
    episodes = motion.source.episodes
    lags = np.full(len(episodes), np.nan)
    shifted: dict[int, int] = {}
    for place, curve in motion.curves.items():
        lags[place] = curve.lag
        if abs(curve.lag - usual) > LAG_FRAMES and curve.at(usual) > FLAT * curve.least and curve.least < 1.0:
            shifted[int(episodes[place])] = curve.lag
    results.measure("lag_frames", lags)
    if usual < 0:
        better = [curve.at(0) > FLAT * curve.least for curve in motion.curves.values()]
        if np.mean(better) > 0.5:
            results.add(
                "action.late",
                f"the action comes {-usual} frames ({-1000 * usual / motion.fps:.0f} ms) after the state that it "
                "should cause",
                value=float(usual),
                threshold=0.0,
                unit="frames",
            )
    if shifted:
        worst = max(shifted, key=lambda episode: abs(shifted[episode] - usual))
        results.add(
            "action.lag",
            f"in episodes {listed(list(shifted))} the state follows the action at {shifted[worst]} frames, in the "
            f"dataset at {usual} ({1000 * (shifted[worst] - usual) / motion.fps:+.0f} ms)",
            episodes=shifted,
            value=float(shifted[worst] - usual),
            threshold=float(LAG_FRAMES),
            unit="frames",
            repair=results.delete(shifted),
        )
        for episode in shifted:
            motion.mark_damaged(episode, 0, motion.source.length(episode))
    return set(shifted)


def _check_unfollowed(motion: Motion, skip: set[int], results: Results) -> set[int]:
    assert motion.action is not None
    assert motion.state is not None
    both = motion.state.live & motion.action.live
    correlation = np.full(len(motion.source.episodes), np.nan)
    bad: list[int] = []
    for place, episode, signals in motion.episodes():
        moves = both & (np.ptp(signals[ACTION], axis=0) > 5 * _MOVES * motion.paired_scale)
        lag = max(motion.lag or 0, 0)
        state, action = signals[STATE][lag:], signals[ACTION][: len(signals[ACTION]) - lag]
        correlation[place] = position_correlation(state, action, moves)
        if correlation[place] < _UNFOLLOWED and episode not in skip:
            bad.append(episode)
    results.measure("action_state_correlation", correlation)
    if bad:
        value = float(np.nanmin(correlation[np.isin(motion.source.episodes, bad)]))
        results.add(
            "action.unfollowed",
            f"in episodes {listed(bad)} the state does not follow the actions (correlation {value:.2f}): the follower "
            "may have been unplugged",
            episodes=bad,
            value=round(value, 3),
            threshold=_UNFOLLOWED,
            repair=results.delete(bad),
        )
        for episode in bad:
            motion.mark_damaged(episode, 0, motion.source.length(episode))
    return set(bad)


def _check_tracking(motion: Motion, skip: set[int], results: Results) -> None:
    assert motion.action is not None
    assert motion.state is not None
    lag, scale = max(motion.lag or 0, 0), motion.paired_scale
    both = motion.state.live & motion.action.live
    n = len(motion.source.episodes)
    error = np.full((n, len(scale)), np.nan)
    offset, follows = np.full((n, len(scale)), np.nan), np.zeros((n, len(scale)))
    for place, episode, signals in motion.episodes():
        if episode in skip or len(signals[STATE]) <= lag + 2:
            continue
        state, action = signals[STATE][lag:], signals[ACTION][: len(signals[ACTION]) - lag]
        good = np.ones(len(state), dtype=np.bool_)
        if episode in motion.damaged:
            good &= ~motion.damaged[episode][lag:]
        if not good.any():
            continue
        difference = (action - state)[good] / scale
        offset[place] = _constant_offset(difference, action[good])
        error[place] = np.mean(np.abs(difference), axis=0)
        a, b = action - action.mean(axis=0), state - state.mean(axis=0)
        size = np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))
        follows[place] = np.where(size > 0, (a * b).sum(axis=0) / np.where(size > 0, size, 1), 0)
    results.measure("tracking_error", _mean(error[:, both]))
    if np.isfinite(error[:, 0]).sum() < LEAST_EPISODES:
        results.skip("action.tracking", f"comparing episodes needs {LEAST_EPISODES} of them")
    else:
        results.apply("action.tracking")
        for channel in np.flatnonzero(both).tolist():
            values = error[:, channel]
            z = robust_z(values, relative_floor=0.1)
            bad = np.flatnonzero((z > _Z) & (values > np.nanmedian(values) + _TRACKING_FLOOR))
            if len(bad):
                name = f"action[{motion.action.names[channel]}]"
                worst = bad[np.argmax(values[bad])]
                results.add(
                    "action.tracking",
                    f"`{name}` is followed badly in episodes {listed(motion.source.episodes[bad])}: by "
                    f"{values[worst]:.1%} of its range in the mean (usual: {np.nanmedian(values):.1%})",
                    episodes=motion.source.episodes[bad].tolist(),
                    feature=name,
                    value=round(float(values[worst]), 4),
                    threshold=round(float(np.nanmedian(values)) + _TRACKING_FLOOR, 4),
                    unit="of range",
                )
    for channel in np.flatnonzero(both).tolist():
        known = np.isfinite(offset[:, channel])
        middle = float(np.median(offset[known, channel])) if known.any() else 0.0
        always = known.any() and bool((np.abs(offset[known, channel]) > _OFFSET).mean() > 0.9)
        if always and abs(middle) > _OFFSET and float(np.median(follows[known, channel])) > _OFFSET_CORRELATION:
            name = f"action[{motion.action.names[channel]}]"
            results.add(
                "action.offset",
                f"`{name}` and the state differ by {middle:.1%} of the range in every episode",
                feature=name,
                value=round(middle, 4),
                threshold=_OFFSET,
                unit="of range",
            )


def _constant_offset(difference: Floats, action: Floats) -> Floats:
    """Offset (D,) that action and state have at both ends of a channel: the smaller one, 0 where the signs differ.

    A gripper that holds something is commanded further than it gets, but only while it is shut.

    Args:
        difference: action - state (T, D), scaled by the range.
        action: (T, D).
    """
    middle = (action.min(axis=0) + action.max(axis=0)) / 2
    ends = np.stack([_median_where(difference, side) for side in (action <= middle, action > middle)])
    ends = np.where(np.isfinite(ends), ends, np.median(difference, axis=0))
    smaller = np.where(np.abs(ends[0]) < np.abs(ends[1]), ends[0], ends[1])
    return np.asarray(np.where(ends[0] * ends[1] > 0, smaller, 0.0))


def _median_where(values: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
    """Median of the chosen rows, by column; NaN where none is chosen."""
    found = [np.median(values[chosen[:, i], i]) if chosen[:, i].any() else np.nan for i in range(values.shape[1])]
    return np.asarray(found, dtype=np.float64)


def _mean(values: Floats) -> Floats:
    known = np.isfinite(values).any(axis=1)
    found = np.full(len(values), np.nan)
    if values.shape[1]:
        found[known] = np.nanmean(values[known], axis=1)
    return found


def _check_saturation(motion: Motion, results: Results) -> None:
    action = motion.action
    assert action is not None
    live = action.live & ~motion.grippers(action)  # grippers are commanded to their end to hold something
    if not live.any():
        results.skip("action.saturation", "no channel of `action` is continuous")
        return
    results.apply("action.saturation")
    low, high = action.stats["min"], action.stats["max"]
    edge = EDGE * (high - low)
    least = motion.frames(EDGE_S)
    share = np.full((len(motion.source.episodes), len(low)), np.nan)
    for place, episode, signals in motion.episodes():
        if motion.is_damaged(episode) or ACTION not in signals:
            continue
        values = signals[ACTION]
        moved = np.ptp(values, axis=0) > 0
        at_end = [_long_runs(side & moved, least) for side in (values <= low + edge, values >= high - edge)]
        share[place] = (at_end[0] | at_end[1]).mean(axis=0)
    worst = np.where(live, np.nan_to_num(share), 0.0)
    results.measure("saturation", worst.max(axis=1))
    for channel in np.flatnonzero(live).tolist():
        if (worst[:, channel] > EDGE_SHARE).any() and not _is_clipped(motion, channel):
            worst[:, channel] = 0.0
    bad = np.flatnonzero(worst.max(axis=1) > EDGE_SHARE)
    if len(bad):
        channels = np.flatnonzero(worst.max(axis=0) > EDGE_SHARE)
        names = [f"`{ACTION}[{action.names[channel]}]`" for channel in channels.tolist()]
        results.add(
            "action.saturation",
            f"{', '.join(names[:3])}{' ...' if names[3:] else ''} stay{'s' if len(names) == 1 else ''} at the end of "
            f"the range in episodes {listed(motion.source.episodes[bad])}, up to {worst.max():.0%} of the frames",
            episodes=motion.source.episodes[bad].tolist(),
            feature=names[0].strip("`"),
            value=round(float(worst.max()), 4),
            threshold=EDGE_SHARE,
        )


def _is_clipped(motion: Motion, channel: int) -> bool:
    """Whether values pile up on exactly the same extreme in several episodes, as clipping makes them."""
    rows = motion.source.rows
    assert rows is not None
    values = rows.columns[ACTION].reshape(len(rows), -1)[:, channel]
    for extreme in (values.min(), values.max()):
        places = np.flatnonzero(values == extreme)
        episodes = np.unique(np.searchsorted(rows.run_start, places, side="right"))
        if len(places) > max(_PILE * len(values), _FEW) and len(episodes) > 1:
            return True
    return False


def _long_runs(flags: npt.NDArray[np.bool_], least: int) -> npt.NDArray[np.bool_]:
    """Keep the runs of True of at least `least` rows, by column."""
    kept = np.zeros_like(flags)
    for column in np.flatnonzero(flags.any(axis=0)):
        edges = np.flatnonzero(np.diff(np.concatenate([[False], flags[:, column], [False]]).astype(np.int8)))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            if end - start >= least:
                kept[start:end, column] = True
    return kept
