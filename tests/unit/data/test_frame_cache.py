"""Kept frames: the same values and the same errors as without, whatever happened to the files."""

import errno
import itertools
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from mimetic.data import bad_frames
from mimetic.data.fingerprint import camera_fingerprint
from mimetic.data.frames import budget, builder, decode, plan
from mimetic.data.frames.builder import Workers, build_in_memory, build_on_disk, missing_rows
from mimetic.data.frames.content import UNREADABLE, FrameFile, frame_mark
from mimetic.data.frames.plan import frame_content, plan_frames
from mimetic.data.frames.reader import DiskRows, KeptFrames, MemoryRows
from mimetic.data.frames.resize import FrameSize, resized, rounding, smaller
from mimetic.data.reader import open_dataset
from mimetic.errors import CacheError, ConfigError, VideoError
from mimetic.testing.datasets import build_dataset

CAMERA = "observation.images.top"
SIZE = (32, 48)
FIXTURES = Path(__file__).parents[2] / "fixtures" / "dataset"


class Stopped(Exception):
    pass


@pytest.fixture
def root(tmp_path):
    return build_dataset(tmp_path / "set", cameras={"top": SIZE}, lengths=(6, 9, 7), gop=3)


def rows_of(dataset, *chosen):
    return dataset.rows(np.asarray(chosen) if chosen else np.arange(len(dataset)))


def file_of(dataset, folder, camera=CAMERA, size=None):
    return FrameFile(folder, frame_content(dataset.source, camera, size))


def built(dataset, folder, camera=CAMERA, size=None, rows=None):
    file = file_of(dataset, folder, camera, size)
    build_on_disk(file, dataset.source, rows_of(dataset) if rows is None else rows, Workers(1))
    return file


def kept(dataset, file):
    return dataset.with_kept({file.content.camera: KeptFrames(DiskRows(file))})


def assert_same(one, two):
    assert list(one) == list(two)
    for key, value in one.items():
        assert torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else value == two[key], key


def decoded_frames(monkeypatch):
    """Counts the frames that tasks decode."""
    counted = []
    original = decode.decode_rows

    def counting(task):
        counted.append(len(task.numbers))
        return original(task)

    for module in (decode, builder):
        monkeypatch.setattr(module, "decode_rows", counting)
    return counted


# Equal


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("name", ["dtypes_v30", "video_v30", "image_v30"])  # depth of both kinds; colour; pictures
def test_colour_and_depth_of_videos_and_pictures_are_the_same_bits(tmp_path, name, where, unit):
    dataset = open_dataset(root=FIXTURES / name, depth_output_unit=unit)
    dataset = dataset.with_windows({camera: [-1, 0] for camera in dataset.meta.camera_keys})
    sources = {}
    for camera in dataset.meta.camera_keys:
        if where == "disk":
            sources[camera] = KeptFrames(DiskRows(built(dataset, tmp_path, camera)))
        else:
            rows = MemoryRows(frame_content(dataset.source, camera), dataset.frame_numbers())
            build_in_memory(rows, dataset.source, rows_of(dataset), Workers(2))
            sources[camera] = KeptFrames(rows)
    assert sources
    view = dataset.with_kept(sources)
    for position in range(len(dataset)):
        assert_same(view[position], dataset[position])


def test_the_cache_is_what_is_read_not_the_files(root, tmp_path):
    dataset = open_dataset(root=root, return_uint8=True)
    expected = [dataset[position][CAMERA] for position in range(len(dataset))]
    view = kept(dataset, built(dataset, tmp_path / "kept"))
    dataset.close()
    shutil.rmtree(root / "videos")
    assert all(torch.equal(view[position][CAMERA], frame) for position, frame in enumerate(expected))


def test_views_of_a_view_read_the_cache_too(root, tmp_path, monkeypatch):
    dataset = open_dataset(root=root)
    view = kept(dataset, built(dataset, tmp_path / "kept"))
    monkeypatch.setattr(type(dataset.source), "read_raw", None)
    assert view.with_windows({CAMERA: [-1, 0]}, episodes=[1])[0][CAMERA].shape == (2, 3, *SIZE)


