import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
import pytest

from mimetic.data.video.frames import FrameReader
from mimetic.errors import VideoError
from mimetic.testing.datasets import read_code

COLOUR_KINDS = ["av1", "h264", "h264_g2", "h264_b", "h264_444"]


@pytest.fixture
def reader():
    reader = FrameReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("kind", COLOUR_KINDS)
def test_frames_in_any_order_equal_a_plain_decode(kind, make_video, plain, reader):
    path = make_video(kind)
    expected = plain(path)
    chance = random.Random(0)
    for _ in range(20):
        wanted = [chance.randrange(24) for _ in range(chance.randrange(1, 7))]
        assert np.array_equal(reader.read(path, wanted, fps=30), expected[wanted]), wanted
    assert np.array_equal(reader.read(path, range(24), fps=30), expected)


@pytest.mark.parametrize("kind", COLOUR_KINDS)
def test_frame_n_is_the_nth_picture_that_was_recorded(kind, make_video, reader):
    frames = reader.read(make_video(kind), [23, 0, 7], fps=30)
    assert [read_code(frame) for frame in frames] == [(3, 23), (3, 0), (3, 7)]


@pytest.mark.parametrize("size", [(48, 64), (50, 66), (67, 65), (34, 70)])
def test_odd_sizes_equal_a_plain_decode(size, make_video, plain, reader):
    path = make_video("av1", 6, size)
    assert np.array_equal(reader.read(path, range(6), fps=30), plain(path))


def test_depth_codes_are_lossless(make_video, reader):
    path = make_video("depth", 8)
    frames = reader.read(path, [7, 2, 2, 0], fps=30, is_depth=True)
    ramp = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)
    assert frames.dtype == np.uint16
    for found, frame in zip(frames, [7, 2, 2, 0], strict=True):
        assert np.array_equal(found, (ramp + 37 * frame) % 4096)


def test_out_is_written_in_place(make_video, plain, reader):
    path = make_video("h264")
    batch = np.zeros((4, 2, 3, 48, 64), dtype=np.uint8)
    found = reader.read(path, [5, 6], fps=30, out=batch[2])
    assert np.shares_memory(found, batch)
    assert np.array_equal(batch[2], plain(path)[[5, 6]])
    assert not batch[[0, 1, 3]].any()


def test_read_into_writes_each_frame_where_it_belongs(make_video, plain, reader):
    path = make_video("h264")
    batch = np.zeros((3, 3, 48, 64), dtype=np.uint8)
    reader.read_into(path, [9, 4, 9], [batch[2], batch[0], batch[1]], fps=30)
    assert np.array_equal(batch, plain(path)[[4, 9, 9]])


@pytest.mark.parametrize("kind", COLOUR_KINDS)
def test_count_needs_no_decoding(kind, make_video, reader, monkeypatch):
    from mimetic.data.video import decoder

    monkeypatch.setattr(decoder.PyavDecoder, "read", None)
    assert reader.count(make_video(kind)) == 24


def test_a_sequential_run_never_seeks(make_video, reader, monkeypatch):
    from mimetic.data.video import decoder

    path = make_video("h264")
    reader.read(path, [0], fps=30)
    monkeypatch.setattr(decoder.PyavDecoder, "_seek", None)
    for frame in range(1, 24):
        reader.read(path, [frame], fps=30)


@pytest.mark.parametrize("kind", COLOUR_KINDS)
def test_single_frames_in_random_order_equal_a_plain_decode(kind, make_video, plain, reader):
    # One frame a call: a decoder that holds pictures back is drained, and must seek before it goes on.
    path = make_video(kind, n_frames=40)
    expected = plain(path)
    order = np.random.default_rng(5).permutation(np.repeat(np.arange(40), 3))
    for frame in [*order.tolist(), 7, 8, 9, 10, 39, 0, 1]:
        assert np.array_equal(reader.read(path, [frame], fps=30)[0], expected[frame]), frame


@pytest.mark.parametrize(("kind", "n_drained"), [("h264_g2", 3), ("h264", 0), ("h264_b", 0), ("av1", 0)])
def test_a_lone_frame_is_drained_from_a_decoder_that_waits_for_frames_that_never_come(
    kind, n_drained, make_video, reader, monkeypatch
):
    # x264 announces reordering by default, also where a keyframe distance of 2 leaves none: what recorders write.
    from mimetic.data.video import decoder

    path = make_video(kind)
    reader.read(path, [0], fps=30)
    drained = []
    original = decoder.PyavDecoder._drained
    monkeypatch.setattr(decoder.PyavDecoder, "_drained", lambda self, pts: drained.append(pts) or original(self, pts))
    for frame in (20, 11, 4):
        reader.read(path, [frame], fps=30)
    assert len(drained) == n_drained


