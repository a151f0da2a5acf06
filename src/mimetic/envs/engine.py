"""The physics engine, loaded when it is first needed; nothing else in this room imports it.

MuJoCo is an extra (`mimetic[sim]`). Importing it with `MUJOCO_GL` naming a graphics library that is not there fails for
reasons that have nothing to do with physics; it is then loaded without graphics.
"""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from mimetic.catalog import missing_extra
from mimetic.errors import ConfigError

logger = logging.getLogger(__name__)
LEAST_VERSION = (3, 5)
"""From here on `mj_multiRay` returns surface normals, which the built-in renderer shades with."""
GRAPHICS_VARIABLE = "MUJOCO_GL"
PYOPENGL_VARIABLE = "PYOPENGL_PLATFORM"


@functools.cache
def mujoco() -> Any:
    """The module `mujoco`.

    Raises:
        MissingExtra: it is not installed.
        ConfigError: it is older than `LEAST_VERSION`.
    """
    try:
        import mujoco as module
    except ModuleNotFoundError as error:
        if error.name != "mujoco":
            raise
        raise missing_extra("mujoco", "sim") from error
    except Exception as error:  # the graphics library of MUJOCO_GL is broken or absent: anything can come out of it
        logger.info("%s=%s does not work here (%s)", GRAPHICS_VARIABLE, os.environ.get(GRAPHICS_VARIABLE, ""), error)
        module = _without_graphics()
    version = tuple(int(part) for part in module.__version__.split(".")[:2])
    if version < LEAST_VERSION:
        raise ConfigError(
            f"the package mujoco is version {module.__version__}; the simulated cell needs 3.5 or newer",
            "`pip install -U 'mimetic[sim]'`",
        )
    return module


def _without_graphics() -> Any:
    kept = {name: os.environ.get(name) for name in (GRAPHICS_VARIABLE, PYOPENGL_VARIABLE)}
    os.environ[GRAPHICS_VARIABLE] = "disable"
    try:
        import mujoco as module
    finally:
        for name, value in kept.items():
            os.environ.pop(name, None)
            if value is not None and name == GRAPHICS_VARIABLE:
                os.environ[name] = value
    return module


def gymnasium() -> Any:
    """The module `gymnasium`.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        import gymnasium as module
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
        raise missing_extra("gymnasium", "sim") from error
    return module
