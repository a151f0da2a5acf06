"""What a policy needs of a dataset, as plain values: the command line fills it in, since data knows no policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class PolicyNeeds:
    """A policy, described for the check.

    Args:
        name: type or place of the policy, for messages.
        modes: normalisation mode of each dataset feature that the policy reads or writes, by name.
        inputs: features that the policy expects with their shapes (cameras as (C, H, W)); empty when it takes what the
            dataset has.
        outputs: features that it was made to predict, with their shapes.
        has_camera_slots: cameras are matched by their number, not by name.
        rename: dataset feature to policy feature.
        chunk: actions a chunk.
        max_state: widest state that fits; 0 for no limit.
        max_action: widest action that fits; 0 for no limit.
        resolution: (height, width) to which pictures are brought; None when they are taken as they are.
        reads_instructions: whether it follows the task's words.
        long_tasks: tasks that its tokenizer would cut, with their tokens.
        token_limit: tokens that it reads; 0 when it reads none or it is not known.
        fps: rate of the data that it was trained on; 0 when it is not known.
        problems: what is wrong with the checkpoint itself: (message, hint).
    """

    name: str
    modes: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    has_camera_slots: bool = False
    rename: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 0
    max_state: int = 0
    max_action: int = 0
    resolution: tuple[int, int] | None = None
    reads_instructions: bool = False
    long_tasks: Mapping[str, int] = field(default_factory=dict)
    token_limit: int = 0
    fps: float = 0.0
    problems: tuple[tuple[str, str], ...] = ()
