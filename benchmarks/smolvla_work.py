"""What a step or a chunk of the full-size SmolVLA must cost: operations and bytes of each part, from the sizes alone.

A multiplication with an addition counts as two operations; only matrix products are counted. Work of LeRobot and of
mimetic differ (spec/smolvla.md 16, 17): mimetic's prefix has no backward pass, its last layer stops after keys and
values, and cross layers project the prefix once a chunk. The floor of a machine follows from its measured matrix rate
and memory rate.

    python -m benchmarks.smolvla_work        # the table, the floors here, and the estimate for a 24 GB card
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.smolvla_setup import TEXT, VISION

LAYERS = 16
CHUNK, WIDTH = 50, 32
EXPERT, EXPERT_MLP = 720, 2048
TRAINED = 99_880_992
"""Parameters that are trained by default."""
TRAINED_SMALL = 96_607_440
"""Those of them that LeRobot keeps in bfloat16 (the expert without the projections of its cross layers)."""


@dataclass(frozen=True)
class Machine:
    """Rates of a machine: operations a second in matrix products, bytes a second from memory."""

    name: str
    bfloat16: float
    float32: float
    memory: float


RTX_4090 = Machine("RTX 4090 (data sheet: dense bfloat16 with float32 sums, TF32, memory)", 165e12, 82.6e12, 1.008e12)
GPU_SHARE = 0.5
"""Part of the data sheet's rate that matrix products of these sizes usually reach (an assumption)."""
KERNELS_A_LAYER, KERNEL_S = 14, 5e-6
"""Kernels of an expert layer and the time that starting one costs without a CUDA graph (an assumption)."""


