"""What to say about a flag that is not one of the command's: whose it is, or which one was meant."""

from __future__ import annotations

from mimetic.catalog import closest
from mimetic.config.problems import Problems
from mimetic.config.schema import Choices, Setting, choices_of, find, settings_of, walk

EXTRA = ("config_path",)
"""Flags that are no settings."""


def flag_names(cls: type, chosen: Choices) -> list[str]:
    """Every dotted name that the command line takes, with the fields of all available types of open choices."""
    names = [*EXTRA]
    for setting in walk(cls, chosen):
        if setting.is_flag:
            names.append(setting.name)
        if setting.node == "choice":
            names += [f"{setting.name}.type"] + ([f"{setting.name}.path"] if has_path(setting) else [])
            if setting.name not in chosen:
                for inner in available_classes(setting).values():
                    names += [item.name for item in walk(inner, {}, setting.name) if item.is_flag]
    return list(dict.fromkeys(names))


def has_path(choice: Setting) -> bool:
    """Whether a choice can be loaded from a folder (`--policy.path`): its classes record where weights come from."""
    classes = available_classes(choice)
    return any(setting.key == "pretrained_path" for cls in classes.values() for setting in settings_of(cls))


def available_classes(choice: Setting) -> dict[str, type]:
    """Types of a choice that this release implements, with their configuration classes."""
    catalog = choice.catalog
    return {name: catalog.load_config(name) for name in catalog.available()}


def report_unknown(cls: type, name: str, text: str, chosen: Choices, problems: Problems, prog: str) -> str:
    """Note the problem with a flag that `find` does not know.

    Args:
        cls: settings of the command.
        name: dotted name as typed.
        text: its value as typed.
        chosen: classes of the choices that are picked.
        problems: where it is noted.
        prog: the command, for the hint.

    Returns:
        Name of the choice that is not picked although this flag needs it; empty when that is not what is wrong.
    """
    other = _of_other_choice(cls, name, chosen, problems)
    if other is not None:
        return other
    if _of_lerobot(name, problems):
        return ""
    parent = find(cls, name.rpartition(".")[0], chosen)
    if parent is not None and parent.node == "leaf":
        key = name.rpartition(".")[2]
        problems.add(
            f"`--{parent.name}` takes one value, so there is no `--{name}`", f"`--{parent.name}='{{{key}: {text}}}'`"
        )
        return ""
    found = resembling(name, flag_names(cls, chosen))
    if found:
        word = found[0].rpartition(".")[2]
        meant = " or ".join(f"`--{item}`" for item in found)
        problems.add(f"unknown flag `--{name}`", f"did you mean {meant}? See `{prog} --help {word}`")
    else:
        problems.add(f"unknown flag `--{name}`", f"`{prog} --help` lists all flags")
    return ""


def resembling(name: str, known: list[str]) -> list[str]:
    """Names that were probably meant, best first: the same last part (`lr`), else a similar spelling."""
    same = [item for item in known if item.rpartition(".")[2] == name.rpartition(".")[2]]
    if same:
        near = closest(name, same, n=3)
        return near or same[:3]
    first = [item for item in known if item.startswith(name) and "." not in item]
    ending = [] if first else [item for item in known if item.endswith("_" + name)]
    if ending:
        return closest(name, ending, n=3) or ending[:3]
    plain = {item.replace("-", "_").lower(): item for item in known}
    found = closest(name.replace("-", "_").lower(), plain)
    if found:
        return [plain[found[0]]]
    tails: dict[str, str] = {}
    for item in known:
        tails.setdefault(item.rpartition(".")[2], item)
    tail = closest(name.rpartition(".")[2], tails)
    return [tails[tail[0]]] if tail else []


def _of_other_choice(cls: type, name: str, chosen: Choices, problems: Problems) -> str | None:
    """Note a flag of a type that is not picked; None when no type has it."""
    for choice in choices_of(cls):
        if not name.startswith(choice.name + "."):
            continue
        owners = [
            type_name
            for type_name, inner in available_classes(choice).items()
            if find(inner, name, {}, choice.name) is not None
        ]
        if not owners:
            return None
        flag = f"--{choice.name}.type"
        if choice.name in chosen:
            picked = type_of(choice, chosen[choice.name])
            problems.add(
                f"flag `--{name}` belongs to {_kinds(choice, owners)}, and `{flag}` is `{picked}`",
                f"leave it out, or choose `{flag}={owners[0]}`",
            )
            return ""
        kind = choice.catalog.kind
        problems.add(
            f"flag `--{name}` needs {'an' if kind[0] in 'aeiou' else 'a'} {kind}, and none is chosen",
            f"add `{flag}={owners[0]}`" + (f" or `--{choice.name}.path=FOLDER`" if has_path(choice) else ""),
        )
        return choice.name
    return None


def type_of(choice: Setting, cls: type) -> str:
    """Name of a configuration class in its catalog."""
    return next((name for name, inner in available_classes(choice).items() if inner is cls), cls.__name__)


def _kinds(choice: Setting, names: list[str]) -> str:
    return f"{choice.catalog.kind} " + ", ".join(f"`{name}`" for name in names)


def _of_lerobot(name: str, problems: Problems) -> bool:
    from mimetic.config.lerobot_flags import owners

    found = owners(name)
    if found is None:
        return False
    kind = name.partition(".")[0]
    hint = f"it belongs to {kind} {', '.join(f'`{item}`' for item in found[:4])}" if found else "leave it out"
    problems.add(f"flag `--{name}` is LeRobot's and not part of mimetic yet", hint)
    return True
