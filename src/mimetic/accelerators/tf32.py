"""TensorFloat-32: float32 products with 10 bits of mantissa, on GPUs that have it (spec/training.md 17.6).

torch has two sets of switches. Setting only the new ones makes reading the old ones an error, and torch.compile reads
them; setting the old ones keeps both in agreement. So the old ones are used while they exist.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from mimetic.accelerators.devices import capabilities
from mimetic.accelerators.probe import TORCH, TorchProbe

_HIP_SWITCH = "HIPBLASLT_ALLOW_TF32"


def apply_tf32(
    setting: bool | None, device: torch.device, probe: TorchProbe = TORCH, backends: Any = torch.backends
) -> str:
    """Set torch's switches as `--tf32` wants them; on a device without TF32 nothing is touched.

    Args:
        setting: true allows TF32 in products and convolutions, false forbids it, None leaves the switches alone.
        device: where the computation runs.
        probe: whom to ask about the device.
        backends: what holds the switches.

    Returns:
        A phrase for the precision line, such as "TF32 on"; empty where there is no GPU of that kind.
    """
    if device.type != "cuda":
        return ""
    if not capabilities(device, probe).tf32:
        return "no TF32 on this card"
    if setting is not None:
        _switch(backends, setting)
    product, convolution = _is_on(backends.cuda.matmul), _is_on(backends.cudnn)
    if product == convolution:
        state = f"TF32 {_word(product)}"
    else:
        state = f"TF32 {_word(product)} for products, {_word(convolution)} for convolutions"
    if setting is None:
        return f"{state} (torch's setting)"
    if setting and not product and probe.hip_version is not None:
        state += f" (products of this torch need {_HIP_SWITCH}=1 in the environment)"
    return state


def _switch(backends: Any, allowed: bool) -> None:
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    if _has(matmul, "allow_tf32") and _has(cudnn, "allow_tf32"):
        with warnings.catch_warnings():
            # torch 2.9 announces that the old switches will go; what then, is below.
            warnings.filterwarnings("ignore", message=".*control TF32 behavior.*")
            matmul.allow_tf32 = allowed
            cudnn.allow_tf32 = allowed
        return
    value = "tf32" if allowed else "ieee"
    for owner in (matmul, cudnn.conv, cudnn.rnn):
        owner.fp32_precision = value


def _is_on(owner: Any) -> bool:
    if _has(owner, "allow_tf32"):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*control TF32 behavior.*")
                return bool(owner.allow_tf32)
        except RuntimeError:  # somebody has set the new switches only
            pass
    return str(getattr(owner, "conv", owner).fp32_precision) == "tf32"


def _has(owner: Any, name: str) -> bool:
    try:
        getattr(owner, name)
    except AttributeError:
        return False
    except RuntimeError:  # it is there, and disagrees with the new switches
        return True
    return True


def _word(is_on: bool) -> str:
    return "on" if is_on else "off"
