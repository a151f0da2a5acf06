"""SIGKILL at random instants: the newest complete checkpoint loads, nothing partial is ever `last`, and the run ends as if never stopped."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from mimetic.policies.checkpoint import load_pretrained
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.checkpoint import is_complete
from mimetic.train.resume import find_checkpoint
from mimetic.train.state import read_tensors

KILLS = 20
STEPS = 40

# Imports once, then forks one training process a line, so that twenty runs do not import torch twenty times.
SERVER = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
from mimetic.cli.app import main
import mimetic.train.run
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = main(["train", *line.rstrip("\\n").split("\\t")])
        os._exit(code)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, flags):
        self.process.stdin.write("\t".join(flags) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def exit_code(self):
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


def flags(fixtures, run):
    return [
        "--dataset.repo_id=local/tiny_vec",
        f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}",
        *TINY_ACT,
        "--batch_size=4",
        "--num_workers=0",
        f"--steps={STEPS}",
        "--save_freq=1",
        "--keep.last=2",  # so that kills fall into removals too
        "--log_freq=0",
        f"--output_dir={run}",
    ]


def check_checkpoints(run):
    """What must hold at any instant after a kill; returns the step that a resume starts from, or None."""
    parent = run / "checkpoints"
    last = parent / "last"
    if last.is_symlink():
        assert is_complete(last.resolve()), "`last` leads to something partial"
    numbered = list(parent.glob("[0-9]*")) if parent.exists() else []
    assert all(is_complete(path) for path in numbered), "a numbered folder is partial"
    if not numbered:
        return None
    checkpoint = find_checkpoint(run)
    load_pretrained(checkpoint.pretrained)
    read_tensors(checkpoint.state / "optimizer_state.safetensors")
    return int(checkpoint.folder.name)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork and SIGKILL")
def test_twenty_kills_lose_nothing(fixtures, tmp_path):
    server = Server()
    try:
        started = time.monotonic()
        server.start(flags(fixtures, tmp_path / "run"))
        assert server.exit_code() == 0
        duration = time.monotonic() - started
        (tmp_path / "run").rename(tmp_path / "whole")

        run, chance, kills = tmp_path / "run", random.Random(7), 0
        steps_seen = []
        while kills < KILLS:
            step = check_checkpoints(run)
            steps_seen.append(step)
            if step is None:
                shutil.rmtree(run, ignore_errors=True)
                child = server.start(flags(fixtures, run))
            elif step >= STEPS - 2:
                shutil.rmtree(run)
                continue
            else:
                child = server.start(["--resume=true", f"--config_path={run}"])
            time.sleep(chance.uniform(0.02, 0.9) * duration)
            with contextlib.suppress(ProcessLookupError):  # it may have finished
                os.kill(child, signal.SIGKILL)
            code = server.exit_code()
            assert code in (0, -signal.SIGKILL), f"the run failed with exit code {code}"
            kills += code == -signal.SIGKILL
        step = check_checkpoints(run)
        if step is None:
            shutil.rmtree(run, ignore_errors=True)
            server.start(flags(fixtures, run))
        else:
            server.start(["--resume=true", f"--config_path={run}"])
        assert server.exit_code() == 0
        assert any(step for step in steps_seen), "no kill ever fell after a checkpoint; the test shows nothing"
    finally:
        server.close()
    name = f"checkpoints/{STEPS:06d}"
    files = sorted(p.relative_to(run / name) for p in (run / name).rglob("*") if p.is_file())
    assert files
    assert [f for f in files if (run / name / f).read_bytes() != (tmp_path / "whole" / name / f).read_bytes()] == []
    assert list((run / "checkpoints").glob(".saving-*")) == []
