"""Forget what a function computed inside, and compute it again in the backward pass.

Two grains: single operations with large results inside (`recomputed`), and whole layers (`recompute_layer`). Within a
recomputed layer the single operations are not recomputed once more.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

_here = threading.local()  # the backward pass of a GPU runs in a thread of its own


def recomputed(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """function(*inputs), of which only the inputs are kept for the backward pass.

    Args:
        function: deterministic, without random numbers.
        inputs: tensors and other values.
    """
    if not torch.is_grad_enabled() or not any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
        return function(*inputs)
    # A compiler decides by itself what to keep; and inside a recomputed layer a third pass would save nothing.
    if torch.compiler.is_compiling() or getattr(_here, "is_in_layer", False):
        return function(*inputs)
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def recompute_layer(forward: Callable[..., Any], layer: nn.Module, *inputs: Any, **options: Any) -> Any:
    """forward(layer, *inputs, **options), of which only the inputs are kept for the backward pass.

    The second run sees the autocast and the random numbers of the first, leaves the generators as it found them, and
    its results go nowhere but into the gradients: running statistics of batch norms are not updated again.

    Args:
        forward: the unbound `forward` of the layer's class, or what runs in its place.
        layer: the layer.
        inputs: tensors and other values; not changed in place.
        options: likewise, by name.
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return _in_layer(), _again(layer)

    return checkpoint(
        forward, layer, *inputs, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **options
    )


@contextlib.contextmanager
def _in_layer() -> Iterator[None]:
    before = getattr(_here, "is_in_layer", False)
    _here.is_in_layer = True
    try:
        yield
    finally:
        _here.is_in_layer = before


@contextlib.contextmanager
def _again(layer: nn.Module) -> Iterator[None]:
    """For the second run: norms update copies of their running statistics."""
    norms = [module for module in layer.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    kept = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, kept, strict=True):
        norm._buffers.update({name: None if x is None else x.clone() for name, x in buffers.items()})
    try:
        with _in_layer():
            yield
    finally:
        for norm, buffers in zip(norms, kept, strict=True):
            norm._buffers.update(buffers)
