"""Small decisions about kept frames that training takes."""

import sys
import types

import pytest

from mimetic.config.parse import parse
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.train import frames
from mimetic.train.config import TrainConfig
from mimetic.train.idle_flags import idle_flags


@pytest.mark.parametrize(
    ("spec", "file", "expected"),
    [
        ("mimetic.__main__", "", True),
        ("mimetic.cli.app", "", True),
        ("pytest.__main__", "", False),
        (None, "/usr/local/bin/mimetic", True),
        (None, "C:/Scripts/lerobot-train.exe", True),
        (None, "/home/me/my_script.py", False),
        (None, None, False),
    ],
)
def test_processes_are_started_for_commands_only(monkeypatch, spec, file, expected):
    """A script without a guard around its work would run again in each of them."""
    main = types.ModuleType("__main__")
    main.__spec__ = None if spec is None else types.SimpleNamespace(name=spec)
    main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert frames._is_command() is expected


@pytest.mark.parametrize(
    ("flag", "because"),
    [
        ("--dataset.buffer_size=10", "without --dataset.streaming=true"),
        ("--dataset.cache_gb=10", "with --dataset.cache=off"),
    ],
)
def test_flags_that_do_nothing_are_named(flag, because):
    argv = ["--dataset.repo_id=a", "--policy.type=act", "--policy.push_to_hub=false", "--dataset.cache=off", flag]
    config = parse(TrainConfig, argv, prog="mimetic train").value
    (sentence,) = idle_flags(config, {flag[2:].split("=")[0]: "flag"}, "cpu")
    assert because in sentence


@pytest.mark.parametrize("flag", ["--dataset.streaming=true", "--dataset.cache=memory"])
def test_an_evaluation_neither_streams_nor_caches(flag):
    with pytest.raises(ConfigError, match="are for training"):
        parse(EvalConfig, ["--dataset.repo_id=a", flag], prog="mimetic eval")
