"""A policy that knows the answers: it recognises an episode by its first picture and plays a script of actions.

It stands in for a trained policy where an evaluation is tested: with the scripts of an expert it succeeds, with none it
stands still, blind it takes a wrong script, and with a wrong instruction it finds none. Register it under its name with
the row `ENTRY`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mimetic.catalog import Entry
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature
from mimetic.fields import setting
from mimetic.names import ACTION, TASK
from mimetic.policies.base import Batch, Policy, take_input
from mimetic.policies.checkpoint import save_pretrained
from mimetic.policies.config import PolicyConfig
from mimetic.processing.standard import standard_pipelines

ENTRY = Entry("mimetic.testing.script_policy:ScriptPolicy", config="mimetic.testing.script_policy:ScriptPolicyConfig")
NAME = "script_policy"
_LETTERS = 64


def _normalization() -> dict[str, NormalizationMode]:
    return dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY)


@dataclass(frozen=True, kw_only=True)
class ScriptPolicyConfig(PolicyConfig):
    """Settings of the stand-in."""

    type_name: ClassVar[str] = NAME
    reads_instructions: ClassVar[bool] = True
    normalization_mapping: dict[str, NormalizationMode] = setting(factory=_normalization, help="Modes by feature type")
    scripts: int = setting(0, "How many scripts there are")
    n_action_steps: int = setting(1, "Length of a script")
    noise: float = setting(0.0, "Standard deviation of noise on each action, drawn from the global generator")


class ScriptPolicy(Policy):
    """See the module.

    Args:
        config: settings; cameras among its inputs, of which the first is looked at.
    """

    config: ScriptPolicyConfig

    def __init__(self, config: ScriptPolicyConfig, *, init_backbone: bool = True) -> None:
        super().__init__(config)
        camera = next(iter(config.image_features.values()))
        size = 1 if config.action_feature is None else int(np.prod(config.action_feature.shape))
        self.register_buffer("first", torch.zeros(config.scripts, *camera.shape))
        self.register_buffer("said", torch.zeros(config.scripts, _LETTERS))
        self.register_buffer("actions", torch.zeros(config.scripts, config.n_action_steps, size))
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._queue: deque[Tensor] = deque()

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Nothing is learnt."""
        loss = (self.weight**2).sum()
        return loss, {"nothing": loss.detach()}

    def predict_chunk(self, batch: Batch) -> Tensor:
        """The script of the episode that the first picture belongs to (1, K, A); zeros where there is none."""
        name, feature = next(iter(self.config.image_features.items()))
        picture = take_input(batch, name, tuple(feature.shape))
        first, said, actions = (self.get_buffer(key) for key in ("first", "said", "actions"))
        mine = (said == _letters(batch[TASK][0])).all(dim=1)
        if not bool(mine.any()):
            return torch.zeros(1, *actions.shape[1:])
        distance = (first - picture).abs().flatten(1).sum(dim=1) + torch.where(mine, 0.0, float("inf"))
        return actions[int(distance.argmin())][None]

    def select_action(self, batch: Batch) -> Tensor:
        """The next action of the script; the last one again and again when it is over."""
        if not self._queue:
            self._queue.extend(self.predict_chunk(batch).transpose(0, 1))
        action = self._queue.popleft()
        if not self._queue:
            self._queue.append(action)
        return action + self.config.noise * torch.randn(action.shape)

    def reset(self) -> None:
        """Forget the episode."""
        self._queue.clear()

    def optim_groups(self) -> list[dict[str, Any]]:
        """Its one parameter."""
        return [{"params": list(self.parameters())}]


@dataclass(frozen=True)
class Script:
    """What to do in an episode.

    Args:
        picture: first picture of the camera (H, W, 3) uint8.
        instruction: task in words.
        actions: (T, A).
    """

    picture: NDArray[np.uint8]
    instruction: str
    actions: NDArray[Any]


def save_scripts(
    folder: Path, scripts: Sequence[Script], features: Mapping[str, PolicyFeature], *, noise: float = 0.0
) -> Path:
    """Write a checkpoint of the stand-in.

    Args:
        folder: made here.
        scripts: episodes that it knows; none: it stands still.
        features: inputs and the action, as a dataset gives them.
        noise: see the config.
    """
    inputs = {key: feature for key, feature in features.items() if feature.type is not FeatureType.ACTION}
    outputs = {key: feature for key, feature in features.items() if feature.type is FeatureType.ACTION}
    steps = max((len(one.actions) for one in scripts), default=1)
    config = ScriptPolicyConfig(
        input_features=inputs,
        output_features=outputs,
        scripts=len(scripts),
        n_action_steps=steps,
        noise=noise,
        device="cpu",
    )
    policy = ScriptPolicy(config)
    for number, one in enumerate(scripts):
        actions = np.concatenate([one.actions, np.repeat(one.actions[-1:], steps - len(one.actions), axis=0)])
        policy.get_buffer("first")[number] = torch.from_numpy(one.picture.transpose(2, 0, 1) / np.float32(255))
        policy.get_buffer("said")[number] = _letters(one.instruction)
        policy.get_buffer("actions")[number] = torch.from_numpy(actions.astype(np.float32))
    pipelines = standard_pipelines(
        input_features=inputs, output_features=outputs, norm_map=config.norm_map, stats={ACTION: {}}
    )
    folder.mkdir(parents=True, exist_ok=True)
    save_pretrained(policy, folder, *pipelines)
    return folder


def _letters(text: str) -> Tensor:
    codes = [ord(letter) % 251 for letter in text[:_LETTERS]]
    return torch.tensor([*codes, *[0] * (_LETTERS - len(codes))], dtype=torch.float32)
