"""The vision-language model under a SmolVLA policy: its sizes, and where they come from (spec/smolvla.md 5.1, 12).

Nothing here needs the network for a checkpoint of mimetic or for the usual backbone: the first carries the model's
`config.json`, the sizes of the second are known here.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from mimetic.errors import ConfigError
from mimetic.hub.download import download_snapshot
from mimetic.hub.locate import cached_snapshot, hub_cache, is_offline, local_folder
from mimetic.names import CONFIG_JSON, WEIGHTS
from mimetic.policies.smolvla.bounds import require_room
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.sizes import KNOWN, Backbone
from mimetic.policies.smolvla.vlm_config import image_token_ids, parse_vlm_config, vlm_config_json
from mimetic.policies.smolvla.vlm_weights import copy_vlm_weights, weight_files
from mimetic.processing.small_files import read_small, require_shallow
from mimetic.processing.store import resolve_inside

logger = logging.getLogger(__name__)

__all__ = ["KNOWN", "Backbone", "companion_files", "find_backbone", "find_vlm", "load_backbone_weights"]

BACKBONE_DIR = "backbone"
TOKENIZER_DIR = "tokenizer"
TOKENIZER_JSON = "tokenizer.json"
SMALL_FILES = (CONFIG_JSON, TOKENIZER_JSON, "tokenizer_config.json")
"""What is fetched from the hub for the sizes and the tokenizer."""
_WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


def find_backbone(config: SmolVLAConfig) -> Backbone:
    """Sizes of the vision-language model that a policy's settings name.

    Looked for in this order: `backbone/config.json` in the checkpoint's folder, the known models, a local folder, the
    hub.

    Args:
        config: the policy's settings; `located` in the checkpoint's folder when there is one.

    Raises:
        ConfigError: the model is nowhere, is no SmolVLM, or does not fit the settings.
        CheckpointError: a file of the checkpoint is damaged, lies elsewhere, or is far too small for the sizes.
        OfflineError: it is on the hub only, and the network is forbidden or not there.
        HubError: the hub refuses.
    """
    content, weights = _own_config(config), _own_weights(config)
    whole = bool(weights)
    if content is None and config.vlm_model_name in KNOWN:
        sizes = KNOWN[config.vlm_model_name]
    else:
        path, raw = content if content is not None else _vlm_config(config)
        if not weights and content is None and any((path.parent / name).is_file() for name in _WEIGHT_FILES):
            weights = weight_files(path.parent)
        sizes = parse_vlm_config(_as_object(raw, path), where=f"`{path}`")
        sizes = _with_token_ids(sizes, config)
    _require_fit(config, sizes)
    require_room(config, sizes, weights, whole=whole)
    return sizes


def companion_files(config: SmolVLAConfig) -> dict[str, bytes]:
    """`backbone/config.json` for a checkpoint: the file that the sizes came from, or one with the known sizes.

    Args:
        config: the policy's settings.

    Raises:
        ConfigError: the model is nowhere.
    """
    own = _own_config(config)
    if own is not None:
        content = own[1]
    elif config.vlm_model_name in KNOWN:
        content = (json.dumps(vlm_config_json(KNOWN[config.vlm_model_name]), indent=2) + "\n").encode()
    else:
        content = _vlm_config(config)[1]
    return {f"{BACKBONE_DIR}/{CONFIG_JSON}": content}


def load_backbone_weights(vlm: nn.Module, config: SmolVLAConfig) -> None:
    """Fill the vision-language model of a new policy with its own weights, all or none.

    Args:
        vlm: gets the weights, in its own dtypes; layers that it does not have are skipped.
        config: the policy's settings.

    Raises:
        ConfigError: the settings ask for a frozen model with random weights, or there are no weights.
        CheckpointError: the weights are damaged.
        KeyMismatch: they belong to another model.
        OfflineError: they are not on this machine, and the network is forbidden or not there.
        HubError: the hub refuses.
    """
    others = (
        "start from a trained policy with `--policy.path=lerobot/smolvla_base`, or train everything with "
        "`--policy.load_vlm_weights=false --policy.train_expert_only=false --policy.freeze_vision_encoder=false`"
    )
    if not config.load_vlm_weights:
        if config.train_expert_only or config.freeze_vision_encoder:
            frozen = "train_expert_only" if config.train_expert_only else "freeze_vision_encoder"
            raise ConfigError(
                f"`--policy.load_vlm_weights=false` gives a new policy a random vision-language model, and "
                f"`--policy.{frozen}=true` keeps it random",
                f"leave `--policy.load_vlm_weights` at true, or {others}",
            )
        logger.warning("the vision-language model starts from random weights (--policy.load_vlm_weights=false)")
        return
    patterns = (*SMALL_FILES, *_WEIGHT_FILES, "model-*.safetensors")
    folder = find_vlm(config.vlm_model_name, patterns, needed=_WEIGHT_FILES)
    if not any((folder / name).is_file() for name in _WEIGHT_FILES):
        raise ConfigError(
            f"`{folder}` holds no weights ({_WEIGHT_FILES[0]}), which a new policy starts from",
            f"copy them there, or name the model with `--policy.vlm_model_name`; otherwise {others}",
        )
    copy_vlm_weights(vlm, folder)


def find_vlm(name: str, patterns: tuple[str, ...] = SMALL_FILES, *, needed: tuple[str, ...] = (CONFIG_JSON,)) -> Path:
    """Folder with the files of a vision-language model, from a local folder, the hub's cache, or the hub.

    Args:
        name: a folder or a hub id.
        patterns: what to fetch from the hub.
        needed: files of which a cached snapshot must have one; without them it is fetched again.

    Raises:
        ConfigError: there is no such folder, and it is no hub id.
        OfflineError: it is not on this machine, and the network is forbidden or not there.
        HubError: the hub refuses.
    """
    folder = local_folder(name)
    if folder is not None:
        return folder
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or "\\" in name:
        raise ConfigError(
            f"`--policy.vlm_model_name={name}` is no folder here ({Path(name).absolute()}) and no hub id",
            "give the folder of the vision-language model (with its `config.json` and `tokenizer.json`); a relative "
            "path counts from the folder in which the command runs",
        )
    cached = cached_snapshot(name, "model", None, hub_cache())
    if cached is not None and any((cached / file).is_file() for file in needed):
        return cached
    if not is_offline():
        logger.info("fetching %s of the vision-language model %s from the hub", ", ".join(patterns), name)
    return download_snapshot(name, "model", allow_patterns=patterns)


def _own_config(config: SmolVLAConfig) -> tuple[Path, bytes] | None:
    """The model's config inside the policy's checkpoint."""
    if config.backbone_folder is None:
        return None
    if not os.path.lexists(config.backbone_folder / BACKBONE_DIR):
        return None
    path = resolve_inside(config.backbone_folder, f"{BACKBONE_DIR}/{CONFIG_JSON}", f"`{config.backbone_folder}`")
    return config.backbone_folder / BACKBONE_DIR / CONFIG_JSON, _read(path)


def _own_weights(config: SmolVLAConfig) -> list[Path]:
    """The policy's weights beside its settings; an adapter has none."""
    path = config.backbone_folder / WEIGHTS if config.backbone_folder is not None else None
    return [path] if path is not None and path.is_file() else []


