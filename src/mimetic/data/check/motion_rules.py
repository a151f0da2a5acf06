"""Rules on single episodes' motion: idle, smoothness, gripper, length, first and last pose (dataset_quality 6)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from mimetic.data.check import gripper, idle, smoothness
from mimetic.data.check.channels import Channels
from mimetic.data.check.finding import Claim
from mimetic.data.check.motion import DELTA, Motion
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES, robust_z, tukey_limit
from mimetic.data.check.source import CheckSource
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]

DEFAULT_CHUNK = 50
_RELATIVE = ("motion.smoothness", "motion.length", "motion.end", "motion.start", "gripper.never_closed")
_IDLE_RULES = ("motion.idle_head", "motion.idle_tail", "motion.idle_middle")
_GRIPPER_RULES = ("gripper.chatter", "gripper.never_closed", "gripper.retries")
_IDLE_SHARE, _HEAD_S, _HEAD_SHARE, _TAIL_S, _TAIL_SHARE, _MIDDLE_SHARE = 0.4, 1.0, 0.15, 2.0, 0.2, 0.3
_LEAST_IDLE_S = 0.75
_ZERO_WARN, _ZERO_STRONG = 0.15, 0.35
_CHATTER_WARN, _CHATTER_STRONG = 2, 5
_RETRIES = 3
_SHORT_S, _SHORT_FRAMES, _SHORT_SHARE = 1.0, 15, 0.2
_ROUGH_Z, _SAL_FLOOR, _SHARE_FLOOR, _WAITS = 3.5, 0.5, 0.15, 0.3
_LENGTH_Z, _LENGTH_OFF = 4.0, 0.15
_END_FLOOR, _END_LEAST, _START_LEAST = 0.05, 0.10, 0.20
_GRASP_WORDS = ("pick", "place", "insert", "grasp", "grab", "put", "stack", "take", "lift", "hand")


def check_motion(motion: Motion, results: Results, *, chunk: int | None) -> None:
    """Rules on motion, and the measures of each episode.

    Args:
        motion: prepared signals.
        results: where findings go.
        chunk: actions a chunk of the policy; None without one.
    """
    _check_lengths(motion.source.lengths, motion, results)
    main = motion.state if motion.state is not None else motion.action
    if main is None or not main.live.any():
        results.skip(
            (*_IDLE_RULES, "motion.zero_chunk", "motion.smoothness", "motion.end", "motion.start", *_GRIPPER_RULES),
            "neither `observation.state` nor `action` has a continuous channel",
        )
        return
    if len(motion.source.episodes) < LEAST_EPISODES:
        skipped = [rule for rule in _RELATIVE if motion.gripper is not None or not rule.startswith("gripper")]
        results.skip(skipped, f"comparing episodes needs {LEAST_EPISODES} of them")
    _check_idle(motion, main, results)
    _check_zero_chunks(motion, results, chunk or DEFAULT_CHUNK)
    _check_smoothness(motion, main, results)
    _check_gripper(motion, results)
    _check_ends(motion, main, results)


def scaled(channels: Channels, signal: Floats) -> Floats:
    """Live channels of a signal (T, D), divided by their range."""
    live = channels.live
    return np.asarray(signal[:, live] / channels.scale[live])


def _check_lengths(lengths: npt.NDArray[np.int64], motion: Motion, results: Results) -> None:
    fps, episodes = motion.fps, motion.source.episodes
    if not len(lengths) or not fps:
        return
    results.apply("motion.short")
    middle = float(np.median(lengths))
    short = (lengths < _SHORT_S * fps) | (lengths < _SHORT_FRAMES) | (lengths < _SHORT_SHARE * middle)
    results.facts["length"] = {
        "median_frames": middle,
        "min_frames": int(lengths.min()),
        "max_frames": int(lengths.max()),
        "median_s": round(middle / fps, 3),
    }
    if short.any():
        results.add(
            "motion.short",
            f"episodes {listed(episodes[short])} have {int(lengths[short].min())} to {int(lengths[short].max())} "
            f"frames (median of the dataset: {middle:.0f})",
            episodes=episodes[short].tolist(),
            value=float(lengths[short].min()),
            threshold=round(max(_SHORT_S * fps, _SHORT_FRAMES, _SHORT_SHARE * middle), 1),
            unit="frames",
        )
    z = robust_z(np.log(np.maximum(lengths, 1)), absolute_floor=0.1)
    if np.isfinite(z).any():
        results.apply("motion.length")
        odd = (np.abs(z) > _LENGTH_Z) & (np.abs(lengths / middle - 1) > _LENGTH_OFF) & ~short
        if odd.any():
            worst = int(np.argmax(np.where(odd, np.abs(z), 0)))
            results.add(
                "motion.length",
                f"episodes {listed(episodes[odd])} are unusually long or short (episode {episodes[worst]}: "
                f"{lengths[worst]} frames, median {middle:.0f})",
                episodes=episodes[odd].tolist(),
                value=float(lengths[worst]),
                threshold=middle,
                unit="frames",
            )


def _check_idle(motion: Motion, main: Channels, results: Results) -> None:
    if main is motion.action and motion.semantics == DELTA:
        results.skip(_IDLE_RULES, "there is no state, and actions are changes")
        return
    results.apply(*_IDLE_RULES)
    window = motion.frames(idle.WINDOW_S)
    n = len(motion.source.episodes)
    floor = idle.noise_floor(
        [idle.net_motion(scaled(main, signals[main.feature]), window) for _, _, signals in motion.episodes()]
    )
    parts = np.full((n, 3), np.nan)
    for place, episode, signals in motion.episodes():
        found = idle.idle_frames(scaled(main, signals[main.feature]), window, floor)
        parts[place] = found.head, found.middle, found.tail
        if motion.is_damaged(episode):  # what was not measured looks as if it stood still
            parts[place] = np.nan
    lengths = np.maximum(motion.source.lengths, 1)
    shares = parts / lengths[:, None]
    seconds = parts / motion.fps
    for number, name in enumerate(("idle_head_s", "idle_middle_s", "idle_tail_s")):
        results.measure(name, seconds[:, number])
    results.facts["idle"] = {"window_s": idle.WINDOW_S, "floor": round(floor, 4)}
    trim = f"mimetic dataset edit --root={results.root} --operation.type=trim"
    limits = (
        (0, "motion.idle_head", "before they begin to move", _HEAD_S, _HEAD_SHARE, trim),
        (2, "motion.idle_tail", "after they have stopped", _TAIL_S, _TAIL_SHARE, trim),
    )
    for number, rule, words, least_s, least_share, repair in limits:
        with np.errstate(invalid="ignore"):
            bad = (shares[:, number] > _IDLE_SHARE) & (seconds[:, number] > _LEAST_IDLE_S)
            bad |= (seconds[:, number] > least_s) & (shares[:, number] > least_share)
        _tell_idle(motion, results, rule, bad, shares[:, number], seconds[:, number], words, repair)
    with np.errstate(invalid="ignore"):
        bad = shares[:, 1] > _MIDDLE_SHARE
    _tell_idle(motion, results, "motion.idle_middle", bad, shares[:, 1], seconds[:, 1], "in between", "")
    _other_idle(motion, main, results)


def _tell_idle(
    motion: Motion,
    results: Results,
    rule: str,
    bad: npt.NDArray[np.bool_],
    share: Floats,
    seconds: Floats,
    words: str,
    repair: str,
) -> None:
    if not bad.any():
        return
    worst = int(np.argmax(np.where(bad, share, -1)))
    episodes = motion.source.episodes
    length = motion.source.lengths
    spans: list[tuple[int, int, int]] = []
    for place in np.flatnonzero(bad).tolist():
        idle_frames = round(seconds[place] * motion.fps)
        if rule == "motion.idle_head":
            spans.append((int(episodes[place]), 0, max(idle_frames - 1, 0)))
        elif rule == "motion.idle_tail":
            spans.append((int(episodes[place]), int(length[place]) - idle_frames, int(length[place]) - 1))
    results.add(
        rule,
        f"episodes {listed(episodes[bad])} stand still {words}, for up to {share[worst]:.0%} of their frames "
        f"({seconds[worst]:.1f} s in episode {episodes[worst]})",
        episodes=episodes[bad].tolist(),
        spans=spans,
        value=round(float(share[worst]), 4),
        threshold=_MIDDLE_SHARE if rule == "motion.idle_middle" else _IDLE_SHARE,
        unit="of the frames",
        repair=repair,
    )


def _other_idle(motion: Motion, main: Channels, results: Results) -> None:
    """The two other definitions in use, as measures: the no-op filter and slow speed."""
    n = len(motion.source.episodes)
    slow, noop = np.full(n, np.nan), np.full(n, np.nan)
    action = motion.action
    # q10 to q90 stand in for the quartiles, which the statistics do not hold: 2.563 against 1.349 of a normal one.
    iqr = None if action is None else (action.stats["q90"] - action.stats["q10"]) * (1.349 / 2.563)
    for place, _, signals in motion.episodes():
        slow[place] = idle.slow_share(scaled(main, signals[main.feature]), motion.fps)
        if action is not None and iqr is not None and ACTION in signals:
            noop[place] = idle.noop_frames(signals[ACTION], iqr, motion.fps) / len(signals[ACTION])
    results.measure("slow_share", slow)
    results.measure("noop_share", noop)


def _check_zero_chunks(motion: Motion, results: Results, chunk: int) -> None:
    action = motion.action
    if action is None or not action.live.any():
        results.skip("motion.zero_chunk", "`action` has no continuous channel")
        return
    results.apply("motion.zero_chunk")
    share = np.full(len(motion.source.episodes), np.nan)
    for place, _, signals in motion.episodes():
        if ACTION in signals:
            share[place] = idle.zero_chunk_share(
                scaled(action, signals[ACTION]), chunk, 0.02, is_delta=motion.semantics == DELTA
            )
    results.measure("zero_chunk_share", share)
    known = np.isfinite(share)
    whole = float(np.average(share[known], weights=motion.source.lengths[known])) if known.any() else 0.0
    results.facts["zero_chunk"] = {"chunk": chunk, "share": round(whole, 4)}
    if whole > _ZERO_WARN:
        strong = whole > _ZERO_STRONG
        bad = motion.source.episodes[known & (share > _ZERO_WARN)]
        results.add(
            "motion.zero_chunk",
            f"in {whole:.0%} of the frames the whole chunk of {chunk} actions stays where it is"
            + (", which teaches to stand still" if strong else ""),
            episodes=bad.tolist(),
            value=round(whole, 4),
            threshold=_ZERO_STRONG if strong else _ZERO_WARN,
            unit="of the frames",
            repair=f"mimetic dataset edit --root={results.root} --operation.type=trim",
        )


def _check_smoothness(motion: Motion, main: Channels, results: Results) -> None:
    n = len(motion.source.episodes)
    names = ("sal", "ldlj", "high_frequency_share", "action_chatter", "dither", "path_ratio", "speed_mean")
    found = {name: np.full(n, np.nan) for name in names}
    paths = np.full((n, 2), np.nan)
    # A gripper opens and closes as fast as it can, and has rules of its own.
    without = main.live & ~motion.grippers(main)
    arm = without if without.any() else main.live
    for place, episode, signals in motion.episodes():
        if motion.is_damaged(episode):
            continue
        position = signals[main.feature][:, arm] / main.scale[arm]
        profile = smoothness.speed(position, motion.fps)
        found["speed_mean"][place] = float(profile.mean())
        found["sal"][place] = smoothness.sal(profile, motion.fps)
        found["ldlj"][place] = smoothness.ldlj(smoothness.low_pass(position, motion.fps), motion.fps)
        found["high_frequency_share"][place] = smoothness.high_frequency_share(position, motion.fps)
        found["dither"][place] = smoothness.dither(position, motion.fps, 0.02)
        paths[place] = smoothness.path_length(position)
        if ACTION in signals and motion.action is not None:
            found["action_chatter"][place] = smoothness.chatter(scaled(motion.action, signals[ACTION]))
    if np.isfinite(paths[:, 1]).any():
        found["path_ratio"] = paths[:, 0] / np.maximum(paths[:, 1], 0.5 * np.nanmedian(paths[:, 1]) + 1e-9)
    for name, values in found.items():
        results.measure(name, values)
    _tell_rough(motion, found, results)


def _tell_rough(motion: Motion, found: dict[str, Floats], results: Results) -> None:
    """Stop-and-go shows in the arc length of the spectrum, shaking in jerk and in high frequencies together."""
    sal, share = found["sal"], found["high_frequency_share"]
    z = robust_z(sal, relative_floor=0.1)
    if not np.isfinite(z).any():
        return
    results.apply("motion.smoothness")
    with np.errstate(invalid="ignore"):
        # Arc length grows with duration: only what is rough for its length is told.
        per_second = robust_z(sal / np.sqrt(np.maximum(motion.source.lengths, 1)), relative_floor=0.1)
        stops = (z < -_ROUGH_Z) & (sal < np.nanmedian(sal) - _SAL_FLOOR) & (per_second < -_ROUGH_Z)
        shakes = robust_z(found["ldlj"], absolute_floor=0.5) < -_ROUGH_Z
        # An episode that waits for a third of its time does the rest faster, or stops at once.
        waits = [results.measures[name] for name in ("idle_head_s", "idle_tail_s") if name in results.measures]
        if waits:
            shakes &= ~(np.sum(waits, axis=0) * motion.fps > _WAITS * motion.source.lengths)
        shakes &= (robust_z(share, absolute_floor=0.03) > _ROUGH_Z) & (share > np.nanmedian(share) + _SHARE_FLOOR)
    for rough, values, name in ((stops, sal, "SAL"), (shakes & ~stops, share, "share above 2 Hz")):
        if rough.any():
            middle = float(np.nanmedian(values))
            worst = int(np.nanargmax(np.where(rough, np.abs(values - middle), np.nan)))
            results.add(
                "motion.smoothness",
                f"episodes {listed(motion.source.episodes[rough])} are rougher than the others (episode "
                f"{motion.source.episodes[worst]}: {name} {values[worst]:.2f}, median {middle:.2f})",
                episodes=motion.source.episodes[rough].tolist(),
                value=round(float(values[worst]), 3),
                threshold=round(middle, 3),
            )


def _check_gripper(motion: Motion, results: Results) -> None:
    if motion.gripper is None:
        results.skip(_GRIPPER_RULES, "no channel is named as a gripper's or looks like one")
        return
    feature, channel, _ = motion.gripper
    channels = motion.state if feature == STATE else motion.action
    assert channels is not None
    results.apply("gripper.chatter", "gripper.retries")
    n = len(motion.source.episodes)
    rate, closings = np.full(n, np.nan), np.full(n, np.nan)
    low, scale = channels.stats["q01"][channel], channels.scale[channel]
    for place, episode, signals in motion.episodes():
        if feature not in signals or (motion.is_damaged(episode) and motion.damaged[episode].all()):
            continue
        signal = (signals[feature][:, channel] - low) / scale
        rate[place] = gripper.peak_rate(gripper.reversals(signal), motion.fps)
        closings[place] = gripper.closings(gripper.states(signal))
    results.measure("gripper_reversals_hz", rate)
    results.measure("gripper_cycles", closings)
    name = f"{feature}[{channels.names[channel]}]"
    with np.errstate(invalid="ignore"):
        flutter = rate > _CHATTER_WARN
    if flutter.any():
        worst = int(np.argmax(np.where(flutter, rate, -1)))
        strong = rate[worst] >= _CHATTER_STRONG
        results.add(
            "gripper.chatter",
            f"`{name}` turns up to {rate[worst]:.0f} times in a second in episodes "
            f"{listed(motion.source.episodes[flutter])}",
            episodes=motion.source.episodes[flutter].tolist(),
            feature=name,
            value=float(rate[worst]),
            threshold=float(_CHATTER_STRONG if strong else _CHATTER_WARN),
            unit="Hz",
        )
    _check_grasps(motion, closings, flutter, name, results)


def _check_grasps(
    motion: Motion, closings: Floats, flutter: npt.NDArray[np.bool_], name: str, results: Results
) -> None:
    episodes = motion.source.episodes
    known = np.isfinite(closings)
    if known.sum() < LEAST_EPISODES:
        return
    results.apply("gripper.never_closed")
    for task, places in places_by_task(motion.source).items():
        places = places[known[places]]
        if len(places) < LEAST_EPISODES:
            continue
        middle = float(np.median(closings[places]))
        words = task.lower()
        none = places[closings[places] == 0]
        if middle >= 1 and len(none) and len(none) < 0.5 * len(places) and any(word in words for word in _GRASP_WORDS):
            results.add(
                "gripper.never_closed",
                f"`{name}` never closes in episodes {listed(episodes[none])}, in most others of `{task:.60}` it does",
                episodes=episodes[none].tolist(),
                feature=name,
                value=0.0,
                threshold=1.0,
            )
        many = places[(closings[places] >= _RETRIES) & ~flutter[places]]
        if middle < _RETRIES - 1 and len(many):
            results.add(
                "gripper.retries",
                f"`{name}` closes {closings[many].max():.0f} times in episodes {listed(episodes[many])} (median "
                f"{middle:.0f})",
                episodes=episodes[many].tolist(),
                feature=name,
                value=float(closings[many].max()),
                threshold=float(_RETRIES),
            )


def places_by_task(source: CheckSource) -> dict[str, npt.NDArray[np.int64]]:
    """Places of episodes by their first task string; one empty string where the table has none."""
    found: dict[str, list[int]] = defaultdict(list)
    for place, task in enumerate(source.first_tasks):
        found[task].append(place)
    return {task: np.asarray(places, dtype=np.int64) for task, places in found.items()}


def _check_ends(motion: Motion, main: Channels, results: Results) -> None:
    n = len(motion.source.episodes)
    width = int(main.live.sum())
    first, last = np.full((n, width), np.nan), np.full((n, width), np.nan)
    for place, episode, signals in motion.episodes():
        if not motion.is_damaged(episode):
            position = scaled(main, signals[main.feature])
            first[place], last[place] = position[0], position[-1]
    if main is motion.action and motion.semantics == DELTA:
        return
    for rule, poses, least, word in (
        ("motion.end", last, _END_LEAST, "ends"),
        ("motion.start", first, _START_LEAST, "starts"),
    ):
        for places in places_by_task(motion.source).values():
            _check_far(motion, rule, poses, places[np.isfinite(poses[places, 0])], least, word, results)


def _check_far(
    motion: Motion,
    rule: str,
    poses: Floats,
    places: npt.NDArray[np.int64],
    least: float,
    word: str,
    results: Results,
) -> None:
    if len(places) < LEAST_EPISODES:
        return
    results.apply(rule)
    distance = nearest_distance(poses[places])
    limit = max(tukey_limit(distance, floor=_END_FLOOR), least)
    # Beyond the fence, and well beyond the second farthest spread of the others.
    far = places[(distance > limit) & (distance > 2 * float(np.quantile(distance, 0.9)))]
    if len(far):
        value = float(distance.max())
        results.add(
            rule,
            f"episodes {listed(motion.source.episodes[far])}: the arm {word} {value:.0%} of the range away from every "
            "other episode of the task",
            claim=Claim.RISK,
            episodes=motion.source.episodes[far].tolist(),
            value=round(value, 4),
            threshold=round(limit, 4),
            unit="of range",
        )


def nearest_distance(points: Floats) -> Floats:
    """Root mean square distance of each point (E, D) to its nearest neighbour."""
    size = (points**2).sum(axis=1)
    found = np.empty(len(points))
    block = max(1, 20_000_000 // max(len(points), 1))
    for begin in range(0, len(points), block):
        part = points[begin : begin + block]
        squared = size[begin : begin + block, None] + size[None, :] - 2 * part @ points.T
        squared[np.arange(len(part)), begin + np.arange(len(part))] = np.inf
        found[begin : begin + block] = np.maximum(squared.min(axis=1), 0)
    return np.asarray(np.sqrt(found / max(points.shape[1], 1)))