def test_what_is_not_built_is_decoded(root, tmp_path):
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept", rows=rows_of(dataset, 3, 7, 8))
    assert (file.marks() != 0).sum() == 3
    view = kept(dataset, file)
    assert_same(view.batch([7, 2, 8, 3]), dataset.batch([7, 2, 8, 3]))


def test_episodes_of_another_selection_use_the_same_rows(root, tmp_path, monkeypatch):
    built(open_dataset(root=root, episodes=[1]), tmp_path / "kept")
    counted = decoded_frames(monkeypatch)
    whole = open_dataset(root=root)
    file = built(whole, tmp_path / "kept")
    assert sum(counted) == 6 + 7
    assert_same(kept(whole, file).batch(range(22)), whole.batch(range(22)))


def test_processes_give_the_rows_of_threads(root, tmp_path):
    dataset = open_dataset(root=root)
    one, two = (file_of(dataset, tmp_path / name) for name in ("threads", "processes"))
    build_on_disk(one, dataset.source, rows_of(dataset), Workers(3))
    build_on_disk(two, dataset.source, rows_of(dataset), Workers(2, processes=True))
    assert one.frames_path.read_bytes() == two.frames_path.read_bytes()
    assert np.array_equal(one.marks(), two.marks())
    assert one.marks().all()


# Resized


def test_resized_frames_differ_by_the_rounding_alone(root, tmp_path):
    dataset = open_dataset(root=root)
    size = FrameSize(16, 24)
    file = built(dataset, tmp_path / "kept", size=size)
    frames = dataset.batch(range(22))[CAMERA]
    exact = torch.nn.functional.interpolate(frames, size=(16, 24), mode="bilinear", align_corners=False)
    found = kept(dataset, file).batch(range(22))[CAMERA]
    assert found.shape == exact.shape
    assert (found - exact).abs().max() <= 0.5 / 255 + 1e-6  # half a step of 8 bits, and float32
    most, mean = rounding((frames[:4] * 255).round().to(torch.uint8).numpy(), size)
    assert 0 < mean <= most <= 0.5 / 255 + 1e-6


def test_a_frame_that_is_not_built_comes_in_the_same_size(root, tmp_path):
    dataset = open_dataset(root=root, return_uint8=True)
    size = FrameSize(16, 24)
    all_of_it = kept(dataset, built(dataset, tmp_path / "one", size=size)).batch(range(22))[CAMERA]
    some = kept(dataset, built(dataset, tmp_path / "two", size=size, rows=rows_of(dataset, 4))).batch(range(22))[CAMERA]
    assert torch.equal(some, all_of_it)


def test_frames_are_never_enlarged():
    assert smaller((3, 32, 48), FrameSize(64, 96)) is None
    assert smaller((3, 32, 48), FrameSize(32, 48)) is None
    assert smaller((3, 32, 48), None) is None
    assert smaller((3, 32, 48), FrameSize(16, 48)) == FrameSize(16, 48)
    assert resized(np.full((1, 3, 4, 4), 200, dtype=np.uint8), FrameSize(2, 2)).tolist() == [[[[200] * 2] * 2] * 3]


# Damage


def damage_video(root, episode=1):
    path = root / "videos" / CAMERA / "chunk-000" / f"file-{episode:03d}.mp4"
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 200 : start + 600] = b"\xa5" * 400
    path.write_bytes(bytes(content))


def test_a_frame_that_cannot_be_decoded_raises_the_same_error_with_and_without(root, tmp_path):
    damage_video(root)
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept")
    broken = np.flatnonzero(file.marks() == UNREADABLE)
    assert len(broken)
    assert set(broken) <= set(range(6, 15))
    view = kept(dataset, file)
    for position in range(len(dataset)):
        if position not in broken:
            assert_same(view[position], dataset[position])
            continue
        with pytest.raises(VideoError) as plain:
            dataset.item(position)
        with pytest.raises(VideoError) as cached:
            view.item(position)
        assert (cached.value.message, cached.value.hint) == (plain.value.message, plain.value.hint)
        assert bad_frames.is_data_fault(cached.value)


