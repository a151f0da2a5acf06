"""Arrays of features on disk: what is written is read, what is not written is never served, what is damaged is noticed."""

import errno
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from mimetic.data import feature_writer
from mimetic.data.cache_folder import default_cache_folder, list_caches
from mimetic.data.feature_cache import FeatureContent, FeatureFile, checksum
from mimetic.data.feature_reader import FeatureReader
from mimetic.data.feature_writer import FeatureWriter
from mimetic.errors import CacheError

SHAPE = (3, 5)


def content(**changes):
    base = {
        "encoder": "e",
        "dataset": "d",
        "camera": "observation.images.top",
        "frames": 10,
        "shape": SHAPE,
        "dtype": torch.bfloat16,
    }
    return FeatureContent(**base | changes)


def rows(*frames, dtype=torch.bfloat16):
    """Values that tell which frame they belong to."""
    return torch.stack([torch.arange(15.0).reshape(SHAPE) + 16 * frame for frame in frames]).to(dtype)


def written(folder, *frames, **changes):
    file = FeatureFile(folder, content(**changes))
    with FeatureWriter(file) as writer:
        writer.write(frames, rows(*frames, dtype=file.content.dtype))
    return file


def read(file, *frames):
    return FeatureReader([file]).read(np.asarray(frames, dtype=np.int64), [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_rows_come_back_bit_for_bit_in_any_order_and_repeated(tmp_path, dtype):
    file = written(tmp_path, 7, 0, 9, dtype=dtype)
    found = read(file, 9, 0, 9, 7)
    assert found.dtype == dtype
    assert torch.equal(found, rows(9, 0, 9, 7, dtype=dtype))


def test_bfloat16_lies_on_disk_as_little_endian_16_bit_numbers(tmp_path):
    file = written(tmp_path, 4)
    stored = np.fromfile(file.path / "features.bin", dtype="<u2").reshape(10, *SHAPE)
    expected = rows(4)[0].view(torch.int16).numpy().astype("<u2")
    np.testing.assert_array_equal(stored[4], expected)
    header = json.loads((file.path / "header.json").read_text())
    assert (header["format"], header["dtype"], header["shape"], header["frames"]) == (1, "bfloat16", [3, 5], 10)


def test_a_row_that_was_not_written_is_never_served(tmp_path):
    file = written(tmp_path, 1)
    with pytest.raises(CacheError, match="frame 2 are not in"):
        read(file, 1, 2)


def test_rows_are_added_to_those_of_earlier_builds(tmp_path):
    written(tmp_path, 0, 1)
    file = written(tmp_path, 5)
    with FeatureWriter(file) as writer:
        assert writer.missing(np.arange(10)).tolist() == [frame not in (0, 1, 5) for frame in range(10)]
    assert torch.equal(read(file, 0, 1, 5), rows(0, 1, 5))


def test_rows_count_only_after_they_were_synced(tmp_path):
    """A kill between writing and marking must cost the row, whatever the disk holds."""
    file = FeatureFile(tmp_path, content())
    with FeatureWriter(file) as writer:
        writer.write([3], rows(3))
        assert file.marks()[3] == 0
        writer.flush()
        assert file.marks()[3] != 0


def test_the_order_of_syncing_is_data_then_marks(tmp_path, monkeypatch):
    """Otherwise a power cut could leave a mark for a row that never reached the disk."""
    file = FeatureFile(tmp_path, content())
    seen = []
    with FeatureWriter(file) as writer:
        sync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda handle: (seen.append(int(file.marks()[2] != 0)), sync(handle)))
        writer.write([2], rows(2))
        writer.flush()
    assert seen[:2] == [0, 1]


def test_a_build_loses_a_few_seconds_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_writer, "SYNC_S", 0.0)
    file = FeatureFile(tmp_path, content())
    with FeatureWriter(file) as writer:
        writer.write([3], rows(3))
        assert file.marks()[3] != 0


@pytest.mark.parametrize(
    "changes",
    [
        {"encoder": "other weights"},
        {"dataset": "other frames"},
        {"camera": "observation.images.wrist"},
        {"frames": 11},
        {"shape": (5, 3)},
        {"dtype": torch.float16},
        {"augmentation": "a", "variant": 1},
        {"augmentation": "a", "variant": 2},
    ],
)
def test_whatever_changes_the_features_changes_the_name(changes):
    names = {content().name, content(**changes).name}
    assert len(names) == 2


