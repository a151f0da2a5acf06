"""Whether a device multiplies bfloat16 in hardware; elsewhere bfloat16 is emulated and slower than float32."""

from __future__ import annotations

import platform

import torch


def has_native_bfloat16(device: torch.device) -> bool:
    """True on GPUs from compute capability 8.0, on ROCm, on Apple and Intel GPUs, and on CPUs with bfloat16 units.

    Args:
        device: where the computation runs.
    """
    if device.type == "cuda":
        return torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] >= 8
    if device.type != "cpu":
        return device.type in ("mps", "xpu")
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    if probe is not None and platform.machine().lower() in ("x86_64", "amd64"):
        return bool(probe())
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
