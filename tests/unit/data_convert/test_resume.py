"""A conversion may be broken off anywhere: nothing is half there, and going on gives the very same bytes."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys

import pytest

from mimetic.data.convert import parts, split, verify, workplace
from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.convert.workplace import Workplace
from mimetic.errors import DatasetError

MODULES = (parts, split, verify)


class Stop(BaseException):
    """As a Ctrl-C is: no ordinary exception."""


@pytest.fixture
def count_parts(monkeypatch):
    """Count finished parts; `stop_at` breaks off before or after the record of a part is written."""

    class Counter:
        seen = 0
        stop_at = -1
        is_after = False

        def __call__(self, *details):
            self.seen += 1
            if self.seen == self.stop_at and not self.is_after:
                raise Stop
            record = workplace.keep(*details)
            if self.seen == self.stop_at:
                raise Stop
            return record

    counter = Counter()
    for module in MODULES:
        monkeypatch.setattr(module, "keep", counter)
    return counter


def hidden(target):
    return target.with_name(f".{target.name}.converting")


@pytest.mark.parametrize("is_after", [False, True], ids=["before_its_record", "after_its_record"])
@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_interrupted_at_every_part_and_resumed_gives_the_same_bytes(
    v21, v30, small, content, tmp_path, count_parts, to, is_after
):
    root = v21 if to == "v3.0" else v30
    limits = {} if to == "v3.0" else {"data_file_size_in_mb": None, "video_file_size_in_mb": None}
    convert(small(root, tmp_path / "whole", to=to, **limits))
    expected, total = content(tmp_path / "whole"), count_parts.seen
    assert total >= 8
    for stop_at in range(1, total + 1):
        target = tmp_path / f"out{stop_at}"
        count_parts.seen, count_parts.stop_at, count_parts.is_after = 0, stop_at, is_after
        with pytest.raises(Stop):
            convert(small(root, target, to=to, **limits))
        assert not target.exists()
        done = stop_at if is_after else stop_at - 1
        assert hidden(target).is_dir() == (done > 0)
        count_parts.seen, count_parts.stop_at = 0, -1
        assert convert(small(root, target, to=to, **limits)) == target
        assert count_parts.seen == total - done, "finished parts were done again"
        assert content(target) == expected
        assert not hidden(target).exists()


def test_interrupted_many_times_it_still_ends_with_the_same_bytes(v21, v30, small, content, tmp_path, count_parts):
    target = tmp_path / "out"
    count_parts.stop_at = 2
    for _ in range(100):
        count_parts.seen = 0
        try:
            convert(small(v21, target))
            break
        except Stop:
            continue
    assert content(target) == content(v30)


SCRIPT = """
import os, signal, sys
from pathlib import Path
from mimetic.data.convert import parts, workplace
from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
seen = 0
def keep(*details):
    global seen
    seen += 1
    if seen == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return workplace.keep(*details)
parts.keep = keep
convert(ConvertConfig(root=Path(sys.argv[1]), output_dir=Path(sys.argv[2]), data_file_size_in_mb=0.004,
                      video_file_size_in_mb=0.004, engine="serial"))
