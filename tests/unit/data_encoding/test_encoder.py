"""Pictures in, the same pictures out: counts, order, times, and what happens when an encoder fails."""

import signal
import subprocess
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from safetensors.numpy import load_file

from mimetic.data.depth import depth_table
from mimetic.data.encoding.config import PRESETS, DepthEncoderConfig, RgbEncoderConfig, encoder_for
from mimetic.data.encoding.depth import depth_unit, quantise
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.encoding.info import encoder_info, video_info
from mimetic.data.encoding.join import join_videos, why_not_joinable
from mimetic.data.video.frames import FrameReader
from mimetic.errors import ConfigError, DatasetError, VideoError
from mimetic.testing.datasets import coded_image, read_code

SIZE = (64, 80)


def encode(path, episode, length, settings=PRESETS["fast"], fps=30, size=SIZE):
    with VideoEncoder(path, fps=fps, height=size[0], width=size[1], settings=settings) as encoder:
        for frame in range(length):
            encoder.add(coded_image(episode, frame, size))
    return path


def codes(path, fps=30):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        pictures = list(container.decode(stream))
        times = [Fraction(picture.pts) * stream.time_base for picture in pictures]
        assert times == [Fraction(k, fps) for k in range(len(times))], "frames are off the grid"
        return [read_code(picture.to_ndarray(format="rgb24")) for picture in pictures]


@pytest.mark.parametrize("purpose", PRESETS)
@pytest.mark.parametrize("size", [(64, 80), (65, 67)])
def test_every_picture_comes_back_in_order(purpose, size, tmp_path):
    path = encode(tmp_path / "a.mp4", 3, 11, encoder_for(purpose, height=size[0], width=size[1]), size=size)
    assert codes(path) == [(3, k) for k in range(11)]


def test_lossless_means_every_pixel(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (6, *SIZE, 3), dtype=np.uint8)
    with VideoEncoder(tmp_path / "a.mp4", fps=10, height=64, width=80, settings=PRESETS["lossless"]) as encoder:
        for picture in noise:
            encoder.add(picture)
    reader = FrameReader()
    back = reader.read(tmp_path / "a.mp4", range(6), fps=10)
    reader.close()
    assert np.array_equal(back, noise.transpose(0, 3, 1, 2))


def test_a_keyframe_every_g_frames(tmp_path):
    for settings in (PRESETS["fast"], PRESETS["small"]):
        path = encode(tmp_path / "a.mp4", 1, 7, settings)
        with av.open(str(path)) as container:
            keys = [bool(packet.is_keyframe) for packet in container.demux(video=0) if packet.size]
        assert keys == [True, False, True, False, True, False, True]


def test_an_even_size_is_asked_for_where_the_codec_needs_one(tmp_path):
    with pytest.raises(VideoError, match="cannot be encoded with h264"):
        encode(tmp_path / "a.mp4", 0, 2, size=(65, 67))
    assert not (tmp_path / "a.mp4").exists()


def test_wrong_pictures_are_refused(tmp_path):
    encoder = VideoEncoder(tmp_path / "a.mp4", fps=10, height=64, width=80, settings=PRESETS["fast"])
    for picture in (np.zeros((80, 64, 3), np.uint8), np.zeros((64, 80, 3), np.float32), np.zeros((64, 80), np.uint8)):
        with pytest.raises(VideoError, match="takes pictures of"):
            encoder.add(picture)
    encoder.abort()
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_the_block_removes_the_file(tmp_path):
    with (
        pytest.raises(RuntimeError, match="stop"),
        VideoEncoder(tmp_path / "a.mp4", fps=10, height=64, width=80, settings=PRESETS["fast"]) as encoder,
    ):
        encoder.add(coded_image(0, 0, SIZE))
        raise RuntimeError("stop")
    assert list(tmp_path.iterdir()) == []


def test_bad_settings_and_folders_leave_nothing(tmp_path):
    with pytest.raises(ConfigError):
        encode(tmp_path / "a.mp4", 0, 1, RgbEncoderConfig(crf=99))
    with pytest.raises(VideoError, match="cannot be encoded"):
        encode(tmp_path / "missing" / "a.mp4", 0, 1)
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from mimetic.data.encoding.config import PRESETS
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.errors import VideoError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
path = Path(sys.argv[1])
noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
try:
    with VideoEncoder(path, fps=10, height=64, width=80, settings=PRESETS["lossless"]) as encoder:
        for _ in range(60):
            encoder.add(noise)
except VideoError as error:
    print("refused", path.exists(), error.message)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs limits of file sizes")
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path / "a.mp4")], capture_output=True, text=True)
    assert done.stdout.startswith("refused False"), done.stdout + done.stderr[-2000:]


def test_joined_files_show_every_picture_at_its_time(tmp_path):
    """Also when the first part has one frame, whose decoding times are not delayed."""
    for settings in (
        PRESETS["fast"],
        PRESETS["small"],
        RgbEncoderConfig(vcodec="h264"),
        RgbEncoderConfig(vcodec="h264", g=8),
    ):
        lengths = (1, 7, 2, 12, 1, 5)
        parts = [encode(tmp_path / f"{e}.mp4", e, n, settings) for e, n in enumerate(lengths)]
        durations = join_videos(parts, tmp_path / "all.mp4")
        assert durations == [n / 30 for n in lengths]
        assert codes(tmp_path / "all.mp4") == [(e, k) for e, n in enumerate(lengths) for k in range(n)]
        reader = FrameReader()
        assert read_code(reader.read(tmp_path / "all.mp4", [22], fps=30)[0]) == (4, 0)
        reader.close()


