"""What comparing episodes is worth: too many flagged, or scores that only measure length (dataset_quality 1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mimetic.data.check.finding import Claim
from mimetic.data.check.results import Results
from mimetic.data.check.scores import LEAST_EPISODES, rank_correlation, robust_z
from mimetic.data.check.source import CheckSource

Floats = npt.NDArray[np.float64]

RELATIVE = ("action.tracking", "motion.smoothness", "motion.length", "motion.end", "motion.start", "state.spike")
COMPOSITE = {
    "sal": (-1.0, 0.1, 0.0),
    "high_frequency_share": (1.0, 0.1, 0.03),
    "path_ratio": (1.0, 0.1, 0.0),
    "idle_middle_share": (1.0, 0.0, 0.03),
    "tracking_error": (1.0, 0.1, 0.005),
}
"""Measure -> (sign that makes large unusual, relative floor, absolute floor) of the review order."""
_MOST_RHO, _MOST_FLAGGED, _CLIP = 0.7, 0.5, 5.0


def check_review(source: CheckSource, results: Results) -> None:
    """Rank episodes for review, tell how far that only ranks length, and whether most episodes are called unusual."""
    lengths = source.lengths.astype(np.float64)
    if len(lengths) < LEAST_EPISODES:
        results.skip(("review.assumption", "review.length"), f"comparing episodes needs {LEAST_EPISODES} of them")
        return
    results.apply("review.assumption", "review.length")
    if "idle_middle_s" in results.measures and source.fps:
        results.measure("idle_middle_share", results.measures["idle_middle_s"] * source.fps / np.maximum(lengths, 1))
    parts = [
        np.clip(
            sign * robust_z(results.measures[name], relative_floor=relative, absolute_floor=absolute), -_CLIP, _CLIP
        )
        for name, (sign, relative, absolute) in COMPOSITE.items()
        if name in results.measures and np.isfinite(results.measures[name]).sum() >= LEAST_EPISODES
    ]
    if parts:
        stacked = np.stack(parts)
        known = np.isfinite(stacked)
        count = known.sum(axis=0)
        total = np.where(known, stacked, 0.0).sum(axis=0)
        results.measure("review_order", np.where(count > 0, total / np.maximum(count, 1), np.nan))
    correlation = {name: rank_correlation(values, lengths) for name, values in results.measures.items()}
    results.facts["length_correlation"] = {
        name: round(rho, 3) for name, rho in correlation.items() if np.isfinite(rho) and name != "context"
    }
    rho = correlation.get("review_order", float("nan"))
    if abs(rho) > _MOST_RHO:
        results.add(
            "review.length",
            f"the order for review goes with the length of the episodes (rank correlation {rho:+.2f}): it tells long "
            "from short, not good from bad",
            value=round(rho, 3),
            threshold=_MOST_RHO,
        )
    flagged = {
        episode
        for finding in results.findings
        if finding.id in RELATIVE and finding.claim is Claim.RISK
        for episode in finding.episodes
    }
    if len(flagged) > _MOST_FLAGGED * len(lengths):
        results.add(
            "review.assumption",
            f"{len(flagged)} of {len(lengths)} episodes are called unusual: that most of them are fine, on which these "
            "comparisons rest, does not hold",
            value=round(len(flagged) / len(lengths), 3),
            threshold=_MOST_FLAGGED,
        )
