"""Pictures that show nothing: black, washed out, flat, covered, too dark, blurred (spec/dataset_quality.md 7.1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, counted, delete_command, ranges
from mimetic.data.check.pictures.frame import (
    COVERED_MEAN,
    COVERED_SHARPNESS,
    COVERED_STD,
    LOW_LIGHT_MEAN,
    Look,
)
from mimetic.data.check.pictures.sample import EpisodePictures

RULES = ("image.black", "image.washed_out", "image.flat", "image.covered", "image.low_light", "image.blur")
_MOST = 0.5
_FEWEST = 8
BLUR_SHARE, FINE_SHARE = 0.25, 0.80
_EMPTY_DEPTH = 0.98

_SINGLE: tuple[tuple[str, str, Callable[[Look], bool]], ...] = (
    ("image.black", "black", lambda look: look.is_black),
    ("image.washed_out", "white", lambda look: look.is_washed_out),
    ("image.flat", "of one colour", lambda look: look.is_flat),
)


def check_frames(camera: Camera) -> tuple[list[Finding], set[int]]:
    """Findings on single pictures of one colour camera.

    Returns:
        Findings, and the episodes whose pictures show too little for any comparison.
    """
    findings: list[Finding] = []
    useless: set[int] = set()
    covered = _covered(camera)
    if covered:
        useless |= {item.episode for item in covered}
        findings.append(
            _shows_nothing(camera, "image.covered", "dark and without any detail, as behind a cap,", covered)
        )
    for rule, word, test in _SINGLE:
        mostly: list[EpisodePictures] = []
        partly: list[tuple[EpisodePictures, list[int]]] = []
        for item in camera.episodes:
            if not len(item.frames) or item.episode in useless:
                continue
            hit = [int(frame) for frame, look in zip(item.frames, item.looks, strict=True) if test(look)]
            if len(hit) >= _MOST * len(item.frames):
                mostly.append(item)
            elif hit:
                partly.append((item, hit))
        useless |= {item.episode for item in mostly}
        if mostly:
            findings.append(_shows_nothing(camera, rule, word, mostly))
        if partly:
            findings.append(_sometimes(camera, rule, word, partly))
    findings += _low_light(camera, useless)
    return findings, useless


def check_depth_frames(camera: Camera) -> list[Finding]:
    """Findings on single pictures of a depth camera: those without a measurement."""
    empty = []
    for item in camera.episodes:
        nothing = [look.dark > _EMPTY_DEPTH or look.std == 0.0 for look in item.looks]
        if nothing and float(np.mean(nothing)) >= _MOST:
            empty.append(item)
    return [_shows_nothing(camera, "image.black", "without any depth", empty)] if empty else []


def check_blur(camera: Camera, left_out: Collection[int]) -> tuple[list[Finding], set[int]]:
    """Episodes that are less sharp than the camera's others.

    Returns:
        Findings, and the episodes concerned.
    """
    seen = [item for item in camera.episodes if item.sharp and item.episode not in left_out]
    if len(seen) < _FEWEST:
        return [], set()
    variance = np.asarray([np.median([sharp[0] for sharp in item.sharp]) for item in seen])
    fine = np.asarray([np.median([sharp[1] for sharp in item.sharp]) for item in seen])
    usual, usual_fine = float(np.median(variance)), float(np.median(fine))
    blurred = (variance < BLUR_SHARE * usual) & (fine < FINE_SHARE * usual_fine)
    if not blurred.any():
        return [], set()
    episodes = tuple(seen[place].episode for place in np.flatnonzero(blurred).tolist())
    worst = float(variance[blurred].min())
    finding = Finding(
        id="image.blur",
        claim=Claim.RISK,
        message=f"{camera.name} is out of focus or smeared in {counted(len(episodes))} ({ranges(episodes)}): "
        f"its detail is down to {100 * worst / max(usual, 1e-9):.0f} % of what this camera usually has",
        impact="small objects and contacts cannot be seen; at deployment the picture is sharper than in training",
        episodes=episodes,
        feature=camera.key,
        value=worst,
        threshold=BLUR_SHARE * usual,
        unit="Laplacian variance",
    )
    return [finding], set(episodes)


def _shows_nothing(camera: Camera, rule: str, word: str, items: Sequence[EpisodePictures]) -> Finding:
    episodes = tuple(item.episode for item in items)
    brightness = float(np.mean([look.mean for item in items for look in item.looks]))
    everywhere = len(episodes) == len(camera.episodes)
    return Finding(
        id=rule,
        claim=Claim.DEFECT,
        message=f"{camera.name} is {word} in {counted(len(episodes))} ({ranges(episodes)})",
        impact="the policy learns to act without this camera, and is lost when it shows something",
        repair="" if everywhere else delete_command(camera.root, episodes),
        episodes=episodes,
        feature=camera.key,
        value=brightness,
        unit="depth" if camera.is_depth else "grey level",
    )


def _sometimes(camera: Camera, rule: str, word: str, items: Sequence[tuple[EpisodePictures, list[int]]]) -> Finding:
    episodes = tuple(item.episode for item, _ in items)
    count = sum(len(hit) for _, hit in items)
    item, hit = items[0]
    return Finding(
        id=rule,
        claim=Claim.RISK,
        message=f"{camera.name} is {word} in {count} of the pictures looked at, in {counted(len(episodes))} "
        f"({ranges(episodes)}); first in episode {item.episode} at frame {hit[0]}",
        impact="a camera that was starting, or lost for a moment; these frames teach nothing",
        episodes=episodes,
        spans=tuple((item.episode, frame, frame) for item, hit in items for frame in hit),
        feature=camera.key,
        value=float(count),
        unit="frames",
    )


def _covered(camera: Camera) -> list[EpisodePictures]:
    seen = [item for item in camera.episodes if item.sharp]
    if not seen:
        return []
    usual = float(np.median([np.median([look.mean for look in item.looks]) for item in seen]))
    return [
        item
        for item in seen
        if np.median([look.std for look in item.looks]) < COVERED_STD
        and np.median([sharp[0] for sharp in item.sharp]) < COVERED_SHARPNESS
        and np.median([look.mean for look in item.looks]) < COVERED_MEAN * usual
        and not np.median([look.is_black for look in item.looks])
    ]


def _low_light(camera: Camera, useless: Collection[int]) -> list[Finding]:
    seen = [item for item in camera.episodes if len(item.frames) and item.episode not in useless]
    dark = [item for item in seen if np.median([look.mean for look in item.looks]) < LOW_LIGHT_MEAN]
    if not dark:
        return []
    episodes = tuple(item.episode for item in dark)
    level = float(np.mean([np.median([look.mean for look in item.looks]) for item in dark]))
    return [
        Finding(
            id="image.low_light",
            claim=Claim.RISK,
            message=f"{camera.name} is dark in {counted(len(episodes))} ({ranges(episodes)}): "
            f"its mean grey level is {level:.0f} of 255",
            impact="noise hides the object, and every lamp changes the picture; add light or exposure",
            episodes=() if len(episodes) == len(camera.episodes) else episodes,
            feature=camera.key,
            value=level,
            threshold=LOW_LIGHT_MEAN,
            unit="grey level",
        )
    ]