def test_a_frame_that_cannot_be_decoded_is_not_tried_at_every_start(root, tmp_path, monkeypatch):
    damage_video(root)
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept")
    counted = decoded_frames(monkeypatch)
    built(dataset, tmp_path / "kept")
    assert counted == []
    assert not len(missing_rows(file, dataset.source, rows_of(dataset)))


def test_a_fault_of_this_process_leaves_a_frame_to_the_next_build(root, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EMFILE, "Too many open files")

    dataset = open_dataset(root=root)
    with monkeypatch.context() as patch:
        patch.setattr("mimetic.data.video.frames.FrameReader.read_into", refuse)
        file = built(dataset, tmp_path / "kept")
    assert not file.marks().any()


def test_a_damaged_row_is_decoded_instead_and_built_again(root, tmp_path, said):
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept")
    with file.frames_path.open("r+b") as opened:
        opened.seek(5 * file.content.row_bytes + 17)
        opened.write(b"\x01\x02\x03")
    view = kept(dataset, file)
    assert_same(view.batch(range(22)), dataset.batch(range(22)))
    assert "row of frame 5" in said.text
    assert said.text.count("is damaged") == 1
    assert (file.marks() == 0).nonzero()[0].tolist() == [5]
    again = built(dataset, tmp_path / "kept")
    assert again.marks().all()
    said.messages.clear()
    assert_same(kept(dataset, again).batch(range(22)), dataset.batch(range(22)))
    assert said.messages == []


def test_a_file_that_is_cut_off_while_it_is_read_is_no_fault_of_the_run(root, tmp_path, said):
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept")
    view = kept(dataset, file)
    os.truncate(file.frames_path, 4 * file.content.row_bytes + 100)
    assert_same(view.batch(range(22)), dataset.batch(range(22)))
    assert "is damaged" in said.text


@pytest.mark.parametrize("name", ["frames.bin", "marks.bin", "header.json"])
def test_a_file_of_another_size_or_kind_is_built_anew(root, tmp_path, said, name):
    dataset = open_dataset(root=root)
    file = built(dataset, tmp_path / "kept")
    (file.path / name).write_bytes((file.path / name).read_bytes()[:-3])
    with pytest.raises(CacheError, match=name.replace(".", r"\.")):
        DiskRows(file)
    assert built(dataset, tmp_path / "kept").marks().all()
    assert "are damaged and are built anew" in said.text
    assert_same(kept(dataset, file).batch(range(22)), dataset.batch(range(22)))


def test_a_folder_with_strange_files_is_left_alone(root, tmp_path):
    dataset = open_dataset(root=root)
    file = file_of(dataset, tmp_path / "kept")
    file.path.mkdir(parents=True)
    (file.path / "diary.txt").write_text("dear")
    with pytest.raises(CacheError, match=r"holds `diary\.txt`"):
        built(dataset, tmp_path / "kept")
    assert (file.path / "diary.txt").read_text() == "dear"


# Building


def test_an_interrupted_build_is_continued(root, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "FRAMES_A_TASK", 4)
    dataset = open_dataset(root=root)
    file = file_of(dataset, tmp_path / "kept")
    done = []

    def give_up():
        if sum(done) >= 8:
            raise Stopped

    with pytest.raises(Stopped):
        build_on_disk(file, dataset.source, rows_of(dataset), Workers(1), on_done=done.append, give_up=give_up)
    there = int((file.marks() != 0).sum())
    assert 8 <= there < 22
    counted = decoded_frames(monkeypatch)
    build_on_disk(file, dataset.source, rows_of(dataset), Workers(1))
    assert sum(counted) == 22 - there
    assert_same(kept(dataset, file).batch(range(22)), dataset.batch(range(22)))