def vision(cameras: int = 2) -> float:
    """Vision tower and connector, one sample."""
    patch: int = VISION["patch_size"]
    tokens, width, mlp = (VISION["image_size"] // patch) ** 2, VISION["hidden_size"], VISION["intermediate_size"]
    layer = 2 * tokens * (4 * width * width + 2 * width * mlp) + 4 * tokens * tokens * width
    patches = 2 * tokens * 3 * patch**2 * width
    connector = 2 * tokens * width * _text("hidden_size")
    return cameras * float(VISION["num_hidden_layers"] * layer + patches + connector)


def text_layer(tokens: int, seen: int) -> float:
    """One layer of the text model for so many tokens, each of which attends to `seen` ones."""
    hidden, mlp, heads = _text("hidden_size"), _text("intermediate_size"), _attention()
    return 2.0 * tokens * (2 * hidden * heads + 2 * hidden * _keys() + 3 * hidden * mlp) + 4 * tokens * seen * heads


def prefix(words: int, *, ours: bool) -> float:
    """Text model over pictures, words and the state, forward, one sample."""
    tokens = 128 + words
    if not ours:
        return LAYERS * text_layer(tokens + 1, tokens + 1)
    last = 2.0 * tokens * 2 * _text("hidden_size") * _keys()
    return (LAYERS - 1) * text_layer(tokens, tokens) + last


def state(words: int) -> float:
    """The state token's own path through the text model, forward, one sample."""
    return LAYERS * text_layer(1, 129 + words)


def projection(words: int) -> float:
    """Keys and values of the expert's cross layers."""
    return LAYERS / 2 * 2.0 * (129 + words) * 2 * _keys() ** 2


def expert(words: int, *, with_projection: bool) -> float:
    """One pass of the expert over a chunk, forward, one sample."""
    seen, both = 129 + words, 2.0 * CHUNK * (2 * EXPERT * _attention() + 3 * EXPERT * EXPERT_MLP)
    joint = both + 2.0 * CHUNK * 2 * EXPERT * _keys() + 4.0 * CHUNK * (seen + CHUNK) * _attention()
    cross = both + 4.0 * CHUNK * seen * _attention()
    suffix = 2.0 * CHUNK * (2 * EXPERT * EXPERT + EXPERT * EXPERT + 2 * WIDTH * EXPERT)
    return LAYERS / 2 * (joint + cross) + suffix + (projection(words) if with_projection else 0.0)


def step(words: int, *, ours: bool, cached: bool = False, draws: int = 1) -> dict[str, float]:
    """Operations of a training step by part, one sample.

    Args:
        words: language tokens (12 of the task, or 48 slots).
        ours: mimetic's algorithm, or LeRobot's.
        cached: the vision features are there already.
        draws: pairs of noise and time a sample.
    """
    forward = draws * expert(words, with_projection=False) + projection(words)
    parts = {
        "vision": 0.0 if cached else vision(),
        "prefix": prefix(words, ours=ours),
        "prefix backward": 0.0 if ours else prefix(words, ours=False),
        "state": 2 * state(words) if ours else 0.0,  # forward, and backward to the inputs only: the weights are frozen
        "expert": forward,
        "expert backward": 2 * forward,
    }
    return parts


def chunk(words: int, *, ours: bool, steps: int = 10) -> dict[str, float]:
    """Operations of one action chunk by part."""
    return {
        "vision": vision(),
        "prefix": prefix(words, ours=ours) + (state(words) if ours else 0.0),
        "projection": projection(words) * (1 if ours else steps),
        "expert": steps * expert(words, with_projection=False),
    }


def optimizer_bytes(*, ours: bool) -> float:
    """Bytes that an update moves: gradient read for its norm, weight, gradient and two moments read, three written."""
    values = 1 + 4 + 3
    small = 0 if ours else TRAINED_SMALL
    return float(values * (4 * (TRAINED - small) + 2 * small))


def weight_bytes(*, cached: bool) -> float:
    """Bytes of the weights that a pass reads once, in bfloat16: text layers and expert, and the vision part."""
    text = LAYERS * text_layer(1, 0) / 2
    return 2.0 * (text + TRAINED + (0 if cached else 86_433_024 + 11_796_480))


def _text(name: str) -> int:
    value: int = TEXT[name]
    return value


def _attention() -> int:
    return _text("num_attention_heads") * _text("head_dim")


def _keys() -> int:
    return _text("num_key_value_heads") * _text("head_dim")


def measure_machine(threads: int) -> Machine:
    """Best of several matrix products of the model's own shapes, and of copies of 256 MB."""
    import torch

    torch.set_num_threads(threads)

    def best(act: Callable[[], object]) -> float:
        act()
        times = []
        for _ in range(8):
            start = time.perf_counter()
            act()
            times.append(time.perf_counter() - start)
        return min(times)

    def rate(dtype: torch.dtype) -> float:
        rates = []
        for rows, width, out in ((1024, 768, 3072), (1128, 960, 2560), (400, 720, 2048)):
            x, weight = torch.randn(rows, width).to(dtype), torch.randn(out, width).to(dtype)
            rates.append(2 * rows * width * out / best(partial(torch.nn.functional.linear, x, weight)))
        return max(rates)

    source = torch.ones(64 * 2**20)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes / best(lambda: target.copy_(source))
    return Machine(f"this machine, {threads} threads", rate(torch.bfloat16), rate(torch.float32), moved)


def step_floor(machine: Machine, batch: int, words: int, *, cached: bool, share: float = 1.0) -> float:
    """Least seconds of mimetic's training step: matrix products in bfloat16, weights and optimiser state moved once."""
    operations = batch * sum(step(words, ours=True, cached=cached).values())
    return operations / (share * machine.bfloat16) + optimizer_bytes(ours=True) / machine.memory


def chunk_floor(machine: Machine, words: int, *, share: float = 1.0) -> float:
    """Least seconds of mimetic's chunk: products in bfloat16, or reading the weights where that takes longer."""
    parts = chunk(words, ours=True)
    once = parts["vision"] + parts["prefix"] + parts["projection"]
    reading = 10 * 2.0 * TRAINED / machine.memory
    first = max(once / (share * machine.bfloat16), weight_bytes(cached=False) / machine.memory)
    return first + max(parts["expert"] / (share * machine.bfloat16), reading)


def table(words: int) -> str:
    """Operations of each part as Markdown."""
    lines = [f"Operations a sample [GFLOP], two cameras, {words} language tokens", "", "| part | LeRobot | mimetic |"]
    lines.append("|---|---:|---:|")
    for title, theirs, own in (
        ("training step", step(words, ours=False), step(words, ours=True)),
        ("chunk", chunk(words, ours=False), chunk(words, ours=True)),
    ):
        for part in theirs:
            lines.append(f"| {title}: {part} | {theirs[part] / 1e9:.1f} | {own[part] / 1e9:.1f} |")
        lines.append(f"| **{title}** | {sum(theirs.values()) / 1e9:.1f} | {sum(own.values()) / 1e9:.1f} |")
    moved = [f"{optimizer_bytes(ours=ours) / 1e9:.2f} GB" for ours in (False, True)]
    lines.append(f"| update: bytes moved | {moved[0]} | {moved[1]} |")
    return "\n".join(lines)


def floors(machine: Machine, words: int, share: float = 1.0) -> str:
    """The least that mimetic's step and chunk can take on a machine, as Markdown."""
    lines = [
        f"{machine.name}: bfloat16 {machine.bfloat16 / 1e12:.3g} TFLOP/s, "
        f"float32 {machine.float32 / 1e12:.3g} TFLOP/s, memory {machine.memory / 1e9:.3g} GB/s; "
        f"{share:.0%} of the matrix rate assumed",
        "",
        "| | seconds at least |",
        "|---|---:|",
    ]
    for batch in (1, 8, 64):
        for cached in (True, False):
            seconds = step_floor(machine, batch, words, cached=cached, share=share)
            lines.append(f"| step, batch {batch}, features {'cached' if cached else 'computed'} | {seconds:.3g} |")
    lines.append(f"| chunk | {chunk_floor(machine, words, share=share):.3g} |")
    return "\n".join(lines)


def gpu_memory(batch: int, kept_mb: float) -> float:
    """Estimated bytes on a card: weights, gradients, moments, and what is kept for backward (a measured figure)."""
    frozen = 2.0 * (450_046_176 - TRAINED)
    return frozen + 16.0 * TRAINED + batch * kept_mb * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kept-mb", type=float, default=60.0, help="kept for backward per sample (smolvla_memory)")
    options = parser.parse_args()
    print(table(options.words), "\n")
    print(floors(measure_machine(options.threads), options.words), "\n")
    print("Estimate, not measured:", floors(RTX_4090, options.words, GPU_SHARE))
    starts = 10 * LAYERS * KERNELS_A_LAYER * KERNEL_S
    print(f"| starting the kernels of 10 Euler steps one by one, without a CUDA graph | {starts:.3g} |")
    fits = int((24e9 - 1.5e9 - gpu_memory(0, 0)) / (options.kept_mb * 1e6))
    print(f"| largest batch in 24 GB (1.5 GB left to the driver), {options.kept_mb:g} MB a sample | {fits} samples |")


if __name__ == "__main__":
    main()
