"""Whether a camera's videos already are what an encoder would make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimetic.data.encoding.config import EncoderConfig
from mimetic.data.encoding.info import encoder_from_info


def is_encoded_with(info: Mapping[str, Any], settings: EncoderConfig, *, is_depth: bool) -> bool:
    """Whether an `info` block says that a stream was made with these settings; false where it does not say.

    Args:
        info: the camera's block of info.json.
        settings: what is wanted.
        is_depth: whether it holds depth.
    """
    if not {"video.codec", "video.g", "video.crf"} <= set(info):
        return False
    return _comparable(encoder_from_info(info, is_depth=is_depth)) == _comparable(settings)


def _comparable(settings: EncoderConfig) -> tuple[Any, ...]:
    return (
        settings.codec,
        settings.pix_fmt,
        settings.g,
        settings.crf,
        settings.effective_preset,
        settings.fast_decode,
        sorted(settings.extra_options.items()),
    )
