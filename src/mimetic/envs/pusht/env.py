"""PushT as a `gymnasium.Env`."""

from __future__ import annotations

import os
from typing import Any

from mimetic.envs.package import gymnasium_of, needing
from mimetic.envs.pusht.config import PushTConfig


def make_env(config: PushTConfig | None = None) -> Any:
    """The package's environment, with its own names.

    An episode has succeeded, and ends, when 95 % of the goal are covered; the reward is the covered share of that.

    Args:
        config: settings; the defaults when absent.

    Raises:
        MissingExtra: gym-pusht is not installed.
    """
    config = config or PushTConfig()
    gym = gymnasium_of("pusht")
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it greets on stdout
    with needing("pusht"):
        import gym_pusht
    height, width = config.picture_px
    return gym.make(
        f"{gym_pusht.__name__}/{config.task}",
        obs_type=config.obs_type,
        render_mode=config.render_mode,
        observation_height=height,
        observation_width=width,
        visualization_height=config.visualization_height,
        visualization_width=config.visualization_width,
        disable_env_checker=config.disable_env_checker,
        max_episode_steps=config.episode_length,
    )
