"""`adapter_config.json` of a LoRA adapter, in the layout of peft 0.21 (spec/smolvla.md 13)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.errors import CheckpointError, CheckpointNotFound
from mimetic.names import ADAPTER_BINARY, ADAPTER_CONFIG, ADAPTER_WEIGHTS, NETWORK_PATHS, WEIGHTS
from mimetic.processing.store import read_json

DEFAULT_RANK = 16
DEFAULT_ALPHA = 8
"""What peft takes when no alpha is given."""
_MOST_NAMES, _LONGEST_NAME = 10_000, 1000
_LARGEST_ALPHA = 1e6
READABLE_INITS = (True, False, "gaussian", "orthogonal")
"""Initial values that leave the base weights alone; loading overwrites them anyway."""

_NEUTRAL: dict[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_bias": False,
    "lora_ga_config": None,
    "megatron_config": None,
    "monteclora_config": None,
    "rank_pattern": {},
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "velora_config": None,
}
"""Options of peft's LoRA that mimetic does not build, at the values where they do nothing."""
_IGNORED: dict[str, Any] = {
    "auto_mapping": None,
    "inference_mode": True,
    "megatron_core": "megatron.core",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "task_type": None,
}
"""Keys that say nothing about the numbers, with what is written for them (the version is that of the layout)."""


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """What a LoRA adapter consists of.

    Args:
        target_modules: one regular expression for whole module names, or names that a module's name ends with.
        r: rank.
        lora_alpha: the scale is lora_alpha / r.
        lora_dropout: dropout of the adapters' inputs in training.
        use_rslora: the scale is lora_alpha / sqrt(r).
        init_lora_weights: true or "gaussian" for new adapters; see `READABLE_INITS` for stored ones.
        modules_to_save: names that a module's name ends with; these are trained fully and stored with the adapter.
        base_model_name_or_path: the base policy: a folder, a run or a hub id.
        revision: of the base policy on the hub.
        auto_mapping: LeRobot's class of the policy, only for the file.
        base_fingerprint: of the base weights (`adapters.fingerprint`); stands in a file of its own; empty: unknown.
    """

    target_modules: str | tuple[str, ...]
    r: int = DEFAULT_RANK
    lora_alpha: float = DEFAULT_ALPHA
    lora_dropout: float = 0.0
    use_rslora: bool = False
    init_lora_weights: bool | str = True
    modules_to_save: tuple[str, ...] = ()
    base_model_name_or_path: str = ""
    revision: str | None = None
    auto_mapping: Mapping[str, str] | None = None
    base_fingerprint: str = ""

    def to_json(self) -> str:
        """Text of the file, byte for byte what peft writes for the same adapter."""
        targets = self.target_modules
        data = {
            **_NEUTRAL,
            **_IGNORED,
            "auto_mapping": dict(self.auto_mapping) if self.auto_mapping else None,
            "base_model_name_or_path": self.base_model_name_or_path,
            "init_lora_weights": self.init_lora_weights,
            "lora_alpha": self.lora_alpha,
            "lora_dropout": self.lora_dropout,
            "modules_to_save": list(self.modules_to_save),
            "peft_type": "LORA",
            "r": self.r,
            "revision": self.revision,
            "target_modules": targets if isinstance(targets, str) else list(targets),
            "use_rslora": self.use_rslora,
        }
        return json.dumps(data, indent=2, sort_keys=True)


