"""LeRobot 0.6.1's tools open what `mimetic demo record` recorded: reading, editing, viewing, training."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="needs the package mujoco")

from mimetic.cli import demo_record
from mimetic.data.reader import open_dataset

PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")
SCRIPT = Path(__file__).with_name("peer_datasets.py")
NAME = "local/so101_demo"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Three demonstrations of two tasks, with both cameras."""
    root = tmp_path_factory.mktemp("demo") / "data"
    flags = ["--task=reach,push", "--n_episodes=3", "--width=64", "--height=64", "--distractors=0"]
    assert demo_record.main([f"--repo_id={NAME}", f"--root={root}", *flags], debug=False) == 0
    return root


def peer(command, *arguments, home):
    """Run a command of the peer's environment."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
    path = Path(PEER).parent / command
    done = subprocess.run([path, *map(str, arguments)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def read(root, tmp_path):
    """What LeRobot's dataset class says, and all of its items."""
    out = tmp_path / "items.npz"
    peer(Path(PEER).name, SCRIPT, "read", root, out, home=tmp_path / "home")
    with np.load(out, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    return json.loads(str(arrays.pop("about"))), arrays


def assert_equal(root, tmp_path):
    """Every item is equal on both sides; decoded pictures may differ by 2 of 255 (another FFmpeg build)."""
    about, arrays = read(root, tmp_path)
    ours = open_dataset(NAME, root=root)
    assert (about["episodes"], about["frames"]) == (len(ours.episodes), len(ours))
    assert about["tasks"] == list(ours.meta.tasks.values())
    assert about["stats"] == sorted(ours.meta.stats)
    assert about["robot_type"] == "so101_follower"
    for row in range(len(ours)):
        item = ours[row]
        assert list(item) == about["texts"][row]["__order__"]
        for key, value in item.items():
            if isinstance(value, str):
                assert about["texts"][row][key] == value
                continue
            tolerance = 2.01 / 255 if key.startswith("observation.images") else 0
            np.testing.assert_allclose(value.numpy(), arrays[f"{row}/{key}"], atol=tolerance, err_msg=key)
    return ours


def test_lerobot_reads_every_frame_task_and_statistic_of_a_recorded_demonstration(recorded, tmp_path):
    ours = assert_equal(recorded, tmp_path)
    assert len(ours.meta.tasks) == 2
    assert {"observation.images.front", "observation.images.wrist"} <= set(ours.meta.camera_keys)


def test_lerobot_edits_a_recorded_dataset_and_we_read_what_is_left(recorded, tmp_path):
    new = tmp_path / "edited"
    flags = [f"--repo_id={NAME}", f"--root={recorded}", "--new_repo_id=local/edited", f"--new_root={new}"]
    delete = ["--operation.type=delete_episodes", "--operation.episode_indices=[1]"]
    peer("lerobot-edit-dataset", *flags, *delete, home=tmp_path / "home")
    left, whole = open_dataset("local/edited", root=new), open_dataset(NAME, root=recorded)
    assert len(left.episodes) == 2
    first, last = (len(open_dataset(NAME, root=recorded, episodes=[number])) for number in (0, 2))
    assert len(left) == first + last
    np.testing.assert_array_equal(left[len(left) - 1]["action"], whole[len(whole) - 1]["action"])


def test_lerobot_saves_a_view_of_a_recorded_episode(recorded, tmp_path):
    if subprocess.run([PEER, "-c", "import rerun"], capture_output=True, check=False).returncode:
        pytest.skip("needs rerun in the peer's environment: pip install 'lerobot[viz]==0.6.1'")
    out = tmp_path / "view"
    flags = [f"--repo-id={NAME}", f"--root={recorded}", "--episode-index=0", "--mode=local", "--save=1"]
    peer("lerobot-dataset-viz", *flags, f"--output-dir={out}", "--num-workers=0", home=tmp_path / "home")
    (file,) = out.rglob("*.rrd")
    assert file.stat().st_size > 10_000


def test_lerobot_trains_act_on_a_recorded_dataset(recorded, tmp_path):
    out = tmp_path / "run"
    sizes = {"dim_model": 32, "n_heads": 2, "dim_feedforward": 64, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    flags = [f"--policy.{name}={value}" for name, value in sizes.items()]
    flags += ["--policy.type=act", "--policy.device=cpu", "--policy.push_to_hub=false", "--policy.chunk_size=8"]
    flags += ["--policy.n_action_steps=8", "--policy.pretrained_backbone_weights=null", "--batch_size=2", "--steps=2"]
    flags += [f"--dataset.repo_id={NAME}", f"--dataset.root={recorded}", "--num_workers=0", "--log_freq=1"]
    log = peer("lerobot-train", *flags, f"--output_dir={out}", home=tmp_path / "home")
    assert "step:2 " in log
    assert (out / "checkpoints" / "000002" / "pretrained_model" / "model.safetensors").is_file()
