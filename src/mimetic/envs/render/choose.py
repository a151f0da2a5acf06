"""Which renderer is used, and why.

OpenGL is preferred where it works, because it is faster for large pictures. Whether it works is tried out in a process
of its own: a failed attempt can leave the graphics library, and the process with it, unusable.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from mimetic import log
from mimetic.envs.engine import GRAPHICS_VARIABLE, PYOPENGL_VARIABLE
from mimetic.envs.render.base import Renderer
from mimetic.envs.render.opengl import PLATFORMS, shared_painter
from mimetic.envs.render.rays import RayRenderer
from mimetic.errors import ConfigError

logger = logging.getLogger(__name__)
_PROBE_S = 60
_PROBE = "from mimetic.envs.render.opengl import probe; probe({platform!r})"


@dataclass(frozen=True)
class RendererChoice:
    """A renderer and why it was taken.

    Args:
        name: "egl", "osmesa", "native" or "rays".
        reason: half a sentence.
    """

    name: str
    reason: str


def choose_renderer(wanted: str) -> RendererChoice:
    """Decide what draws; the decision is logged once.

    Args:
        wanted: a name of `config.RENDERER_NAMES`; "auto" tries OpenGL and falls back to rays.

    Raises:
        ConfigError: a renderer that was asked for by name does not work here.
    """
    choice = _choose(wanted, os.environ.get(GRAPHICS_VARIABLE, "").lower())
    log.once(logger, logging.INFO, "pictures are drawn by %s: %s", choice.name, choice.reason)
    return choice


@functools.cache
def _choose(wanted: str, variable: str) -> RendererChoice:
    if wanted == "rays":
        return RendererChoice("rays", "asked for")
    if wanted != "auto":
        problem = failure(wanted)
        if problem:
            raise ConfigError(
                f"the renderer `{wanted}` does not work here: {problem}", "take `auto`, or `rays`, which needs nothing"
            )
        return RendererChoice(wanted, "asked for")
    named = {"glfw": "native", "wgl": "native", "cgl": "native"}.get(variable, variable)
    if named in ("disable", "disabled", "off", "false", "0"):
        return RendererChoice("rays", f"{GRAPHICS_VARIABLE}={variable} turns OpenGL off")
    candidates = (named,) if named in PLATFORMS else _usual_order()
    problems = []
    for name in candidates:
        problem = failure(name)
        if not problem:
            return RendererChoice(name, "OpenGL works in a trial")
        problems.append(f"{name} ({problem})")
    return RendererChoice("rays", "no OpenGL: " + ", ".join(problems))


def make_renderer(choice: RendererChoice, model: Any, xml: str) -> Renderer:
    """The renderer for a compiled scene.

    Args:
        choice: what draws.
        model: the compiled scene.
        xml: its text; models of the same text share what OpenGL holds of them.
    """
    return RayRenderer() if choice.name == "rays" else shared_painter(choice.name, model, xml)


@functools.cache
def failure(platform: str) -> str:
    """Why OpenGL does not work on a platform; empty when it does. Tried once a process, in a process of its own."""
    environment = dict(os.environ) | {GRAPHICS_VARIABLE: "glfw" if platform == "native" else platform}
    environment.pop(PYOPENGL_VARIABLE, None)
    command = [sys.executable, "-c", _PROBE.format(platform=platform)]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no picture within {_PROBE_S} s"
    if done.returncode == 0 and done.stdout.strip().endswith("drawn"):
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"the trial ended with code {done.returncode}"


def _usual_order() -> tuple[str, ...]:
    """Without a display first: a window system may be there and still belong to someone else."""
    return ("egl", "osmesa", "native") if sys.platform == "linux" else ("native",)
