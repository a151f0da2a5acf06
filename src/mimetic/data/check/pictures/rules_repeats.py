"""Frozen cameras and cameras slower than the recording (spec/dataset_quality.md 7.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, counted, delete_command, ranges
from mimetic.data.check.pictures.repeats import SAME_BLOCK, count_repeats

RULES = ("image.frozen", "image.duplicate_frames")
MOST_REPEATS = 0.05
_UNSEEN = 0.2
"""Share of movements without a trace in the picture from which on standing still says nothing."""
_LEAST_SHOWN = 3 * SAME_BLOCK
"""Usual change of the most changed block from which on movement shows clearly above noise [grey levels]."""
_FEWEST_PAIRS = 30


def check_frozen(camera: Camera, left_out: Collection[int]) -> tuple[list[Finding], set[int]]:
    """Pictures that rest for longer than half a second while the robot moves.

    Returns:
        Findings, and the episodes concerned.
    """
    seen = [item for item in camera.episodes if np.isfinite(item.stills.share) and item.episode not in left_out]
    if not seen:
        return [], set()
    usual = float(np.median([item.stills.share for item in seen]))
    shown = float(np.median([item.stills.block for item in seen]))
    frozen = [item for item in seen if item.stills.spans]
    if usual > _UNSEEN or shown < _LEAST_SHOWN:
        if not frozen:
            return [], set()
        reason = (
            f"movements of the robot hardly show in the picture of {camera.name}, so a frozen picture cannot be told "
            "from one in which nothing happens"
        )
        return [Finding(id="image.frozen", claim=Claim.NOT_CHECKED, message=reason, feature=camera.key)], set()
    if not frozen:
        return [], set()
    episodes = tuple(item.episode for item in frozen)
    spans = tuple((item.episode, first, last) for item in frozen for first, last in item.stills.spans)
    longest = max((last - first for _, first, last in spans), default=0) / camera.fps
    finding = Finding(
        id="image.frozen",
        claim=Claim.DEFECT,
        message=f"{camera.name} stands still while the robot moves, for up to {longest:.1f} s, "
        f"in {counted(len(episodes))} ({ranges(episodes)})",
        impact="the policy learns that its actions have nothing to do with what it sees",
        repair=delete_command(camera.root, episodes),
        episodes=episodes,
        spans=spans,
        feature=camera.key,
        value=longest,
        threshold=0.5,
        unit="s",
    )
    return [finding], set(episodes)


def check_repeats(
    camera: Camera, speeds: Mapping[int, npt.NDArray[np.float64] | None], left_out: Collection[int]
) -> list[Finding]:
    """Single pictures that repeat the one before, and the rate at which the camera really delivers.

    Args:
        camera: the camera.
        speeds: (T,) speed of the state by episode.
        left_out: episodes not to look at.
    """
    repeats, looked_at = {}, {}
    for item in camera.episodes:
        if item.episode not in left_out:
            repeats[item.episode], looked_at[item.episode] = count_repeats(item.pairs, speeds.get(item.episode))
    total = sum(looked_at.values())
    if total < _FEWEST_PAIRS:
        reason = (
            "no state is known"
            if not any(value is not None for value in speeds.values())
            else ("too few pictures in a row show the robot moving")
        )
        return [
            Finding(
                id="image.duplicate_frames",
                claim=Claim.NOT_CHECKED,
                message=f"the real rate of {camera.name} cannot be told: {reason}",
                feature=camera.key,
            )
        ]
    share = sum(repeats.values()) / total
    spread = np.sqrt(share * (1 - share) / total)
    if share - spread <= MOST_REPEATS:
        return []
    episodes = tuple(
        episode for episode, count in repeats.items() if count >= 2 and count > MOST_REPEATS * looked_at[episode]
    )
    rate = camera.fps * (1 - share)
    return [
        Finding(
            id="image.duplicate_frames",
            claim=Claim.RISK,
            message=f"{camera.name} shows a new picture only about {rate:.0f} times a second, the dataset says "
            f"{camera.fps:g}: {100 * share:.0f} % of the pictures repeat the one before although the robot moves, "
            f"in {counted(len(episodes))} ({ranges(episodes)})",
            impact="either the camera is slower than the recording, or the loop was and the motion plays too fast",
            episodes=() if len(episodes) >= 0.9 * len(camera.episodes) else episodes,
            feature=camera.key,
            value=round(rate, 2),
            threshold=float(camera.fps),
            unit="Hz",
        )
    ]
