"""Numbers of the dataset check's page: small enough to travel inside it, drawn by its script."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.check.checklist import propose_split
from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.pictures.run import Comparison, PictureChecks, Thumbnail
from mimetic.data.check.source import CheckSource, open_source
from mimetic.errors import DatasetError
from mimetic.names import ACTION, FRAME_INDEX, STATE, TIMESTAMP

MOST_LINES = 60
"""Episodes drawn in the plot of one joint; those with a finding come first."""
MOST_JOINTS = 32
POINTS = 64
LEVELS = 1000
"""Steps of a joint's range in the page."""
PICTURE_BYTES = 2_600_000
"""Encoded pictures in the page."""
MOST_CELLS = 400
"""Columns of the map of findings; longer datasets show several episodes in one."""


def page_data(report: CheckReport, pictures: PictureChecks | None) -> dict[str, Any]:
    """Everything that the page draws, as JSON data.

    Args:
        report: what the check found.
        pictures: what it saw; None when pictures were not looked at.
    """
    source = _rows(report)
    flagged = _flagged(report)
    return {
        "fps": report.fps,
        "episodes": [int(episode) for episode in report.episodes],
        "lengths": [int(length) for length in report.lengths],
        "flagged": {str(episode): claim for episode, claim in flagged.items()},
        "map": _map(report),
        "coverage": _coverage(report),
        "timing": _timing(report, source),
        "joints": _joints(report, source, flagged),
        "cameras": _cameras(report, pictures),
        "moves": _moves(report.facts.get("comparisons", ()) if pictures is None else pictures.comparisons),
        "curves": _camera_curves(report),
    }


def thumbnails_of(report: CheckReport, pictures: PictureChecks | None) -> Sequence[Thumbnail]:
    """The pictures of a check, whichever way they came."""
    return pictures.thumbnails if pictures is not None else report.facts.get("thumbnails", ())


def _rows(report: CheckReport) -> CheckSource | None:
    if report.level == "quick":
        return None
    try:
        return open_source(report.root, with_rows=True)
    except (DatasetError, OSError):  # the folder has gone since: the page shows what the check kept
        return None


def _flagged(report: CheckReport) -> dict[int, str]:
    """The worst claim on each episode that a finding names."""
    found: dict[int, str] = {}
    for claim in (Claim.RISK, Claim.DEFECT):
        for finding in report.findings:
            if finding.claim is claim and not finding.accepted:
                found.update(dict.fromkeys(finding.episodes, claim.value))
    return found


