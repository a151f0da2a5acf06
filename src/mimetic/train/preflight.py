"""What is checked of a dataset before the first step, beyond what opening it and building the policy already refuse.

The rules are those of `mimetic dataset check` that look at metadata, statistics and tasks, with the rows that training
has in memory. Missing rows, short videos, task numbers, absent features and missing statistics are told by the steps
before; faults that mimetic reads around (a gap in the numbering, a wrong file number) are logged there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.policy_rules import check_policy
from mimetic.data.check.results import Results
from mimetic.data.check.rows import CheckRows
from mimetic.data.check.source import CheckSource, open_source
from mimetic.data.check.stats_rules import check_statistics
from mimetic.data.check.task_rules import check_tasks
from mimetic.data.check.video_rules import check_videos
from mimetic.data.reader import Dataset
from mimetic.data.stream import Stream
from mimetic.errors import DatasetError
from mimetic.policies.config import PolicyConfig
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.needs import policy_needs

logger = logging.getLogger(__name__)

REFUSED = ("meta.video_span", "meta.video_order", "stats.present", "stats.match", "stats.quantile_mean", "policy.width")
"""Rules whose defects stop a run; the others are told by what comes before."""
WARNED = ("task.variants", "stats.outlier", "meta.video_span", "meta.video_order")
_LANGUAGE = ("task.placeholder", "task.similar")
SAMPLED_ROWS = 100_000
_SUBSET = 0.1


def preflight(config: TrainConfig, data: TrainingData, policy: PolicyConfig) -> list[Finding]:
    """Check the dataset of a new run; a resumed one was checked when it began.

    Args:
        config: settings of the run.
        data: what is trained on.
        policy: settings with the features of the dataset.

    Returns:
        What was found and told.

    Raises:
        DatasetError: there is a defect, and `--preflight=refuse`.
    """
    if config.preflight == "off" or config.resume:
        return []
    source = _source(data)
    results = Results(source.root)
    needs = policy_needs(
        policy,
        source.features,
        name=f"policy `{policy.type_name}`",
        rename_map=config.rename_map,
        use_imagenet_stats=config.dataset.use_imagenet_stats,
    )
    check_videos(source, results, with_headers=False)
    check_tasks(source, results)
    check_statistics(source, results, needs, most_rows=SAMPLED_ROWS)
    check_policy(source, results, needs)
    warned = (*WARNED, *_LANGUAGE) if policy.reads_instructions else WARNED
    used = _used_episodes(data)
    found = [finding for finding in results.findings if _concerns(finding, used)]
    risks = [finding for finding in found if finding.claim is Claim.RISK and finding.id in warned]
    defects = [finding for finding in found if finding.claim is Claim.DEFECT and finding.id in REFUSED]
    _tell_subset(data, needs)
    for finding in risks:
        logger.warning("%s: %s (%s)", finding.id, finding.message, finding.impact)
    if defects and config.preflight == "refuse":
        _refuse(source, defects)
    for finding in defects:
        logger.warning("%s: %s; %s (--preflight=warn goes on)", finding.id, finding.message, finding.impact)
    return [*defects, *risks]


def _tell_subset(data: TrainingData, needs: PolicyNeeds) -> None:
    """Note features whose statistics, those of the whole dataset, do not fit the episodes that are trained on."""
    opened = data.train.source
    if isinstance(data.train, Stream) or len(data.train.episodes) == data.train.meta.total_episodes:
        return  # a stream has no rows in memory
    for key in needs.modes:
        stored, column = data.train.meta.stats.get(key, {}), opened.rows.columns.get(key)
        if column is None or column.dtype.kind != "f" or column.ndim > 2 or not {"mean", "std"} <= set(stored):
            continue
        values = data.train.column(key)[:: max(1, len(data.train) // SAMPLED_ROWS)].astype(np.float64)
        spread = np.maximum(np.asarray(stored["std"], dtype=np.float64), 1e-8)
        off = np.abs(np.stack([values.mean(axis=0) - stored["mean"], values.std(axis=0) - stored["std"]])) / spread
        if np.isfinite(off).all() and off.max() > _SUBSET:
            logger.info(
                "stats.subset: the statistics of `%s` are those of the whole dataset; the episodes in use differ from "
                "them by up to %.0f %% of a deviation",
                key,
                100 * off.max(),
            )


def _refuse(source: CheckSource, defects: list[Finding]) -> None:
    told = "; ".join(f"{finding.id}: {finding.message}" for finding in defects[:3])
    more = f"; {len(defects) - 3} more" if len(defects) > 3 else ""
    repairs = list(dict.fromkeys(finding.repair for finding in defects if finding.repair))[:3]
    advice = [f"`{repair}` mends it" for repair in repairs]
    raise DatasetError(
        f"dataset `{source.root}` would train a wrong policy: {told}{more}",
        "\n".join([*advice, "`--preflight=warn` trains on it as it is"]),
    )


def _source(data: TrainingData) -> CheckSource:
    """The dataset's metadata, and the rows in memory when they are those of the whole dataset."""
    source = open_source(data.train.root, with_rows=False)
    rows = _whole_rows(data.train, source)
    return source if rows is None else replace(source, rows=rows)


def _whole_rows(train: Dataset, source: CheckSource) -> CheckRows | None:
    opened = train.source
    if isinstance(train, Stream) or source.ledger is None or opened.rows.unreadable:
        return None  # a stream has no rows in memory
    rows, runs = opened.rows, opened.runs
    if not np.array_equal(np.unique(runs.episode), np.unique(source.ledger.index)):
        return None
    return CheckRows(
        columns=rows.columns,
        files=rows.files,
        starts=rows.starts,
        episode=runs.episode,
        run_start=runs.start,
        run_end=runs.end,
    )


def _used_episodes(data: TrainingData) -> set[int]:
    views = [data.train] if data.heldout is None else [data.train, data.heldout]
    return {episode for view in views for episode in view.episodes}


def _concerns(finding: Finding, used: Collection[int]) -> bool:
    return not finding.episodes or any(episode in used for episode in finding.episodes)
