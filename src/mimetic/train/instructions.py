"""The texts of a dataset's tasks, looked at before the first step of a policy that follows them."""

from __future__ import annotations

import logging

from mimetic.names import TASK
from mimetic.policies.config import PolicyConfig
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.steps.new_line import EndWithNewLine
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.processing.transition import Transition
from mimetic.train.data import TrainingData

logger = logging.getLogger(__name__)


def check_instructions(policy: PolicyConfig, data: TrainingData, preprocessor: Pipeline) -> None:
    """Warn of tasks without words, and let the tokenizer warn of those that it cuts.

    Otherwise a run tells it only when the first batch with such a task comes, which may be days later.

    Args:
        policy: settings; nothing happens where it does not read instructions.
        data: what is trained on and held out.
        preprocessor: its steps that concern texts are applied.

    Raises:
        MimeticError: the tokenizer is not there or damaged, or cannot read a text.
    """
    if not policy.reads_instructions:
        return
    texts = _texts(data)
    without = sum(not text.strip() for text in texts)
    if without or not texts:
        share = f"{without} of the {len(texts)} tasks have no words" if texts else "no episode has a task"
        logger.warning(
            "the policy follows tasks given in words, and in the dataset %s: it cannot learn there what a text means; "
            "the texts stand in meta/tasks.parquet",
            share,
        )
    if not texts:
        return
    transition = Transition(complementary={TASK: texts})
    for step in (*preprocessor.find(EndWithNewLine), *preprocessor.find(Tokenize)):
        step(transition)


def _texts(data: TrainingData) -> list[str]:
    """The different tasks of the episodes in use, as far as the table of tasks has them: samples take theirs there."""
    views = [data.train] if data.heldout is None else [data.train, data.heldout]
    there = set(data.train.meta.tasks.values())
    episodes = (view.meta.episodes[number] for view in views for number in view.episodes)
    return list(dict.fromkeys(task for episode in episodes for task in episode.tasks if task in there))
