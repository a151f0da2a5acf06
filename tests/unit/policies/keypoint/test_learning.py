"""The keypoint policy learns where a square is, also at places that it has never seen; without keypoints it cannot."""

from __future__ import annotations

import torch

from mimetic.features import FeatureType, PolicyFeature
from mimetic.optim.build import make_optimizer
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.keypoint import network
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.keypoint.policy import KeypointPolicy

SIZE, SQUARE, STEPS = 32, 5, 150
CAMERA = "observation.images.front"
MOST = SIZE - SQUARE


def batch_of(places):
    """Pictures with a square whose corner is at `places` (B, 2); the action is its place, from -1 to 1."""
    n = len(places)
    row, column = torch.arange(SIZE)[None, :, None], torch.arange(SIZE)[None, None, :]
    y, x = places[:, 0, None, None], places[:, 1, None, None]
    inside = (row >= y) & (row < y + SQUARE) & (column >= x) & (column < x + SQUARE)
    picture = 0.2 * torch.randn(n, 3, SIZE, SIZE) + 2.0 * inside[:, None]
    action = (2.0 * places / MOST - 1)[:, None]
    return {CAMERA: picture, "action": action, "action_is_pad": torch.zeros(n, 1, dtype=torch.bool)}


def learned_error():
    """Mean absolute error at held-out places after a short training; 0.5 is what knowing nothing gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = KeypointConfig(
            input_features={CAMERA: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))},
            output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
            chunk_size=1,
            n_action_steps=1,
            n_keypoints=8,
            n_channels=16,
            dim_hidden=64,
            image_shift=1,
        )
        policy = KeypointPolicy(config).train()
        places = torch.cartesian_prod(torch.arange(MOST + 1), torch.arange(MOST + 1))
        is_held_out = (places[:, 0] + 2 * places[:, 1]) % 5 == 0
        seen, unseen = places[~is_held_out], places[is_held_out]
        optimizer = make_optimizer(config.optimizer_preset(), policy.optim_groups())
        scheduler = make_scheduler(config.scheduler_preset(), optimizer, STEPS)
        for _ in range(STEPS):
            loss, _ = policy.loss(batch_of(seen[torch.randint(len(seen), (32,))]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        batch = batch_of(unseen)
        return (policy.predict_chunk(batch) - batch["action"]).abs().mean().item()


def test_where_a_square_is_is_learned_to_less_than_a_pixel():
    """From -1 to 1 are 27 pixels, so 0.06 are 0.8 of one."""
    assert learned_error() < 0.06


def test_keypoints_are_what_it_learns_it_from(monkeypatch):
    """Without their places strengths remain, which say little: convolutions notice a border that is near."""
    monkeypatch.setattr(network, "_evenly", lambda n, like: torch.zeros(n, dtype=like.dtype))
    assert learned_error() > 0.15
