"""The simulated ALOHA as a `gymnasium.Env`."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from mimetic.envs.aloha.config import AlohaConfig
from mimetic.envs.package import draw_off_screen, gymnasium_of, needing

logger = logging.getLogger(__name__)
_SEEN = "top"


def make_env(config: AlohaConfig | None = None) -> Any:
    """The package's environment, with its own names.

    An episode has succeeded, and ends, at the largest reward, 4: the peg touches the pins in the socket and both are
    off the table, or the left gripper alone holds the cube. Lesser stages give 1, 2 and 3.

    Args:
        config: settings; the defaults when absent.

    Raises:
        MissingExtra: gym-aloha is not installed.
    """
    config = config or AlohaConfig()
    draw_off_screen()
    gym = gymnasium_of("aloha")
    with needing("aloha"):
        import gym_aloha
        from dm_control.rl.control import PhysicsError
    env = gym.make(
        f"{gym_aloha.__name__}/{config.task}",
        obs_type=config.obs_type,
        render_mode=config.render_mode,
        observation_height=config.observation_height,
        observation_width=config.observation_width,
        visualization_height=config.observation_height,
        visualization_width=config.observation_width,
        disable_env_checker=config.disable_env_checker,
        max_episode_steps=config.episode_length,
    )
    _leave_out_unseen_cameras(env)
    return _survivor(env, gym, PhysicsError)


def _survivor(env: Any, gym: Any, breakdown: type[Exception]) -> Any:
    """An environment whose episode ends without success where physics breaks down.

    Wild actions do that now and then; an exception would end an evaluation, and at the same seed every time.
    """

    class Survivor(gym.Wrapper):  # type: ignore[misc,name-defined,unused-ignore]
        """See `_survivor`."""

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            """See `gymnasium.Env`."""
            self._last, info = self.env.reset(seed=seed, options=options)
            return self._last, info

        def step(self, action: Any) -> Any:
            """See `gymnasium.Env`."""
            try:
                shown, reward, terminated, truncated, info = self.env.step(action)
            except breakdown as error:
                logger.warning("ALOHA's physics broke down, so an episode ended without success: %s", error)
                return self._last, 0.0, True, False, {"is_success": False}
            self._last = shown
            return shown, reward, terminated, truncated, info

    return Survivor(env)


def _leave_out_unseen_cameras(env: Any) -> None:
    """Draw one picture a tick: the package draws three and shows one, and drawing is all of its time."""
    physics = getattr(getattr(env.unwrapped, "_env", None), "physics", None)
    if physics is None:
        logger.warning("this version of gym-aloha is built differently: it will draw cameras that nobody sees")
        return
    draw = physics.render

    def render(height: int = 240, width: int = 320, camera_id: Any = -1, **options: Any) -> Any:
        if camera_id in (_SEEN, -1):
            return draw(height=height, width=width, camera_id=camera_id, **options)
        return np.zeros((height, width, 3), dtype=np.uint8)

    physics.render = render
