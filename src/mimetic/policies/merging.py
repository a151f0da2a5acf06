"""From an adapter and its base to a whole policy on disk."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from mimetic.config.codec import encode
from mimetic.errors import CheckpointError
from mimetic.hub.policies import find_policy
from mimetic.names import WEIGHTS
from mimetic.policies.adapter_config import is_adapter, read_adapter_config
from mimetic.policies.adapters import find_base, merge
from mimetic.policies.base import Policy
from mimetic.policies.checkpoint import load_pretrained, read_config, save_pretrained
from mimetic.policies.tensors import WeightsFile, open_weights


def merge_into(source: Path | str, target: Path) -> list[str]:
    """Write the policy that an adapter and its base make together.

    The sum is made in float32 and stored so; weights that the adapter leaves alone keep the bits of the base's file.

    Args:
        source: an adapter's folder, checkpoint or run.
        target: folder to write; absent or empty.

    Returns:
        Names of the layers that the adapter was merged into.

    Raises:
        CheckpointError: the source is no adapter, or the target is not empty; or as in `load_pretrained`.
    """
    folder = find_policy(source)
    config = read_config(folder)
    if not is_adapter(folder, use_peft=config.use_peft):
        raise CheckpointError(f"`{folder}` is a whole policy, so there is no adapter to merge")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"`{target}` is not empty", "choose another folder with `--merge_to`")
    has_precision = any(field.name == "precision" for field in fields(config))
    loaded = load_pretrained(folder, config_overrides={"precision": "float32"} if has_precision else None)
    merged = merge(loaded.policy)
    _restore_dtypes(loaded.policy, open_weights(find_base(folder, read_adapter_config(folder)) / WEIGHTS), merged)
    if has_precision:  # merging needed float32; what the policy runs in is not changed by it
        own: dict[str, Any] = {"precision": encode(config)["precision"]}
        loaded.policy.config = replace(loaded.policy.config, **own)
    save_pretrained(loaded.policy, target, loaded.preprocessor, loaded.postprocessor)
    return merged


def _restore_dtypes(policy: Policy, base: WeightsFile, merged: list[str]) -> None:
    """Give untouched weights the dtype that the base's file has them in, which holds their values exactly."""
    with base.reading() as read:
        for name, parameter in policy.named_parameters():
            if name not in base.tensors or name.rpartition(".")[0] in merged:
                continue
            stored: Tensor = read(name)
            if stored.dtype != parameter.dtype and bool((stored.to(parameter.dtype) == parameter).all()):
                parameter.data = stored
