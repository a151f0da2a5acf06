"""Rules on timestamps and on measured clocks (dataset_quality 4); one cause gives one finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mimetic.data.check.clocks import Clocks
from mimetic.data.check.finding import Claim
from mimetic.data.check.results import Results
from mimetic.data.check.source import CheckSource
from mimetic.data.episodes import listed
from mimetic.names import TIMESTAMP

Floats = npt.NDArray[np.float64]

_RULES = ("time.monotonic", "time.start", "time.grid", "time.gap", "time.rate", "time.drift")
_CLOCK_RULES = ("time.true_rate", "time.jitter", "time.skew")
TOLERANCE_S = 1e-4
RATE = 0.05
TRUE_RATE = 0.03
_JITTER_RISK, _JITTER_DEFECT = 0.1, 0.3
_SKEW_RISK_S, _SKEW_DEFECT_S = 0.015, 0.050
_STALL_PERIODS = 3.0


@dataclass
class _Found:
    """Episodes with one fault, and the worst value."""

    episodes: list[int] = field(default_factory=list)
    spans: list[tuple[int, int, int]] = field(default_factory=list)
    worst: float = 0.0
    worst_episode: int = 0
    frames: int = 0

    def add(self, episode: int, value: float, span: tuple[int, int] | None = None, frames: int = 1) -> None:
        if not self.episodes or abs(value) > abs(self.worst):
            self.worst, self.worst_episode = value, episode
        self.episodes.append(episode)
        self.frames += frames
        if span is not None:
            self.spans.append((episode, *span))


def check_times(source: CheckSource, results: Results) -> None:
    """Rules `time.*` that need timestamps only."""
    rows, fps = source.rows, source.fps
    if rows is None or TIMESTAMP not in rows.columns or not fps:
        results.skip(_RULES, "`timestamp` cannot be read" if rows is not None else "the rows were not read")
        return
    results.apply(*_RULES)
    found: dict[str, _Found] = {name: _Found() for name in (*_RULES, "grid_risk")}
    for episode in source.episodes.tolist():
        bounds = source.bounds(episode)
        if bounds is not None:
            _look_at(rows.columns[TIMESTAMP][bounds[0] : bounds[1]], episode, fps, found)
    say: dict[str, Callable[[_Found], str]] = {
        "time.monotonic": lambda f: f"timestamps do not rise in {f.frames} places",
        "time.start": lambda f: f"timestamps begin at {f.worst:.3f} s instead of 0 (episode {f.worst_episode})",
        "time.rate": lambda f: (
            f"timestamps run at {fps / f.worst:.2f} Hz, {fps} Hz are declared (episode {f.worst_episode})"
        ),
        "time.drift": lambda f: f"timestamps drift by up to {f.worst:.3f} s to the end (episode {f.worst_episode})",
        "time.grid": lambda f: (
            f"timestamps are up to {f.worst:.4f} s, half a frame or more, off frame / fps (episode {f.worst_episode})"
        ),
        "time.gap": lambda f: (
            f"{f.frames} steps are longer than 1.5 frames, up to {f.worst:.3f} s (episode {f.worst_episode})"
        ),
    }
    limits = {"time.rate": RATE, "time.gap": 1.5 / fps, "time.monotonic": 0.0}
    for rule, text in say.items():
        item = found[rule]
        if item.episodes:
            results.add(
                rule,
                f"episodes {listed(item.episodes)}: {text(item)}",
                episodes=item.episodes,
                spans=item.spans,
                feature=TIMESTAMP,
                value=round(item.worst, 6),
                threshold=round(limits.get(rule, 0.5 / fps), 6),
                unit="" if rule == "time.rate" else "s",
            )
    near = found["grid_risk"]
    if near.episodes:
        results.add(
            "time.grid",
            f"timestamps of episodes {listed(near.episodes)} are up to {near.worst * 1000:.2f} ms off frame / fps; "
            f"LeRobot loads them from tolerance_s={_tolerance(near.worst):g} on",
            claim=Claim.RISK,
            episodes=near.episodes,
            spans=near.spans,
            feature=TIMESTAMP,
            value=round(near.worst, 7),
            threshold=TOLERANCE_S,
            unit="s",
            impact="loaders with the usual tolerance of 1e-4 s refuse these episodes",
        )


def _tolerance(worst: float) -> float:
    """The smallest round tolerance that loads: two digits, rounded up."""
    digits = int(np.floor(np.log10(worst))) - 1
    return float(np.ceil(worst / 10.0**digits) * 10.0**digits)


def _look_at(stored: npt.NDArray[np.float32], episode: int, fps: int, found: dict[str, _Found]) -> None:
    times = stored.astype(np.float64)
    if not np.isfinite(times).all() or not len(times):
        return  # data.nonfinite tells
    steps = np.diff(times)
    falls = np.flatnonzero(steps <= 0)
    if len(falls):
        found["time.monotonic"].add(episode, float(steps.min()), (int(falls[0]), int(falls[-1]) + 1), len(falls))
        return
    if abs(times[0]) >= 0.5 / fps:
        found["time.start"].add(episode, float(times[0]), (0, len(times) - 1))
        times = times - times[0]
    if len(times) > 1 and abs(float(np.median(steps)) * fps - 1) > RATE:
        found["time.rate"].add(episode, float(np.median(steps)) * fps, (0, len(times) - 1))
        return
    # float32 holds a time of 2000 s to 0.1 ms only, so steps are not compared; whole frames of the grid are.
    slack = np.spacing(np.abs(stored)).astype(np.float64)
    gaps = np.flatnonzero(steps > 1.5 / fps)
    if len(gaps):
        found["time.gap"].add(episode, float(steps.max()), (int(gaps[0]), int(gaps[-1]) + 1), len(gaps))
    off = np.maximum(np.abs(times - np.arange(len(times)) / fps) - slack, 0.0)
    worst = float(off.max())
    if worst >= 0.5 / fps:
        is_drift = not len(gaps) and off[-1] >= 0.5 / fps and float(np.abs(steps - np.median(steps)).max()) < 0.25 / fps
        first = int(np.argmax(off >= 0.5 / fps))
        found["time.drift" if is_drift else "time.grid"].add(episode, worst, (first, len(times) - 1))
    elif worst > TOLERANCE_S:
        first = int(np.argmax(off > TOLERANCE_S))
        found["grid_risk"].add(episode, worst, (first, len(times) - 1))


def check_clocks(source: CheckSource, results: Results) -> None:
    """Rules on the recorder's measured clocks."""
    clocks, fps = source.clocks, source.fps
    if clocks is None or not fps:
        results.skip(
            _CLOCK_RULES,
            "the recorder stored no measured clock (meta/mimetic/clocks), and timestamps are frame_index / fps "
            "whatever the loop did; --video looks for repeated camera frames",
        )
        return
    results.apply("time.true_rate", "time.jitter")
    slow, stalls, rough, uneven = _Found(), _Found(), _Found(), _Found()
    rates = np.full(len(source.episodes), np.nan)
    jitter = np.full(len(source.episodes), np.nan)
    for place, episode in enumerate(source.episodes.tolist()):
        times = clocks.loop_s[clocks.of(episode)]
        periods = np.diff(times[np.isfinite(times)])
        if len(periods) < 2:
            continue
        middle = float(np.median(periods))
        rates[place] = 1.0 / middle if middle > 0 else np.nan
        jitter[place] = float(periods.std() / max(periods.mean(), 1e-9))
        if abs(middle * fps - 1) > TRUE_RATE:
            slow.add(episode, rates[place])
            continue
        late = np.flatnonzero(periods > _STALL_PERIODS / fps)
        if float(np.quantile(periods, 0.99)) > 2 / fps and len(periods) >= 20:
            stalls.add(episode, float(np.quantile(periods, 0.99)) * fps, _ends(periods > 2 / fps))
        elif jitter[place] > _JITTER_DEFECT or len(late):
            rough.add(episode, float(periods.max()) * fps, _ends(periods > _STALL_PERIODS / fps))
        elif jitter[place] > _JITTER_RISK:
            uneven.add(episode, jitter[place])
    results.measure("true_rate_hz", rates)
    results.measure("jitter", jitter)
    if slow.episodes:
        rate = float(np.nanmedian(rates[np.isin(source.episodes, slow.episodes)]))
        results.add(
            "time.true_rate",
            f"episodes {listed(slow.episodes)} ran at {rate:.1f} Hz by the recorder's clock and are stored as {fps} "
            f"Hz: replayed {fps / rate:.2f} times as fast",
            episodes=slow.episodes,
            value=round(rate, 3),
            threshold=float(fps),
            unit="Hz",
        )
    if stalls.episodes:
        results.add(
            "time.true_rate",
            f"episodes {listed(stalls.episodes)}: the slowest 1 % of the periods last {stalls.worst:.1f} frames",
            episodes=stalls.episodes,
            spans=stalls.spans,
            value=round(stalls.worst, 3),
            threshold=2.0,
            unit="periods",
        )
    if rough.episodes:
        results.add(
            "time.jitter",
            f"episodes {listed(rough.episodes)}: the loop stood still for up to {rough.worst:.1f} periods",
            episodes=rough.episodes,
            spans=rough.spans,
            value=round(rough.worst, 3),
            threshold=_STALL_PERIODS,
            unit="periods",
        )
    if uneven.episodes:
        results.add(
            "time.jitter",
            f"episodes {listed(uneven.episodes)}: periods vary by {uneven.worst:.0%}",
            claim=Claim.RISK,
            episodes=uneven.episodes,
            value=round(uneven.worst, 3),
            threshold=_JITTER_RISK,
        )
    _check_skew(source, clocks, results)