def test_of_two_builders_one_builds_and_the_other_shares(root, tmp_path, monkeypatch, said):
    dataset = open_dataset(root=root)
    file = file_of(dataset, tmp_path / "kept")
    inside, go_on = threading.Event(), threading.Event()
    original = decode.decode_rows
    counted = []

    def slow(task):
        counted.append(len(task.numbers))
        inside.set()
        assert go_on.wait(60)
        return original(task)

    monkeypatch.setattr(decode, "decode_rows", slow)
    first = threading.Thread(target=build_on_disk, args=(file, dataset.source, rows_of(dataset), Workers(1)))
    first.start()
    assert inside.wait(60)
    second = threading.Thread(target=build_on_disk, args=(file, dataset.source, rows_of(dataset), Workers(1)))
    second.start()
    for _ in range(1000):
        if "waiting for it" in said.text:
            break
        threading.Event().wait(0.05)
    go_on.set()
    first.join()
    second.join()
    assert "decoding the frames of" in said.text
    assert sum(counted) == 22
    assert file.marks().all()


def test_a_full_disk_is_one_message_and_what_is_built_stays(root, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "FRAMES_A_TASK", 4)
    dataset = open_dataset(root=root)
    file = file_of(dataset, tmp_path / "kept")
    write, calls = decode._write_at, []

    def full(*args):
        calls.append(1)
        if len(calls) > 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(decode, "_write_at", full)
        with pytest.raises(CacheError, match="No space left on device") as caught:
            build_on_disk(file, dataset.source, rows_of(dataset), Workers(1))
    assert "--dataset.cache_folder" in caught.value.hint
    assert 4 <= (file.marks() != 0).sum() <= 9
    assert_same(kept(dataset, file).batch(range(22)), dataset.batch(range(22)))


def test_a_disk_that_others_fill_meanwhile_keeps_its_reserve(root, tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "FRAMES_A_TASK", 4)
    free = iter([9, 9, 0])
    monkeypatch.setattr(builder, "free_disk", lambda folder: next(free))
    dataset, done = open_dataset(root=root), []
    file = file_of(dataset, tmp_path / "frames")
    with pytest.raises(CacheError, match="nothing is left of the disk but its reserve"):
        build_on_disk(file, dataset.source, rows_of(dataset), Workers(1), on_done=done.append)
    assert 0 < sum(done) < len(dataset)
    assert (file.marks() != 0).sum() == sum(done)


def test_a_row_is_synced_before_it_is_marked(root, tmp_path, monkeypatch):
    """A power cut between the two leaves a row that is not served."""
    dataset = open_dataset(root=root)
    file = file_of(dataset, tmp_path / "kept")
    events = []
    real_fsync, real_mark = os.fsync, builder._mark
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("sync") or real_fsync(handle))
    monkeypatch.setattr(builder, "_mark", lambda *args: events.append("mark") or real_mark(*args))
    build_on_disk(file, dataset.source, rows_of(dataset), Workers(1))
    assert events[0] == "sync"
    assert events[1:3] == ["mark", "sync"]


def test_marks_that_mean_something_else_are_never_a_checksum(monkeypatch):
    for value in (0, UNREADABLE):
        monkeypatch.setattr("mimetic.data.frames.content.zlib.crc32", lambda row, value=value: value)
        assert frame_mark(b"x") == 1


# Which array


def test_another_dataset_camera_decoder_or_size_is_another_array(root, tmp_path):
    dataset = open_dataset(root=root)
    base = frame_content(dataset.source, CAMERA)
    names = {base.name, frame_content(dataset.source, CAMERA, FrameSize(16, 24)).name}
    dataset.source.backend = "torchcodec"
    names.add(frame_content(dataset.source, CAMERA).name)
    other = build_dataset(tmp_path / "other", cameras={"top": SIZE, "side": SIZE}, lengths=(6, 9, 8), gop=3)
    changed = open_dataset(root=other)
    names |= {frame_content(changed.source, key).name for key in changed.meta.camera_keys}
    video = root / "videos" / CAMERA / "chunk-000" / "file-000.mp4"
    video.write_bytes(video.read_bytes() + b"\0")
    names.add(frame_content(open_dataset(root=root).source, CAMERA).name)
    assert len(names) == 6
    copied = shutil.copytree(tmp_path / "other", tmp_path / "copy")
    assert frame_content(open_dataset(root=copied).source, CAMERA).name in names


