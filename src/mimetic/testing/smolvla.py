"""The smallest useful SmolVLA: a stand-in for its vision-language model on disk, settings, flags and batches.

The stand-in is a folder as the hub has it (config, tokenizer, weights), made in milliseconds without a network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import ACTION, PAD_SUFFIX, STATE
from mimetic.policies.smolvla.backbone import Backbone
from mimetic.policies.smolvla.config import SmolVLAConfig

_IS_PAD = ACTION + PAD_SUFFIX
TOKENS = "observation.language.tokens"
TOKEN_MASK = "observation.language.attention_mask"
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"

_FIRST_BYTE = 3
_SPECIAL = {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2} | {
    name: _FIRST_BYTE + 256 + i
    for i, name in enumerate(("<global-img>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"))
}

TINY_BACKBONE = Backbone(
    text_hidden=32,
    text_layers=5,
    text_heads=4,
    text_kv_heads=2,
    text_head_dim=8,
    text_mlp=64,
    text_rms_eps=1e-5,
    text_bias=False,
    vocab_size=_FIRST_BYTE + 256 + 4,
    vision_hidden=16,
    vision_layers=1,
    vision_heads=2,
    vision_mlp=32,
    vision_eps=1e-6,
    image_size=32,
    patch_size=8,
    scale_factor=2,
    text_dtype=torch.float32,
    vision_dtype=torch.float32,
    fake_image_token=_SPECIAL["<fake_token_around_image>"],
    global_image_token=_SPECIAL["<global-img>"],
)
"""Sizes of the stand-in: 4 tokens a camera frame, every byte its own token."""


def write_tiny_vlm(folder: Path, *, text_dtype: torch.dtype = torch.float32, weights: bool = True) -> Path:
    """Write a folder that stands for the hub's `SmolVLM2-500M-Video-Instruct`.

    Args:
        folder: is made; files in it are replaced.
        text_dtype: that its config declares for the text model.
        weights: write `model.safetensors` too, always with the same random numbers.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "config.json": _vlm_config(replace(TINY_BACKBONE, text_dtype=text_dtype)),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "bos_token": "<|im_start|>",
            "eos_token": "<end_of_utterance>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "model_max_length": 8192,
            "truncation_side": "left",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if weights:
        save_file(_vlm_weights(TINY_BACKBONE), folder / "model.safetensors", {"format": "pt"})
    return folder


def tiny_smolvla_config(vlm: Path | str, **changes: Any) -> SmolVLAConfig:
    """Settings of a SmolVLA with two cameras, 5 joints, 4 actions and chunks of 8.

    Args:
        vlm: folder of `write_tiny_vlm`.
        changes: fields that differ.
    """
    settings: dict[str, Any] = {
        "input_features": {
            STATE: PolicyFeature(FeatureType.STATE, (5,)),
            FRONT: PolicyFeature(FeatureType.VISUAL, (3, 24, 32)),
            WRIST: PolicyFeature(FeatureType.VISUAL, (3, 40, 20)),
        },
        "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (4,))},
        "device": "cpu",
        "push_to_hub": False,
        "chunk_size": 8,
        "n_action_steps": 3,
        "max_state_dim": 8,
        "max_action_dim": 6,
        "resize_imgs_with_padding": (32, 32),
        "tokenizer_max_length": 24,
        "num_steps": 4,
        "vlm_model_name": str(vlm),
        "num_vlm_layers": 4,
        "precision": "float32",
    }
    return SmolVLAConfig(**{**settings, **changes})


def tiny_smolvla_flags(vlm: Path | str) -> tuple[str, ...]:
    """The same settings as flags, without the features, which come from the dataset.

    Args:
        vlm: folder of `write_tiny_vlm`.
    """
    return (
        "--policy.type=smolvla",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--policy.chunk_size=8",
        "--policy.n_action_steps=3",
        "--policy.max_state_dim=8",
        "--policy.max_action_dim=6",
        "--policy.resize_imgs_with_padding=[32,32]",
        "--policy.tokenizer_max_length=24",
        "--policy.num_steps=4",
        f"--policy.vlm_model_name={vlm}",
        "--policy.num_vlm_layers=4",
    )


