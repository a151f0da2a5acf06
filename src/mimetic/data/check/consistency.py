"""Actions compared with those of similar situations in other episodes (dataset_quality 6.6); takes a while."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mimetic.data.check.motion import Motion
from mimetic.data.check.motion_rules import scaled
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES, robust_z
from mimetic.data.episodes import listed
from mimetic.names import ACTION, STATE

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_AXES, _PHASE, _NEIGHBOURS = 12, 0.5, 16
_MOST_FRAMES = 20_000
_Z = 3.5
_EXPLAINED, _MINORITY = 0.6, 0.25
_BLOCK = 256


def check_neighbours(motion: Motion, results: Results) -> None:
    """`consistency.neighbours`: residual of each episode's actions to those of the nearest frames of others."""
    if motion.state is None or motion.action is None or len(motion.source.episodes) < LEAST_EPISODES:
        results.skip("consistency.neighbours", f"it needs state, action and {LEAST_EPISODES} episodes")
        return
    if not motion.state.live.any() or not motion.action.live.any():
        results.skip("consistency.neighbours", "no channel is continuous")
        return
    results.apply("consistency.neighbours")
    context, action, owner = _frames(motion)
    residual, multimodal = neighbour_residuals(context, action, owner)
    n = len(motion.source.episodes)
    score, minority = np.full(n, np.nan), np.full(n, np.nan)
    for place in np.unique(owner):
        mine = owner == place
        score[place] = float(np.median(residual[mine]))
        minority[place] = float(multimodal[mine].mean())
    results.measure("neighbour_residual", score)
    results.measure("minority_strategy", minority)
    z = robust_z(score, relative_floor=0.1)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero((z > _Z) & (minority < 0.5) & (score > np.nanmedian(score) + 1.0))
    if len(bad):
        worst = bad[np.argmax(z[bad])]
        results.add(
            "consistency.neighbours",
            f"actions of episodes {listed(motion.source.episodes[bad])} are unlike those in similar situations "
            f"(residual {score[worst]:.1f}, usual {np.nanmedian(score):.1f})",
            episodes=motion.source.episodes[bad].tolist(),
            value=round(float(score[worst]), 3),
            threshold=round(float(np.nanmedian(score)) + 1.0, 3),
        )


def _frames(motion: Motion) -> tuple[Floats, Floats, Ints]:
    """A sample of frames: contexts (N, D), range-scaled actions (N, A), place of the episode (N,)."""
    assert motion.state is not None
    assert motion.action is not None
    step = max(1, int(motion.source.lengths.sum()) // _MOST_FRAMES)
    contexts, actions, owners = [], [], []
    for place, episode, signals in motion.episodes():
        if motion.is_damaged(episode) or ACTION not in signals:
            continue
        rows = np.arange(0, len(signals[STATE]), step)
        phase = rows / max(len(signals[STATE]) - 1, 1)
        contexts.append(np.column_stack([scaled(motion.state, signals[STATE])[rows], phase]))
        actions.append(scaled(motion.action, signals[ACTION])[rows])
        owners.append(np.full(len(rows), place))
    joined = np.concatenate(contexts)
    state, phase = joined[:, :-1] - joined[:, :-1].mean(axis=0), joined[:, -1:]
    if state.shape[1] > _AXES:
        _, _, axes = np.linalg.svd(state, full_matrices=False)
        state = state @ axes[:_AXES].T
    return np.column_stack([state, _PHASE * phase]), np.concatenate(actions), np.concatenate(owners)


def neighbour_residuals(context: Floats, action: Floats, owner: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """||a - median of the neighbours' a|| / their median spread, and where the neighbours fall into two groups.

    Args:
        context: (N, D) situations.
        action: (N, A) what was done.
        owner: (N,) episode of each; neighbours are frames of other ones.
    """
    size = (context**2).sum(axis=1)
    residual = np.empty(len(context))
    two = np.zeros(len(context), dtype=np.bool_)
    k = min(_NEIGHBOURS, max(1, len(context) - 1))
    for begin in range(0, len(context), _BLOCK):
        part = slice(begin, min(begin + _BLOCK, len(context)))
        squared = size[part, None] + size[None, :] - 2 * context[part] @ context.T
        squared[owner[part, None] == owner[None, :]] = np.inf
        nearest = np.argpartition(squared, k - 1, axis=1)[:, :k]
        there = action[nearest]
        middle = np.median(there, axis=1)
        spread = np.median(np.linalg.norm(there - middle[:, None], axis=2), axis=1)
        residual[part] = np.linalg.norm(action[part] - middle, axis=1) / np.maximum(spread, 1e-3)
        two[part] = [_is_split(neighbours) for neighbours in there]
    return residual, two


def _is_split(points: Floats) -> bool:
    """Two groups explain more than 60 % of the variance, the smaller with at least a quarter of the points."""
    centred = points - points.mean(axis=0)
    whole = float((centred**2).sum())
    if not whole > 0:
        return False
    axis = centred[np.argmax((centred**2).sum(axis=1))]
    side = centred @ axis > 0
    for _ in range(3):
        if not 0 < side.sum() < len(side):
            return False
        a, b = points[side].mean(axis=0), points[~side].mean(axis=0)
        side = ((points - a) ** 2).sum(axis=1) < ((points - b) ** 2).sum(axis=1)
    if not 0 < side.sum() < len(side):
        return False
    inside = sum(float(((points[part] - points[part].mean(axis=0)) ** 2).sum()) for part in (side, ~side))
    return 1 - inside / whole > _EXPLAINED and min(side.sum(), (~side).sum()) >= _MINORITY * len(points)
