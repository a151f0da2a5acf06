"""The engine: same results and order whoever works, failures that name themselves, and no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import engine_work as work
import pytest

from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import choose, run_tasks, usable_cores
from mimetic.data.video.index import FrameError
from mimetic.errors import DatasetError, WorkerError

SERIAL = EngineConfig(engine="serial")
POOL = EngineConfig(engine="pool", num_workers=2)


def parts(count, folder):
    return [work.Part(number, folder) for number in range(count)]


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    assert condition()


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    # A process that ended and was not waited for is still in the table.
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_both_engines_give_the_same_results_in_the_order_of_the_tasks(tmp_path):
    tasks = parts(9, tmp_path)
    done = []
    here = run_tasks(work.square, tasks, SERIAL)
    there = run_tasks(work.square, tasks, POOL, on_done=lambda position, result: done.append((position, result[0])))
    assert [value for value, _ in here] == [value for value, _ in there] == [number**2 for number in range(9)]
    assert sorted(done) == [(number, number**2) for number in range(9)]
    assert {process for _, process in here} == {os.getpid()}
    workers = {process for _, process in there}
    assert os.getpid() not in workers
    assert len(workers) <= 2
    assert not any(is_alive(process) for process in workers)


def test_a_worker_computes_with_one_thread(tmp_path):
    assert run_tasks(work.threads, parts(1, tmp_path), POOL) == [(1, "1")]


@pytest.mark.parametrize("config", [SERIAL, POOL], ids=["serial", "pool"])
def test_a_failing_task_names_itself_and_ends_the_rest(tmp_path, config):
    with pytest.raises(DatasetError) as caught:
        run_tasks(work.fail_at_three, parts(40, tmp_path), config, name=lambda part: f"part {part.number}")
    assert caught.value.message == "part 3: the rows are gone"
    assert caught.value.hint == "look for them"
    assert len(list(tmp_path.iterdir())) < 12


@pytest.mark.parametrize("config", [SERIAL, POOL], ids=["serial", "pool"])
def test_errors_keep_what_else_they_say(tmp_path, config):
    with pytest.raises(FrameError, match=r"^part 0: frame 5 of") as caught:
        run_tasks(work.fail_frame, parts(1, tmp_path), config, name=lambda part: "part 0")
    assert (caught.value.frame, caught.value.hint) == (5, "look for it")


@pytest.mark.parametrize("config", [SERIAL, POOL], ids=["serial", "pool"])
def test_exceptions_that_cannot_travel_keep_their_text_and_traceback(tmp_path, config):
    with pytest.raises(RuntimeError, match="ForeignError: code 7 at the decoder") as caught:
        run_tasks(work.fail_foreign, parts(1, tmp_path), config, name=lambda part: "part 0")
    notes = "\n".join(caught.value.__notes__)
    assert "fail_foreign" in notes
    assert "part 0" in notes


@pytest.mark.parametrize("config", [SERIAL, POOL], ids=["serial", "pool"])
def test_a_full_disk_stays_the_error_that_the_command_line_knows(tmp_path, config):
    with pytest.raises(OSError, match="No space left") as caught:
        run_tasks(work.fail_full, parts(1, tmp_path), config)
    assert caught.value.errno == 28


def test_a_killed_worker_is_said_and_not_waited_for(tmp_path):
    with pytest.raises(WorkerError, match="ended from outside") as caught:
        run_tasks(work.fall, parts(2, tmp_path), POOL)
    assert "--num_workers" in caught.value.hint


SCRIPT = """
import sys
from pathlib import Path
import engine_work as work
from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    run_tasks(work.wait, [work.Part(n, folder) for n in range(4)], EngineConfig(engine="pool", num_workers=2))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_no_worker_outlives_its_parent(tmp_path, how):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "out").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(work.__file__).parent)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "out")], env=environment, stderr=subprocess.PIPE
    )
    wait_until(lambda: len([p for p in (tmp_path / "out").glob("*.pid") if p.read_text()]) == 2)
    workers = [int(path.read_text()) for path in (tmp_path / "out").glob("*.pid")]
    process.send_signal(how)
    error = process.communicate(timeout=60)[1].decode()
    assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else -signal.SIGINT)
    assert ("KeyboardInterrupt" in error) == (how == signal.SIGINT)
    wait_until(lambda: not any(is_alive(worker) for worker in workers))


def test_auto_takes_a_pool_only_where_it_pays():
    auto = EngineConfig()
    assert choose(auto, 0) == choose(auto, 1) == ("serial", 1)
    assert choose(EngineConfig(num_workers=1), 9) == ("serial", 1)
    assert choose(EngineConfig(num_workers=3), 9) == ("pool", 3)
    assert choose(EngineConfig(num_workers=3), 2) == ("pool", 2)
    assert choose(auto, 10_000) == (("pool", usable_cores()) if usable_cores() > 1 else ("serial", 1))
    assert choose(EngineConfig(engine="ray"), 3) == ("ray", 0)
    assert choose(EngineConfig(engine="ray"), 0) == ("serial", 1)
    assert choose(EngineConfig(num_workers=3), 9, 2.0) == ("serial", 1)
    assert choose(EngineConfig(num_workers=3), 9, 200.0) == ("pool", 3)
    assert choose(EngineConfig(engine="pool", num_workers=3), 9, 2.0) == ("pool", 3)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (EngineConfig(num_workers=-1), "--num_workers=-1"),
        (EngineConfig(engine="pool", address="auto"), "--engine=ray"),
        (EngineConfig(engine="serial", num_workers=4), "one part at a time"),
    ],
)
def test_settings_that_contradict_each_other_are_named(config, said):
    assert len(config.engine_problems()) == 1
    assert said in config.engine_problems()[0]


def test_good_settings_have_no_problem():
    assert EngineConfig().engine_problems() == EngineConfig(engine="ray", address="auto").engine_problems() == []
