"""Encodes frames with mimetic's vision tower of the published size, and times its parts, on request."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from serve import serve
from torch.nn import functional as F

from mimetic.policies.bricks.fused_linear import linear, linear_add, linear_gelu
from mimetic.policies.bricks.grouped_attention import attend_grouped
from mimetic.policies.smolvla.backbone import KNOWN
from mimetic.policies.smolvla.config import DEFAULT_VLM
from mimetic.policies.smolvla.vision import VisionTower

DTYPE = {"bfloat16": torch.bfloat16, "float32": torch.float32}[sys.argv[1]]
torch.manual_seed(0)
tower = VisionTower(KNOWN[DEFAULT_VLM]).to(DTYPE).eval()
frame = torch.rand(1, 3, 512, 512) * 2 - 1


@torch.no_grad()
def answer(what: str, repeats: int = 3) -> dict[str, Any] | None:
    """what: "frames" (encode `repeats` frames) or "parts" (least CPU seconds of each part of a frame)."""
    if what == "parts":
        return {"parts": {name: _least(run, repeats) * count for name, (run, count) in _parts().items()}}
    for _ in range(repeats):
        tower(frame)
    return None


def _least(run: Callable[[], object], repeats: int) -> float:
    run()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def _parts() -> dict[str, tuple[Callable[[], object], int]]:
    layer: Any = tower.encoder.layers[0]
    n = len(tower.encoder.layers)
    x = torch.randn(1, 1024, 768).to(DTYPE)
    hidden = torch.randn(1, 1024, 3072).to(DTYPE)
    q, k, v = (torch.randn(1, 1024, 12, 64).to(DTYPE).transpose(1, 2) for _ in range(3))
    return {
        "patch embedding": (lambda: tower.embeddings(frame), 1),
        "q, k, v": (lambda: [linear(x, layer.self_attn.q_proj) for _ in range(3)], n),
        "attention": (lambda: attend_grouped(q, k, v), n),
        "attention, torch's": (lambda: F.scaled_dot_product_attention(q, k, v), n),
        "output + residual": (lambda: linear_add(x, layer.self_attn.out_proj, x), n),
        "fc1 + GELU": (lambda: linear_gelu(x, layer.mlp.fc1), n),
        "fc1, GELU, unfused": (lambda: F.gelu(layer.mlp.fc1(x), approximate="tanh"), n),
        "fc2 + residual": (lambda: linear_add(hidden, layer.mlp.fc2, x), n),
        "LayerNorm": (lambda: layer.layer_norm1(x), 2 * n + 1),
    }


if __name__ == "__main__":
    serve(answer)
