"""From encoder settings to options of FFmpeg's encoders, checked against the build in use (spec/dataset.md 8.1)."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import Any

import av
from av.codec import Codec
from av.codec.context import CodecContext

from mimetic.data.encoding.config import HARDWARE, EncoderConfig
from mimetic.data.encoding.hardware import why_unusable
from mimetic.errors import ConfigError
from mimetic.log import once

logger = logging.getLogger(__name__)

_X26X = ("h264", "hevc", "libx264rgb")
_X26X_PRESETS = (
    *("ultrafast", "superfast", "veryfast", "faster", "fast", "medium", "slow", "slower", "veryslow", "placebo"),
)
_LARGEST_CRF = {"h264": 51, "libx264rgb": 51, "hevc": 51}
"""Where the build announces no useful limit: the encoder's own."""
_SAME_SAMPLES = {"yuv420p": "nv12"}
"""Hardware encoders want the same samples in another order."""


@dataclass(frozen=True, kw_only=True)
class ResolvedEncoder:
    """What FFmpeg is told.

    Args:
        codec: name of the encoder in FFmpeg.
        pix_fmt: pixel format of the pictures that it gets.
        options: its options.
        reason: why this encoder, one sentence, when `auto` chose it.
    """

    codec: str
    pix_fmt: str
    options: dict[str, str]
    reason: str = ""


def resolve_encoder(settings: EncoderConfig, *, threads: int | None = None, is_depth: bool = False) -> ResolvedEncoder:
    """Check settings against the FFmpeg build and turn them into its options.

    Args:
        settings: of a colour or depth camera.
        threads: threads of one encoder; None leaves it to the encoder.
        is_depth: whether one plane suffices.

    Raises:
        ConfigError: unknown or absent encoder, pixel format or option, values out of range; all problems at once.
    """
    problems = settings.check()
    if problems:
        raise _refused(problems)
    settings, reason = settle(settings)
    codec = settings.codec
    encoder = _find(codec)
    pix_fmt = _pixel_format(encoder, codec, settings.pix_fmt, problems, n_components=1 if is_depth else 3)
    options = _mapped(codec, settings, threads)
    problems += _range_problems(codec, settings, options)
    for name, value in settings.extra_options.items():
        options[name] = _merged(name, options, str(value))
    if problems:
        raise _refused(problems)
    return ResolvedEncoder(codec=codec, pix_fmt=pix_fmt, options=options, reason=reason)


def settle(settings: EncoderConfig) -> tuple[EncoderConfig, str]:
    """The settings with the encoder that `auto` stands for on this machine, and why it was taken.

    That is the first hardware encoder that really encodes here, else libsvtav1. Other settings come back as they are.
    """
    if settings.codec != "auto":
        return settings, ""
    codec, reason = _choose()
    return replace(settings, vcodec=codec), reason


def _choose() -> tuple[str, str]:
    reasons = []
    for name in HARDWARE:
        problem = why_unusable(name)
        if not problem:
            return name, f"{name} encodes on this machine"
        reasons.append(f"{name}: {problem}")
    why = f"no hardware encoder works here, so libsvtav1 is used ({'; '.join(reasons)})"
    once(logger, logging.WARNING, "vcodec=auto: %s", why)
    return "libsvtav1", why


def _find(codec: str) -> Any:
    try:
        encoder = Codec(codec, "w")
    except (av.FFmpegError, ValueError) as error:
        raise ConfigError(
            f"`vcodec={codec}` is not part of the FFmpeg in this PyAV ({av.__version__})",
            "use `h264` (fast) or `libsvtav1` (small)",
        ) from error
    problem = why_unusable(codec) if codec in HARDWARE else ""
    if problem:
        raise ConfigError(
            f"`vcodec={codec}` does not encode on this machine: {problem}",
            "use `h264` or `auto`, or look at the driver",
        )
    return encoder


def _pixel_format(encoder: Any, codec: str, wanted: str, problems: list[str], *, n_components: int) -> str:
    known = [form.name for form in encoder.video_formats or ()]
    if wanted not in known and codec in HARDWARE and _SAME_SAMPLES.get(wanted) in known:
        return _SAME_SAMPLES[wanted]
    if known and wanted not in known:
        problems.append(f"`pix_fmt={wanted}` is not supported by {codec}; it takes {', '.join(known)}")
        return wanted
    try:
        n_found = len(av.VideoFormat(wanted).components)
    except ValueError:
        problems.append(f"`pix_fmt={wanted}` is not a pixel format")
        return wanted
    if n_found < n_components:
        problems.append(f"`pix_fmt={wanted}` has {n_found} components; a colour picture needs {n_components}")
    return wanted


