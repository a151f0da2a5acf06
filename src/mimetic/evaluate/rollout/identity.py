"""What an evaluation is: settings, checkpoints and seed, by which a continuation is told from another evaluation."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mimetic import __version__
from mimetic.config.codec import encode
from mimetic.data.file_lock import LockFile
from mimetic.data.store.atomic import TEMPORARY
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.rollout.contestant import Contestant
from mimetic.evaluate.rollout.documents import EVAL_CONFIG

logger = logging.getLogger(__name__)
_LOCK = ".evaluating.lock"
# What may differ between an evaluation and its continuation.
_FREE = (
    "output_dir",
    "job_name",
    "resume",
    "json",
    "report",
    "eval",
    "policy.device",
    "policy.pretrained_path",
    "compare",
    "ablate",
)


def stored_identity(folder: Path, *, resumes: bool) -> dict[str, Any] | None:
    """What an evaluation that is gone on with wrote about itself.

    Raises:
        ConfigError: the folder holds an evaluation and nobody asked to go on, or holds none.
    """
    path = folder / EVAL_CONFIG
    if resumes and folder.is_dir() and not path.exists() and _holds_nothing(folder):
        return None  # a kill came before the first file was whole
    if not resumes:
        if folder.exists() or folder.is_symlink():
            go_on = ", or go on with it by `--resume=true`" if path.is_file() else ""
            raise ConfigError(
                f"the output folder `{folder}` exists already",
                f"choose another `--output_dir`, or leave it out for a new one named by the time{go_on}",
            )
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored["settings"], dict) or not isinstance(stored["seed"], int):
            raise TypeError("it has no settings")
        return dict(stored)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"`--resume=true`: `{folder}` holds no evaluation in an environment to go on with ({path.name}: {error})",
            "leave `--resume` out to begin one in a new folder",
        ) from error


def _holds_nothing(folder: Path) -> bool:
    return all(path.name == _LOCK or path.name.endswith(TEMPORARY) for path in folder.iterdir())


@contextlib.contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Make the folder of an evaluation, and keep other processes out of it.

    Raises:
        ConfigError: another process is evaluating there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(LockFile(folder / _LOCK)) as lock:
        try:
            is_ours = lock.try_lock()
        except OSError as error:
            logger.debug("%s has no locks: %s", folder, error)
            is_ours = True
        if not is_ours:
            raise ConfigError(
                f"another process is evaluating in `{folder}`",
                "wait for it, end it, or choose another `--output_dir`",
            )
        yield


def identify(
    config: EvalConfig,
    first: Contestant,
    second: Contestant | None,
    device: str,
    precision: str,
    stored: dict[str, Any] | None,
) -> dict[str, Any]:
    """What defines the evaluation; compared with the stored one, which then goes on.

    Args:
        config: settings.
        first: the policy.
        second: that it is compared with.
        device: and why.
        precision: in words.
        stored: what an evaluation that is gone on with wrote.

    Raises:
        ConfigError: the command asks for another evaluation than the stored one.
    """
    settings = encode(replace(config, policy=first.loaded.config), full=True)
    settings["policy"]["pretrained_path"] = str(first.folder)
    identity: dict[str, Any] = {
        "format": "mimetic closed-loop evaluation settings",
        "format_version": 1,
        "seed": secrets.randbits(31) if config.seed is None else config.seed,
        "checkpoint": {"path": str(first.folder), "type": first.loaded.config.type_name, "sha256": first.digest},
        "compare": None if second is None else {"path": str(second.folder), "sha256": second.digest},
        "device": device,
        "precision": precision,
        "versions": {
            "mimetic": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "environments": {},
        "settings": json.loads(json.dumps(settings, default=str)),
    }
    if stored is None:
        return identity
    problems = _differences(stored, identity, seed_matters=config.seed is not None)
    if problems:
        raise ConfigError(
            f"`{config.output_dir}` holds another evaluation: {'; '.join(problems)}",
            "repeat the command that began it, with `--resume=true`, or begin a new one in another `--output_dir`",
        )
    identity["seed"] = stored["seed"]
    identity["environments"] = dict(stored.get("environments") or {})
    identity["seconds"] = stored.get("seconds", 0.0)
    return identity


def _differences(stored: Mapping[str, Any], new: Mapping[str, Any], *, seed_matters: bool) -> list[str]:
    found = []
    if stored.get("checkpoint", {}).get("sha256") != new["checkpoint"]["sha256"]:
        found.append(f"its policy is {stored.get('checkpoint', {}).get('path')}, with other weights or settings")
    if stored.get("compare") and new["compare"] and stored["compare"].get("sha256") != new["compare"]["sha256"]:
        found.append(f"its second policy is {stored['compare'].get('path')}")
    if seed_matters and stored["seed"] != new["seed"]:
        found.append(f"`--seed` was {stored['seed']}")
    was, now = stored["settings"], new["settings"]
    if stored.get("compare") and not new["compare"]:
        found.append(f"`--compare` was {stored['compare'].get('path')}")
    if was.get("ablate") not in ("none", now["ablate"]):
        found.append(f"`--ablate` was {was.get('ablate')}")
    recorded = bool((was.get("eval") or {}).get("recording", False))
    if recorded != now["eval"]["recording"]:
        found.append(f"`--eval.recording` was {json.dumps(recorded)}")
    least = (was.get("eval") or {}).get("n_episodes", 0)
    if now["eval"]["n_episodes"] < least:
        found.append(f"`--eval.n_episodes` was {least}, and an evaluation only grows")
    before, after = _flat(stored["settings"]), _flat(new["settings"])
    for name in sorted(before.keys() | after.keys()):
        is_free = any(name == free or name.startswith(free + ".") for free in (*_FREE, "seed"))
        if not is_free and before.get(name) != after.get(name):
            found.append(f"`--{name}` was {json.dumps(before.get(name))}")
    return found


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