def test_pictures_exchanged_inside_a_file_are_noticed_though_their_fingerprint_is_the_same(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (100, *SIZE, 3), dtype=np.uint8)
    root = build_dataset(
        tmp_path / "set", cameras={"top": SIZE}, lengths=(100,), camera_dtype="image", picture=lambda e, f, _: noise[f]
    )
    dataset, folder = open_dataset(root=root), tmp_path / "frames"

    def job():
        found = planned(open_dataset(root=root), "frames", folder=folder).jobs[0]
        found.seen.remember()
        return found

    before = job()
    build_on_disk(before.file, dataset.source, before.rows, Workers(1))
    again = job()
    assert (len(again.missing), again.seen.is_edited) == (0, False)

    path = dataset.source.rows.files[0]
    data = path.read_bytes()
    pictures = [dataset.source.cells.read(CAMERA, row) for row in range(100)]
    dataset.close()
    for one, two in itertools.pairwise(pictures):
        first, second = data.find(one), data.find(two)
        if len(one) == len(two) and 0 < first < second:
            edited = bytearray(data)
            edited[first : first + len(one)], edited[second : second + len(two)] = two, one
            path.write_bytes(edited)
            if camera_fingerprint(dataset.meta, CAMERA, decoder="") == before.seen.fingerprint:
                break
    else:
        raise AssertionError("no pair of pictures lies between the pieces of the fingerprint")
    os.utime(path, (1, 1))

    edited = job()
    assert edited.seen.fingerprint == before.seen.fingerprint
    assert edited.seen.is_edited
    assert edited.file.path != before.file.path
    assert len(edited.missing) == 100
    settled = job()
    assert (settled.file.path, settled.seen.is_edited) == (edited.file.path, False)
    os.utime(path, (2, 2))
    assert job().seen.is_edited


def test_a_copy_of_a_dataset_shares_its_frames(root, tmp_path):
    file = built(open_dataset(root=root), tmp_path / "frames")
    copied = open_dataset(root=shutil.copytree(root, tmp_path / "copy"))
    job = planned(copied, "frames", folder=tmp_path / "frames").jobs[0]
    assert job.file.path == file.path
    assert len(job.missing) == 0


@pytest.mark.parametrize("text", ["", "[]", "{", '{"fingerprint": 3}', '{"edition": {}}'])
def test_a_note_of_garbage_is_written_anew(root, tmp_path, text):
    folder = tmp_path / "frames"
    seen = planned(open_dataset(root=root), "frames", folder=folder).jobs[0].seen
    seen.remember()
    good = seen.path.read_bytes()
    seen.path.write_text(text)
    again = planned(open_dataset(root=root), "frames", folder=folder).jobs[0].seen
    assert not again.is_noted
    again.remember()
    assert seen.path.read_bytes() == good


# Whether at all


def planned(dataset, mode="auto", **others):
    settings = {"folder": Path("/nonexistent/place"), "visits": 10.0, **others}
    return plan_frames([(dataset, np.arange(len(dataset)))], mode, **settings)


@pytest.fixture
def room(monkeypatch):
    """Sets how much room there is on the disk and in memory."""

    def set_to(disk, memory):
        monkeypatch.setattr(plan, "free_disk", lambda folder: disk)
        monkeypatch.setattr(plan, "free_memory", lambda: memory)
        monkeypatch.setattr(plan, "is_writable", lambda folder: True)

    return set_to


def test_auto_keeps_what_fits_and_pays(root, tmp_path, room):
    dataset = open_dataset(root=root)
    size = 22 * 3 * 32 * 48
    room(10 * size, 10 * size)
    assert planned(dataset).mode == "frames"
    once = planned(dataset, visits=1.4)
    assert (once.mode, once.hint) == ("off", "--dataset.cache=frames keeps them all the same")
    assert "read about 1.4 times" in once.reason
    room(size, 10 * size)
    in_memory = planned(dataset)
    assert in_memory.mode == "memory"
    assert "the budget there is" in in_memory.reason
    room(size, size)
    neither = planned(dataset)
    assert neither.mode == "off"
    assert "on disk" in neither.reason
    assert "of memory" in neither.reason
    assert "--dataset.cache_gb" in neither.hint
    assert planned(dataset, budget=size).mode == "frames"
    assert planned(dataset, "off").mode == "off"


