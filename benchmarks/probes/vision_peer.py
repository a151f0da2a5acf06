"""Encodes frames with the vision tower that LeRobot uses, the way it does: one frame at a time, cast to the weights."""

import sys

import torch
from serve import serve
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig
from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

DTYPE = {"bfloat16": torch.bfloat16, "float32": torch.float32}[sys.argv[1]]
torch.manual_seed(0)
config = SmolVLMVisionConfig(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    image_size=512,
    patch_size=16,
)
config._attn_implementation = "sdpa"
tower = SmolVLMVisionTransformer(config).to(DTYPE).eval()
frame = torch.rand(1, 3, 512, 512) * 2 - 1


@torch.no_grad()
def answer(what: str, repeats: int = 3) -> None:
    """Encode `repeats` frames."""
    assert what == "frames"
    for _ in range(repeats):
        tower(pixel_values=frame.to(DTYPE), patch_attention_mask=None)


if __name__ == "__main__":
    serve(answer)
