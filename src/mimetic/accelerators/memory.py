"""What to do when a device's memory is full: know it, and give back what is not needed."""

from __future__ import annotations

import gc

import torch

_TEXTS = ("out of memory", "can't allocate memory", "not enough memory", "defaultcpuallocator")


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


def describe_memory(device: torch.device) -> str:
    """How full the device is, such as `21.3 of 24.0 GiB of NVIDIA ... in use`; empty where it is not known."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f"{(total - free) / 2**30:.1f} of {total / 2**30:.1f} GiB of {torch.cuda.get_device_name(device)} in use"
