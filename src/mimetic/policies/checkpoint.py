"""Policy checkpoints: the `pretrained_model` folder, read and written as LeRobot 0.6.1 does (spec/policies.md 1).

A failed or partial load never returns a policy: everything is compared before the first tensor is copied.
What it leaves to others: pipelines (`pipelines.py`), the weights format (`tensors.py`), the training state
(`train/checkpoint.py`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mimetic.catalog import closest_hint
from mimetic.config.codec import decode_choice, encode
from mimetic.config.schema import settings_of
from mimetic.errors import CheckpointError, ConfigError
from mimetic.hub.policies import find_policy
from mimetic.names import CONFIG_JSON, POLICY_SETTINGS_JSON, WEIGHTS
from mimetic.policies.adapter_config import is_adapter, read_adapter_config
from mimetic.policies.adapters import find_base, fingerprint, load_adapter, save_adapter
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.catalog import POLICIES
from mimetic.policies.config import PolicyConfig
from mimetic.policies.legacy import network_name
from mimetic.policies.own_settings import add_own_settings, own_settings_file, read_own_settings
from mimetic.policies.pipelines import load_pipelines
from mimetic.policies.report import LoadReport, compare
from mimetic.policies.tensors import SkipInitialisation, WeightsFile, open_weights, save_weights
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.stats import Stats
from mimetic.processing.store import read_json, save_pipeline, write_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pretrained:
    """A loaded checkpoint.

    Args:
        policy: in evaluation mode, on its device.
        preprocessor: raw batch -> batch on the device.
        postprocessor: normalised action -> action in the units of the dataset.
        config: the policy's settings.
        report: how weights and network compared.
    """

    policy: Policy
    preprocessor: Pipeline
    postprocessor: Pipeline
    config: PolicyConfig
    report: LoadReport


def config_to_json(config: PolicyConfig) -> str:
    """Text of `config.json`: LeRobot's field order, `type` first, indented by 4, without a newline at the end."""
    return json.dumps(encode(config, layers=("lerobot", "next")), indent=4)


def config_from_json(data: Mapping[str, Any], *, where: str) -> PolicyConfig:
    """Settings from the content of `config.json`.

    Args:
        data: the object in the file.
        where: the file, for messages.

    Raises:
        CheckpointError: the policy type is unknown or not built yet, a field is unknown and not neutral, a value is
            wrong, or settings contradict each other; all problems at once.
    """
    unknown: list[str] = []
    try:
        config = decode_choice(
            POLICIES,
            data,
            where=where,
            on_unknown=lambda name, value: unknown.append(f"`{name}` = {json.dumps(value)}"),
        )
    except ConfigError as error:
        raise CheckpointError(error.message, error.hint) from error
    if unknown:
        raise CheckpointError(
            f"{where} has settings that mimetic does not know: {', '.join(unknown)}",
            "the checkpoint is from another version; remove from the file those settings"
            " that you know to change nothing for this policy",
        )
    assert isinstance(config, PolicyConfig)
    problems = config.check()
    if problems:
        raise CheckpointError(f"{where}: {'; '.join(problems)}")
    return config


def read_config(folder: Path, overrides: Mapping[str, Any] | None = None) -> PolicyConfig:
    """Settings of a checkpoint.

    Args:
        folder: `pretrained_model` folder.
        overrides: field -> JSON value that replaces the stored one.

    Raises:
        CheckpointNotFound: there is no `config.json`.
        CheckpointError: that file or `mimetic_policy.json` is lost, damaged, or holds what mimetic does not know.
        ConfigError: an override names a field that the policy does not have, or its value is wrong.
    """
    path = folder / CONFIG_JSON
    own = read_own_settings(folder)
    where = f"`{path}`" + (f" with `{POLICY_SETTINGS_JSON}`" if own else "")
    config = config_from_json(add_own_settings(read_json(path), own, folder), where=where)
    if not overrides:
        return config.located(folder)
    cls: type = type(config)
    known = [setting.key for setting in settings_of(cls)]
    for name in overrides:
        if name not in known:
            raise ConfigError(
                f"policy `{config.type_name}` has no setting `{name}`",
                closest_hint(name, known) or f"its settings: {', '.join(known)}",
            )
    data = {**encode(config), **{name: encode(value) for name, value in overrides.items()}}
    try:
        return config_from_json(data, where="the overridden settings").located(folder)
    except CheckpointError as error:
        raise ConfigError(error.message, error.hint) from error


