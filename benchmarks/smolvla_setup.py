"""Makes the full-size SmolVLA that the smolvla_* benchmarks share: right sizes, dtypes and files, random weights.

In the folder of generated data (MIMETIC_BENCH_DIR), about 2 GB:

    smolvla/vlm            stand-in for HuggingFaceTB/SmolVLM2-500M-Video-Instruct (config, tokenizer, bfloat16 weights)
    smolvla/vlm_float32    the same, declared float32, without weights
    smolvla/released       checkpoint saved by LeRobot: two cameras 640x480, state 6, action 6, dtypes as published
    smolvla/padded         the same weights, language padded to 48 tokens as in lerobot/smolvla_base
    smolvla/float32        the same weights, computed in float32 (the configuration decides the dtype, not the file)

The released weights cannot be fetched without a network; time and memory do not depend on the values.

    python -m benchmarks.smolvla_setup
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from benchmarks.measure import PROBES, ROOT, WORK, environment, peer_python, run

HOME = WORK / "smolvla"
TOKENIZER = Path(os.environ.get("MIMETIC_BENCH_TOKENIZER", ROOT / "tests" / "fixtures" / "tokenizer"))
"""Folder with SmolLM2's `vocab_head.json` and `merges.txt`."""
TASK = "Pick up the red cube and put it in the box."
"""11 tokens and the newline."""
VARIANTS = ("released", "padded", "float32")

TEXT: dict[str, Any] = {
    "architectures": ["VLlama3ForCausalLM"],
    "head_dim": 64,
    "hidden_size": 960,
    "intermediate_size": 2560,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 15,
    "num_hidden_layers": 32,
    "num_key_value_heads": 5,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000,
    "torch_dtype": "bfloat16",
    "vocab_size": 49280,
}
VISION: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 512,
    "model_type": "smolvlm_vision",
    "num_attention_heads": 12,
    "patch_size": 16,
    "tie_word_embeddings": False,
}
TOKEN_ROLES = {
    "bos_token": "<|im_start|>",
    "end_of_utterance_token": "<end_of_utterance>",
    "eos_token": "<end_of_utterance>",
    "fake_image_token": "<fake_token_around_image>",
    "global_image_token": "<global-img>",
    "image_token": "<image>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}


def checkpoint(variant: str) -> Path:
    """Folder of a full-size checkpoint, made on the first call (LeRobot writes it).

    Args:
        variant: one of `VARIANTS`.
    """
    folder = HOME / variant
    if not (folder / "model.safetensors").exists():
        vlm = HOME / ("vlm_float32" if variant == "float32" else "vlm")
        if not (vlm / "config.json").exists():
            write_vlm(vlm, float32=variant == "float32")
        source = folder if variant == "released" else checkpoint("released")
        settings = {"vlm": str(vlm), "variant": variant, "target": str(folder)}
        command = [peer_python(), str(PROBES / "smolvla_make_peer.py"), json.dumps(settings)]
        run(command, environment(one_thread=False, peer=True))
        if variant != "released":
            # Loading copies values into tensors whose dtype the configuration chose: one file serves all variants.
            os.link(source / "model.safetensors", folder / "model.safetensors")
    return folder


def write_vlm(folder: Path, *, float32: bool) -> None:
    """The small files of the VLM's repository, as far as LeRobot reads them."""
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    text = TEXT | ({"torch_dtype": "float32"} if float32 else {})
    config = {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": 49190,
        "model_type": "smolvlm",
        "pad_token_id": 2,
        "scale_factor": 4,
        "text_config": text,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": False,
        "vision_config": VISION,
    }
    _write(temporary / "config.json", config)
    _write(temporary / "processor_config.json", {"image_seq_len": 64, "processor_class": "SmolVLMProcessor"})
    _write(temporary / "preprocessor_config.json", _image_processor())
    _write(temporary / "tokenizer_config.json", _tokenizer_config())
    _write_tokenizer(temporary / "tokenizer.json")
    temporary.rename(folder)


def _image_processor() -> dict[str, Any]:
    return {
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_normalize": True,
        "do_pad": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_processor_type": "SmolVLMImageProcessor",
        "image_std": [0.5, 0.5, 0.5],
        "max_image_size": {"longest_edge": 512},
        "processor_class": "SmolVLMProcessor",
        "resample": 1,
        "rescale_factor": 1 / 255,
        "size": {"longest_edge": 2048},
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}},
    }


def _tokenizer_config() -> dict[str, Any]:
    special = ("end_of_utterance_token", "fake_image_token", "global_image_token", "image_token")
    return TOKEN_ROLES | {
        "additional_special_tokens": ["<fake_token_around_image>", "<image>", "<end_of_utterance>"],
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {role: TOKEN_ROLES[role] for role in special},
        "model_max_length": 8192,
        "processor_class": "SmolVLMProcessor",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "truncation_side": "left",
    }


def _write_tokenizer(path: Path) -> None:
    """SmolLM2's byte-level BPE with the image tokens of SmolVLM2 (spec/smolvla.md 5.1)."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    head = json.loads((TOKENIZER / "vocab_head.json").read_text(encoding="utf-8"))
    lines = (TOKENIZER / "merges.txt").read_text(encoding="utf-8").splitlines()
    pairs = [(left, right) for left, right in (line.split(" ") for line in lines)]
    strings = [*head["special_tokens"], *head["alphabet"], *(left + right for left, right in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(strings)}, merges=pairs))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    rows = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(88)]
    added = [*head["special_tokens"], "<global-img>", *rows, "<fake_token_around_image>", "<image>", *reserved]
    added.append("<end_of_utterance>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added])
    tokenizer.save(str(path))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2))


def main() -> None:
    for variant in VARIANTS:
        print(checkpoint(variant))


if __name__ == "__main__":
    main()
