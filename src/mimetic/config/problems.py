"""Everything that is wrong with a command, collected and reported together."""

from __future__ import annotations

from dataclasses import dataclass, field

from mimetic.errors import ConfigError


@dataclass(frozen=True)
class Problem:
    """One thing to change.

    Args:
        message: what is wrong, with flag and value.
        hint: what to do.
    """

    message: str
    hint: str = ""


@dataclass
class Problems:
    """A growing list of problems.

    Args:
        found: problems so far, in the order of discovery.
    """

    found: list[Problem] = field(default_factory=list)

    def add(self, message: str, hint: str = "") -> None:
        """Note a problem; the same one twice counts once."""
        problem = Problem(message, hint)
        if problem not in self.found:
            self.found.append(problem)

    def raise_if_any(self) -> None:
        """Raise one ConfigError for all problems.

        Raises:
            ConfigError: there is at least one. A single problem keeps its hint; several become a list.
        """
        if not self.found:
            return
        if len(self.found) == 1:
            raise ConfigError(self.found[0].message, self.found[0].hint)
        lines = [f"  - {item.message}" + (f"; {item.hint}" if item.hint else "") for item in self.found]
        raise ConfigError("\n".join([f"{len(lines)} problems", *lines]))
