"""How far predicted action chunks are from recorded ones: arrays in, numbers out.

Everything is accumulated chunk by chunk (`ChunkSums`), so that an evaluation of any length needs the memory of one
batch of predictions, and then summarised once (`summarise`). Nothing here knows a policy, a dataset or a file.

Shapes: N chunks, K steps ahead, A joints (action dimensions), S sources in the order of `SOURCES`, E episodes.
Predictions and recordings are in the dataset's own units; "normalised" means divided by each joint's `scale`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mimetic.errors import ShapeError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SOURCES = ("policy", "hold", "mean")
"""What is compared with the recording: the policy, holding the present pose, always sending the mean action."""
POLICY, HOLD, MEAN = range(3)

RESAMPLES = 1000
INTERVAL = "95 % two-stage bootstrap: episodes, then the chunks in each, drawn with replacement 1000 times"
NOTABLE = 0.05
"""Differences between mean errors below this many deviations of the action are too small to matter."""


@dataclass(frozen=True)
class ChunkSums:
    """Sums over the valid steps of chunks; the sums of two sets of chunks join without loss.

    Args:
        episode: episode number of each chunk, (N,).
        count: valid steps of each chunk, (N,).
        abs_error: sum of |prediction - recording|, (S, N, A).
        square_error: sum of (prediction - recording)^2, (S, N, A).
        moved: sum of squared displacements in a chunk, predicted then recorded, (2, N, A).
        step_abs: sum of |prediction - recording| over chunks by steps ahead, (S, K, A).
        step_count: chunks that are valid so many steps ahead, (K,).
    """

    episode: Ints
    count: Ints
    abs_error: Floats
    square_error: Floats
    moved: Floats
    step_abs: Floats
    step_count: Ints


def chunk_sums(
    predicted: ArrayLike,
    recorded: ArrayLike,
    valid: ArrayLike,
    *,
    hold: ArrayLike,
    mean: ArrayLike,
    episode: ArrayLike,
) -> ChunkSums:
    """Compare predicted chunks and both baselines with recorded chunks.

    The displacement of a chunk is taken from its own first action; from the held pose when K is 1.

    Args:
        predicted: actions of the policy, (N, K, A).
        recorded: actions of the dataset, (N, K, A); values at invalid steps are never read.
        valid: False where the recording had ended, (N, K).
        hold: the present pose of each chunk, (N, A).
        mean: mean action, (A,).
        episode: episode number of each chunk, (N,).

    Raises:
        ShapeError: the shapes do not belong together.
    """
    mask = np.asarray(valid, dtype=np.bool_)
    steps = mask[..., None]
    target = np.where(steps, np.asarray(recorded, dtype=np.float64), 0.0)
    policy = np.asarray(predicted, dtype=np.float64)
    pose = np.asarray(hold, dtype=np.float64)
    average = np.asarray(mean, dtype=np.float64)
    _check_shapes(policy, target, mask, pose, average)
    policy = np.where(steps, policy, 0.0)
    held = np.broadcast_to(pose[:, None], target.shape)
    errors = np.stack([policy - target, held - target, average - target])
    errors = np.where(steps, errors, 0.0)
    absolute = np.abs(errors)
    moved = np.stack([_squared_displacement(chunks, pose, steps) for chunks in (policy, target)])
    return ChunkSums(
        episode=np.asarray(episode, dtype=np.int64),
        count=mask.sum(axis=1, dtype=np.int64),
        abs_error=absolute.sum(axis=2),
        square_error=np.square(errors).sum(axis=2),
        moved=moved,
        step_abs=absolute.sum(axis=1),
        step_count=mask.sum(axis=0, dtype=np.int64),
    )


def _check_shapes(predicted: Floats, recorded: Floats, valid: Bools, hold: Floats, mean: Floats) -> None:
    if predicted.ndim != 3 or predicted.shape != recorded.shape:
        raise ShapeError(f"predicted chunks {predicted.shape} and recorded chunks {recorded.shape} differ in shape")
    chunks, steps, joints = predicted.shape
    wanted = {"valid": (valid, (chunks, steps)), "hold": (hold, (chunks, joints)), "mean": (mean, (joints,))}
    for name, (array, shape) in wanted.items():
        if array.shape != shape:
            raise ShapeError(f"`{name}` has shape {array.shape} where the chunks {predicted.shape} need {shape}")


def _squared_displacement(chunks: Floats, hold: Floats, steps: Bools) -> Floats:
    start = chunks[:, :1] if chunks.shape[1] > 1 else hold[:, None]
    displacement: Floats = np.square(np.where(steps, chunks - start, 0.0)).sum(axis=1)
    return displacement


def join(parts: Sequence[ChunkSums]) -> ChunkSums:
    """Sums of all chunks of several sets, in the given order."""
    if not parts:
        raise ShapeError("there are no chunks to summarise")
    return ChunkSums(
        episode=np.concatenate([part.episode for part in parts]),
        count=np.concatenate([part.count for part in parts]),
        abs_error=np.concatenate([part.abs_error for part in parts], axis=1),
        square_error=np.concatenate([part.square_error for part in parts], axis=1),
        moved=np.concatenate([part.moved for part in parts], axis=1),
        step_abs=np.sum([part.step_abs for part in parts], axis=0),
        step_count=np.sum([part.step_count for part in parts], axis=0),
    )


def joint_scale(actions: ArrayLike, training_std: ArrayLike | None = None) -> Floats:
    """Unit of each joint's error: the standard deviation of its recorded action; NaN for a joint that never moves.

    An error is only comparable between joints in units of how much each joint moves. The deviation in training is
    preferred: in a few episodes a joint may happen to rest, and its smallest error would then outweigh all others.

    Args:
        actions: recorded actions of the evaluated episodes, each frame once, (frames, A).
        training_std: deviations in the statistics that the policy was trained with, (A,).

    Returns:
        Scales, (A,), in the dataset's units.
    """
    values = np.asarray(actions, dtype=np.float64)
    std = values.std(axis=0) if training_std is None else np.asarray(training_std, dtype=np.float64)
    rounding = 1e-6 * np.maximum(np.abs(values).max(axis=0), 1e-12)
    scale: Floats = np.where(std > rounding, std, np.nan)
    return scale


@dataclass(frozen=True)
class Scores:
    """Numbers of one set of chunks; NaN where a number is not defined.

    Args:
        chunks: how many chunks.
        steps: how many valid steps in them.
        mae: mean absolute error by source and joint, (S, A), dataset units.
        rmse: root of the mean squared error by source and joint, (S, A), dataset units.
        normalised: `mae` divided by the scale of each joint, (S, A).
        skill_hold: 1 - mae / mae of holding, by joint, (A,); 1 is perfect, 0 as good as holding, negative worse.
        skill_mean: the same against the mean action, (A,).
        movement: root mean square of the predicted displacement over that of the recorded one, (A,).
        overall: `normalised` averaged over the joints that move, (S,).
        overall_skill_hold: 1 - overall error / that of holding.
        overall_skill_mean: 1 - overall error / that of the mean action.
        overall_movement: movement ratio over the joints that move.
        recorded_movement: root mean square of the recorded displacement over steps and joints, in deviations.
    """

    chunks: int
    steps: int
    mae: Floats
    rmse: Floats
    normalised: Floats
    skill_hold: Floats
    skill_mean: Floats
    movement: Floats
    overall: Floats
    overall_skill_hold: float
    overall_skill_mean: float
    overall_movement: float
    recorded_movement: float

    @property
    def worse_than_hold(self) -> Bools:
        """Joints on which holding still would have been notably better, (A,)."""
        gap = self.normalised[POLICY] - self.normalised[HOLD]
        return np.asarray(np.where(np.isfinite(gap), gap, 0.0) > NOTABLE)


@dataclass(frozen=True)
class Intervals:
    """95 % intervals, lower and upper bound on the last axis; NaN where there is nothing to resample.

    Args:
        skill_hold: by joint, (A, 2).
        skill_mean: by joint, (A, 2).
        overall_skill_hold: (2,).
        overall_skill_mean: (2,).
    """

    skill_hold: Floats
    skill_mean: Floats
    overall_skill_hold: Floats
    overall_skill_mean: Floats


def summarise(sums: ChunkSums, scale: ArrayLike) -> Scores:
    """Turn sums into errors, skills and movement ratios.

    Args:
        sums: of the chunks to judge.
        scale: unit of each joint's error, (A,); NaN leaves a joint out of everything overall.
    """
    unit = np.asarray(scale, dtype=np.float64)
    steps = int(sums.count.sum())
    total = sums.abs_error.sum(axis=1)
    mae = _ratio(total, np.float64(steps))
    rmse = np.sqrt(_ratio(sums.square_error.sum(axis=1), np.float64(steps)))
    normalised = _ratio(mae, unit)
    moved = sums.moved.sum(axis=1)
    overall = _mean(normalised)
    by_scale = moved / np.square(unit)
    return Scores(
        chunks=len(sums.count),
        steps=steps,
        mae=mae,
        rmse=rmse,
        normalised=normalised,
        skill_hold=1.0 - _ratio(total[POLICY], total[HOLD]),
        skill_mean=1.0 - _ratio(total[POLICY], total[MEAN]),
        movement=np.sqrt(_ratio(moved[0], moved[1])),
        overall=overall,
        overall_skill_hold=float(1.0 - _ratio(overall[POLICY], overall[HOLD])),
        overall_skill_mean=float(1.0 - _ratio(overall[POLICY], overall[MEAN])),
        overall_movement=float(np.sqrt(_ratio(np.nansum(by_scale[0]), np.nansum(by_scale[1])))),
        recorded_movement=float(np.sqrt(_mean(_ratio(by_scale[1], np.float64(steps))))),
    )


def horizon(sums: ChunkSums, scale: ArrayLike) -> Floats:
    """Normalised error by source and steps ahead, averaged over the joints that move, (S, K)."""
    mae = _ratio(sums.step_abs, sums.step_count[None, :, None].astype(np.float64))
    return _mean(_ratio(mae, np.asarray(scale, dtype=np.float64)))


def only_episode(sums: ChunkSums, episode: int) -> ChunkSums:
    """The part of the sums that belongs to one episode, without the curves over steps ahead."""
    rows = sums.episode == episode
    return ChunkSums(
        episode=sums.episode[rows],
        count=sums.count[rows],
        abs_error=sums.abs_error[:, rows],
        square_error=sums.square_error[:, rows],
        moved=sums.moved[:, rows],
        step_abs=np.full_like(sums.step_abs, np.nan),
        step_count=np.zeros_like(sums.step_count),
    )


def intervals(sums: ChunkSums, scale: ArrayLike, *, seed: int, resamples: int = RESAMPLES) -> Intervals:
    """Percentile intervals of the skills by a two-stage bootstrap.

    Chunks of one episode resemble each other, so episodes are drawn first, and then chunks in each drawn episode. With
    one episode the interval covers only the variation inside it.

    Args:
        sums: of the chunks to judge.
        scale: unit of each joint's error, (A,).
        seed: of the generator that draws.
        resamples: how often is drawn.
    """
    unit = np.asarray(scale, dtype=np.float64)
    joints = sums.abs_error.shape[2]
    if len(sums.count) < 2:
        return Intervals(
            np.full((joints, 2), np.nan), np.full((joints, 2), np.nan), np.full(2, np.nan), np.full(2, np.nan)
        )
    errors = np.moveaxis(sums.abs_error, 1, 0).reshape(len(sums.count), -1)
    hold, mean = np.empty((resamples, joints)), np.empty((resamples, joints))
    overall_hold, overall_mean = np.empty(resamples), np.empty(resamples)
    for index, times_drawn in enumerate(draw_chunks(sums, seed=seed, resamples=resamples)):
        total = (times_drawn @ errors).reshape(len(SOURCES), joints)
        overall = _mean(total / unit)
        hold[index] = 1.0 - _ratio(total[POLICY], total[HOLD])
        mean[index] = 1.0 - _ratio(total[POLICY], total[MEAN])
        overall_hold[index] = 1.0 - _ratio(overall[POLICY], overall[HOLD])
        overall_mean[index] = 1.0 - _ratio(overall[POLICY], overall[MEAN])
    return Intervals(*(_percentiles(values) for values in (hold, mean, overall_hold, overall_mean)))


def draw_chunks(sums: ChunkSums, *, seed: int, resamples: int = RESAMPLES) -> Iterator[Floats]:
    """Draw episodes, then chunks in each drawn episode, both with replacement.

    Args:
        sums: of the chunks to draw from.
        seed: of the generator that draws.
        resamples: how often is drawn.

    Yields:
        How often each chunk was drawn, (N,).
    """
    # Order by episode and content, so that the draws depend on the set of chunks and not on their order.
    order = np.lexsort((*sums.abs_error[POLICY].T[::-1], sums.count, sums.episode))
    members = np.split(order, np.flatnonzero(np.diff(sums.episode[order])) + 1)
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        chosen = generator.integers(len(members), size=len(members))
        rows = np.concatenate([generator.choice(members[episode], len(members[episode])) for episode in chosen])
        yield np.bincount(rows, minlength=len(order)).astype(np.float64)


def growths(whole: ChunkSums, without: ChunkSums, scale: ArrayLike, *, seed: int) -> tuple[float, Floats]:
    """How much larger the policy's overall error is in a second pass over the same chunks.

    Args:
        whole: sums of the first pass.
        without: sums of the second, the same chunks in the same order.
        scale: unit of each joint's error, (A,).
        seed: of the generator that draws.

    Returns:
        error of the second pass / error of the first - 1, and its 95 % interval over pairs of chunks, (2,); NaN where
        they are not defined.
    """
    unit = np.asarray(scale, dtype=np.float64)
    pairs = np.stack([sums.abs_error[POLICY] for sums in (whole, without)], axis=1)

    def growth(totals: Floats) -> Floats:
        overall = _mean(totals.reshape(2, -1) / unit)
        return _ratio(overall[1], overall[0]) - 1.0

    found = float(growth(pairs.sum(axis=0)))
    if len(whole.count) < 2:
        return found, np.full(2, np.nan)
    flat = pairs.reshape(len(pairs), -1)
    return found, _percentiles(np.array([growth(times_drawn @ flat) for times_drawn in draw_chunks(whole, seed=seed)]))


def _percentiles(values: Floats) -> Floats:
    bad = ~np.isfinite(values)
    bounds: Floats = np.moveaxis(np.percentile(np.where(bad, 0.0, values), (2.5, 97.5), axis=0), 0, -1)
    bounds[np.any(bad, axis=0)] = np.nan
    return bounds


def _ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """Quotient, NaN where the denominator is zero or NaN."""
    below = np.asarray(denominator, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.asarray(numerator, dtype=np.float64) / np.where(below == 0.0, np.nan, below))


def _mean(values: Floats) -> Floats:
    """Mean over the joints that have a number; NaN when none has."""
    known = np.isfinite(values)
    return _ratio(np.where(known, values, 0.0).sum(axis=-1), known.sum(axis=-1).astype(np.float64))
