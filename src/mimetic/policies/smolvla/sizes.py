"""Sizes of the vision-language model under a SmolVLA policy, and those that need no file (spec/smolvla.md 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mimetic.policies.smolvla.config import DEFAULT_VLM


@dataclass(frozen=True)
class Backbone:
    """Sizes and dtypes of a SmolVLM.

    Args:
        text_hidden: width H of the text model.
        text_layers: layers of the whole text model; policies keep the first ones.
        text_heads: query heads.
        text_kv_heads: key and value heads.
        text_head_dim: width of a head.
        text_mlp: width of the gated MLP.
        text_rms_eps: epsilon of RMSNorm.
        text_bias: whether the attention projections have biases.
        vocab_size: token embeddings.
        vision_hidden: width of the vision transformer.
        vision_layers: its layers.
        vision_heads: its heads.
        vision_mlp: width of its MLP.
        vision_eps: epsilon of its LayerNorm.
        image_size: side of its square input [pixels].
        patch_size: side of a patch [pixels].
        scale_factor: pixel shuffle factor of the connector.
        text_dtype: dtype that the published config declares for the text model.
        vision_dtype: dtype that it declares for the vision model.
        fake_image_token: id of `<fake_token_around_image>`; -1 when it is not needed and no tokenizer tells it.
        global_image_token: id of `<global-img>`; likewise.
    """

    text_hidden: int
    text_layers: int
    text_heads: int
    text_kv_heads: int
    text_head_dim: int
    text_mlp: int
    text_rms_eps: float
    text_bias: bool
    vocab_size: int
    vision_hidden: int
    vision_layers: int
    vision_heads: int
    vision_mlp: int
    vision_eps: float
    image_size: int
    patch_size: int
    scale_factor: int
    text_dtype: torch.dtype
    vision_dtype: torch.dtype
    fake_image_token: int
    global_image_token: int

    @property
    def image_tokens(self) -> int:
        """Visual tokens of one camera frame."""
        return (self.image_size // self.patch_size // self.scale_factor) ** 2

    def kept_layers(self, wanted: int) -> int:
        """How many text layers a policy keeps, the first ones, for `--policy.num_vlm_layers`."""
        return min(wanted, self.text_layers) if wanted > 0 else self.text_layers


KNOWN: Mapping[str, Backbone] = {
    DEFAULT_VLM: Backbone(
        text_hidden=960,
        text_layers=32,
        text_heads=15,
        text_kv_heads=5,
        text_head_dim=64,
        text_mlp=2560,
        text_rms_eps=1e-5,
        text_bias=False,
        vocab_size=49280,
        vision_hidden=768,
        vision_layers=12,
        vision_heads=12,
        vision_mlp=3072,
        vision_eps=1e-6,
        image_size=512,
        patch_size=16,
        scale_factor=4,
        text_dtype=torch.bfloat16,
        vision_dtype=torch.float32,
        fake_image_token=49189,
        global_image_token=49152,
    )
}
"""Models whose sizes need no file."""
