"""Settings that older LeRobot versions wrote under other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimetic.config.values import Mismatch, convert

_RABC = {
    "rabc_progress_path": "progress_path",
    "rabc_kappa": "kappa",
    "rabc_epsilon": "epsilon",
    "rabc_head_mode": "head_mode",
}


def migrate(data: Mapping[str, Any]) -> dict[str, Any]:
    """Bring the top level of a training configuration to today's names.

    Args:
        data: nested plain data; not changed.

    Returns:
        A copy in which `use_rabc` and its companions became `sample_weighting`, or went away when they were off.
    """
    found = dict(data)
    if "use_rabc" not in found and not any(name in found for name in _RABC):
        return found
    try:
        is_on = convert(found.pop("use_rabc", False), bool)
    except Mismatch:
        is_on = False
    values = {new: found.pop(old) for old, new in _RABC.items() if old in found}
    if is_on and found.get("sample_weighting") is None:
        found["sample_weighting"] = {"type": "rabc", **values}
    return found
