"""A few ticks in an environment, for tests that compare episodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

EPISODES = Path(__file__).parents[1] / "fixtures/envs/episodes.json"


def play(places: Any, seed: int, actions: Any, *, place: int = 0, count: int = 1) -> list[dict[str, Any]]:
    """What one place shows at the beginning and after each action: observations, film, reward, success, end."""
    found = [_of(places.begin(place, seed), place)]
    for action in np.asarray(actions, dtype=np.float64):
        every = np.tile(action, (count, 1))
        found.append(_of(places.step(every), place))
    return found


def _of(shown: Any, place: int) -> dict[str, Any]:
    flags = {"reward": shown.rewards[place], "success": shown.is_success[place], "over": shown.is_over[place]}
    pictures = {f"film {name}": value[place].copy() for name, value in shown.views.items()}
    return {name: value[place].copy() for name, value in shown.observation.items()} | flags | pictures


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether two episodes are equal to the last bit."""
    return len(one) == len(other) and all(
        np.array_equal(a[name], b[name]) for a, b in zip(one, other, strict=True) for name in a
    )


def check_lerobots(places: Any, name: str, *, tolerance: float = 1e-6) -> None:
    """The episodes that LeRobot's own environment showed for the same seeds and actions."""
    recorded = json.loads(EPISODES.read_text())[name]
    assert len(recorded["episodes"]) == 2
    for episode in recorded["episodes"]:
        found = play(places, episode["seed"], recorded["actions"])
        states = np.array([one["observation.state"] for one in found])
        assert np.allclose(states, episode["states"], rtol=1e-6, atol=tolerance)
        assert np.allclose([one["reward"] for one in found[1:]], episode["rewards"], atol=tolerance)


def check_features(task: Any, places: Any) -> None:
    """An observation has the names, shapes and types that the task declares."""
    shown = places.begin(0, 0)
    declared = {key: one for key, one in task.features.items() if key != "action"}
    assert set(shown.observation) == set(declared)
    for key, feature in declared.items():
        value = shown.observation[key][0]
        assert value.shape == tuple(feature.shape), key
        assert value.dtype == (np.uint8 if feature.is_camera else np.float32), key
    pictures = [shown.observation[key][0] for key, one in declared.items() if one.is_camera]
    assert all(picture.std() > 5 for picture in pictures)  # something is to be seen
