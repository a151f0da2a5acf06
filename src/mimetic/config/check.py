"""Checks of finished settings: every group's own `check()`, and settings that only accept their default so far."""

from __future__ import annotations

import json
from typing import Any

from mimetic.config.problems import Problem, Problems
from mimetic.config.schema import Setting, settings_of


def find_problems(value: Any, prefix: str = "") -> list[Problem]:
    """All problems of a settings dataclass and of the groups inside it, outer ones first.

    Args:
        value: a settings dataclass; `check()`, where it has one, returns a list of sentences.
        prefix: dotted name of the group that `value` stands for.
    """
    check = getattr(value, "check", None)
    cls: type = type(value)
    found = [Problem(sentence) for sentence in check()] if check is not None else []
    for setting in settings_of(cls, prefix):
        item = getattr(value, setting.key)
        if setting.not_yet and item != setting.default():
            found.append(
                Problem(
                    f"`{_as_flag(setting, item)}`: {setting.not_yet}",
                    f"leave it out, or set `{_as_flag(setting, setting.default())}`",
                )
            )
        elif setting.node != "leaf" and item is not None:
            found.extend(find_problems(item, setting.name))
    return found


def require_valid(value: Any) -> None:
    """Raise for everything that `find_problems` finds.

    Raises:
        ConfigError: there are problems; the message lists all of them.
    """
    Problems(find_problems(value)).raise_if_any()


def _as_flag(setting: Setting, value: Any) -> str:
    if value is not None and (setting.node != "leaf" or isinstance(value, (dict, list, tuple))):
        return f"--{setting.name}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"--{setting.name}={text}"
