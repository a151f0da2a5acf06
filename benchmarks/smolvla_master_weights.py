"""Claim: training float32 master weights ends at a lower loss than updating bfloat16 weights in place.

LeRobot trains SmolVLA's expert in the dtype of the published file: AdamW adds steps of 1e-4 and less to bfloat16
weights, whose neighbours are 0.4 % to 0.8 % apart, and most of what it adds is rounded away (spec/smolvla.md 10.3).
Measured here on a small SmolVLA that has been pretrained as a whole on one family of motions and is then fine-tuned as
published (only the expert; the preset's rates; its schedule shortened) on another one, three times from the same
weights, on the same batches, noise and times:

    released  bfloat16 weights updated in place, as LeRobot does (bit for bit its dtypes)
    mixed     float32 weights, multiplied in bfloat16 (mimetic's default)
    float32   float32 throughout

Given are the training loss over the last 10 % of the steps, the held-out loss of the final weights (all three computed
in float32, so that only the weights differ), and how much of each update survives in `released` at three learning
rates. Both sides are mimetic; LeRobot's arithmetic in these dtypes is what tests/golden holds `released` against.

    python -m benchmarks.smolvla_master_weights [--seeds 4] [--steps 1500]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import WORK
from benchmarks.smolvla_setup import TEXT, VISION
from mimetic.features import FeatureType, PolicyFeature
from mimetic.optim.build import make_optimizer
from mimetic.optim.clip import clip_gradients
from mimetic.optim.schedules import make_scheduler
from mimetic.policies.base import FrameEncoder
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.policy import SmolVLAPolicy

HOME = WORK / "smolvla_small"
CAMERA = "observation.images.front"
FEATURES = "observation.features.images.front"
CHUNK, BATCH, EXAMPLES, HELD_OUT = 12, 32, 4096, 512
PRETRAINING_STEPS = 2500
MODES = ("released", "mixed", "float32")
RATES = (1e-4, 2.5e-5, 2.5e-6)
"""Peak, quarter and floor of the preset's learning rate."""
Batch = dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One fine-tuning run: loss over the last tenth of the steps, and held-out loss computed in float32."""

    last_tenth: float
    held_out: float


def measure(seeds: int, steps: int) -> tuple[list[str], dict[str, Any]]:
    """Lines of a Markdown report and the figures behind it."""
    base = pretrained()
    before = held_out_loss(base)
    runs = {mode: [fine_tune(mode, base, seed, steps) for seed in range(seeds)] for mode in MODES}
    surviving = {rate: survival(base, rate) for rate in RATES}
    lines = [
        f"held-out loss before fine-tuning {before:.4f}; {steps} steps of {BATCH}, {seeds} seeds, mean ± deviation",
        "",
        "| weights | loss, last 10 % of the steps | against mixed, paired | held-out loss of the final weights | "
        "against mixed, paired |",
        "|---|---:|---:|---:|---:|",
    ]
    for mode in MODES:
        last = [run.last_tenth for run in runs[mode]]
        held = [run.held_out for run in runs[mode]]
        ratios = [
            [getattr(run, field) / getattr(other, field) for run, other in zip(runs[mode], runs["mixed"], strict=True)]
            for field in ("last_tenth", "held_out")
        ]
        lines.append(f"| {mode} | {_spread(last)} | {_spread(ratios[0])} | {_spread(held)} | {_spread(ratios[1])} |")
    lines += [
        "",
        "| learning rate | elements that change in a step (bfloat16 in place) | movement kept |",
        "|---|---:|---:|",
    ]
    for rate, (changed, kept) in surviving.items():
        lines.append(f"| {rate:g} | {changed:.1%} | {kept:.0%} |")
    raw = {
        "before": before,
        "runs": {mode: [vars(run) for run in each] for mode, each in runs.items()},
        "survival": {str(rate): value for rate, value in surviving.items()},
    }
    return lines, raw


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


def pretrained() -> SmolVLAPolicy:
    """The base model: the whole network trained in float32 on the first family of motions; made once."""
    weights = HOME / f"base_{PRETRAINING_STEPS}.pt"
    torch.manual_seed(0)
    policy = _policy("float32", trains_all=True)
    if weights.exists():
        policy.load_state_dict(torch.load(weights, weights_only=True))
        return policy
    data = examples(EXAMPLES, family=0, seed=1)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, PRETRAINING_STEPS, eta_min=1e-5)
    parameters = list(policy.parameters())
    for number, batch in enumerate(_batches(data, PRETRAINING_STEPS, seed=2)):
        loss, _ = policy.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_gradients(parameters, 10.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if number % 500 == 0:
            print(f"pretraining, step {number}: loss {float(loss.detach()):.4f}", flush=True)
    torch.save(policy.state_dict(), weights)
    return policy


def fine_tune(mode: str, base: SmolVLAPolicy, seed: int, steps: int) -> Result:
    """Train the expert on the second family of motions with the preset."""
    policy = _from_base(mode, base)
    optimizer = make_optimizer(policy.config.optimizer_preset(), policy.optim_groups())
    scheduler = make_scheduler(policy.config.scheduler_preset(), optimizer, steps)
    assert scheduler is not None
    data = _with_features(policy, examples(EXAMPLES, family=1, seed=100 + seed))
    losses = []
    for batch in _batches(data, steps, seed=200 + seed):
        losses.append(_step(policy, batch, optimizer))
        scheduler.step()
    last = losses[-max(1, steps // 10) :]
    print(f"{mode}, seed {seed}: {statistics.mean(last):.4f}", flush=True)
    return Result(statistics.mean(last), held_out_loss(policy))


def held_out_loss(policy: SmolVLAPolicy) -> float:
    """Loss of a policy's weights on examples that it has not seen, computed in float32, with fixed noise and times."""
    plain = _policy("float32")
    plain.load_state_dict(policy.state_dict())
    data = examples(HELD_OUT, family=1, seed=7)
    torch.manual_seed(8)
    with torch.no_grad():
        losses = [float(plain.loss(batch)[0]) for _ in range(4) for batch in _split(data, 128)]
    return statistics.mean(losses)


