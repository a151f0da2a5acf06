"""`lerobot-<name>` as `mimetic <name>`: one function behind every command name, which it reads from `sys.argv[0]`."""

from __future__ import annotations

import sys
from pathlib import Path

COMMANDS = {
    "train": ["train"],
    "eval": ["eval"],
    "info": ["info"],
    "edit-dataset": ["dataset", "edit"],
    "dataset-viz": ["dataset", "view"],
}
"""What comes after `lerobot-` -> the words after `mimetic`."""


def main() -> int:
    """Run the mimetic command that corresponds to the name under which this was started."""
    name = Path(sys.argv[0]).stem
    words = COMMANDS.get(name.removeprefix("lerobot-"))
    if words is None:
        there = ", ".join(f"`lerobot-{command}`" for command in COMMANDS)
        sys.stderr.write(f"error: `{name}` is not part of mimetic yet\nhint: there are {there}\n")
        return 2

    from mimetic.cli.app import main as run

    return run([*words, *sys.argv[1:]])
