"""Measures of how smooth a motion is (dataset_quality 6.2).

SAL follows Balasubramanian et al. 2012 and 2015, LDLJ Hogan and Sternad 2009.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SAL_HZ = 10.0
_SAL_SHARE = 0.05
_HIGH_HZ = 2.0
LOW_PASS_HZ = 5.0


def speed(position: Floats, fps: float) -> Floats:
    """Speed (T - 1,) of a path (T, D) per second."""
    return np.asarray(np.linalg.norm(np.diff(position, axis=0), axis=1) * fps)


def sal(profile: Floats, fps: float) -> float:
    """Spectral arc length of a speed profile (T,); higher (nearer to 0) is smoother. NaN without motion."""
    if len(profile) < 4 or not profile.max() > 0:
        return float("nan")
    size = 1 << (int(np.ceil(np.log2(len(profile)))) + 4)
    spectrum = np.abs(np.fft.rfft(profile, size))
    frequency = np.arange(len(spectrum)) * fps / size
    spectrum = spectrum / spectrum.max()
    inside = frequency <= _SAL_HZ
    spectrum, frequency = spectrum[inside], frequency[inside]
    last = int(np.flatnonzero(spectrum >= _SAL_SHARE)[-1])
    spectrum, frequency = spectrum[: last + 1], frequency[: last + 1]
    if last < 1:
        return float("nan")
    step = np.diff(frequency) / (frequency[-1] - frequency[0])
    return -float(np.sqrt(step**2 + np.diff(spectrum) ** 2).sum())


def ldlj(position: Floats, fps: float) -> float:
    """Log dimensionless jerk of a path (T, D); higher is smoother. NaN without motion or below 5 frames."""
    if len(position) < 5:
        return float("nan")
    dt = 1.0 / fps
    peak = float(np.max(np.linalg.norm(np.diff(position, axis=0), axis=1))) / dt
    jerk = np.diff(position, n=3, axis=0) / dt**3
    duration = len(position) * dt
    total = float(np.sum(jerk**2)) * dt
    if not peak > 0 or not total > 0:
        return float("nan")
    return -float(np.log(duration**3 / peak**2 * total))


def low_pass(position: Floats, fps: float, cut_hz: float = LOW_PASS_HZ) -> Floats:
    """A path (T, D) without what is above `cut_hz`; mirrored at its ends, so that they do not ring."""
    mirrored = np.concatenate([position, position[::-1]])
    spectrum = np.fft.rfft(mirrored, axis=0)
    spectrum[np.fft.rfftfreq(len(mirrored), 1.0 / fps) > cut_hz] = 0
    return np.fft.irfft(spectrum, len(mirrored), axis=0)[: len(position)]


def high_frequency_share(position: Floats, fps: float) -> float:
    """Share of the power of velocity above 2 Hz, Hann window, without the mean. NaN without motion."""
    velocity = np.diff(position, axis=0)
    if len(velocity) < 8:
        return float("nan")
    power = (np.abs(np.fft.rfft(velocity * np.hanning(len(velocity))[:, None], axis=0)) ** 2).sum(axis=1)
    frequency = np.fft.rfftfreq(len(velocity), 1.0 / fps)
    whole = float(power[frequency > 0].sum())
    return float(power[frequency > _HIGH_HZ].sum()) / whole if whole > 0 else float("nan")


def chatter(action: Floats) -> float:
    """Mean squared second difference of range-scaled actions (T, D)."""
    second = np.diff(action, n=2, axis=0)
    return float(np.mean(second**2)) if second.size else float("nan")


def roughness(signal: Floats) -> Floats:
    """How far frames lie from the middle between their neighbours, (D,), root mean square; NaN below 3 frames.

    White noise of standard deviation s gives s; slow motion gives next to nothing.

    Args:
        signal: (T, D).
    """
    if len(signal) < 3:
        return np.full(signal.shape[1], np.nan)
    beside = signal[1:-1] - (signal[2:] + signal[:-2]) / 2
    return np.asarray(np.sqrt((beside**2).mean(axis=0) / 1.5))


def path_length(position: Floats) -> tuple[float, float]:
    """L1 path, and the distance out to the farthest frame and from there to the end."""
    path = float(np.abs(np.diff(position, axis=0)).sum())
    far = int(np.argmax(np.abs(position - position[0]).sum(axis=1)))
    direct = np.abs(position[far] - position[0]).sum() + np.abs(position[-1] - position[far]).sum()
    return path, float(direct)


def dither(position: Floats, fps: float, idle: float) -> float:
    """Share of the time in 2 s windows that move and get nowhere (displacement / path < 0.3)."""
    width = round(2 * fps)
    if len(position) <= width:
        return float("nan")
    steps = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(position, axis=0), axis=1))])
    path = steps[width:] - steps[:-width]
    direct = np.linalg.norm(position[width:] - position[:-width], axis=1)
    moving = path > idle
    return float(np.mean(moving & (direct < 0.3 * path)))
