"""Faults of the machine while a run goes on: each gets its message, and nothing that was saved is lost."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from mimetic.testing.tiny import TINY_ACT
from mimetic.train.checkpoint import is_complete, last_checkpoint

# Imports once, then forks a process for each run, so that thirty runs do not import torch thirty times. What a test
# wants to go wrong is arranged inside that process, before the command runs.
SERVER = """
import json, os, sys, traceback
os.environ["OMP_NUM_THREADS"] = "1"
from mimetic.cli.app import main
import mimetic.train.run
for line in sys.stdin:
    order = json.loads(line)
    if "wait" in order:
        print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.dup2(os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            exec(order["before"], {})
            code = main(["train", *order["flags"]])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(child, flush=True)
"""
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork, signals and file limits")


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(server, tmp_path):
    """Starts `mimetic train`; returns its process number and its log."""
    numbers = itertools.count()

    def begin(flags, before=""):
        log = tmp_path / f"log-{next(numbers)}"
        return server.ask(flags=[str(flag) for flag in flags], before=before, log=str(log)), log

    return begin


@pytest.fixture
def run(server, start):
    """Runs to the end; returns the exit code, the problem (`error:`, `hint:` and what follows), and all of stderr."""

    def whole(flags, before=""):
        process, log = start(flags, before)
        code = server.ask(wait=process)
        text = log.read_text()
        assert "Traceback" not in text, text
        lines = text.splitlines()
        begins = next((n for n, line in enumerate(lines) if line.startswith("error:")), len(lines))
        return code, "\n".join(lines[begins:]), text

    return whole


@pytest.fixture
def flags(fixtures, tmp_path):
    return [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        *TINY_ACT,
        "--batch_size=4",
        "--num_workers=0",
        "--log_freq=1",
        f"--output_dir={tmp_path / 'run'}",
    ]


def files_of(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def losses_of(folder):
    """What `metrics.jsonl` says of each step and each measurement."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(r["kind"], r["steps"], r.get("loss", r.get("eval_loss"))) for r in records if r["kind"] != "resume"]


def resume(folder):
    return ["--resume=true", f"--config_path={folder}"]


# Signals of schedulers -----------------------------------------------------------------------------------------------

SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)]
# Sends the signal from inside at the end of a step, so that it falls at no lucky moment of a slow machine.
AT_STEP = """
import os, signal
from mimetic.train.loop import Loop
real = Loop._one_step
def one_step(self):
    real(self)
    if self.progress.step in ({steps}):
        os.kill(os.getpid(), signal.{name})
Loop._one_step = one_step
"""


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_scheduler_stops_the_run_twice_and_the_result_is_that_of_no_stop(run, flags, tmp_path, number):
    flags = [*flags, "--steps=9", "--save_freq=4", "--eval_steps=2", "--dataset.eval_split=0.3"]
    assert run(flags)[0] == 0
    (tmp_path / "run").rename(tmp_path / "whole")
    before = AT_STEP.format(steps="3, 6," if number == signal.SIGTERM else "3,", name=number.name)
    code, problem, _ = run(flags, before)
    assert code == 99, problem
    assert "after step 3; its checkpoint is saved" in problem
    assert f"`mimetic train --resume=true --config_path={tmp_path / 'run'}` continues" in problem
    code, problem, text = run(resume(tmp_path / "run"), before)
    assert "was killed or crashed" not in text
    if number == signal.SIGTERM:
        assert code == 99, problem
        assert "after step 6; its checkpoint is saved" in problem
        code, problem, text = run(resume(tmp_path / "run"))
    assert code == 0, problem
    whole, stopped = (files_of(tmp_path / name / "checkpoints" / "000009") for name in ("whole", "run"))
    assert whole.keys() == stopped.keys()
    assert [name for name in whole if whole[name] != stopped[name]] == []
    assert losses_of(tmp_path / "run") == losses_of(tmp_path / "whole")


