"""One run a folder: who holds it, who is refused, and that the dead hold nothing."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from mimetic.errors import TrainingError
from mimetic.train import run_lock
from mimetic.train.run_lock import RUN_LOCK, RunLock

HOLDER = """
import sys, pathlib
from mimetic.train.run_lock import RunLock
with RunLock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_run_is_refused_and_told_who_has_the_folder(tmp_path, holder):
    with pytest.raises(TrainingError) as caught, RunLock(tmp_path):
        pass
    assert caught.value.message.startswith(
        f"another run is writing to {tmp_path}: process {holder.pid} on {socket.gethostname()}, since 20"
    )
    assert caught.value.hint == (
        f"wait for its end, stop it with `kill {holder.pid}` (it saves a checkpoint first), or choose another folder "
        "with `--output_dir`"
    )


def test_an_owner_on_another_machine_is_named_with_it(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "node7")
        lock = RunLock(tmp_path)
        lock.__enter__()
    with pytest.raises(TrainingError) as caught, RunLock(tmp_path):
        pass
    lock.__exit__(None, None, None)
    assert "on node7, since" in caught.value.message
    assert f"`kill {os.getpid()}` on node7" in caught.value.hint


def test_an_owner_that_could_not_write_its_name_is_refused_without_one(tmp_path):
    with RunLock(tmp_path):
        for text in ("", "{", "[]", '{"pid": "x", "host": 1, "since": 2}'):
            (tmp_path / RUN_LOCK).write_text(text)
            with pytest.raises(TrainingError) as caught, RunLock(tmp_path):
                pass
            assert caught.value.message == f"another run is writing to {tmp_path}"
            assert caught.value.hint == "wait for its end, or choose another folder with `--output_dir`"


def test_after_an_orderly_end_the_folder_is_free_and_nothing_is_said(tmp_path, caplog):
    for _ in range(2):
        with RunLock(tmp_path), caplog.at_level("INFO"):
            owner = json.loads((tmp_path / RUN_LOCK).read_text())
            assert owner["pid"] == os.getpid()
        assert (tmp_path / RUN_LOCK).read_bytes() == b""
    assert caplog.messages == []


def test_a_killed_owner_holds_nothing_and_is_named_in_the_log(tmp_path, holder, caplog):
    holder.kill()
    holder.wait()
    with caplog.at_level("INFO"), RunLock(tmp_path):
        assert f"The former run in this folder (process {holder.pid} on " in caplog.text
        assert "was killed or crashed; its lock is free" in caplog.text


def test_the_lock_is_released_when_the_run_fails(tmp_path):
    with pytest.raises(ValueError), RunLock(tmp_path):
        raise ValueError
    with RunLock(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
@pytest.mark.parametrize("ends", ["in order", "killed"])
def test_a_forked_child_that_lives_on_does_not_keep_the_folder(tmp_path, ends):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # a run that forks a process, which outlives it
        lock = RunLock(tmp_path)
        lock.__enter__()
        grandchild = os.fork()
        if grandchild == 0:
            os.close(write)
            signal.pause()
        os.write(write, f"{grandchild}\n".encode())
        if ends == "in order":
            lock.__exit__(None, None, None)
        os._exit(0)
    os.close(write)
    grandchild = int(os.read(read, 32))
    os.waitpid(child, 0)
    try:
        with RunLock(tmp_path):
            pass
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(read)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_without_locks_the_run_goes_on_with_a_warning(tmp_path, monkeypatch, caplog, number):
    def none(handle):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("mimetic.data.file_lock._lock", none)
    with RunLock(tmp_path), RunLock(tmp_path):
        pass
    assert f"{tmp_path} is on a file system without locks ({os.strerror(number)})" in caplog.text
    assert "two would damage each other's checkpoints" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_a_folder_that_takes_no_files_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError) as caught, RunLock(tmp_path / "file"):
        pass
    assert caught.value.message == f"the run's folder {tmp_path / 'file'} cannot be written: Not a directory"
    assert caught.value.hint == "choose another place with `--output_dir`"


def test_a_full_disk_holds_the_lock_without_a_name(tmp_path, monkeypatch):
    def full(handle, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        lock = RunLock(tmp_path)
        lock.__enter__()
        with pytest.raises(TrainingError), RunLock(tmp_path):
            pass
        lock.__exit__(None, None, None)
    with RunLock(tmp_path):
        pass


def test_a_clock_that_jumps_changes_only_the_text(tmp_path, monkeypatch):
    import datetime

    class Backwards(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1970, 1, 1, 12)

    monkeypatch.setattr(run_lock.datetime, "datetime", Backwards)
    with RunLock(tmp_path), pytest.raises(TrainingError, match="since 1970-01-01"), RunLock(tmp_path):
        pass
    with RunLock(tmp_path):
        pass
