"""What tests of whole commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from subprocess import CompletedProcess

import pytest
from forked_commands import ForkedCommands


@pytest.fixture(scope="session")
def mimetic(
    tmp_path_factory: pytest.TempPathFactory, empty_caches: None
) -> Iterator[Callable[..., CompletedProcess[str]]]:
    """`mimetic("train", "--steps=2", ...)`: the command in a process of its own; exit code, stdout and stderr."""
    commands = ForkedCommands(tmp_path_factory.mktemp("commands"))
    yield lambda *argv: commands.run(argv)
    commands.close()
