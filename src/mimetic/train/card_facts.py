"""What the model card says about a run, gathered from its settings, its data and its metrics."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mimetic import __version__
from mimetic.accelerators.devices import device_name
from mimetic.accelerators.precision import Precision
from mimetic.config.codec import choice_name
from mimetic.features import PolicyFeature
from mimetic.hub.card import CardFacts, Port, base_of, losses_of
from mimetic.names import METRICS_JSONL
from mimetic.optim.catalog import OPTIMIZERS
from mimetic.optim.schedules import describe_schedule
from mimetic.train.config import TrainConfig
from mimetic.train.data import TrainingData


def card_facts(config: TrainConfig, data: TrainingData, precision: Precision, *, folder: Path, steps: int) -> CardFacts:
    """Facts of a run that has ended.

    Args:
        config: settings as used; `config.policy` with its inputs and outputs, and with a repo id.
        data: what was trained on.
        precision: device and autocast.
        folder: the run's folder, with its `metrics.jsonl`.
        steps: steps that were done.
    """
    policy, meta = config.policy, data.train.meta
    assert policy is not None
    records = read_metrics(folder / METRICS_JSONL)
    root = data.train.root
    snapshot = root.name if root.parent.name == "snapshots" else ""
    heldout = data.heldout.num_episodes if data.heldout is not None else 0
    return CardFacts(
        repo_id=policy.repo_id or "",
        policy_type=policy.type_name,
        license=policy.license,
        tags=tuple(policy.tags or ()),
        base_model=base_of(policy.type_name, policy.pretrained_path),
        is_adapter=policy.use_peft,
        inputs=_ports(policy.input_features or {}, data, config.rename_map),
        outputs=_ports(policy.output_features or {}, data, {}),
        dataset=config.dataset.repo_id,
        dataset_revision=config.dataset.revision or snapshot,
        robot=str(meta.info.robot_type or ""),
        episodes=data.num_episodes,
        heldout_episodes=heldout,
        frames=len(data.train),
        fps=data.train.fps,
        tasks=tuple(meta.tasks.values()),
        training=_training(config, precision, records, steps),
        losses=losses_of(records),
        versions=versions(),
    )


def _ports(
    features: Mapping[str, PolicyFeature], data: TrainingData, rename_map: Mapping[str, str]
) -> tuple[Port, ...]:
    sources = {new: old for old, new in rename_map.items()}
    ports = []
    for name, feature in features.items():
        declared = data.train.features.get(sources.get(name, name))
        parts = _names(declared.names) if declared is not None and not declared.is_camera else ()
        ports.append(Port(name=name, kind=feature.type.name, shape=tuple(feature.shape), parts=parts))
    return tuple(ports)


def _names(declared: Any) -> tuple[str, ...]:
    """Names of a vector's numbers, from any of the forms that datasets have: a list, a list in a list, or a dict."""
    if isinstance(declared, Mapping):
        declared = next((value for value in declared.values() if isinstance(value, Sequence)), ())
    if isinstance(declared, Sequence) and not isinstance(declared, str):
        inner = declared[0] if len(declared) == 1 and isinstance(declared[0], (list, tuple)) else declared
        return tuple(str(name) for name in inner)
    return ()


def _training(
    config: TrainConfig, precision: Precision, records: Sequence[Mapping[str, Any]], steps: int
) -> tuple[tuple[str, str], ...]:
    accumulation = config.accelerator.gradient_accumulation.steps
    batch = f"{config.batch_size}" + (f" x {accumulation} micro-batches an update" if accumulation > 1 else "")
    rows = [("steps", str(steps)), ("batch size", batch)]
    if config.optimizer is not None:
        settings = " ".join(f"{item.name}={getattr(config.optimizer, item.name)}" for item in fields(config.optimizer))
        rows.append(("optimiser", f"{choice_name(config.optimizer, OPTIMIZERS)} {settings}"))
        schedule = describe_schedule(config.scheduler, config.steps, config.optimizer.lr)
        rows.append(("learning rate", schedule.removeprefix("learning rate: ")))
    autocast = precision.autocast_dtype
    own = getattr(config.policy, "precision", "float32") or "float32"
    rows.append(("precision", str(own) if autocast is None else f"{str(autocast).removeprefix('torch.')} autocast"))
    rows.append(("seed", str(config.seed)))
    seconds = training_seconds(records)
    if seconds >= 1:
        rows.append(("time in steps", _duration(seconds)))
    name = device_name(precision.device)
    rows.append(("hardware", name if precision.device.type != "cpu" else f"CPU, {name}"))
    return tuple(rows)


def versions() -> tuple[tuple[str, str], ...]:
    """Names and versions of what trained."""
    rows = [("mimetic", __version__), ("torch", torch.__version__), ("Python", platform.python_version())]
    if torch.version.cuda:
        rows.append(("CUDA", torch.version.cuda))
    if torch.version.hip:
        rows.append(("ROCm", torch.version.hip))
    return tuple(rows)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Records of a `metrics.jsonl`; lines that cannot be read are left out, an absent file has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def training_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    """Time that the logged steps took [s]; saving and measuring between them does not count."""
    total, at = 0.0, 0
    for record in records:
        step, seconds = record.get("steps"), record.get("step_s")
        if not isinstance(step, (int, float)):
            continue
        if record.get("kind") == "resume":
            at = int(step)
        elif record.get("kind") == "train" and isinstance(seconds, (int, float)):
            total += max(0, int(step) - at) * float(seconds)
            at = int(step)
    return total


def _duration(seconds: float) -> str:
    minutes, hours = seconds / 60, seconds / 3600
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{minutes:.1f} min" if minutes >= 1 else f"{seconds:.0f} s"