def _map(report: CheckReport) -> dict[str, Any]:
    """Rules against episodes; what concerns the dataset as a whole says nothing about any of them."""
    place = {int(episode): number for number, episode in enumerate(report.episodes)}
    step = max(1, math.ceil(len(place) / MOST_CELLS))
    rows: dict[tuple[str, str], set[int]] = {}
    for finding in report.findings:
        if finding.claim in (Claim.DEFECT, Claim.RISK) and not finding.accepted and finding.episodes:
            cells = rows.setdefault((finding.id, finding.claim.value), set())
            cells.update(place[episode] // step for episode in finding.episodes if episode in place)
    order = sorted(rows, key=lambda row: (row[1] != Claim.DEFECT.value, row[0]))
    return {
        "step": step,
        "columns": math.ceil(len(place) / step),
        "rows": [{"id": rule, "claim": claim, "cells": sorted(rows[(rule, claim)])} for rule, claim in order],
    }


def _coverage(report: CheckReport) -> dict[str, Any] | None:
    contexts = report.facts.get("contexts")
    if not isinstance(contexts, Mapping) or not contexts.get("points"):
        return None
    split = propose_split(report)
    held = set(split.held_out) if split is not None else set()
    points = [
        [_short(point["x"]), _short(point["y"]), int(point["cluster"]), int(point["episode"]), point["episode"] in held]
        for point in contexts["points"]
    ]
    return {
        "points": points,
        "with_grasp": bool(contexts.get("with_grasp")),
        "clusters": int(contexts.get("clusters", 0)),
        "held": sorted(held),
        "reason": split.reason if split is not None else "",
    }


def _timing(report: CheckReport, source: CheckSource | None) -> dict[str, Any] | None:
    """By episode, how far time stamps are from the frame grid [ms], and the measured rate where it is known [Hz]."""
    if source is None or source.rows is None or TIMESTAMP not in source.rows.columns or not report.fps:
        return None
    worst: list[float | None] = []
    for episode in report.episodes:
        columns = source.columns_of(episode)
        stamps = columns.get(TIMESTAMP)
        if stamps is None or not len(stamps):
            worst.append(None)
            continue
        frames = columns.get(FRAME_INDEX, np.arange(len(stamps)))
        off = np.abs(stamps.astype(np.float64).reshape(-1) - frames.reshape(-1) / report.fps)
        worst.append(_short(float(np.nanmax(off)) * 1000) if np.isfinite(off).any() else None)
    rates = report.measures.get("true_rate_hz")
    return {
        "off_ms": worst,
        "tolerance_ms": 0.1,
        "half_frame_ms": 500.0 / report.fps,
        "rate_hz": None if rates is None else [_short(float(rate)) for rate in rates],
    }


def _joints(report: CheckReport, source: CheckSource | None, flagged: Mapping[int, str]) -> list[dict[str, Any]]:
    """Each channel of the state (else of the action) over the part of the episode that has passed."""
    if source is None or source.rows is None:
        return []
    key = next((name for name in (STATE, ACTION) if name in source.rows.columns), None)
    if key is None:
        return []
    shown = _shown(report, flagged)
    resampled = {episode: _resampled(source.columns_of(episode).get(key)) for episode in shown}
    paths = {episode: path for episode, path in resampled.items() if path is not None}
    if not paths:
        return []
    feature = source.features[key]
    width = next(iter(paths.values())).shape[1]
    names = feature.flat_names or []
    units = _units(report, key)
    joints = []
    for channel in range(min(width, MOST_JOINTS)):
        stacked = np.stack([path[:, channel] for path in paths.values()])
        finite = stacked[np.isfinite(stacked)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        scaled = np.rint((stacked - low) / max(high - low, 1e-12) * LEVELS)
        joints.append(
            {
                "name": names[channel] if len(names) == width else f"{key}[{channel}]",
                "unit": units,
                "low": _short(low),
                "high": _short(high),
                "lines": [[None if math.isnan(value) else int(value) for value in line] for line in scaled.tolist()],
                "episodes": list(paths),
                "concerned": _concerned(report, names[channel] if len(names) == width else ""),
            }
        )
    return joints


def _shown(report: CheckReport, flagged: Mapping[int, str]) -> list[int]:
    """Episodes for the plots of joints: those with findings on the robot's data first, then others evenly."""
    about_data = {
        int(episode)
        for finding in report.findings
        if finding.claim in (Claim.DEFECT, Claim.RISK) and not finding.id.startswith(("image.", "meta."))
        for episode in finding.episodes
    }
    first = [int(episode) for episode in report.episodes if int(episode) in about_data][: MOST_LINES // 2]
    rest = [int(episode) for episode in report.episodes if int(episode) not in set(first)]
    room = MOST_LINES - len(first)
    places = (
        np.unique(np.rint(np.linspace(0, len(rest) - 1, min(room, len(rest)))).astype(int)).tolist() if rest else []
    )
    return sorted([*first, *(rest[place] for place in places)])


def _concerned(report: CheckReport, name: str) -> list[int]:
    """Episodes whose findings are about this channel, or about the robot's data as a whole."""
    episodes: set[int] = set()
    for finding in report.findings:
        if finding.claim not in (Claim.DEFECT, Claim.RISK) or finding.accepted or not finding.episodes:
            continue
        if len(finding.episodes) > 0.5 * max(len(report.episodes), 1):
            continue  # what most episodes share is no outlier
        if finding.id.startswith(("action.", "state.", "motion.", "data.nonfinite")) and (
            not finding.feature or "[" not in finding.feature or (name and f"[{name}]" in finding.feature)
        ):
            episodes.update(finding.episodes)
    return sorted(episodes)


def _units(report: CheckReport, key: str) -> str:
    features = report.facts.get("features")
    entry = features.get(key) if isinstance(features, Mapping) else None
    return str(entry.get("unit", "")) if isinstance(entry, Mapping) else ""


def _resampled(values: npt.NDArray[Any] | None) -> npt.NDArray[np.float64] | None:
    if values is None or not len(values):
        return None
    path: npt.NDArray[np.float64] = values.reshape(len(values), -1).astype(np.float64)
    places = np.rint(np.linspace(0, len(path) - 1, min(POINTS, len(path)))).astype(int)
    path = path[places]
    path[~np.isfinite(path)] = np.nan
    if len(path) == POINTS:
        return path
    targets = np.linspace(0, len(path) - 1, POINTS)
    return np.stack([np.interp(targets, np.arange(len(path)), column) for column in path.T], axis=1)


def _cameras(report: CheckReport, pictures: PictureChecks | None) -> list[dict[str, Any]]:
    """Pictures by camera and episode, as many as fit."""
    thumbnails = thumbnails_of(report, pictures)
    total = sum(len(thumb.jpeg) for thumb in thumbnails) * 4 // 3
    if total > PICTURE_BYTES:
        thumbnails = _middle_ones(thumbnails)
        total = sum(len(thumb.jpeg) for thumb in thumbnails) * 4 // 3
    if total > PICTURE_BYTES:
        keep = max(1, int(len(thumbnails) * PICTURE_BYTES / total))
        places = np.unique(np.rint(np.linspace(0, len(thumbnails) - 1, keep)).astype(int))
        thumbnails = [thumbnails[place] for place in places]
    flags = _flags_by_camera(report.findings)
    cameras: dict[str, dict[int, list[Any]]] = {}
    for thumb in thumbnails:
        cameras.setdefault(thumb.camera, {}).setdefault(thumb.episode, []).append(
            [thumb.frame, base64.b64encode(thumb.jpeg).decode("ascii")]
        )
    return [
        {
            "key": key,
            "episodes": [
                {"episode": episode, "frames": frames, "flag": flags.get((key, episode), "")}
                for episode, frames in sorted(episodes.items())
            ],
        }
        for key, episodes in cameras.items()
    ]


def _middle_ones(thumbnails: Sequence[Thumbnail]) -> list[Thumbnail]:
    by_place: dict[tuple[str, int], list[Thumbnail]] = {}
    for thumb in thumbnails:
        by_place.setdefault((thumb.camera, thumb.episode), []).append(thumb)
    return [group[len(group) // 2] for group in by_place.values()]


def _flags_by_camera(findings: Iterable[Finding]) -> dict[tuple[str, int], str]:
    flags: dict[tuple[str, int], str] = {}
    for claim in (Claim.RISK, Claim.DEFECT):
        for finding in findings:
            if finding.claim is claim and not finding.accepted:
                for key in finding.feature.split(", "):
                    flags.update({(key, episode): claim.value for episode in finding.episodes})
    return flags


def _moves(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "camera": item.camera,
            "episodes": list(item.episodes),
            "before": base64.b64encode(item.before).decode("ascii"),
            "after": base64.b64encode(item.after).decode("ascii"),
            "shift": [_short(item.shift_px[0]), _short(item.shift_px[1])],
        }
        for item in comparisons
    ]


def _camera_curves(report: CheckReport) -> list[dict[str, Any]]:
    """Place and light of each camera over the episodes."""
    curves = []
    for name, unit, title in (("image.shift_px", "px", "shift"), ("image.luminance", "grey level", "brightness")):
        for key, values in report.measures.items():
            if key.startswith(f"{name}[") and np.isfinite(values).any():
                curves.append(
                    {
                        "camera": key[len(name) + 1 : -1],
                        "what": title,
                        "unit": unit,
                        "values": [_short(float(value)) for value in values],
                    }
                )
    return curves


def _short(value: float) -> float | None:
    """A number with four digits, None for what JSON has no word for."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
