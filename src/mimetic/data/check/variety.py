"""Arithmetic of similarity between episodes: clusters, duplicates, drift (dataset_quality 8)."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

STEPS = 32
CONTEXT_RANGE = 0.05
_WARP, _NOISE = 0.03, 0.01
_COPIES = 8
_COSINE, _LEAST_COSINE, _AS_LONG = 0.995, 0.9, 0.95
_BLOCK = 4_000_000


def content_hash(*signals: npt.NDArray[np.generic]) -> str:
    """Hash of signals rounded to 1e-6: equal for identical episodes."""
    digest = hashlib.sha256()
    for signal in signals:
        rounded = np.round(np.asarray(signal, dtype=np.float64), 6) + 0.0  # -0 and 0 are the same
        digest.update(str(rounded.shape).encode())
        digest.update(np.ascontiguousarray(rounded).tobytes())
    return digest.hexdigest()


def groups_of(hashes: dict[int, str]) -> list[list[int]]:
    """Episodes with the same hash, in groups of two or more."""
    found: dict[str, list[int]] = defaultdict(list)
    for episode, value in hashes.items():
        found[value].append(episode)
    return [sorted(group) for group in found.values() if len(group) > 1]


def resampled(signal: Floats, steps: int = STEPS) -> Floats:
    """A path (T, D) at `steps` equally spaced times, (steps * D,)."""
    places = np.linspace(0, len(signal) - 1, steps)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, len(signal) - 1)
    share = (places - below)[:, None]
    return np.asarray((signal[below] * (1 - share) + signal[above] * share).reshape(-1))


def close_blocks(points: Floats, most: float) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Which rows of (E, D) are at most `most` (root mean square) apart, some rows at a time.

    Yields:
        Number of the first row, and (rows, E) whether each pair is close.
    """
    count, width = points.shape
    centred = points - points.mean(axis=0)  # the product below loses digits far from the origin
    size = (centred**2).sum(axis=1)
    limit = most**2 * max(width, 1)
    block = max(1, _BLOCK // max(count, 1))
    for begin in range(0, count, block):
        part = slice(begin, begin + block)
        yield begin, size[part, None] + size[None, :] - 2 * centred[part] @ centred.T <= limit


def clusters(points: Floats, most: float) -> Ints:
    """Cluster of each row: rows are connected when they are at most `most` apart (DBSCAN with one point a core).

    Each row is compared once with the rows that have no cluster yet, so that large clusters cost little.
    """
    count, width = points.shape
    label = np.full(count, -1, dtype=np.int64)
    limit = most**2 * max(width, 1)
    left = np.arange(count)
    number = 0
    while len(left):
        frontier, left = left[:1], left[1:]
        while len(frontier):
            label[frontier] = number
            found: list[Ints] = []
            block = max(1, _BLOCK // max(len(left) * width, 1))
            for begin in range(0, len(frontier), block):
                if not len(left):
                    break
                apart = points[frontier[begin : begin + block], None] - points[None, left]
                near = (np.einsum("fld,fld->fl", apart, apart) <= limit).any(axis=0)
                found.append(left[near])
                left = left[~near]
            frontier = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        number += 1
    return label


def copy_likeness(paths: list[Floats], centre: Floats, generator: np.random.Generator) -> tuple[float, float]:
    """How alike a copy and its original are when time is warped by up to 3 % and 1 % noise is added.

    Args:
        paths: range-scaled paths (T, D) of some episodes.
        centre: (steps * D,) mean of all resampled paths.
        generator: source of warps and noise.

    Returns:
        Root mean square distance of the resampled paths, and cosine around the mean path, of the least alike copy of a
        usual episode (median over episodes, since one that flutters tells nothing about the others). The cosine is
        never below 0.9: where all episodes are alike it says little.
    """
    distances: list[float] = []
    cosines: list[float] = []
    for path in paths:
        original = resampled(path)
        apart, alike = 0.0, 1.0
        for _ in range(_COPIES):
            power = 1 + generator.uniform(-_WARP, _WARP)
            places = (len(path) - 1) * np.linspace(0, 1, len(path)) ** power
            below = np.floor(places).astype(np.int64)
            above = np.minimum(below + 1, len(path) - 1)
            share = (places - below)[:, None]
            warped = path[below] * (1 - share) + path[above] * share
            copy = resampled(warped + generator.normal(0, _NOISE, warped.shape))
            apart = max(apart, float(np.sqrt(np.mean((copy - original) ** 2))))
            size = float(np.linalg.norm(copy - centre) * np.linalg.norm(original - centre))
            alike = min(alike, float((copy - centre) @ (original - centre)) / size if size > 0 else 1.0)
        distances.append(apart)
        cosines.append(alike)
    if not distances:
        return 0.0, _COSINE
    return float(np.median(distances)), min(_COSINE, max(_LEAST_COSINE, float(np.median(cosines))))


def repeats(points: Floats, lengths: Ints, most: float, cosine: float) -> list[tuple[int, int]]:
    """Rows that nearly repeat an earlier one: (row, first such row).

    They are at most `most` apart, have the same form around the mean path, and last equally long within 5 %.

    Args:
        points: (E, D) resampled paths.
        lengths: (E,) frames of each.
        most: largest distance, as `copy_likeness` gives it.
        cosine: smallest cosine.
    """
    centred = points - points.mean(axis=0)
    direction = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    found: list[tuple[int, int]] = []
    for begin, near in close_blocks(points, most):
        rows = np.arange(begin, begin + len(near))
        near &= np.arange(len(points))[None, :] < rows[:, None]
        for row in np.flatnonzero(near.any(axis=1)).tolist():
            others = np.flatnonzero(near[row])
            ratio = lengths[others] / max(int(lengths[begin + row]), 1)
            alike = (direction[others] @ direction[begin + row] >= cosine) & (np.minimum(ratio, 1 / ratio) >= _AS_LONG)
            if alike.any():
                found.append((begin + row, int(others[np.argmax(alike)])))
    return found


def drift(values: Floats) -> Floats:
    """|mean of the last quarter - mean of the first| / spread inside the quarters, for each column of (E, D)."""
    quarter = max(2, len(values) // 4)
    first, last = values[:quarter], values[-quarter:]
    spread = np.sqrt((first.var(axis=0) + last.var(axis=0)) / 2)
    return np.asarray(np.abs(last.mean(axis=0) - first.mean(axis=0)) / np.maximum(spread, 1e-9))


def hull_area(points: Floats) -> float:
    """Area of the convex hull of points (E, 2)."""
    ordered = np.unique(points, axis=0)
    if len(ordered) < 3:
        return 0.0

    def half(sequence: Floats) -> list[Floats]:
        chain: list[Floats] = []
        for point in sequence:
            while len(chain) > 1:
                a, b = chain[-1] - chain[-2], point - chain[-2]
                if a[0] * b[1] - a[1] * b[0] > 0:
                    break
                chain.pop()
            chain.append(point)
        return chain[:-1]

    hull = np.stack(half(ordered) + half(ordered[::-1]))
    x, y = hull[:, 0], hull[:, 1]
    return float(abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2)


def two_axes(points: Floats) -> Floats:
    """Points (E, D) along their two largest principal axes, (E, 2)."""
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes[:2].T
    return flat if flat.shape[1] == 2 else np.column_stack([flat, np.zeros(len(flat))])