def test_the_code_for_the_queue_can_be_chosen_and_is_not_used_when_nothing_is_saved(run, flags):
    before = AT_STEP.format(steps="2,", name="SIGTERM")
    assert run([*flags, "--steps=9", "--requeue_exit_code=85"], before)[0] == 85
    shutil.rmtree(next(flag for flag in flags if "output_dir" in flag).partition("=")[2])
    code, problem, _ = run([*flags, "--steps=9", "--save_checkpoint=false"], before)
    assert code == 143
    assert "after step 2; checkpoints are off, nothing was saved" in problem


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_while_the_run_starts_ends_it_with_a_word(run, flags, tmp_path, number):
    before = f"""
import os, signal
import mimetic.train.run as train
def open_training_data(*args):
    os.kill(os.getpid(), signal.{number.name})
    raise AssertionError("the start went on")
train.open_training_data = open_training_data
"""
    code, problem, _ = run([*flags, "--steps=9"], before)
    assert code == 143
    assert problem == (
        f"error: {number.name} came before the first step; nothing was trained yet, so nothing is lost\n"
        "hint: the same command starts again"
    )
    assert not (tmp_path / "run").exists()


# Two runs in one folder ----------------------------------------------------------------------------------------------


def test_a_run_cannot_be_resumed_while_it_is_alive_but_at_once_when_it_was_killed(server, start, run, flags, tmp_path):
    folder = tmp_path / "run"
    slow = """
import time
from mimetic.train.loop import Loop
real = Loop._one_step
Loop._one_step = lambda self: (time.sleep(0.05), real(self))[1]
"""
    first, log = start([*flags, "--steps=100000", "--save_freq=2", "--keep.last=2"], slow)
    try:
        deadline = time.monotonic() + 60
        while not log.exists() or "Checkpoint policy after step 4" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        code, problem, _ = run(resume(folder))
        assert code == 1
        assert f"error: another run is writing to {folder}: process {first} on " in problem
        assert f"stop it with `kill {first}` (it saves a checkpoint first)" in problem
        assert list((folder / "checkpoints").glob("*superseded*")) == [], "the second run has harmed the first"
    finally:
        os.kill(first, signal.SIGKILL)
        assert server.ask(wait=first) == -signal.SIGKILL
    step = int(last_checkpoint(folder / "checkpoints").name)
    code, problem, text = run([*resume(folder), f"--steps={step + 2}"])
    assert code == 0, problem
    assert f"The former run in this folder (process {first} on " in text
    steps = sorted(path.name for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    assert steps == [f"{step:06d}", f"{step + 2:06d}"]


def test_two_runs_of_the_same_second_get_folders_of_their_own(run, flags, tmp_path, fixtures):
    before = f"""
import datetime, os
os.chdir({str(tmp_path)!r})
import mimetic.train.resolve as resolve
class Stopped(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 2, 3, 4, 5)
resolve.datetime.datetime = Stopped
"""
    flags = [flag for flag in flags if not flag.startswith("--output_dir")]
    for _ in range(2):
        code, problem, _ = run([*flags, "--steps=1"], before)
        assert code == 0, problem
    made = sorted(path.name for path in (tmp_path / "outputs" / "train" / "2026-01-02").iterdir())
    assert made == ["03-04-05_act", "03-04-05_act-2"]
    for name in made:
        config = json.loads(
            (
                tmp_path / f"outputs/train/2026-01-02/{name}/checkpoints/last/pretrained_model/train_config.json"
            ).read_text()
        )
        assert config["output_dir"] == f"outputs/train/2026-01-02/{name}"


# Disks that refuse ---------------------------------------------------------------------------------------------------

# The kernel refuses every byte beyond this, in every file: what a quota or a full disk does to the model's file.
TOO_LARGE = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import mimetic.train.outputs as outputs
real = outputs.save_checkpoint
def save_checkpoint(folder, saved, progress, **kwargs):
    if progress.step == 4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))
    return real(folder, saved, progress, **kwargs)
