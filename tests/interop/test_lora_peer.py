"""Adapters go both ways between mimetic and a real LeRobot 0.6.1 with peft (docs/benchmarks.md says how to make it).

Chunks 1e-5 (float32, actions of size 1): another torch, and another order of sums.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from smolvla_cases import SMOLVLA, case

from mimetic.policies.adapter_config import AdapterConfig
from mimetic.policies.adapters import attach
from mimetic.policies.bricks.lora import LoRALinear
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_weights, read_config, save_pretrained
from mimetic.policies.pipelines import load_pipelines

ROOT = Path(__file__).resolve().parents[2]
PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PEER, reason="needs LeRobot 0.6.1 with peft: set MIMETIC_PEER_PYTHON to its interpreter"),
]


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """A folder with the fixtures, for both sides."""
    for path in SMOLVLA.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def peer_chunk(mode, folder):
    probe = ROOT / "benchmarks" / "probes" / "lora_peer.py"
    done = subprocess.run([PEER, probe, mode, folder, "chunk.safetensors"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file("chunk.safetensors")["chunk"]


def our_chunk(folder):
    policy = make_policy(read_config(Path(folder), {"precision": "float32"}), init_backbone=False)
    report = load_weights(policy, Path(folder))
    assert report.is_complete
    return policy.predict_chunk(case("cross_b3").batch(), noise=case("cross_b3").sampling["noise"])


def test_lerobot_runs_our_adapter():
    config = read_config(Path("tiny_cross"), {"precision": "float32"})
    policy = make_policy(config, init_backbone=False)
    load_weights(policy, Path("tiny_cross"))
    targets = policy.config.lora_targets.replace("|action_out_proj", "")
    torch.manual_seed(0)
    attach(
        policy,
        AdapterConfig(
            target_modules=targets,
            r=3,
            lora_alpha=5,
            modules_to_save=("action_out_proj",),
            base_model_name_or_path="tiny_cross",
        ),
    )
    with torch.no_grad():
        policy.get_submodule("model.action_out_proj").weight.mul_(1.5)
        for module in policy.modules():
            if isinstance(module, LoRALinear):
                torch.nn.init.normal_(module.lora_B.weight, std=0.2)
    save_pretrained(policy, Path("ours"), *load_pipelines(Path("tiny_cross"), policy.config))
    theirs = peer_chunk("read", "ours")
    torch.testing.assert_close(our_chunk("ours"), theirs, rtol=0, atol=1e-5)
    assert (theirs - case("cross_b3").sampling["chunk"]).abs().max() > 0.1


def test_we_run_an_adapter_that_lerobot_and_peft_wrote():
    theirs = peer_chunk("write", "theirs")
    torch.testing.assert_close(our_chunk("theirs"), theirs, rtol=0, atol=1e-5)
    assert (theirs - case("cross_b3").sampling["chunk"]).abs().max() > 0.1
    shutil.rmtree("theirs")
