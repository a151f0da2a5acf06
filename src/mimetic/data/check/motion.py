"""What all measures of motion share: channels, episodes that can be measured, and what the action means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mimetic.data.check.channels import COUNTS, GRIPPER_WORDS, Channels, find_gripper, load_channels
from mimetic.data.check.lag import LagCurve, lag_curve
from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

ABSOLUTE, DELTA, UNKNOWN = "absolute", "delta or velocity", "unknown"
_RELATED = 0.6
_DELTA_MEAN, _DELTA_CORRELATION = 0.2, 0.5
_LEAST_FRAMES = 3


@dataclass
class Motion:
    """State and action of a dataset, prepared once.

    Args:
        source: the dataset.
        state: channels of `observation.state`; None without a usable one.
        action: channels of `action`; None without a usable one.
        is_paired: both have the same width and names, so that channels can be compared one by one.
        semantics: what the action means.
        lag: frames by which the state trails the action; None unless the action is absolute.
        curves: misfit by shift, by place in `source.episodes`.
        gripper: channel number in the action (else the state), and whether it was guessed.
        damaged: frames that other rules have found to be wrong, by episode; measures leave them out.
    """

    source: CheckSource
    state: Channels | None
    action: Channels | None
    is_paired: bool = False
    semantics: str = UNKNOWN
    lag: int | None = None
    curves: dict[int, LagCurve] = field(default_factory=dict)
    gripper: tuple[str, int, bool] | None = None
    damaged: dict[int, Bools] = field(default_factory=dict)

    @property
    def fps(self) -> int:
        """Declared rate [Hz]."""
        return self.source.fps

    def frames(self, seconds: float) -> int:
        """Whole frames of a duration, at least one."""
        return max(1, round(seconds * self.fps))

    def episodes(self) -> Iterator[tuple[int, int, dict[str, npt.NDArray[np.float64]]]]:
        """(place in `source.episodes`, episode, signals by feature) of each episode that can be measured."""
        for place, episode in enumerate(self.source.episodes.tolist()):
            signals = self.signals(episode)
            if signals and len(next(iter(signals.values()))) >= _LEAST_FRAMES:
                yield place, episode, signals

    def signals(self, episode: int) -> dict[str, Floats]:
        """State and action (T, D) of an episode; empty when it has no rows or values that are not finite."""
        columns = self.source.columns_of(episode)
        found: dict[str, Floats] = {}
        for channels in (self.state, self.action):
            if channels is None or channels.feature not in columns:
                continue
            signal = channels.signal(columns[channels.feature])
            if not np.isfinite(signal).all():
                return {}
            found[channels.feature] = signal
        return found

    def grippers(self, channels: Channels) -> Bools:
        """Channels (D,) that are grippers, by name or guess: they move as no joint does."""
        found = np.asarray([bool(GRIPPER_WORDS.search(name)) for name in channels.names], dtype=np.bool_)
        if (
            self.gripper is not None
            and self.gripper[1] < len(found)
            and (self.is_paired or self.gripper[0] == channels.feature)
        ):
            found[self.gripper[1]] = True
        return found

    @property
    def paired_scale(self) -> Floats:
        """Range of each channel for comparing action and state: the state's, the action's where that is dead."""
        assert self.state is not None
        assert self.action is not None
        return np.where(self.state.is_dead, self.action.scale, self.state.scale)

    def mark_damaged(self, episode: int, first: int, last: int) -> None:
        """Leave frames first..last of an episode out of later measures."""
        length = self.source.length(episode)
        mask = self.damaged.setdefault(episode, np.zeros(length, dtype=np.bool_))
        mask[max(first, 0) : last + 1] = True

    def is_damaged(self, episode: int) -> bool:
        """Whether a fault was found in the episode that distorts its measures."""
        return episode in self.damaged


def prepare(source: CheckSource, results: Results) -> Motion:
    """Load the channels and infer units, semantics, lag and gripper; tells them as facts."""
    state, action = load_channels(source, STATE), load_channels(source, ACTION)
    motion = Motion(source=source, state=state, action=action)
    for channels in (state, action):
        if channels is not None:
            _tell_units(channels, results)
    if state is not None and action is not None:
        named = {name for name in state.names if not name.isdigit()}
        motion.is_paired = list(state.names) == list(action.names) or (
            len(state.names) == len(action.names) and not (named and set(action.names) - set(state.names))
        )
        _infer_semantics(motion)
        results.add("action.semantics", _describe(motion), value=motion.semantics)
        results.facts["action"] = {
            "semantics": motion.semantics,
            "lag_frames": motion.lag,
            "lag_ms": None if motion.lag is None else round(1000 * motion.lag / source.fps),
        }
    _find_gripper(motion, results)
    return motion


def _tell_units(channels: Channels, results: Results) -> None:
    results.add(
        "units.inferred",
        f"`{channels.feature}`: {channels.unit} by its largest value",
        feature=channels.feature,
        value=channels.unit,
    )
    results.facts.setdefault("features", {})[channels.feature] = {
        "unit": channels.unit,
        "channels": [
            {
                "name": str(name),
                "q01": float(channels.stats["q01"][i]),
                "q99": float(channels.stats["q99"][i]),
                "min": float(channels.stats["min"][i]),
                "max": float(channels.stats["max"][i]),
                "dead": bool(channels.is_dead[i]),
                "discrete": bool(channels.is_discrete[i]),
                "wraps": bool(np.isfinite(channels.turn[i])),
            }
            for i, name in enumerate(channels.names)
        ],
    }


def _describe(motion: Motion) -> str:
    if motion.semantics == ABSOLUTE and motion.lag is not None:
        late_ms = 1000 * motion.lag / motion.fps
        return f"actions are absolute targets; the state follows {motion.lag} frames ({late_ms:.0f} ms) later"
    if motion.semantics == DELTA:
        return "actions are changes or velocities; they are not compared with the state one by one"
    why = "" if motion.is_paired else ": their channels differ from those of the state"
    return f"what the actions mean could not be inferred{why}; they are not compared with the state one by one"


def _infer_semantics(motion: Motion) -> None:
    state, action = motion.state, motion.action
    assert state is not None
    assert action is not None
    if len(state.names) != len(action.names):
        return
    both = state.live & action.live
    if not both.any():
        return
    places, lags, least = [], [], []
    deltas: list[float] = []
    positions: list[float] = []
    for place, _, signals in motion.episodes():
        s, a = signals[STATE][:, both], signals[ACTION][:, both]
        curve = lag_curve(s, a) if motion.is_paired else None
        if curve is not None:
            motion.curves[place] = curve
            places.append(place)
            lags.append(curve.lag)
            least.append(curve.least)
        if place % 10 == 0 and len(s) > 10:
            deltas.append(_correlation(np.diff(s, axis=0), a[:-1]))
            positions.append(_correlation(s, a))
    # Before the alignment is asked: the velocity of an oscillation is that oscillation again, a little earlier.
    mean, std = action.stats["mean"][both], action.stats["std"][both]
    if deltas and (np.abs(mean) < _DELTA_MEAN * std).mean() > 0.5:
        change, position = float(np.median(deltas)), float(np.median(positions))
        if change > _DELTA_CORRELATION and change > position:
            motion.semantics = DELTA
            return
    if least and 1 - float(np.median(least)) / 2 >= _RELATED:
        related = [lag for lag, error in zip(lags, least, strict=True) if 1 - error / 2 >= _RELATED]
        motion.semantics, motion.lag = ABSOLUTE, int(np.median(related))


def _correlation(first: Floats, second: Floats) -> float:
    """Median correlation of the columns of two (T, D) signals."""
    found = []
    for channel in range(first.shape[1]):
        a, b = first[:, channel], second[:, channel]
        if a.std() > 0 and b.std() > 0:
            found.append(float(np.corrcoef(a, b)[0, 1]))
    return float(np.median(found)) if found else 0.0


def _find_gripper(motion: Motion, results: Results) -> None:
    rows = motion.source.rows
    candidates = []
    for channels in (motion.action, motion.state):
        if channels is not None and rows is not None:
            found = find_gripper(channels, rows.columns[channels.feature])
            if found is not None:
                candidates.append((channels.feature, *found))
    if not candidates:
        return
    motion.gripper = min(candidates, key=lambda item: item[2])
    feature, number, guessed = motion.gripper
    channels = motion.action if motion.action is not None and motion.action.feature == feature else motion.state
    assert channels is not None
    name = f"{feature}[{channels.names[number]}]"
    results.facts["gripper"] = {"channel": name, "guessed": guessed}
    results.add(
        "gripper.channel",
        f"the gripper is `{name}`" + (", guessed by its two-peaked histogram" if guessed else ""),
        feature=name,
    )


def can_measure_velocity(channels: Channels) -> bool:
    """Whether velocities mean something: not for raw encoder counts, whose unit is unknown."""
    return channels.unit != COUNTS
