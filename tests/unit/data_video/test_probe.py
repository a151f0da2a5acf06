"""The choice of a decoder, with a stand-in for torchcodec that decodes by PyAV."""

import sys
import types

import numpy as np
import pytest
import torch

from mimetic.data.video.frames import FrameReader
from mimetic.data.video.probe import choose_backend
from mimetic.errors import ConfigError, VideoError


class Clock:
    """Says that the first measured span is long and the second one short, or the other way round."""

    def __init__(self, *spans):
        self.times = [time for span in spans for time in (0.0, span)]

    def __call__(self):
        return self.times.pop(0)


@pytest.fixture
def torchcodec(monkeypatch, plain):
    """Install a stand-in; `offset` is added to its pixels."""

    def install(offset=0, late_s=0.0):
        class VideoDecoder:
            def __init__(self, source, *, dimension_order, num_ffmpeg_threads, device, seek_mode):
                assert (dimension_order, num_ffmpeg_threads, device, seek_mode) == ("NCHW", 1, "cpu", "exact")
                self.frames = plain(source)
                self.metadata = types.SimpleNamespace(height=self.frames.shape[2], width=self.frames.shape[3])

            def get_frames_at(self, indices):
                data = torch.from_numpy(self.frames[indices].astype(np.int16) + offset).clamp(0, 255).to(torch.uint8)
                times = torch.tensor([index / 30 + late_s for index in indices], dtype=torch.float64)
                return types.SimpleNamespace(data=data, pts_seconds=times)

        package = types.ModuleType("torchcodec")
        decoders = types.ModuleType("torchcodec.decoders")
        decoders.VideoDecoder = VideoDecoder
        monkeypatch.setitem(sys.modules, "torchcodec", package)
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)

    return install


@pytest.fixture
def broken(monkeypatch):
    """An installed torchcodec whose libraries do not load."""

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("torchcodec"):
                raise OSError("libavutil.so.56: cannot open shared object file\nmany more lines")

    for name in [name for name in sys.modules if name.split(".")[0] == "torchcodec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)


def test_pyav_and_its_old_name_are_taken_as_asked():
    assert choose_backend("pyav", None)[0] == "pyav"
    backend, reason = choose_backend("video_reader", None)
    assert backend == "pyav"
    assert "video_reader" in reason


def test_an_unknown_name_is_refused_with_the_closest():
    with pytest.raises(ConfigError) as caught:
        choose_backend("torchcodek", None)
    assert "torchcodek" in caught.value.message
    assert "torchcodec" in caught.value.hint


def test_auto_takes_torchcodec_when_pixels_are_equal_and_it_is_faster(torchcodec, make_video):
    torchcodec()
    backend, reason = choose_backend("auto", make_video("h264"), clock=Clock(2.0, 1.0))
    assert backend == "torchcodec"
    assert "2.0 times" in reason


def test_auto_stays_with_pyav_when_torchcodec_is_slower(torchcodec, make_video):
    torchcodec()
    backend, reason = choose_backend("auto", make_video("h264"), clock=Clock(1.0, 2.0))
    assert backend == "pyav"
    assert "not faster" in reason


def test_auto_stays_with_pyav_when_pixels_differ(torchcodec, make_video):
    torchcodec(offset=3)
    backend, reason = choose_backend("auto", make_video("h264"))
    assert backend == "pyav"
    assert "differ" in reason
    assert "3 of 255" in reason


def test_auto_stays_with_pyav_when_torchcodec_gives_other_times(torchcodec, make_video):
    torchcodec(late_s=0.02)
    backend, reason = choose_backend("auto", make_video("h264"))
    assert backend == "pyav"
    assert "could not be tried" in reason


def test_auto_stays_with_pyav_without_torchcodec_and_without_a_video(absent, make_video):
    backend, reason = choose_backend("auto", make_video("h264"))
    assert backend == "pyav"
    assert "not installed" in reason


def test_auto_stays_with_pyav_when_the_libraries_do_not_load(broken, make_video):
    backend, reason = choose_backend("auto", make_video("h264"))
    assert backend == "pyav"
    assert "libavutil.so.56" in reason
    assert "\n" not in reason


def test_auto_stays_with_pyav_without_a_video_to_try(torchcodec):
    torchcodec()
    assert choose_backend("auto", None)[0] == "pyav"


def test_torchcodec_by_request_fails_with_the_reason(absent, make_video):
    with pytest.raises(ConfigError) as caught:
        choose_backend("torchcodec", make_video("h264"))
    assert "--dataset.video_backend=torchcodec" in caught.value.message
    assert "not installed" in caught.value.message
    assert "pyav" in caught.value.hint


def test_torchcodec_by_request_says_when_its_pixels_differ(torchcodec, make_video):
    torchcodec(offset=1)
    backend, reason = choose_backend("torchcodec", make_video("h264"))
    assert backend == "torchcodec"
    assert "1 of 255" in reason


def test_a_reader_on_torchcodec_gives_the_same_frames_and_errors(torchcodec, make_video, plain):
    torchcodec()
    path = make_video("h264")
    reader = FrameReader("torchcodec")
    assert np.array_equal(reader.read(path, [7, 3, 7], fps=30), plain(path)[[7, 3, 7]])
    assert reader.count(path) == 24
    with pytest.raises(VideoError, match="has 24 frames, frame 24 was asked"):
        reader.read(path, [24], fps=30)


def test_depth_is_read_by_pyav_whatever_the_decoder(absent, make_video):
    reader = FrameReader("torchcodec")
    assert reader.read(make_video("depth", 8), [2], fps=30, is_depth=True).dtype == np.uint16
