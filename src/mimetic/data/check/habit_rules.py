"""Rules on how a person operates: commands that shake, long pauses, uneven tempo."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mimetic.data.check.channels import Channels
from mimetic.data.check.idle import longest_pause
from mimetic.data.check.motion import ABSOLUTE, DELTA, Motion
from mimetic.data.check.motion_rules import places_by_task, scaled
from mimetic.data.check.results import Results
from mimetic.data.check.smoothness import roughness
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]

_SHAKE_RATIO, _SHAKE_FLOOR, _SHAKE_FRAMES = 2.5, 0.003, 30
_STILL = 1e-9
"""Roughness, as a share of the range, up to which a reading stands still."""
_PAUSE_S = 1.0
_TEMPO, _TEMPO_EPISODES = 1.7, 20


def check_habits(motion: Motion, results: Results) -> None:
    """Rules `action.shaking`, `motion.pause` and `motion.tempo`.

    Args:
        motion: prepared signals.
        results: where findings go; the idle start of each episode is among its measures already.
    """
    _check_shaking(motion, results)
    main = motion.state if motion.state is not None else motion.action
    if main is None or not main.live.any() or (main is motion.action and motion.semantics == DELTA):
        results.skip("motion.pause", "there is no state, or no channel of it is continuous")
    else:
        _check_pauses(motion, main, results)
    _check_tempo(motion, results)


def _check_shaking(motion: Motion, results: Results) -> None:
    """Whether actions hold fast motion that the arm does not make: a trembling hand, a leader with play."""
    state, action = motion.state, motion.action
    if state is None or action is None or not motion.is_paired or motion.semantics != ABSOLUTE:
        results.skip("action.shaking", "actions and state cannot be compared channel by channel")
        return
    joints = state.live & action.live & ~motion.grippers(action)
    if not joints.any():
        results.skip("action.shaking", "no joint is continuous in both action and state")
        return
    results.apply("action.shaking")
    n = len(motion.source.episodes)
    commanded, ratio = np.full(n, np.nan), np.full(n, np.nan)
    for place, episode, signals in motion.episodes():
        if motion.is_damaged(episode) or len(signals[ACTION]) < _SHAKE_FRAMES:
            continue
        sent = roughness(signals[ACTION] / motion.paired_scale)[joints]
        done = roughness(signals[STATE] / motion.paired_scale)[joints]
        moves = done > _STILL  # what a joint does whose reading stands still is not known; `state.*` tell of it
        if moves.any():
            commanded[place] = np.median(sent[moves])
            ratio[place] = np.median(sent[moves] / done[moves])
    results.measure("action_roughness", commanded)
    results.measure("shaking", ratio)
    with np.errstate(invalid="ignore"):
        bad = (ratio > _SHAKE_RATIO) & (commanded > _SHAKE_FLOOR)
    if bad.any():
        worst = int(np.argmax(np.where(bad, ratio, -1)))
        results.add(
            "action.shaking",
            f"in episodes {listed(motion.source.episodes[bad])} the commands shake up to {ratio[worst]:.1f} times as "
            f"much as the arm does (by {commanded[worst]:.1%} of the range from one frame to the next)",
            episodes=motion.source.episodes[bad].tolist(),
            value=round(float(ratio[worst]), 3),
            threshold=_SHAKE_RATIO,
            unit="times",
        )


def _check_pauses(motion: Motion, main: Channels, results: Results) -> None:
    results.apply("motion.pause")
    seconds = np.full(len(motion.source.episodes), np.nan)
    spans: list[tuple[int, int, int]] = []
    for place, episode, signals in motion.episodes():
        if motion.is_damaged(episode):
            continue
        first, last = longest_pause(scaled(main, signals[main.feature]), motion.fps)
        seconds[place] = (last - first + 1) / motion.fps
        if seconds[place] > _PAUSE_S:
            spans.append((episode, first, last))
    results.measure("longest_pause_s", seconds)
    if spans:
        worst = int(np.nanargmax(seconds))
        episodes = [episode for episode, _, _ in spans]
        results.add(
            "motion.pause",
            f"episodes {listed(episodes)} stop in the middle of the motion, for up to {seconds[worst]:.1f} s "
            f"(episode {motion.source.episodes[worst]})",
            episodes=episodes,
            spans=spans,
            value=round(float(seconds[worst]), 3),
            threshold=_PAUSE_S,
            unit="s",
        )


def _check_tempo(motion: Motion, results: Results) -> None:
    """Durations of one task: a practised operator needs about the same time for it each time."""
    lengths = motion.source.lengths
    told = False
    for task, places in places_by_task(motion.source).items():
        if len(places) < _TEMPO_EPISODES:
            continue
        told = True
        low, high = np.quantile(lengths[places], [0.1, 0.9])
        if low < 1 or high / low <= _TEMPO:
            continue
        slow = places[lengths[places] >= high]
        results.add(
            "motion.tempo",
            f"`{task:.60}` takes {high / low:.1f} times as long in the slowest tenth of the episodes as in the "
            f"quickest ({high / motion.fps:.1f} against {low / motion.fps:.1f} s); the slowest are "
            f"{listed(motion.source.episodes[slow])}",
            episodes=motion.source.episodes[slow].tolist(),
            value=round(float(high / low), 3),
            threshold=_TEMPO,
            unit="times",
        )
    if told:
        results.apply("motion.tempo")
    else:
        results.skip("motion.tempo", f"comparing durations needs {_TEMPO_EPISODES} episodes of a task")
