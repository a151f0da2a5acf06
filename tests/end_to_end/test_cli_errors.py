"""Mistakes at the command line, as a user sees them: two lines, exit code 2, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "fixtures/training/run_preset"


def mimetic(*argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "mimetic", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env=env,
    )


CASES = [
    (
        ["train", "--batchsize=3"],
        "error: unknown flag `--batchsize`\nhint: did you mean `--batch_size`? See `mimetic train --help batch_size`\n",
    ),
    (
        ["train", "--steps=abc"],
        "error: `--steps=abc`: expected a whole number\nhint: see `mimetic train --help steps` (type int)\n",
    ),
    (
        ["train", "--policy.typ=act"],
        "error: unknown flag `--policy.typ`\nhint: did you mean `--policy.type`? See `mimetic train --help type`\n",
    ),
    (
        ["train"],
        "error: `--dataset.repo_id` is required\n"
        "hint: add `--dataset.repo_id=...`; `mimetic train --help` shows an example\n",
    ),
    (
        ["train", "--dataset.repo_id=x", "--policy.type=diffusion"],
        "error: `--policy.type=diffusion`: policy `diffusion` is known from LeRobot but not part of mimetic yet\n"
        "hint: available: act, keypoint, smolvla\n",
    ),
    (
        ["train", "--dataset.repo_id=x"],
        "error: no policy is chosen: name one with `--policy.type=act` or load one with `--policy.path=FOLDER`\n",
    ),
    (["trian"], "error: unknown command `trian`\nhint: did you mean `train`? See `mimetic --help`\n"),
]


@pytest.mark.parametrize(("argv", "text"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_mistake_is_two_lines(argv: list[str], text: str) -> None:
    done = mimetic(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", text)


def test_three_mistakes_are_answered_at_once() -> None:
    done = mimetic("train", "--batchsize=3", "--steps=abc", "--policy.typ=act")
    assert done.returncode == 2
    assert done.stderr == (
        "error: 3 problems\n"
        "  - unknown flag `--batchsize`; did you mean `--batch_size`? See `mimetic train --help batch_size`\n"
        "  - `--steps=abc`: expected a whole number; see `mimetic train --help steps` (type int)\n"
        "  - unknown flag `--policy.typ`; did you mean `--policy.type`? See `mimetic train --help type`\n"
    )


def test_settings_that_cannot_work_are_answered_at_once() -> None:
    done = mimetic("train", "--dataset.repo_id=x", "--policy.type=act", "--steps=0", "--policy.n_action_steps=200")
    assert done.returncode == 2
    assert done.stderr == (
        "error: 2 problems\n"
        "  - `--steps=0` must be at least 1\n"
        "  - `--policy.n_action_steps=200` is larger than `--policy.chunk_size=100`\n"
    )


@pytest.mark.parametrize("argv", [["--debug", "train", "--stepz=3"], ["train", "--stepz=3", "--debug"]])
def test_debug_shows_the_traceback(argv: list[str]) -> None:
    done = mimetic(*argv)
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith(
        "error: unknown flag `--stepz`\nhint: did you mean `--steps`? See `mimetic train --help steps`\n"
    )


def test_the_printed_configuration_says_where_each_value_comes_from(tmp_path: Path) -> None:
    done = mimetic("train", f"--config_path={RUN}", "--batch_size=16", "--print_config")
    assert (done.returncode, done.stderr) == (0, "")
    lines = dict(line.split("  # ") for line in done.stdout.splitlines()[1:])
    found = {name.strip(): origin for name, origin in lines.items()}
    assert found["--batch_size=16"] == "flag"
    assert found["--steps=6"].startswith("file ")
    assert found["--steps=6"].endswith("pretrained_model/train_config.json")
    assert found["--accelerator.mixed_precision=no"] == "default"


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m mimetic train --help | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "Usage: mimetic train [--FLAG=VALUE ...]\n"
    assert done.stderr == ""