def save_pretrained(policy: Policy, folder: Path, preprocessor: Pipeline, postprocessor: Pipeline) -> None:
    """Write a `pretrained_model` folder, byte for byte as LeRobot does; each file appears complete or not at all.

    Args:
        policy: its config and weights are written; of a policy with an adapter, only what the adapter trains.
        folder: made when absent.
        preprocessor: pipeline before the policy.
        postprocessor: pipeline after the policy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if policy.adapter is not None:
        save_adapter(policy, folder)
    else:
        save_weights(policy.state_dict(), folder / WEIGHTS)
    write_file(folder / CONFIG_JSON, config_to_json(policy.config).encode())
    own = own_settings_file(policy.config)
    if own is not None:
        write_file(folder / POLICY_SETTINGS_JSON, own)
    else:
        (folder / POLICY_SETTINGS_JSON).unlink(missing_ok=True)  # of what was in the folder before
    for relative, content in policy.companion_files().items():
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        write_file(folder / relative, content)
    for pipeline in (preprocessor, postprocessor):
        save_pipeline(pipeline, folder)


def compare_weights(
    policy: nn.Module, folder: Path, allow_missing: Sequence[str] = ()
) -> tuple[WeightsFile, LoadReport]:
    """Compare the weights of a checkpoint with a policy (which may be on the meta device) without loading them.

    Old normalisation statistics among the weights and the marks of compiled modules are set aside.

    Raises:
        CheckpointNotFound: there are no weights.
        CheckpointError: the file is damaged.
    """
    file = open_weights(folder / WEIGHTS).renamed(network_name)
    state = policy.state_dict(keep_vars=True)
    # Tied tensors may be stored under any one of their names.
    owners: dict[int, str] = {id(tensor): name for name, tensor in state.items() if name in file.tensors}
    for name, tensor in state.items():
        if name not in file.tensors and id(tensor) in owners:
            twin = owners[id(tensor)]
            file.tensors[name], file.stored_as[name] = file.tensors[twin], file.stored_as[twin]
    return file, compare(file, {name: tuple(tensor.shape) for name, tensor in state.items()}, allow_missing)


def load_weights(policy: nn.Module, folder: Path, *, allow_missing: Sequence[str] = ()) -> LoadReport:
    """Load the weights of a checkpoint into a policy, strictly; of an adapter, the base's first.

    Args:
        policy: gets the weights, in its own dtypes and on its own device, and the adapter where there is one.
        folder: `pretrained_model` folder.
        allow_missing: shell patterns of tensor names (`model.action_head*`) that may be missing or have another shape,
            and keep their initial values, or that may be in the file without being wanted.

    Returns:
        What matched, and what was allowed to differ.

    Raises:
        CheckpointNotFound: there are no weights.
        CheckpointError: the file is damaged.
        KeyMismatch: names or shapes differ and are not allowed to; nothing was copied of the file that it names.
    """
    if not isinstance(policy, Policy) or not is_adapter(folder, use_peft=policy.config.use_peft):
        return _load_whole(policy, folder, allow_missing)
    adapter = read_adapter_config(folder)
    base = find_base(folder, adapter)
    report = _load_whole(policy, base, allow_missing)
    adapter = replace(adapter, base_fingerprint=fingerprint(base / WEIGHTS))
    return report.joined(load_adapter(policy, folder, adapter, allow_missing=allow_missing))


def _load_whole(policy: nn.Module, folder: Path, allow_missing: Sequence[str]) -> LoadReport:
    file, report = compare_weights(policy, folder, allow_missing)
    report.require_complete(f"`{file.path}`")
    file.require_floats(report.matched)
    state, rounded = policy.state_dict(), []
    with torch.no_grad(), file.reading() as read:
        for name in report.matched:
            stored = read(name)
            state[name].copy_(stored)
            file.require_finite(name, state[name])
            if _loses_digits(stored, state[name].dtype):
                rounded.append(name)
    if rounded:
        _tell_rounded(policy, file.path, rounded)
    if report.reinitialised or report.ignored:
        logger.warning("%s: %s", file.path, report.summary())
    return report


def _loses_digits(stored: Tensor, dtype: torch.dtype) -> bool:
    """Whether a dtype cannot hold a stored tensor; its first 4096 numbers tell."""
    if not stored.is_floating_point() or dtype.itemsize >= stored.dtype.itemsize:
        return False
    head = stored.flatten()[:4096]
    return not torch.equal(head, head.to(dtype).to(stored.dtype))


def _tell_rounded(policy: nn.Module, path: Path, names: Sequence[str]) -> None:
    """Say once a load that the policy holds fewer digits than the file, and what that means for new checkpoints."""
    parameters = dict(policy.named_parameters())
    trained = sum(parameters[name].requires_grad for name in names if name in parameters)
    config = policy.config if isinstance(policy, Policy) else None
    logger.log(
        logging.WARNING if trained else logging.INFO,
        "%s: %d of its tensors are rounded to %s, %d of them trained (such as `%s`); checkpoints of this policy will "
        "hold the rounded numbers%s",
        path,
        len(names),
        str(policy.state_dict()[names[0]].dtype).removeprefix("torch."),
        trained,
        names[0],
        "; `--policy.precision=float32` keeps the file's" if hasattr(config, "precision") else "",
    )


def load_pretrained(
    folder: Path | str,
    *,
    device: str = "cpu",
    config_overrides: Mapping[str, Any] | None = None,
    allow_missing: Sequence[str] = (),
    stats_dataset: str | None = None,
    rename_map: Mapping[str, str] | None = None,
    stats: Stats | None = None,
    exact: bool = False,
) -> Pretrained:
    """Load a policy with its pipelines, or nothing at all.

    Args:
        folder: a `pretrained_model` folder, a checkpoint, a run's output folder, or a hub id.
        device: where the policy runs.
        config_overrides: setting -> value, such as `{"n_action_steps": 10}`.
        allow_missing: see `load_weights`.
        stats_dataset: see `load_pipelines`.
        rename_map: dataset name -> policy name.
        stats: see `load_pipelines`.
        exact: see `load_pipelines`.

    Raises:
        CheckpointNotFound: there is no checkpoint.
        CheckpointError: a file is damaged or holds what mimetic does not know.
        KeyMismatch: weights are missing, superfluous, or of another shape.
        StatsError: statistics are missing, incomplete or ambiguous.
        ConfigError: an override is wrong.
        DeviceError: the device is not there.
    """
    folder = find_policy(folder)
    config = replace(read_config(folder, config_overrides), device=device)
    before, after = load_pipelines(
        folder, config, device=device, rename_map=rename_map, stats=stats, stats_dataset=stats_dataset, exact=exact
    )
    # Every tensor is about to be overwritten, so initialising is wasted, except where some may be left as they are.
    with SkipInitialisation() if not allow_missing else nullcontext():
        policy = make_policy(config, device=device, init_backbone=False)
    report = load_weights(policy, folder, allow_missing=allow_missing)
    policy.eval()
    return Pretrained(policy, before, after, policy.config, report)