def _ends(bad: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    places = np.flatnonzero(bad)
    return (int(places[0]), int(places[-1]) + 1) if len(places) else None


def _check_skew(source: CheckSource, clocks: Clocks, results: Results) -> None:
    if not clocks.cameras:
        results.skip("time.skew", "the recorder stored no times of pictures")
        return
    results.apply("time.skew")
    for name, times in clocks.cameras.items():
        late = _Found()
        for episode in source.episodes.tolist():
            rows = clocks.of(episode)
            age = np.abs(times[rows] - clocks.loop_s[rows])
            age = age[np.isfinite(age)]
            if len(age) and float(np.median(age)) > _SKEW_RISK_S:
                late.add(episode, float(np.median(age)))
        if late.episodes:
            is_bad = late.worst > _SKEW_DEFECT_S
            results.add(
                "time.skew",
                f"`{name}`: pictures of episodes {listed(late.episodes)} are {late.worst * 1000:.0f} ms away from "
                f"their rows in the median (episode {late.worst_episode})",
                claim=Claim.DEFECT if is_bad else Claim.RISK,
                episodes=late.episodes,
                feature=name,
                value=round(late.worst, 4),
                threshold=_SKEW_DEFECT_S if is_bad else _SKEW_RISK_S,
                unit="s",
            )