outputs.save_checkpoint = save_checkpoint
"""


def test_a_disk_that_refuses_the_model_ends_the_run_and_leaves_the_checkpoint_before(run, flags, tmp_path):
    code, problem, _ = run([*flags, "--steps=6", "--save_freq=2"], TOO_LARGE)
    assert code == 1
    parent = tmp_path / "run" / "checkpoints"
    assert problem.startswith(f"error: the checkpoint of step 4 could not be written to {parent}: ")
    assert "File too large" in problem
    assert "hint: make room there, then resume from step 2" in problem
    assert sorted(path.name for path in parent.iterdir()) == ["000002", "last"]
    assert is_complete(last_checkpoint(parent))
    assert run(resume(tmp_path / "run"))[0] == 0


def test_a_disk_that_is_nearly_full_ends_the_run_before_it_is_quite_full(run, flags, tmp_path):
    before = """
import shutil, types
import mimetic.train.disk_space as disk_space
class Disk:
    left = 3
    def disk_usage(self, place):
        Disk.left -= 1
        return types.SimpleNamespace(free=10**9 if Disk.left > 0 else 1000)
disk_space.shutil = Disk()
"""
    code, problem, text = run([*flags, "--steps=6", "--save_freq=2"], before)
    assert code == 1
    assert re.search(
        r"error: the checkpoint of step 4 takes about \d+ kB, and the disk of \S+/checkpoints has 1 kB free", problem
    )
    assert "hint: make room there, then resume from step 2" in problem
    assert re.search(r"checkpoints: .* each, 3 to write, 1.0 GB free", text)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["000002", "last"]


def test_a_disk_too_small_for_two_checkpoints_is_refused_before_anything_is_written(run, flags, tmp_path):
    before = """
import types
import mimetic.train.disk_space as disk_space
disk_space.shutil = types.SimpleNamespace(disk_usage=lambda place: types.SimpleNamespace(free=1_200_000))
"""
    code, problem, _ = run([*flags, "--steps=6", "--save_freq=2"], before)
    assert code == 1
    assert "not even two would fit" in problem
    assert "`--output_dir`" in problem
    assert not (tmp_path / "run").exists()


def test_a_folder_below_a_file_is_refused_before_the_first_step(run, flags, tmp_path):
    (tmp_path / "file").touch()
    code, problem, text = run([*flags, f"--output_dir={tmp_path / 'file' / 'run'}", "--steps=2"])
    assert code == 2
    assert problem.startswith(f"error: `--output_dir={tmp_path / 'file' / 'run'}` cannot be made")
    assert "Creating dataset" not in text


READ_ONLY = """
import builtins, io, os, pathlib
folder = {folder!r}
real_open, real_mkdir = os.open, os.mkdir
def inside(path):
    return os.path.abspath(os.fspath(path)).startswith(folder) if not isinstance(path, int) else False
def refused(path):
    raise OSError(30, "Read-only file system", os.fspath(path))
def os_open(path, flags, *args, **kwargs):
    return refused(path) if flags & (os.O_WRONLY | os.O_RDWR) and inside(path) else real_open(path, flags, *args, **kwargs)
def io_open(path, mode="r", *args, real=io.open, **kwargs):
    return refused(path) if set(mode) & set("wax+") and inside(path) else real(path, mode, *args, **kwargs)
def mkdir(path, *args, **kwargs):
    return refused(path) if inside(path) else real_mkdir(path, *args, **kwargs)