"""


def test_after_a_kill_the_lock_is_free_and_the_work_goes_on(v21, v30, small, content, tmp_path):
    target = tmp_path / "out"
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(v21), str(target)], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert len(list((hidden(target) / "parts").iterdir())) == 2
    convert(small(v21, target))
    assert content(target) == content(v30)


def test_files_that_were_cut_after_their_record_are_made_again(v21, v30, small, content, tmp_path, count_parts):
    target = tmp_path / "out"
    count_parts.stop_at = 5
    with pytest.raises(Stop):
        convert(small(v21, target))
    for name in ("data/chunk-000/file-009.parquet.77.writing", "videos/episode_000001.mp4.77.head-0.mp4.part"):
        (hidden(target) / "dataset" / name).touch()  # as a kill leaves them
    made = next((hidden(target) / "dataset/data").rglob("*.parquet"))
    made.write_bytes(made.read_bytes()[:100])
    count_parts.stop_at = -1
    convert(small(v21, target))
    assert content(target) == content(v30)


def test_a_changed_input_or_setting_does_not_go_on_silently(v21, v30, small, content, tmp_path, count_parts):
    target = tmp_path / "out"
    count_parts.stop_at = 3
    with pytest.raises(Stop):
        convert(small(v21, target))
    count_parts.stop_at = -1
    with pytest.raises(DatasetError, match=r"another `setting`") as caught:
        convert(small(v21, target, video_file_size_in_mb=1.0))
    assert "--force_conversion=true" in caught.value.hint
    assert hidden(target).is_dir()
    convert(small(v21, target, video_file_size_in_mb=1.0, force_conversion=True))
    assert len(list((target / "videos").rglob("*.mp4"))) == 1
    assert content(v30) != content(target)


def test_who_works_may_change_between_two_starts(v21, v30, small, content, tmp_path, count_parts):
    target = tmp_path / "out"
    count_parts.stop_at = 3
    with pytest.raises(Stop):
        convert(small(v21, target))
    count_parts.stop_at = -1
    convert(small(v21, target, engine="pool", num_workers=2))
    assert content(target) == content(v30)


def test_two_processes_do_not_convert_to_one_folder(v21, small, tmp_path):
    target = tmp_path / "out"
    with (
        Workplace(target, {"setting": 1}),
        pytest.raises(DatasetError, match=f"process {os.getpid()} is converting"),
        Workplace(target, {"setting": 1}),
    ):
        pass


def test_a_folder_that_is_not_ours_is_left_alone(v21, small, tmp_path):
    target = tmp_path / "out"
    stranger = hidden(target) / "thesis.tex"
    stranger.parent.mkdir()
    stranger.write_text("precious")
    for force in (False, True):
        with pytest.raises(DatasetError, match=r"mimetic did not put there"):
            convert(small(v21, target, force_conversion=force))
    assert stranger.read_text() == "precious"


def test_an_existing_result_is_never_replaced(v21, small, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "notes.txt").write_text("precious")
    for force in (False, True):
        with pytest.raises(DatasetError, match=r"exists already"):
            convert(small(v21, target, force_conversion=force))
    assert (target / "notes.txt").read_text() == "precious"


def test_the_user_is_told_that_work_goes_on(v21, small, tmp_path, count_parts, caplog):
    target = tmp_path / "out"
    count_parts.stop_at = 3
    with pytest.raises(Stop):
        convert(small(v21, target))
    assert "2 finished parts are kept" in caplog.text
    count_parts.stop_at = -1
    with caplog.at_level(logging.INFO, logger="mimetic"):
        convert(small(v21, target))
    assert "going on with the conversion that was interrupted" in caplog.text


def test_another_number_of_workers_is_no_other_setting():
    assert ConvertConfig(root=None, repo_id="a/b", engine="pool", num_workers=3).check() == []


def test_an_input_that_changes_while_it_is_converted_gives_no_result(v21, small, tmp_path, monkeypatch):
    root = shutil.copytree(v21, tmp_path / "in")

    def touch(*details):
        os.utime(root / "meta/info.json", (1, 1))
        return workplace.keep(*details)

    monkeypatch.setattr(parts, "keep", touch)
    with pytest.raises(DatasetError, match="was changed while it was converted"):
        convert(small(root, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_what_another_process_begins_is_not_removed_by_one_that_ends(tmp_path, monkeypatch):
    """The folder is cleared while it is locked; whoever comes then takes a new lock file, never the removed one."""
    target = tmp_path / "out"
    order = []
    first = Workplace(target, {}).__enter__()
    monkeypatch.setattr(first, "_release", lambda: (order.append(first.records.exists()), Workplace._release(first)))
    first.finish()
    assert order == [False]
    assert target.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_a_lock_file_that_was_removed_meanwhile_does_not_count(tmp_path, monkeypatch):
    target, seen = tmp_path / "out", []
    real = workplace.LockFile.try_lock

    def removed(lock):
        if not seen:
            lock.path.unlink()
        seen.append(lock.path)
        return real(lock)

    monkeypatch.setattr(workplace.LockFile, "try_lock", removed)
    with Workplace(target, {}) as place:
        assert len(seen) == 2
        assert (place.folder / "lock").exists()
        place.finish()


def test_the_old_layout_is_not_converted_to_itself(v21, tmp_path):
    with pytest.raises(DatasetError, match=r"is a v2\.1 dataset already"):
        convert(ConvertConfig(root=v21, output_dir=tmp_path / "out", to="v2.1"))
