"""Cutting a collated batch into parts along its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor

from mimetic.names import ACTION, INDEX, PAD_SUFFIX, VALID_PER_SAMPLE


def batch_length(batch: Mapping[str, Any]) -> int:
    """Samples in a batch.

    Raises:
        ValueError: it holds no tensor.
    """
    for key in (ACTION, INDEX):
        if isinstance(batch.get(key), Tensor):
            return len(batch[key])
    for value in batch.values():
        if isinstance(value, Tensor) and value.ndim:
            return len(value)
    raise ValueError("the batch holds no tensor, so its length is not known")


def split_batch(batch: Mapping[str, Any], pieces: int) -> Iterator[dict[str, Any]]:
    """Cut a batch into at most `pieces` parts of nearly equal size, in order; tensors are views.

    Args:
        batch: tensors (B, ...) and lists of B entries are cut; everything else goes into every part.
        pieces: parts wanted; a batch of fewer samples gives one part a sample.

    Yields:
        Parts; each says how many valid actions the whole has a sample (`policies.base.valid_divisor`).
    """
    length = batch_length(batch)
    count = min(pieces, length)
    shared = _valid_per_sample(batch, length) if count > 1 else {}
    edges = [round(length * i / count) for i in range(count + 1)]
    for start, stop in pairwise(edges):
        yield {key: value[start:stop] if _is_cut(value, length) else value for key, value in batch.items()} | shared


def _valid_per_sample(batch: Mapping[str, Any], length: int) -> dict[str, Tensor]:
    padding = batch.get(ACTION + PAD_SUFFIX)
    if not isinstance(padding, Tensor):
        return {}
    return {VALID_PER_SAMPLE: (~padding.bool()).sum().clamp(min=1).float() / length}


def _is_cut(value: Any, length: int) -> bool:
    if isinstance(value, Tensor):
        return value.ndim > 0 and len(value) == length
    return isinstance(value, list) and len(value) == length
