"""`to_batch_processor`: a single sample becomes a batch of one; a batch passes unchanged."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from mimetic.names import ENVIRONMENT_STATE, FEATURES_PREFIX, IMAGE, IMAGES_PREFIX, INDEX, STATE, TASK, TASK_INDEX
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition


class ToBatch(Step):
    """Adds the batch dimension where it is missing, judged by each entry's own number of dimensions."""

    registry_name: ClassVar[str] = "to_batch_processor"

    def __call__(self, transition: Transition) -> None:
        """Unsqueeze vectors of 1 dim, cached features of 2, images of 3, indices of 0; wrap bare texts and messages."""
        action = transition.action
        if action is not None and action.dim() == 1:
            transition.action = action.unsqueeze(0)
        observation = transition.observation
        for key, value in observation.items():
            if isinstance(value, torch.Tensor) and value.dim() == _single_dims(key):
                observation[key] = value.unsqueeze(0)
        _batch_complementary(transition.complementary)


def _single_dims(key: str) -> int:
    """Number of dims of one sample; -1 for keys that this step leaves alone."""
    if key in (STATE, ENVIRONMENT_STATE):
        return 1
    if key == IMAGE or key.startswith(IMAGES_PREFIX):
        return 3
    if key.startswith(FEATURES_PREFIX):  # (tokens, width)
        return 2
    return -1


def _batch_complementary(data: dict[str, Any]) -> None:
    task = data.get(TASK)
    if isinstance(task, str):
        data[TASK] = [task]
    for key in (INDEX, TASK_INDEX):
        value = data.get(key)
        if isinstance(value, torch.Tensor) and value.dim() == 0:
            data[key] = value.unsqueeze(0)
    data.pop("language_persistent", None)
    data.pop("language_events", None)
    for key in ("messages", "message_streams", "target_message_indices"):
        value = data.get(key)
        # One sample is a flat list (of messages, names or numbers); a batch is a list of such lists.
        if isinstance(value, list) and value and not isinstance(value[0], list):
            data[key] = [value]
