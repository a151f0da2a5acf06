"""Settings of a recording: how cameras are encoded, how much may wait, how large files become."""

from __future__ import annotations

from dataclasses import dataclass

from mimetic.data.encoding.config import PURPOSES, DepthEncoderConfig, RgbEncoderConfig
from mimetic.fields import setting


@dataclass(frozen=True, kw_only=True)
class WriterConfig:
    """How a dataset is written."""

    encoding: str | None = setting(
        None,
        "Colour videos by purpose: fast (H.264, a fraction of a core), small (AV1), lossless; default: fast, and in a "
        "dataset that is continued what it has",
        choices=PURPOSES,
        layer="mimetic",
    )
    rgb_encoder: RgbEncoderConfig | None = setting(
        None, "Encoder of colour cameras in full, instead of --encoding; what is left out has LeRobot's defaults"
    )
    depth_encoder: DepthEncoderConfig | None = setting(
        None, "Encoder of depth cameras; default: LeRobot's, and in a dataset that is continued what it has"
    )
    encoder_threads: int | None = setting(None, "Threads of each encoder; default: the encoder's own choice")
    queue_mb: int = setting(
        128, "Pictures that may wait for the encoders, all cameras together", layer="mimetic", unit="MB"
    )
    on_overflow: str = setting(
        "block",
        "When the queue is full: block lets the loop wait, repeat shows the picture before once more and marks it",
        choices=("block", "repeat"),
        layer="mimetic",
    )
    data_files_size_in_mb: float | None = setting(
        None, "Size limit of a data file after packing; default: 100, and in a dataset that is continued its own"
    )
    video_files_size_in_mb: float | None = setting(
        None, "Size limit of a video file after packing; default: 200, and in a dataset that is continued its own"
    )

    def check(self) -> list[str]:
        """Problems of this group, one sentence each."""
        problems = []
        if self.encoding is not None and self.encoding not in PURPOSES:
            problems.append(f"`encoding={self.encoding}` is not one of {', '.join(PURPOSES)}")
        if self.encoding is not None and self.rgb_encoder is not None:
            problems.append("`encoding` and `rgb_encoder` both say how colour cameras are encoded; leave one out")
        if self.queue_mb < 1:
            problems.append(f"`queue_mb={self.queue_mb}` must be at least 1")
        if self.on_overflow not in ("block", "repeat"):
            problems.append(f"`on_overflow={self.on_overflow}` is neither block nor repeat")
        if self.encoder_threads is not None and self.encoder_threads < 1:
            problems.append(f"`encoder_threads={self.encoder_threads}` must be at least 1")
        for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                problems.append(f"`{name}={value}` must be above 0")
        for encoder in (self.rgb_encoder, self.depth_encoder):
            problems += encoder.check() if encoder is not None else []
        return problems
