"""Which encoder each camera of a recording gets, and whether it works here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mimetic.data.encoding.codecs import settle
from mimetic.data.encoding.config import DepthEncoderConfig, EncoderConfig, encoder_for
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.record.config import WriterConfig
from mimetic.data.record.declare import Declared
from mimetic.data.record.state import DatasetState
from mimetic.errors import ConfigError, MimeticError


def new_encoders(declared: Declared, settings: WriterConfig) -> dict[str, EncoderConfig]:
    """The encoder of each video camera of a new dataset."""
    encoders: dict[str, EncoderConfig] = {}
    for camera in declared.video_keys:
        feature = declared.features[camera]
        _, height, width = feature.chw
        wanted: EncoderConfig
        if feature.is_depth:
            wanted = settings.depth_encoder or DepthEncoderConfig()
        else:
            purpose: Any = settings.encoding or "fast"
            wanted = settings.rgb_encoder or encoder_for(purpose, height=height, width=width)
        encoders[camera] = settle(wanted)[0]
    return encoders


def continued_encoders(state: DatasetState, settings: WriterConfig) -> tuple[dict[str, EncoderConfig], list[str]]:
    """Encoders of a dataset that is continued, and how those that were asked for differ from its own."""
    if not state.rows:
        return new_encoders(state.declared, settings), []
    encoders, problems = dict(state.encoders), []
    wanted = new_encoders(state.declared, settings)
    for camera, own in state.encoders.items():
        is_depth = state.features[camera].is_depth
        is_given = settings.depth_encoder if is_depth else settings.rgb_encoder or settings.encoding
        if not is_given:
            continue
        for name in ("codec", "pix_fmt", *(("depth_min", "depth_max", "shift", "use_log") if is_depth else ())):
            if getattr(own, name) != getattr(wanted[camera], name):
                asked = getattr(wanted[camera], name)
                problems.append(f"videos of `{camera}` have the {name} {getattr(own, name)}; {asked} is asked for")
        encoders[camera] = wanted[camera]
    return encoders, problems


def try_encoders(declared: Declared, encoders: Mapping[str, EncoderConfig], fps: int, settings: WriterConfig) -> None:
    """Encode a picture of each kind of camera once: what cannot work is said before a robot moves.

    Raises:
        ConfigError: names the camera and says why.
    """
    tried = set()
    for camera, encoder in encoders.items():
        _, height, width = declared.features[camera].chw
        key = (repr(encoder), height, width)
        if key in tried:
            continue
        tried.add(key)
        is_depth = isinstance(encoder, DepthEncoderConfig)
        picture = np.zeros((height, width), np.uint16) if is_depth else np.zeros((height, width, 3), np.uint8)
        try:
            with (
                tempfile.TemporaryDirectory(prefix="mimetic-try-") as folder,
                VideoEncoder(
                    Path(folder) / "try.mp4",
                    fps=fps,
                    height=height,
                    width=width,
                    settings=encoder,
                    threads=settings.encoder_threads,
                ) as video,
            ):
                video.add(picture)
        except MimeticError as error:
            raise ConfigError(f"`{camera}` cannot be recorded as a video: {error.message}", error.hint) from error
