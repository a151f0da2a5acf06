"""The small numeric functions: looks, sharpness, hashes, repeats, plans."""

import numpy as np
import pytest
from PIL import Image

from mimetic.data.check.pictures.camera import ranges, runs_in
from mimetic.data.check.pictures.frame import look_of, sharpness
from mimetic.data.check.pictures.phash import distances, perceptual_hash
from mimetic.data.check.pictures.plan import plan_frames
from mimetic.data.check.pictures.repeats import Pairs, count_repeats, merged, runs_of
from mimetic.data.check.pictures.thumbnails import difference, is_drawn, jpeg, luminance, shrink, thumbnail
from mimetic.testing.datasets import coded_image

RNG = np.random.default_rng(0)


def photograph(seed=0, size=(96, 128)):
    coarse = np.random.default_rng(seed).uniform(20, 230, (7, 9)).astype(np.float32)
    return (
        np.asarray(Image.fromarray(coarse).resize(size[::-1], Image.Resampling.BICUBIC)).clip(0, 255).astype(np.uint8)
    )


@pytest.mark.parametrize(
    ("level", "black", "white"),
    [(3, True, False), (20, True, False), (30, False, False), (244, False, False), (250, False, True)],
)
def test_black_and_white_by_the_limits_of_the_spec(level, black, white):
    look = look_of(np.full((40, 50), level, dtype=np.uint8))
    assert (look.is_black, look.is_washed_out, look.is_flat) == (black, white, True)


def test_a_few_bright_pixels_do_not_save_a_black_picture_but_three_per_cent_do():
    picture = np.full((100, 100), 15, dtype=np.uint8)
    picture[:1] = 255
    assert look_of(picture).is_black
    picture[:3] = 255
    assert not look_of(picture).is_black


