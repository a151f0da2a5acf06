"""Groups of episodes that a camera saw from one place, and how far the others are from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import numpy.typing as npt
from PIL import Image

from mimetic.data.check.pictures.shift import Background, Shift, shift_between, view_of

SAME_SHARE = 0.005
"""Shift within which two episodes were seen from one place, as a share of the width."""
AGREES = 0.4
"""Least agreement of two pictures for their shift to mean anything; unrelated ones stay below it."""
_SAMPLED = 16
_ANGLES = (-8.0, -5.0, -3.5, -2.0, -1.0, 0.0, 1.0, 2.0, 3.5, 5.0, 8.0)
_ZOOMS = (0.9, 0.95, 1.0, 1.05, 1.1)
_FINE_ANGLES, _FINE_ZOOMS = (-0.6, -0.3, 0.0, 0.3, 0.6), (0.98, 1.0, 1.02)
_BETTER = 1.15
"""How much better two pictures must agree after a turn for it to be believed."""


@dataclass(frozen=True)
class Turn:
    """How a camera was turned about its axis, or brought nearer.

    Args:
        angle: anticlockwise rotation of the picture [degrees].
        zoom: how much larger everything is.
        shift: what is left to move.
    """

    angle: float
    zoom: float
    shift: Shift

    @property
    def share(self) -> float:
        """How far the picture moves at its left and right edge, as a share of its width."""
        return 0.5 * float(np.hypot(np.deg2rad(self.angle), self.zoom - 1.0))


@dataclass(frozen=True)
class Views:
    """How the episodes of one camera see the scene.

    Args:
        reference: background of the largest group.
        members: (E,) whether the episode belongs to that group.
        shifts: (E,) shift against it, in pixels of the thumbnail.
    """

    reference: Background
    members: npt.NDArray[np.bool_]
    shifts: Sequence[Shift]

    @property
    def agrees(self) -> npt.NDArray[np.bool_]:
        """(E,) whether the episode shows the same scene, shifted or not."""
        return np.asarray([shift.agreement >= AGREES for shift in self.shifts])

    @property
    def distance(self) -> npt.NDArray[np.float64]:
        """(E,) length of the shift in shares of the width; NaN where the scene differs."""
        width = self.reference.picture.shape[1]
        away = np.asarray([shift.distance / width for shift in self.shifts])
        return np.where(self.agrees, away, np.nan)


def find_views(backgrounds: Sequence[Background]) -> Views:
    """Compare the backgrounds of all episodes with that of the largest group.

    Args:
        backgrounds: one an episode, all of one size; at least one.
    """
    shape = backgrounds[0].picture.shape
    assert len(shape) == 2
    sampled = np.unique(np.rint(np.linspace(0, len(backgrounds) - 1, min(_SAMPLED, len(backgrounds)))).astype(int))
    views = {int(place): view_of(backgrounds[place]) for place in sampled}
    near: dict[int, list[int]] = {place: [place] for place in views}
    for one, two in combinations(views, 2):
        if _near(shift_between(views[one], views[two]), shape[1]):
            near[one].append(two)
            near[two].append(one)
    middle = max(near, key=lambda place: len(near[place]))
    reference = _merged([backgrounds[place] for place in near[middle]])
    origin = view_of(reference)
    shifts = [shift_between(origin, view_of(background)) for background in backgrounds]
    members = np.asarray([_near(shift, shape[1]) for shift in shifts])
    return Views(reference, members, shifts)


def find_turn(reference: Background, background: Background) -> Turn | None:
    """The rotation and zoom that make a background agree with another; None when none does clearly better.

    Tried one after the other, first in large steps: small pictures are turned back in less than a millisecond.
    """
    origin = view_of(reference)
    plain = shift_between(origin, view_of(background))
    best = Turn(0.0, 1.0, plain)
    for angles, zooms in ((_ANGLES, _ZOOMS), (_FINE_ANGLES, _FINE_ZOOMS)):
        start = best
        for angle, zoom in product(angles, zooms):
            turn = (start.angle + angle, start.zoom * zoom)
            shift = shift_between(origin, view_of(_turned_back(background, *turn)))
            if shift.agreement > best.shift.agreement:
                best = Turn(*turn, shift)
    is_clear = best.shift.agreement >= max(AGREES, _BETTER * plain.agreement)
    return best if is_clear else None


def _turned_back(background: Background, angle: float, zoom: float) -> Background:
    height, width = background.picture.shape

    def turned(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        image = Image.fromarray(values)
        if zoom != 1.0:
            back = (zoom, 0.0, width / 2 * (1 - zoom), 0.0, zoom, height / 2 * (1 - zoom))
            image = image.transform((width, height), Image.Transform.AFFINE, back, Image.Resampling.BILINEAR)
        return np.asarray(image.rotate(-angle, Image.Resampling.BILINEAR), dtype=np.uint8)

    # What comes in from outside of the picture is unknown, not black.
    inside = turned(np.full((height, width), 255, dtype=np.uint8)) > 250
    steady = turned(background.steady.astype(np.uint8) * 255) > 127
    return Background(turned(background.picture), steady & inside)


def _near(shift: Shift, width: int) -> bool:
    return shift.agreement >= AGREES and shift.distance <= max(SAME_SHARE * width, 0.5)


def _merged(backgrounds: Sequence[Background]) -> Background:
    picture = np.median([item.picture for item in backgrounds], axis=0).astype(np.uint8)
    steady = np.mean([item.steady for item in backgrounds], axis=0) >= 0.5
    return Background(picture, steady)
