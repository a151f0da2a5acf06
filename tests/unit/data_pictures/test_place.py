"""Whether a camera of a small picture was moved, where large things are put back by hand (spec/dataset_quality.md 7.4)."""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.pictures.camera import Camera
from mimetic.data.check.pictures.rules_view import check_moved
from mimetic.data.check.pictures.sample import EpisodePictures
from mimetic.data.check.pictures.shift import background_of, shift_between, view_of

SIZE = 96
BIN = (5.0, 0.0)
"""How far the bin is away in one episode [px], as in the simulated cell; the camera was said to be 4.9 px away."""


@lru_cache(maxsize=64)
def background(number, *, bin_at=(0.0, 0.0), camera=(0.0, 0.0), zoom=1.0):
    return background_of(cell(number, bin_at=bin_at, camera=camera, zoom=zoom))


def cell(number, *, bin_at=(0.0, 0.0), camera=(0.0, 0.0), zoom=1.0):
    """Thumbnails (n, 96, 96) of an episode: a wall, a pale chequered table, a dark bin and a loose thing, a moving arm."""
    rng = np.random.default_rng(number)
    yy, xx = np.mgrid[: 2 * SIZE, : 2 * SIZE].astype(np.float32) / 2
    u, v = (xx - SIZE / 2) / zoom + SIZE / 2 - camera[0], (yy - SIZE / 2) / zoom + SIZE / 2 - camera[1]
    depth = 6.0 + 0.10 * v  # nearer squares are larger
    across, along = (u - 48) / depth + 0.35 * 20 * np.log(depth), 16 * np.log(depth) - 0.35 * (u - 48) / depth
    picture = 158.0 - 7.0 * ((np.floor(across) + np.floor(along)) % 2)
    picture[v < 24 - 0.10 * u] = 112.0
    x, y = u - 66 - bin_at[0], v - 54 - bin_at[1]
    a, b = x - 0.5 * y, y + 0.35 * x
    picture[(np.abs(a) < 12) & (np.abs(b) < 9)] = 45.0
    picture[(np.abs(a) < 9) & (np.abs(b) < 6)] = 90.0
    left, top = rng.uniform(4, 80), rng.uniform(70, 88)
    picture[(np.abs(u - left) < 3) & (np.abs(v - top) < 3)] = 96.0
    thumbs = []
    for turn in np.linspace(-1, 1, 12) + rng.uniform(-0.1, 0.1):
        seen = picture.copy()
        joint, hand = 38 + 0.12 * (v - 40), 36 + 9 * turn + 0.2 * (v - 20)
        seen[(v > 12) & (v < 46) & (np.abs(u - joint) < 5)] = 225.0
        seen[(v > 30) & (v < 58) & (np.abs(u - hand) < 4)] = 30.0
        small = seen.reshape(SIZE, 2, SIZE, 2).mean((1, 3)) * rng.uniform(0.99, 1.01) + rng.normal(size=(SIZE, SIZE))
        thumbs.append(np.clip(np.rint(small), 0, 255).astype(np.uint8))
    return np.stack(thumbs)


def findings(changed):
    """What is said of 20 episodes whose bin is put back to 1.5 px and whose camera stays to half a pixel.

    Args:
        changed: episode -> how it differs.
    """
    rng = np.random.default_rng(7)
    episodes = []
    for number in range(20):
        usual = {"bin_at": tuple(rng.uniform(-1.5, 1.5, 2)), "camera": tuple(rng.uniform(-0.5, 0.5, 2))}
        episodes.append(
            EpisodePictures(
                episode=number,
                length=360,
                n_there=360,
                size=(SIZE, SIZE),
                other_sizes=(),
                frames=np.arange(12),
                background=background(number, **{**usual, **changed.get(number, {})}),
            )
        )
    camera = Camera(
        key="observation.images.front",
        root=Path("set"),
        fps=30.0,
        is_depth=False,
        is_video=True,
        declared=(SIZE, SIZE),
        files=(),
        file_of={},
        episodes=episodes,
    )
    moved = check_moved(camera, ())
    assert not any(item.claim is Claim.NOT_CHECKED for item in moved.findings)
    return [item for item in moved.findings if item.claim in (Claim.DEFECT, Claim.RISK)]


def test_a_bin_that_stands_elsewhere_is_no_camera_that_was_moved():
    assert findings({}) == []
    assert findings({9: {"bin_at": BIN}}) == []


def test_a_dark_bin_does_not_outweigh_the_table():
    here, there = (view_of(background(number, bin_at=place)) for number, place in ((1, (0, 0)), (2, BIN)))
    assert shift_between(here, there).distance < 0.5


@pytest.mark.parametrize(
    ("camera", "claim"),
    [((-2.5, 1.5), Claim.RISK), ((5.0, -2.0), Claim.DEFECT), ((-1.0, 7.0), Claim.DEFECT), ((-8.0, -5.0), Claim.DEFECT)],
)
def test_a_camera_that_was_bumped_in_a_single_episode_is_found(camera, claim):
    # 3 to 10 % of the width
    (found,) = findings({9: {"camera": camera}})
    assert (found.claim, found.episodes) == (claim, (9,))
    assert found.value == pytest.approx(np.hypot(*camera), abs=0.7)


def test_a_camera_and_a_bin_that_both_moved_are_told_apart():
    (found,) = findings({9: {"camera": (6.0, 1.0), "bin_at": (-5.0, 2.0)}})
    assert (found.claim, found.episodes) == (Claim.DEFECT, (9,))
    assert found.value == pytest.approx(np.hypot(6.0, 1.0), abs=0.7)


def test_a_camera_that_was_brought_nearer_in_a_single_episode_is_found():
    (found,) = findings({9: {"camera": (3.0, -2.0), "zoom": 1.12}})
    assert found.claim in (Claim.DEFECT, Claim.RISK)
    assert found.episodes == (9,)
