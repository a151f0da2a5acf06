"""demo.json: which demo a folder holds, what is done, and how long it took. Written whole after every change."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mimetic.config.codec import encode
from mimetic.data.store.atomic import write_bytes
from mimetic.demo.config import STEP_NAMES, DemoConfig
from mimetic.demo.lock import LOCK
from mimetic.demo.steps import steps_of_demo
from mimetic.errors import ConfigError

STATE = "demo.json"
FORMAT, NEWEST = "mimetic demo", 1
_FREE = ("output_dir", "until", "resume", "open", "yes")
"""Settings that may change while a demo goes on."""


@dataclass
class Progress:
    """How far one step is.

    Args:
        is_begun: whether a command of it was ever started.
        is_done: whether all its commands ended well.
        seconds: that its commands took, in all parts.
        parts: how often it was begun or gone on with.
        memory_gb: most memory of a process [GiB]; None where unknown.
    """

    is_begun: bool = False
    is_done: bool = False
    seconds: float = 0.0
    parts: int = 0
    memory_gb: float | None = None


@dataclass
class State:
    """The content of demo.json.

    Args:
        settings: of the demo, as JSON data.
        commands: of each step, as if the demo's folder were called `demo`, on a machine with one core and no bfloat16.
        steps: progress by step.
        bf16: whether the training began in bfloat16; None before anybody asked.
    """

    settings: dict[str, Any]
    commands: dict[str, list[str]]
    steps: dict[str, Progress] = field(default_factory=lambda: {name: Progress() for name in STEP_NAMES})
    bf16: bool | None = None

    def save(self, folder: Path) -> None:
        """Write it, at once and whole.

        Raises:
            OSError: the disk is full or fails.
        """
        data = {
            "format": FORMAT,
            "format_version": NEWEST,
            "settings": self.settings,
            "commands": self.commands,
            "steps": {name: vars(progress) for name, progress in self.steps.items()},
            "bf16": self.bf16,
        }
        write_bytes(folder / STATE, (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def new_state(config: DemoConfig) -> State:
    """State of a demo that begins now.

    Args:
        config: its settings.
    """
    # When the demo goes on, the folder may be called otherwise, and the machine may have other cores and devices.
    steps = steps_of_demo(replace(config, output_dir=Path("demo")), instruction="", cores=1, bf16=False)
    settings = {name: value for name, value in encode(config, full=True).items() if name not in _FREE}
    return State(settings, {step.name: [" ".join(words) for words in step.commands] for step in steps})


def open_state(config: DemoConfig, *, again: str) -> State:
    """The state in the demo's folder, or that of a new demo where the folder is new or empty.

    Args:
        config: settings.
        again: words for hints, how a new demo is begun in the place of this one.

    Raises:
        ConfigError: the folder holds something else, another demo, or a file that cannot be read.
    """
    wanted = new_state(config)
    path = config.output_dir / STATE
    if not path.is_file():
        if holds_something_else(config.output_dir):
            raise ConfigError(f"`--output_dir={config.output_dir}` exists and holds no demo (no {STATE})", again)
        return wanted
    stored = _read(path, again)
    different = _differences(stored, wanted)
    if different:
        raise ConfigError(f"{config.output_dir} holds another demo: {'; '.join(different)}", again)
    return stored


def holds_something_else(folder: Path) -> bool:
    """Whether a folder without a state holds more than what a demo that had just begun leaves."""
    if not folder.exists():
        return False
    return not folder.is_dir() or any(not one.name.startswith((LOCK, STATE)) for one in folder.iterdir())


def _read(path: Path, again: str) -> State:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT or data["format_version"] > NEWEST:
            raise ValueError(f"it is of the format {data['format']!r} {data['format_version']!r}")
        steps = {name: Progress(**data["steps"][name]) for name in STEP_NAMES}
        for one in steps.values():
            if not all(map(_is_number, (one.seconds, one.parts, one.memory_gb or 0))):
                raise ValueError("a number is missing")
        bf16 = data.get("bf16")
        if not isinstance(bf16, (bool, type(None))):
            raise ValueError(f"`bf16` is {bf16!r}")
        commands = {name: list(words) for name, words in data["commands"].items()}
        return State(dict(data["settings"]), commands, steps, bf16)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} cannot be read as the state of a demo: {error}", again) from error


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _differences(stored: State, wanted: State) -> list[str]:
    before, now = _flat(stored.settings), _flat(wanted.settings)
    found = [
        f"`--{name}` was {_told(before.get(name))} and is {_told(now.get(name))}"
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name)
    ]
    if found or stored.commands == wanted.commands:
        return found
    names = [name for name in wanted.commands if stored.commands.get(name) != wanted.commands[name]]
    return [f"it was begun by a mimetic with other commands for {', '.join(names)}"]


def _told(value: object) -> str:
    return "not given" if value is None else value if isinstance(value, str) else json.dumps(value)


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in group.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