os.open, io.open, builtins.open, os.mkdir = os_open, io_open, io_open, mkdir
"""


def test_a_run_on_a_disk_that_became_read_only_is_not_resumed_and_not_harmed(run, flags, tmp_path):
    # Such a disk needs root to be made, and root is not stopped by permissions: the calls refuse instead.
    assert run([*flags, "--steps=2"])[0] == 0
    before = files_of(tmp_path / "run")
    code, problem, text = run([*resume(tmp_path / "run"), "--steps=4"], READ_ONLY.format(folder=str(tmp_path / "run")))
    assert code == 1, problem
    assert problem.startswith(f"error: the run's folder {tmp_path / 'run'} cannot be written: Read-only file system\n")
    assert "`--output_dir`" in problem
    assert "Start offline training" not in text
    assert files_of(tmp_path / "run") == before


@pytest.mark.parametrize("fault", ["a folder", "no space"])
def test_a_metrics_file_that_cannot_be_written_is_named(run, flags, tmp_path, fault):
    assert run([*flags, "--steps=2"])[0] == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    before = ""
    if fault == "a folder":
        metrics.unlink()
        metrics.mkdir()
    else:
        before = """
from mimetic.log import JsonLines
real = JsonLines.write
def write(self, record):
    if record.get("steps") == 3 and record["kind"] == "train":
        raise OSError(28, "No space left on device")
    real(self, record)
JsonLines.write = write
"""
    code, problem, _ = run([*resume(tmp_path / "run"), "--steps=4"], before)
    assert code == 1
    if fault == "a folder":
        assert problem.startswith(f"error: the run's folder {tmp_path / 'run'} cannot be written: Is a directory")
    else:
        assert problem.startswith(f"error: {metrics} could not be written at step 3: No space left on device")
        assert f"make room there, then `mimetic train --resume=true --config_path={tmp_path / 'run'}`" in problem
        assert run([*resume(tmp_path / "run"), "--steps=4"])[0] == 0
    assert is_complete(tmp_path / "run" / "checkpoints" / "000002")


# Retention and early stop ---------------------------------------------------------------------------------------------


def test_only_the_checkpoints_of_the_rules_are_left_and_best_leads_to_the_lowest(run, flags, tmp_path):
    flags = [*flags, "--steps=12", "--save_freq=2", "--eval_steps=3", "--dataset.eval_split=0.3"]
    code, problem, text = run([*flags, "--keep.last=2", "--keep.best=1", "--keep.every=4"])
    assert code == 0, problem
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = {line["steps"]: line["eval_loss"] for line in lines if line["kind"] == "heldout"}
    assert sorted(losses) == [3, 6, 9, 12]
    best = min(losses, key=losses.get)
    parent = tmp_path / "run" / "checkpoints"
    assert int(os.readlink(parent / "best")) == best
    assert os.readlink(parent / "last") == "000012"
    left = {int(path.name) for path in parent.iterdir() if path.name.isdigit()}
    saved = {int(step) for step in re.findall(r"Checkpoint policy after step (\d+)", text)}
    assert left == {4, 8, 12, best} | set(sorted(saved)[-2:])
    assert all(is_complete(path) for path in parent.iterdir() if path.name.isdigit())
    assert "Removed checkpoint" in text


def test_a_held_out_loss_that_does_not_fall_ends_the_run_well(run, flags, tmp_path):
    before = """
from mimetic.train.heldout import Heldout, HeldoutLoss
losses = iter([0.5, 0.25, float("nan"), 0.3, 0.25, 0.1])
Heldout.measure = lambda self, policy: HeldoutLoss(next(losses), {})
"""
    flags = [*flags, "--steps=100", "--save_freq=2", "--eval_steps=2", "--dataset.eval_split=0.3"]
    code, problem, text = run([*flags, "--early_stop.patience=3", "--keep.best=1", "--keep.every=2"], before)
    assert code == 0, problem
    assert "the held-out loss has not fallen for 3 measurements; lowest 0.25 at step 4, checkpoints/best" in text
    parent = tmp_path / "run" / "checkpoints"
    assert (os.readlink(parent / "best"), os.readlink(parent / "last")) == ("000004", "000010")
    code, problem, text = run(resume(tmp_path / "run"))
    assert code == 0, problem
    assert "This run ended early: the held-out loss has not fallen for 3 measurements" in text
    assert "--early_stop.patience=0 goes on" in text
    assert os.readlink(parent / "last") == "000010"
    # Back to a checkpoint from before the best one, `best` must not lead to what was set aside.
    code, problem, _ = run([*resume(parent / "000002"), "--steps=3", "--early_stop.patience=0"])
    assert code == 0, problem
    assert os.readlink(parent / "best") == "000002"


# Clocks that jump ------------------------------------------------------------------------------------------------------


def test_a_clock_that_runs_backwards_harms_no_duration(run, flags, tmp_path):
    before = """
