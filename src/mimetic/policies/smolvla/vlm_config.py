"""Sizes out of the `config.json` of a vision-language model, in the forms that transformers writes.

What a file leaves out has the value that transformers gives to a SmolVLM or a Llama.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from mimetic.errors import ConfigError
from mimetic.policies.smolvla.sizes import Backbone

FAKE_IMAGE_TOKEN, GLOBAL_IMAGE_TOKEN = "<fake_token_around_image>", "<global-img>"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MOST_LAYERS = 256
_FIXED = {
    "text_config": {"model_type": "llama", "hidden_act": "silu", "mlp_bias": False},
    "vision_config": {"model_type": "smolvlm_vision", "hidden_act": "gelu_pytorch_tanh", "num_channels": 3},
}
"""What a SmolVLM cannot have otherwise here: another value is another network."""


class _Reader:
    """Values of the parts of a file, with defaults; what is wrong is gathered."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.problems: list[str] = []

    def part(self, name: str) -> Mapping[str, Any]:
        """A nested object; empty when absent."""
        found = self.data.get(name) if name else self.data
        if found is None or isinstance(found, Mapping):
            return found or {}
        if (problem := f"`{name}` is no object") not in self.problems:
            self.problems.append(problem)
        return {}

    def size(self, part: str, key: str, default: int) -> int:
        """A whole number of 1 or more."""
        value = self.part(part).get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.problems.append(f"`{_dotted(part, key)}` is {value!r:.40} and must be a whole number above 0")
            return 1
        return value

    def number(self, part: str, key: str, default: float) -> float:
        """A number above 0."""
        value = self.part(part).get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            self.problems.append(f"`{_dotted(part, key)}` is {value!r:.40} and must be a number above 0")
            return default
        return float(value)

    def dtype(self, part: str) -> torch.dtype:
        """`torch_dtype` or, as newer files call it, `dtype`; float32 when absent. The top level's is not inherited."""
        found = self.part(part)
        value = found.get("dtype", found.get("torch_dtype"))
        name = str(value).removeprefix("torch.")
        if value is None:
            return torch.float32
        if name not in _DTYPES:
            self.problems.append(
                f"`{_dotted(part, 'torch_dtype')}` is {value!r:.40} and must be one of {', '.join(_DTYPES)}"
            )
        return _DTYPES.get(name, torch.float32)

    def require_fixed(self) -> None:
        """Note what would make another network of it."""
        kind = self.data.get("model_type")
        if kind != "smolvlm":
            self.problems.append(f"`model_type` is {kind!r:.40}, and SmolVLA stands on a `smolvlm`")
        for part, fixed in _FIXED.items():
            for key, only in fixed.items():
                value = self.part(part).get(key, only)
                if value != only:
                    self.problems.append(f"`{_dotted(part, key)}` is {value!r:.40}, and only {only!r} is supported")


