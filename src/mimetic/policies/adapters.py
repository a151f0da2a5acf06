"""Adapters of policies: which layers get one, what is trained with it, and the files (spec/smolvla.md 13).

An adapter checkpoint holds only what was trained, and names the base policy, which stays where it is. A file
`mimetic_adapter.json`, which LeRobot ignores, holds a fingerprint of the base weights, so that an adapter is never put
on others.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, MimeticError
from mimetic.hub.locate import local_folder
from mimetic.hub.policies import find_policy
from mimetic.names import ADAPTER_BASE_JSON, ADAPTER_CONFIG, ADAPTER_WEIGHTS, CONFIG_JSON, WEIGHTS
from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapter_targets import ALL_LINEAR, find_targets, full_modules, named_modules
from mimetic.policies.base import Policy
from mimetic.policies.bricks.lora import LoRALinear
from mimetic.policies.name_patterns import NamePattern, PatternError
from mimetic.policies.report import LoadReport, compare
from mimetic.policies.tensors import SkipInitialisation, open_weights
from mimetic.processing.store import read_json, replacing, write_file

logger = logging.getLogger(__name__)

_PREFIX = "base_model.model."
_DOWN = ".lora_A.weight"
_RANK_FACTOR = 4
_SHOWN = 200
_SAMPLES, _SAMPLE_BYTES = 64, 65_536


def attach(policy: Policy, adapter: AdapterConfig) -> None:
    """Freeze a policy and give its chosen layers trainable adapters, in place.

    Args:
        policy: with its base weights loaded; its config is marked as an adapter's.
        adapter: what to attach; the policy keeps it, with all that is needed to save it.

    Raises:
        ConfigError: the policy has an adapter already, or names match no module or one that cannot have an adapter.
    """
    if policy.adapter is not None:
        raise ConfigError(
            "this policy has an adapter already",
            "leave out `--peft.*` to train it further, or merge it first: `mimetic inspect RUN --merge_to=FOLDER`",
        )
    names = find_targets(policy, adapter)
    full = full_modules(policy, adapter)
    policy.requires_grad_(False)
    for name in names:
        parent, _, last = name.rpartition(".")
        base = policy.get_submodule(name)
        assert isinstance(base, nn.Linear)
        layer = LoRALinear(
            base,
            adapter.r,
            adapter.lora_alpha,
            dropout=adapter.lora_dropout,
            rank_stabilised=adapter.use_rslora,
            init="gaussian" if adapter.init_lora_weights == "gaussian" else "kaiming",
        )
        setattr(policy.get_submodule(parent), last, layer)
    for name in full:
        policy.get_submodule(name).requires_grad_(True)
    _set_dtypes(policy)
    targets = tuple(names) if adapter.target_modules == ALL_LINEAR else adapter.target_modules
    policy.adapter = replace(adapter, target_modules=targets, auto_mapping=adapter.auto_mapping or _lerobot(policy))
    policy.config = replace(policy.config, use_peft=True)
    _announce(policy, names, full)


def _set_dtypes(policy: Policy) -> None:
    """Give layers that say what they multiply in the dtype to be kept in: that one when frozen, float32 when trained.

    Frozen weights take half the memory with the same numbers; trained ones keep their small updates.
    """
    for module in policy.modules():
        dtype = getattr(module, "compute_dtype", None)
        if dtype is not None and isinstance(module, nn.Linear):
            module.to(torch.float32 if module.weight.requires_grad else dtype)
    small = [name for name, p in policy.named_parameters() if p.requires_grad and p.dtype.itemsize < 4]
    if small:
        logger.warning(
            "%d tensors are trained in %s, which loses small updates (%s, ...); --policy.precision=float32 keeps them",
            len(small),
            str(policy.get_parameter(small[0]).dtype).removeprefix("torch."),
            small[0],
        )


def _lerobot(policy: Policy) -> dict[str, str]:
    kind = policy.config.type_name
    return {"base_model_class": type(policy).__name__, "parent_library": f"lerobot.policies.{kind}.modeling_{kind}"}


def _announce(policy: Policy, names: Sequence[str], full: Sequence[str]) -> None:
    adapter = policy.adapter
    assert adapter is not None
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    total = sum(p.numel() for p in policy.parameters())
    ends = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
    logger.info(
        "LoRA: rank %d, alpha %g; modules with an adapter: %d (%s)%s; %s of %s parameters are trainable",
        adapter.r,
        adapter.lora_alpha,
        len(names),
        ends,
        f"; trained fully: {', '.join(full)}" if full else "",
        f"{trained:,}",
        f"{total:,}",
    )


def merge(policy: Policy) -> list[str]:
    """Put the adapter into the weights, in place: a policy like any other, as fast as its base.

    In float32 its outputs differ from the separate form by rounding (`LoRALinear.merged`); load the policy in float32
    before merging (`{"precision": "float32"}` where it has that setting), since 8 bits hold little of an adapter.

    Returns:
        Names of the layers whose weights changed.

    Raises:
        ConfigError: the policy has no adapter.
    """
    if policy.adapter is None:
        raise ConfigError("this policy has no adapter that could be merged")
    layers = {name: module for name, module in named_modules(policy).items() if isinstance(module, LoRALinear)}
    for name, module in layers.items():
        parent, _, last = name.rpartition(".")
        setattr(policy.get_submodule(parent), last, module.merged())
    policy.adapter = None
    policy.config = replace(policy.config, use_peft=False)
    return list(layers)


def adapter_state(policy: Policy) -> dict[str, Tensor]:
    """The trained tensors by their names in the file: adapters, and the modules that are trained fully."""
    assert policy.adapter is not None
    state: dict[str, Tensor] = {}
    for name, module in named_modules(policy).items():
        if isinstance(module, LoRALinear):
            state[f"{_PREFIX}{name}.lora_A.weight"] = module.lora_A.weight
            state[f"{_PREFIX}{name}.lora_B.weight"] = module.lora_B.weight
    for name in full_modules(policy, policy.adapter):
        for key, tensor in policy.get_submodule(name).state_dict(keep_vars=True).items():
            state[f"{_PREFIX}{name}.{key}"] = tensor
    return state


def save_adapter(policy: Policy, folder: Path) -> None:
    """Write the adapter's files as peft does; each appears complete or not at all."""
    adapter = policy.adapter
    assert adapter is not None
    tensors = {name: tensor.detach().to("cpu").contiguous() for name, tensor in adapter_state(policy).items()}
    with replacing(folder / ADAPTER_WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    write_file(folder / ADAPTER_CONFIG, adapter.to_json().encode())
    if adapter.base_fingerprint:
        data = {"format": 1, "base": adapter.base_fingerprint}
        write_file(folder / ADAPTER_BASE_JSON, json.dumps(data, indent=2).encode())


def compare_adapter(policy: Policy, folder: Path, allow_missing: Sequence[str] = ()) -> LoadReport:
    """Compare the stored adapter with the one that is attached.

    Raises:
        CheckpointNotFound: there are no weights.
        CheckpointError: the file is damaged.
    """
    file = open_weights(folder / ADAPTER_WEIGHTS)
    return compare(file, {name: tuple(t.shape) for name, t in adapter_state(policy).items()}, allow_missing)


def load_adapter(
    policy: Policy, folder: Path, adapter: AdapterConfig, *, allow_missing: Sequence[str] = ()
) -> LoadReport:
    """Attach a stored adapter to a policy that has its base weights, strictly.

    Args:
        policy: changed in place; not to be used when this raises.
        folder: `pretrained_model` folder of the adapter.
        adapter: its description.
        allow_missing: shell patterns of tensor names in the file that may differ.

    Raises:
        CheckpointNotFound: there are no weights.
        CheckpointError: the file is damaged, or the description does not fit the policy.
        KeyMismatch: names or shapes differ and are not allowed to.
    """
    path = folder / ADAPTER_WEIGHTS
    file = open_weights(path)
    with SkipInitialisation() if not allow_missing else nullcontext():
        attach_stored(policy, folder, adapter)
    report = compare_adapter(policy, folder, allow_missing)
    report.require_complete(f"`{path}`")
    file.require_floats(report.matched)
    state = adapter_state(policy)
    with torch.no_grad(), file.reading() as read:
        for name in report.matched:
            state[name].copy_(read(name))
            file.require_finite(name, state[name])
    return report


def attach_stored(policy: Policy, folder: Path, adapter: AdapterConfig) -> None:
    """Attach an adapter as its file describes it; a description out of a file costs little time and memory.

    Args:
        policy: changed in place; not to be used when this raises.
        folder: `pretrained_model` folder of the adapter, for its weights' header and for messages.
        adapter: its description.

    Raises:
        CheckpointNotFound: there are no weights.
        CheckpointError: the description does not fit the policy or the weights, or the file of these is damaged.
    """
    path, targets = folder / ADAPTER_CONFIG, adapter.target_modules
    stored = open_weights(folder / ADAPTER_WEIGHTS).tensors
    ranks = {info.shape[0] for name, info in stored.items() if name.endswith(_DOWN) and len(info.shape) == 2}
    if ranks and adapter.r > _RANK_FACTOR * max(ranks):
        raise CheckpointError(
            f"`r` is {adapter.r} in `{path}`, and the weights in {ADAPTER_WEIGHTS} have rank {max(ranks)}",
            "the files do not belong together, or are damaged; copy the adapter again",
        )
    try:
        if isinstance(targets, str) and targets != ALL_LINEAR:
            names = NamePattern(targets).matching(named_modules(policy))
            if not names:
                raise ConfigError(f"`target_modules` = `{targets[:_SHOWN]}` matches no module of the policy")
            attach(policy, replace(adapter, target_modules=tuple(names)))
            assert policy.adapter is not None
            policy.adapter = replace(policy.adapter, target_modules=targets)
        else:
            attach(policy, adapter)
    except PatternError as error:
        raise CheckpointError(
            f"`target_modules` in `{path}` is no expression that mimetic follows: {error}",
            "list the names of the layers there instead",
        ) from error
    except ConfigError as error:
        raise CheckpointError(f"`{path}` does not fit the policy: {error.message}") from error


def find_base(folder: Path, adapter: AdapterConfig) -> Path:
    """Folder of the base policy of an adapter: where its path leads from here, or beside the adapter's folder.

    Raises:
        CheckpointNotFound: it is not there, or is an adapter itself.
        CheckpointError: it holds other weights than those that the adapter was trained on.
    """
    name = adapter.base_model_name_or_path
    beside = folder.parent / name
    try:
        if local_folder(name) is None and local_folder(str(beside)) is not None and (beside / CONFIG_JSON).is_file():
            logger.info("the base policy `%s` of the adapter is taken from %s", name, beside)
            base = find_policy(beside)
        else:
            try:
                base = find_policy(name, revision=adapter.revision)
            except (OSError, RuntimeError, ValueError) as error:
                if isinstance(error, MimeticError):
                    raise
                raise CheckpointNotFound(f"`{name[:_SHOWN]}` is no name of a folder: {error}"[:_SHOWN]) from error
    except CheckpointNotFound as error:
        raise CheckpointNotFound(
            f"the adapter in `{folder}` needs its base policy `{name}`, which is not there: {error.message}",
            f"put the base policy there, or write its place to `base_model_name_or_path` in {folder / ADAPTER_CONFIG}",
        ) from error
    if not (base / WEIGHTS).is_file() and (base / ADAPTER_CONFIG).is_file():
        raise CheckpointNotFound(
            f"the base policy of the adapter in `{folder}`, `{base}`, is an adapter itself",
            f"merge that one first: `mimetic inspect {base} --merge_to=FOLDER`, and name that folder",
        )
    own = folder / ADAPTER_BASE_JSON
    if own.is_file() and read_json(own).get("base") != fingerprint(base / WEIGHTS):
        raise CheckpointError(
            f"the adapter in `{folder}` was trained on other weights than those in `{base / WEIGHTS}`",
            f"name the right base policy in `base_model_name_or_path` of {folder / ADAPTER_CONFIG}; "
            f"to use this one all the same, delete {own}",
        )
    return base


def fingerprint(weights: Path) -> str:
    """A hash of a weights file: its size, its header, and 64 evenly spread pieces of its data (4 MB)."""
    with weights.open("rb") as file:
        size = weights.stat().st_size
        first = file.read(8)
        header = file.read(min(int.from_bytes(first, "little"), size))
        digest = hashlib.sha256(size.to_bytes(8, "little") + header)
        start = 8 + len(header)
        if size - start <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(file.read())
        else:
            for number in range(_SAMPLES):
                file.seek(start + (size - start - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
