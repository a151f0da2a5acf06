"""The value that travels through a pipeline: one batch, split by role (spec/policies.md 5, "Data flow")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mimetic.names import ACTION, DONE, EPISODE_INDEX, INDEX, PAD_SUFFIX, REWARD, TASK, TASK_INDEX, TIMESTAMP, TRUNCATED

_OBSERVATION_PREFIX = "observation."
_INFO = "info"
COMPLEMENTARY_KEYS = (
    TASK,
    INDEX,
    TASK_INDEX,
    EPISODE_INDEX,
    TIMESTAMP,
    "language_persistent",
    "language_events",
    "messages",
    "message_streams",
    "target_message_indices",
)
"""Keys besides `*_is_pad` that travel with a batch and are no observation."""


@dataclass(slots=True)
class Transition:
    """One batch, split by role. Its dicts are its own, so that steps may change them; the tensors in them are shared.

    Args:
        observation: everything that starts with `observation.`.
        action: actions, (B, A), (B, K, A) or (A,); None when the batch has none.
        reward: `next.reward`.
        done: `next.done`.
        truncated: `next.truncated`.
        info: free values of environments.
        complementary: padding masks, task texts and indices.
    """

    observation: dict[str, Any] = field(default_factory=dict)
    action: Tensor | None = None
    reward: Any = 0.0
    done: Any = False
    truncated: Any = False
    info: Any = field(default_factory=dict)
    complementary: dict[str, Any] = field(default_factory=dict)


def split_batch(batch: Mapping[str, Any]) -> Transition:
    """Sort the entries of a flat batch by role; what has no role is dropped (`frame_index`, `robot_type`, ...).

    `observation.*_is_pad` counts as an observation only; LeRobot files a second reference under complementary data.
    """
    observation: dict[str, Any] = {}
    complementary: dict[str, Any] = {}
    for key, value in batch.items():
        if key.startswith(_OBSERVATION_PREFIX):
            observation[key] = value
        elif PAD_SUFFIX in key:
            complementary[key] = value
    for key in COMPLEMENTARY_KEYS:
        if key in batch:
            complementary[key] = batch[key]
    return Transition(
        observation,
        batch.get(ACTION),
        batch.get(REWARD, 0.0),
        batch.get(DONE, False),
        batch.get(TRUNCATED, False),
        batch.get(_INFO, {}),
        complementary,
    )


def join_batch(transition: Transition) -> dict[str, Any]:
    """Flat batch of a transition; `action` is there even when it is None, as LeRobot hands it over."""
    return {
        ACTION: transition.action,
        REWARD: transition.reward,
        DONE: transition.done,
        TRUNCATED: transition.truncated,
        _INFO: transition.info,
        **transition.complementary,
        **transition.observation,
    }