def survival(base: SmolVLAPolicy, rate: float, warm: int = 50, steps: int = 100) -> tuple[float, float]:
    """What bfloat16 weights keep of the updates at one learning rate.

    Returns:
        Mean share of elements that a step changes, and the part of the movement of float32 weights over `steps` steps
        that bfloat16 weights make (the projection on it), both over the weights that are bfloat16 in the published
        file. `warm` steps before fill AdamW's running means.
    """
    moved: dict[str, dict[str, Tensor]] = {}
    changed: list[float] = []
    for mode in ("mixed", "released"):
        policy = _from_base(mode, base)
        optimizer = make_optimizer(replace(policy.config.optimizer_preset(), lr=rate), policy.optim_groups())
        data = _with_features(policy, examples(EXAMPLES, family=1, seed=300))
        start: dict[str, Tensor] = {}
        for number, batch in enumerate(_batches(data, warm + steps, seed=301)):
            if number == warm:
                start = _expert(policy)
            before = _expert(policy) if mode == "released" and number >= warm else {}
            _step(policy, batch, optimizer)
            if before:
                after = _expert(policy)
                differing = sum(int((after[name] != value).sum()) for name, value in before.items())
                changed.append(differing / sum(value.numel() for value in before.values()))
        end = _expert(policy)
        moved[mode] = {name: end[name].double() - value.double() for name, value in start.items()}
    names = moved["released"]
    projected = sum(float((moved["released"][name] * moved["mixed"][name]).sum()) for name in names)
    whole = sum(float(moved["mixed"][name].square().sum()) for name in names)
    return statistics.mean(changed), projected / whole


def examples(count: int, *, family: int, seed: int) -> Batch:
    """Scenes with a red and a blue spot; the words say to which one the hand moves.

    Family 0 goes there along a curve; family 1 mirrors the goal, and the curve bends to the other side.

    Args:
        count: of examples.
        family: 0 or 1.
        seed: of the scenes.
    """
    random = torch.Generator().manual_seed(seed)
    spots = torch.rand(count, 2, 2, generator=random) * 1.6 - 0.8
    hand = torch.rand(count, 2, generator=random) * 2 - 1
    wanted = torch.randint(0, 2, (count,), generator=random)
    axis = torch.linspace(-1, 1, 64)
    frames = torch.full((count, 3, 64, 64), 0.2)
    for number, channel in ((0, 0), (1, 2)):
        squared = (axis[None, :, None] - spots[:, number, 1, None, None]).square()
        squared = squared + (axis[None, None, :] - spots[:, number, 0, None, None]).square()
        frames[:, channel] += 0.8 * torch.exp(-squared / 0.03)
    goal = spots[torch.arange(count), wanted] * (1.0 if family == 0 else torch.tensor([-1.0, 0.7]))
    share = torch.linspace(1 / CHUNK, 1, CHUNK)[None, :, None]
    smooth = 10 * share**3 - 15 * share**4 + 6 * share**5
    way = (goal - hand)[:, None]
    side = torch.stack([-way[..., 1], way[..., 0]], dim=-1)
    bend = 0.3 if family == 0 else -0.2
    path = hand[:, None] + smooth * way + bend * torch.sin(math.pi * share) * side
    grip = torch.tanh(6 * (share - 0.7)).expand(count, -1, -1) * (1.0 if family == 0 else -1.0)
    tokens = torch.tensor([[20, 30, 40, 50], [20, 30, 41, 50]])[wanted]
    return {
        CAMERA: frames.clamp(0, 1),
        "observation.state": torch.cat([hand, goal.new_zeros(count, 1)], dim=1),
        "observation.language.tokens": tokens,
        "observation.language.attention_mask": torch.ones_like(tokens, dtype=torch.bool),
        "action": torch.cat([path, grip], dim=2),
        "action_is_pad": torch.zeros(count, CHUNK, dtype=torch.bool),
    }


