"""A SmolVLA run goes on in the other program: LeRobot 0.6.1 continues ours, and we continue LeRobot's.

Losses cannot be compared step by step: the flow's noise is drawn anew, and LeRobot restores its generators inexactly
(spec/training.md). What must hold: the step and the learning rate of each step (equal arithmetic: 1e-12), the optimiser
state of every parameter going on at its count, the losses staying where they were, and only trained weights moving.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")
STEPS, CHANGE = 6, 3

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]

FLAGS = [
    "--dataset.repo_id=local/video_v30",
    f"--dataset.root={FIXTURES / 'dataset' / 'video_v30'}",
    "--policy.type=smolvla",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.vlm_model_name=vlm_tiny_bf16",
    "--policy.load_vlm_weights=true",
    "--policy.num_vlm_layers=2",
    "--policy.resize_imgs_with_padding=[64,64]",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
    "--batch_size=4",
    "--num_workers=0",
    f"--steps={STEPS}",
    f"--save_freq={CHANGE}",
    "--log_freq=1",
]
DTYPES = {"peer": [], "ours": ["--policy.precision=released"]}
"""LeRobot's, on both sides."""


def train(side: str, *arguments: str) -> str:
    """Run a side's training command among the fixtures, and return what it prints."""
    command = (
        [str(Path(PEER).parent / "lerobot-train")] if side == "peer" else [sys.executable, "-m", "mimetic", "train"]
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [*command, *arguments],
        env=env,
        cwd=FIXTURES / "smolvla",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout


def whole_run(side: str, folder: Path) -> Path:
    """A run of six steps with checkpoints after three and six."""
    train(side, *FLAGS, *DTYPES[side], f"--output_dir={folder}")
    return folder / "checkpoints"


def state(checkpoint: Path, name: str):
    """Content of a JSON file of the training state."""
    return json.loads((checkpoint / "training_state" / name).read_text())


@pytest.mark.parametrize(("first", "second"), [("ours", "peer"), ("peer", "ours")])
def test_the_other_side_continues(first, second, tmp_path):
    whole = whole_run(first, tmp_path / "whole")
    half = tmp_path / "part" / "checkpoints" / f"{CHANGE:06d}"
    shutil.copytree(whole / f"{CHANGE:06d}", half)
    (tmp_path / "part" / "checkpoints" / "last").symlink_to(half.name)
    config = half / "pretrained_model" / "train_config.json"
    train(second, f"--config_path={config}", "--resume=true", f"--output_dir={tmp_path / 'part'}")
    end = half.with_name(f"{STEPS:06d}")
    wanted = whole / end.name

    assert state(end, "training_step.json")["step"] == STEPS
    rates = [[group["lr"] for group in state(each, "optimizer_param_groups.json")] for each in (end, wanted)]
    np.testing.assert_allclose(*rates, rtol=1e-12)

    start, moments = (load_file(each / "training_state" / "optimizer_state.safetensors") for each in (half, end))
    assert moments.keys() == start.keys()
    counts = {name for name in moments if name.endswith("step")}
    assert counts
    assert {float(moments[name]) - float(start[name]) for name in counts} == {STEPS - CHANGE}

    # Continuing LeRobot's run, we keep float32 weights, and so move norms whose steps bfloat16 rounds away.
    trained = trained_names(half, end)
    assert trained >= trained_names(whole / half.name, wanted) > set()
    assert not any(".vlm." in name for name in trained)


def read_weights(checkpoint: Path) -> dict[str, bytes]:
    """Raw bytes of every tensor of a checkpoint: numpy knows no bfloat16."""
    content = (checkpoint / "pretrained_model" / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    data = content[8 + size :]
    return {name: data[slice(*entry["data_offsets"])] for name, entry in header.items()}


def trained_names(before: Path, after: Path) -> set[str]:
    """Weights that differ between two checkpoints."""
    old, new = read_weights(before), read_weights(after)
    assert old.keys() == new.keys()
    return {name for name, value in new.items() if value != old[name]}
