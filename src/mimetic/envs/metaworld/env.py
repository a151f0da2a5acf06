"""A task of Meta-World as a `gymnasium.Env` that shows what LeRobot's dataset of it shows."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from mimetic.envs.metaworld.config import ACTION_NAMES, LONGEST, PICTURE_PX, STATE_SIZE, MetaWorldConfig
from mimetic.envs.metaworld.tasks import INSTRUCTIONS
from mimetic.envs.package import draw_off_screen, gymnasium_of, needing

_CAMERA, _CAMERA_AT = "corner2", (0.75, 0.075, 0.7)
"""A camera of the package and where LeRobot's dataset has it [m]; pictures are turned by half a turn there."""
_RATE_HZ = 80


def make_env(config: MetaWorldConfig | None = None, task: str | None = None) -> Any:
    """One task, with things in other places in every episode.

    Observations are `pixels` (480, 480, 3) uint8 and `agent_pos` (4,) float64, actions (4,) in -1 to 1, the reward is
    the package's. `info["is_success"]` is the package's success of the present tick; the episode ends with it.

    Args:
        config: settings; the defaults when absent.
        task: name in the package, such as `push-v3`; the first of the settings when absent.

    Raises:
        MissingExtra: metaworld is not installed.
    """
    config = config or MetaWorldConfig()
    draw_off_screen()
    return _env_class()(task or config.chosen()[0][2], with_state=config.obs_type != "pixels")


@functools.cache
def _env_class() -> Any:
    gym = gymnasium_of("metaworld")
    with needing("metaworld"):
        import metaworld
        import mujoco

    class Tabletop(gym.Env):  # type: ignore[misc,name-defined,unused-ignore]
        """See `make_env`."""

        metadata = {"render_modes": ["rgb_array"], "render_fps": _RATE_HZ}  # noqa: RUF012  gymnasium's own spelling
        render_mode = "rgb_array"

        def __init__(self, task: str, *, with_state: bool) -> None:
            benchmark = metaworld.MT1(task, seed=0)
            self._inner = benchmark.train_classes[task](
                render_mode="rgb_array", camera_name=_CAMERA, width=PICTURE_PX, height=PICTURE_PX
            )
            self._inner.set_task(benchmark.train_tasks[0])
            # A set task has its things in one place for ever, and the seed of a reset is not used.
            self._inner._freeze_rand_vec = False
            self._inner.seeded_rand_vec = True
            model = self._inner.model
            model.cam_pos[model.camera(_CAMERA).id] = _CAMERA_AT
            self._with_state = with_state
            self._ticks = 0
            self.task_description = INSTRUCTIONS[task]
            self.action_space = gym.spaces.Box(-1.0, 1.0, (len(ACTION_NAMES),), dtype=np.float32)
            picture = {"pixels": gym.spaces.Box(0, 255, (PICTURE_PX, PICTURE_PX, 3), dtype=np.uint8)}
            state = {"agent_pos": gym.spaces.Box(-np.inf, np.inf, (STATE_SIZE,), dtype=np.float64)}
            self.observation_space = gym.spaces.Dict(picture | (state if with_state else {}))

        def reset(
            self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            """Begin the episode of a seed."""
            super().reset(seed=seed)
            self._ticks = 0
            self._inner.seed(int(self.np_random.integers(2**31)) if seed is None else seed)
            mujoco.mj_resetData(self._inner.model, self._inner.data)  # else markers are drawn where they were before
            numbers, _ = self._inner.reset()
            return self._shown(numbers), {"is_success": False}

        def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
            """Move, and say whether the task has succeeded."""
            numbers, reward, ended, late, info = self._inner.step(np.asarray(action))
            self._ticks += 1
            is_success = bool(info["success"])
            over = bool(late) or self._ticks >= LONGEST
            return self._shown(numbers), float(reward), bool(ended) or is_success, over, {"is_success": is_success}

        def render(self) -> Any:
            """The camera's picture (480, 480, 3) uint8."""
            return np.ascontiguousarray(self._inner.render()[::-1, ::-1])

        def close(self) -> None:
            """Give back the renderer."""
            self._inner.close()

        def _shown(self, numbers: Any) -> dict[str, Any]:
            picture = {"pixels": self.render()}
            return picture | ({"agent_pos": np.array(numbers[:STATE_SIZE])} if self._with_state else {})

    return Tabletop
