"""Cameras that moved between episodes, and cameras under each other's name (spec/dataset_quality.md 7.4, 7.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, counted, delete_command, ranges, runs_in, runs_of_numbers
from mimetic.data.check.pictures.sample import EpisodePictures
from mimetic.data.check.pictures.shift import STEADY_SHARE, Background, likeness
from mimetic.data.check.pictures.viewpoint import Views, find_turn, find_views

RULES = ("image.camera_moved", "image.cameras_swapped")
NOTE, WARN, OTHER = 0.005, 0.015, 0.05
"""Shifts as shares of the picture's width."""
FEWEST = 4
_FEWEST_THUMBS = 5
_MOST_RUNS = 3
_ALIKE, _STEREO, _BETTER, _FEWEST_SWAPPED = 0.6, 0.45, 0.15, 3
_SCENES = 0.5
_UNLIKE = 0.8
"""Agreement of what is steady in both pictures, beside that of most episodes, below which the view is another one. Over
24 sets of the simulated cell it never fell below 0.86; with the camera elsewhere it was mostly 0.5 to 0.8."""
_LOW, _TURNED, _ZOOMED = 0.75, 0.7, 0.015
_IMPACT = (
    "the commonest cause of a policy with a good loss whose arm misses or stands still; put the live camera where most "
    "episodes saw it"
)
Example = tuple[tuple[int, ...], Background, tuple[float, float]]
"""Episodes, the background of one of them, and its shift in pixels of the full picture."""


@dataclass(frozen=True)
class Moved:
    """What was found about one camera's place.

    Args:
        findings: about it.
        shift_px: shift by episode, in pixels of the full picture; only those that could be judged.
        background: the place of most episodes, for people.
        others: background of an episode of each other place, with the episodes.
    """

    findings: Sequence[Finding] = ()
    shift_px: dict[int, float] = field(default_factory=dict)
    background: Background | None = None
    others: Sequence[Example] = ()


def check_moved(camera: Camera, left_out: Collection[int]) -> Moved:
    """Compare the place of one colour camera between episodes."""
    seen = [item for item in camera.without(left_out) if len(item.frames) >= _FEWEST_THUMBS]
    seen = _of_one_size(seen)
    if len(seen) < FEWEST:
        return Moved([_not_checked(camera, f"fewer than {FEWEST} episodes can be compared")])
    steady = [item for item in seen if item.background and item.background.share >= STEADY_SHARE]
    if len(steady) < max(FEWEST, len(seen) / 2):
        reason = "most of its picture changes all the time: it is on the wrist, or in a hand"
        return Moved([_not_checked(camera, reason)])
    views = find_views([item.background for item in steady if item.background])
    if views.members.sum() < FEWEST or views.agrees.mean() < _SCENES:
        reason = "its background differs from episode to episode, so there is no place to compare with"
        return Moved([_not_checked(camera, reason)])
    full = camera.episodes[0].size[1] or camera.declared[1]
    scale = full / views.reference.picture.shape[1]
    shift_px = {
        item.episode: shift.distance * scale
        for item, shift, agrees in zip(steady, views.shifts, views.agrees, strict=True)
        if agrees
    }
    turned, findings, others = _turns(camera, steady, views, scale)
    moves, more = _moves(camera, steady, views, scale, turned)
    findings, others = [*findings, *moves], [*others, *more]
    shift_px = {episode: shift for episode, shift in shift_px.items() if episode not in turned}
    return Moved(findings, shift_px, views.reference, others)