def test_what_was_asked_for_and_does_not_fit_is_refused(root, room):
    dataset = open_dataset(root=root)
    room(1000, 1000)
    for mode, place in (("frames", "on disk"), ("memory", "of memory")):
        with pytest.raises(ConfigError, match=place) as caught:
            planned(dataset, mode)
        assert f"`--dataset.cache={mode}`" in caught.value.message
        assert "--dataset.cache_gb" in caught.value.hint


def test_what_was_asked_for_may_take_what_is_free(root, room):
    dataset = open_dataset(root=root)
    size = 22 * 3 * 32 * 48
    room(size, 2 * size)
    assert planned(dataset, "frames", visits=0.1).mode == "frames"
    assert planned(dataset, "memory", visits=0.1).mode == "memory"
    assert planned(dataset, "auto").mode == "off"


def test_what_is_there_needs_no_room_and_no_reason(root, tmp_path, room):
    dataset = open_dataset(root=root)
    built(dataset, tmp_path / "kept")
    room(0, 0)
    found = planned(dataset, folder=tmp_path / "kept", visits=0.5)
    assert (found.mode, found.to_build) == ("frames", 0)


def test_a_folder_inside_the_dataset_is_refused(root):
    with pytest.raises(ConfigError, match="lies inside the dataset"):
        planned(open_dataset(root=root), folder=root / "cache")


def test_a_place_that_cannot_be_written_counts_as_no_room(root, tmp_path, monkeypatch):
    monkeypatch.setattr(plan, "is_writable", lambda folder: False)
    monkeypatch.setattr(plan, "free_memory", lambda: 0)
    assert "cannot be written" in planned(open_dataset(root=root)).reason


def test_without_cameras_there_is_nothing_to_keep(tmp_path):
    dataset = open_dataset(root=build_dataset(tmp_path / "set"))
    assert planned(dataset, "frames").reason == "no camera frames are read"


def test_what_samples_leave_out_is_not_kept(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": SIZE, "side": SIZE})
    view = open_dataset(root=root).with_windows({}, skip=[CAMERA])
    assert [job.camera for job in planned(view, "off").jobs] == ["observation.images.side"]


def test_files_are_not_looked_at_where_nothing_can_be_kept(root, tmp_path, monkeypatch):
    """On a network disk with thousands of files that would take minutes."""
    dataset = open_dataset(root=root)
    monkeypatch.setattr(plan, "camera_fingerprint", None)
    assert planned(dataset, "off").mode == "off"
    short = planned(dataset, visits=1.0, folder=tmp_path / "empty")
    assert (short.mode, short.total_bytes) == ("off", 22 * 3 * 32 * 48)


# Room


def test_room_is_what_is_free_less_a_reserve(tmp_path, monkeypatch):
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    asked = []

    def disk(total, free):
        monkeypatch.setattr(budget.shutil, "disk_usage", lambda place: asked.append(place) or usage(total, 0, free))
        return budget.free_disk(tmp_path / "not" / "there")

    assert disk(10**12, 10**11) == 10**11 - 5 * 2**30
    assert disk(10**9, 3 * 10**8) == 2 * 10**8
    assert disk(10**9, 10**7) == 0
    assert set(asked) == {tmp_path}


def test_a_containers_limit_counts_as_memory(tmp_path, monkeypatch):
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(budget, "_CGROUP", ((limit, used),))
    machine = budget.free_memory()
    assert machine > 0
    used.write_text("1000")
    limit.write_text("max\n")
    assert budget.free_memory() == pytest.approx(machine, rel=0.3)
    limit.write_text("1500\n")
    assert budget.free_memory() == 500
    stat = tmp_path / "memory.stat"
    stat.write_text("anon 700\nfile 300\ninactive_file 200\n")  # files that were read count as used, and are not
    assert budget.free_memory() == 700
    stat.write_text("nonsense\n")
    assert budget.free_memory() == 500
    limit.write_text("900\n")
    assert budget.free_memory() == 0