def test_blur_lowers_both_measures_and_a_plain_wall_the_first_only():
    sharp = RNG.integers(0, 255, (120, 160)).astype(np.uint8)
    small = Image.fromarray(sharp).resize((40, 30), Image.Resampling.BOX)
    blurred = np.asarray(small.resize((160, 120), Image.Resampling.BICUBIC))
    wall = (128 + (sharp.astype(int) - 128) // 16).astype(np.uint8)
    assert sharpness(blurred)[0] < 0.25 * sharpness(sharp)[0]
    assert sharpness(blurred)[1] < 0.5 * sharpness(sharp)[1]
    assert sharpness(wall)[0] < 0.25 * sharpness(sharp)[0]
    assert sharpness(wall)[1] == pytest.approx(sharpness(sharp)[1], rel=0.1)


def test_tiny_pictures_have_no_sharpness():
    assert sharpness(np.zeros((2, 2), dtype=np.uint8)) == (0.0, 0.0)


def test_a_hash_stays_near_under_exposure_and_noise_and_is_far_for_another_picture():
    picture = photograph(1)
    darker = np.clip(picture * 0.7 + RNG.normal(0, 3, picture.shape), 0, 255).astype(np.uint8)
    one, two, other = (np.asarray([perceptual_hash(p)], dtype=np.uint64) for p in (picture, darker, photograph(2)))
    assert distances(one, two)[0] <= 4
    assert distances(one, other)[0] > 16
    assert distances(one, one)[0] == 0


def test_distances_count_bits():
    one = np.asarray([0, (1 << 64) - 1, 5], dtype=np.uint64)
    assert distances(one, np.zeros(3, dtype=np.uint64)).tolist() == [0, 64, 2]


@pytest.mark.parametrize("size", [(480, 640), (96, 128), (3, 2), (1, 1), (200, 161), (2, 4000)])
def test_thumbnails_of_any_size(size):
    picture = RNG.integers(0, 255, (3, *size)).astype(np.uint8)
    small = thumbnail(picture)
    assert small.shape[0] == 3
    assert small.shape[2] == min(size[1], 160)
    assert small.dtype == np.uint8
    assert shrink(small[0]).size >= 1
    assert jpeg(small)[:2] == b"\xff\xd8"


def test_luminance_of_white_red_and_black():
    picture = np.zeros((3, 1, 3), dtype=np.uint8)
    picture[:, 0, 0], picture[0, 0, 1] = 255, 255
    assert luminance(picture)[0].tolist() == [255, 76, 0]


def test_a_small_change_is_seen_in_its_block():
    picture = np.zeros((120, 160))
    other = picture.copy()
    other[40:46, 60:66] = 80
    mean, block = difference(picture, other)
    assert mean < 0.2
    assert block > 10


def test_coded_images_are_drawings_and_photographs_are_not():
    for frame in (1, 7, 300):
        assert is_drawn(coded_image(3, frame, (48, 64))[..., 0])
    assert not is_drawn(photograph())
    assert not is_drawn(np.full((40, 40), 3, dtype=np.uint8))  # black is black, whoever drew it
    assert not is_drawn((photograph() // 12 + 3).astype(np.uint8))


def pairs(same, visible=40.0):
    same = np.asarray(same, dtype=bool)
    frame = np.arange(1, len(same) + 1)
    return Pairs(frame, np.where(same, 0.8, 3.0), np.where(same, 2.0, visible))


def test_the_share_of_repeats_gives_the_real_rate():
    # 21 pictures for 30 frames: of ten frames, seven are new
    pattern = [int(0.7 * n) == int(0.7 * (n - 1)) for n in range(1, 120)]
    repeats, looked_at = count_repeats(pairs(pattern), np.ones(120))
    assert 1 - repeats / looked_at == pytest.approx(0.7, abs=0.02)


def test_a_camera_at_full_rate_has_no_repeats():
    assert count_repeats(pairs([False] * 40), np.ones(41))[0] == 0


def test_pictures_of_a_robot_at_rest_are_no_repeats():
    speed = np.zeros(41)
    speed[:20] = 1.0
    repeats, looked_at = count_repeats(pairs([False] * 20 + [True] * 20), speed)
    assert repeats == 0
    assert looked_at > 10
    assert count_repeats(pairs([False, True] * 20), np.zeros(41)) == (0, 0)
    assert count_repeats(pairs([False, True] * 20), None) == (0, 0)


def test_movement_that_does_not_show_is_no_repeat():
    """The hand closes behind the arm for ten frames: a slow camera repeats a picture a few times at most."""
    assert count_repeats(pairs([False] * 10 + [True] * 10 + [False] * 10), np.ones(31))[0] == 0


def test_an_arm_that_turns_round_is_no_repeat():
    same = np.zeros(30, dtype=bool)
    same[[5, 14, 22]] = True
    speed = np.ones(31)
    speed[[6, 15, 23]] = 0.05
    assert count_repeats(pairs(same), speed)[0] == 0


def test_small_movements_are_neither():
    # 2 of 10 grey levels: too much for a copy
    assert count_repeats(pairs([False, True] * 20, visible=10.0), np.ones(41))[0] == 0


def test_whole_rows_that_repeat_are_found_although_the_state_rests_in_them_too():
    pattern = [False, True] * 20
    speed = np.asarray([1.0, *(0.0 if same else 1.0 for same in pattern)])
    repeats, looked_at = count_repeats(pairs(pattern), speed)
    assert repeats / looked_at == pytest.approx(0.5, abs=0.05)


def test_runs_and_merged_spans():
    assert runs_of(np.asarray([True, True, False, True]), np.asarray([5, 6, 7, 8])) == [(4, 6), (7, 8)]
    assert merged([(5, 9), (0, 2), (3, 4), (12, 13)]) == [(0, 9), (12, 13)]
    assert runs_of(np.asarray([], dtype=bool), np.asarray([], dtype=np.int64)) == []


@pytest.mark.parametrize("length", [1, 2, 5, 11, 36, 37, 100, 5000])
@pytest.mark.parametrize("every", [False, True])
def test_a_plan_stays_in_the_episode_and_holds_its_ends(length, every):
    plan = plan_frames(length, 30, RNG.uniform(0, 1, length), every=every)
    assert plan.spread[0] == 0
    assert plan.spread[-1] == length - 1
    assert set(plan.full) <= set(plan.spread)
    assert len(plan.full) == min(6, length)
    assert all(0 <= first < end <= length for first, end in plan.rows)
    assert every is False or plan.rows == ((0, length),)
    assert len(plan.spread) <= 160


def test_windows_lie_where_the_robot_moves():
    speed = np.zeros(300)
    speed[80:95] = speed[150:170] = speed[260:280] = 1.0
    assert all(speed[first:end].mean() > 0.5 for first, end in plan_frames(300, 30, speed, every=False).rows)


def test_ranges_and_runs():
    assert ranges([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"
    assert ranges(range(0, 40, 2), most=2) == "0, 2 and 18 more ranges"
    assert runs_in([True, True, False, True]) == 2
    assert runs_in([]) == 0
