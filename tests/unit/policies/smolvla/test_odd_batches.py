"""Batches at the edge of what is allowed: small, empty, masked, in other dtypes and layouts, with broken numbers."""

from __future__ import annotations

import copy

import pytest
import torch

from mimetic.errors import ShapeError
from mimetic.names import LANGUAGE_LONGEST
from mimetic.policies.build import make_policy
from mimetic.policies.smolvla.config import RTCConfig
from mimetic.testing.smolvla import (
    FRONT,
    TOKEN_MASK,
    TOKENS,
    WRIST,
    spread_weights,
    tiny_smolvla_batch,
    tiny_smolvla_config,
    write_tiny_vlm,
)

PRECISIONS = ("float32", "mixed", "released")


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


@pytest.fixture(scope="module")
def policies(vlm):
    return {precision: build(vlm, precision) for precision in PRECISIONS}


@pytest.fixture(params=PRECISIONS)
def policy(policies, request):
    policies[request.param].zero_grad()
    return policies[request.param].train()


def build(vlm, precision="float32", **settings):
    policy = make_policy(tiny_smolvla_config(vlm, precision=precision, **settings), init_backbone=False)
    policy.load_state_dict(spread_weights(policy.state_dict()))
    return policy


def batch_for(policy, size=3, **changes):
    return {**tiny_smolvla_batch(policy.config, size), **changes}


def draw(policy, rows=3):
    generator = torch.Generator().manual_seed(4)
    shape = (rows, *policy.config.noise_shape)
    return {"noise": torch.randn(shape, generator=generator), "time": torch.rand(rows, generator=generator)}


def assert_works(policy, batch, **given):
    """Loss, gradients and chunk are finite; returns loss and chunk."""
    loss, _ = policy.train().loss(batch, **given)
    loss.backward()
    trained = {name: p.grad for name, p in policy.named_parameters() if p.requires_grad}
    broken = [name for name, grad in trained.items() if grad is None or not grad.isfinite().all()]
    assert not broken, broken
    noise = {"noise": given["noise"][: len(batch[TOKENS])]} if given else {}
    chunk = policy.predict_chunk(batch, **noise)
    assert loss.isfinite()
    assert chunk.isfinite().all()
    assert chunk.dtype is loss.dtype is torch.float32
    return loss.detach(), chunk


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_samples_do_not_depend_on_the_batch_that_they_are_in(policy, size):
    batch, given = batch_for(policy, 5), draw(policy, 5)
    each = policy.loss_per_sample(batch, **given)
    part = policy.loss_per_sample({k: v[:size] for k, v in batch.items()}, **{k: v[:size] for k, v in given.items()})
    # float32: other summation orders; with bfloat16 products also their rounding, 2^-8.
    torch.testing.assert_close(part, each[:size], rtol=1e-5 if policy.precision == "float32" else 2e-2, atol=0)
    assert_works(policy, batch_for(policy, size))


@pytest.mark.parametrize("n_columns", [0, 7])
def test_without_words(policy, n_columns):
    nothing = {TOKENS: torch.zeros(3, n_columns, dtype=torch.int64), TOKEN_MASK: torch.zeros(3, n_columns).bool()}
    assert_works(policy, batch_for(policy, **nothing))


@pytest.mark.parametrize("kernel", [None, "reference", "plain", "fused"])
@pytest.mark.parametrize("has_words", [True, False])
@pytest.mark.parametrize("shown", [[True, False, True], [False, False, False]])
def test_samples_that_see_only_their_state(policy, shown, has_words, kernel):
    policy = copy.deepcopy(policy)
    policy.model.kernel = kernel
    masks = {f"{key}_padding_mask": torch.tensor(shown) for key in (FRONT, WRIST)}
    batch, given = batch_for(policy, **masks), draw(policy)
    if not has_words:
        batch[TOKEN_MASK] = torch.zeros_like(batch[TOKEN_MASK])
    loss, chunk = assert_works(policy, batch, **given)
    for key in (FRONT, WRIST):  # broken frames of hidden cameras do not matter
        batch[key] = torch.where(torch.tensor(shown)[:, None, None, None], batch[key], torch.nan)
    policy.zero_grad()
    again = assert_works(policy, batch, **given)
    assert torch.equal(again[0], loss)
    assert torch.equal(again[1], chunk)


