"""Predicted chunks against a recording, batch after batch, without a policy and without a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mimetic.errors import CheckpointError
from mimetic.evaluate.episodes import spread
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.metrics import (
    Bools,
    ChunkSums,
    Floats,
    Intervals,
    Ints,
    Scores,
    chunk_sums,
    horizon,
    intervals,
    join,
    joint_scale,
    only_episode,
    summarise,
)
from mimetic.evaluate.recording import Recording

MOST_TRACES = 3
"""Episodes whose predictions are kept for pictures."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One episode for pictures: T frames, n predicted chunks of K steps, A joints, dataset units.

    Args:
        episode: its number.
        recorded: recorded actions, (T, A).
        starts: frames at which chunks were predicted, (n,).
        predicted: the chunks, (n, K, A).
        hold: the pose that holding still sends at those frames, (n, A).
    """

    episode: int
    recorded: Floats
    starts: Ints
    predicted: Floats
    hold: Floats


@dataclass(frozen=True, kw_only=True)
class EpisodeScores:
    """Numbers of one episode.

    Args:
        episode: its number.
        frames: its length.
        task: its instruction.
        scores: of its chunks.
    """

    episode: int
    frames: int
    task: str
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Numbers of one pass over the evaluated episodes.

    Args:
        scale: standard deviation of the recorded action by joint, (A,), NaN for joints that stand still.
        scores: of all chunks.
        bounds: intervals of the skills.
        horizon: normalised error by source and steps ahead, (S, K).
        step_count: chunks that are valid so many steps ahead, (K,).
        episodes: numbers by episode.
        traces: episodes for pictures.
        chunk_size: steps of a predicted chunk.
        sums: of all chunks, to compare this pass with another one.
    """

    scale: Floats
    scores: Scores
    bounds: Intervals
    horizon: Floats
    step_count: Ints
    episodes: tuple[EpisodeScores, ...]
    traces: tuple[Trace, ...]
    chunk_size: int
    sums: ChunkSums


def compare(
    recording: Recording,
    predictions: Iterable[tuple[Ints, Floats]],
    *,
    hold: HoldPose,
    mean: Floats,
    training_std: Floats | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare predicted chunks with a recording.

    Args:
        recording: of the evaluated episodes.
        predictions: rows (n,) with the chunks (n, K, A) predicted at them, batch after batch, in dataset units.
        hold: what holding still means.
        mean: mean action, (A,).
        training_std: deviation of the action in training, (A,); tells joints that stand still.
        seed: of the intervals.

    Raises:
        CheckpointError: a prediction is not finite.
        ShapeError: predictions do not have the recording's dimensions, or there are none.
    """
    scale = joint_scale(recording.actions, training_std)
    pictured = [recording.spans[index].episode for index in spread(len(recording.spans), MOST_TRACES)]
    sums: list[ChunkSums] = []
    kept: dict[int, list[tuple[Ints, Floats]]] = {episode: [] for episode in pictured}
    steps = 0
    for rows, chunks in predictions:
        episode, _ = recording.spans_of(rows)
        steps = chunks.shape[1]
        recorded, valid = recording.chunks(rows, steps)
        _require_finite(chunks, valid, rows, recording)
        sums.append(chunk_sums(chunks, recorded, valid, hold=recording.poses(rows, hold), mean=mean, episode=episode))
        for number in pictured:
            mask = episode == number
            if mask.any():
                kept[number].append((rows[mask], chunks[mask]))
    total = join(sums)
    return Comparison(
        scale=scale,
        scores=summarise(total, scale),
        bounds=intervals(total, scale, seed=seed),
        horizon=horizon(total, scale),
        step_count=total.step_count,
        episodes=tuple(
            EpisodeScores(
                episode=span.episode,
                frames=span.frames,
                task=span.task,
                scores=summarise(only_episode(total, span.episode), scale),
            )
            for span in recording.spans
            if np.any(total.episode == span.episode)
        ),
        traces=tuple(_trace(recording, number, parts, hold) for number, parts in kept.items() if parts),
        chunk_size=steps,
        sums=total,
    )


def _require_finite(chunks: Floats, valid: Bools, rows: Ints, recording: Recording) -> None:
    bad = np.argwhere(~np.isfinite(chunks) & valid[..., None])
    if len(bad):
        row = int(rows[bad[0][0]])
        span = next(span for span in recording.spans if span.first <= row < span.last)
        raise CheckpointError(
            "the policy predicts values that are not finite, "
            f"first in episode {span.episode} at frame {row - span.first}",
            "its weights or statistics are damaged; try an earlier checkpoint",
        )


def _trace(recording: Recording, episode: int, parts: Sequence[tuple[Ints, Floats]], hold: HoldPose) -> Trace:
    span = next(span for span in recording.spans if span.episode == episode)
    rows = np.concatenate([rows for rows, _ in parts])
    return Trace(
        episode=episode,
        recorded=recording.actions[span.first : span.last],
        starts=rows - span.first,
        predicted=np.concatenate([chunks for _, chunks in parts]).astype(np.float64),
        hold=recording.poses(rows, hold),
    )
