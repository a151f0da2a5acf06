"""The help of a command."""

from __future__ import annotations

import re

import pytest

from mimetic.config.help import WIDTH, format_help
from mimetic.config.schema import choices_of, walk
from mimetic.evaluate.config import EvalConfig
from mimetic.train.config import TrainConfig


def text(*words: str, argv: tuple[str, ...] = (), cls: type = TrainConfig) -> str:
    return format_help(cls, prog="mimetic train", summary="Train", example="--a=b", argv=argv, words=words)


def flags(help_text: str) -> set[str]:
    return set(re.findall(r"^  --([\w.]+) ", help_text, re.MULTILINE))


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_every_flag_stands_in_the_help_once(cls: type) -> None:
    expected = {"config_path"}
    for setting in walk(cls, {}):
        if setting.node == "leaf" and setting.is_flag:
            expected.add(setting.name)
    for choice in choices_of(cls):
        expected.add(f"{choice.name}.type")
        if choice.name == "policy":
            expected.add("policy.path")
        for name in choice.catalog.available():
            members = walk(choice.catalog.load_config(name), {}, choice.name)
            expected |= {item.name for item in members if item.node == "leaf"}
    lines = re.findall(r"^  --([\w.]+) ", text(cls=cls), re.MULTILINE)
    assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_it_fits_the_width(cls: type) -> None:
    assert max(map(len, text(cls=cls).splitlines())) <= WIDTH


@pytest.mark.parametrize("cls", [TrainConfig, EvalConfig])
def test_every_setting_has_a_sentence(cls: type) -> None:
    for setting in walk(cls, {}):
        assert setting.help, setting.name
        assert not setting.help.endswith("."), setting.name


def test_words_filter_by_name_and_text() -> None:
    assert text("batch_size") == (
        "General\n"
        "  --batch_size int                      Samples a step and process (default 8)\n"
        "\n"
        "env: Environment for evaluation during training\n"
        "  --env.max_parallel_tasks int          Tasks at once in LeRobot; mimetic plays episodes of one task\n"
        "                                        at once (--eval.batch_size) and ignores this (default 1)\n"
        "                                        [aloha, libero, metaworld, pusht]\n"
        "\n"
        "eval: Evaluation in an environment\n"
        "  --eval.batch_size int                 Environments that run at once; 0 chooses by the number of\n"
        "                                        cores (default 0)"
    )
    assert flags(text("BACKBONE", "learning")) == {"policy.optimizer_lr_backbone"}
    assert "policy.vision_backbone" in flags(text("resnet"))


def test_a_word_that_nothing_has_is_answered() -> None:
    assert text("batchsize") == (
        "No flag of `mimetic train` has `batchsize`; did you mean `--batch_size`? `mimetic train --help` lists all"
    )


def test_the_chosen_type_limits_the_flags() -> None:
    assert "optimizer.betas" in flags(text())
    only = flags(text(argv=("--optimizer.type=sgd",)))
    assert "optimizer.momentum" in only
    assert "optimizer.betas" not in only


def test_flags_of_several_types_say_whose_they_are() -> None:
    found = " ".join(text("optimizer.").split())
    assert "--optimizer.momentum float Momentum (default 0.0) [sgd]" in found
    assert "--optimizer.weight_decay float Weight decay (default 0.0 for adam, sgd, 0.01 for adamw)" in found


def test_defaults_choices_and_marks_are_shown() -> None:
    found = " ".join(text().split())
    assert "(not yet) Smallest deviation (default 1e-06)" in found
    assert "Unit of depth frames (one of mm, m; default mm)" in found
    assert "is --dataset.root when that is given (required)" in found
