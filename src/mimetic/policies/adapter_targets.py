"""Which modules of a policy an adapter names (spec/smolvla.md 13)."""

from __future__ import annotations

import re

from torch import nn

from mimetic.catalog import closest_hint
from mimetic.errors import ConfigError
from mimetic.policies.adapter_config import AdapterConfig

ALL_LINEAR = "all-linear"


def find_targets(policy: nn.Module, adapter: AdapterConfig) -> list[str]:
    """Names of the layers that get an adapter, in the order of the network.

    A text is a regular expression for the whole name (or `all-linear`); a list holds whole names or their ends.

    Raises:
        ConfigError: the expression is broken, something matches nothing, or a match is no linear layer.
    """
    targets, modules = adapter.target_modules, named_modules(policy)
    if targets == ALL_LINEAR:
        found = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    elif isinstance(targets, str):
        try:
            pattern = re.compile(targets)
        except re.error as error:
            raise ConfigError(f"`--peft.target_modules={targets}` is no regular expression: {error}") from error
        found = [name for name in modules if pattern.fullmatch(name)]
        _require_matches({targets: found}, modules, "target_modules")
    else:
        matches = {target: _ending_with(target, modules) for target in targets}
        _require_matches(matches, modules, "target_modules")
        found = [name for name in modules if any(name in names for names in matches.values())]
    full = full_modules(policy, adapter)
    # As in peft: what is trained fully needs no adapter.
    found = [name for name in found if not any(name == whole or name.startswith(f"{whole}.") for whole in full)]
    if not found:
        raise ConfigError(
            "`--peft.full_training_modules` holds every module that `--peft.target_modules` names, so nothing is left "
            "for an adapter",
            "leave one of the two out",
        )
    wrong = [name for name in found if not isinstance(modules[name], nn.Linear)]
    if wrong:
        kinds = ", ".join(f"`{name}` is a {type(modules[name]).__name__}" for name in wrong[:5])
        raise ConfigError(
            f"adapters are for linear layers, and `--peft.target_modules` matches others: {kinds}",
            "name linear layers; other modules can be trained fully with `--peft.full_training_modules`",
        )
    return found


def named_modules(policy: nn.Module) -> dict[str, nn.Module]:
    """Every module inside a policy by its name."""
    return {name: module for name, module in policy.named_modules() if name}


def _ending_with(target: str, names: dict[str, nn.Module]) -> list[str]:
    return [name for name in names if name == target or name.endswith(f".{target}")]


def full_modules(policy: nn.Module, adapter: AdapterConfig) -> list[str]:
    """Names of the modules that are trained fully.

    Raises:
        ConfigError: a name matches no module.
    """
    modules = named_modules(policy)
    matches = {target: _ending_with(target, modules) for target in adapter.modules_to_save}
    _require_matches(matches, modules, "full_training_modules")
    return [name for name in modules if any(name in names for names in matches.values())]


def _require_matches(matches: dict[str, list[str]], modules: dict[str, nn.Module], flag: str) -> None:
    for target, found in matches.items():
        if not found:
            ends = {name.rpartition(".")[2] for name, module in modules.items() if isinstance(module, nn.Linear)}
            raise ConfigError(
                f"`{target}` in `--peft.{flag}` matches no module of the policy",
                closest_hint(target, [*modules, *sorted(ends)]) or f"linear layers end in {', '.join(sorted(ends))}",
            )
