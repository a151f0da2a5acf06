"""Writing an old checkpoint in today's form (spec/policies.md 7)."""

from __future__ import annotations

from pathlib import Path

from mimetic.errors import CheckpointError
from mimetic.hub.policies import find_policy
from mimetic.policies.checkpoint import load_pretrained, read_config, save_pretrained
from mimetic.policies.legacy import has_pipelines
from mimetic.policies.pipelines import legacy_stats
from mimetic.policies.report import LoadReport


def migrate(source: Path, target: Path, *, stats_dataset: str | None = None) -> LoadReport:
    """Write an old checkpoint in today's form: config, weights without statistics, pipelines.

    Args:
        source: a checkpoint without pipeline files.
        target: folder to write; absent or empty.
        stats_dataset: whose statistics to take where the checkpoint holds those of several datasets.

    Raises:
        CheckpointError: the source has pipelines already, or the target is not empty.
        StatsError: statistics are missing, incomplete or ambiguous.
        KeyMismatch: the weights do not fit the config.
    """
    source = find_policy(source)
    if has_pipelines(source):
        raise CheckpointError(f"`{source}` has its pipelines already, so there is nothing to migrate")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"`{target}` is not empty", "choose another folder with `--migrate_to`")
    stored = read_config(source)
    # A migrated file holds the numbers of the old one, so nothing may be rounded to what this machine computes in.
    exact = {"precision": "float32"} if hasattr(stored, "precision") else None
    loaded = load_pretrained(source, stats_dataset=stats_dataset, config_overrides=exact)
    _, norm_map = legacy_stats(source, stored)
    if norm_map != stored.norm_map:
        stored = read_config(source, {"normalization_mapping": norm_map})
    loaded.policy.config = stored
    save_pretrained(loaded.policy, target, loaded.preprocessor, loaded.postprocessor)
    return loaded.report
