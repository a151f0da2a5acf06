"""Whether a model of the settings' size can be what a weights file holds, asked before anything is allocated.

Settings and weights of a checkpoint are separate files. Where they contradict each other by a little, the comparison
by names and shapes says how; where the settings ask for many times what the file holds, building the model for that
comparison would take any amount of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mimetic.errors import CheckpointError, ConfigError
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.sizes import Backbone
from mimetic.policies.tensors import open_weights

_FACTOR, _SLACK = 4, 2**24
"""Models may be that many times as large as the weights beside them, and this many numbers more (for tiny ones)."""
_MOST = 2**33
"""Numbers in a model whose weights are not known yet: 32 GB in float32."""


def require_room(config: SmolVLAConfig, sizes: Backbone, files: Sequence[Path], *, whole: bool) -> None:
    """Refuse settings that describe a model far larger than its weights.

    Args:
        config: the policy's settings.
        sizes: of the vision-language model.
        files: existing weights files; none when they are not known.
        whole: whether they hold the whole policy or only the vision-language model.

    Raises:
        CheckpointError: the files are far too small, or damaged.
        ConfigError: there are no files, and the model is larger than any.
    """
    wanted = vlm_size(config, sizes) + (expert_size(config, sizes) if whole or not files else 0)
    if not files:
        if wanted > _MOST:
            raise ConfigError(
                f"the settings describe a model of {_about(wanted)} parameters",
                "check `--policy.expert_width_multiplier`, `--policy.max_state_dim`, `--policy.max_action_dim` and the "
                "vision-language model's config.json",
            )
        return
    stored = sum(info.numel for path in files for info in open_weights(path).tensors.values())
    if wanted > _FACTOR * stored + _SLACK:
        raise CheckpointError(
            f"the settings in `{files[0].parent}` describe a model of {_about(wanted)} parameters, and "
            f"`{files[0].name}` holds {_about(stored)}",
            "the files do not belong together, or are damaged; copy the checkpoint again",
        )


def vlm_size(config: SmolVLAConfig, sizes: Backbone) -> int:
    """Parameters of the vision-language model, within a per cent: its matrices."""
    heads = (2 * sizes.text_heads + 2 * sizes.text_kv_heads) * sizes.text_head_dim
    text = sizes.kept_layers(config.num_vlm_layers) * sizes.text_hidden * (heads + 3 * sizes.text_mlp)
    vision = sizes.vision_layers * sizes.vision_hidden * (4 * sizes.vision_hidden + 2 * sizes.vision_mlp)
    grid, side = sizes.image_size // sizes.patch_size, sizes.patch_size
    vision += sizes.vision_hidden * (grid**2 + 3 * side**2)
    connector = sizes.vision_hidden * sizes.scale_factor**2 * sizes.text_hidden
    return text + vision + connector + 2 * sizes.vocab_size * sizes.text_hidden


def expert_size(config: SmolVLAConfig, sizes: Backbone) -> int:
    """Parameters of everything else, about: the expert's keys and values may come from the vision-language model."""
    width = int(sizes.text_hidden * config.expert_width_multiplier)
    kept = sizes.kept_layers(config.num_vlm_layers)
    layers = min(config.num_expert_layers, kept) if config.num_expert_layers > 0 else kept
    heads = (2 * sizes.text_heads + 2 * sizes.text_kv_heads) * sizes.text_head_dim
    expert = layers * width * (heads + 8 * width)
    return expert + 3 * width**2 + config.max_state_dim * sizes.text_hidden + 2 * config.max_action_dim * width


def _about(number: int) -> str:
    return f"{min(number, 10**18):.2g}"
