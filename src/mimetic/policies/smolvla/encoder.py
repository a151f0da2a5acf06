"""The frozen part that looks at single frames, for caches of its results."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from mimetic.policies.base import FrameEncoder
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.images import prepare_frames
from mimetic.policies.smolvla.network import SmolVLANetwork

_VERSION = "smolvla-vision-1"
"""To be changed when the same weights and frames give other features than before."""


def frame_encoder(network: SmolVLANetwork, config: SmolVLAConfig) -> FrameEncoder | str:
    """Vision tower and connector as a function of single frames.

    Args:
        network: with its weights.
        config: settings.

    Returns:
        The encoder, or why there is none.
    """
    if not config.freeze_vision_encoder and not config.train_expert_only:
        return "`--policy.freeze_vision_encoder=false` trains the vision encoder, so features change with every step"
    if not config.train_expert_only:
        return "`--policy.train_expert_only=false` trains the connector behind the vision encoder"
    if config.int8:
        return "with `--policy.int8=true` evaluation computes other features than training"
    size = config.resize_imgs_with_padding
    assert size is not None
    frozen = {"vision": network.vlm.vision_model, "connector": network.vlm.connector}
    if any(parameter.requires_grad for module in frozen.values() for parameter in module.parameters()):
        return "an adapter (`--peft.*`) trains the vision encoder or its connector, so features change with every step"
    # The kernels count, because weights of the same dtype give other bits with others (`precision=released`).
    digest = hashlib.sha256(f"{_VERSION} {size} kernel={network.kernel}".encode())
    for part, module in frozen.items():
        for name, tensor in module.state_dict().items():
            digest.update(f"{part}.{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy())
    dtype = network.vlm.connector.modality_projection.proj.weight.dtype

    @torch.no_grad()
    def encode(frames: Tensor) -> Tensor:
        return network.encode_frames(prepare_frames(frames, size))

    return FrameEncoder(
        key=digest.hexdigest(),
        shape=(network.sizes.image_tokens, network.sizes.text_hidden),
        dtype=dtype,
        cameras=tuple(config.image_features),
        encode=encode,
    )
