"""Switches of torch that tests of this room touch are put back as they were."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def tf32_switches() -> Iterator[None]:
    """Put the TF32 switches back, the old ones and those of single operators."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    old = matmul.allow_tf32, cudnn.allow_tf32
    new = getattr(matmul, "fp32_precision", None)
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = old
    if new is not None:
        matmul.fp32_precision = new
    assert (matmul.allow_tf32, cudnn.allow_tf32) == old
