"""`mimetic eval --env.type=pusht` as a user types it: in the package where it is installed, else in a stand-in of it."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from mimetic.cli.app import main
from mimetic.data.features import policy_features
from mimetic.envs.pusht.config import PushTConfig
from mimetic.evaluate.rollout.adapters import open_tasks
from mimetic.features import FeatureType
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import save_pretrained
from mimetic.processing.standard import standard_pipelines
from mimetic.testing.datasets import build_dataset
from mimetic.testing.tiny import TINY_ACT

gymnasium = pytest.importorskip("gymnasium", reason="needs the package gymnasium")
TRAINING = Path(__file__).parents[1] / "fixtures/training"
SIZE = ["--env.observation_width=32", "--env.observation_height=32"]


class StandIn(gymnasium.Env):
    """Every tick gives 1; odd seeds succeed in tick 3. A reset that nobody asked for would give another 1."""

    action_space = gymnasium.spaces.Box(0.0, 512.0, (2,), dtype=np.float32)
    observation_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    render_mode = "rgb_array"

    def __init__(self, *, observation_width, observation_height, **settings):
        self.picture = np.full((observation_height, observation_width, 3), 128, np.uint8)

    def reset(self, *, seed=None, options=None):
        self.wins, self.ticks = seed % 2 == 1, 0
        return self._shown(), {"is_success": False}

    def step(self, action):
        self.ticks += 1
        won = self.wins and self.ticks == 3
        return self._shown(), 1.0, won, False, {"is_success": won}

    def render(self):
        return self.picture

    def _shown(self):
        return {"pixels": self.picture, "agent_pos": np.full(2, 256.0), "environment_state": np.zeros(16)}


def is_installed():
    try:
        return importlib.util.find_spec("gym_pusht") is not None
    except ValueError:
        return True


@pytest.fixture
def stands_in(monkeypatch):
    """Puts the stand-in where the package would be; whether or not it is installed."""
    monkeypatch.setitem(sys.modules, "gym_pusht", types.ModuleType("gym_pusht"))
    name = "gym_pusht/PushT-v0"
    monkeypatch.setitem(gymnasium.registry, name, None)  # what was there comes back
    del gymnasium.registry[name]
    gymnasium.register(name, entry_point=StandIn)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny ACT that was never trained, for pictures of 32x32."""
    features = policy_features(open_tasks(PushTConfig(observation_width=32, observation_height=32))[0].features)
    inputs = {key: one for key, one in features.items() if one.type is not FeatureType.ACTION}
    outputs = {key: one for key, one in features.items() if one.type is FeatureType.ACTION}
    sizes = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 32, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    config = ACTConfig(
        chunk_size=8, n_action_steps=8, latent_dim=4, pretrained_backbone_weights=None, device="cpu", **sizes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = make_policy(config, input_features=inputs, output_features=outputs, init_backbone=False)
    place = {"mean": torch.full((2,), 256.0), "std": torch.full((2,), 100.0)}
    picture = {"mean": torch.full((3, 1, 1), 0.5), "std": torch.full((3, 1, 1), 0.25)}
    stats = {"action": place, "observation.state": place, "observation.image": picture}
    folder = tmp_path_factory.mktemp("act")
    pipelines = standard_pipelines(
        input_features=inputs, output_features=outputs, norm_map=config.norm_map, stats=stats
    )
    save_pretrained(policy, folder, *pipelines)
    return folder


def evaluate(checkpoint, output, *flags):
    argv = ["eval", f"--policy.path={checkpoint}", "--env.type=pusht", f"--output_dir={output}", *SIZE, *flags]
    return main([*argv, "--eval.use_async_envs=false"])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_evaluation_counts_every_tick_once(stands_in, checkpoint, tmp_path, batch_size, capsys):
    flags = ["--eval.n_episodes=4", f"--eval.batch_size={batch_size}", "--env.episode_length=5"]
    assert evaluate(checkpoint, tmp_path / "out", *flags) == 0
    info = json.loads((tmp_path / "out/eval_info.json").read_text())
    [task] = info["per_task"]
    assert (task["task_group"], task["task_id"]) == ("pusht", 0)
    assert task["metrics"]["successes"] == [False, True, False, True]
    assert task["metrics"]["sum_rewards"] == [5, 3, 5, 3]
    assert info["per_group"]["pusht"]["pc_success"] == 50
    assert (tmp_path / "out/videos/pusht_0/eval_episode_3.mp4").is_file()
    assert "2 of 4 episodes succeeded" in capsys.readouterr().out
    settings = json.loads((tmp_path / "out/eval_config.json").read_text())
    assert settings["environments"]["PushT-v0"]["type"] == "pusht"


def test_a_policy_for_other_pictures_is_told_so(stands_in, checkpoint, tmp_path, capsys):
    argv = ["eval", f"--policy.path={checkpoint}", "--env.type=pusht", f"--output_dir={tmp_path / 'out'}"]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "of 32x32 pixels, and the environment shows 96x96" in said
    assert "`--env.observation_width=32 --env.observation_height=32`" in said


def test_without_the_package_the_way_to_get_it_is_said(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gym_pusht", None)
    assert evaluate(checkpoint, tmp_path / "out", "--eval.n_episodes=1") == 1
    said = capsys.readouterr().err
    assert "error: `gym_pusht` is not installed" in said
    assert "hint: `pip install 'mimetic[pusht]'`" in said


@pytest.mark.skipif(not is_installed(), reason="needs the package gym-pusht (mimetic[pusht])")
def test_an_evaluation_in_pusht_itself(checkpoint, tmp_path, capsys):
    flags = ["--eval.n_episodes=2", "--eval.batch_size=2", "--env.episode_length=12"]
    assert evaluate(checkpoint, tmp_path / "out", *flags) == 0
    info = json.loads((tmp_path / "out/eval_info.json").read_text())
    assert info["overall"]["n_episodes"] == 2
    assert len(info["per_task"][0]["metrics"]["sum_rewards"]) == 2
    assert (tmp_path / "out/videos/pusht_0/eval_episode_1.mp4").is_file()


@pytest.mark.skipif(not is_installed(), reason="needs the package gym-pusht (mimetic[pusht])")
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_policy_of_lerobot_earns_here_what_it_earned_there(tmp_path, batch_size):
    """A whole `lerobot-eval` of LeRobot 0.6.1 with six episodes: every reward of every episode."""
    output = tmp_path / "out"
    argv = [
        *("eval", f"--policy.path={TRAINING / 'eval_policy'}", "--policy.device=cpu", "--env.type=pusht"),
        *("--env.obs_type=environment_state_agent_pos", "--env.episode_length=40", "--eval.n_episodes=6"),
        *("--env.visualization_width=96", "--env.visualization_height=96", f"--eval.batch_size={batch_size}"),
        *("--eval.use_async_envs=false", "--seed=100000", f"--output_dir={output}"),
    ]
    assert main(argv) == 0
    [ours], [theirs] = (
        json.loads((folder / "eval_info.json").read_text())["per_task"] for folder in (output, TRAINING / "run_eval")
    )
    assert (ours["task_group"], ours["task_id"]) == (theirs["task_group"], theirs["task_id"])
    assert ours["metrics"]["successes"] == theirs["metrics"]["successes"]
    for key in ("sum_rewards", "max_rewards"):
        assert np.allclose(ours["metrics"][key], theirs["metrics"][key], rtol=1e-4, atol=1e-5), key


def test_a_training_plays_in_it(stands_in, tmp_path):
    """With numbers instead of pictures; what it shows fits what the dataset declares."""
    root = build_dataset(tmp_path / "data", lengths=(8, 6), fps=10, state_dim=2, action_dim=2, environment_dim=16)
    argv = [
        *("train", "--dataset.repo_id=local/tiny", f"--dataset.root={root}", *TINY_ACT, "--batch_size=2", "--steps=2"),
        *("--num_workers=0", f"--output_dir={tmp_path / 'run'}", "--env.type=pusht", "--env_eval_freq=2"),
        *("--env.obs_type=environment_state_agent_pos", "--env.episode_length=4", "--eval.n_episodes=2"),
        *("--eval.use_async_envs=false", "--seed=1000"),
    ]
    assert main(argv) == 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    [played] = [line for line in lines if line["kind"] == "environment"]
    assert (played["n_episodes"], played["pc_success"]) == (2, 50)
    assert (tmp_path / "run/eval/videos_step_000002/pusht_0/eval_episode_0.mp4").is_file()
    saved = json.loads((tmp_path / "run/checkpoints/000002/pretrained_model/train_config.json").read_text())["env"]
    assert (saved["type"], saved["obs_type"], saved["fps"]) == ("pusht", "environment_state_agent_pos", 10)
    assert saved["features"]["agent_pos"] == {"type": "STATE", "shape": [2]}
