"""Where a camera stands, compared between episodes: backgrounds, and how far one is shifted against another.

Phase correlation sees the shift of a whole picture to a fraction of a pixel and does not mind its brightness: only the
phase of each frequency counts, and a shift turns all phases in proportion (spec/dataset_quality.md 7.4). But an arm
that rests elsewhere in another episode makes a peak of its own. So every peak is tried on the picture, and the shift
counts that brings the most edges to cover each other: of the room there are more than of the arm.

More is meant by area, not by contrast. On a pale table, a dark bin that is put back by hand held most of the picture's
contrast, and where it had gone, the camera seemed to have gone (4.9 of 96 px, by a camera that had moved by less than
one). So each part of the picture is measured by its own contrast, and one thing is one voice among many.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

STEADY_STD = 8.0
STEADY_SHARE = 0.40
_PASSED = 0.15
"""Frequencies that count [cycles per pixel]: noise and the codec fill those above."""
_BLUR = 6
_TAPER = 0.125
"""Share of each side over which the border fades out. A window over the whole picture would weigh the middle, where the
arm is, and lose the room around it."""
_NEAR = 3
"""Reach of what counts as one part of the picture [px]: no more than a third of a bin in a picture of 96 px, or the bin
would outweigh the table beside it again. The same places agreed to 0.47 at least with 3, to 0.39 with 6."""
_FAINT = 0.01
"""Contrast below which a part counts less: noise and the codec, a level or two of grey. The squares of the simulated
cell's table have three times as much."""
_PEAKS = 6
_ALONE = 3
_CLEARLY = 1.05


@dataclass(frozen=True)
class Background:
    """What stays of an episode's pictures when the arm moves.

    Args:
        picture: (h, w) uint8, median over time.
        steady: (h, w), pixels that hardly change over time.
    """

    picture: npt.NDArray[np.uint8]
    steady: npt.NDArray[np.bool_]

    @property
    def share(self) -> float:
        """Share of the picture that is steady."""
        return float(self.steady.mean())


@dataclass(frozen=True)
class View:
    """A background made ready for comparison.

    Args:
        detail: (h, w) float32, how much brighter each pixel is than what is around it, in units of the contrast
            there; 0 where the picture is not steady. Independent of the exposure, and of which thing is the darkest.
        steady: (h, w) bool, where the picture is steady.
        spectrum: of the detail, its borders faded out.
    """

    detail: Floats
    steady: npt.NDArray[np.bool_]
    spectrum: npt.NDArray[np.complex64]


@dataclass(frozen=True)
class Shift:
    """How far a picture is moved against another.

    Args:
        x: to the right [px].
        y: downwards [px].
        agreement: share of the edges that cover each other then: 1 for the same picture, about 0.2 for unrelated ones.
        shared: the same, of the edges where both pictures are steady. An arm that hides other parts of the room in
            another episode lowers the agreement, but not this.
    """

    x: float
    y: float
    agreement: float
    shared: float

    @property
    def distance(self) -> float:
        """Length of the shift [px]."""
        return float(np.hypot(self.x, self.y))


def background_of(thumbs: npt.NDArray[np.uint8]) -> Background:
    """Background of one episode.

    Args:
        thumbs: (n, h, w) uint8, pictures spread over the episode.
    """
    picture = np.median(thumbs, axis=0).astype(np.uint8)
    # float32 sums of bytes are exact enough here, and a quarter of the memory
    mean = thumbs.mean(axis=0, dtype=np.float32)
    square = (thumbs.astype(np.float32) ** 2).mean(axis=0)
    return Background(picture, np.sqrt(np.maximum(square - mean**2, 0.0)) < STEADY_STD)


def view_of(background: Background) -> View:
    """Make a background ready for comparison."""
    picture = background.picture.astype(np.float32)
    around = _blurred(picture, _BLUR)
    # What moves fades out softly: a hard edge around it would be found again in the other picture, at no shift.
    weight = np.clip(2.0 * _blurred(background.steady.astype(np.float32), 2) - 1.0, 0.0, 1.0)
    relief = ((picture - around) / (around + 4.0) * weight).astype(np.float32)
    contrast = np.sqrt(np.maximum(_blurred(relief**2, _NEAR), 0.0))
    detail = (relief / (contrast + _FAINT)).astype(np.float32)
    height, width = picture.shape
    window = _taper(height)[:, None] * _taper(width)[None]
    return View(detail, weight > 0.5, np.asarray(np.fft.rfft2(detail * window), dtype=np.complex64))


