"""Camera shift from backgrounds, against the values of spec/dataset_quality.md 12."""

import numpy as np
import pytest
from PIL import Image

from mimetic.data.check.pictures.shift import Background, background_of, likeness, shift_between, view_of
from mimetic.data.check.pictures.viewpoint import find_turn, find_views


def room(seed, height=600, width=760):
    """A textured background with detail of several sizes."""
    rng = np.random.default_rng(seed)
    total = np.zeros((height, width))
    for size, strength in ((2, 16), (8, 20), (30, 24)):
        coarse = rng.normal(size=(height // size + 2, width // size + 2))
        total += strength * np.kron(coarse, np.ones((size, size)))[:height, :width]
    return 128 + 40 * (total - total.mean()) / total.std()


def thumbs(background, right=0, *, gain=1.0, seed=0, count=20):
    """Thumbnails (n, 120, 160) of 640x480 pictures: a moving disc before the background, noise of 4 levels."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:480, :640]
    out = []
    for frame in range(count):
        view = background[60:540, 60 - right : 700 - right].copy()
        view[(xx - 150 - 16 * frame) ** 2 + (yy - 240 - 80 * np.sin(frame / 3)) ** 2 < 40**2] = 220
        noisy = np.clip(view * gain + rng.normal(size=view.shape) * 4, 0, 255)
        out.append(np.rint(noisy.reshape(120, 4, 160, 4).mean((1, 3))).astype(np.uint8))
    return np.stack(out)


@pytest.fixture(scope="module")
def background():
    return room(1)


@pytest.fixture(scope="module")
def reference(background):
    return view_of(background_of(thumbs(background, seed=5)))


@pytest.mark.parametrize("gain", [1.0, 0.7])
@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8, 16, 32])
def test_a_shift_is_found_to_a_third_of_a_pixel_whatever_the_exposure(background, reference, shift, gain):
    found = shift_between(reference, view_of(background_of(thumbs(background, shift, gain=gain))))
    # spec 12: 0.3 px of the full picture
    assert found.x * 4 == pytest.approx(shift, abs=0.3)
    assert found.y * 4 == pytest.approx(0, abs=0.3)
    assert found.agreement > 0.5


def test_a_shift_has_the_sign_in_which_the_picture_moves(background, reference):
    found = shift_between(reference, view_of(background_of(thumbs(background, -20))))
    assert found.x * 4 == pytest.approx(-20, abs=0.3)


def test_unrelated_rooms_do_not_agree(reference):
    for seed in (2, 3, 4):
        assert shift_between(reference, view_of(background_of(thumbs(room(seed))))).agreement < 0.33


def test_an_arm_that_rests_elsewhere_is_no_shift_of_the_camera(background):
    """The brightest edges belong to the arm; of the room there are more."""

    def with_arm(x):
        picture = background_of(thumbs(background, count=4)).picture.copy()
        picture[30:100, x : x + 12] = 250
        picture[60:72, x - 30 : x + 30] = 5
        return view_of(Background(picture, np.ones(picture.shape, dtype=bool)))

    assert shift_between(with_arm(60), with_arm(95)).distance < 0.3


def test_pixels_that_change_are_not_steady(background):
    pictures = thumbs(background, count=12)
    pictures[::2, 20:60, 20:60] = 0
    steady = background_of(pictures).steady
    assert steady[22:58, 22:58].mean() < 0.1  # but for what was black before
    assert steady[80:, 100:].mean() > 0.9


def test_the_largest_group_is_the_reference(background):
    groups = [background_of(thumbs(background, shift, seed=i, count=6)) for i, shift in enumerate([12] * 3 + [0] * 7)]
    views = find_views(groups)
    assert views.members.tolist() == [False] * 3 + [True] * 7
    assert views.distance[:3] * 640 == pytest.approx([12, 12, 12], abs=0.3)


@pytest.mark.parametrize("angle", [-6.0, -1.5, 2.0, 5.0])
def test_a_turn_is_found_to_half_a_degree(background, angle):
    picture = Image.fromarray(background_of(thumbs(background, count=6)).picture)
    everywhere = np.ones((120, 160), dtype=bool)
    turned = np.asarray(picture.rotate(angle, Image.Resampling.BICUBIC))
    found = find_turn(Background(np.asarray(picture), everywhere), Background(turned, everywhere))
    assert found is not None
    assert found.angle == pytest.approx(angle, abs=0.5)
    assert found.zoom == pytest.approx(1.0, abs=0.03)


def test_a_camera_that_stayed_or_another_room_is_no_turn(background):
    one, two = (background_of(thumbs(background, seed=seed, count=6)) for seed in (1, 2))
    assert find_turn(one, two) is None
    assert find_turn(one, background_of(thumbs(room(9), count=6))) is None


def test_likeness_is_one_for_a_brighter_copy_and_none_for_a_blank():
    picture = np.arange(100, dtype=np.uint8).reshape(10, 10)
    assert likeness(picture, picture + 40) == pytest.approx(1.0)
    assert likeness(picture, np.full((10, 10), 7, dtype=np.uint8)) == 0.0
