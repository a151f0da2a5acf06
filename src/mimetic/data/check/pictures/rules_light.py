"""Exposure and white balance from episode to episode, and within one (spec/dataset_quality.md 7.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, counted, ranges, runs_in
from mimetic.data.check.pictures.sample import EpisodePictures
from mimetic.data.check.pictures.shift import STEADY_SHARE
from mimetic.data.check.pictures.thumbnails import shrink

RULES = ("image.exposure", "image.white_balance", "image.auto_exposure")
EXPOSURE_SHARE, CHROMA_LEVELS, HUNTING_SHARE = 0.15, 6.0, 0.10
FEWEST = 4
_COMMON = 0.8
_LEAST_COMMON = 0.10
_DARKEST = 10.0


def check_light(
    camera: Camera, left_out: Collection[int]
) -> tuple[list[Finding], dict[int, float], dict[int, tuple[float, float]]]:
    """Findings on the light of one colour camera.

    Returns:
        Findings, luminance of the background by episode, and its blue and red chroma.
    """
    seen = [item for item in camera.without(left_out) if item.background and item.background.share >= STEADY_SHARE]
    if len(seen) < FEWEST:
        return [], {}, {}
    steady = np.mean([item.background.steady for item in seen if item.background], axis=0) >= _COMMON
    if steady.mean() < _LEAST_COMMON:
        return [], {}, {}
    light = np.asarray([item.background.picture[steady].mean() for item in seen if item.background])
    # A small block counts when most of it is steady.
    coarse = shrink((steady * 255).astype(np.uint8)) > 127
    chroma = np.asarray([_chroma(item, coarse) for item in seen])
    levels = {item.episode: float(value) for item, value in zip(seen, light, strict=True)}
    colours = {item.episode: (float(blue), float(red)) for item, (blue, red) in zip(seen, chroma, strict=True)}
    findings = [*_exposure(camera, seen, light), *_balance(camera, seen, chroma), *_hunting(camera, seen)]
    return findings, levels, colours


def _chroma(item: EpisodePictures, coarse: npt.NDArray[np.bool_]) -> tuple[float, float]:
    if item.chroma is None or not coarse.any() or item.chroma.shape[1:] != coarse.shape:
        return 128.0, 128.0
    return float(item.chroma[0][coarse].mean()), float(item.chroma[1][coarse].mean())


def _exposure(camera: Camera, seen: Sequence[EpisodePictures], light: npt.NDArray[np.float64]) -> list[Finding]:
    usual = _usual(light)
    if usual < _DARKEST:
        return []
    change = light / usual - 1.0
    flagged = np.abs(change) > EXPOSURE_SHARE
    if not flagged.any():
        return []
    worst = float(change[np.abs(change).argmax()])
    what = f"{camera.name} is {'darker' if worst < 0 else 'brighter'} by {100 * abs(worst):.0f} %"
    return [
        _varying(
            camera,
            seen,
            flagged,
            rule="image.exposure",
            what=what,
            subject="brightness",
            value=100 * worst,
            threshold=100 * EXPOSURE_SHARE,
            unit="%",
        )
    ]


def _usual(light: npt.NDArray[np.float64]) -> float:
    """Brightness of the largest group of episodes; their median would lie between two groups of one size."""
    near = np.abs(light[:, None] - light) <= 0.5 * EXPOSURE_SHARE * np.maximum(light[:, None], 1e-9)
    return float(np.median(light[near[near.sum(axis=1).argmax()]]))


def _balance(camera: Camera, seen: Sequence[EpisodePictures], chroma: npt.NDArray[np.float64]) -> list[Finding]:
    gaps = np.hypot(*(chroma[:, None] - chroma).transpose(2, 0, 1))
    group = gaps[(gaps <= 0.5 * CHROMA_LEVELS).sum(axis=1).argmax()] <= 0.5 * CHROMA_LEVELS
    away = np.hypot(*(chroma - np.median(chroma[group], axis=0)).T)
    flagged = away > CHROMA_LEVELS
    if not flagged.any():
        return []
    worst = float(away.max())
    return [
        _varying(
            camera,
            seen,
            flagged,
            rule="image.white_balance",
            what=f"the colours of {camera.name} are off by {worst:.0f} levels",
            subject="colour",
            value=worst,
            threshold=CHROMA_LEVELS,
            unit="chroma levels",
        )
    ]


def _varying(
    camera: Camera,
    seen: Sequence[EpisodePictures],
    flagged: npt.NDArray[np.bool_],
    *,
    rule: str,
    what: str,
    subject: str,
    value: float,
    threshold: float,
    unit: str,
) -> Finding:
    """A few changes are a risk; light that differs again and again is how the dataset was made."""
    episodes = tuple(seen[place].episode for place in np.flatnonzero(flagged).tolist())
    often = runs_in(flagged) > max(3, len(seen) // 5)
    if often:
        return Finding(
            id=rule,
            claim=Claim.FACT,
            message=f"the {subject} of {camera.name} differs from episode to episode ({len(episodes)} of {len(seen)} "
            "are far from the middle)",
            impact="variety of light helps, if it is what the robot will meet",
            feature=camera.key,
            value=value,
            threshold=threshold,
            unit=unit,
        )
    return Finding(
        id=rule,
        claim=Claim.RISK,
        message=f"{what} in {counted(len(episodes))} ({ranges(episodes)}) than in the others"
        if rule == "image.exposure"
        else f"{what} in {counted(len(episodes))} ({ranges(episodes)})",
        impact="the policy may take the light for the task; lock exposure, gain and white balance, or record all in "
        "both",
        episodes=episodes,
        feature=camera.key,
        value=value,
        threshold=threshold,
        unit=unit,
    )


def _hunting(camera: Camera, seen: Sequence[EpisodePictures]) -> list[Finding]:
    """Steps of the light within one second, on pixels that hold still otherwise."""
    found = []
    for item in seen:
        frames, light = item.frames, item.light
        if len(light) < 4 or not np.isfinite(light).all() or light.mean() < _DARKEST:
            continue
        later = np.searchsorted(frames, frames + camera.fps, side="right") - 1
        step = np.abs(light[later] - light) / light.mean()
        if step.max() > HUNTING_SHARE:
            found.append((item.episode, int(frames[step.argmax()]), float(step.max())))
    if not found:
        return []
    episodes = tuple(episode for episode, _, _ in found)
    return [
        Finding(
            id="image.auto_exposure",
            claim=Claim.FACT,
            message=f"the brightness of {camera.name} jumps by more than {100 * HUNTING_SHARE:.0f} % within a second "
            f"in {counted(len(episodes))} ({ranges(episodes)})",
            impact="automatic exposure at work, or a lamp; lock exposure, gain, white balance and focus",
            episodes=episodes,
            spans=tuple((episode, frame, frame) for episode, frame, _ in found),
            feature=camera.key,
            value=100 * max(step for _, _, step in found),
            threshold=100 * HUNTING_SHARE,
            unit="%",
        )
    ]
