"""Which checkpoint a run continues from, and which changes would make it another run (spec/training.md 16)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.config.codec import decode, encode
from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError
from mimetic.hub.locate import is_offline
from mimetic.names import (
    CHECKPOINTS_DIR,
    LAST,
    LAST_TXT,
    MIMETIC_JSON,
    PRETRAINED_DIR,
    TRAIN_CONFIG_JSON,
    TRAINING_STATE_DIR,
)
from mimetic.train.checkpoint import first_lack, last_checkpoint, newest_name
from mimetic.train.config import TrainConfig
from mimetic.train.state import Progress, read_json


@dataclass(frozen=True)
class Checkpoint:
    """One saved step on disk.

    Args:
        folder: the step's folder, `<run>/checkpoints/<step>`.
    """

    folder: Path

    @property
    def pretrained(self) -> Path:
        """Folder of the policy and its pipelines."""
        return self.folder / PRETRAINED_DIR

    @property
    def state(self) -> Path:
        """Folder of optimiser, schedule and position."""
        return self.folder / TRAINING_STATE_DIR

    @property
    def run(self) -> Path:
        """Output folder of the run."""
        return self.folder.parent.parent

    def settings(self) -> dict[str, Any]:
        """The run's settings: mimetic's complete ones when they are there, else LeRobot's `train_config.json`."""
        own = self.pretrained / MIMETIC_JSON
        if own.is_file():
            stored = read_json(own)
            if isinstance(stored, dict) and isinstance(stored.get("config"), dict):
                return dict(stored["config"])
        path = self.pretrained / TRAIN_CONFIG_JSON
        settings = read_json(path)
        if not isinstance(settings, dict):
            raise CheckpointError(f"{path} holds a {type(settings).__name__}, not the settings of a run")
        return settings


def find_checkpoint(text: str | Path) -> Checkpoint:
    """Find the checkpoint that a path means.

    Args:
        text: a run folder, its `checkpoints` folder, a step folder, `last`, a `pretrained_model` folder, or the
            JSON inside it.

    Raises:
        CheckpointNotFound: nothing of that kind is there; names what lies nearby.
    """
    path = Path(text).expanduser()
    if path.name in (TRAIN_CONFIG_JSON, MIMETIC_JSON) and path.is_file():
        path = path.parent
    if path.name == LAST and not path.exists() and (path.parent / LAST_TXT).is_file():
        path = path.parent
    if path.name == PRETRAINED_DIR and not path.exists() and (path.parent.parent / LAST_TXT).is_file():
        path = path.parent.parent
    if (path / CHECKPOINTS_DIR).is_dir():
        path = path / CHECKPOINTS_DIR
    if path.name == CHECKPOINTS_DIR:
        found = last_checkpoint(path)
        if found is None:
            steps = sorted(step for step in path.iterdir() if step.name.isdigit() and step.is_dir())
            broken = [f"{step.name} lacks {lack}" for step in steps if (lack := first_lack(step))]
            raise CheckpointNotFound(
                f"{path} holds no complete checkpoint" + (f": {'; '.join(broken[-3:])}" if broken else ""),
                "start the run anew in another folder",
            )
        return Checkpoint(found.resolve())
    if path.name == PRETRAINED_DIR or ((path / TRAIN_CONFIG_JSON).is_file() and path.parent.name != CHECKPOINTS_DIR):
        path = path.parent if path.name == PRETRAINED_DIR else path.resolve().parent
    if not path.exists():
        unasked = (
            ", and HF_HUB_OFFLINE forbids looking on the hub" if str(text).count("/") == 1 and is_offline() else ""
        )
        raise CheckpointNotFound(f"no checkpoint at {text} (the path does not exist{unasked})", _nearby(path))
    path = path.resolve()
    missing = [name for name in (PRETRAINED_DIR, TRAINING_STATE_DIR) if not (path / name).is_dir()]
    if missing:
        older = newest_name(path.parent) if path.parent.name == CHECKPOINTS_DIR else None
        raise CheckpointNotFound(
            f"{path} is not a checkpoint to resume from: it has no {' and no '.join(f'`{name}`' for name in missing)}",
            f"{path.parent / older} is complete" if older else _nearby(path),
        )
    return Checkpoint(path)