def test_a_keyframe_is_decoded_alone(make_video, reader, monkeypatch):
    from mimetic.data.video import decoder

    path = make_video("h264")
    reader.read(path, [0], fps=30)
    n_decoded = []
    index_number = decoder.FrameIndex.number

    def count(self, pts):
        n_decoded.append(pts)
        return index_number(self, pts)

    monkeypatch.setattr(decoder.FrameIndex, "number", count)
    reader.read(path, [20, 10, 4], fps=30)
    assert len(n_decoded) == 3


def test_threads_get_the_frames_they_asked_for(make_video, plain, reader):
    paths = [make_video("h264"), make_video("av1"), make_video("h264_b")]
    expected = [plain(path) for path in paths]

    def work(seed):
        chance = random.Random(seed)
        for _ in range(15):
            place = chance.randrange(3)
            wanted = [chance.randrange(24) for _ in range(3)]
            assert np.array_equal(reader.read(paths[place], wanted, fps=30), expected[place][wanted])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_two_threads_never_share_a_decoder(make_video, monkeypatch):
    from mimetic.data.video import decoder

    reader = FrameReader()
    path = make_video("h264")
    inside = threading.Barrier(2, timeout=120)
    used = []
    original = decoder.PyavDecoder.read

    def slow(self, frames, targets, *, is_depth):
        used.append(self)
        inside.wait()
        original(self, frames, targets, is_depth=is_depth)

    monkeypatch.setattr(decoder.PyavDecoder, "read", slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda frame: reader.read(path, [frame], fps=30), [1, 2]))
    assert len({id(one) for one in used}) == 2
    assert reader.n_open == 2


def test_open_decoders_are_bounded_over_all_files(make_video, tmp_path):
    reader = FrameReader(max_open=3)
    paths = [shutil.copy(make_video("h264"), tmp_path / f"{number}.mp4") for number in range(6)]
    for path in paths:
        reader.read(path, [0], fps=30)
        assert reader.n_open <= 3
    assert reader.n_open == 3
    reader.close()
    assert reader.n_open == 0
    assert reader.read(paths[0], [1], fps=30).shape == (1, 3, 48, 64)


def test_the_least_recently_used_decoder_is_closed_first(make_video, tmp_path, monkeypatch):
    from mimetic.data.video import frames

    opened = []
    original = frames.PyavDecoder
    monkeypatch.setattr(frames, "PyavDecoder", lambda path, index: opened.append(path.name) or original(path, index))
    reader = FrameReader(max_open=2)
    a, b, c = (shutil.copy(make_video("h264"), tmp_path / f"{name}.mp4") for name in "abc")
    for path in (a, b, a, c, a, b):
        reader.read(path, [0], fps=30)
    assert opened == ["a.mp4", "b.mp4", "c.mp4", "b.mp4"]


def test_a_replaced_file_is_opened_again(make_video, tmp_path):
    reader = FrameReader()
    path = tmp_path / "video.mp4"
    shutil.copy(make_video("h264", 24), path)
    assert reader.count(path) == 24
    shutil.copy(make_video("h264_b", 9), tmp_path / "other.mp4")
    (tmp_path / "other.mp4").replace(path)
    assert reader.count(path) == 9
    assert read_code(reader.read(path, [8], fps=30)[0]) == (3, 8)


def test_a_frame_beyond_the_end_names_file_and_frame(make_video, reader):
    path = make_video("h264", 8)
    with pytest.raises(VideoError) as caught:
        reader.read(path, [3, 8], fps=30)
    assert str(caught.value) == f"`{path}` has 8 frames, frame 8 was asked"
    with pytest.raises(VideoError, match="frame -1 was asked"):
        reader.read(path, [-1], fps=30)


def test_a_missing_file_is_named(tmp_path, reader):
    for call in (lambda path: reader.read(path, [0], fps=30), reader.count):
        with pytest.raises(VideoError) as caught:
            call(tmp_path / "gone.mp4")
        assert f"`{tmp_path / 'gone.mp4'}` does not exist" in str(caught.value)
        assert caught.value.hint


@pytest.mark.parametrize("content", [b"", b"this is no video" * 100])
def test_something_else_than_a_video_is_refused(content, tmp_path, reader):
    path = tmp_path / "video.mp4"
    path.write_bytes(content)
    with pytest.raises(VideoError, match="cannot be opened as a video"):
        reader.read(path, [0], fps=30)
    assert reader.n_open == 0


