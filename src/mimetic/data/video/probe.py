"""Which video decoder is used, and why.

PyAV is complete and brings its own FFmpeg. torchcodec is taken by `auto` only if it proves itself on one video of the
dataset: the same bytes as PyAV, in less time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mimetic.catalog import closest_hint
from mimetic.data.video.decoder import Decoder, PyavDecoder
from mimetic.data.video.torchcodec_backend import TorchcodecDecoder, load_torchcodec
from mimetic.errors import ConfigError, MissingExtra, VideoError

BACKENDS = ("auto", "pyav", "torchcodec", "video_reader")
_N_TIMED = 8


def choose_backend(
    wanted: str, sample: Path | None, *, clock: Callable[[], float] = time.perf_counter
) -> tuple[str, str]:
    """Decide on a video decoder.

    Args:
        wanted: "auto", "pyav", "torchcodec" or "video_reader" (LeRobot's old name of PyAV).
        sample: a colour video of the dataset on which torchcodec is tried, if there is one.
        clock: seconds, for the comparison of speed.

    Returns:
        "pyav" or "torchcodec", and one sentence that says why.

    Raises:
        ConfigError: an unknown name, or torchcodec is asked for and cannot be used; the message says why.
    """
    if wanted == "pyav":
        return "pyav", "PyAV was asked for"
    if wanted == "video_reader":
        return "pyav", "`video_reader` is LeRobot's old name of PyAV"
    if wanted not in BACKENDS:
        raise ConfigError(
            f"unknown video decoder `{wanted}`", closest_hint(wanted, BACKENDS) or f"available: {', '.join(BACKENDS)}"
        )
    if wanted == "auto":
        return _choose(sample, clock)
    return "torchcodec", _check_asked_for(sample)


def _choose(sample: Path | None, clock: Callable[[], float]) -> tuple[str, str]:
    try:
        load_torchcodec()
    except MissingExtra as error:
        return "pyav", f"PyAV decodes: {error.message}"
    if sample is None:
        return "pyav", "PyAV decodes: there is no colour video to try torchcodec on"
    try:
        difference = _largest_difference(sample)
        if difference:
            return "pyav", f"PyAV decodes: torchcodec's pixels differ from its by up to {difference} of 255"
        own, other = _seconds(PyavDecoder(sample), clock), _seconds(TorchcodecDecoder(sample), clock)
    except VideoError as error:
        return "pyav", f"PyAV decodes: torchcodec could not be tried: {error.message}"
    if other >= own:
        return "pyav", "PyAV decodes: torchcodec gives equal pixels but is not faster here"
    return "torchcodec", f"torchcodec decodes: equal pixels, {own / max(other, 1e-9):.1f} times as fast as PyAV here"


def _check_asked_for(sample: Path | None) -> str:
    """Reason sentence for torchcodec by request."""
    hint = "use `--dataset.video_backend=pyav`, which gives the same frames"
    try:
        load_torchcodec()
    except MissingExtra as error:
        raise ConfigError(
            f"`--dataset.video_backend=torchcodec` cannot be used: {error.message}", f"{error.hint}\n{hint}"
        ) from error
    if sample is None:
        return "torchcodec was asked for"
    try:
        difference = _largest_difference(sample)
    except VideoError as error:
        raise ConfigError(f"`--dataset.video_backend=torchcodec` cannot be used: {error.message}", hint) from error
    if difference:
        return f"torchcodec was asked for; its pixels differ from PyAV's by up to {difference} of 255"
    return "torchcodec was asked for; its pixels equal PyAV's"


def _largest_difference(sample: Path) -> int:
    """Largest difference between both decoders in the first, middle and last frame of a video."""
    own = PyavDecoder(sample)
    try:
        last = len(own.index) - 1
        frames = sorted({0, last // 2, last})
        expected = _read(own, frames)
    finally:
        own.close()
    other = TorchcodecDecoder(sample, own.index)
    if (other.height, other.width) != (own.height, own.width):
        raise VideoError(f"torchcodec sees {other.width}x{other.height} pixels, PyAV {own.width}x{own.height}")
    return int(np.abs(_read(other, frames).astype(np.int16) - expected).max())


def _read(decoder: Decoder, frames: list[int]) -> np.ndarray:
    out = np.empty((len(frames), 3, decoder.height, decoder.width), dtype=np.uint8)
    decoder.read(frames, list(out), is_depth=False)
    return out


def _seconds(decoder: Decoder, clock: Callable[[], float]) -> float:
    """Time [s] for single frames spread over the file, each after a seek, as training asks for them."""
    count = len(decoder.index)
    spread = [(place * count) // _N_TIMED for place in (0, 5, 2, 7, 4, 1, 6, 3)]
    _read(decoder, [0])
    start = clock()
    for frame in spread:
        _read(decoder, [frame])
    elapsed = clock() - start
    decoder.close()
    return elapsed
