"""Forward, backward, clipping and update of mimetic's tiny ACT, without a training loop. Argument: pretrained_model."""

import sys
from pathlib import Path

import torch
from bare import run_steps
from serve import serve

from mimetic.optim.clip import clip_gradients
from mimetic.policies.checkpoint import load_pretrained

torch.set_num_threads(1)
policy = load_pretrained(Path(sys.argv[1]), device="cpu").policy
policy.train()
parameters = list(policy.parameters())
optimizer = torch.optim.AdamW(policy.optim_groups(), lr=1e-5, weight_decay=1e-4)


def answer(steps: int) -> None:
    """Run so many steps."""
    run_steps(steps, lambda batch: policy.loss(batch)[0], lambda: clip_gradients(parameters, 10.0), optimizer)


serve(answer)
