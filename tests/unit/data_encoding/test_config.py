"""Encoder settings: LeRobot's defaults, mappings to FFmpeg's options, and refusals that name every problem."""

import numpy as np
import pytest

from mimetic.data.encoding import codecs, hardware
from mimetic.data.encoding.codecs import resolve_encoder
from mimetic.data.encoding.config import PRESETS, DepthEncoderConfig, RgbEncoderConfig, encoder_for
from mimetic.data.encoding.info import encoder_from_info, encoder_info
from mimetic.errors import ConfigError


@pytest.fixture
def everything_works(monkeypatch):
    """A machine on which every encoder of this FFmpeg encodes."""
    monkeypatch.setattr(codecs, "why_unusable", lambda codec: "")


def test_the_defaults_are_lerobots():
    resolved = resolve_encoder(RgbEncoderConfig())
    assert (resolved.codec, resolved.pix_fmt) == ("libsvtav1", "yuv420p")
    assert resolved.options == {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "fast-decode=0"}
    depth = resolve_encoder(DepthEncoderConfig(), is_depth=True)
    assert (depth.codec, depth.pix_fmt) == ("hevc", "gray12le")
    assert depth.options == {"g": "2", "crf": "30", "x265-params": "lossless=1:log-level=error:bframes=0:ctu=32"}


@pytest.mark.parametrize(
    ("settings", "threads", "expected"),
    [
        (
            {"vcodec": "av1", "fast_decode": 2, "preset": 8},
            3,
            {"g": "2", "crf": "30", "preset": "8", "svtav1-params": "fast-decode=2:lp=3"},
        ),
        (
            {"vcodec": "h264", "crf": 23, "preset": "veryfast", "fast_decode": 1},
            2,
            {"g": "2", "crf": "23", "preset": "veryfast", "tune": "fastdecode", "threads": "2"},
        ),
        ({"vcodec": "hevc", "g": 10}, None, {"g": "10", "crf": "30", "x265-params": "log-level=error:bframes=0"}),
        ({"vcodec": "h264_nvenc", "preset": "p4"}, None, {"g": "2", "rc": "0", "qp": "30", "preset": "p4"}),
        ({"vcodec": "h264_qsv", "preset": "fast"}, None, {"g": "2", "global_quality": "30", "preset": "fast"}),
        ({"vcodec": "h264", "extra_options": {"qmin": 5}}, None, {"g": "2", "crf": "30", "qmin": "5"}),
        (
            {"vcodec": "libsvtav1", "extra_options": {"svtav1-params": "tune=0:fast-decode=2"}},
            None,
            {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "tune=0:fast-decode=0"},
        ),
    ],
)
def test_settings_become_the_options_of_the_codec(settings, threads, expected, everything_works):
    assert resolve_encoder(RgbEncoderConfig(**settings), threads=threads).options == expected


def test_videotoolbox_and_vaapi_have_scales_of_their_own():
    """These encoders are in no Linux wheel, so their mapping is looked at without the build."""
    assert codecs._mapped("h264_videotoolbox", RgbEncoderConfig(crf=30, preset="x"), 2) == {"g": "2", "q:v": "40"}
    assert codecs._mapped("hevc_videotoolbox", RgbEncoderConfig(crf=60), None)["q:v"] == "1"
    assert codecs._mapped("h264_vaapi", RgbEncoderConfig(crf=28), None) == {"g": "2", "qp": "28"}
    assert codecs._mapped("libaom-av1", RgbEncoderConfig(vcodec="libaom-av1"), 2) == {
        "g": "2",
        "crf": "30",
        "threads": "2",
        "row-mt": "1",
    }


def test_quicksync_gets_the_same_samples_in_the_order_that_it_knows(everything_works):
    assert resolve_encoder(RgbEncoderConfig(vcodec="h264_qsv")).pix_fmt == "nv12"


