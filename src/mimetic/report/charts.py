"""The pictures of an open-loop report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mimetic.report.document import Document, Joint, Step, Trace
from mimetic.report.figure import drawing, to_png, to_svg
from mimetic.report.style import LIGHT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {"policy": "policy", "hold": "hold still", "mean": "mean action"}
LINES = {
    "recorded": "recorded",
    "executed": "predicted and executed",
    "replaced": "predicted, replaced by the next chunk",
    "hold": "hold still",
}
MOST_POINTS = 1200
"""Points of a line in a chart; a longer episode is thinned evenly."""
MOST_CHUNKS = 150
"""Chunks in a chart; of more, every second, third, ... is drawn."""

_MARKS = {"policy": "o", "hold": "s", "mean": "D"}
_DASHES: dict[str, Any] = {"policy": "-", "hold": (0, (1.5, 2.0)), "mean": (0, (5.0, 2.5))}
_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Charts:
    """All pictures of one evaluation.

    Args:
        error_by_joint: SVG element, empty when no joint moves.
        error_by_steps_ahead: SVG element, empty when chunks have one step.
        motion: SVG elements by trace and joint.
        files: PNG files by name: a file a joint of the first trace, then the summaries.
    """

    error_by_joint: str
    error_by_steps_ahead: str
    motion: tuple[tuple[str, ...], ...]
    files: Mapping[str, bytes]


def draw_charts(document: Document) -> Charts:
    """Draw everything that the numbers allow.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    files: dict[str, bytes] = {}
    with drawing():
        motion = []
        for number, trace in enumerate(document.traces):
            row = []
            for index, joint in enumerate(document.joints):
                figure = joint_motion(trace, index, joint, fps=document.fps, steps=document.n_action_steps)
                row.append(to_svg(figure, f"Recorded and predicted action of {joint.name} in episode {trace.episode}"))
                if number == 0:
                    files[f"{index:02d}_{_file_name(joint.name)}.png"] = to_png(_with_legend(figure))
            motion.append(tuple(row))
        summaries = {
            "error_by_joint": (error_by_joint(document.joints), "Error of the policy and of both baselines by joint"),
            "error_by_steps_ahead": (error_by_horizon(document.horizon), "Error by steps ahead"),
        }
        elements = dict.fromkeys(summaries, "")
        for name, (summary, label) in summaries.items():
            if summary is not None:
                elements[name] = to_svg(summary, label)
                files[f"{name}.png"] = to_png(summary)
    return Charts(**elements, motion=tuple(motion), files=files)


def joint_motion(trace: Trace, index: int, joint: Joint, *, fps: float, steps: int) -> Figure:
    """Recorded action of one joint over an episode, with the chunks predicted along the way.

    Chunks are drawn one after the other as a robot would execute them; what it would not execute is faint.

    Args:
        trace: the episode.
        index: the joint's place in the trace.
        joint: the joint.
        fps: frame rate [Hz].
        steps: of a chunk that are executed.
    """
    frames, steps = trace.recorded.shape[0], max(1, steps)
    chosen = _one_after_the_other(trace.starts, steps)
    chosen = chosen[:: max(1, math.ceil(len(chosen) / MOST_CHUNKS))]
    thin = max(1, math.ceil(frames / MOST_POINTS))
    figure, axes = _axes(5.2, 1.95, left=0.55, right=0.1, top=0.26, bottom=0.36)
    executed, replaced, hold = _Broken(), _Broken(), _Broken()
    for number in chosen:
        start = int(trace.starts[number])
        chunk = trace.predicted[number, : frames - start, index]
        times = (start + np.arange(len(chunk))) / fps
        last = min(steps, len(chunk)) - 1
        pose = float(trace.hold[number, index])
        executed.add(_thinned(times[: last + 1], thin), _thinned(chunk[: last + 1], thin))
        replaced.add(_thinned(times[last:], thin), _thinned(chunk[last:], thin))
        hold.add([times[0], times[last]], [pose, pose])
    starts = trace.starts[chosen]
    axes.plot(
        _thinned(np.arange(frames) / fps, thin),
        _thinned(trace.recorded[:, index], thin),
        color=LIGHT["ink"],
        lw=1.1,
        label=LINES["recorded"],
    )
    policy = LIGHT["policy"]
    axes.plot(*executed.line(), color=policy, label=LINES["executed"])
    axes.plot(*replaced.line(), color=policy, alpha=0.4, label=LINES["replaced"])
    axes.plot(*hold.line(), color=LIGHT["hold"], ls=_DASHES["hold"], label=LINES["hold"])
    size = 3.5 if len(chosen) <= 40 else 1.8
    axes.plot(starts / fps, trace.predicted[chosen, 0, index], "o", color=policy, ms=size, clip_on=False)
    axes.set_xlim(0, max(frames - 1, 1) / fps)
    axes.set_ylim(*_range(axes))
    _ticks(axes, x=8, y=4)
    axes.set_xlabel("time [s]", loc="right", labelpad=1)
    axes.set_title(_shorten(joint.name, 36), loc="left", weight="bold", x=-0.4 / 4.55)
    if math.isfinite(joint.skill_hold):
        axes.set_title(
            f"error {_change(joint.skill_hold)} against holding still", loc="right", size=8, color=LIGHT["muted"]
        )
    return figure


