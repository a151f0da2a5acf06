"""What training does to pictures: whole pixels with a repeated border, and a formula for the colours."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from mimetic.policies.keypoint.augment import _by_index, _by_rows, jittered, shifted


def moved(picture, rows, columns):
    """Cut out of a picture whose border was repeated all around it: pixel (y, x) comes from (y + rows, x + columns)."""
    _, height, width = picture.shape
    around = F.pad(picture[None], (5, 5, 5, 5), mode="replicate")[0]
    return around[:, 5 + rows : 5 + rows + height, 5 + columns : 5 + columns + width]


def moves_of(result, picture, most):
    """Every (rows, columns) that makes `result` from `picture`."""
    around = range(-most - 1, most + 2)
    return [(r, c) for r in around for c in around if torch.equal(moved(picture, r, c), result)]


def drawn_moves(pictures, most):
    found = [moves_of(r, p, most) for r, p in zip(shifted(pictures, most), pictures, strict=True)]
    assert all(len(moves) == 1 for moves in found)
    return [moves[0] for moves in found]


def test_a_picture_by_hand(monkeypatch):
    picture = torch.tensor([[1.0, 2, 3], [4, 5, 6]])[None, None]
    draws = torch.tensor([[[1]], [[-1]]])
    monkeypatch.setattr(torch, "randint", lambda *a, **k: draws)
    # One row from below, one column from the left; the last row and the first column are repeated.
    assert shifted(picture, 1).tolist() == [[[[4, 4, 5], [4, 4, 5]]]]


def test_every_picture_is_moved_by_whole_pixels_of_its_own_in_both_directions():
    pictures = torch.rand(200, 3, 6, 9)
    moves = drawn_moves(pictures, 2)
    assert set(moves) == {(rows, columns) for rows in range(-2, 3) for columns in range(-2, 3)}


def test_all_colours_of_a_picture_move_together_and_its_memory_is_channels_last():
    pictures = torch.rand(5, 3, 8, 10)
    result = shifted(pictures, 3)
    assert result.shape == pictures.shape
    assert result.is_contiguous(memory_format=torch.channels_last)
    for colour in range(3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            one = shifted(pictures[:, colour : colour + 1], 3)
            torch.manual_seed(5)
            assert torch.equal(shifted(pictures, 3)[:, colour : colour + 1], one)


def test_a_shift_of_nothing_changes_nothing():
    pictures = torch.rand(4, 3, 6, 7)
    assert torch.equal(shifted(pictures, 0), pictures)


def test_a_shift_beyond_the_picture_is_its_border():
    pictures = torch.arange(15.0).view(1, 1, 3, 5)
    seen = {tuple(shifted(pictures, 100_000).unique().tolist()) for _ in range(50)}
    assert seen == {(0.0,), (4.0,), (10.0,), (14.0,)}


@pytest.mark.parametrize("shape", [(3, 8, 10), (1, 5, 17), (3, 16, 3)])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_both_ways_to_move_give_the_same(shape, most):
    """The one of other devices too, and where the border is wider than the picture."""
    pictures = torch.rand(40, *shape)
    moves = torch.randint(-most, most + 1, (2, 40, 1))
    by_rows, by_index = _by_rows(pictures, moves, most), _by_index(pictures, moves)
    assert torch.equal(by_rows, by_index)
    for number, (rows, columns) in enumerate(moves[:, :, 0].T.tolist()):
        assert torch.equal(by_index[number], moved(pictures[number], rows, columns))
    assert by_rows.is_contiguous(memory_format=torch.channels_last)
    assert by_index.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("change", [lambda p: shifted(p, 2), lambda p: jittered(p, 0.3)], ids=["shift", "jitter"])
def test_torch_s_seed_decides(change):
    pictures = torch.rand(20, 3, 8, 8)
    torch.manual_seed(4)
    first, second = change(pictures), change(pictures)
    torch.manual_seed(4)
    assert torch.equal(change(pictures), first)
    assert not torch.equal(first, second)


def test_the_formula_of_the_colours(monkeypatch):
    """Contrast 1 + s a, tint of a colour 1 + s t / 2, brightness s b, with a, b, t from -1 to 1."""
    pictures = torch.randn(2, 3, 4, 5)
    draws = torch.rand(2, 5)
    monkeypatch.setattr(torch, "rand", lambda *a, **k: draws[:, :, None, None])
    found = jittered(pictures, 0.4)
    for n in range(2):
        a, b, *tints = (draws[n] * 2 - 1).tolist()
        for colour, t in enumerate(tints):
            expected = pictures[n, colour] * (1 + 0.4 * a) * (1 + 0.2 * t) + 0.4 * b
            torch.testing.assert_close(found[n, colour], expected)


def test_colours_stay_within_their_strength_and_reach_it():
    zeros, ones = torch.zeros(4000, 3, 1, 1), torch.ones(4000, 3, 1, 1)
    brightness = jittered(zeros, 0.2)
    assert brightness.abs().max() <= 0.2
    assert brightness.min() < -0.19
    assert brightness.max() > 0.19
    assert torch.equal(brightness, brightness[:, :1].expand_as(brightness))
    torch.manual_seed(1)
    offset = jittered(zeros, 0.2)
    torch.manual_seed(1)
    gain = jittered(ones, 0.2) - offset
    assert 0.8 * 0.9 - 1e-6 <= gain.min() < 0.8 * 0.95
    assert 1.2 * 1.05 < gain.max() <= 1.2 * 1.1 + 1e-6
    assert not torch.equal(gain[:, 0], gain[:, 1])


def test_no_strength_changes_nothing():
    pictures = torch.rand(3, 3, 4, 4)
    assert torch.equal(jittered(pictures, 0.0), pictures)
