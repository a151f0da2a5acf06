"""Films and strips of episodes."""

from __future__ import annotations

import io

import av
import numpy as np
from PIL import Image

from mimetic.evaluate.rollout.film import STRIP_FRAMES, Film


def view(value, height=16, width=16):
    return np.full((height, width, 3), value, np.uint8)


def frames_of(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_views_of_odd_and_different_sizes_stand_side_by_side(tmp_path):
    film = Film(tmp_path / "a.mp4", 10)
    for _ in range(5):
        film.add({"front": view(200, 17, 21), "wrist": view(90, 11, 16)})
    film.close()
    frames = frames_of(tmp_path / "a.mp4")
    assert len(frames) == 5
    assert frames[0].shape == (18, 38, 3)
    assert abs(int(frames[0][5, 5, 0]) - 200) < 12
    assert abs(int(frames[0][5, 30, 0]) - 90) < 12
    assert frames[0][16, 30, 0] < 30


def test_a_strip_runs_from_the_first_picture_to_the_last(tmp_path):
    """Whatever the length; the pictures in between are evenly chosen."""
    for length in (1, 2, 5, 24, 25, 100, 333):
        film = Film(None, 10)
        for number in range(length):
            film.add({"front": view(round(250 * number / max(1, length - 1)))})
        strip = np.asarray(Image.open(io.BytesIO(film.close())).convert("L")).astype(int)
        count = min(length, STRIP_FRAMES)
        assert strip.shape == (16, 18 * count - 2)
        shades = [strip[8, 18 * number + 8] for number in range(count)]
        if length > 1:
            assert shades[0] < 12
            assert shades[-1] > 240
            assert shades == sorted(shades)
        assert len(film._kept) < 4 * STRIP_FRAMES


def test_an_aborted_film_leaves_nothing(tmp_path):
    film = Film(tmp_path / "a.mp4", 10)
    film.add({"front": view(1)})
    film.abort()
    assert not list(tmp_path.iterdir())
    film.abort()
