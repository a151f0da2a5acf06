"""Where an episode begins and ends to move: the net-motion measure of spec/dataset_quality.md 6.1.

Robust to jitter: not the speed of a frame counts, but how far the joints get within half a second, in units of each
joint's range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mimetic.data.edit.data_task import native_column
from mimetic.data.edit.source import EditSource
from mimetic.data.parquet import read_table
from mimetic.errors import DatasetFormatError
from mimetic.names import STATE

Floats = npt.NDArray[np.float64]
WINDOW_S = 0.5
_LEAST_EPS, _IDLE_SHARE = 0.02, 0.2
_DISCRETE_RANGE, _DISCRETE_VALUES = 1e-9, 5


@dataclass(frozen=True, kw_only=True)
class MotionScale:
    """What counts as motion in one dataset.

    Args:
        channels: channels that are looked at; discrete ones (an open or closed gripper) are not.
        range: range of each of them.
        eps: net motion below which a frame may be idle.
        typical: net motion that most frames stay below (95 %).
    """

    channels: npt.NDArray[np.int64]
    range: Floats
    eps: float
    typical: float

    @property
    def threshold(self) -> float:
        """Net motion below which a frame is idle."""
        return max(self.eps, _IDLE_SHARE * self.typical)


def net_motion(state: Floats, window: int) -> Floats:
    """How far the (scaled) state gets within the window that begins at each frame, (frames - window,) at least (0,)."""
    if len(state) <= window:
        return np.zeros(0)
    return np.asarray(np.linalg.norm(state[window:] - state[:-window], axis=1), dtype=np.float64)


def motion_scale(states: list[Floats], fps: int) -> MotionScale:
    """Judge a whole dataset, since a short precise episode would look restless in its own range.

    Args:
        states: (frames, joints) of each episode.
        fps: frame rate [Hz].
    """
    everything = np.concatenate(states)
    spread = np.quantile(everything, 0.99, axis=0) - np.quantile(everything, 0.01, axis=0)
    distinct = np.asarray([len(np.unique(everything[:, joint])) for joint in range(everything.shape[1])])
    channels = np.flatnonzero((spread >= _DISCRETE_RANGE) & (distinct >= _DISCRETE_VALUES))
    window = max(round(WINDOW_S * fps), 1)
    motions = [net_motion(state[:, channels] / spread[channels], window) for state in states]
    moving = [motion for motion in motions if len(motion)]
    if not len(channels) or not moving:
        return MotionScale(channels=channels, range=spread[channels], eps=np.inf, typical=0.0)
    quiet = float(np.quantile([np.quantile(motion, 0.10) for motion in moving], 0.25))
    return MotionScale(
        channels=channels,
        range=spread[channels],
        eps=max(_LEAST_EPS, 2 * quiet),
        typical=float(np.quantile(np.concatenate(moving), 0.95)),
    )


def moving_spans(source: EditSource, *, keep_s: float, min_cut_s: float) -> dict[int, tuple[int, int]]:
    """First frame, and frame after the last, that are worth keeping of each episode.

    An episode without any motion stays whole: that is a fault to look at, not a wait to cut.

    Args:
        source: the dataset.
        keep_s: standing still that stays at both ends [s].
        min_cut_s: shorter waits stay.

    Raises:
        DatasetFormatError: there is no `observation.state`.
    """
    feature = source.features.get(STATE)
    if feature is None or not feature.is_numeric:
        raise DatasetFormatError(
            f"`{source.root}` has no `{STATE}` by which motion could be judged",
            "cut a fixed number of frames with `--operation.by=frames --operation.head=N`",
        )
    states: dict[int, Floats] = {}
    held: tuple[object, Floats] | None = None
    for episode, place in source.rows.items():
        if held is None or held[0] != place.path:
            column = read_table(place.path, [STATE])[STATE]
            values = native_column(column, feature, name=STATE, where=str(place.path))
            held = (place.path, np.nan_to_num(values.reshape(len(values), -1).astype(np.float64)))
        states[episode] = held[1][place.start : place.stop]
    scale = motion_scale(list(states.values()), source.fps)
    return {
        episode: span_of(state, scale, source.fps, keep_s=keep_s, min_cut_s=min_cut_s)
        for episode, state in states.items()
    }


def span_of(state: Floats, scale: MotionScale, fps: int, *, keep_s: float, min_cut_s: float) -> tuple[int, int]:
    """The part of one episode that moves, with `keep_s` of stillness at both ends.

    Args:
        state: (frames, joints).
        scale: of the dataset.
        fps: frame rate [Hz].
        keep_s: stillness that stays [s].
        min_cut_s: what is shorter is not cut [s].
    """
    window = max(round(WINDOW_S * fps), 1)
    scaled = state[:, scale.channels] / scale.range
    motion = net_motion(scaled, window) if len(scale.channels) else np.zeros(0)
    moves = np.flatnonzero(motion >= scale.threshold)
    if not len(moves):
        return 0, len(state)
    # A window moves as soon as motion enters it at its end: inside, the frame is sought where the way begins (ends).
    first, last = int(moves[0]), int(moves[-1])
    from_first = np.linalg.norm(scaled[first : first + window + 1] - scaled[first], axis=1)
    to_last = np.linalg.norm(scaled[last : last + window + 1] - scaled[last + window], axis=1)
    begin = first + max(int(np.argmax(from_first >= scale.threshold / 2)) - 1, 0)
    end = last + int(np.flatnonzero(to_last >= scale.threshold / 2)[-1]) + 2
    keep, least = round(keep_s * fps), round(min_cut_s * fps)
    start, stop = max(begin - keep, 0), min(end + keep, len(state))
    return (start if start >= max(least, 1) else 0, stop if len(state) - stop >= max(least, 1) else len(state))
