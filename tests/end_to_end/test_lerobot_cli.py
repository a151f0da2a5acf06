"""The small distribution in compat/lerobot-cli: LeRobot's command names, installed and started."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest

LEROBOT_061 = (
    *("annotate", "calibrate", "dataset-viz", "edit-dataset", "eval", "find-cameras", "find-joint-limits", "find-port"),
    *("imgtransform-viz", "info", "record", "replay", "rollout", "setup-can", "setup-motors", "teleoperate", "train"),
    "train-tokenizer",
)


@pytest.fixture(scope="module")
def installed(repository, tmp_path_factory):
    """Folder with the installed distribution; built offline with the setuptools of this environment."""
    folder = tmp_path_factory.mktemp("lerobot_cli")
    source = folder / "source"
    source.mkdir()
    for path in (repository / "compat" / "lerobot-cli").glob("*.*"):
        if path.is_file():
            (source / path.name).write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--target", str(folder / "target"), str(source)], check=True, capture_output=True)
    return folder / "target"


def start(installed, name, *arguments):
    """Start an installed command."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, str(installed / "bin" / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


HELP = [
    ("train", "train", "--dataset.repo_id"),
    ("eval", "eval", "--policy.path"),
    ("info", "info", "--"),
    ("edit-dataset", "dataset edit", "--operation.type"),
    ("dataset-viz", "dataset view", "--episode_index"),
]


@pytest.mark.parametrize(("name", "command", "words"), HELP)
def test_the_command_shows_the_help_of_mimetic(installed, name, command, words):
    done = start(installed, f"lerobot-{name}", "--help")
    assert done.returncode == 0, done.stderr
    assert f"mimetic {command}" in done.stdout
    assert words in done.stdout


def test_flags_and_exit_code_pass_through(installed):
    done = start(installed, "lerobot-train", "--batchsize=3")
    assert done.returncode == 2
    assert "batch_size" in done.stderr


def test_a_command_that_is_not_there_yet_says_so(installed):
    done = start(installed, "lerobot-teleoperate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: `lerobot-teleoperate` is not part of mimetic yet\nhint: ")


def test_every_command_name_of_lerobot_is_there(repository):
    project = tomllib.loads((repository / "compat/lerobot-cli/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {f"lerobot-{name}" for name in LEROBOT_061} <= set(project["scripts"])
    assert set(project["scripts"].values()) == {"lerobot_cli_mimetic:main"}