@pytest.mark.parametrize("kind", ["av1", "h264", "h264_b"])
def test_a_cut_off_file_gives_what_is_there_and_says_what_is_missing(kind, make_video, plain, tmp_path, reader):
    whole = make_video(kind)
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * 0.85)])
    count = reader.count(path)
    assert 0 < count < 24
    assert np.array_equal(reader.read(path, range(count), fps=30), plain(whole)[:count])
    with pytest.raises(VideoError) as caught:
        reader.read(path, [count], fps=30)
    assert f"`{path}` is cut off: its header announces 24 frames, {count} are there" in str(caught.value)
    assert f"frame {count} was asked" in str(caught.value)


def test_a_file_without_its_header_is_refused(make_video, tmp_path, reader):
    path = tmp_path / "cut.mp4"
    path.write_bytes(make_video("h264").read_bytes()[:200])
    with pytest.raises(VideoError, match=f"`{path}`"):
        reader.count(path)


@pytest.mark.parametrize("kind", ["av1", "h264", "h264_b"])
def test_a_damaged_packet_never_gives_wrong_pixels(kind, make_video, plain, tmp_path, reader):
    whole = make_video(kind)
    with av.open(str(whole)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    start, size = max(packets[4:], key=lambda packet: packet[1])
    content = bytearray(whole.read_bytes())
    content[start + 8 : start + size] = np.random.default_rng(0).integers(0, 256, size - 8, dtype=np.uint8).tobytes()
    path = tmp_path / "damaged.mp4"
    path.write_bytes(bytes(content))
    expected = plain(whole)
    n_refused = 0
    for frame in range(24):
        try:
            found = reader.read(path, [frame], fps=30)[0]
        except VideoError as error:
            n_refused += 1
            assert f"frame {frame} of `{path}`" in str(error)
        else:
            assert np.array_equal(found, expected[frame]), frame
    assert n_refused >= 1


@pytest.mark.parametrize("kind", ["av1", "h264", "h264_g2", "h264_b"])
@pytest.mark.parametrize("first", [0, 8])
def test_whether_a_frame_can_be_read_does_not_depend_on_what_is_read_with_it(kind, first, make_video, tmp_path):
    # A decoder that holds pictures back meets the damage of frame 8 while frame 7 is wanted.
    whole = make_video(kind)
    with av.open(str(whole)) as container:
        start, size = next(
            (p.pos, p.size) for p in container.demux(video=0) if p.size and round(p.pts * p.time_base * 30) == 8
        )
    content = bytearray(whole.read_bytes())
    content[start + first : start + size] = b"\xa5" * (size - first)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(bytes(content))

    def read(frames):
        reader = FrameReader()
        try:
            return reader.read(path, frames, fps=30)
        except VideoError:
            return None
        finally:
            reader.close()

    alone = {frame: read([frame]) for frame in range(24)}
    assert alone[8] is None
    chance = random.Random(1)
    for _ in range(30):
        start = chance.randrange(20)
        frames = chance.choice([range(start, start + 4), [chance.randrange(24) for _ in range(3)]])
        found = read(frames)
        assert (found is None) == any(alone[frame] is None for frame in frames), list(frames)
        if found is not None:
            assert all(np.array_equal(one, alone[frame][0]) for one, frame in zip(found, frames, strict=True))


def test_a_file_at_another_rate_than_the_dataset_is_refused(make_video, reader):
    path = make_video("h264", fps=25)
    with pytest.raises(VideoError) as caught:
        reader.read(path, [5], fps=30)
    assert "frame 5" in str(caught.value)
    assert "0.2000 s" in str(caught.value)
    assert "0.1667 s" in str(caught.value)
    assert reader.read(path, [5], fps=30, tolerance_s=0.05).shape == (1, 3, 48, 64)


def test_an_array_of_another_size_is_refused(make_video, reader):
    with pytest.raises(VideoError, match="is 64x48 pixels, 32x48 was expected"):
        reader.read_into(make_video("h264"), [0], [np.empty((3, 48, 32), dtype=np.uint8)], fps=30)


def test_frames_of_a_long_video_are_exact(tmp_path, reader):
    """15 fps and thousands of frames: times as floats would have drifted, numbers do not."""
    from mimetic.testing.datasets import coded_image, write_video

    path = tmp_path / "long.mp4"
    write_video(path, [coded_image(0, frame, (16, 32)) for frame in range(3000)], fps=15)
    wanted = [2999, 1536, 2001, 0]
    frames = reader.read(path, wanted, fps=15)
    assert [read_code(frame)[1] for frame in frames] == wanted
