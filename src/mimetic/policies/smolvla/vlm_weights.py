"""Weights of a vision-language model, out of the files that transformers writes, into the network's own module."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from mimetic.catalog import closest
from mimetic.errors import CheckpointError, CheckpointNotFound, KeyMismatch
from mimetic.names import CONFIG_JSON, WEIGHTS
from mimetic.policies.tensors import WeightsFile, open_weights
from mimetic.processing.store import read_json

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"
_PARTS = ("vision_model.", "connector.", "text_model.")
_BUFFERS = (".inv_freq", ".position_ids")
_HEAD, _EMBEDDING = "lm_head.weight", "model.text_model.embed_tokens.weight"
_LAYER = re.compile(r"(model\.text_model\.layers\.\d+\.).*")
_SHOWN = 8


def copy_vlm_weights(vlm: nn.Module, folder: Path) -> None:
    """Copy weights tensor by tensor; names and shapes are compared before the first one is copied.

    Args:
        vlm: `model.{vision_model,connector,text_model}` and `lm_head`, with the first text layers only if so wanted.
        folder: holds `model.safetensors`, or several files with an index.

    Raises:
        CheckpointNotFound: a file is not there.
        CheckpointError: a file is damaged.
        KeyMismatch: the weights belong to another model.
    """
    files = [open_weights(path).renamed(_module_name) for path in weight_files(folder)]
    place = {name: file for file in files for name in file.tensors}
    state = vlm.state_dict()
    source = {name: name for name in state}
    if _HEAD in state and _HEAD not in place and _is_tied(folder):
        source[_HEAD] = _EMBEDDING
    _require_same(folder, {name: tuple(t.shape) for name, t in state.items()}, source, place)
    for file in files:
        file.require_floats(stored for stored in source.values() if place[stored] is file)
    with torch.no_grad():
        for file in files:
            with file.reading() as read:
                for name, stored in source.items():
                    if place[stored] is file:
                        state[name].copy_(read(stored))
                        file.require_finite(stored, state[name])
    logger.info("Loaded the vision-language model from %s: %d tensors", folder, len(state))


def _module_name(name: str) -> str | None:
    """The module's name for a stored tensor; None for buffers that carry nothing."""
    if name.endswith(_BUFFERS):
        return None
    return f"model.{name}" if name.startswith(_PARTS) else name


def weight_files(folder: Path) -> list[Path]:
    """The files with a model's weights: one, or those that its index names, all in the same folder.

    Raises:
        CheckpointNotFound: a file is not there.
        CheckpointError: the index is damaged, or names files elsewhere.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    path = folder / INDEX
    names = read_json(path).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"`{path}` has no `weight_map`", "the file is damaged; copy it again")
    files = sorted({str(name) for name in names.values()})
    if any(Path(name).name != name for name in files):
        raise CheckpointError(f"`{path}` names files outside its folder: {', '.join(files)[:200]}")
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise CheckpointNotFound(f"`{path}` names files that are not there: {', '.join(absent)}", "copy them there too")
    return [folder / name for name in files]


def _is_tied(folder: Path) -> bool:
    path = folder / CONFIG_JSON
    return path.is_file() and read_json(path).get("tie_word_embeddings") is True


def _require_same(
    folder: Path, wanted: dict[str, tuple[int, ...]], source: dict[str, str], place: dict[str, WeightsFile]
) -> None:
    missing = [name for name in wanted if source[name] not in place]
    layers = {match[1] for name in wanted if (match := _LAYER.fullmatch(name))}
    unexpected = [
        name
        for name in place
        if name not in wanted and not ((match := _LAYER.fullmatch(name)) and match[1] not in layers)
    ]
    shapes = [
        f"`{name}` is {stored} and should be {shape}"
        for name, shape in wanted.items()
        if source[name] in place and (stored := place[source[name]].tensors[source[name]].shape) != shape
    ]
    parts = []
    if missing:
        near = {name: closest(name, unexpected) for name in missing[:_SHOWN]}
        named = [f"`{name}`" + (f" (nearest: `{near[name][0]}`)" if near.get(name) else "") for name in missing]
        parts.append("missing: " + _listed(named))
    if unexpected:
        parts.append("unexpected: " + _listed(f"`{name}`" for name in unexpected))
    if shapes:
        parts.append("other shape: " + _listed(shapes))
    if parts:
        counts = f"missing {len(missing)}, unexpected {len(unexpected)}, other shape {len(shapes)}"
        raise KeyMismatch(
            "\n".join([f"the weights in `{folder}` do not fit the vision-language model: {counts}", *parts]),
            "name the folder of the model that its `config.json` describes, with `--policy.vlm_model_name`",
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
