"""Attention with grouped heads: every kernel against the definition, head by head."""

from __future__ import annotations

import pytest
import torch

from mimetic.policies.bricks import grouped_attention
from mimetic.policies.bricks.grouped_attention import attend_grouped, choose_kernel

KERNELS = ("reference", "plain", "fused")
# float32: short sums in another order. bfloat16: logits reach 4 and are rounded by up to 2**-7, which is the relative
# error of a weight; values and results reach 3 and are rounded by up to 2**-7 again.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 3 * 2**-7}


def inputs(dtype=torch.float32, n_queries=7, n_keys=9, heads=6, groups=2):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, heads, n_queries, 8), (2, groups, n_keys, 8), (2, groups, n_keys, 8))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def masks():
    generator = torch.Generator().manual_seed(5)
    square = torch.rand(2, 1, 7, 9, generator=generator) > 0.4
    square[..., 0] = True
    return {"none": None, "square": square, "keys only": square[:, :, :1], "two axes": square[0, 0]}


def by_definition(q, k, v, mask):
    """float64, one head at a time."""
    q, k, v = (x.double() for x in (q, k, v))
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    shown = torch.ones(q.shape[0], 1, q.shape[2], k.shape[2], dtype=torch.bool)
    shown = shown if mask is None else shown & mask
    for head in range(q.shape[1]):
        group = head // (q.shape[1] // k.shape[1])
        logits = q[:, head] @ k[:, group].transpose(1, 2) / q.shape[-1] ** 0.5
        out[:, head] = logits.masked_fill(~shown[:, 0], -torch.inf).softmax(-1) @ v[:, group]
    return out


@pytest.mark.parametrize("mask", masks().values(), ids=masks().keys())
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kernel", [*KERNELS, None])
def test_equals_the_definition(kernel, dtype, mask):
    q, k, v = inputs(dtype)
    found = attend_grouped(q, k, v, mask, kernel=kernel)
    assert found.dtype is dtype
    torch.testing.assert_close(found.double(), by_definition(q, k, v, mask), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("mask", masks().values(), ids=masks().keys())
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_equal_the_definition(kernel, mask):
    results = []
    for attend in (lambda *x: attend_grouped(*x, kernel=kernel), by_definition):
        leaves = [x.requires_grad_() for x in inputs()]
        attend(*leaves, mask).double().square().sum().backward()
        results.append([x.grad for x in leaves])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_query_that_sees_nothing_gets_the_mean_value(kernel, dtype, needs_grad):
    q, k, v = (x.requires_grad_(needs_grad) for x in inputs(dtype))
    mask = torch.ones(2, 1, 7, 9, dtype=torch.bool)
    mask[0, 0, 3] = False
    found = attend_grouped(q, k, v, mask, kernel=kernel)
    mean = v[0].float().mean(dim=1).repeat_interleave(3, dim=0)
    torch.testing.assert_close(found[0, :, 3].float(), mean, rtol=0, atol=TOLERANCE[dtype])
    if needs_grad:
        found.float().sum().backward()
        assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_reference_kernel_has_the_stated_casts_bit_for_bit(dtype):
    q, k, v = inputs(dtype)
    mask = masks()["square"]
    k6, v6 = (torch.stack([x[:, head // 3] for head in range(6)], dim=1) for x in (k, v))
    logits = (q.float() @ k6.float().transpose(2, 3)) * 8**-0.5
    logits = torch.where(mask, logits, torch.finfo(torch.float32).min)
    expected = logits.softmax(-1).to(dtype) @ v6
    assert torch.equal(attend_grouped(q, k, v, mask, kernel="reference"), expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_result_has_the_dtype_of_the_values(kernel):
    q, k, v = inputs()
    found = attend_grouped(q.bfloat16(), k.bfloat16(), v, kernel=kernel)
    assert found.dtype is torch.float32
    expected = by_definition(q.bfloat16(), k.bfloat16(), v, None)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("heads", [2, 4, 6])
@pytest.mark.parametrize(("tile_logits", "tile_rows"), [(1, 5), (200, 8), (700, 16), (1 << 20, 512)])
def test_tiles_cover_every_query_of_every_head_once(monkeypatch, tile_logits, tile_rows, heads):
    monkeypatch.setattr(grouped_attention, "_TILE_LOGITS", tile_logits)
    monkeypatch.setattr(grouped_attention, "_TILE_ROWS", tile_rows)
    q, k, v = inputs(n_queries=13, n_keys=17, heads=heads)
    found = attend_grouped(q, k, v, kernel="plain")
    torch.testing.assert_close(found.double(), by_definition(q, k, v, None), rtol=0, atol=1e-6)


def test_choice_on_a_cpu_depends_on_keys_dtype_and_gradient():
    def chosen(n_keys, dtype=torch.float32, needs_grad=False, device="cpu"):
        return choose_kernel(device, dtype, n_queries=8, n_keys=n_keys, needs_grad=needs_grad)

    assert [chosen(64), chosen(1024)] == ["plain", "fused"]
    assert [chosen(400, needs_grad=True), chosen(1024, needs_grad=True)] == ["plain", "fused"]
    assert chosen(1024, torch.bfloat16) == "plain"
    assert chosen(1024, torch.bfloat16, needs_grad=True) == "fused"
    assert chosen(8, device="cuda") == "fused"


def test_what_does_not_fit_is_refused():
    q, k, v = inputs(heads=5)
    with pytest.raises(ValueError, match="5 query heads"):
        attend_grouped(q, k, v)
    q, k, v = inputs()
    with pytest.raises(ValueError, match="shared by all heads"):
        attend_grouped(q, k, v, torch.ones(2, 6, 7, 9, dtype=torch.bool))
