"""The `info` block of a video feature: what the stream is, and which settings made it (spec/dataset.md 3)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic.data.encoding.config import DepthEncoderConfig, EncoderConfig, RgbEncoderConfig
from mimetic.data.video.index import open_container

_DEPTH_FIELDS = ("depth_min", "depth_max", "shift", "use_log")
_COMMON_FIELDS = ("g", "crf", "preset", "fast_decode", "video_backend", "extra_options")
_ENCODERS = {"av1": "libsvtav1", "h264": "h264", "hevc": "hevc"}


def video_info(
    path: Path, settings: EncoderConfig | None = None, is_depth: bool = False, *, depth_unit: str | None = None
) -> dict[str, Any]:
    """Describe a video file in the words and order of LeRobot 0.6.1.

    Args:
        path: a file of the camera.
        settings: what it was encoded with; None leaves the encoder's keys out.
        is_depth: whether a depth encoder made it.
        depth_unit: "mm" or "m" of the values that were encoded.

    Raises:
        VideoError: not a video.
    """
    container, stream = open_container(path)
    try:
        context = stream.codec_context
        block: dict[str, Any] = {"is_depth_map": is_depth}
        if depth_unit is not None:
            block["depth_unit"] = depth_unit
        block |= {
            "video.height": context.height,
            "video.width": context.width,
            "video.codec": context.codec.canonical_name,
            "video.pix_fmt": context.pix_fmt,
            "video.fps": int(stream.base_rate),
            "video.channels": len(context.format.components),
        }
        block |= _audio(container)
    finally:
        container.close()
    return block | (encoder_info(settings) if settings is not None else {})


def encoder_info(settings: EncoderConfig) -> dict[str, Any]:
    """The keys of the block that hold the settings of the encoder."""
    block: dict[str, Any] = {
        "video.g": settings.g,
        "video.crf": settings.crf,
        "video.preset": settings.effective_preset,
        "video.fast_decode": settings.fast_decode,
        "video.video_backend": settings.video_backend,
        "video.extra_options": dict(settings.extra_options),
    }
    if isinstance(settings, DepthEncoderConfig):
        block |= {f"video.{name}": getattr(settings, name) for name in _DEPTH_FIELDS}
    return block


def encoder_from_info(info: Mapping[str, Any], *, is_depth: bool = False) -> EncoderConfig:
    """The encoder that made a camera's videos; what the block does not say takes the default.

    Args:
        info: the block of the feature.
        is_depth: whether the camera holds depth.
    """
    given: dict[str, Any] = {}
    codec = info.get("video.codec")
    if isinstance(codec, str):
        given["vcodec"] = _ENCODERS.get(codec, codec)
    if isinstance(info.get("video.pix_fmt"), str):
        given["pix_fmt"] = info["video.pix_fmt"]
    if given.get("vcodec") == "h264" and given.get("pix_fmt") == "gbrp":  # H.264 on RGB planes, see `PRESETS`
        given |= {"vcodec": "libx264rgb", "pix_fmt": "rgb24"}
    names = (
        "g",
        "crf",
        "preset",
        "fast_decode",
        "video_backend",
        "extra_options",
        *(_DEPTH_FIELDS if is_depth else ()),
    )
    given |= {name: info[f"video.{name}"] for name in names if info.get(f"video.{name}") is not None}
    return DepthEncoderConfig(**given) if is_depth else RgbEncoderConfig(**given)


def _audio(container: Any) -> dict[str, Any]:
    if not container.streams.audio:
        return {"has_audio": False}
    stream = container.streams.audio[0]
    context = stream.codec_context
    return {
        "has_audio": True,
        "audio.channels": context.channels,
        "audio.codec": context.codec.canonical_name,
        "audio.bit_rate": context.bit_rate,
        "audio.sample_rate": context.sample_rate,
        "audio.bit_depth": context.format.bits if context.format else None,
        "audio.channel_layout": context.layout.name,
    }