def _nearby(path: Path) -> str:
    parent = path
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    runs = [p.parent for p in parent.glob(f"*/{CHECKPOINTS_DIR}")] + [
        p.parent for p in parent.glob(f"*/*/{CHECKPOINTS_DIR}")
    ]
    if not runs:
        return f"{parent} is the nearest folder that exists; it holds no run"
    wanted = str(path)
    best = sorted(map(str, runs), key=lambda run: -difflib.SequenceMatcher(None, run, wanted).ratio())
    return f"runs nearby: {', '.join(best[:3])}"


_STATS = "the statistics and names in the checkpoint are used"
_FIXED = {
    "seed": "the order of frames and all noise depend on it",
    "optimizer": "the stored state belongs to it",
    "scheduler": "the stored state belongs to it",
    "use_policy_training_preset": "a resumed run keeps its optimiser and schedule",
    "accelerator": "the stored numbers were made with it",
    "peft": "the stored adapter has its own",
    "policy": "the weights and the optimiser belong to the old value",
    "cache.variants": "which augmented picture a sample gets depends on it",
    "dataset.use_imagenet_stats": _STATS,
    "stats_dataset": _STATS,
    "rename_map": _STATS,
}
"""Settings that a resumed run keeps, and why."""
_FREE = (
    "policy.device",
    "policy.push_to_hub",
    "policy.repo_id",
    "policy.private",
    "policy.tags",
    "policy.license",
    "accelerator.grad_scaler",
    "accelerator.compile",
    "accelerator.activation_checkpointing",
)
"""Settings inside those groups, or groups of them, that may change all the same."""


def check_overrides(config: TrainConfig, origins: Mapping[str, str], stored: Mapping[str, Any]) -> None:
    """Refuse flags that a resumed run cannot honour (half-applied settings are worse than none).

    Args:
        config: settings of the resumed run, flags applied.
        origins: where each setting comes from, by dotted flag; a flag that repeats the stored value is fine.
        stored: settings in the checkpoint (`Checkpoint.settings`).

    Raises:
        ConfigError: lists every such flag with the reason.
    """
    now = encode(config, full=True)
    before = encode(decode(TrainConfig, stored, where="the checkpoint", on_unknown=lambda name, value: None), full=True)
    refused: dict[str, list[str]] = {}
    for name, origin in origins.items():
        group = name.split(".")[0]
        reason = _FIXED.get(name) or _FIXED.get(group)
        free = any(name == item or name.startswith(item + ".") for item in _FREE) or (
            config.reset_optimizer and group in ("optimizer", "scheduler")
        )
        # A run that LeRobot began says nothing about settings that only mimetic has, so they may still be chosen.
        free = free or (group == "policy" and not _is_stored(stored, name))
        if origin == "flag" and reason and not free and _at(now, name) != _at(before, name):
            refused.setdefault(reason, []).append(f"`--{name}`")
    if refused:
        raise ConfigError(
            "; ".join(f"{', '.join(names)} cannot change on resume: {reason}" for reason, names in refused.items()),
            "start a new run from these weights: `--policy.path=RUN` instead of `--resume=true --config_path=RUN`",
        )


def _is_stored(settings: Any, name: str) -> bool:
    for part in name.split("."):
        if not isinstance(settings, Mapping) or part not in settings:
            return False
        settings = settings[part]
    return True


def _at(settings: Any, name: str) -> Any:
    """The value at a dotted name; None where a group on the way is absent."""
    for part in name.split("."):
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings


def check_same_data(stored: Progress, fingerprint: Mapping[str, Any], *, batch_size: int, reset: bool) -> None:
    """Refuse to continue an epoch over other data.

    Args:
        stored: position of the checkpoint.
        fingerprint: what the sampler draws from now.
        batch_size: samples a step now.
        reset: `--reset_data_order`.

    Raises:
        ConfigError: episodes or frames differ and `reset` is false.
    """
    if reset or not stored.dataset:
        return
    changed = {
        key: (stored.dataset.get(key), fingerprint.get(key))
        for key in dict.fromkeys([*stored.dataset, "stream"])  # without a stream, it is not there
        if fingerprint.get(key) != stored.dataset.get(key)
    }
    if changed:
        listed = "; ".join(f"{key} was {_told(key, old)}, is {_told(key, new)}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"the dataset is not the one that this run was trained on: {listed}",
            "`--reset_data_order=true` accepts it and starts a new epoch",
        )


def _told(key: str, value: Any) -> str:
    if key != "stream":
        return _short(value)
    return "none" if value is None else "buffer_size={}, max_num_shards={}".format(*value)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