def parse_vlm_config(
    data: Mapping[str, Any], *, where: str, fake_image_token: int = -1, global_image_token: int = -1
) -> Backbone:
    """Sizes of a SmolVLM.

    Args:
        data: content of its `config.json`.
        where: the file, for messages.
        fake_image_token: see `Backbone`.
        global_image_token: see `Backbone`.

    Raises:
        ConfigError: another kind of model, or sizes that cannot be; all problems at once.
    """
    reader = _Reader(data)
    reader.require_fixed()
    text, vision = "text_config", "vision_config"
    hidden, heads = reader.size(text, "hidden_size", 4096), reader.size(text, "num_attention_heads", 32)
    backbone = Backbone(
        text_hidden=hidden,
        text_layers=reader.size(text, "num_hidden_layers", 32),
        text_heads=heads,
        text_kv_heads=reader.size(text, "num_key_value_heads", heads),
        text_head_dim=reader.size(text, "head_dim", max(hidden // heads, 1)),
        text_mlp=reader.size(text, "intermediate_size", 11008),
        text_rms_eps=reader.number(text, "rms_norm_eps", 1e-6),
        text_bias=reader.part(text).get("attention_bias") is True,
        vocab_size=reader.size(text, "vocab_size", 32000),
        vision_hidden=reader.size(vision, "hidden_size", 1152),
        vision_layers=reader.size(vision, "num_hidden_layers", 12),
        vision_heads=reader.size(vision, "num_attention_heads", 16),
        vision_mlp=reader.size(vision, "intermediate_size", 3072),
        vision_eps=reader.number(vision, "layer_norm_eps", 1e-6),
        image_size=reader.size(vision, "image_size", 224),
        patch_size=reader.size(vision, "patch_size", 32),
        scale_factor=reader.size("", "scale_factor", 2),
        text_dtype=reader.dtype(text),
        vision_dtype=reader.dtype(vision),
        fake_image_token=fake_image_token,
        global_image_token=global_image_token,
    )
    problems = reader.problems or _size_problems(backbone)
    if problems:
        raise ConfigError(
            f"{where} does not describe a model that SmolVLA can stand on: {'; '.join(problems)}",
            "name a SmolVLM with `--policy.vlm_model_name`, such as HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
        )
    return backbone


def _size_problems(sizes: Backbone) -> list[str]:
    problems = [
        f"`{part}.num_hidden_layers` {found} is more than any model has ({_MOST_LAYERS})"
        for part, found in (("text_config", sizes.text_layers), ("vision_config", sizes.vision_layers))
        if found > _MOST_LAYERS
    ]
    if sizes.text_heads % sizes.text_kv_heads:
        problems.append(
            f"`text_config.num_attention_heads` {sizes.text_heads} is no multiple of "
            f"`num_key_value_heads` {sizes.text_kv_heads}"
        )
    if sizes.text_head_dim % 2:
        problems.append(f"`text_config.head_dim` {sizes.text_head_dim} is odd, which rotary positions cannot be")
    if sizes.vision_hidden % sizes.vision_heads:
        problems.append(
            f"`vision_config.hidden_size` {sizes.vision_hidden} is no multiple of "
            f"`num_attention_heads` {sizes.vision_heads}"
        )
    side = sizes.patch_size * sizes.scale_factor
    if sizes.image_size % side:
        problems.append(
            f"`vision_config.image_size` {sizes.image_size} is no multiple of `patch_size` {sizes.patch_size} x "
            f"`scale_factor` {sizes.scale_factor}"
        )
    return problems


def vlm_config_json(sizes: Backbone) -> dict[str, Any]:
    """The content of a `config.json` with these sizes, for models whose own file is not at hand."""
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "scale_factor": sizes.scale_factor,
        "text_config": {
            "attention_bias": sizes.text_bias,
            "head_dim": sizes.text_head_dim,
            "hidden_size": sizes.text_hidden,
            "intermediate_size": sizes.text_mlp,
            "model_type": "llama",
            "num_attention_heads": sizes.text_heads,
            "num_hidden_layers": sizes.text_layers,
            "num_key_value_heads": sizes.text_kv_heads,
            "rms_norm_eps": sizes.text_rms_eps,
            "torch_dtype": str(sizes.text_dtype).removeprefix("torch."),
            "vocab_size": sizes.vocab_size,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": {
            "hidden_size": sizes.vision_hidden,
            "image_size": sizes.image_size,
            "intermediate_size": sizes.vision_mlp,
            "layer_norm_eps": sizes.vision_eps,
            "model_type": "smolvlm_vision",
            "num_attention_heads": sizes.vision_heads,
            "num_hidden_layers": sizes.vision_layers,
            "patch_size": sizes.patch_size,
            **(
                {}
                if sizes.vision_dtype is torch.float32
                else {"torch_dtype": str(sizes.vision_dtype).removeprefix("torch.")}
            ),
        },
    }


def image_token_ids(tokenizer: Mapping[str, Any]) -> tuple[int, int]:
    """Ids of the tokens around and before image tokens.

    Args:
        tokenizer: content of a `tokenizer.json`.

    Returns:
        Ids of `<fake_token_around_image>` and `<global-img>`; -1 where the tokenizer lacks one.
    """
    ids: dict[str, int] = {}
    for entry in tokenizer.get("added_tokens") or ():
        if isinstance(entry, Mapping) and isinstance(entry.get("id"), int):
            ids[str(entry.get("content"))] = int(entry["id"])
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    for name in (FAKE_IMAGE_TOKEN, GLOBAL_IMAGE_TOKEN):
        if name not in ids and isinstance(vocabulary, Mapping) and isinstance(vocabulary.get(name), int):
            ids[name] = int(vocabulary[name])
    return ids.get(FAKE_IMAGE_TOKEN, -1), ids.get(GLOBAL_IMAGE_TOKEN, -1)


def _dotted(part: str, key: str) -> str:
    return f"{part}.{key}" if part else key
