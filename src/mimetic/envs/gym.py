"""The cell as a `gymnasium.Env`.

The class is made when it is first asked for, because gymnasium is an extra.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mimetic.envs.cell import Cell
from mimetic.envs.config import CAMERAS, FPS, CellConfig
from mimetic.envs.engine import gymnasium
from mimetic.envs.layout import Layout
from mimetic.errors import ConfigError
from mimetic.names import IMAGES_PREFIX, STATE

_LARGEST_SEED = 2**31
_FULL_TURN = 180.1
"""Degrees of half a turn and a servo step more."""


def make_env(config: CellConfig | None = None, *, render_mode: str | None = "rgb_array") -> Any:
    """A `gymnasium.Env` of the simulated cell.

    Observations are `observation.state` (6,) float32 and `observation.images.<camera>` (height, width, 3) uint8,
    actions are goals of the six joints (6,) float32, both in the units of the real arm. The reward is 1 at the tick in
    which the task has succeeded, else 0; `info` holds `task` (the instruction) and `is_success`.

    `reset(seed=n)` begins episode n of the split; without a seed one is drawn. `options={"layout": Layout(...)}` begins
    an episode of your own.

    Args:
        config: task, split, renderer, sizes, units; the defaults when absent.
        render_mode: "rgb_array" (the front camera) or None.

    Raises:
        ConfigError: a setting is outside its range.
        MissingExtra: MuJoCo or gymnasium is not installed.
    """
    return _env_class()(config or CellConfig(), render_mode)


@functools.cache
def _env_class() -> Any:
    gym = gymnasium()

    class SimulatedCell(gym.Env):  # type: ignore[misc,name-defined,unused-ignore]
        """See `make_env`."""

        metadata = {"render_modes": ["rgb_array"], "render_fps": FPS}  # noqa: RUF012  gymnasium's own spelling

        def __init__(self, config: CellConfig, render_mode: str | None) -> None:
            if render_mode not in (None, "rgb_array"):
                raise ConfigError(f"render mode `{render_mode}` is not known", "take `rgb_array`")
            self.render_mode = render_mode
            self.cell = Cell(config)
            self.action_space, self.observation_space = (
                _action_space(gym, self.cell),
                _observation_space(gym, self.cell),
            )

        def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            """Begin an episode; see `make_env`."""
            super().reset(seed=seed)
            layout = _layout_of(options)
            if layout is not None:
                self.cell.reset_to(layout)
            else:
                self.cell.reset(int(self.np_random.integers(_LARGEST_SEED)) if seed is None else seed)
            return self.cell.observe(), self._info()

        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            """Send goals and let a tick pass: observation, reward, terminated, truncated, info."""
            before = self.cell.succeeded
            self.cell.step(action)
            done = self.cell.succeeded
            late = not done and self.cell.tick >= self.cell.episode_length
            return self.cell.observe(), float(done and not before), done, late, self._info()

        def render(self) -> Any:
            """The front camera's picture (height, width, 3) uint8."""
            return self.cell.picture("front") if self.render_mode else None

        def close(self) -> None:
            """Give back the renderer."""
            self.cell.close()

        def _info(self) -> dict[str, Any]:
            return {"task": self.cell.instruction, "is_success": self.cell.succeeded}

    return SimulatedCell


def _action_space(gym: Any, cell: Cell) -> Any:
    low, high = cell.units.bounds()
    return gym.spaces.Box(low, high, dtype=np.float32)


def _observation_space(gym: Any, cell: Cell) -> Any:
    low, high = cell.units.bounds()
    if cell.config.units == "degrees":  # the arm does not clip what it reports in degrees
        low[:5], high[:5] = -_FULL_TURN, _FULL_TURN
    shape = (cell.config.height, cell.config.width, 3)
    pictures = {IMAGES_PREFIX + name: gym.spaces.Box(0, 255, shape, dtype=np.uint8) for name in CAMERAS}
    return gym.spaces.Dict({STATE: gym.spaces.Box(low, high, dtype=np.float32)} | pictures)


def _layout_of(options: Mapping[str, Any] | None) -> Layout | None:
    unknown = set(options or ()) - {"layout"}
    if unknown:
        raise ConfigError(f"reset option `{min(unknown)}` is not known", "the only option is `layout`")
    layout = (options or {}).get("layout")
    if layout is not None and not isinstance(layout, Layout):
        raise ConfigError(f"reset option `layout` is a Layout; got {type(layout).__name__}")
    return layout
