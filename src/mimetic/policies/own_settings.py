"""Settings of a policy that only mimetic knows, beside `config.json`, which LeRobot refuses with unknown fields.

`mimetic_policy.json` holds those that differ from their defaults, so that a policy that was trained in float32 also
runs in it. There is no such file when all have their defaults. Of a policy that LeRobot does not have it holds every
setting, as `config.json` does of others: a default that a later version changes must not change what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mimetic.config import sources
from mimetic.config.codec import encode
from mimetic.config.schema import settings_of
from mimetic.errors import CheckpointError, MimeticError
from mimetic.hub.policies import find_policy
from mimetic.names import CONFIG_JSON, POLICY_SETTINGS_JSON
from mimetic.policies.catalog import POLICIES
from mimetic.policies.config import PolicyConfig
from mimetic.processing.small_files import read_small, require_shallow

_FORMAT = 1


def keeps_all(cls: type) -> bool:
    """Whether a class of policy settings is of a policy that LeRobot does not have, so that the file holds them all."""
    of_all = {item.name for item in fields(PolicyConfig)}
    layers = [setting.layer for setting in settings_of(cls) if setting.key not in of_all]
    return bool(layers) and set(layers) == {"mimetic"}


def own_settings_file(config: PolicyConfig) -> bytes | None:
    """Content of `mimetic_policy.json`; None when there is nothing that `config.json` would not say."""
    cls: type = type(config)
    whole = keeps_all(cls)
    own = {
        setting.key: encode(value)
        for setting in settings_of(cls)
        if setting.layer == "mimetic" and ((value := getattr(config, setting.key)) != setting.default() or whole)
    }
    return json.dumps({"format": _FORMAT, "settings": own}, indent=4).encode() if own else None


def read_own_settings(folder: Path) -> dict[str, Any]:
    """Settings in the `mimetic_policy.json` of a folder, as JSON values; empty without the file.

    Raises:
        CheckpointError: the file is damaged or of a newer version.
    """
    path = folder / POLICY_SETTINGS_JSON
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_small(path).decode())
        require_shallow(content)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` cannot be read: {error}", "copy the checkpoint again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"`{path}` holds a {type(content).__name__}, not an object", "copy the checkpoint again")
    settings = content.get("settings")
    if content.get("format") != _FORMAT or not isinstance(settings, dict):
        raise CheckpointError(
            f"`{path}` has the form {content.get('format')!r}, and this mimetic reads {_FORMAT}",
            "install a newer mimetic",
        )
    return settings


def add_own_settings(config: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content of `config.json` with the settings of `mimetic_policy.json`.

    Args:
        config: content of `config.json`.
        own: what `read_own_settings` found beside it.
        folder: where both lie, for messages.

    Raises:
        CheckpointError: a setting stands in both files, or the policy keeps all of them in a file that is not there.
    """
    kind = config.get("type")
    if isinstance(kind, str) and not (folder / POLICY_SETTINGS_JSON).is_file() and _is_ours(kind):
        raise CheckpointError(
            f"`{folder}` has no {POLICY_SETTINGS_JSON}, which holds the settings of a policy `{kind}`",
            "copy the checkpoint again, with all of its files",
        )
    both = sorted(own.keys() & config.keys())
    if both:
        names = ", ".join(f"`{name}`" for name in both)
        raise CheckpointError(
            f"{names} stands in `{folder / POLICY_SETTINGS_JSON}` and in `config.json`",
            f"remove {POLICY_SETTINGS_JSON} or that line in it",
        )
    return {**config, **own}


def _is_ours(kind: str) -> bool:
    """Whether `keeps_all` holds for a policy by its name; one that is not known is for others to refuse."""
    try:
        return keeps_all(POLICIES.load_config(kind))
    except MimeticError:
        return False


def stored_settings(place: str, revision: str | None = None) -> dict[str, Any]:
    """All settings of a stored policy, as JSON values, for command lines.

    Args:
        place: a folder, a checkpoint, a run, or a hub id.
        revision: on the hub.

    Raises:
        CheckpointNotFound: there is no policy.
        ConfigError: `config.json` cannot be read.
        CheckpointError: `mimetic_policy.json` is lost, cannot be read, or contradicts it.
    """
    folder = sources.find_policy(place) or find_policy(place, revision=revision)
    return add_own_settings(sources.read_file(folder / CONFIG_JSON), read_own_settings(folder), folder)