def is_adapter(folder: Path, *, use_peft: bool) -> bool:
    """Whether a `pretrained_model` folder holds an adapter instead of a whole policy.

    Args:
        folder: the folder.
        use_peft: what its `config.json` says; a folder with nothing but an adapter is one without it too.
    """
    return use_peft or ((folder / ADAPTER_CONFIG).is_file() and not (folder / WEIGHTS).is_file())


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read the description of an adapter.

    Args:
        folder: `pretrained_model` folder of the adapter.

    Raises:
        CheckpointNotFound: a file of the adapter is missing.
        CheckpointError: weights are only there as a pickle, or the adapter is of a kind that mimetic does not build;
            all problems at once.
    """
    path = folder / ADAPTER_CONFIG
    if not path.is_file():
        raise CheckpointNotFound(
            f"`{folder}` is marked as an adapter (`use_peft` in its config.json), but has no {ADAPTER_CONFIG}",
            "copy the adapter's files again; for a whole policy set `use_peft` to false in its config.json",
        )
    if not (folder / ADAPTER_WEIGHTS).is_file() and (folder / ADAPTER_BINARY).is_file():
        raise CheckpointError(
            f"`{folder}` holds its adapter as {ADAPTER_BINARY}, a pickle, and opening a pickle can run any code in it",
            f"where you trust it, load it with peft and save it again: peft writes {ADAPTER_WEIGHTS}",
        )
    data = read_json(path)
    if not isinstance(data, dict):
        raise CheckpointError(f"`{path}` holds no JSON object")
    problems = [*_problems(data)]
    if problems:
        raise CheckpointError(
            f"`{path}`: {'; '.join(problems)}", "train the adapter anew with `--peft.method_type=LORA`"
        )
    targets = data["target_modules"]
    return AdapterConfig(
        target_modules=targets if isinstance(targets, str) else tuple(targets),
        r=data["r"],
        lora_alpha=data.get("lora_alpha", DEFAULT_ALPHA),
        lora_dropout=data.get("lora_dropout", 0.0),
        use_rslora=data.get("use_rslora", False),
        init_lora_weights=data.get("init_lora_weights", True),
        modules_to_save=tuple(data.get("modules_to_save") or ()),
        base_model_name_or_path=data["base_model_name_or_path"],
        revision=data.get("revision"),
        auto_mapping=data.get("auto_mapping"),
    )


def _problems(data: Mapping[str, Any]) -> list[str]:
    """Why an adapter cannot be used as its file describes it, one sentence each."""
    if data.get("peft_type") != "LORA":
        return [f"`peft_type` is {json.dumps(data.get('peft_type'))}, and mimetic builds LORA only"]
    checked = {
        "r": _is_whole(data.get("r"), 1),
        "lora_alpha": _is_number(data.get("lora_alpha", DEFAULT_ALPHA))
        and abs(data.get("lora_alpha", DEFAULT_ALPHA)) <= _LARGEST_ALPHA,
        "lora_dropout": _is_number(data.get("lora_dropout", 0.0)) and 0 <= data.get("lora_dropout", 0.0) < 1,
        "use_rslora": isinstance(data.get("use_rslora", False), bool),
        "target_modules": isinstance(data.get("target_modules"), str) or _is_names(data.get("target_modules")),
        "modules_to_save": data.get("modules_to_save") is None or _is_names(data["modules_to_save"]),
        "base_model_name_or_path": isinstance(data.get("base_model_name_or_path"), str)
        and 0 < len(data["base_model_name_or_path"]) <= _LONGEST_NAME
        and not data["base_model_name_or_path"].startswith(NETWORK_PATHS),
        "revision": data.get("revision") is None or isinstance(data["revision"], str),
        "init_lora_weights": data.get("init_lora_weights", True) in READABLE_INITS,
    }
    found = [f"`{key}` = {_shown(data.get(key))} cannot be used" for key, good in checked.items() if not good]
    for key, value in data.items():
        if key in checked or key in _IGNORED or key == "peft_type":
            continue
        # An option that this version does not know does nothing when it is off.
        if value != _NEUTRAL[key] if key in _NEUTRAL else value not in (None, False, {}, []):
            found.append(f"mimetic does not build `{key}` = {_shown(value)}")
    return found


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}..."


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_NAMES
        and all(isinstance(item, str) and len(item) <= _LONGEST_NAME for item in value)
    )
