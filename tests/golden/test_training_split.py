"""The episodes that a run trains on and holds out are LeRobot 0.6.1's (tests/fixtures/dataset/sampler/eval_split.json); exact."""

import json

import pytest

from mimetic.config.parse import parse
from mimetic.errors import ConfigError
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data


def test_runs_hold_out_the_references_episodes(fixtures):
    results = json.loads((fixtures / "dataset" / "sampler" / "eval_split.json").read_text())["results"]
    for name, expected in results.items():
        share, _, episodes = name.removeprefix("eval_split=").partition(",episodes=")
        flags = [
            "--policy.type=act",
            "--dataset.repo_id=local/video",
            f"--dataset.root={fixtures / 'dataset' / 'video_v30'}",
            f"--dataset.eval_split={share}",
        ]
        if episodes != "None":
            flags.append(f"--dataset.episodes={episodes.replace(' ', '')}")
        config = parse(TrainConfig, flags, prog="mimetic train").value
        if "error" in expected:
            with pytest.raises(ConfigError):
                open_training_data(config, config.policy)
            continue
        data = open_training_data(config, config.policy)
        assert sorted(data.train.episodes) == sorted(expected["train_episodes"]), name
        assert sorted(data.heldout.episodes) == sorted(expected["eval_episodes"]), name
        assert (len(data.train), len(data.heldout)) == (expected["len_train"], expected["len_eval"]), name
