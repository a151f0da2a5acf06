"""A policy that plays in an evaluation: loaded, with where it comes from and what it is."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from mimetic.accelerators.precision import Precision
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.loading import changed_settings, evaluation_precision
from mimetic.evaluate.rollout.player import Alter, Player
from mimetic.hub.policies import find_policy
from mimetic.names import MIMETIC_JSON, TRAIN_CONFIG_JSON
from mimetic.policies.checkpoint import Pretrained, load_pretrained

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Contestant:
    """A policy that plays.

    Args:
        loaded: with its pipelines.
        folder: where it comes from.
        words: for messages.
        digest: SHA-256 of the files that decide what it does.
        precision: that it predicts in.
    """

    loaded: Pretrained
    folder: Path
    words: str
    digest: str
    precision: Precision

    def player(self, alter: Alter | None = None) -> Player:
        """It, ready to play.

        Args:
            alter: changes a raw batch in place before the policy sees it.
        """
        loaded = self.loaded
        return Player(loaded.policy, loaded.preprocessor, loaded.postprocessor, alter=alter, precision=self.precision)


def load_contestant(config: EvalConfig, place: str, device: str, revision: str | None, *, own: bool) -> Contestant:
    """Load a policy of an evaluation.

    Args:
        config: settings.
        place: folder, run or hub id.
        device: to run on.
        revision: on the hub.
        own: whether it is the evaluated policy, whose settings may be changed, and not the one of `--compare`.

    Raises:
        MimeticError: it cannot be loaded.
    """
    assert config.policy is not None
    folder = find_policy(place, revision=revision)
    loaded = load_pretrained(
        folder,
        device=device,
        config_overrides=changed_settings(config.policy, folder) if own else None,
        allow_missing=config.allow_missing,
        stats_dataset=config.stats_dataset,
        rename_map=config.rename_map,
    )
    logger.info("policy: %s, %s", folder, loaded.report.summary())
    words = "the policy" if own else f"the policy of `--compare={place}`"
    precision = evaluation_precision(loaded.config, torch.device(device))
    return Contestant(loaded, folder, words, _digest(folder), precision)


def _digest(folder: Path) -> str:
    """SHA-256 of the files that decide what a policy does: weights, settings, pipelines; not how it was trained."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".json") and path.name not in (TRAIN_CONFIG_JSON, MIMETIC_JSON):
            with path.open("rb") as file:
                whole.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
