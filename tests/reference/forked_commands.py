"""Commands of mimetic in processes of their own that do not import torch again.

A server imports it once and forks a process for each command; what such a process does, from reading its flags to its
exit code, is what `python -m mimetic` does after its imports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SERVER = """
import json, os, sys, traceback
from mimetic.cli.app import main
import mimetic.evaluate.open_loop
import mimetic.train.run

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # orders are not for commands
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.chdir(order["cwd"])
            os.environ.clear()
            os.environ.update(order["environment"])
            code = main(order["argv"])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkedCommands:
    """The server; where the system has no fork, every command is a fresh `python -m mimetic`.

    Args:
        folder: for what commands print.
    """

    def __init__(self, folder: Path) -> None:
        self._out, self._err = folder / "out", folder / "err"
        self._process: subprocess.Popen[str] | None = None
        if hasattr(os, "fork"):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

    def run(self, argv: Sequence[object]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, in the folder and with the environment that the caller has now."""
        words = [str(word) for word in argv]
        if self._process is None:
            command = [sys.executable, "-m", "mimetic", *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        order = {"argv": words, "cwd": str(Path.cwd()), "environment": dict(os.environ)}
        order |= {"out": str(self._out), "err": str(self._err)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the server of commands has ended"
        return subprocess.CompletedProcess(words, int(answer), self._out.read_text(), self._err.read_text())

    def close(self) -> None:
        """End the server."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
