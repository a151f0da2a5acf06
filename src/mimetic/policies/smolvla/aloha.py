"""Conversions between the joint conventions of ALOHA and of pi (spec/smolvla.md 8.4); 14 normalised values."""

from __future__ import annotations

import torch
from torch import Tensor

DIM = 14
_FLIPPED = [1, 2, 8, 9]
_GRIPPERS = [6, 13]


def to_angular(linear: Tensor) -> Tensor:
    """Gripper position, normalised by ALOHA's linear range, to an angle normalised by pi's range."""
    position = linear * (0.05800 - 0.01844) + 0.01844
    ratio = (0.022**2 + position**2 - 0.036**2) / (2 * 0.022 * position)
    return (torch.arcsin(ratio.clamp(-1.0, 1.0)) - 0.4) / (1.5 - 0.4)


def from_angular(angular: Tensor) -> Tensor:
    """Gripper angle, normalised by pi's range, to ALOHA's joint range."""
    return (angular * (1.5 - 0.4) + 0.4 + 0.6213) / (1.4910 + 0.6213)


def from_angular_inv(joint: Tensor) -> Tensor:
    """Inverse of `from_angular`."""
    return (joint * (1.4910 + 0.6213) - 0.6213 - 0.4) / (1.5 - 0.4)


def decode_state(state: Tensor) -> Tensor:
    """(..., 14) in ALOHA's convention -> the policy's; a new tensor."""
    return _converted(state, to_angular)


def encode_actions(actions: Tensor) -> Tensor:
    """(..., 14) predicted by the policy -> ALOHA's convention; a new tensor."""
    return _converted(actions, from_angular)


def decode_actions(actions: Tensor) -> Tensor:
    """(..., 14) recorded in ALOHA's convention -> what the policy learns; a new tensor."""
    return _converted(actions, from_angular_inv)


def _converted(values: Tensor, gripper: object) -> Tensor:
    assert callable(gripper)
    result = values.clone()
    result[..., _FLIPPED] = -values[..., _FLIPPED]
    result[..., _GRIPPERS] = gripper(values[..., _GRIPPERS])
    return result
