"""The table of commands, switches, errors and exit codes."""

from __future__ import annotations

import errno
import importlib
import sys
import types
from collections.abc import Callable

import pytest

from mimetic import __version__
from mimetic.catalog import load_object
from mimetic.cli import app
from mimetic.errors import ConfigError, Interrupted, MimeticError, MissingExtra, TrainingError

GENERAL_HELP = """\
Usage: mimetic COMMAND [--FLAG=VALUE ...]

Teach robot arms from demonstrations, on the computer you own.

Commands
  train            Train a policy on recorded demonstrations, or continue a run
  eval             Count a policy's successes in simulation, or compare it with recordings
  inspect          Show what is inside a checkpoint: policy, features, statistics, weights, state
  dataset info     Show what a dataset holds: episodes, rate, tasks, cameras, features, statistics
  dataset check    Find what is wrong with a dataset before training does, and how to mend it
  dataset convert  Convert LeRobot v2.x to v3.0 and back, and HDF5, Zarr and MCAP recordings
  dataset edit     Delete, keep, split, merge, trim, rename, relabel, and encode or count again
  dataset repair   Mend what `mimetic dataset check` finds; only shows it without --apply=true
  dataset view     Look at cameras, curves and findings on one time line; mark episodes
  demo             Record, check, plan, train and evaluate in the simulated cell, in minutes
  demo record      Record demonstrations of a scripted operator in the simulated cell
  info             Show versions, devices and decoders of this machine, ready to paste into an issue

Switches
  -h, --help [WORD ...]  Show help; after a command also its flags, filtered by words
  --version              Show the version
  --print_config         Show every setting of a command, its value and its origin, and stop
  --debug                Show debug messages, and tracebacks of errors

Flags are LeRobot's: what follows `lerobot-train` there follows `mimetic train` here.
"""

EVERY = ", ".join(f"`{name}`" for name in app.COMMANDS)
OF_DATASETS = ", ".join(f"`{name}`" for name in app.COMMANDS if name.startswith("dataset "))
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put a function in place of a command's module."""

    def install(function: Callable[..., int]) -> None:
        module = types.ModuleType("fake_command")
        module.main = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fake_command", module)
        monkeypatch.setitem(app.COMMANDS, "info", app.Command("fake_command", "Fake", "mimetic.cli.info:InfoConfig"))

    return install


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_general_help(argv: list[str], capsys: Capture) -> None:
    assert app.main(argv) == 0
    assert capsys.readouterr() == (GENERAL_HELP, "")
    assert max(map(len, GENERAL_HELP.splitlines())) <= 100


def test_version(capsys: Capture) -> None:
    assert app.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mimetic {__version__}\n"


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_every_command_is_there_with_its_settings(name: str) -> None:
    command = app.COMMANDS[name]
    assert callable(importlib.import_module(command.module).main)
    assert isinstance(load_object(command.config), type)
    assert not command.summary.endswith(".")


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_every_command_has_help_and_its_example_can_be_read(name: str, capsys: Capture) -> None:
    assert app.main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: mimetic {name} ")
    assert app.COMMANDS[name].summary in " ".join(out.split())
    from mimetic.config.problems import Problems
    from mimetic.config.tokens import read_tokens
    from mimetic.config.unknown import flag_names

    problems = Problems()
    tokens = read_tokens(app.COMMANDS[name].example.split(), problems)
    assert not problems.found
    assert {token.name for token in tokens} <= set(flag_names(load_object(app.COMMANDS[name].config), {}))


@pytest.mark.parametrize("argv", [["dataset", "--help"], ["dataset", "-h"], ["help", "dataset"]])
def test_the_first_word_of_a_command_of_two_has_help(argv: list[str], capsys: Capture) -> None:
    assert app.main(argv) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: mimetic dataset COMMAND ")
    assert "  dataset info     Show what a dataset holds" in out
    assert err == ""


