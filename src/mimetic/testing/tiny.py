"""The smallest useful ACT as flags, the one of the golden training runs (8,523 parameters on their data)."""

from __future__ import annotations

TINY_ACT = (
    "--policy.type=act",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.dim_model=16",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=32",
    "--policy.n_encoder_layers=1",
    "--policy.n_decoder_layers=1",
    "--policy.n_vae_encoder_layers=1",
    "--policy.latent_dim=4",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
)
