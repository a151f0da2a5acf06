"""SmolVLA as a policy: batches to the network, the loss, the sampler and the queue of actions (spec/smolvla.md).

What it leaves to others: normalisation and tokens (`processing`), loading and saving (`policies/checkpoint.py`).

Shapes: B batch, N noise draws, T chunk, D padded action width, A action width, n language tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mimetic import log
from mimetic.accelerators.devices import choose_device
from mimetic.errors import ConfigError, ShapeError
from mimetic.names import ACTION, PAD_SUFFIX, STATE
from mimetic.policies.base import Batch, FrameEncoder, Policy, take_input, valid_divisor
from mimetic.policies.bricks.master_weights import MasterLinear
from mimetic.policies.repeated_layers import LayerClass
from mimetic.policies.smolvla import aloha, flow
from mimetic.policies.smolvla.backbone import companion_files, find_backbone, load_backbone_weights
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.encoder import frame_encoder
from mimetic.policies.smolvla.freezing import choose_precision, freeze, set_dtypes, set_int8
from mimetic.policies.smolvla.guidance import make_guidance
from mimetic.policies.smolvla.images import CameraInput, prepare_frames, select_cameras
from mimetic.policies.smolvla.initialise import initialise
from mimetic.policies.smolvla.language import take_language
from mimetic.policies.smolvla.layers import ExpertLayer, TextLayer
from mimetic.policies.smolvla.network import Prefix, SmolVLANetwork
from mimetic.policies.smolvla.vision import VisionLayer

logger = logging.getLogger(__name__)

_FRAMES_AT_ONCE_CPU = 2
_FRAMES_AT_ONCE = 32


class SmolVLAPolicy(Policy):
    """A vision-language-action policy: SmolVLM2 with an action expert.

    Args:
        config: settings with input and output features.
        init_backbone: read the backbone's weights; false when a checkpoint is about to be loaded.

    Raises:
        ConfigError: the config has problems, or the backbone cannot be had.

    Source: Shukor et al., SmolVLA: A Vision-Language-Action Model for Affordable and Efficient Robotics, 2025.
    """

    config: SmolVLAConfig
    layer_classes = (
        LayerClass(ExpertLayer, "expert layers", varying_sizes=True),
        # The gradient of the state token passes the text model also when that is frozen.
        LayerClass(TextLayer, "text layers", varying_sizes=True, passes_gradients=True),
        LayerClass(VisionLayer, "vision layers"),
    )

    def __init__(self, config: SmolVLAConfig, *, init_backbone: bool = True) -> None:
        super().__init__(config)
        _require_usable(config)
        sizes = find_backbone(config)
        self._companions = companion_files(config)  # now: the folder that they come from may go during training
        with torch.device("meta"):
            self.model = SmolVLANetwork(config, sizes)  # checkpoint name
        freeze(self.model, config)
        device = choose_device(config.device)[0]
        self.precision = choose_precision(config, device)
        set_dtypes(self.model, config, self.precision)
        if config.int8:
            set_int8(self.model, device)
        log.once(logger, logging.INFO, "SmolVLA precision: %s", _PRECISIONS[self.precision])
        self.model.to_empty(device="cpu")
        initialise(self.model, without_backbone=init_backbone and config.load_vlm_weights)
        if init_backbone:
            load_backbone_weights(self.model.vlm_with_expert.vlm, config)
        self._queue: deque[Tensor] = deque()
        self._velocity: Callable[[Prefix, Tensor, Tensor], Tensor] = self.model.velocity_at
        if config.compile_model:
            self._velocity = torch.compile(self.model.velocity_at, mode=config.compile_mode)

    def loss(
        self, batch: Batch, *, noise: Tensor | None = None, time: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Mean squared error of the velocity over the valid actions.

        Args:
            batch: see `Policy.loss`.
            noise: (B * N, T, D) standard normal, the draws of a sample together; None draws it.
            time: (B * N,) in [0, 1]; None draws it.
        """
        errors, valid = self.errors(batch, noise=noise, time=time)
        errors = errors[..., : self._action_dim]
        divisor = None if valid is None else valid_divisor(batch, valid, self._action_dim)
        loss = flow.mean_loss(errors, valid, divisor)
        parts = {"losses_after_forward": errors.detach().mean()}
        if valid is not None:
            in_episode = (errors.detach() * valid).mean()
            parts |= {"losses_after_in_ep_bound": in_episode, "losses_after_rm_padding": in_episode}
        else:
            parts["losses_after_rm_padding"] = parts["losses_after_forward"]
        return loss, parts

    def loss_per_sample(self, batch: Batch, *, noise: Tensor | None = None, time: Tensor | None = None) -> Tensor:
        """(B * N,): the loss of each sample by itself; see `loss`."""
        errors, valid = self.errors(batch, noise=noise, time=time)
        return flow.loss_per_sample(errors[..., : self._action_dim], valid)

    def errors(
        self, batch: Batch, *, noise: Tensor | None = None, time: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Squared errors of the velocity (B * N, T, D), and which actions are valid (B * N, T, 1); see `loss`."""
        actions, valid = self._take_actions(batch)
        draws = self.config.noise_draws
        rows = actions.shape[0] * draws
        actions = actions.repeat_interleave(draws, dim=0)
        valid = None if valid is None else valid.repeat_interleave(draws, dim=0)
        noise = flow.draw_noise(tuple(actions.shape), actions.device) if noise is None else noise
        time = flow.draw_time(rows, actions.device) if time is None else time
        if noise.shape != actions.shape or time.shape != (rows,):
            raise ShapeError(
                f"noise has shape {tuple(noise.shape)} and time {tuple(time.shape)}; {rows} chunks (samples times "
                f"`--policy.noise_draws={draws}`) need {tuple(actions.shape)} and ({rows},)"
            )
        target = flow.flow_target(actions, noise, time)
        velocity = self._velocity(self.prefix(batch), target.x_t, self.model.embed_time(time))
        return (target.u_t - velocity).square(), valid

    def prefix(self, batch: Batch) -> Prefix:
        """What the expert reads of the observations of a batch."""
        cameras = select_cameras(batch, list(self.config.image_features))
        state = self._take_state(batch)
        tokens, mask = take_language(
            batch,
            rows=state.shape[0],
            vocab_size=self.model.sizes.vocab_size,
            keep_padding=self.precision == "released",  # bit for bit as the reference
        )
        _check_rows(cameras, state.shape[0])
        # Asked of the weights, not of the config: an adapter may train parts that the config freezes.
        is_trained = any(parameter.requires_grad for parameter in self.model.vlm.parameters())
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            features = self._features(cameras)
            masks = [camera.mask for camera in cameras] + self._empty_masks(batch, cameras, state)
            # Nobody reads an empty camera's features: its tokens are masked, so it is not encoded.
            features += [torch.zeros_like(features[-1])] * (len(masks) - len(features))
            embeds, shown = self.model.embed_prefix(features, masks, tokens, mask)
        keys, values = self.model.read_prefix(embeds, shown, self.model.embed_state(state))
        return self.model.prepare_prefix(keys, values, shown)

    @torch.no_grad()
    def predict_chunk(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        inference_delay: int | None = None,
        prev_chunk_left_over: Tensor | None = None,
        execution_horizon: int | None = None,
    ) -> Tensor:
        """Predict one action chunk; see `Policy.predict_chunk`.

        Args:
            batch: observations.
            noise: (B, T, D) standard normal to start from; None draws it.
            inference_delay: with real-time chunking, ticks that the prediction will take.
            prev_chunk_left_over: with real-time chunking, (B, T', A) or (T', A): the actions of the previous chunk
                that are not executed yet, normalised.
            execution_horizon: with real-time chunking, actions that are guided; None: as configured.
        """
        self.eval()
        if self.config.compile_model:
            for module in self.modules():
                if isinstance(module, MasterLinear):
                    module.prepare_compiled()
        config, state = self.config, self._take_state(batch)
        shape, device = (state.shape[0], config.chunk_size, config.max_action_dim), state.device
        if noise is None:
            noise = flow.draw_noise(shape, device)
        elif tuple(noise.shape) != shape:
            raise ShapeError(f"the noise has shape {tuple(noise.shape)}, and the policy starts from {shape}")
        guidance = None
        if config.rtc_config is not None and config.rtc_config.enabled:
            guidance = make_guidance(
                config.rtc_config,
                prev_chunk_left_over,
                delay=inference_delay,
                horizon=execution_horizon,
                shape=shape,
                device=device,
            )
        times = torch.tensor(flow.euler_times(config.num_steps), dtype=torch.float32).to(device)
        embedded = self.model.embed_time(times)
        prefix = self.prefix(batch)  # the last thing before the steps: copies to the device wait for what runs there

        def velocity(x: Tensor, step: int) -> Tensor:
            return self._velocity(prefix, x, embedded[step : step + 1].expand(shape[0], -1))

        actions = flow.integrate(noise, config.num_steps, velocity, guidance)[..., : self._action_dim]
        return aloha.encode_actions(actions) if config.adapt_to_pi_aloha else actions

    @torch.no_grad()
    def select_action(self, batch: Batch, *, noise: Tensor | None = None) -> Tensor:
        """The next action (B, A); every `n_action_steps` calls a chunk is predicted and queued.

        Args:
            batch: observations; not looked at while the queue holds actions.
            noise: see `predict_chunk`.
        """
        rtc = self.config.rtc_config
        if rtc is not None and rtc.enabled:
            raise ConfigError(
                "single actions cannot be asked of a policy with real-time chunking",
                "ask for chunks with `predict_chunk`, or set `--policy.rtc_config.enabled=false`",
            )
        if not self._queue:
            chunk = self.predict_chunk(batch, noise=noise)[:, : self.config.n_action_steps]
            self._queue.extend(chunk.transpose(0, 1))
        return self._queue.popleft()

    def needs_observation(self) -> bool:
        """Whether the queue is empty; with real-time chunking, which has none, always."""
        rtc = self.config.rtc_config
        return (rtc is not None and rtc.enabled) or not self._queue

    def reset(self) -> None:
        """Empty the queue."""
        self._queue.clear()

    def optim_groups(self) -> list[dict[str, Any]]:
        """One group of all parameters; the frozen ones are in it, because they number the optimiser's state."""
        return [{"params": list(self.parameters())}]

    def frame_encoder(self) -> FrameEncoder | str:
        """The vision tower with its connector, when both are frozen."""
        return frame_encoder(self.model, self.config)

    def companion_files(self) -> dict[str, bytes]:
        """The backbone's config, so that loading needs no network."""
        return dict(self._companions)

    @property
    def _action_dim(self) -> int:
        feature = self.config.action_feature
        assert feature is not None
        return feature.shape[0]

    def _features(self, cameras: list[CameraInput]) -> list[Tensor]:
        """Features of each camera; the frames that have none yet go through the vision tower together."""
        size = self.config.resize_imgs_with_padding
        assert size is not None
        raw = [camera for camera in cameras if camera.frames is not None]
        encoded: dict[str, Tensor] = {}
        if raw:
            pixels = torch.cat([prepare_frames(camera.frames, size) for camera in raw if camera.frames is not None])
            # A few at a time, because what lies between the layers of the tower is 30 MB a frame.
            at_once = _FRAMES_AT_ONCE_CPU if pixels.device.type == "cpu" else _FRAMES_AT_ONCE
            if self.precision == "released":  # camera by camera as the reference: other shapes may round otherwise
                at_once = pixels.shape[0] // len(raw)
            features = torch.cat([self.model.encode_frames(part) for part in torch.split(pixels, at_once)])
            for camera, of_camera in zip(raw, features.chunk(len(raw)), strict=True):
                encoded[camera.key] = of_camera
        return [encoded[camera.key] if camera.features is None else camera.features for camera in cameras]

    def _empty_masks(self, batch: Batch, cameras: list[CameraInput], state: Tensor) -> list[Tensor | None]:
        """Masks of the absent cameras that count as empty ones (spec/smolvla.md 3.3)."""
        # Inputs of these names are in the config of every policy that `make_policy` built; each one counts as absent.
        absent = len(self.config.filler_inputs.keys() | self.config.image_features.keys()) - len(cameras)
        empty = state.new_zeros(state.shape[0], dtype=torch.bool)
        return [empty] * min(absent, self.config.empty_cameras)

    def _take_state(self, batch: Batch) -> Tensor:
        feature = self.config.robot_state_feature
        assert feature is not None
        state = batch.get(STATE)
        if isinstance(state, Tensor) and state.ndim == 3:  # a time axis: only the last step is read
            batch = {STATE: state[:, -1]}
        state = take_input(batch, STATE, feature.shape)
        return aloha.decode_state(state) if self.config.adapt_to_pi_aloha else state

    def _take_actions(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Actions (B, T, D), padded with zeros in width, and which are valid (B, T, 1)."""
        actions = take_input(batch, ACTION, (self.config.chunk_size, self._action_dim)).float()
        padding = batch.get(ACTION + PAD_SUFFIX)
        if padding is not None and (not isinstance(padding, Tensor) or padding.shape != actions.shape[:2]):
            raise ShapeError(
                f"`{ACTION + PAD_SUFFIX}` has another shape than {tuple(actions.shape[:2])}",
                "it marks actions after the end of an episode; the dataset reader delivers it with action windows",
            )
        if self.config.adapt_to_pi_aloha:
            actions = aloha.decode_actions(actions)
        valid = None
        if isinstance(padding, Tensor):
            valid = ~padding.bool()[:, :, None]
            # Later actions are hidden from earlier ones, but 0 * NaN would spread.
            actions = torch.where(valid | actions.isfinite(), actions, torch.zeros_like(actions))
        return F.pad(actions, (0, self.config.max_action_dim - actions.shape[-1])), valid


_PRECISIONS = {
    "mixed": "frozen weights bfloat16; trained weights float32, multiplied in bfloat16",
    "released": "the dtypes in which LeRobot builds the model",
    "float32": "float32",
}


def _require_usable(config: SmolVLAConfig) -> None:
    problems = config.check()
    if config.action_feature is None:
        problems.append("SmolVLA needs the output `action` with its shape; it is taken from the dataset")
    if config.robot_state_feature is None:
        problems.append("SmolVLA needs the input `observation.state`")
    if not config.image_features.keys() - config.filler_inputs.keys():
        problems.append("SmolVLA needs at least one camera among its inputs")
    if problems:
        raise ConfigError("; ".join(dict.fromkeys(problems)))


def _check_rows(cameras: list[CameraInput], rows: int) -> None:
    for camera in cameras:
        given = camera.frames if camera.frames is not None else camera.features
        if given is not None and given.shape[0] != rows:
            raise ShapeError(f"`{camera.key}` has {given.shape[0]} frames, and the batch has {rows} samples")