def test_a_command_with_commands_inside_runs_and_lists_them(capsys: Capture) -> None:
    assert app.main(["demo", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: mimetic demo [--FLAG=VALUE ...]")
    assert out.endswith(
        "Commands inside\n  demo record  Record demonstrations of a scripted operator in the simulated cell\n"
    )
    assert app.main(["demo", "recrod"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown command `demo recrod`\nhint: available: `demo record`, and `demo` alone\n"
    )


def test_help_takes_words_and_types(capsys: Capture) -> None:
    assert app.main(["train", "--optimizer.type=sgd", "--help", "momentum"]) == 0
    assert "--optimizer.momentum" in capsys.readouterr().out
    assert app.main(["help", "train", "momentum"]) == 0


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["trian"], "error: unknown command `trian`\nhint: did you mean `train`? See `mimetic --help`\n"),
        (["zzz"], f"error: unknown command `zzz`\nhint: commands: {EVERY}\n"),
        (["dataset"], f"error: `dataset` needs a second word\nhint: available: {OF_DATASETS}\n"),
        (["dataset", "inf"], f"error: unknown command `dataset inf`\nhint: available: {OF_DATASETS}\n"),
        (
            ["lerobot-record"],
            f"error: `lerobot-record` is not part of mimetic yet\nhint: commands: {EVERY}\n",
        ),
        (
            ["lerobot-edit-dataset"],
            "error: unknown command `lerobot-edit-dataset`\nhint: did you mean `mimetic dataset edit`?\n",
        ),
        (["lerobot-train"], "error: unknown command `lerobot-train`\nhint: did you mean `mimetic train`?\n"),
        (
            ["--steps=3"],
            f"error: `--steps=3` comes before a command\nhint: the command comes first: {EVERY}\n",
        ),
    ],
)
def test_wrong_commands(argv: list[str], text: str, capsys: Capture) -> None:
    assert app.main(argv) == 2
    assert capsys.readouterr() == ("", text)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ConfigError("a is wrong", "do b"), 2, "error: a is wrong\nhint: do b\n"),
        (TrainingError("no more"), 1, "error: no more\n"),
        (MissingExtra("x", "y"), 1, "error: x\nhint: y\n"),
        (Interrupted("saved step 3"), 130, "error: saved step 3\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (MimeticError(), 1, "error: MimeticError\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "out/x"),
            1,
            "error: `out/x`: permission denied\n"
            "hint: choose a place that you may read and write, or change its permissions\n",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            1,
            "error: no space left on device\nhint: free some space, or choose a place on another disk\n",
        ),
        (
            ZeroDivisionError("division by zero"),
            70,
            "error: mimetic failed unexpectedly: ZeroDivisionError: division by zero\n"
            "hint: this is a bug of mimetic; run it again with `--debug` to see where, and report it together with the "
            "output of `mimetic info`\n",
        ),
    ],
)
def test_exit_codes_and_lines(
    error: BaseException, code: int, text: str, command: Callable[..., None], capsys: Capture
) -> None:
    def fail(argv: list[str], *, debug: bool) -> int:
        raise error

    command(fail)
    assert app.main(["info"]) == code
    assert capsys.readouterr() == ("", text)


def test_debug_shows_the_traceback_and_reaches_the_command(command: Callable[..., None], capsys: Capture) -> None:
    seen: list[tuple[list[str], bool]] = []

    def fail(argv: list[str], *, debug: bool) -> int:
        seen.append((argv, debug))
        raise ConfigError("a is wrong", "do b")

    command(fail)
    for argv in (["--debug", "info", "--x=1"], ["info", "--debug", "--x=1"], ["info", "--x=1", "--debug=true"]):
        assert app.main(argv) == 2
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert err.endswith("error: a is wrong\nhint: do b\n")
    assert app.main(["info", "--x=1", "--debug=false"]) == 2
    assert capsys.readouterr().err == "error: a is wrong\nhint: do b\n"
    assert seen == [(["--x=1"], True)] * 3 + [(["--x=1"], False)]


def test_the_commands_code_is_returned(command: Callable[..., None]) -> None:
    command(lambda argv, *, debug: 3)
    assert app.main(["info"]) == 3


def test_print_config_prints_flags_that_can_be_pasted(capsys: Capture) -> None:
    argv = ["train", "--dataset.repo_id=me/x", "--policy.type=act", "--job_name=a b", "--steps=5"]
    assert app.main([*argv, "--print_config"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split("  # ") for line in out.splitlines()[1:]]
    table = {text.strip(): origin for text, origin in lines}
    assert err == ""
    assert table["--steps=5"] == "flag"
    assert table["--job_name='a b'"] == "flag"
    assert table["--batch_size=8"] == "default"
    assert table["--policy.type=act"] == "flag"


def test_print_config_shows_also_what_the_command_would_refuse(capsys: Capture) -> None:
    assert app.main(["train", "--print_config", "--dataset.repo_id=x", "--policy.type=act", "--steps=0"]) == 2
    out, err = capsys.readouterr()
    assert "--steps=0 " in out
    assert err == "error: `--steps=0` must be at least 1\n"


def test_print_config_shows_the_preset_that_training_will_use(capsys: Capture) -> None:
    argv = ["train", "--dataset.repo_id=me/x", "--policy.type=act", "--policy.optimizer_lr=1e-4", "--print_config"]
    assert app.main(argv) == 0
    table = dict(line.split("  # ") for line in capsys.readouterr().out.splitlines()[1:])
    table = {text.strip(): origin for text, origin in table.items()}
    assert table["--optimizer.type=adamw"] == table["--optimizer.lr=0.0001"] == table["--scheduler=null"] == "preset"
    assert app.main([*argv, "--optimizer.lr=3"]) == 0
    assert "--optimizer.lr=0.0001" in capsys.readouterr().out
    own = ["--use_policy_training_preset=false", "--optimizer.type=sgd", "--scheduler.type=diffuser"]
    assert app.main([*argv, *own]) == 0
    out = capsys.readouterr().out
    assert "--optimizer.type=sgd" in out
    assert "# preset" not in out
