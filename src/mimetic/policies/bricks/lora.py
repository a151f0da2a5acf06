"""A linear layer with a low-rank adapter: y = W x + b + s B A x, where only A and B are trained.

This is the whole of LoRA, so mimetic does not ask for the package peft: that would bring transformers and accelerate
for some sixty lines of arithmetic. Names, initial values and the order of random draws are peft's, so that adapters go
both ways. Files and the choice of layers are the business of `policies/adapters.py`.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021; the scale with square root: Kalajdzievski,
A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA, 2023; spec/smolvla.md 13.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.errors import ConfigError

Init = Literal["kaiming", "gaussian"]


class LoRALinear(nn.Module):
    """A frozen linear layer and its adapter.

    The adapter is float32 whatever the layer is, and is multiplied in the layer's `compute_dtype` where it has one
    (`None` and other layers: float32). The sum is rounded once, to the dtype that the layer alone would give.

    Args:
        base: the layer; its parameters are frozen here.
        rank: rows of A and columns of B, at least 1.
        alpha: the scale s is alpha / rank.
        dropout: of the adapter's input in training, in [0, 1).
        rank_stabilised: the scale is alpha / sqrt(rank) instead.
        init: A uniform in +-1/sqrt(in) ("kaiming") or normal with deviation 1 / rank ("gaussian"); B is zero, so the
            layer starts as it was.
    """

    def __init__(
        self,
        base: nn.Linear,
        rank: int,
        alpha: float,
        *,
        dropout: float = 0.0,
        rank_stabilised: bool = False,
        init: Init = "kaiming",
    ) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        # Both are made and then filled once more, because that is how often peft draws from the generator.
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)  # checkpoint name
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)  # checkpoint name
        if init == "gaussian":
            nn.init.normal_(self.lora_A.weight, std=1 / rank)
        else:
            nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B.weight)
        self.to(base.weight.device)
        self.dropout = dropout
        self.scaling = alpha / (math.sqrt(rank) if rank_stabilised else rank)
        self.train(base.training)

    @property
    def in_features(self) -> int:
        """Width of the input."""
        return self.base_layer.in_features

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return self.base_layer.out_features

    @property
    def weight(self) -> Tensor:
        """W + s B A (out, in) in W's dtype, with gradients to A and B, for code that multiplies by itself.

        Raises:
            ConfigError: in training with dropout, which a weight cannot express.
        """
        if self.training and self.dropout > 0:
            raise ConfigError(
                "an adapter with dropout stands at a layer whose weight is used directly (an attention's output)",
                "set `lora_dropout` to 0 in adapter_config.json, or leave that layer out of the target modules",
            )
        base = self.base_layer.weight
        return (base + self.scaling * (self.lora_B.weight @ self.lora_A.weight)).to(base.dtype)

    @property
    def compute_dtype(self) -> torch.dtype | None:
        """Dtype that the layer multiplies in, where it has such a setting; None: that of its weights."""
        dtype: torch.dtype | None = getattr(self.base_layer, "compute_dtype", None)
        return dtype

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the multiplication and of the result."""
        return self.compute_dtype or self.base_layer.weight.dtype

    @property
    def bias(self) -> Tensor | None:
        """The layer's bias, which is never adapted."""
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its adapter.

        Args:
            x: (..., in).

        Returns:
            (..., out), in the dtype that the layer alone gives.
        """
        out: Tensor = self.base_layer(x)
        down, up = self.lora_A.weight, self.lora_B.weight
        dtype = self.compute_dtype or down.dtype
        hidden = F.dropout(x.to(dtype), self.dropout, self.training)
        delta = F.linear(F.linear(hidden, down.to(dtype)), up.to(dtype)) * self.scaling
        return (out + delta).to(out.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The layer with the adapter added to its weight in place; this module must not be used afterwards.

        In float32 outputs differ from the separate form by rounding (about 1e-6 of their size). In bfloat16 the sum is
        rounded to 8 bits, which loses whatever of the adapter is below 1/512 of the weight.
        """
        base = self.base_layer
        exact = base.weight.double() + self.scaling * (self.lora_B.weight.double() @ self.lora_A.weight.double())
        base.weight.copy_(exact)
        return base