class _Broken:
    """Pieces of one line, with gaps between them."""

    def __init__(self) -> None:
        self.xs: list[float] = []
        self.ys: list[float] = []

    def add(self, xs: Sequence[float] | NDArray[Any], ys: Sequence[float] | NDArray[Any]) -> None:
        self.xs += [*map(float, xs), math.nan]
        self.ys += [*map(float, ys), math.nan]

    def line(self) -> tuple[list[float], list[float]]:
        return self.xs, self.ys


def _one_after_the_other(starts: NDArray[np.int64], gap: int) -> list[int]:
    chosen: list[int] = []
    for index, start in enumerate(starts):
        if not chosen or start >= starts[chosen[-1]] + gap:
            chosen.append(index)
    return chosen


def _thinned(values: NDArray[Any], thin: int) -> NDArray[Any]:
    """Every so many values and the last."""
    if thin == 1 or len(values) < 2:
        return values
    return np.append(values[:-1:thin], values[-1])


def _range(axes: Axes) -> tuple[float, float]:
    """Limits that do not blow up the noise of a joint that stands still."""
    low, high = axes.get_ylim()
    least = max(1e-6, 1e-3 * max(abs(low), abs(high)))
    middle = (low + high) / 2
    return (low, high) if high - low >= least else (middle - least, middle + least)


def _with_legend(figure: Figure) -> Figure:
    """The chart of a joint with room for a legend: in a file it stands alone."""
    width, height = figure.get_size_inches()
    room = 0.2
    left, bottom, wide, high = figure.axes[0].get_position().bounds
    figure.set_size_inches(width, height + room)
    figure.axes[0].set_position(
        (left, (bottom * height + room) / (height + room), wide, high * height / (height + room))
    )
    figure.legend(loc="lower center", ncols=4, fontsize=6.5, handlelength=1.8, columnspacing=1.2, borderpad=0.2)
    return figure


def error_by_joint(joints: tuple[Joint, ...]) -> Figure | None:
    """Errors of policy and baselines, one row a joint, in deviations of the recorded action; None if none moves."""
    moving = [joint for joint in joints if not joint.is_still]
    if not moving:
        return None
    names = [_shorten(joint.name, 40) for joint in moving]
    rows = np.arange(len(moving))
    error = {source: np.array([joint.error[source] for joint in moving]) for source in ("mean", "hold", "policy")}
    left = 0.25 + 0.067 * max(len(name) for name in names)
    figure, axes = _axes(8.6, 0.85 + 0.2 * len(moving), left=left, right=0.15, top=0.3, bottom=0.42)
    colours = [LIGHT["hold" if joint.is_worse else "policy"] for joint in moving]
    axes.hlines(rows, error["policy"], error["hold"], colors=colours, alpha=0.4, lw=1.6)
    for source, values in error.items():
        axes.plot(
            values, rows, _MARKS[source], color=LIGHT[source], ms=4 if source == "mean" else 5, label=LABELS[source]
        )
    finite = [value for values in error.values() for value in values if math.isfinite(value)]
    axes.set_xlim(0, 1.05 * max([1e-9, *finite]))
    axes.set_ylim(len(moving) - 0.4, -0.6)
    _ticks(axes, x=8)
    axes.set_yticks(rows, names, color=LIGHT["ink"])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("mean error [σ, standard deviations of the recorded action]", loc="right")
    _legend(axes)
    return figure


def error_by_horizon(steps: tuple[Step, ...]) -> Figure | None:
    """Errors of policy and baselines by how far ahead they reach; None if there is nothing to draw."""
    finite = [value for step in steps for value in step.error.values() if math.isfinite(value)]
    if len(steps) < 2 or not finite:
        return None
    figure, axes = _axes(8.6, 2.7, left=0.5, right=0.15, top=0.3, bottom=0.42)
    for source in ("mean", "hold", "policy"):
        axes.plot(
            [step.seconds for step in steps],
            [step.error[source] for step in steps],
            color=LIGHT[source],
            ls=_DASHES[source],
            label=LABELS[source],
        )
    axes.set_xlim(0, steps[-1].seconds)
    axes.set_ylim(0, 1.06 * max([1e-9, *finite]))
    _ticks(axes, x=10, y=4)
    axes.set_xlabel("steps ahead [s]", loc="right")
    axes.set_ylabel("error [σ]", loc="top")
    _legend(axes)
    return figure


def _axes(width: float, height: float, *, left: float, right: float, top: float, bottom: float) -> tuple[Figure, Axes]:
    """Axes in a figure of their own; all lengths in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    inner = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    return figure, figure.add_axes(inner)


def _ticks(axes: Axes, *, x: int, y: int = 0) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(x, steps=_STEPS))
    if y:
        axes.yaxis.set_major_locator(MaxNLocator(y, steps=_STEPS))


def _legend(axes: Axes) -> None:
    """The policy first, in a row above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)


def _change(skill: float) -> str:
    if skill < -9.99:
        return f"×{1.0 - skill:.0f}"
    return f"{-100 * skill:+.0f} %".replace("-", "−")


def _shorten(name: str, most: int) -> str:
    """A name for one line of a picture."""
    words = "".join(letter if letter.isprintable() else " " for letter in name)
    return words if len(words) <= most else words[: most - 1] + "…"


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:60]
