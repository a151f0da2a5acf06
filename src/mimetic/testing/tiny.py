"""The smallest useful policies as flags; the ACT is that of the golden training runs (8,523 parameters on theirs)."""

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

TINY_KEYPOINT = (
    "--policy.type=keypoint",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.n_keypoints=4",
    "--policy.n_channels=8",
    "--policy.dim_hidden=16",
    "--policy.chunk_size=8",
    "--policy.n_action_steps=8",
)
