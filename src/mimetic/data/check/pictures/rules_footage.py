"""The same footage in two episodes (spec/dataset_quality.md 7.6)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.camera import Camera, delete_command
from mimetic.data.check.pictures.phash import distances
from mimetic.data.check.pictures.sample import EpisodePictures

RULES = ("image.duplicate_footage",)
MOST_BITS = 10
_MOVES_ALIKE, _MOVES_ALIKE_ALONE = 0.8, 0.97
_MOST_DIFFERENT = 3.0
_MOST_IN_BLOCK = 6.0
_ROBOT_ALIKE = 0.3
_AT_ONCE = 256
_LISTED = 50


def check_footage(
    cameras: Sequence[Camera],
    curves: Mapping[int, npt.NDArray[np.float32]],
    left_out: Mapping[str, Collection[int]],
) -> list[Finding]:
    """Pairs of episodes with the same pictures in every camera.

    Args:
        cameras: colour cameras.
        curves: (32, channels) state of each episode over its length, in ranges; without an entry where it is unknown.
        left_out: by camera, episodes not to look at.
    """
    pairs: set[tuple[int, int]] | None = None
    for camera in cameras:
        found = _alike(camera, left_out[camera.key], alone=len(cameras) == 1)
        pairs = found if pairs is None else pairs & found
    kept = sorted(pair for pair in pairs or () if _robot_agrees(pair, curves))
    if not kept:
        return []
    later = tuple(sorted({two for _, two in kept}))
    listed = ", ".join(f"{two} is {one}" for one, two in kept[:6]) + (" ..." if len(kept) > 6 else "")
    return [
        Finding(
            id="image.duplicate_footage",
            claim=Claim.DEFECT,
            message=f"{len(later)} episodes show the footage of another one ({listed})",
            impact="a copy adds weight and no knowledge; across the train and validation split it hides overfitting",
            repair=delete_command(cameras[0].root, later),
            episodes=later,
            value=float(len(kept)),
            threshold=0.0,
            unit="pairs",
        )
    ]


def _alike(camera: Camera, left_out: Collection[int], *, alone: bool) -> set[tuple[int, int]]:
    items = [item for item in camera.without(left_out) if item.small is not None and len(item.hashes) and _moves(item)]
    if len(items) < 2:
        return set()
    hashes = np.stack([item.hashes for item in items])
    change = np.stack([_standardised(item.change) for item in items])
    lengths = np.asarray([item.length for item in items], dtype=np.float64)
    least = _MOVES_ALIKE_ALONE if alone else _MOVES_ALIKE
    pairs: set[tuple[int, int]] = set()
    for start in range(0, len(items), _AT_ONCE):
        rows = slice(start, start + _AT_ONCE)
        candidates = change[rows] @ change.T >= least
        ratio = np.minimum(lengths[rows, None], lengths) / np.maximum(lengths[rows, None], lengths)
        candidates &= ratio >= 0.95
        for i, j in np.argwhere(candidates):
            one, two = items[start + int(i)], items[int(j)]
            if one.episode < two.episode and _same_pictures(one, two, hashes[start + int(i)], hashes[int(j)]):
                pairs.add((one.episode, two.episode))
    return pairs


def _same_pictures(
    one: EpisodePictures, two: EpisodePictures, hash_one: npt.NDArray[np.uint64], hash_two: npt.NDArray[np.uint64]
) -> bool:
    if one.small is None or two.small is None or one.small.shape != two.small.shape:
        return False
    if distances(hash_one, hash_two).mean() > MOST_BITS:
        return False
    gap = np.abs(one.small.astype(np.float32) - two.small.astype(np.float32))
    # An arm in another place changes a few small pixels by much.
    return bool(gap.mean() < _MOST_DIFFERENT and np.quantile(gap, 0.998) < 2 * _MOST_IN_BLOCK)


def _moves(item: EpisodePictures) -> bool:
    return bool(item.change.std() > 0.02 and item.change.max() > 0.3)


def _standardised(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    centred = values - values.mean()
    return np.asarray(centred / (np.linalg.norm(centred) + 1e-9), dtype=np.float32)


def _robot_agrees(pair: tuple[int, int], curves: Mapping[int, npt.NDArray[np.float32]]) -> bool:
    """Whether the robot does the same in both, against what it does in unrelated episodes."""
    one, two = (curves.get(episode) for episode in pair)
    if one is None or two is None:
        return True
    others = [curve for episode, curve in list(curves.items())[:_LISTED] if episode not in pair]
    if not others:
        return float(np.abs(one - two).mean()) < 0.02
    usual = float(np.median([np.abs(one - other).mean() for other in others]))
    return float(np.abs(one - two).mean()) <= _ROBOT_ALIKE * usual
