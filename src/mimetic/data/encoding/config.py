"""Settings of video encoding: LeRobot's `rgb_encoder.*` and `depth_encoder.*`, and presets named by purpose.

What can be judged without FFmpeg is judged here (spec/dataset.md 8.1); `codecs.py` asks the FFmpeg build for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from mimetic.catalog import closest_hint
from mimetic.fields import setting

CODECS = (
    "h264",
    "hevc",
    "libsvtav1",
    "libaom-av1",
    "auto",
    "h264_videotoolbox",
    "hevc_videotoolbox",
    "h264_nvenc",
    "hevc_nvenc",
    "h264_vaapi",
    "h264_qsv",
    "libx264rgb",
)
"""Values of `vcodec`; all but the last are LeRobot's."""
ALIASES = {"av1": "libsvtav1"}
HARDWARE = ("h264_videotoolbox", "hevc_videotoolbox", "h264_nvenc", "hevc_nvenc", "h264_vaapi", "h264_qsv")
"""Hardware encoders in the order in which `vcodec=auto` tries them."""
SVT_PRESET = 12
Purpose = Literal["fast", "small", "lossless"]
PURPOSES = ("fast", "small", "lossless")
_OWNED = ("g", "crf", "preset")
"""Codec options that have a setting of their own, so that `extra_options` cannot name them."""


@dataclass(frozen=True, kw_only=True)
class RgbEncoderConfig:
    """How colour cameras become videos; the defaults are LeRobot's (AV1)."""

    vcodec: str = setting("libsvtav1", f"Video encoder: {', '.join(CODECS)} (`av1` means libsvtav1)")
    pix_fmt: str = setting("yuv420p", "Pixel format inside the video; the encoder must support it")
    g: int = setting(2, "A keyframe every so many frames; small numbers make random access fast", unit="frames")
    crf: int = setting(30, "Quality: lower is better and larger; the scale differs between encoders")
    preset: str | int | None = setting(
        None, "Speed of the encoder, in its own words; 12 for libsvtav1 when left out, else the encoder's default"
    )
    fast_decode: int = setting(0, "Make videos cheaper to decode: 0 to 2 for libsvtav1, 0 or 1 for h264 and hevc")
    video_backend: str = setting("pyav", "Library that encodes", choices=("pyav",))
    extra_options: dict[str, Any] = setting(factory=dict, help="Further options of the encoder, by FFmpeg's names")

    @property
    def codec(self) -> str:
        """`vcodec` without its alias."""
        return ALIASES.get(self.vcodec, self.vcodec)

    @property
    def effective_preset(self) -> str | int | None:
        """The preset, with the one that belongs to libsvtav1."""
        return SVT_PRESET if self.preset is None and self.codec == "libsvtav1" else self.preset

    def check(self) -> list[str]:
        """Problems that show without FFmpeg, one sentence each."""
        problems = []
        if self.codec not in CODECS:
            hint = closest_hint(self.vcodec, (*CODECS, *ALIASES))
            problems.append(
                f"`vcodec={self.vcodec}` is no video encoder that is supported here"
                + (f"; {hint}" if hint else f"; there are {', '.join((*CODECS, *ALIASES))}")
            )
        if self.g < 1:
            problems.append(f"`g={self.g}` must be at least 1, the number of frames from keyframe to keyframe")
        most = 2 if self.codec == "libsvtav1" else 1
        if not 0 <= self.fast_decode <= most and self.codec != "auto":
            problems.append(f"`fast_decode={self.fast_decode}` must lie in 0..{most} for {self.codec}")
        if self.video_backend != "pyav":
            problems.append(f"`video_backend={self.video_backend}` is not known; there is only `pyav`")
        owned = [name for name in self.extra_options if name in _OWNED]
        if owned:
            names = ", ".join(f"`{name}`" for name in owned)
            problems.append(f"`extra_options` names {names}, which have settings of their own")
        return problems


@dataclass(frozen=True, kw_only=True)
class DepthEncoderConfig:
    """How depth cameras become videos: 12 bits, lossless."""

    vcodec: str = setting("hevc", "Video encoder; it must support `pix_fmt`")
    pix_fmt: str = setting("gray12le", "Pixel format inside the video")
    g: int = setting(2, "A keyframe every so many frames; small numbers make random access fast", unit="frames")
    crf: int = setting(30, "Quality: without effect as long as `extra_options` asks for lossless coding")
    preset: str | int | None = setting(None, "Speed of the encoder, in its own words")
    fast_decode: int = setting(0, "Make videos cheaper to decode")
    video_backend: str = setting("pyav", "Library that encodes", choices=("pyav",))
    extra_options: dict[str, Any] = setting(
        factory=lambda: {"x265-params": "lossless=1"}, help="Further options of the encoder, by FFmpeg's names"
    )
    depth_min: float = setting(0.01, "Nearest depth that is kept", unit="m")
    depth_max: float = setting(10.0, "Farthest depth that is kept", unit="m")
    shift: float = setting(3.5, "Added before the logarithm: larger spreads the 4096 steps more evenly", unit="m")
    use_log: bool = setting(True, "Finer steps near the camera (logarithm) instead of equal ones")

    @property
    def codec(self) -> str:
        """`vcodec` without its alias."""
        return ALIASES.get(self.vcodec, self.vcodec)

    @property
    def effective_preset(self) -> str | int | None:
        """The preset, with the one that belongs to libsvtav1."""
        return SVT_PRESET if self.preset is None and self.codec == "libsvtav1" else self.preset

    def check(self) -> list[str]:
        """Problems that show without FFmpeg, one sentence each."""
        colour = RgbEncoderConfig(
            vcodec=self.vcodec,
            pix_fmt=self.pix_fmt,
            g=self.g,
            fast_decode=self.fast_decode,
            video_backend=self.video_backend,
            extra_options=self.extra_options,
        )
        problems = colour.check()
        if not self.depth_max > self.depth_min >= 0:
            problems.append(
                f"`depth_min={self.depth_min}` and `depth_max={self.depth_max}` must satisfy 0 <= min < max"
            )
        if self.use_log and self.depth_min + self.shift <= 0:
            problems.append(
                f"`depth_min + shift` is {self.depth_min + self.shift}; a logarithmic depth needs more than 0"
            )
        return problems


EncoderConfig = RgbEncoderConfig | DepthEncoderConfig

PRESETS: dict[Purpose, RgbEncoderConfig] = {
    "fast": RgbEncoderConfig(vcodec="h264", crf=21, preset="ultrafast"),
    "small": RgbEncoderConfig(),
    "lossless": RgbEncoderConfig(vcodec="libx264rgb", pix_fmt="rgb24", crf=0, preset="ultrafast"),
}
"""Encoder settings by purpose (measured in docs/guides/record_datasets.md).

- `fast`: H.264; a quarter of the work of AV1 for the same picture quality, two to three times the size.
- `small`: AV1 as LeRobot encodes by default.
- `lossless`: H.264 on RGB planes; every pixel comes back as it was, at half the size of raw pictures.
"""


def encoder_for(purpose: Purpose, *, height: int, width: int) -> RgbEncoderConfig:
    """The settings of a colour camera by purpose.

    Args:
        purpose: key of `PRESETS`.
        height: of the camera [px].
        width: of the camera [px].
    """
    settings = PRESETS[purpose]
    if settings.codec == "h264" and (height % 2 or width % 2):
        return replace(settings, pix_fmt="yuv444p")  # H.264 with halved colour planes takes even sizes only
    return settings
