"""ACT as a policy: batches to the network, the loss, and the queue of actions (spec/act.md).

What it leaves to others: normalisation (`processing`), loading and saving (`policies/checkpoint.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from mimetic.errors import ConfigError, ShapeError
from mimetic.names import ACTION, PAD_SUFFIX, STATE
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.ensemble import TemporalEnsemble
from mimetic.policies.act.network import ACTNetwork, DecoderLayer, EncoderLayer, Prediction
from mimetic.policies.base import Batch, Policy, take_input, valid_divisor
from mimetic.policies.bricks.imagenet import load_imagenet_weights
from mimetic.policies.bricks.resnet import BasicBlock, Bottleneck
from mimetic.policies.repeated_layers import LayerClass

_BACKBONE = "model.backbone"


class ACTPolicy(Policy):
    """Action Chunking with Transformers.

    Args:
        config: settings with input and output features.
        init_backbone: fetch the ImageNet weights that the config names; false when a checkpoint is about to be loaded.

    Raises:
        ConfigError: the config has problems, or the ImageNet weights cannot be had.
    """

    config: ACTConfig
    layer_classes = (
        LayerClass(EncoderLayer, "encoder layers"),
        LayerClass(DecoderLayer, "decoder layers"),
        LayerClass(BasicBlock, "ResNet blocks", is_uniform=False),
        LayerClass(Bottleneck, "ResNet blocks", is_uniform=False),
    )

    def __init__(self, config: ACTConfig, *, init_backbone: bool = True) -> None:
        super().__init__(config)
        problems = config.check()
        if config.action_feature is None:
            problems.append("ACT needs the output `action` with its shape; it is taken from the dataset")
        if not config.image_features and config.env_state_feature is None:
            problems.append("ACT needs at least one camera or `observation.environment_state` among its inputs")
        if problems:
            raise ConfigError("; ".join(dict.fromkeys(problems)))
        self.model = ACTNetwork(config)  # checkpoint name
        if init_backbone and config.image_features and config.pretrained_backbone_weights is not None:
            load_imagenet_weights(self.model.backbone, config.vision_backbone, config.pretrained_backbone_weights)
        self._ensemble = (
            None
            if config.temporal_ensemble_coeff is None
            else TemporalEnsemble(config.temporal_ensemble_coeff, config.chunk_size)
        )
        self._queue: deque[Tensor] = deque()

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean absolute error over the valid actions, plus the KL term in training with the variational encoder.

        See `Policy.loss`. In evaluation mode the latent is zero and there is no KL term.
        """
        feature = self.config.action_feature
        assert feature is not None
        actions = take_input(batch, ACTION, (self.config.chunk_size, *feature.shape))
        valid = ~self._take_padding(batch, actions)[:, :, None]
        # Zero instead of the padding's values: they are hidden in attention and carry no loss, but a NaN would spread.
        actions = torch.where(valid, actions, torch.zeros_like(actions))
        predicted = self._run(batch, actions if self.training else None, ~valid[:, :, 0])
        chunk = predicted.actions.to(torch.promote_types(predicted.actions.dtype, torch.float32))
        error = (actions - chunk).abs() * valid
        l1 = error.sum() / valid_divisor(batch, valid, error.shape[-1])
        if predicted.mu is None or predicted.log_sigma_x2 is None:
            return l1, {"l1_loss": l1.detach()}
        mu, log_sigma_x2 = predicted.mu, predicted.log_sigma_x2
        kld = (-0.5 * (1 + log_sigma_x2 - mu.pow(2) - log_sigma_x2.exp())).sum(-1).mean()
        loss = l1 + kld * self.config.kl_weight
        return loss, {"l1_loss": l1.detach(), "kld_loss": kld.detach()}

    @torch.no_grad()
    def predict_chunk(self, batch: Batch) -> Tensor:
        """Predict one action chunk (B, K, A); see `Policy.predict_chunk`."""
        self.eval()
        return self._run(batch, None, None).actions

    @torch.no_grad()
    def select_action(self, batch: Batch) -> Tensor:
        """The next action (B, A).

        Every `n_action_steps` calls a chunk is predicted and queued; with temporal ensembling every call predicts.
        """
        if self._ensemble is not None:
            return self._ensemble.update(self.predict_chunk(batch))
        if not self._queue:
            chunk = self.predict_chunk(batch)[:, : self.config.n_action_steps]
            self._queue.extend(chunk.transpose(0, 1))
        return self._queue.popleft()

    def needs_observation(self) -> bool:
        """Whether the queue is empty; with temporal ensembling always."""
        return self._ensemble is not None or not self._queue

    def reset(self) -> None:
        """Empty the queue and forget averages."""
        self._queue.clear()
        if self._ensemble is not None:
            self._ensemble.reset()

    def optim_groups(self) -> list[dict[str, Any]]:
        """Everything but the backbone, then the backbone (possibly empty) with its own learning rate."""
        trainable = [(name, p) for name, p in self.named_parameters() if p.requires_grad]
        return [
            {"params": [p for name, p in trainable if not name.startswith(_BACKBONE)]},
            {
                "params": [p for name, p in trainable if name.startswith(_BACKBONE)],
                "lr": self.config.optimizer_lr_backbone,
            },
        ]

    def _run(self, batch: Batch, actions: Tensor | None, action_is_pad: Tensor | None) -> Prediction:
        config = self.config
        state, env_state, env_key = config.robot_state_feature, config.env_state_feature, config.env_state_key
        prediction: Prediction = self.model(
            state=take_input(batch, STATE, state.shape) if state is not None else None,
            env_state=take_input(batch, env_key, env_state.shape) if env_state is not None and env_key else None,
            images=[take_input(batch, key, camera.shape) for key, camera in config.image_features.items()],
            actions=actions,
            action_is_pad=action_is_pad,
        )
        return prediction

    def _take_padding(self, batch: Batch, actions: Tensor) -> Tensor:
        key = ACTION + PAD_SUFFIX
        padding = batch.get(key)
        if not isinstance(padding, Tensor) or padding.shape != actions.shape[:2]:
            found = f"has shape {tuple(padding.shape)}" if isinstance(padding, Tensor) else "is missing"
            raise ShapeError(
                f"`{key}` {found}, and the loss needs it with shape {tuple(actions.shape[:2])}",
                "it marks actions after the end of an episode; the dataset reader delivers it with action windows",
            )
        return padding.bool()
