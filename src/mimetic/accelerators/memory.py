"""What to do when a device's memory is full: know it, give back what is not needed, and draw the same numbers again."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "defaultcpuallocator",
    # A library of the device that had no room for itself, and Intel's drivers.
    "status_alloc_failed",
    "out_of_device_memory",
    "out_of_host_memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory did not suffice; CUDA and XPU have a class for it, others only a text."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _TEXTS)


def release_memory(device: torch.device) -> None:
    """Give memory that nobody refers to any more back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()


def generator_state(device: torch.device) -> Tensor:
    """State of an accelerator's random generator, which the host keeps: nothing is waited for."""
    if device.type == "mps":  # there is one only
        return torch.mps.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)  # type: ignore[no-any-return]


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Put an accelerator's random generator into a state of `generator_state`."""
    if device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def describe_memory(device: torch.device) -> str:
    """How full the device is, such as `21.3 of 24.0 GiB of NVIDIA ... in use`; empty where it is not known."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f"{(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB of {torch.cuda.get_device_name(device)} in use"
