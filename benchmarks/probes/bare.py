"""The bare loop that both sides run around their own network."""

from collections.abc import Callable

import torch


def tiny_batch() -> dict[str, torch.Tensor]:
    """A preprocessed batch of 8 for the tiny ACT; on both sides the processors make contiguous float32 tensors."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"observation.state": (8, 3), "observation.environment_state": (8, 2), "action": (8, 8, 3)}
    batch = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return batch | {"action_is_pad": torch.zeros(8, 8, dtype=torch.bool)}


def tiny_epoch() -> list[dict[str, torch.Tensor]]:
    """The batches of an epoch of 45 frames: five of 8 samples and one of 5, as the training commands have them."""
    whole = tiny_batch()
    return [whole] * 5 + [{name: value[:5] for name, value in whole.items()}]


def run_steps(
    steps: int,
    loss: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    clip: Callable[[], object],
    optimizer: torch.optim.Optimizer,
) -> None:
    """Forward, backward, clip, update, clear; `steps` should be whole epochs of 6."""
    epoch = tiny_epoch()
    for number in range(steps):
        loss(epoch[number % len(epoch)]).backward()
        clip()
        optimizer.step()
        optimizer.zero_grad()