def _step(policy: SmolVLAPolicy, batch: Batch, optimizer: torch.optim.Optimizer) -> float:
    loss, _ = policy.loss(batch)
    loss.backward()  # type: ignore[no-untyped-call]
    clip_gradients([one for one in policy.parameters() if one.requires_grad], 10.0)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())


def _batches(data: Batch, steps: int, seed: int) -> Iterator[Batch]:
    """Random batches; noise and times of the steps are seeded as well, so that every mode sees the same ones."""
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    count = len(data["action"])
    for _ in range(steps):
        rows = torch.randint(0, count, (BATCH,), generator=random)
        yield {name: value[rows] for name, value in data.items()}


def _split(data: Batch, size: int) -> Iterator[Batch]:
    for first in range(0, len(data["action"]), size):
        yield {name: value[first : first + size] for name, value in data.items()}


def _with_features(policy: SmolVLAPolicy, data: Batch) -> Batch:
    """The examples with vision features in place of frames, as the feature cache delivers them."""
    encoder = policy.frame_encoder()
    assert isinstance(encoder, FrameEncoder), encoder
    features = torch.cat([encoder.encode(part[CAMERA]) for part in _split(data, 256)])
    return {name: value for name, value in data.items() if name != CAMERA} | {FEATURES: features}


def _expert(policy: SmolVLAPolicy) -> dict[str, Tensor]:
    """Copies of the weights that are trained and that the published file holds in bfloat16."""
    kept = {}
    for name, value in policy.named_parameters():
        in_cross = any(f"lm_expert.layers.{i}.self_attn.{p}" in name for i in (1, 3) for p in ("k_proj", "v_proj"))
        if "lm_expert" in name and not in_cross:
            kept[name] = value.detach().clone()
    return kept


def _from_base(mode: str, base: SmolVLAPolicy) -> SmolVLAPolicy:
    policy = _policy(mode)
    policy.load_state_dict(base.state_dict())
    # Every mode starts from the weights that the published file can hold.
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    return policy.train()


def _policy(mode: str, *, trains_all: bool = False) -> SmolVLAPolicy:
    config = SmolVLAConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
            CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 64, 64)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (3,))},
        device="cpu",
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        max_state_dim=8,
        max_action_dim=8,
        resize_imgs_with_padding=(64, 64),
        num_vlm_layers=4,
        vlm_model_name=str(_small_vlm()),
        load_vlm_weights=not trains_all,
        train_expert_only=not trains_all,
        freeze_vision_encoder=not trains_all,
        precision=mode,  # type: ignore[arg-type]
    )
    return SmolVLAPolicy(config, init_backbone=trains_all)


def _small_vlm() -> Path:
    """A small backbone's config; the dtypes are declared as in the published one."""
    folder = HOME / "vlm"
    text = TEXT | {
        "head_dim": 16,
        "hidden_size": 128,
        "intermediate_size": 320,
        "num_attention_heads": 6,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    }
    vision = VISION | {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "image_size": 64,
        "num_attention_heads": 4,
        "patch_size": 8,
    }
    config = {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": 63,
        "model_type": "smolvlm",
        "pad_token_id": 2,
        "scale_factor": 2,
        "text_config": text,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": vision,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines, raw = measure(options.seeds, options.steps)
    print("\n".join(lines))
    (WORK / "smolvla_master_weights.json").write_text(json.dumps(raw, indent=2))


if __name__ == "__main__":
    main()
