"""One declaration a setting: type, default, help and origin layer live beside each other in the dataclass.

`config/` turns such a dataclass into flags, help, JSON and back; nothing here imports anything heavy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, field
from typing import Any, Literal

Layer = Literal["lerobot", "next", "mimetic"]
"""Who knows a setting: LeRobot 0.6.1, the LeRobot after it, or only mimetic.

`train_config.json` holds "lerobot" settings always and "next" settings when they differ from their defaults
(0.6.1 refuses unknown keys); `mimetic.json` holds all of them (spec/training.md 15.2).
"""


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    factory: Callable[[], Any] | None = None,
    choices: Sequence[str] = (),
    catalog: str = "",
    layer: Layer = "lerobot",
    flag: bool = True,
    unit: str = "",
    not_yet: str = "",
) -> Any:
    """Declare a dataclass field with what the command line needs to know about it.

    Args:
        default: default value; absent (and no factory) means required.
        help: one sentence, no full stop; it becomes the help of the flag.
        factory: makes mutable defaults (lists, dicts, nested groups).
        choices: allowed values of a text field.
        catalog: "module:NAME" of the Catalog whose entries may fill this polymorphic field (`--policy.type`).
        layer: who knows this setting.
        flag: False for values that files carry and flags must not set (`checkpoint_path`).
        unit: unit of a number, for help.
        not_yet: when set, any value other than the default is refused with this sentence.
    """
    metadata: Mapping[str, Any] = {
        "help": help,
        "choices": tuple(choices),
        "catalog": catalog,
        "layer": layer,
        "flag": flag,
        "unit": unit,
        "not_yet": not_yet,
    }
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def carried(default: Any) -> Any:
    """Declare a dataclass field that is no setting: code sets it, no file holds it, no flag and no listing shows it.

    Args:
        default: the value before code sets it.
    """
    return field(default=default, compare=False, repr=False, metadata={"carried": True})