def _turns(
    camera: Camera, steady: Sequence[EpisodePictures], views: Views, scale: float
) -> tuple[set[int], list[Finding], list[Example]]:
    """Stretches of episodes that agree badly with the others until they are turned or made smaller."""
    agreement = np.asarray([shift.agreement for shift in views.shifts])
    low = agreement < _LOW * float(np.median(agreement[views.members]))
    turned: set[int] = set()
    findings: list[Finding] = []
    others: list[Example] = []
    if not low.any() or runs_in(low) > _MOST_RUNS:
        return turned, findings, others
    for first, last in runs_of_numbers(np.flatnonzero(low).tolist()):
        background = steady[(first + last) // 2].background
        turn = find_turn(views.reference, background) if background is not None else None
        if turn is None or background is None or (abs(turn.angle) < _TURNED and abs(turn.zoom - 1) < _ZOOMED):
            continue
        episodes = tuple(steady[place].episode for place in range(first, last + 1))
        turned |= set(episodes)
        width = views.reference.picture.shape[1]
        share = turn.share + turn.shift.distance / width
        claim = Claim.DEFECT if share > OTHER else Claim.RISK if share > WARN else Claim.FACT
        how = [f"turned by {abs(turn.angle):.1f} degrees"] if abs(turn.angle) >= _TURNED else []
        how += [f"{100 * abs(turn.zoom - 1):.0f} % {'nearer' if turn.zoom > 1 else 'farther'}"] * (
            abs(turn.zoom - 1) >= _ZOOMED
        )
        findings.append(
            Finding(
                id="image.camera_moved",
                claim=claim,
                message=f"{camera.name} is {' and '.join(how)} in {counted(len(episodes))} ({ranges(episodes)}), "
                "compared with the other episodes",
                impact=_IMPACT,
                repair=delete_command(camera.root, episodes) if claim is Claim.DEFECT else "",
                episodes=episodes,
                feature=camera.key,
                value=round(share * width * scale, 2),
                threshold=round((OTHER if claim is Claim.DEFECT else WARN) * width * scale, 2),
                unit="px",
            )
        )
        others.append((episodes, background, (turn.shift.x * scale, turn.shift.y * scale)))
    return turned, findings, others


def _moves(
    camera: Camera, steady: Sequence[EpisodePictures], views: Views, scale: float, turned: Collection[int]
) -> tuple[list[Finding], list[Example]]:
    straight = np.asarray([item.episode not in turned for item in steady])
    distance = np.where(straight, np.nan_to_num(views.distance), 0.0)
    findings, others = [], []
    far, middling = distance > OTHER, (distance > WARN) & (distance <= OTHER)
    slightly = (distance > NOTE) & (distance <= WARN) & ~views.members
    for flagged, claim in ((far, Claim.DEFECT), (middling, Claim.RISK), (slightly, Claim.FACT)):
        if not flagged.any():
            continue
        if claim is not Claim.FACT and runs_in(flagged) > _MOST_RUNS:
            claim = Claim.FACT  # moved again and again: it was meant
        findings.append(_moved(camera, steady, views, flagged, claim, scale))
        if claim is not Claim.FACT:
            others.append(_example(steady, views, flagged, scale))
    shared = np.asarray([shift.shared for shift in views.shifts])
    unlike = ~views.agrees & straight & (shared < _UNLIKE * float(np.median(shared[views.members])))
    if unlike.any():
        often = runs_in(unlike) > _MOST_RUNS
        episodes = tuple(steady[place].episode for place in np.flatnonzero(unlike).tolist())
        findings.append(
            Finding(
                id="image.camera_moved",
                claim=Claim.FACT if often else Claim.RISK,
                message=f"{camera.name} shows another scene, or the same from another side, in "
                f"{counted(len(episodes))} ({ranges(episodes)})",
                impact="two views under one name: the policy needs enough episodes of each",
                episodes=episodes,
                feature=camera.key,
            )
        )
        others.append(_example(steady, views, unlike, scale))
    return findings, others


def _moved(
    camera: Camera,
    steady: Sequence[EpisodePictures],
    views: Views,
    flagged: npt.NDArray[np.bool_],
    claim: Claim,
    scale: float,
) -> Finding:
    places = np.flatnonzero(flagged).tolist()
    episodes = tuple(steady[place].episode for place in places)
    x = float(np.median([views.shifts[place].x for place in places])) * scale
    y = float(np.median([views.shifts[place].y for place in places])) * scale
    distance = float(np.hypot(x, y))
    width = views.reference.picture.shape[1] * scale
    last = max(item.episode for item in steady)
    when = f"from episode {episodes[0]} on" if episodes[-1] == last and runs_in(flagged) == 1 else ranges(episodes)
    what = {
        Claim.DEFECT: "stands in another place",
        Claim.RISK: "was moved",
        Claim.FACT: "is not always in the same place",
    }[claim]
    return Finding(
        id="image.camera_moved",
        claim=claim,
        message=f"{camera.name} {what} in {counted(len(episodes))} ({when}): its picture is shifted by "
        f"{distance:.1f} px of {width:.0f} ({x:+.1f}, {y:+.1f}) against the other episodes",
        impact=_IMPACT,
        repair=delete_command(camera.root, episodes) if claim is Claim.DEFECT else "",
        episodes=episodes,
        feature=camera.key,
        value=round(distance, 2),
        threshold=round((OTHER if claim is Claim.DEFECT else WARN if claim is Claim.RISK else NOTE) * width, 2),
        unit="px",
    )


def _example(steady: Sequence[EpisodePictures], views: Views, flagged: npt.NDArray[np.bool_], scale: float) -> Example:
    places = np.flatnonzero(flagged).tolist()
    middle = int(places[len(places) // 2])
    background = steady[middle].background
    assert background is not None
    shift = views.shifts[middle]
    return tuple(steady[place].episode for place in places), background, (shift.x * scale, shift.y * scale)


def _not_checked(camera: Camera, reason: str) -> Finding:
    return Finding(
        id="image.camera_moved",
        claim=Claim.NOT_CHECKED,
        message=f"whether {camera.name} was moved between episodes is not known: {reason}",
        feature=camera.key,
    )


def _of_one_size(items: Sequence[EpisodePictures]) -> list[EpisodePictures]:
    sizes = [item.background.picture.shape for item in items if item.background]
    usual = max(set(sizes), key=sizes.count, default=None)
    return [item for item in items if item.background and item.background.picture.shape == usual]


def check_swapped(cameras: Sequence[Camera], left_out: dict[str, set[int]]) -> tuple[list[Finding], set[int]]:
    """Episodes in which two cameras stand under each other's name.

    Returns:
        Findings, and the episodes concerned.
    """
    findings: list[Finding] = []
    swapped: set[int] = set()
    for one, two in combinations(cameras, 2):
        episodes = _swapped(one, two, left_out[one.key] | left_out[two.key])
        if episodes:
            swapped.update(episodes)
            findings.append(
                Finding(
                    id="image.cameras_swapped",
                    claim=Claim.DEFECT,
                    message=f"{one.name} and {two.name} are swapped in {counted(len(episodes))} ({ranges(episodes)})",
                    impact="the policy sees each view under the wrong name; USB cameras may change places at a restart",
                    repair=delete_command(one.root, episodes),
                    episodes=episodes,
                    feature=f"{one.key}, {two.key}",
                    value=float(len(episodes)),
                    threshold=float(_FEWEST_SWAPPED),
                    unit="episodes",
                )
            )
    return findings, swapped


def _swapped(one: Camera, two: Camera, left_out: Collection[int]) -> tuple[int, ...]:
    first = {item.episode: item.background.picture for item in one.without(left_out) if item.background}
    second = {item.episode: item.background.picture for item in two.without(left_out) if item.background}
    episodes = sorted(set(first) & set(second))
    if len(episodes) <= 2 * _FEWEST_SWAPPED or one.declared != two.declared:
        return ()
    a, b = [first[episode] for episode in episodes], [second[episode] for episode in episodes]
    if len({picture.shape for picture in [*a, *b]}) > 1:
        return ()
    a_usual, b_usual = _typical(a), _typical(b)
    if likeness(a_usual, b_usual) >= _STEREO:
        return ()
    flagged = []
    for picture, other in zip(a, b, strict=True):
        own, crossed = likeness(picture, a_usual), likeness(picture, b_usual)
        back = likeness(other, a_usual)
        flagged.append(
            crossed >= _ALIKE and own < _ALIKE and crossed >= own + _BETTER and back > likeness(other, b_usual)
        )
    if sum(flagged) < _FEWEST_SWAPPED or runs_in(flagged) > _MOST_RUNS:
        return ()
    return tuple(episode for episode, is_swapped in zip(episodes, flagged, strict=True) if is_swapped)


def _typical(pictures: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Median of the pictures that look like most others."""
    places = np.unique(np.rint(np.linspace(0, len(pictures) - 1, min(24, len(pictures)))).astype(int))
    alike = {
        int(place): [other for other in places if likeness(pictures[place], pictures[other]) >= _ALIKE]
        for place in places
    }
    group = max(alike.values(), key=len)
    return np.asarray(np.median([pictures[place] for place in group], axis=0), dtype=np.uint8)
