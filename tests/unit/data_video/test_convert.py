import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation

from mimetic.data.video import convert
from mimetic.data.video.convert import Converter


def noise(name, width, height):
    picture = av.VideoFrame(width, height, name)
    for plane in picture.planes:
        plane.update(np.random.default_rng(5).integers(0, 256, plane.buffer_size, dtype=np.uint8).tobytes())
    return picture


def ffmpegs_own(picture):
    packed = picture.reformat(format="rgb24", interpolation=Interpolation.BICUBIC, threads=1)
    return packed.to_ndarray().transpose(2, 0, 1)


@pytest.mark.parametrize("name", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "nv12"])
@pytest.mark.parametrize("size", [(64, 48), (640, 480), (66, 50), (65, 67), (130, 97)])
def test_colours_equal_ffmpegs_own_conversion(name, size):
    picture = noise(name, *size)
    target = np.empty((3, size[1], size[0]), dtype=np.uint8)
    Converter().rgb(picture, target)
    assert np.array_equal(target, ffmpegs_own(picture))


def test_the_planar_way_is_taken_only_where_it_is_exact():
    """Both ways occur here, or the test above would prove only one of them."""
    sizes = [(640, 480), (65, 67), (66, 50), (130, 97)]
    ways = {convert.planar_is_exact("yuv420p", width, height, 2, 1) for width, height in sizes}
    assert convert.planar_is_exact("nv12", 64, 48, 2, 1) is False
    assert False in ways


def test_strided_targets_are_written():
    picture = noise("yuv420p", 64, 48)
    batch = np.zeros((48, 64, 3), dtype=np.uint8)
    Converter().rgb(picture, batch.transpose(2, 0, 1))
    assert np.array_equal(batch, picture.to_ndarray(format="rgb24"))


def test_grey_of_ten_bits_becomes_codes_of_twelve():
    picture = av.VideoFrame.from_ndarray(np.full((48, 64), 512, dtype=np.uint16), format="gray10le")
    target = np.empty((48, 64), dtype=np.uint16)
    Converter().depth(picture, target)
    assert abs(int(target[0, 0]) - 2048) <= 2
