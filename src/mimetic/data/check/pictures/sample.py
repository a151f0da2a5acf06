"""What is kept of the pictures of one episode and camera: small enough for thousands of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mimetic.data.check.pictures.frame import Look
from mimetic.data.check.pictures.repeats import Pairs
from mimetic.data.check.pictures.shift import Background

Ints = npt.NDArray[np.int64]
NO_PAIRS = Pairs(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


@dataclass(frozen=True, kw_only=True)
class EpisodeTask:
    """One episode of a camera to look at.

    Args:
        episode: its number.
        first: first frame in the video, or first row in the data file.
        length: frames that the dataset says it has.
        state: (length, channels) float32 state in units of each channel's range; None when it is not known.
    """

    episode: int
    first: int
    length: int
    state: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Frames that could not be read.

    Args:
        frame: first frame of the episode concerned.
        last: last frame concerned.
        reason: why, one sentence.
    """

    frame: int
    last: int
    reason: str


@dataclass(frozen=True)
class Stills:
    """Pictures at rest, of one episode.

    Args:
        spans: spans of frames that are all alike, while the robot moves.
        share: of the steps between thumbnails in which the robot moves, the share without change in the picture; NaN
            when there is no such step.
        block: median change of the most changed block in these steps [grey levels].
    """

    spans: Sequence[tuple[int, int]] = ()
    share: float = float("nan")
    block: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class EpisodePictures:
    """Measures of the pictures of one episode and camera.

    Args:
        episode: its number.
        length: frames that the dataset says it has.
        n_there: frames of it that the file holds.
        size: (height, width) as decoded; (0, 0) when nothing could be.
        other_sizes: sizes that single pictures have instead, with the frame of each.
        frames: (n,) frames of the thumbnails.
        looks: one a thumbnail.
        sharp: (variance of the Laplacian, share of fine detail) of the frames at full size.
        pairs: differences of consecutive frames.
        stills: where the picture rests although the robot moves.
        background: what stays; None when nothing could be decoded, or of a depth camera.
        chroma: (2, h / 4, w / 4) uint8 median blue and red chroma.
        light: (n,) luminance of the steady pixels of each thumbnail.
        drawn: share of thumbnails that are no photographs.
        hashes: (6,) uint64 perceptual hashes at equal parts of the episode.
        small: (6, h / 4, w / 4) uint8 the same pictures, small.
        change: (32,) difference of successive thumbnails over the episode.
        shown: JPEG files for people, with the frame of each.
        damage: what could not be read.
    """

    episode: int
    length: int
    n_there: int = 0
    size: tuple[int, int] = (0, 0)
    other_sizes: Sequence[tuple[int, tuple[int, int]]] = ()
    frames: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    looks: Sequence[Look] = ()
    sharp: Sequence[tuple[float, float]] = ()
    pairs: Pairs = NO_PAIRS
    stills: Stills = field(default_factory=Stills)
    background: Background | None = None
    chroma: npt.NDArray[np.uint8] | None = None
    light: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    drawn: float = 0.0
    hashes: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    small: npt.NDArray[np.uint8] | None = None
    change: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    shown: Sequence[tuple[int, bytes]] = ()
    damage: Sequence[Damage] = ()


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """What a video file says about itself.

    Args:
        path: the file, seen from the dataset's folder.
        codec: name by FFmpeg.
        pix_fmt: name by FFmpeg.
        height: of the pictures [px].
        width: of the pictures [px].
        frames: that can be read.
        announced: that the header promises.
        fps: frames by the time that they take [Hz]; 0 for a single frame.
        off_grid_s: largest distance of a frame from the grid of the dataset's rate [s].
        gap: largest distance of two keyframes [frames].
        bits: size of the file over all pixels [bits per pixel].
        error: why it cannot be opened; empty when it can.
    """

    path: str
    codec: str = ""
    pix_fmt: str = ""
    height: int = 0
    width: int = 0
    frames: int = 0
    announced: int = 0
    fps: float = 0.0
    off_grid_s: float = 0.0
    gap: int = 0
    bits: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """What one task found: facts of its video file (None for pictures in data files) and its episodes."""

    facts: FileFacts | None
    episodes: Sequence[EpisodePictures]