def _mapped(codec: str, settings: EncoderConfig, threads: int | None) -> dict[str, str]:
    """The codec's options for the settings that are common to all."""
    options = {"g": str(settings.g)}
    crf, preset = str(settings.crf), settings.effective_preset
    if codec == "libsvtav1":
        options["crf"] = crf
        options["svtav1-params"] = f"fast-decode={settings.fast_decode}" + (f":lp={threads}" if threads else "")
    elif codec in _X26X:
        options["crf"] = crf
        if settings.fast_decode:
            options["tune"] = "fastdecode"
        if threads:
            options["threads"] = str(threads)
    elif codec == "libaom-av1":
        options["crf"] = crf
        if threads:
            options |= {"threads": str(threads), "row-mt": "1"}
    elif codec.endswith("videotoolbox"):
        options["q:v"] = str(min(max(100 - 2 * settings.crf, 1), 100))
        preset = None
    elif codec.endswith("nvenc"):
        options |= {"rc": "0", "qp": crf}
    elif codec.endswith("vaapi"):
        options["qp"] = crf
        preset = None
    elif codec.endswith("qsv"):
        options["global_quality"] = crf
    if preset is not None:
        options["preset"] = str(preset)
    if codec == "hevc":
        # It would write a report of every episode into the terminal; with B-frames it cannot end a video of two frames.
        options["x265-params"] = "log-level=error:bframes=0"
        if "lossless=1" in str(settings.extra_options.get("x265-params")):
            # With its default blocks of 64, x265's lossless mode alters a few blocks of noisy 12-bit pictures.
            options["x265-params"] += ":ctu=32"
    return options


def _merged(name: str, options: dict[str, str], value: str) -> str:
    """An extra option, joined to parameter lists that are in use already; what came first in them stays in force."""
    if name in ("svtav1-params", "x265-params", "x264-params") and options.get(name):
        taken = {part.partition("=")[0] for part in options[name].split(":")}
        added = [part for part in value.split(":") if part and part.partition("=")[0] not in taken]
        return ":".join([*added, options[name]])
    return options.get(name, value)


@functools.cache
def _options_of(codec: str) -> dict[str, Any]:
    """Options of an encoder by name, its own before the general ones."""
    found = CodecContext.create(codec, "w").supported_options
    return {option.name: option for group in (found.generic, found.private) for option in group}


def _range_problems(codec: str, settings: EncoderConfig, options: dict[str, str]) -> list[str]:
    known = _options_of(codec)
    problems = []
    if codec in _X26X and settings.preset is not None and settings.preset not in _X26X_PRESETS:
        problems.append(f"`preset={settings.preset}` is not known to {codec}; it has {', '.join(_X26X_PRESETS)}")
    unknown = [name for name in settings.extra_options if name not in known]
    if unknown:
        problems.append(f"`extra_options` holds {', '.join(unknown)}, which {codec} does not have")
    names = {"crf": "crf", "qp": "crf", "global_quality": "crf", "preset": "preset"}
    given = {name: (setting, options[name]) for name, setting in names.items() if name in options}
    given |= {name: (name, str(value)) for name, value in settings.extra_options.items() if name in known}
    for name, (setting, value) in given.items():
        option = known.get(name)
        choices = [choice.name for choice in option.choices] if option is not None else []
        if option is None or value in choices:
            continue
        largest = min(option.max, _LARGEST_CRF.get(codec, option.max)) if name == "crf" else option.max
        smallest = max(option.min, 0) if name == "crf" else option.min
        if largest <= smallest:  # text
            continue
        try:
            number = float(value)
        except ValueError:
            if choices:
                problems.append(f"`{setting}={value}` is not known to {codec}; it has {', '.join(choices)}")
            elif name in names:
                problems.append(f"`{setting}={value}` must be a number for {codec}")
            continue
        if not smallest <= number <= largest:
            problems.append(f"`{setting}={value}` must lie in {smallest:g}..{largest:g} for {codec}")
    return problems


def _refused(problems: list[str]) -> ConfigError:
    return ConfigError("; ".join(problems), "the settings are those of `rgb_encoder` and `depth_encoder`")
