"""Held-out episodes equal LeRobot's; exact."""

import json
from dataclasses import dataclass

import pytest

from mimetic.data.split import split_episodes
from mimetic.errors import ConfigError


@dataclass
class Row:
    episode_index: int
    tasks: list[str]


def test_splits_are_lerobots(fixtures):
    golden = json.loads((fixtures / "dataset/sampler/eval_split.json").read_text())
    n_refused = 0
    for key, result in golden["results"].items():
        share, _, chosen = key.removeprefix("eval_split=").partition(",episodes=")
        numbers = json.loads(chosen) if chosen != "None" else range(len(golden["episode_tasks"]))
        rows = [Row(number, golden["episode_tasks"][number]) for number in numbers]
        if "error" in result:
            n_refused += 1
            with pytest.raises(ConfigError) as caught:
                split_episodes(rows, float(share))
            assert isinstance(caught.value, ValueError)
            assert share in str(caught.value)
        else:
            assert split_episodes(rows, float(share)) == (result["train_episodes"], result["eval_episodes"]), key
    assert n_refused == 1