def shift_between(one: View, two: View) -> Shift:
    """How far the second picture is moved against the first; both have one size."""
    height, width = one.detail.shape
    cross = two.spectrum * np.conj(one.spectrum)
    cross = cross / (np.abs(cross) + 1e-9) * _weight((height, width))
    surface = np.fft.irfft2(cross, s=(height, width)).astype(np.float32)
    best = Shift(0.0, 0.0, *_overlap(one, two, 0, 0))
    for y, x in _peaks(surface):
        right, down = (x + width // 2) % width - width // 2, (y + height // 2) % height - height // 2
        if abs(right) > width // 2 - 1 or abs(down) > height // 2 - 1:
            continue
        agreement, shared = _overlap(one, two, right, down)
        # The weight makes each peak a Gaussian, whose top three logarithms give exactly.
        dy = down + _top(surface[(y - 1) % height, x], surface[y, x], surface[(y + 1) % height, x])
        dx = right + _top(surface[y, (x - 1) % width], surface[y, x], surface[y, (x + 1) % width])
        if max(abs(right), abs(down)) <= 1:  # the same as no shift, told more exactly
            if best.distance <= 1.5:
                best = Shift(dx, dy, max(best.agreement, agreement), max(best.shared, shared))
        elif agreement > best.agreement * (_CLEARLY if best.distance <= 1.5 else 1.0):
            best = Shift(dx, dy, agreement, shared)
    return best


def _overlap(one: View, two: View, right: int, down: int) -> tuple[float, float]:
    """Share of the edges of two pictures that cover each other when the second is moved back by whole pixels.

    Returns:
        Of all edges, and of those where both pictures are steady.
    """
    height, width = one.detail.shape
    top, left = max(0, -down), max(0, -right)
    here = np.s_[top : height - max(0, down), left : width - max(0, right)]
    there = np.s_[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)]
    a, b, both = one.detail[here], two.detail[there], one.steady[here] & two.steady[there]
    common = np.where(a * b > 0, np.minimum(np.abs(a), np.abs(b)), 0.0)
    either = np.maximum(np.abs(a), np.abs(b))
    return _share(common, either), _share(common[both], either[both])


def _share(part: Floats, whole: Floats) -> float:
    total = float(whole.sum(dtype=np.float64))
    return float(part.sum(dtype=np.float64)) / total if total > 0 else 0.0


def _peaks(surface: Floats) -> list[tuple[int, int]]:
    """Row and column of the highest peaks, each alone in its neighbourhood."""
    rest = surface.copy()
    height, width = rest.shape
    found = []
    for _ in range(_PEAKS):
        y, x = divmod(int(rest.argmax()), width)
        found.append((y, x))
        rows = np.arange(y - _ALONE, y + _ALONE + 1) % height
        columns = np.arange(x - _ALONE, x + _ALONE + 1) % width
        rest[np.ix_(rows, columns)] = -np.inf
    return found


def _taper(length: int) -> Floats:
    """Window that is 1 except near its ends, where it falls to 0 as a cosine does."""
    ends = max(1, round(length * _TAPER))
    window = np.ones(length, dtype=np.float32)
    rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(ends) + 0.5) / ends)
    window[:ends], window[length - ends :] = rise, rise[::-1]
    return window


def likeness(one: npt.NDArray[np.uint8], two: npt.NDArray[np.uint8]) -> float:
    """Correlation of two pictures of one size, -1..1; 0 when one of them has no structure."""
    a, b = (values.astype(np.float64) - values.mean() for values in (one, two))
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum() / size) if size > 0 else 0.0


@lru_cache(maxsize=8)
def _weight(shape: tuple[int, int]) -> Floats:
    """Weight of each frequency of a picture (h, w)."""
    rows, columns = np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1])[None]
    return np.exp(-0.5 * (rows**2 + columns**2) / _PASSED**2).astype(np.float32)


def _top(before: float, top: float, after: float) -> float:
    """Place of the top of a Gaussian through three neighbouring values, from the middle one."""
    low, middle, high = (float(np.log(max(value, 1e-12))) for value in (before, top, after))
    bend = low - 2 * middle + high
    return float(np.clip(0.5 * (low - high) / bend, -0.5, 0.5)) if abs(bend) > 1e-12 else 0.0


def _blurred(values: Floats, reach: int) -> Floats:
    """Mean over a square of 2 reach + 1 pixels around each pixel."""
    for axis in (0, 1):
        length = values.shape[axis]
        reach = min(reach, length - 1)
        padded = np.pad(values, [(reach + 1, reach) if side == axis else (0, 0) for side in (0, 1)], mode="edge")
        sums = np.cumsum(padded, axis=axis, dtype=np.float64)
        upper = np.take(sums, range(2 * reach + 1, 2 * reach + 1 + length), axis=axis)
        values = ((upper - np.take(sums, range(length), axis=axis)) / (2 * reach + 1)).astype(np.float32)
    return values
