"""Environments of other packages: loading them, and having them draw without a display."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any

from mimetic.catalog import missing_extra
from mimetic.envs.engine import GRAPHICS_VARIABLE


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Say which extra is missing when an import inside fails for want of a package.

    Args:
        extra: of mimetic, which brings the environment.

    Raises:
        MissingExtra: a package is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "mimetic":
            raise
        raise missing_extra(error.name, extra) from error


def gymnasium_of(extra: str) -> Any:
    """The module `gymnasium`.

    Args:
        extra: named when it is not installed.

    Raises:
        MissingExtra: it is not.
    """
    with needing(extra):
        import gymnasium
    return gymnasium


def draw_off_screen() -> None:
    """Let MuJoCo draw without a display where nobody chose how; call it before the package is imported.

    Without `MUJOCO_GL` it would ask Linux for a window. Mesa's software drawing gets one thread an environment, because
    several environments fill the cores.
    """
    if sys.platform == "linux":
        os.environ.setdefault(GRAPHICS_VARIABLE, "egl")
        os.environ.setdefault("LP_NUM_THREADS", "1")


def versions(*distributions: str) -> dict[str, str]:
    """Installed versions, by name of the distribution; absent ones are left out."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
