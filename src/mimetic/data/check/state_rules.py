"""Rules on the readings themselves: frozen, stuck, spikes, jumps, velocity, no motion (dataset_quality 5.4 to 5.6)."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from mimetic.data.check.channels import DEGREES, RADIANS, Channels
from mimetic.data.check.finding import Claim
from mimetic.data.check.motion import ABSOLUTE, DELTA, UNKNOWN, Motion
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_RULES = ("state.frozen", "state.stuck", "state.spike", "state.jump", "state.velocity", "motion.none")
FROZEN_S = 0.5
_MOVES, _MOVES_UNKNOWN, _MOVES_GRIPPER = 0.01, 0.05, 0.10
SPIKE, _SPIKE_FRAMES, _TYPICAL = 0.3, 3, 6.0
_GRIPPER_SPIKES = 2
"""More of them in one episode are a gripper that flutters, which has its own rule."""
JUMP = 0.5
_OFTEN = 0.5
SERVO_RAD_S = 8.0
_VELOCITY_SHARE = 0.02
_FEW_FRAMES = 20
"""In fewer frames even a steady move is no longer than a few of its own steps."""
_JOINT_WORDS = re.compile(
    r"\.pos$|joint|shoulder|elbow|wrist|waist|forearm|_pan|_lift|_flex|_roll|motor", re.IGNORECASE
)
_TURN = {RADIANS: 2 * np.pi, DEGREES: 360.0}


def check_state(motion: Motion, results: Results) -> None:
    """Rules `state.*` and `motion.none`; frames that are found wrong are left out of later measures."""
    state = motion.state
    if state is None:
        results.skip(_RULES, "there is no float `observation.state`")
        return
    results.apply("state.frozen", "state.stuck", "state.spike", "state.jump", "motion.none")
    _check_frozen(motion, state, results)
    _check_stuck(motion, state, results)
    _check_spikes(motion, results)
    _check_jumps(motion, state, results)
    _check_velocity(motion, state, results)
    _check_motion(motion, results)


def _check_frozen(motion: Motion, state: Channels, results: Results) -> None:
    action = motion.action
    if action is None or motion.semantics == DELTA or state.live.sum() == 0:
        results.skip("state.frozen", "there is no action that tells whether the arm was meant to move")
        return
    least = motion.frames(FROZEN_S)
    need = (_MOVES_UNKNOWN if motion.semantics == UNKNOWN else _MOVES) * action.scale
    found: list[tuple[int, int, int]] = []
    for _, episode, signals in motion.episodes():
        same = (np.diff(signals[STATE], axis=0) == 0).all(axis=1)
        for first, last in _runs_of(same):
            last += 1  # equal to the row before: one row more than steps
            if last - first + 1 <= least or first == 0 or last == len(same):
                continue
            moves = np.ptp(signals[ACTION][first : last + 1], axis=0)
            if (moves[action.live] > need[action.live]).any():
                found.append((episode, first, last))
                motion.mark_damaged(episode, first, last + 1)
    if found:
        episode, first, last = max(found, key=lambda item: item[2] - item[1])
        results.add(
            "state.frozen",
            f"the state of episodes {listed(sorted({item[0] for item in found}))} stands still while the action moves "
            f"(episode {episode}: {last - first + 1} frames from {first} on)",
            episodes=[item[0] for item in found],
            spans=found,
            feature=STATE,
            value=float(last - first + 1),
            threshold=float(least),
            unit="frames",
            repair=results.delete(item[0] for item in found),
        )


def _check_stuck(motion: Motion, state: Channels, results: Results) -> None:
    action = motion.action
    if action is None or not motion.is_paired or motion.semantics == DELTA:
        results.skip("state.stuck", "action and state have no channels in common")
        return
    scale = motion.paired_scale
    need = np.maximum(_MOVES * scale, 3 * state.resolution)
    # A gripper may hold something.
    need = np.where(motion.grippers(state), np.maximum(need, _MOVES_GRIPPER * scale), need)
    found: dict[int, list[int]] = defaultdict(list)
    for _, episode, signals in motion.episodes():
        stuck = (np.ptp(signals[STATE], axis=0) == 0) & (np.ptp(signals[ACTION], axis=0) > need)
        stuck &= ~state.is_discrete & ~action.is_dead
        for channel in np.flatnonzero(stuck).tolist():
            found[channel].append(episode)
    for channel, episodes in found.items():
        if set(episodes) <= {e for f in results.findings if f.id == "state.frozen" for e in f.episodes}:
            continue
        name = f"{STATE}[{state.names[channel]}]"
        results.add(
            "state.stuck",
            f"`{name}` never changes in episodes {listed(episodes)} while its command moves",
            episodes=episodes,
            feature=name,
            value=0.0,
            repair="" if len(episodes) == len(motion.source.episodes) else results.delete(episodes),
        )
        for episode in episodes:
            motion.mark_damaged(episode, 0, motion.source.length(episode))


def _check_spikes(motion: Motion, results: Results) -> None:
    for channels in (motion.state, motion.action if motion.semantics == ABSOLUTE else None):
        if channels is not None and channels.live.any():
            _spikes_of(motion, channels, results)


def _spikes_of(motion: Motion, channels: Channels, results: Results) -> None:
    residuals: dict[int, Floats] = {}
    typical: list[Floats] = []
    for _, episode, signals in motion.episodes():
        signal = signals[channels.feature]
        residual = np.abs(signal - running_median(signal, 7))
        typical.append(np.quantile(residual, 0.9, axis=0))
        residuals[episode] = residual.astype(np.float32)
    if not residuals:
        return
    usual = 1.6 * np.median(np.stack(typical), axis=0)
    limit = np.maximum(SPIKE * channels.scale, _TYPICAL * usual)
    turn = _TURN.get(channels.unit, np.nan)
    grippers = motion.grippers(channels)
    hits: dict[int, dict[int, list[tuple[int, int]]]] = defaultdict(dict)
    for episode, residual in residuals.items():
        over = (residual > limit) & channels.live
        if episode in motion.damaged:
            over &= ~motion.damaged[episode][:, None]
        for channel in np.flatnonzero(over.any(axis=0)).tolist():
            short = [(a, b) for a, b in _runs_of(over[:, channel]) if b - a + 1 <= _SPIKE_FRAMES]
            if short and not (grippers[channel] and len(short) > _GRIPPER_SPIKES):
                hits[channel][episode] = short
    for channel, by_episode in hits.items():
        name = f"{channels.feature}[{channels.names[channel]}]"
        worst = max(by_episode, key=lambda episode: float(residuals[episode][:, channel].max()))
        value = max(float(residuals[worst][a : b + 1, channel].max()) for a, b in by_episode[worst])
        if len(by_episode) > _OFTEN * len(residuals) and len(residuals) >= LEAST_EPISODES:
            results.add(
                "state.spike",
                f"`{name}` jumps out and back in {len(by_episode)} of {len(residuals)} episodes: a fast channel or a "
                "coarse encoder rather than single faults",
                feature=name,
                value=round(value, 4),
                threshold=round(float(limit[channel]), 4),
            )
            continue
        spans = [(episode, a, b) for episode, found in by_episode.items() for a, b in found]
        is_turn = abs(value / turn - 1) < 0.1 if np.isfinite(turn) else False
        results.add(
            "state.spike",
            f"`{name}` jumps out and back in episodes {listed(list(by_episode))} (episode {worst}, frame "
            f"{by_episode[worst][0][0]}: by {value:.4g}" + (", a full turn)" if is_turn else ")"),
            claim=Claim.DEFECT if is_turn else Claim.RISK,
            episodes=by_episode,
            spans=spans,
            feature=name,
            value=round(value, 4),
            threshold=round(float(limit[channel]), 4),
        )
        for episode, a, b in spans:
            motion.mark_damaged(episode, a - 1, b + 1)


def _check_jumps(motion: Motion, state: Channels, results: Results) -> None:
    live = state.live & ~motion.grippers(state)  # a gripper closes in one frame at low rates
    steps: list[Floats] = []
    for _, _, signals in motion.episodes():
        steps.append(np.quantile(np.abs(np.diff(signals[STATE], axis=0)), 0.9, axis=0))
    if not steps:
        return
    limit = np.maximum(JUMP * state.scale, _TYPICAL * 1.6 * np.median(np.stack(steps), axis=0))
    found: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for _, episode, signals in motion.episodes():
        signal = signals[STATE]
        step = np.diff(signal, axis=0)
        over = (np.abs(step) > limit) & live
        if episode in motion.damaged:
            wrong = motion.damaged[episode]
            over &= ~(wrong[1:] | wrong[:-1])[:, None]
        for frame, channel in np.argwhere(over).tolist():
            before = np.median(signal[max(0, frame - 4) : frame + 1, channel])
            after = np.median(signal[frame + 1 : frame + 6, channel])
            if abs(after - before) > limit[channel] and not _commanded(motion, signals, frame, channel):
                found[channel].append((episode, frame + 1, float(step[frame, channel])))
    for channel, hits in found.items():
        name = f"{STATE}[{state.names[channel]}]"
        episodes = sorted({hit[0] for hit in hits})
        often = len(episodes) > _OFTEN * len(steps) and len(steps) >= LEAST_EPISODES
        episode, frame, value = max(hits, key=lambda hit: abs(hit[2]))
        results.add(
            "state.jump",
            f"`{name}` steps by {value:.4g} in one frame and stays there in episodes {listed(episodes)} (episode "
            f"{episode}, frame {frame})",
            claim=Claim.RISK if often else Claim.DEFECT,
            episodes=episodes,
            spans=[(hit[0], hit[1], hit[1]) for hit in hits],
            feature=name,
            value=round(value, 4),
            threshold=round(float(limit[channel]), 4),
            repair="" if often else results.delete(episodes),
        )
        for number in episodes:
            motion.mark_damaged(number, 0, motion.source.length(number))


def _commanded(motion: Motion, signals: dict[str, Floats], frame: int, channel: int) -> bool:
    """Whether the action makes a step of this size, too: the arm did what it was told."""
    if motion.semantics != ABSOLUTE or motion.action is None:
        return False
    lag, scale = max(motion.lag or 0, 0), motion.paired_scale[channel]
    part = signals[ACTION][max(0, frame - lag - 3) : frame + 3, channel]
    if len(part) > 1 and float(np.ptp(part)) > SPIKE * scale:
        return True
    # Or it went at once to where it had been sent, as when a leader is first followed.
    before, after = signals[STATE][frame : frame + 2, channel]
    near = float(np.abs(part - after).min())
    return bool(near < 0.1 * scale and near < 0.5 * abs(after - before))


def _check_velocity(motion: Motion, state: Channels, results: Results) -> None:
    unit = {RADIANS: 1.0, DEGREES: 180.0 / np.pi}.get(state.unit)
    if unit is None:
        results.skip("state.velocity", f"the unit of the state is not an angle ({state.unit})")
        return
    results.apply("state.velocity")
    live = state.live & ~motion.grippers(state)
    named = np.asarray([bool(_JOINT_WORDS.search(name)) for name in state.names])
    limit = SERVO_RAD_S * unit
    peak = np.full(len(motion.source.episodes), np.nan)
    share = np.full((len(motion.source.episodes), len(live)), np.nan)
    for place, episode, signals in motion.episodes():
        velocity = np.abs(np.diff(signals[STATE], axis=0)) * motion.fps
        if episode in motion.damaged:
            wrong = motion.damaged[episode]
            velocity[wrong[1:] | wrong[:-1]] = 0.0
        peak[place] = float(velocity[:, live].max(initial=0.0))
        share[place] = (velocity > limit).mean(axis=0)
    results.measure("peak_speed", peak)
    by_claim: dict[Claim, dict[int, list[int]]] = defaultdict(dict)
    for channel in np.flatnonzero(live).tolist():
        fast = np.flatnonzero(share[:, channel] > 0)
        if not len(fast):
            continue
        bad = np.flatnonzero(share[:, channel] > _VELOCITY_SHARE) if named[channel] else np.empty(0, dtype=np.int64)
        rows = bad if len(bad) else fast
        by_claim[Claim.DEFECT if len(bad) else Claim.RISK][channel] = rows.tolist()
    for claim, by_channel in by_claim.items():
        concerned = sorted({row for found in by_channel.values() for row in found})
        names = [state.names[channel] for channel in by_channel]
        value = max(float(share[row, channel]) for channel, found in by_channel.items() for row in found)
        results.add(
            "state.velocity",
            f"{', '.join(names[:4])}{' ...' if names[4:] else ''}: faster than {limit:.0f} "
            f"{'rad' if unit == 1.0 else 'deg'}/s in episodes {listed(motion.source.episodes[concerned])}, in up to "
            f"{value:.1%} of the frames",
            claim=claim,
            episodes=motion.source.episodes[concerned].tolist(),
            feature=f"{STATE}[{names[0]}]",
            value=round(value, 4),
            threshold=_VELOCITY_SHARE if claim is Claim.DEFECT else 0.0,
        )


def _check_motion(motion: Motion, results: Results) -> None:
    """`motion.none`: judged on the state; on the action, too, only if it is absolute."""
    sources = [
        channels for channels in (motion.state, motion.action if motion.semantics == ABSOLUTE else None) if channels
    ]
    still: list[int] = []
    for _, episode, signals in motion.episodes():
        moving = motion.source.length(episode) < _FEW_FRAMES
        for channels in sources:
            signal = signals[channels.feature]
            extent = np.ptp(running_median(signal, 5), axis=0)
            jitter = np.median(np.abs(np.diff(signal, axis=0)), axis=0)
            moves = (extent >= 8 * jitter) & (extent > _MOVES * channels.scale) & ~channels.is_dead
            alive = ~channels.is_dead
            moving |= bool(moves.sum() >= max(0.1 * alive.sum(), 1e-9))
        if not moving:
            still.append(episode)
    live = any(channels.live.any() for channels in sources)
    if still and live:
        results.add(
            "motion.none",
            f"nothing moves in episodes {listed(still)}",
            episodes=still,
            value=0.0,
            threshold=0.1,
            repair=results.delete(still),
        )
        for episode in still:
            motion.mark_damaged(episode, 0, motion.source.length(episode))


def running_median(signal: Floats, width: int) -> Floats:
    """Median of `width` (odd) rows around each row of (T, D); the ends are repeated."""
    half = width // 2
    padded = np.concatenate([np.repeat(signal[:1], half, axis=0), signal, np.repeat(signal[-1:], half, axis=0)])
    windows = np.stack([padded[shift : shift + len(signal)] for shift in range(width)])
    return np.asarray(np.partition(windows, half, axis=0)[half])


def _runs_of(flags: Bools) -> list[tuple[int, int]]:
    """First and last place of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [(int(start), int(end) - 1) for start, end in zip(edges[::2], edges[1::2], strict=True)]