import time
import mimetic.train.run  # torch and its kind are loaded with a good clock
now = [1_800_000_000.0]
def backwards():
    now[0] -= 3600.0
    return now[0]
time.time = backwards
time.time_ns = lambda: int(backwards() * 1e9)
"""
    code, problem, text = run([*flags, "--steps=3", "--save_freq=1"], before)
    assert code == 0, problem
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert all(0 <= line[key] < 60 for key in line if key.endswith("_s") and key != "samples_per_s"), line
    assert "2027-01" in text  # the log was written with that clock


def test_training_reads_the_wall_clock_only_for_names(repository):
    found = {}
    for path in sorted((repository / "src" / "mimetic" / "train").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        uses = re.findall(r"\btime\.(?:time|time_ns|ctime|localtime|gmtime|strftime)\(|datetime\.now\(|\.today\(", text)
        if uses:
            found[path.name] = len(uses)
    # Names of folders that --output_dir does not give, and the text of a lock's owner.
    assert found.keys() <= {"resolve.py", "hub_resume.py", "run_lock.py"}, found


# The scripts of the guide ----------------------------------------------------------------------------------------------


def blocks_of_guide(repository, language):
    text = (repository / "docs" / "guides" / "unattended_runs.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.S)


@pytest.mark.parametrize("number", [0, 1], ids=["srun", "batch script alone"])
def test_the_guides_slurm_scripts_queue_a_stopped_run_again_and_a_finished_one_not(repository, tmp_path, number):
    scripts = [text for text in blocks_of_guide(repository, "bash") if "SBATCH" in text]
    (start_or_continue,) = [text for text in blocks_of_guide(repository, "sh") if text.startswith("#!/bin/sh\nRUN=")]
    (tmp_path / "job.sh").write_text(scripts[number])
    (tmp_path / "train.sh").write_text(start_or_continue.replace("--steps=4", "--steps=1000000"))
    (tmp_path / "tests").symlink_to(repository / "tests")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {
        "srun": f'#!/bin/sh\necho $$ > {tmp_path}/step\nexec "$@"\n',
        "scontrol": f'#!/bin/sh\necho "$@" >> {tmp_path}/queued\n',
        "mimetic": f'#!/bin/sh\nexec {sys.executable} -m mimetic "$@"\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
    job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    seen = []
    for line in job.stderr:
        seen.append(line)
        if "Checkpoint policy after step 2" in line:
            break
    # SLURM signals the processes of the job's steps, or with `B:` the batch script.
    os.kill(int((tmp_path / "step").read_text()) if number == 0 else job.pid, signal.SIGUSR1)
    _, rest = job.communicate(timeout=120)
    assert job.returncode == 99, "".join(seen) + rest
    assert (tmp_path / "queued").read_text() == "requeue 42\n"
    step = int(last_checkpoint(tmp_path / "outputs" / "pick" / "checkpoints").name)
    script = tmp_path / "train.sh"
    script.write_text(script.read_text().replace('--config_path="$RUN"', f'--config_path="$RUN" --steps={step + 1}'))
    done = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert f"Checkpoint policy after step {step + 1}" in done.stderr
    assert (tmp_path / "queued").read_text() == "requeue 42\n"