def _vlm_config(config: SmolVLAConfig) -> tuple[Path, bytes]:
    path = find_vlm(config.vlm_model_name) / CONFIG_JSON
    if not path.is_file():
        raise ConfigError(
            f"`{path.parent}` has no {CONFIG_JSON}, so the sizes of the vision-language model are not known",
            "name the folder of a SmolVLM or its hub id with `--policy.vlm_model_name`",
        )
    return path, _read(path)


def _read(path: Path) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be read: {error.strerror}") from error


def _as_object(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        data = json.loads(raw)
        require_shallow(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"`{path}` is no JSON: {error}", "the file is damaged; copy it again") from error
    if not isinstance(data, dict):
        raise ConfigError(f"`{path}` holds a {type(data).__name__}, not an object")
    return data


def _with_token_ids(sizes: Backbone, config: SmolVLAConfig) -> Backbone:
    """Sizes with the ids of the image's special tokens, if the settings need them."""
    if not config.add_image_special_tokens:
        return sizes
    own = config.backbone_folder / TOKENIZER_DIR / TOKENIZER_JSON if config.backbone_folder is not None else None
    if own is not None and os.path.lexists(own):
        path = resolve_inside(own.parent.parent, f"{TOKENIZER_DIR}/{TOKENIZER_JSON}", f"`{own.parent.parent}`")
    elif config.vlm_model_name in KNOWN:
        known = KNOWN[config.vlm_model_name]
        return replace(sizes, fake_image_token=known.fake_image_token, global_image_token=known.global_image_token)
    else:
        path = find_vlm(config.vlm_model_name, needed=(TOKENIZER_JSON,)) / TOKENIZER_JSON
    if not path.is_file():
        raise ConfigError(
            f"`--policy.add_image_special_tokens=true` needs the tokenizer, and there is no `{path}`",
            "copy the vision-language model's `tokenizer.json` there",
        )
    fake, first = image_token_ids(_as_object(_read(path), path))
    if min(fake, first) < 0 or max(fake, first) >= sizes.vocab_size:
        raise ConfigError(
            f"`--policy.add_image_special_tokens=true` needs the tokens `<fake_token_around_image>` and `<global-img>`,"
            f" and `{path}` has ids {fake} and {first} for them, of {sizes.vocab_size} embeddings",
            "use the tokenizer of a SmolVLM",
        )
    return replace(sizes, fake_image_token=fake, global_image_token=first)


def _require_fit(config: SmolVLAConfig, sizes: Backbone) -> None:
    """Check what the settings ask of the model.

    Raises:
        ConfigError: they ask for what it cannot do; all problems.
    """
    problems = config.layer_problems(sizes.kept_layers(config.num_vlm_layers))
    resize = config.resize_imgs_with_padding
    if resize is not None and resize != (sizes.image_size, sizes.image_size):
        problems.append(
            f"`--policy.resize_imgs_with_padding=[{resize[0]},{resize[1]}]`: the vision encoder of "
            f"`{config.vlm_model_name}` reads {sizes.image_size} x {sizes.image_size} pixels"
        )
    width = int(sizes.text_hidden * config.expert_width_multiplier)
    if width < 2 or width % 2:
        problems.append(
            f"`--policy.expert_width_multiplier={config.expert_width_multiplier}` makes the expert {width} wide, "
            "which must be an even number"
        )
    if problems:
        raise ConfigError("; ".join(problems), "change the named flags, or `--policy.vlm_model_name`")
