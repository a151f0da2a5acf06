"""Claim: environments of other packages run here behind one interface; chance alone succeeds in few of them.

python -m benchmarks.environments --env pusht [--episodes 50] [--steps 50] [--pictures docs/images]

Run it in an environment of Python that has the extra of the same name. It prints whether the environment opens, its
speed with pictures (ticks a second of CPU time, one environment in one process), and how often uniformly random actions
succeed. Such a policy does not look, so its episodes are played without drawing. `--pictures` keeps a picture of each.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.catalog import closest_hint
from mimetic.envs.catalog import ENVS
from mimetic.errors import MimeticError
from mimetic.evaluate.rollout.adapters import open_tasks
from mimetic.evaluate.rollout.environment import EnvTask
from mimetic.evaluate.rollout.intervals import wilson
from mimetic.evaluate.rollout.worlds import Worlds

SETTINGS: dict[str, dict[str, Any]] = {
    "pusht": {},
    "aloha": {"task": ("AlohaInsertion-v0", "AlohaTransferCube-v0")},
    "metaworld": {"task": ("push-v3,reach-v3,drawer-close-v3,pick-place-v3",)},
    "libero": {"task": ("libero_10",), "task_ids": [0]},
}
_SEED = 1000
_LARGEST_BYTES = 60_000


def tasks_of(name: str) -> Iterator[EnvTask]:
    """Every task that is measured in an environment."""
    settings = dict(SETTINGS[name])
    for task in settings.pop("task", (None,)):
        chosen = settings if task is None else settings | {"task": task}
        yield from open_tasks(ENVS.load_config(name)(**chosen))


def measure(task: EnvTask, name: str, episodes: int, steps: int, pictures: Path | None) -> str:
    """One row of the table."""
    places = task.open(1, 0)
    assert isinstance(places, Worlds)
    try:
        rate = speed(places, task, steps)
        if pictures is not None:
            keep(places, task, pictures / f"env_{name}.jpg")
        blindfold(places, name)
        if not episodes:
            return f"{name:10} {task.task:24} {rate:8.1f} ticks a CPU second"
        wins = [play(places, task, _SEED + number) for number in range(episodes)]
    finally:
        places.close()
    low, high = wilson(sum(wins), len(wins))
    interval = f"{100 * low:.0f} to {100 * high:.0f}"
    return (
        f"{name:10} {task.task:24} {rate:8.1f} ticks a CPU second   {sum(wins)} of {len(wins)} random episodes of "
        f"{task.episode_length} ticks succeeded (95 % interval {interval} %)"
    )


def actions(task: EnvTask, seed: int) -> Iterator[np.ndarray]:
    """Uniformly random actions (1, A) within the environment's range."""
    low, high = task.ranges.get("action", (-1.0, 1.0))
    size = task.features["action"].shape[0]
    rng = np.random.default_rng(seed)
    while True:
        yield rng.uniform(low, high, (1, size))


def speed(places: Worlds, task: EnvTask, steps: int) -> float:
    """Ticks a second of CPU time, with pictures; the first ones, which compile, are left out."""
    moves = actions(task, 0)
    places.begin(0, _SEED)
    for _ in range(3):
        places.step(next(moves))
    begin = time.process_time()
    for _ in range(steps):
        places.step(next(moves))
    return steps / (time.process_time() - begin)


def play(places: Worlds, task: EnvTask, seed: int) -> bool:
    """Whether random actions succeed in the episode of a seed."""
    places.begin(0, seed)
    for move in actions(task, seed):
        shown = places.step(move)
        if shown.is_over[0]:
            return bool(shown.is_success[0])
    raise AssertionError


def blindfold(places: Worlds, name: str) -> None:
    """Have nothing drawn from here on."""
    for world in places._crews[0]._worlds.values():
        env = world._env.unwrapped
        if name == "pusht":
            world._draw = lambda: np.zeros((16, 16, 3), dtype=np.uint8)
            env._render = lambda visualize=False: np.zeros((16, 16, 3), dtype=np.uint8)
        elif name == "metaworld":
            shape = env.observation_space["pixels"].shape
            env.render = lambda shape=shape: np.zeros(shape, dtype=np.uint8)
        elif name == "aloha":
            env._env.physics.render = lambda height, width, camera_id, **_: np.zeros((height, width, 3), dtype=np.uint8)


def keep(places: Worlds, task: EnvTask, path: Path) -> None:
    """Save what the beginning of an episode looks like."""
    from PIL import Image

    shown = places.begin(0, _SEED)
    image = Image.fromarray(next(iter(shown.views.values()))[0])
    image.thumbnail((480, 480))
    for quality in range(90, 20, -10):
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=quality)
        if buffer.tell() <= _LARGEST_BYTES:
            break
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_bytes(buffer.getvalue())


def main() -> None:
    """Measure one environment, or all that are installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=",".join(SETTINGS), help="names, separated by commas")
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--steps", type=int, default=50, help="ticks for the speed")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each environment")
    options = parser.parse_args()
    for name in options.env.split(","):
        if name not in SETTINGS:
            parser.error(f"unknown environment {name}; {closest_hint(name, SETTINGS)}")
        try:
            for task in tasks_of(name):
                print(measure(task, name, options.episodes, options.steps, options.pictures), flush=True)
        except MimeticError as error:
            print(f"{name:10} does not open: {error.message} ({error.hint})", flush=True)


if __name__ == "__main__":
    main()