def test_remarks_do_not_change_the_name():
    assert content(about={"root": "elsewhere"}).name == content().name


DAMAGE = {
    "truncated features": lambda path: os.truncate(path / "features.bin", 50),
    "truncated marks": lambda path: os.truncate(path / "marks.bin", 39),
    "longer features": lambda path: os.truncate(path / "features.bin", 301),
    "no features": lambda path: (path / "features.bin").unlink(),
    "torn header": lambda path: (path / "header.json").write_text('{"format": 1, "enc'),
    "no header": lambda path: (path / "header.json").unlink(),
    "another header": lambda path: (path / "header.json").write_text("[]"),
    "other weights in the header": lambda path: (path / "header.json").write_text(
        (path / "header.json").read_text().replace('"encoder": "e"', '"encoder": "f"')
    ),
    "newer format": lambda path: (path / "header.json").write_text(
        (path / "header.json").read_text().replace('"format": 1', '"format": 2')
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_noticed_told_and_repaired_by_building_anew(tmp_path, name, said):
    file = written(tmp_path, 0, 1)
    DAMAGE[name](file.path)
    assert file.problem()
    assert not file.marks().any()
    with pytest.raises(CacheError, match="cannot be read"):
        read(file, 0)
    with FeatureWriter(file) as writer:
        assert writer.missing(np.arange(10)).all()
        writer.write([0], rows(0))
    assert "built anew" in said.text
    assert torch.equal(read(file, 0), rows(0))


def test_a_flipped_bit_is_noticed_and_the_row_is_built_again(tmp_path):
    file = written(tmp_path, 0, 1)
    with (file.path / "features.bin").open("r+b") as data:
        data.seek(30 + 7)
        byte = data.read(1)[0]
        data.seek(30 + 7)
        data.write(bytes([byte ^ 4]))
    assert torch.equal(read(file, 0), rows(0))
    with pytest.raises(CacheError, match=r"frame 1 .* checksum"):
        read(file, 1)
    assert file.marks().astype(bool).tolist()[:2] == [True, False]


def test_a_checksum_is_never_the_sign_of_an_absent_row():
    assert checksum(b"") == 1  # CRC-32 of nothing is 0


def test_files_that_no_array_has_are_left_alone(tmp_path):
    file = FeatureFile(tmp_path, content())
    file.path.mkdir()
    (file.path / "thesis.txt").write_text("years of work")
    with pytest.raises(CacheError, match=r"thesis\.txt"), FeatureWriter(file):
        pass
    assert (file.path / "thesis.txt").exists()


def test_a_reader_survives_that_its_array_is_replaced(tmp_path):
    """Another run finds the array damaged and builds it anew while this one has it mapped."""
    file = written(tmp_path, 0, 1)
    reader = FeatureReader([file])
    (file.path / "header.json").write_text("{}")
    with FeatureWriter(file):
        pass
    assert torch.equal(reader.read(np.asarray([1]), []), rows(1))


def test_leftovers_of_a_killed_creation_do_not_matter(tmp_path):
    file = FeatureFile(tmp_path, content())
    aside = tmp_path / f"{file.content.name}.new"
    aside.mkdir()
    (aside / "features.bin").write_bytes(b"half")
    assert torch.equal(read(written(tmp_path, 0), 0), rows(0))
    assert not aside.exists()


def test_a_full_disk_is_an_error_with_advice_and_the_rows_before_stay(tmp_path, monkeypatch):
    file = FeatureFile(tmp_path, content())
    with pytest.raises(CacheError, match="No space left") as caught, FeatureWriter(file) as writer:
        writer.write([0], rows(0))
        writer.flush()

        def full(opened, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(feature_writer, "_write_all", full)
        writer.write([1], rows(1))
    assert "--cache.folder" in caught.value.hint
    assert file.marks().astype(bool).sum() == 1
    monkeypatch.undo()
    assert torch.equal(read(written(tmp_path, 1), 0, 1), rows(0, 1))


def test_a_folder_that_cannot_be_made_is_an_error_with_advice(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot be written"), FeatureWriter(FeatureFile(tmp_path / "file", content())):
        pass


def test_a_second_builder_waits_and_then_finds_the_rows(tmp_path, said):
    file = FeatureFile(tmp_path, content())
    seen = []

    def second():
        with FeatureWriter(file) as writer:
            seen.append(writer.missing(np.arange(3)).tolist())

    with FeatureWriter(file) as writer:
        thread = threading.Thread(target=second)
        thread.start()
        while "waiting for it" not in said.text:
            time.sleep(0.01)
        writer.write([0, 2], rows(0, 2))
        assert seen == []
    thread.join(timeout=60)
    assert seen == [[False, True, False]]
    assert f"process {os.getpid()}" in said.text


def test_waiting_can_be_given_up(tmp_path):
    file = FeatureFile(tmp_path, content())

    class Stop(Exception):
        pass

    def give_up():
        raise Stop

    with FeatureWriter(file), pytest.raises(Stop), FeatureWriter(file, give_up):
        pass
    with FeatureWriter(file):  # neither of them holds the lock now
        pass


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def none(handle):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("mimetic.data.file_lock._lock", none)
    with pytest.raises(CacheError, match="cannot be locked"), FeatureWriter(FeatureFile(tmp_path, content())):
        pass


def test_a_sample_picks_its_variant_with_its_own_chance(tmp_path):
    files = []
    for variant in (1, 2, 3):
        file = FeatureFile(tmp_path, content(augmentation="a", variant=variant))
        with FeatureWriter(file) as writer:
            writer.write(range(10), torch.full((10, *SHAPE), float(variant), dtype=torch.bfloat16))
        files.append(file)
    reader = FeatureReader(files)

    def generators():
        return [torch.Generator().manual_seed(seed) for seed in range(64)]

    first = reader.read(np.zeros(64, dtype=np.int64), generators())
    assert torch.equal(first, reader.read(np.zeros(64, dtype=np.int64), generators()))
    counts = torch.bincount(first[:, 0, 0].long(), minlength=4).tolist()
    assert counts[0] == 0
    assert min(counts[1:]) > 8  # 21 expected of each; 8 or fewer has a chance of 1e-4, and the seeds are fixed


def test_threads_read_what_one_reads(tmp_path):
    file = written(tmp_path, *range(10))
    reader = FeatureReader([file])
    wrong = []

    def work(seed):
        chance = np.random.default_rng(seed)
        for _ in range(200):
            frames = chance.integers(0, 10, 4)
            if not torch.equal(reader.read(frames, []), rows(*frames.tolist())):
                wrong.append(frames)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reading_does_not_pile_up_in_the_process(tmp_path):
    """40 MB are read through the map; they stay in the system's cache and not in the process's resident memory."""
    status = "/proc/self/status"
    if not Path(status).exists():
        pytest.skip("needs /proc")

    def resident_file_kb():
        return int(Path(status).read_text().split("RssFile:")[1].split()[0])

    file = FeatureFile(tmp_path, content(frames=40, shape=(64, 4096), dtype=torch.float32))
    with FeatureWriter(file) as writer:
        for frame in range(40):
            writer.write([frame], torch.full((1, 64, 4096), float(frame)))
    reader = FeatureReader([file])
    before = resident_file_kb()
    for frame in range(40):
        assert reader.read(np.asarray([frame]), [])[0, 0, 0] == frame
    assert resident_file_kb() - before < 4000


def test_rows_that_were_not_built_take_no_space(tmp_path):
    file = written(tmp_path, 0, frames=1_000_000)
    (entry,) = list_caches(tmp_path)
    assert entry.path == file.path
    assert entry.header["camera"] == "observation.images.top"
    assert entry.n_bytes < 200_000  # 30 MB of features and 4 MB of marks if they were not holes


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path / "a"))
    assert default_cache_folder() == tmp_path / "a" / "features"
    monkeypatch.delenv("MIMETIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_cache_folder() == tmp_path / "b" / "mimetic" / "features"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert default_cache_folder() == tmp_path / ".cache" / "mimetic" / "features"
    monkeypatch.setattr("sys.platform", "darwin")
    assert default_cache_folder() == tmp_path / "Library" / "Caches" / "mimetic" / "features"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert default_cache_folder() == tmp_path / "local" / "mimetic" / "Cache" / "features"
