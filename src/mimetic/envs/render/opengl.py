"""OpenGL pictures by MuJoCo's classic renderer: no window, no shadows, no multisampling.

A thread holds one OpenGL context, on the one platform of its process; a second one draws nothing under OSMesa. What a
model needs in it (its textures) is shared by all models compiled from the same text.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimetic.envs.engine import GRAPHICS_VARIABLE, PYOPENGL_VARIABLE, mujoco
from mimetic.errors import ConfigError

PLATFORMS = {"egl": "mujoco.egl", "osmesa": "mujoco.osmesa", "native": "mujoco.glfw"}
"""Module of MuJoCo that makes a context on each platform."""
_MAX_GEOMS = 200


class _Held(threading.local):
    """What one thread holds; it goes when the thread ends, while its context is still its own."""

    def __init__(self) -> None:
        self.painters: dict[str, Painter] = {}
        self.context: Any = None


_held = _Held()
_platforms: list[str] = []
"""The platform that this process draws on, once it does."""


def shared_painter(platform: str, model: Any, xml: str) -> Painter:
    """The painter of this thread for models of this text; made when it is first asked for."""
    if xml not in _held.painters or _held.painters[xml].name != platform:
        _held.painters[xml] = Painter(platform, model)
    return _held.painters[xml]


class Painter:
    """Draws models of one scene text.

    Args:
        platform: key of `PLATFORMS`.
        model: one of the models.

    Raises:
        ConfigError: this process already draws on another platform.
    """

    def __init__(self, platform: str, model: Any) -> None:
        self.name = platform
        self._mujoco = engine = mujoco()
        self._gl = _context(platform, int(model.vis.global_.offwidth), int(model.vis.global_.offheight))
        self._gl.make_current()
        self._context = engine.MjrContext(model, engine.mjtFontScale.mjFONTSCALE_100.value)
        self._scene = engine.MjvScene(model, maxgeom=_MAX_GEOMS)
        self._option, self._perturb = engine.MjvOption(), engine.MjvPerturb()
        self._option.geomgroup[:] = 1
        self._option.sitegroup[:] = 0
        self._camera = engine.MjvCamera()
        self._camera.type = engine.mjtCamera.mjCAMERA_FIXED.value
        for flag in ("mjRND_SHADOW", "mjRND_REFLECTION", "mjRND_SKYBOX", "mjRND_HAZE", "mjRND_FOG"):
            self._scene.flags[getattr(engine.mjtRndFlag, flag).value] = 0
        self._cull = engine.mjtRndFlag.mjRND_CULL_FACE.value
        self._scene.flags[self._cull] = 1

    def picture(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.uint8]:
        """See `Renderer`."""
        return self._draw(model, data, camera, width, height, flat=False)

    def segmentation(self, model: Any, data: Any, camera: str, width: int, height: int) -> NDArray[np.int32]:
        """See `Renderer`."""
        pixels = self._draw(model, data, camera, width, height, flat=True).astype(np.int32)
        numbers = pixels[..., 0] + (pixels[..., 1] << 8) + (pixels[..., 2] << 16)
        table = np.full(int(numbers.max()) + 1, -1, np.int32)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.segid + 1 < len(table):
                table[geom.segid + 1] = geom.objid
        table[0] = -1
        found: NDArray[np.int32] = table[numbers]
        return found

    def close(self) -> None:
        """See `Renderer`; nothing is given back, because other cells of this thread may draw with it."""

    def free(self) -> None:
        """Give back what OpenGL holds of the scene; the painter is of no use afterwards."""
        self._gl.make_current()
        self._context.free()

    def _draw(self, model: Any, data: Any, camera: str, width: int, height: int, *, flat: bool) -> NDArray[np.uint8]:
        engine = self._mujoco
        self._gl.make_current()
        # Each time: the painter of another scene may have pointed OpenGL at its own memory since.
        engine.mjr_setBuffer(engine.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        for flag in ("mjRND_SEGMENT", "mjRND_IDCOLOR"):
            self._scene.flags[getattr(engine.mjtRndFlag, flag).value] = int(flat)
        self._camera.fixedcamid = model.camera(camera).id
        everything = engine.mjtCatBit.mjCAT_ALL.value
        engine.mjv_updateScene(model, data, self._option, self._perturb, self._camera, everything, self._scene)
        frame = engine.MjrRect(0, 0, width, height)
        engine.mjr_render(frame, self._scene, self._context)
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        engine.mjr_readPixels(pixels, None, frame, self._context)
        return np.ascontiguousarray(pixels[::-1])


def probe(platform: str) -> None:
    """Draw a red box and print "drawn"; for a process of its own."""
    engine = mujoco()
    model = engine.MjModel.from_xml_string(
        '<mujoco><visual><global offwidth="32" offheight="32"/><quality shadowsize="0" offsamples="0"/></visual>'
        '<worldbody><geom type="box" size="1 1 1" rgba="1 0 0 1"/><camera name="eye" pos="0 0 3"/></worldbody></mujoco>'
    )
    data = engine.MjData(model)
    engine.mj_forward(model, data)
    picture = Painter(platform, model).picture(model, data, "eye", 32, 32)
    red, green, _ = picture[16, 16]
    if red < 60 or green > red // 2:
        raise SystemExit("the trial picture is wrong")
    os.write(1, b"drawn\n")
    os._exit(0)  # some drivers fail when they are taken down, which says nothing about their pictures


def _context(platform: str, width: int, height: int) -> Any:
    """The OpenGL context of this thread on a platform."""
    if _platforms and platform not in _platforms:
        raise ConfigError(
            f"this process already draws with `{_platforms[0]}` and cannot draw with `{platform}` as well"
        )
    if _held.context is None:
        os.environ.setdefault("LP_NUM_THREADS", "1")  # Mesa's threads would only fight over the cores
        os.environ[GRAPHICS_VARIABLE] = "glfw" if platform == "native" else platform
        _settle_pyopengl(platform)
        _held.context = importlib.import_module(PLATFORMS[platform]).GLContext(width, height)
        if not _platforms:
            # After the first context: MuJoCo ends the platform at exit too, and who registers later is called earlier.
            atexit.register(_give_back)
            _platforms.append(platform)
    return _held.context


def _settle_pyopengl(platform: str) -> None:
    """Let PyOpenGL load for this platform, whatever the environment asks of it.

    Raises:
        ConfigError: it is loaded for another one, as it is after MuJoCo's import under another `MUJOCO_GL`.
    """
    there = os.environ.get(PYOPENGL_VARIABLE)
    if platform not in ("egl", "osmesa") or there in (None, "", platform):
        return
    if "OpenGL" in sys.modules:
        raise ConfigError(
            f"this process has loaded OpenGL for `{there}` and cannot draw with `{platform}`",
            f"put `{GRAPHICS_VARIABLE}={platform}` in front of the command",
        )
    os.environ[PYOPENGL_VARIABLE] = platform


def _give_back() -> None:
    """Free what the main thread holds while Python is still whole; later, MuJoCo's own clean-up complains."""
    for painter in _held.painters.values():
        painter.free()
    _held.painters.clear()
    if _held.context is not None:
        _held.context.free()
        _held.context = None