def test_every_problem_is_named_at_once():
    settings = RgbEncoderConfig(vcodec="h246", g=0, fast_decode=7, video_backend="gst", extra_options={"crf": 3})
    with pytest.raises(ConfigError) as caught:
        resolve_encoder(settings)
    for word in ("vcodec=h246", "h264", "g=0", "fast_decode=7", "video_backend=gst", "`crf`"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"crf": 64}, r"crf=64.*0..63 for libsvtav1"),
        ({"crf": -1}, r"crf=-1.*0..63"),
        ({"vcodec": "h264", "crf": 52}, r"crf=52.*0..51 for h264"),
        ({"preset": 14}, r"preset=14.*-2..13"),
        ({"preset": "veryfast"}, r"preset=veryfast.*number"),
        ({"vcodec": "h264", "preset": "quick"}, r"preset=quick.*ultrafast"),
        ({"vcodec": "h264", "extra_options": {"qmix": 3}}, r"qmix.*h264 does not have"),
        ({"vcodec": "h264", "extra_options": {"qmin": 400}}, r"qmin=400.*69"),
        ({"pix_fmt": "gbrp"}, r"pix_fmt=gbrp.*libsvtav1.*yuv420p"),
        ({"vcodec": "h264", "pix_fmt": "gray"}, r"1 components"),
        ({"vcodec": "libaom-av1"}, r"not part of the FFmpeg"),
        ({"fast_decode": 3}, r"0..2"),
    ],
)
def test_values_out_of_range_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        resolve_encoder(RgbEncoderConfig(**settings))


def test_depth_ranges_without_a_logarithm_are_refused():
    assert DepthEncoderConfig(shift=-0.01).check()
    assert DepthEncoderConfig(depth_min=2.0, depth_max=1.0).check()
    assert DepthEncoderConfig(shift=-0.01, use_log=False).check() == []


def test_a_hardware_encoder_that_does_not_encode_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(codecs, "why_unusable", lambda codec: "no device")
    with pytest.raises(ConfigError, match=r"h264_nvenc.*no device"):
        resolve_encoder(RgbEncoderConfig(vcodec="h264_nvenc"))


def test_auto_takes_the_first_hardware_encoder_that_encodes_else_av1_with_a_reason(monkeypatch, caplog):
    monkeypatch.setattr(codecs, "why_unusable", lambda codec: "" if codec == "h264_nvenc" else "absent")
    assert resolve_encoder(RgbEncoderConfig(vcodec="auto")).codec == "h264_nvenc"
    monkeypatch.setattr(codecs, "why_unusable", lambda codec: "absent")
    resolved = resolve_encoder(RgbEncoderConfig(vcodec="auto"))
    assert resolved.codec == "libsvtav1"
    assert "h264_qsv: absent" in resolved.reason
    assert resolved.options["preset"] == "12"
    assert "no hardware encoder works" in caplog.text


def test_the_probe_says_what_really_encodes():
    assert hardware.why_unusable("libx264") == ""
    assert hardware.why_unusable("no_such_encoder") == "not part of this FFmpeg"
    assert set(hardware.hardware_encoders()) == set(hardware.HARDWARE)


@pytest.mark.parametrize("purpose", PRESETS)
def test_a_preset_survives_the_info_block(purpose):
    settings = PRESETS[purpose]
    resolve_encoder(settings)
    stream = {"fast": ("h264", "yuv420p"), "small": ("av1", "yuv420p"), "lossless": ("h264", "gbrp")}[purpose]
    block = {"video.codec": stream[0], "video.pix_fmt": stream[1], **encoder_info(settings)}
    again = encoder_from_info(block)
    assert resolve_encoder(again) == resolve_encoder(settings)


def test_null_and_absent_fields_of_a_block_take_the_defaults():
    assert encoder_from_info({"video.codec": "av1", "video.g": None}) == RgbEncoderConfig()
    assert encoder_from_info({}, is_depth=True) == DepthEncoderConfig()


def test_odd_sizes_get_whole_colour_planes_where_h264_needs_them():
    assert encoder_for("fast", height=64, width=80) == PRESETS["fast"]
    assert encoder_for("fast", height=65, width=80).pix_fmt == "yuv444p"
    assert encoder_for("small", height=65, width=67) == RgbEncoderConfig()


def test_settings_are_dataclasses_without_heavy_imports():
    """`config.py` stands on the way to help texts."""
    import subprocess
    import sys

    code = "import sys, mimetic.data.encoding.config; print([m for m in ('av', 'numpy', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert np.float32  # the test itself has it
