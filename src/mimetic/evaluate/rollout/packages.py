"""Environments of other packages as tasks to be evaluated in, with LeRobot's names (spec/training.md 2.10 and 23)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mimetic.data.features import DatasetFeature
from mimetic.envs.aloha import config as aloha
from mimetic.envs.libero import config as libero
from mimetic.envs.metaworld import config as metaworld
from mimetic.envs.metaworld.tasks import INSTRUCTIONS
from mimetic.envs.package import versions
from mimetic.envs.pusht import config as pusht
from mimetic.evaluate.rollout.environment import EnvTask, Places
from mimetic.evaluate.rollout.gym_world import GymWorld
from mimetic.evaluate.rollout.worlds import World, Worlds
from mimetic.names import ACTION, STATE

_DISTRIBUTIONS = {
    "pusht": ("gym-pusht", "pymunk", "pygame"),
    "aloha": ("gym-aloha", "dm-control", "mujoco"),
    "metaworld": ("metaworld", "mujoco"),
    "libero": ("hf-libero", "robosuite", "mujoco"),
}
"""What simulates and draws in each, by name on the package index: another version may be another world."""
_SILENT = ("features", "features_map", "max_parallel_tasks", "disable_env_checker", "multitask_eval", "task_ids")
"""Settings that say nothing about an episode."""


def pusht_tasks(config: pusht.PushTConfig) -> list[EnvTask]:
    """PushT's one task."""
    sizes = {"pixels": (*config.picture_px, 3), "agent_pos": (2,), "environment_state": (16,)}
    reach = (np.zeros(2), np.full(2, pusht.LARGEST))
    shown = pusht.SHOWN[config.obs_type]
    features = {ACTION: _vector(pusht.ACTION_SIZE)}
    features |= {config.dataset_name(name): _feature(sizes[name]) for name in shown}
    place = _Place("pusht", 0, str(config.task), config.episode_length)
    ranges = {ACTION: reach} | {config.dataset_name(name): reach for name in shown if name == "agent_pos"}
    return [_task("pusht", place, features, config, partial(pusht_world, config), ranges)]


def pusht_world(config: pusht.PushTConfig) -> World:
    """One PushT, opened."""
    from mimetic.envs.pusht.env import make_env

    env = make_env(config)
    names = {name: config.dataset_name(name) for name in pusht.SHOWN[config.obs_type]}

    def forget() -> None:
        env.unwrapped._last_action = None  # a film marks it, and a reset leaves it

    return GymWorld(env, names, pusht.INSTRUCTION, draw=env.render, forget=forget)


def aloha_tasks(config: aloha.AlohaConfig) -> list[EnvTask]:
    """The named task of the two arms."""
    joints = _vector(len(aloha.JOINTS), list(aloha.JOINTS))
    picture = _feature((config.observation_height, config.observation_width, 3))
    shown = aloha.SHOWN[config.obs_type]
    features = {ACTION: joints}
    features |= {config.dataset_name(name): joints if name == "agent_pos" else picture for name in shown}
    place = _Place("aloha", 0, str(config.task), config.episode_length)
    return [_task("aloha", place, features, config, partial(aloha_world, config))]


def aloha_world(config: aloha.AlohaConfig) -> World:
    """One pair of arms, opened."""
    from mimetic.envs.aloha.env import make_env

    names = {name: config.dataset_name(name) for name in aloha.SHOWN[config.obs_type]}
    return GymWorld(make_env(config), names, aloha.INSTRUCTIONS[str(config.task)])


def metaworld_tasks(config: metaworld.MetaWorldConfig) -> list[EnvTask]:
    """Every named task."""
    sizes = {"pixels/top": (metaworld.PICTURE_PX, metaworld.PICTURE_PX, 3), "agent_pos": (metaworld.STATE_SIZE,)}
    features = {ACTION: _vector(len(metaworld.ACTION_NAMES), list(metaworld.ACTION_NAMES))}
    features |= {config.dataset_name(name): _feature(sizes[name]) for name in metaworld.SHOWN[config.obs_type]}
    return [
        _task(
            "metaworld",
            _Place(group, number, task, config.ticks),
            features,
            config,
            partial(metaworld_world, config, task),
        )
        for group, number, task in config.chosen()
    ]


def metaworld_world(config: metaworld.MetaWorldConfig, task: str) -> World:
    """One table, opened."""
    from mimetic.envs.metaworld.env import make_env

    own = {"pixels/top": "pixels", "agent_pos": "agent_pos"}
    names = {own[name]: config.dataset_name(name) for name in metaworld.SHOWN[config.obs_type]}
    return GymWorld(make_env(config, task), names, INSTRUCTIONS[task])


def libero_tasks(config: libero.LiberoConfig) -> list[EnvTask]:
    """Every named task of every named suite; this asks the package for their names."""
    from mimetic.envs.libero.env import task_names

    features = {ACTION: _vector(libero.ACTION_SIZE)}
    if config.obs_type != "pixels":
        features[STATE] = _vector(libero.STATE_SIZE)
    picture = _feature((config.observation_height, config.observation_width, 3))
    features |= dict.fromkeys(config.cameras.values(), picture)
    found = []
    for suite in config.suites:
        names = task_names(suite)
        for number in range(len(names)) if config.task_ids is None else config.task_ids:
            place = _Place(suite, number, names[number], config.ticks(suite))
            found.append(_task("libero", place, features, config, partial(libero_world, config, suite, number)))
    return found


def libero_world(config: libero.LiberoConfig, suite: str, number: int) -> World:
    """One room, opened."""
    from mimetic.envs.libero.env import make_env

    names = {f"pixels/{camera}": name for camera, name in config.cameras.items()}
    if config.obs_type != "pixels":
        names["agent_pos"] = STATE
    env = make_env(config, suite, number)
    return GymWorld(env, names, env.task_description)


@dataclass(frozen=True)
class _Place:
    """Where a task stands: its suite, its number there, its name, and how long its episodes are."""

    group: str
    number: int
    task: str
    ticks: int


def _task(
    name: str,
    place: _Place,
    features: Mapping[str, DatasetFeature],
    config: Any,
    make: Callable[[], World],
    ranges: Mapping[str, Any] | None = None,
) -> EnvTask:
    size = int(features[ACTION].shape[0])
    settings = {key: value for key, value in vars(config).items() if key not in _SILENT}
    description = {**settings, "type": name, "task": place.task, "versions": versions(*_DISTRIBUTIONS[name])}

    def open_places(places: int, processes: int) -> Places:
        return Worlds(
            make,
            places,
            processes=processes,
            episode_length=place.ticks,
            action_size=size,
            description=description,
        )

    return EnvTask(
        group=place.group,
        task_id=place.number,
        task=place.task,
        split="",
        features=features,
        fps=config.fps,
        episode_length=place.ticks,
        open=open_places,
        ranges=ranges or {},
        picture_flags=None if name == "metaworld" else ("observation_width", "observation_height"),
    )


def _vector(size: int, names: list[str] | None = None) -> DatasetFeature:
    return DatasetFeature("float32", (size,), names)


def _feature(shape: tuple[int, ...]) -> DatasetFeature:
    """The feature of what has a shape: a picture (H, W, 3), or numbers (D,)."""
    return DatasetFeature("video", shape, ["height", "width", "channels"]) if len(shape) == 3 else _vector(shape[0])
