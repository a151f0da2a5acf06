"""What a device can do, and why not: one function a kind of device, the columns of the table in `devices.py`.

Sources: spec/training.md 17.2 and 17.6; for Apple GPUs torch's issues 99272 and 139386 (autocast) and the merged
request 3373 of accelerate (scaler); for Intel GPUs torch's issue 147731 (scaler without double precision).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from mimetic.accelerators.probe import DeviceFacts, TorchProbe, version_pair

FIRST_WITH_BF16 = (8, 0)
"""NVIDIA's compute capability with bfloat16 and TF32 units (Ampere); torch emulates bfloat16 before it."""
_FIRST_WITH_TRITON = (7, 0)
_ROCM_WITH_TF32 = ("gfx94", "gfx95")
_MPS_FP16, _MPS_BF16, _MPS_SCALER = (2, 5), (2, 6), (2, 8)
_MPS_BF16_MACOS = (14, 0)


@dataclass(frozen=True)
class Support:
    """Whether a device can do something; true when there is no reason against it.

    Args:
        reason: why not, a clause that goes on from "..., and" or "...:"; empty: it can.
        hint: what to do instead; empty when there is nothing to do.
        note: what to know although it can.
    """

    reason: str = ""
    hint: str = ""
    note: str = ""

    def __bool__(self) -> bool:
        return not self.reason


YES = Support()


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """One row of the table.

    Args:
        bf16: autocast in bfloat16, computed and not emulated.
        fp16: autocast in float16.
        scaler: torch's loss scaler.
        tf32: TensorFloat-32, which `--tf32` switches.
        pinned_memory: faster copies from page-locked memory.
        fused_optimizer: updates in one pass.
        compile: `torch.compile`.
        float64: double precision.
    """

    bf16: Support = YES
    fp16: Support = YES
    scaler: Support = YES
    tf32: Support = YES
    pinned_memory: Support = YES
    fused_optimizer: Support = YES
    compile: Support = YES
    float64: Support = YES

    def items(self) -> Iterator[tuple[str, Support]]:
        """Names and answers in the order of the fields."""
        for item in fields(self):
            yield item.name, getattr(self, item.name)


def of_cpu(probe: TorchProbe, facts: DeviceFacts) -> Capabilities:
    """Row of the CPU."""
    no_scaler = Support(
        "no loss scaler exists there and the run would silently be float32",
        "use `bf16` or `no`, or choose a device with `--policy.device`",
    )
    slow = "" if probe.cpu_has_bfloat16 else "this processor emulates bfloat16, which is slower than float32"
    return Capabilities(
        bf16=Support(note=slow),
        fp16=no_scaler,
        scaler=no_scaler,
        tf32=Support("TF32 is a format of GPUs"),
        pinned_memory=Support("nothing is copied to another memory"),
    )


def of_cuda(probe: TorchProbe, facts: DeviceFacts) -> Capabilities:
    """Row of an NVIDIA or AMD GPU."""
    if probe.hip_version is not None:
        has_tf32 = facts.gcn_arch.startswith(_ROCM_WITH_TF32)
        return Capabilities(
            tf32=YES
            if has_tf32
            else Support(f"{facts.gcn_arch or 'this architecture'} has none (gfx94x and gfx95x do)")
        )
    capability = facts.capability or (0, 0)
    number = f"{capability[0]}.{capability[1]}"
    return Capabilities(
        bf16=YES
        if capability >= FIRST_WITH_BF16
        else Support(
            f"{facts.name} has compute capability {number} and no bfloat16 units (8.0 and newer have them); torch "
            "would emulate it, slower than float32",
            "use `--accelerator.mixed_precision=fp16`, which this card has, or `no`",
        ),
        tf32=YES if capability >= FIRST_WITH_BF16 else Support(f"compute capability {number} has none (8.0 does)"),
        compile=YES
        if capability >= _FIRST_WITH_TRITON
        else Support(f"compute capability {number} is too old for torch's compiler (7.0 is not)"),
    )


def of_mps(probe: TorchProbe, facts: DeviceFacts) -> Capabilities:
    """Row of an Apple GPU."""
    torch_version, macos = version_pair(probe.torch_version), version_pair(probe.macos_version)
    here = f"this is torch {probe.torch_version} on macOS {probe.macos_version}"
    has_bf16 = torch_version >= _MPS_BF16 and macos >= _MPS_BF16_MACOS
    has_fp16 = torch_version >= _MPS_FP16
    has_scaler = torch_version >= _MPS_SCALER
    instead_of_bf16 = "`fp16` or `no`" if has_scaler else "`no`"
    instead_of_fp16 = "`bf16` or `no`" if has_bf16 else "`no`"
    update = "update macOS, or use" if torch_version >= _MPS_BF16 else "update torch (and macOS before 14), or use"
    return Capabilities(
        bf16=YES
        if has_bf16
        else Support(
            f"bfloat16 on an Apple GPU needs macOS 14 and torch 2.6, and {here}", f"{update} {instead_of_bf16}"
        ),
        fp16=YES
        if has_fp16
        else Support(
            f"float16 autocast on an Apple GPU needs torch 2.5, and {here}", f"update torch, or use {instead_of_fp16}"
        ),
        scaler=YES
        if has_scaler
        else Support(
            f"the loss scaler needs torch 2.8 on an Apple GPU, and {here}", f"update torch, or use {instead_of_fp16}"
        ),
        tf32=Support("Apple GPUs have none"),
        pinned_memory=Support("the GPU shares the memory of the processor"),
        fused_optimizer=YES if torch_version >= _MPS_BF16 else Support(f"it needs torch 2.6, and {here}"),
        compile=Support("torch's compiler for Apple GPUs is a prototype"),
        float64=Support("Apple GPUs have no double precision"),
    )


def of_xpu(probe: TorchProbe, facts: DeviceFacts) -> Capabilities:
    """Row of an Intel GPU."""
    has_float64 = facts.has_float64
    return Capabilities(
        scaler=YES
        if has_float64
        else Support(
            f"torch's loss scaler computes in double precision, which {facts.name} does not have",
            "use `--accelerator.mixed_precision=bf16`, which this card has, or `no`",
        ),
        tf32=Support("`--tf32` does not reach Intel GPUs"),
        float64=YES if has_float64 else Support(f"{facts.name} has no double precision"),
    )
