"""The tiny ACT and the tiny dataset on which everything but the loop itself costs next to nothing."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.measure import ROOT, ours_command, peer_command

DATASET = Path(os.environ.get("MIMETIC_BENCH_TINY", ROOT / "tests" / "fixtures" / "training" / "dataset_tiny_vec"))
"""45 frames in 4 episodes, 10 fps, no video: state (3), environment state (2), action (3)."""
POLICY = {
    "type": "act",
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 32,
    "n_encoder_layers": 1,
    "n_decoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
    "chunk_size": 8,
    "n_action_steps": 8,
    "device": "cpu",
    "push_to_hub": "false",
}


def command(side: str) -> list[str]:
    """The training command of a side, without arguments."""
    return [peer_command("lerobot-train")] if side == "peer" else [*ours_command(), "train"]


def flags(**more: object) -> list[str]:
    """Flags of a run of the tiny policy on the tiny dataset; `more` adds top-level flags, `__` stands for a dot."""
    settings = {f"policy.{name}": value for name, value in POLICY.items()}
    settings |= {"dataset.repo_id": "local/tiny_vec", "dataset.root": str(DATASET), "batch_size": 8, "num_workers": 0}
    settings |= {name.replace("__", "."): value for name, value in more.items()}
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]