def test_one_camera_and_frames_of_any_size(policy):
    batch = batch_for(policy)
    del batch[FRONT]
    assert_works(policy, batch)
    assert_works(policy, {**batch, FRONT: torch.rand(3, 3, 7, 50), WRIST: torch.rand(3, 3, 90, 31)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_inputs_in_other_dtypes(policy, dtype):
    batch, given = batch_for(policy), draw(policy)
    narrow = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    expected, found = (assert_works(policy, b, **given) for b in (batch, narrow))
    # bfloat16 inputs are rounded by up to 2^-8, and frames are resized in it; actions of 2 enter the loss squared.
    torch.testing.assert_close(found[0], expected[0], rtol=3e-2, atol=0)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=0.1)


def test_strided_inputs_give_the_same_bits(policy):
    batch, given = batch_for(policy), draw(policy)

    def strided(x):
        wide = torch.empty(*x.shape, 2, dtype=x.dtype)
        wide[..., 0] = x
        return wide[..., 0]

    expected = assert_works(policy, batch, **given)
    found = assert_works(
        policy, {key: strided(value) for key, value in batch.items()}, **{k: strided(v) for k, v in given.items()}
    )
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_numbers_after_the_end_of_an_episode_may_be_anything(policy):
    batch, given = batch_for(policy), draw(policy)
    expected = assert_works(policy, batch, **given)
    grads = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    for garbage in (torch.nan, torch.inf, -torch.inf):
        policy.zero_grad()
        broken = batch["action"].masked_fill(batch["action_is_pad"][:, :, None], garbage)
        loss, _ = assert_works(policy, {**batch, "action": broken}, **given)
        assert torch.equal(loss, expected[0])
        found = [p.grad for p in policy.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(found, grads, strict=True))
    broken = batch["action"].clone()
    broken[0, 0, 0] = torch.nan  # a real action: training has to stop
    assert policy.loss({**batch, "action": broken}, **given)[0].isnan()


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf])
def test_a_broken_frame_breaks_its_own_sample_only(policy, garbage):
    batch, noise = batch_for(policy), draw(policy)["noise"]
    expected = policy.predict_chunk(batch, noise=noise)
    frames = batch[FRONT].clone()
    frames[1, 0, 3, 3] = garbage
    found = policy.predict_chunk({**batch, FRONT: frames}, noise=noise)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert not found[1].isfinite().all()


@pytest.mark.parametrize("settings", [{"num_steps": 1}, {"chunk_size": 1, "n_action_steps": 1}, {"noise_draws": 3}])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_smallest_settings(vlm, precision, settings):
    policy = build(vlm, precision, **settings)
    batch = batch_for(policy)
    assert_works(policy, batch, **draw(policy, 3 * policy.config.noise_draws))
    assert policy.select_action(batch).shape == (3, 4)


def test_accumulated_gradients_are_those_of_the_whole_batch(vlm):
    policy = build(vlm)
    batch, given = batch_for(policy, 4), draw(policy, 4)
    del batch["action_is_pad"]  # with it samples weigh by their valid actions
    policy.loss(batch, **given)[0].backward()
    whole = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    for rows in (slice(0, 2), slice(2, 4)):
        part, drawn = ({key: value[rows] for key, value in x.items()} for x in (batch, given))
        (policy.loss(part, **drawn)[0] / 2).backward()
    for parameter, grad in zip((p for p in policy.parameters() if p.requires_grad), whole, strict=True):
        assert (parameter.grad - grad).norm() <= 2e-5 * grad.norm() + 1e-7


def test_under_autocast_every_precision_works(policy):
    batch, given = batch_for(policy), draw(policy)
    plain = assert_works(policy, batch, **given)
    policy.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        found = assert_works(policy, batch, **given)
    torch.testing.assert_close(found[0], plain[0], rtol=3e-2, atol=0)
    torch.testing.assert_close(found[1], plain[1], rtol=0, atol=0.2)  # 4 layers of bfloat16, weights of order 1


def test_padding_of_words_on_either_side(vlm):
    policy = build(vlm)
    batch, given = batch_for(policy), draw(policy)
    lengths = batch[TOKEN_MASK].sum(dim=1).tolist()
    turned = {
        key: torch.stack([row.roll(len(row) - n) for row, n in zip(batch[key], lengths, strict=True)])
        for key in (TOKENS, TOKEN_MASK)
    }
    wide = {key: torch.cat([torch.zeros_like(value), value], dim=1) for key, value in turned.items()}
    expected = policy.loss(batch, **given)[0]
    for other in (turned, wide, {**wide, LANGUAGE_LONGEST: 14}):
        torch.testing.assert_close(policy.loss({**batch, **other}, **given)[0], expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("n_words", [250, 700])
def test_long_instructions_with_every_kernel(vlm, n_words):
    """Long enough for the dispatch to change its mind; kernels differ by summation order only."""
    policy = build(vlm)
    batch, given = {**tiny_smolvla_batch(policy.config, 2, n_tokens=n_words)}, draw(policy, 2)
    batch[TOKEN_MASK][1, n_words // 3 :] = False
    results = {}
    for kernel in ("reference", "plain", "fused", None):
        policy.model.kernel = kernel
        results[kernel] = assert_works(policy, batch, **given)
    for loss, chunk in results.values():
        torch.testing.assert_close(loss, results["reference"][0], rtol=1e-5, atol=0)
        torch.testing.assert_close(chunk, results["reference"][1], rtol=0, atol=2e-5)


def test_noise_times_and_previous_chunks_of_another_shape_are_refused(vlm):
    policy = build(vlm, rtc_config=RTCConfig())
    batch, given = batch_for(policy), draw(policy)
    for wrong in ({"noise": given["noise"][:1]}, {"time": given["time"][:1]}, {"noise": given["noise"][:, :, :4]}):
        with pytest.raises(ShapeError, match="noise_draws"):
            policy.loss(batch, **{**given, **wrong})
    with pytest.raises(ShapeError, match="noise"):
        policy.predict_chunk(batch, noise=given["noise"][:1])
    with pytest.raises(ShapeError, match="3 samples"):
        policy.predict_chunk(batch, inference_delay=1, prev_chunk_left_over=torch.zeros(2, 4, 4))
    previous = torch.zeros(3, 4, 4, dtype=torch.float64)
    assert policy.predict_chunk(batch, inference_delay=1, prev_chunk_left_over=previous).dtype is torch.float32
