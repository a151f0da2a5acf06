"""`--print_config`: show every setting of a command with its value and origin, and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mimetic.cli import output

if TYPE_CHECKING:
    from types import ModuleType

_COLUMN = 56


def print_config(cls: type, argv: list[str], *, prog: str, module: ModuleType) -> int:
    """Print the effective settings of a command to stdout as flags; problems with them follow on stderr.

    Args:
        cls: settings dataclass of the command.
        argv: its flags.
        prog: the command, such as "mimetic train".
        module: module of the command, whose own `load_file`, `load_policy` and `with_preset` are used when it has
            them.

    Returns:
        The exit code.

    Raises:
        ConfigError: names or values cannot be read, or the command would refuse these settings.
    """
    from mimetic.config import sources
    from mimetic.config.check import require_valid
    from mimetic.config.effective import effective
    from mimetic.config.parse import parse

    load_policy = getattr(module, "load_policy", sources.load_policy)
    load_file = getattr(module, "load_file", sources.load_file)
    parsed = parse(cls, argv, prog=prog, load_file=load_file, load_policy=load_policy, is_checked=False)
    complete = getattr(module, "with_preset", None)
    value, origins = complete(parsed.value, parsed.origins) if complete else (parsed.value, parsed.origins)
    output.say(f"# {prog}: settings and where they come from")
    for row in effective(value, origins):
        output.say(f"{_as_typed(row.flag, row.text)}  # {row.origin}")
    for note in parsed.notes:
        output.note(f"note: {note}")
    require_valid(parsed.value)
    return 0


def _as_typed(flag: str, text: str) -> str:
    """The flag as it can be pasted into a shell, padded to a column."""
    import shlex

    return f"--{flag}={shlex.quote(text) if text else ''}".ljust(_COLUMN)
