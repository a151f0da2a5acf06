"""What a run says before its first step (spec/training.md 12)."""

from __future__ import annotations

import logging
from pathlib import Path

from mimetic.policies.base import Policy
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData
from mimetic.train.metrics import big_number

logger = logging.getLogger(__name__)


def show_banner(config: TrainConfig, data: TrainingData, policy: Policy, folder: Path) -> None:
    """Log the sizes of a run, in LeRobot's words."""
    total = sum(p.numel() for p in policy.parameters())
    trainable = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    accumulation = config.accelerator.gradient_accumulation.steps
    effective = f"{config.batch_size} x 1" + (f" x {accumulation} grad accum" if accumulation > 1 else "")
    logger.info("Output dir: %s", folder)
    logger.info("cfg.steps=%d (%s)", config.steps, big_number(config.steps))
    logger.info("dataset.num_frames=%d (%s)", len(data.train), big_number(len(data.train)))
    logger.info("dataset.num_episodes=%d", data.num_episodes)
    logger.info("Effective batch size: %s = %d", effective, config.batch_size * accumulation)
    if data.padded_share > 0:
        logger.info(
            "padded action steps: %.1f %% (beyond the end of their episode, not in the loss)", 100 * data.padded_share
        )
    logger.info("num_learnable_params=%d (%s)", trainable, big_number(trainable))
    logger.info("num_total_params=%d (%s)", total, big_number(total))
    logger.info(
        "Start offline training on a fixed dataset, with effective batch size: %d", config.batch_size * accumulation
    )