def test_files_of_other_settings_are_not_joined(tmp_path):
    one = encode(tmp_path / "a.mp4", 0, 3)
    others = {
        "codec": encode(tmp_path / "b.mp4", 0, 3, PRESETS["small"]),
        "height": encode(tmp_path / "c.mp4", 0, 3, size=(96, 80)),
        "frame rate": encode(tmp_path / "d.mp4", 0, 3, fps=10),
        "codec header": encode(tmp_path / "e.mp4", 0, 3, RgbEncoderConfig(vcodec="h264", preset="veryfast")),
    }
    for word, other in others.items():
        assert word in why_not_joinable(one, other)
        with pytest.raises(VideoError, match=word):
            join_videos([one, other], tmp_path / "all.mp4")
        assert not (tmp_path / "all.mp4").exists()
    assert why_not_joinable(one, encode(tmp_path / "f.mp4", 5, 9)) == ""


def test_the_info_block_is_lerobots(tmp_path, fixtures):
    import json

    path = encode(tmp_path / "a.mp4", 0, 3, RgbEncoderConfig(), size=(96, 128))
    golden = json.loads((fixtures / "dataset" / "video_v30" / "meta" / "info.json").read_text())
    wanted = golden["features"]["observation.images.top"]["info"]
    assert list(video_info(path, RgbEncoderConfig()).items()) == list(wanted.items())


def test_the_info_block_of_depth_is_lerobots(tmp_path, fixtures):
    import json

    with VideoEncoder(tmp_path / "d.mp4", fps=10, height=64, width=64, settings=DepthEncoderConfig()) as encoder:
        for k in range(3):
            encoder.add(np.full((64, 64, 1), 500 + k, dtype=np.uint16))
    golden = json.loads((fixtures / "dataset" / "dtypes_v30" / "meta" / "info.json").read_text())
    wanted = golden["features"]["observation.images.depth_vid"]["info"]
    assert list(video_info(tmp_path / "d.mp4", DepthEncoderConfig(), True, depth_unit="mm").items()) == list(
        wanted.items()
    )
    assert "video.depth_min" in encoder_info(DepthEncoderConfig())


@pytest.mark.parametrize("seed", range(4))
def test_depth_codes_are_stored_exactly(seed, tmp_path):
    """With x265's own block size, seeds 2 and 3 come back with altered pixels."""
    chance = np.random.default_rng(seed)
    slope = 800 + 20 * np.arange(64)[:, None] + 9 * np.arange(64) + chance.integers(-3, 4, (6, 64, 64))
    frames = np.asarray([np.where(chance.random((64, 64)) < 0.1, 0, one) for one in slope], dtype=np.uint16)
    with VideoEncoder(tmp_path / "d.mp4", fps=10, height=64, width=64, settings=DepthEncoderConfig()) as encoder:
        for frame in frames:
            encoder.add(frame)
    with av.open(str(tmp_path / "d.mp4")) as container:
        back = [picture.to_ndarray() for picture in container.decode(video=0)]
    assert np.array_equal(back, [quantise(frame, DepthEncoderConfig()) for frame in frames])


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "settings", [*PRESETS.values(), RgbEncoderConfig(vcodec="h264"), RgbEncoderConfig(vcodec="hevc")]
)
def test_very_short_videos_are_complete(settings, length, tmp_path):
    path = encode(tmp_path / "a.mp4", 5, length, settings)
    assert codes(path) == [(5, k) for k in range(length)]


@pytest.mark.parametrize("length", [1, 2, 3])
def test_very_short_depth_videos_are_complete(length, tmp_path):
    with VideoEncoder(tmp_path / "d.mp4", fps=10, height=64, width=64, settings=DepthEncoderConfig()) as encoder:
        for k in range(length):
            encoder.add(np.full((64, 64), 1000 + k, dtype=np.uint16))
    with av.open(str(tmp_path / "d.mp4")) as container:
        assert len(list(container.decode(video=0))) == length


SETTINGS = {
    "default": DepthEncoderConfig(),
    "linear": DepthEncoderConfig(use_log=False),
    "narrow": DepthEncoderConfig(depth_min=0.1, depth_max=2.0, shift=0.5),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_depth_codes_equal_lerobots(name, fixtures):
    golden = load_file(fixtures / "dataset" / "depth" / "depth.safetensors")
    if "in_mm" not in golden:
        pytest.fail("the golden inputs are missing")
    mm, m = golden["in_mm"].astype(np.uint16), golden["in_m"].astype(np.float32)
    assert np.array_equal(quantise(mm, SETTINGS[name]), golden[f"{name}/codes_from_mm"])
    assert np.array_equal(quantise(m, SETTINGS[name]), golden[f"{name}/codes_from_m"])


def test_depth_survives_within_a_millimetre():
    depth = np.arange(500, 5000, dtype=np.uint16)[None]
    back = depth_table({}, "mm")[quantise(depth, DepthEncoderConfig())]
    assert np.abs(back - depth).max() <= 1


def test_odd_depth_values_get_the_nearest_code():
    values = np.array([[np.nan, -5.0, 0.0, np.inf]], dtype=np.float32)
    assert quantise(values, DepthEncoderConfig()).tolist() == [[0, 0, 0, 4095]]
    assert quantise(np.array([[0, 65535]], dtype=np.uint16), DepthEncoderConfig()).tolist() == [[0, 4095]]
    with pytest.raises(DatasetError, match="uint16"):
        depth_unit(np.dtype(np.float64))
