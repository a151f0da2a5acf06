"""The keypoint policy: batches to the network, the loss, and the queue of actions."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from mimetic.errors import ConfigError, ShapeError
from mimetic.names import ACTION, PAD_SUFFIX, STATE
from mimetic.policies.base import Batch, Policy, take_input, valid_divisor
from mimetic.policies.keypoint.augment import jittered, shifted
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.keypoint.network import KeypointNetwork

_MOTION_NOISE = 0.5
"""Noise on the change of the joint positions, as a share of that on themselves: it varies about half as much."""


class KeypointPolicy(Policy):
    """Keypoints in the pictures, then a chunk of actions; it learns on a CPU within minutes.

    Args:
        config: settings with input and output features.
        init_backbone: has no meaning here; there are no released weights to fetch.

    Raises:
        ConfigError: the config has problems.
    """

    config: KeypointConfig

    def __init__(self, config: KeypointConfig, *, init_backbone: bool = True) -> None:
        super().__init__(config)
        problems = config.check()
        if config.action_feature is None:
            problems.append("the keypoint policy needs the output `action` with its shape, taken from the dataset")
        if not config.image_features:
            problems.append("the keypoint policy needs at least one camera among its inputs")
        if problems:
            raise ConfigError("; ".join(dict.fromkeys(problems)))
        self.model = KeypointNetwork(config)
        self._queue: deque[Tensor] = deque()
        self._states: dict[int, Tensor] = {}
        self._tick = 0

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean absolute error over the valid actions. See `Policy.loss`."""
        feature = self.config.action_feature
        assert feature is not None
        actions = take_input(batch, ACTION, (self.config.chunk_size, *feature.shape))
        padding = batch.get(ACTION + PAD_SUFFIX)
        if not isinstance(padding, Tensor) or padding.shape != actions.shape[:2]:
            raise ShapeError(
                f"the loss needs `{ACTION + PAD_SUFFIX}` with shape {tuple(actions.shape[:2])}",
                "it marks actions after the end of an episode; the dataset reader delivers it with action windows",
            )
        valid = ~padding.bool()[:, :, None]
        actions = torch.where(valid, actions, torch.zeros_like(actions))  # a NaN in the padding would spread
        error = (actions - self._run(batch)).abs() * valid
        loss = error.sum() / valid_divisor(batch, valid, error.shape[-1])
        return loss, {"l1_loss": loss.detach()}

    @torch.no_grad()
    def predict_chunk(self, batch: Batch) -> Tensor:
        """Predict one action chunk (B, K, A); see `Policy.predict_chunk`.

        With `motion_frames` the joint positions are (B, 2, P): those of that many frames ago, and those of now.
        """
        self.eval()
        return self._run(batch)

    @torch.no_grad()
    def select_action(self, batch: Batch) -> Tensor:
        """The next action (B, A); every `n_action_steps` calls a chunk is predicted and queued.

        The joint positions are those of now (B, P): earlier ones are remembered from call to call.
        """
        if self._reads_motion and self._reads_now():
            self._remember(batch)
        if not self._queue:
            batch = self._with_motion(batch) if self._reads_motion else batch
            chunk = self.predict_chunk(batch)[:, : self.config.n_action_steps]
            self._queue.extend(chunk.transpose(0, 1))
        self._tick += 1
        return self._queue.popleft()

    def needs_observation(self) -> bool:
        """Whether a chunk is predicted now, or a later prediction needs to know where the joints are now."""
        return self._reads_now()

    def predicts_next(self) -> bool:
        """Whether the queue is empty; until then joint positions are only remembered."""
        return not self._queue

    def reset(self) -> None:
        """Empty the queue, and forget where the joints were."""
        self._queue.clear()
        self._states.clear()
        self._tick = 0

    def optim_groups(self) -> list[dict[str, Any]]:
        """Hidden layers; convolutions; the straight way from state to actions, which is never decayed towards zero."""
        config, model = self.config, self.model
        groups: list[dict[str, Any]] = [
            {"params": [p for p in model.head.parameters() if p.requires_grad]},
            {
                "params": [p for p in model.cameras.parameters() if p.requires_grad],
                "weight_decay": config.optimizer_weight_decay_cameras,
            },
        ]
        if model.straight is not None:
            straight = [p for p in model.straight.parameters() if p.requires_grad]
            groups.append({"params": straight, "weight_decay": 0.0})
        return groups

    @property
    def _reads_motion(self) -> bool:
        return bool(self.config.motion_frames and self.config.robot_state_feature is not None)

    def _reads_now(self) -> bool:
        left = len(self._queue)
        if not left or not self._reads_motion:
            return not left
        ahead = self.config.motion_frames - left
        return ahead >= 0 and ahead % self.config.n_action_steps == 0

    def _remember(self, batch: Batch) -> None:
        """Keep where the joints are now, and forget what no later prediction asks for."""
        feature, oldest = self.config.robot_state_feature, self._tick - self.config.motion_frames
        assert feature is not None
        self._states = {tick: state for tick, state in self._states.items() if tick >= oldest}
        self._states[self._tick] = take_input(batch, STATE, feature.shape)

    def _with_motion(self, batch: Batch) -> Batch:
        """The batch with the joint positions of `motion_frames` ago; before an episode began, they were as it began."""
        before = self._states[max(0, self._tick - self.config.motion_frames)]
        return {**batch, STATE: torch.stack([before, self._states[self._tick]], 1)}

    def _run(self, batch: Batch) -> Tensor:
        config, feature = self.config, self.config.robot_state_feature
        pictures = [take_input(batch, key, camera.shape) for key, camera in config.image_features.items()]
        state, seen = None, list[Tensor]()
        if feature is not None and self._reads_motion:
            before, state = take_input(batch, STATE, (2, *feature.shape)).unbind(1)
            seen = [state, state - before]
        elif feature is not None:
            state = take_input(batch, STATE, feature.shape)
            seen = [state]
        if self.training:
            if config.image_shift:
                pictures = [shifted(picture, config.image_shift) for picture in pictures]
            if config.color_jitter:
                pictures = [jittered(picture, config.color_jitter) for picture in pictures]
            if config.state_noise:
                strengths = (config.state_noise, config.state_noise * _MOTION_NOISE)
                seen = [one + strength * torch.randn_like(one) for one, strength in zip(seen, strengths, strict=False)]
        chunk: Tensor = self.model(pictures, state, seen)
        return chunk.to(torch.promote_types(chunk.dtype, torch.float32))