def tiny_smolvla_batch(config: SmolVLAConfig, size: int, *, seed: int = 3, n_tokens: int = 7) -> dict[str, Tensor]:
    """A preprocessed training batch, always the same for the same arguments.

    Args:
        config: its features say what is in the batch.
        size: B.
        seed: of the random numbers.
        n_tokens: length of the padded instructions; each sample has another length.

    Returns:
        Cameras (B, 3, H, W) in [0, 1], state (B, S), `action` (B, T, A), `action_is_pad` (B, T) with padding in all
        but the first sample, instruction tokens and mask (B, n).
    """
    generator = torch.Generator().manual_seed(seed)
    batch = {}
    for key, feature in (config.input_features or {}).items():
        values = torch.rand if feature.type is FeatureType.VISUAL else torch.randn
        batch[key] = values(size, *feature.shape, generator=generator)
    width = (config.output_features or {})[ACTION].shape[0]
    batch[ACTION] = torch.randn(size, config.chunk_size, width, generator=generator)
    sample = torch.arange(size)[:, None]
    batch[_IS_PAD] = torch.arange(config.chunk_size)[None] >= config.chunk_size - 2 * (sample + (size == 1))
    batch[TOKEN_MASK] = torch.arange(n_tokens)[None] < (n_tokens - 2 * sample).clamp(min=1)
    tokens = torch.randint(_FIRST_BYTE, _FIRST_BYTE + 256, (size, n_tokens), generator=generator)
    batch[TOKENS] = tokens.where(batch[TOKEN_MASK], _SPECIAL["<|im_end|>"])
    return batch


def spread_weights(state: Mapping[str, Tensor], seed: int = 5) -> dict[str, Tensor]:
    """Random values for a state dict, such that a term that is left out shows: no norm is 1 and no bias 0.

    Args:
        state: names, shapes and dtypes.
        seed: of the random numbers.

    Returns:
        Matrices with a standard deviation of 1 / sqrt(inputs), embeddings of 0.5, norms around 1, biases of 0.1.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = {}
    for name, tensor in state.items():
        value = torch.randn(tensor.shape, generator=generator)
        if name.endswith(".bias"):
            value = 0.1 * value
        elif tensor.ndim == 1:
            value = 1 + 0.2 * value
        elif "embed_tokens" in name or "position_embedding" in name:
            value = 0.5 * value
        else:
            value = value / tensor[0].numel() ** 0.5
        spread[name] = value.to(tensor.dtype)
    return spread


def _vlm_weights(sizes: Backbone) -> dict[str, Tensor]:
    from mimetic.policies.smolvla.network import VLM

    with torch.device("meta"):
        names = VLM(sizes, sizes.text_layers).state_dict()
    return spread_weights(names)


def _vlm_config(sizes: Backbone) -> dict[str, Any]:
    return {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": _SPECIAL["<image>"],
        "pad_token_id": _SPECIAL["<|im_end|>"],
        "scale_factor": sizes.scale_factor,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "text_config": {
            "architectures": ["VLlama3ForCausalLM"],
            "model_type": "llama",
            "head_dim": sizes.text_head_dim,
            "hidden_size": sizes.text_hidden,
            "intermediate_size": sizes.text_mlp,
            "num_attention_heads": sizes.text_heads,
            "num_hidden_layers": sizes.text_layers,
            "num_key_value_heads": sizes.text_kv_heads,
            "rms_norm_eps": sizes.text_rms_eps,
            "rope_theta": 100_000,
            "torch_dtype": str(sizes.text_dtype).removeprefix("torch."),
            "vocab_size": sizes.vocab_size,
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": sizes.vision_hidden,
            "image_size": sizes.image_size,
            "intermediate_size": sizes.vision_mlp,
            "num_attention_heads": sizes.vision_heads,
            "num_hidden_layers": sizes.vision_layers,
            "patch_size": sizes.patch_size,
        },
    }


def _tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer without merges, in the format of the `tokenizers` package."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first = {name: i for name, i in _SPECIAL.items() if i < _FIRST_BYTE}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": name, **flags} for name, i in _SPECIAL.items()],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": first | {letter: _FIRST_BYTE + i for i, letter in enumerate(_byte_letters())},
            "merges": [],
        },
    }


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary: itself where it can be printed."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    replacement = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(replacement)) for byte in range(256)]
