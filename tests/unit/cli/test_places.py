"""A place that cannot be written to is refused before any work, and `--resume` without a run at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mimetic.cli import app, places
from mimetic.cli.places import require_writable
from mimetic.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def test_a_new_folder_below_an_existing_one_is_fine_and_not_made(tmp_path: Path, monkeypatch) -> None:
    require_writable(tmp_path / "a" / "b" / "c")
    monkeypatch.chdir(tmp_path)
    require_writable(Path("a/b"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be made: `.*file` is a file"):
        require_writable(tmp_path / "file" / "a" / "b")


def test_a_folder_without_permission_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(places.os, "access", lambda path, mode: not mode & os.W_OK)
    with pytest.raises(ConfigError) as caught:
        require_writable(tmp_path / "a" / "b")
    assert f"`{tmp_path}` cannot be written to" in caught.value.message


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--dataset.repo_id=me/x", "--policy.type=act"],
        ["eval", "--dataset.repo_id=me/x", "--policy.path=tests/fixtures/training/run_preset"],
    ],
)
def test_commands_say_it_first(argv: list[str], tmp_path: Path, capsys: Capture, monkeypatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    (tmp_path / "file").touch()
    assert app.main([*argv, f"--output_dir={tmp_path}/file/run"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"error: `--output_dir={tmp_path}/file/run` cannot be made: `{tmp_path}/file` is a file\n"
        "hint: choose another folder\n"
    )


@pytest.mark.parametrize(
    ("argv", "run"),
    [([], "RUN"), (["--output_dir=outputs/a"], "outputs/a"), (["--policy.path=outputs/b"], "outputs/b")],
)
def test_resume_needs_a_run(argv: list[str], run: str, capsys: Capture) -> None:
    assert app.main(["train", "--resume=true", *argv]) == 2
    assert capsys.readouterr() == (
        "",
        "error: `--resume=true` needs `--config_path`, the run or checkpoint to continue\n"
        f"hint: `mimetic train --resume=true --config_path={run}`\n",
    )


def test_a_command_that_must_change_asks_nothing_of_the_hub(capsys: Capture, monkeypatch) -> None:
    from mimetic.hub import download

    monkeypatch.setattr(download, "_require_network", lambda repo_id: pytest.fail("the hub was asked"))
    argv = ["eval", "--policy.path=me/nowhere", "--env.type=robocasa", "--dataset.repo_id=me/x"]
    assert app.main(argv) == 2
    assert capsys.readouterr().err == (
        "error: `--env.type=robocasa`: environment `robocasa` is known from LeRobot but not part of mimetic yet (`lerobot-eval` plays in it, with "
        "LeRobot's `robocasa`)\nhint: available: so101_cell, aloha, libero, metaworld, pusht\n"
    )


def test_a_wrong_type_in_a_run_is_reported_with_the_file_that_holds_it(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "run/checkpoints/000003/pretrained_model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"type": "actt"}', encoding="utf-8")
    assert app.main(["train", f"--policy.path={tmp_path / 'run'}", "--dataset.repo_id=me/x"]) == 2
    assert f"in {folder / 'config.json'})" in capsys.readouterr().err
