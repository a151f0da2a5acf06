"""Forward, backward, clipping and update of LeRobot's tiny ACT, without a training loop. Argument: pretrained_model."""

import sys

import torch
from bare import run_steps
from lerobot.policies.act.modeling_act import ACTPolicy
from serve import serve

torch.set_num_threads(1)
policy = ACTPolicy.from_pretrained(sys.argv[1])
policy.train()
parameters = list(policy.parameters())
optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-5, weight_decay=1e-4)


def answer(steps: int) -> None:
    """Run so many steps."""
    run_steps(
        steps,
        lambda batch: policy.forward(batch)[0],
        lambda: torch.nn.utils.clip_grad_norm_(parameters, 10.0),
        optimizer,
    )


serve(answer)
