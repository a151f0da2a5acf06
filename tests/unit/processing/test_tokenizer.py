"""The steps that turn tasks into tokens: forms of the task, padding, long texts, and where the tokenizer lies."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import sys

import pytest
import torch

from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, MissingExtra, OfflineError
from mimetic.hub.tokenizers import find_tokenizer
from mimetic.processing import text
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.steps.device import MoveToDevice
from mimetic.processing.steps.new_line import EndWithNewLine
from mimetic.processing.steps.to_batch import ToBatch
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.processing.store import load_pipeline, save_pipeline
from mimetic.processing.text import TextTokenizer, read_tokenizer

TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"
LONGEST = "observation.language.longest"
NAME = "p"


@pytest.fixture
def vlm(fixtures):
    return fixtures / "smolvla/vlm_tiny"


@pytest.fixture
def step(vlm):
    return Tokenize(max_length=24, padding="longest", tokenizer_name=str(vlm))


def decoded(vlm, ids):
    """Text of ids, by the library alone."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(vlm / "tokenizer.json")).decode(list(ids), skip_special_tokens=False)


def variant(vlm, tmp_path, **settings):
    """A copy of the tokenizer with other settings; None takes one away."""
    folder = tmp_path / "variant"
    shutil.copytree(vlm, folder)
    path = folder / "tokenizer_config.json"
    merged = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({key: value for key, value in merged.items() if value is not None}))
    return folder


# Line breaks


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("pick", "pick\n"),
        ("pick\n", "pick\n"),
        ("", "\n"),
        (["pick", "place\n", ""], ["pick\n", "place\n", "\n"]),
        (("pick", "place"), ["pick\n", "place\n"]),
        (3, 3),
        ([3, "pick"], [3, "pick\n"]),
    ],
)
def test_each_task_ends_with_one_line_break(task, expected):
    assert Pipeline(NAME, [EndWithNewLine()])({"task": task})["task"] == expected


def test_a_batch_without_a_task_gets_none():
    assert "task" not in Pipeline(NAME, [EndWithNewLine()])({"observation.state": torch.zeros(1, 2)})


# Tokens


def test_tokens_mask_and_longest_reach_the_end_of_a_pipeline(vlm, step):
    pipeline = Pipeline(NAME, [ToBatch(), EndWithNewLine(), step, MoveToDevice("cpu")])
    tasks = ("pick up the red cube", "open")
    result = pipeline({"observation.state": torch.zeros(2, 3), "task": tasks})
    tokens, mask = result[TOKENS], result[MASK]
    assert (tokens.dtype, mask.dtype) == (torch.int64, torch.bool)
    for row, valid, task in zip(tokens, mask, tasks, strict=True):
        assert decoded(vlm, row[valid].tolist()) == f"{task}\n"
    assert result[LONGEST] == int(mask.sum(dim=1).max()) == tokens.shape[1]
    assert type(result[LONGEST]) is int
    assert tokens[1, ~mask[1]].unique().tolist() == [2]  # <|im_end|>


def test_tokens_lie_where_the_first_observation_lies(step):
    result = Pipeline(NAME, [step])({"observation.state": torch.zeros(1, 2, device="meta"), "task": ["pick\n"]})
    assert result[TOKENS].device.type == result[MASK].device.type == "meta"
    assert result[LONGEST] > 0


def test_padding_to_a_fixed_length_and_on_the_other_side(vlm):
    fixed = Tokenize(max_length=16, padding="max_length", tokenizer_name=str(vlm))
    tokens, mask, longest = fixed.tokenise(["open\n"])
    assert tokens.shape == (1, 16)
    assert mask[0].tolist() == [True] * longest + [False] * (16 - longest)
    left = Tokenize(max_length=16, padding="max_length", padding_side="left", tokenizer_name=str(vlm))
    turned, turned_mask, turned_longest = left.tokenise(["open\n"])
    assert turned_mask[0].tolist() == [False] * (16 - longest) + [True] * longest
    assert turned[turned_mask].tolist() == tokens[mask].tolist()
    assert turned_longest == 16  # a policy keeps that many columns from the left, where the tokens are not


def test_a_subtask_is_tokenised_beside_the_task(step):
    transition = Pipeline(NAME, [step])
    from mimetic.processing.transition import Transition

    one = Transition(complementary={"task": ["pick\n"], "subtask": "open the drawer"})
    step(one)
    assert one.observation["observation.subtask.tokens"].tolist() == step.tokenise(["open the drawer"])[0].tolist()
    assert bool(one.observation["observation.subtask.attention_mask"].all())
    assert "observation.subtask.tokens" not in transition({"task": ["pick\n"]})


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ({}, "the batch has no `task`"),
        ({"task": None}, "the batch has no `task`"),
        ({"task": []}, r"`task` = '\[\]' \(list\)"),
        ({"task": 3}, r"`task` = '3' \(int\)"),
        ({"task": ["pick", None]}, r"\(list\)"),
    ],
)
def test_a_missing_task_is_an_error_with_a_way_out(step, batch, what):
    with pytest.raises(ConfigError, match=what) as error:
        Pipeline(NAME, [step])(batch)
    assert "give the task" in error.value.hint


def test_a_character_outside_unicode_is_named(step):
    with pytest.raises(ConfigError, match="cannot read the task"):
        step.tokenise(["pick \ud800"])


# Long texts


@pytest.mark.parametrize(("side", "lost"), [("left", "beginning"), ("right", "end"), (None, "end")])
def test_a_long_task_is_cut_on_the_tokenizers_side_and_told_once(vlm, tmp_path, caplog, side, lost):
    folder = variant(vlm, tmp_path, truncation_side=side)
    task = "ALPHA take the red cube OMEGA\n"
    whole = Tokenize(max_length=99, padding="longest", tokenizer_name=str(folder))
    short = Tokenize(max_length=10, padding="longest", tokenizer_name=str(folder))
    ids = whole.tokenise([task])[0][0].tolist()
    with caplog.at_level(logging.WARNING, "mimetic"):
        tokens, _, longest = short.tokenise([task, task])
        short.tokenise([task])
        short.tokenise(["open\n"])
    kept = ids[-10:] if side == "left" else ids[:10]
    assert tokens.tolist() == [kept, kept]
    assert longest == 10
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    message = caplog.records[0].getMessage()
    text_kept = decoded(vlm, kept)
    text_lost = task.removesuffix(text_kept) if side == "left" else task.removeprefix(text_kept)
    assert text_lost != task
    assert f"{lost} is lost: {text_lost!r}" in message
    assert "--policy.tokenizer_max_length" in message
    assert f"{len(ids)} tokens and only 10" in message


def test_each_long_task_is_told(vlm, caplog):
    short = Tokenize(max_length=3, padding="longest", tokenizer_name=str(vlm))
    with caplog.at_level(logging.WARNING, "mimetic"):
        short.tokenise(["take the red cube\n", "take the blue cube\n"])
    assert len(caplog.records) == 2


def test_without_truncation_nothing_is_lost(vlm):
    step = Tokenize(max_length=3, padding="max_length", truncation=False, tokenizer_name=str(vlm))
    tokens, mask, longest = step.tokenise(["take the red cube\n", "a\n"])
    assert tokens.shape[1] == longest > 3
    assert decoded(vlm, tokens[0].tolist()) == "take the red cube\n"
    assert mask[1].sum() == 2


# The tokenizer's files


def test_limits_and_padding_in_the_file_have_no_say_and_a_frame_counts_towards_the_limit(vlm, tmp_path):
    folder = variant(vlm, tmp_path)
    path = folder / "tokenizer.json"
    description = json.loads(path.read_text())
    description["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    description["padding"] = {"strategy": {"Fixed": 30}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 5,
                              "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
    path.write_text(json.dumps(description))
    plain = Tokenize(max_length=99, padding="longest", tokenizer_name=str(vlm)).tokenise(["take the red cube\n"])
    same = Tokenize(max_length=99, padding="longest", tokenizer_name=str(folder)).tokenise(["take the red cube\n"])
    assert torch.equal(plain[0], same[0])
    start = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    sequence = {"Sequence": {"id": "A", "type_id": 0}}
    description["post_processor"] = {
        "type": "TemplateProcessing", "single": [start, sequence], "pair": [sequence, sequence],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }  # fmt: skip
    path.write_text(json.dumps(description))
    framed = Tokenize(max_length=5, padding="longest", tokenizer_name=str(folder)).tokenise(["take the red cube\n"])
    assert framed[0][0].tolist() == [1, *plain[0][0].tolist()[-4:]]


def test_tokens_that_only_the_side_files_name_are_added(vlm, tmp_path):
    # Expected ids as AutoTokenizer of transformers 5.5.4 gives them for the same files.
    folder = variant(
        vlm, tmp_path,
        added_tokens_decoder={
            "336": {"content": "zork", "special": False, "normalized": False},
            "340": {"content": "<extra>", "special": True, "lstrip": True, "normalized": False},
        },
    )  # fmt: skip
    step = Tokenize(max_length=24, padding="longest", tokenizer_name=str(folder))
    assert step.tokenise(["zork <extra>"])[0].tolist() == [[336, 337]]
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|endoftext|>"}))
    assert Tokenize(tokenizer_name=str(folder)).tokenizer.pad == 2
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["added_tokens_decoder"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenize(tokenizer_name=str(folder)).tokenizer.pad == 0
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": 336, "zork": 337}))
    assert Tokenize(padding="longest", tokenizer_name=str(folder)).tokenise(["zork<extra>"])[0].tolist() == [[337, 336]]


def test_a_padding_token_that_is_new_is_added_and_one_that_is_missing_is_an_error(vlm, tmp_path):
    new = variant(vlm, tmp_path, pad_token={"content": "<pad>", "special": True})
    assert Tokenize(tokenizer_name=str(new)).tokenizer.pad == 336
    shutil.rmtree(new)
    with pytest.raises(CheckpointError, match="names no padding token"):
        Tokenize(tokenizer_name=str(variant(vlm, tmp_path, pad_token=None))).tokenise(["pick"])


def test_the_tokenizer_is_read_at_first_use_once_for_all_steps_and_remembers_texts(vlm, monkeypatch):
    text._shared.cache_clear()
    parsed = []
    parse = text._parse
    monkeypatch.setattr(text, "_parse", lambda *given: parsed.append(given) or parse(*given))
    steps = [Tokenize(max_length=24, padding="longest", tokenizer_name=str(vlm)) for _ in range(2)]
    assert parsed == []
    results = [one.tokenise(["pick\n", "pick\n"]) for one in steps for _ in range(3)]
    assert len(parsed) == 1
    assert steps[0].tokenizer is steps[1].tokenizer
    assert steps[0].tokenizer.encode.cache_info().misses == 1
    assert all(torch.equal(results[0][0], other[0]) for other in results)
    results[0][0].zero_()  # each batch is its own
    assert not torch.equal(results[0][0], steps[0].tokenise(["pick\n", "pick\n"])[0])


def test_a_changed_file_is_read_again(vlm, tmp_path):
    folder = variant(vlm, tmp_path)
    assert Tokenize(tokenizer_name=str(folder)).tokenizer.truncation_side == "left"
    shutil.rmtree(folder)
    variant(vlm, tmp_path, truncation_side="right")
    assert Tokenize(tokenizer_name=str(folder)).tokenizer.truncation_side == "right"


def test_a_step_can_be_copied_to_another_process(vlm, step):
    expected = step.tokenise(["pick up the cube\n"])[0]
    assert torch.equal(pickle.loads(pickle.dumps(step)).tokenise(["pick up the cube\n"])[0], expected)


def test_a_missing_library_names_the_extra(vlm, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    text._shared.cache_clear()
    with pytest.raises(MissingExtra) as error:
        Tokenize(tokenizer_name=str(vlm)).tokenise(["pick"])
    assert error.value.hint == '`pip install "mimetic[smolvla]"`'


# Where it lies


def test_a_name_is_a_folder_or_a_model_in_the_hubs_cache(vlm, tmp_path, monkeypatch):
    assert find_tokenizer(str(vlm)) == vlm
    snapshot = tmp_path / "models--me--vlm/snapshots/abc"
    snapshot.mkdir(parents=True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OfflineError, match="`me/vlm` is not on this machine"):  # the cache holds other files of it
        find_tokenizer("me/vlm")
    shutil.copy(vlm / "tokenizer.json", snapshot)
    assert find_tokenizer("me/vlm") == snapshot


def test_what_is_not_there_is_named_with_a_way_out(tmp_path):
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE") as offline:
        find_tokenizer("me/vlm")
    assert "--policy.vlm_model_name" in offline.value.hint
    with pytest.raises(CheckpointNotFound, match=r"expected tokenizer\.json"):
        find_tokenizer(str(tmp_path))
    for name in (str(tmp_path / "gone"), "./gone", "a/b/c", "C:\\vlm"):
        with pytest.raises(CheckpointNotFound, match="the path does not exist"):
            find_tokenizer(name)
    with pytest.raises(CheckpointNotFound, match="names no tokenizer"):
        Tokenize().tokenise(["pick"])


def test_a_download_fetches_only_the_tokenizer(vlm, tmp_path, monkeypatch):
    asked = []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(
        "mimetic.hub.tokenizers.download_snapshot", lambda *given, **named: asked.append((given, named)) or vlm
    )
    assert find_tokenizer("me/vlm") == vlm
    assert asked == [
        (("me/vlm", "model"), {"allow_patterns": (
            "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")}),
    ]  # fmt: skip
    monkeypatch.setattr("mimetic.hub.tokenizers.download_snapshot", lambda *_, **__: tmp_path)
    with pytest.raises(CheckpointNotFound, match=r"has no tokenizer\.json"):
        find_tokenizer("me/vlm")


# Its way through checkpoints


def test_a_saved_pipeline_runs_without_the_folder_that_it_was_made_from(vlm, tmp_path):
    source = variant(vlm, tmp_path)
    (source / "special_tokens_map.json").write_text("{}")
    target = tmp_path / "checkpoint"
    target.mkdir()
    made = Pipeline(NAME, [Tokenize(max_length=24, padding="longest", tokenizer_name=str(source))])
    written = save_pipeline(made, target)
    assert [path.name for path in written] == ["p.json"]
    assert sorted(path.name for path in (target / "tokenizer").iterdir()) == [
        "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    expected = made({"task": ["pick up the cube\n"]})
    shutil.rmtree(source)
    text._shared.cache_clear()
    loaded = load_pipeline(target, NAME)
    result = loaded({"task": ["pick up the cube\n"]})
    assert torch.equal(result[TOKENS], expected[TOKENS])
    assert result[LONGEST] == expected[LONGEST]
    again = tmp_path / "again"
    again.mkdir()
    save_pipeline(loaded, again)
    for path in ("p.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"):
        assert (again / path).read_bytes() == (target / path).read_bytes()


def test_the_checkpoints_own_tokenizer_wins_over_the_name(vlm, tmp_path):
    target = tmp_path / "checkpoint"
    target.mkdir()
    save_pipeline(Pipeline(NAME, [Tokenize(tokenizer_name=str(vlm))]), target)
    settings = json.loads((vlm / "tokenizer_config.json").read_text())
    (target / "tokenizer/tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "right"}))
    assert load_pipeline(target, NAME).steps[0].tokenizer.truncation_side == "right"
    assert load_pipeline(target, NAME).steps[0].tokenizer_name == str(vlm)


def test_a_tokenizer_that_is_nowhere_is_told_when_a_checkpoint_is_written(tmp_path, caplog):
    pipeline = Pipeline(NAME, [Tokenize(tokenizer_name="me/vlm")])
    with caplog.at_level(logging.WARNING, "mimetic"):
        save_pipeline(pipeline, tmp_path)
    assert not (tmp_path / "tokenizer").exists()
    assert "without its tokenizer" in caplog.text
    assert "--policy.vlm_model_name" in caplog.text
    config = json.loads((tmp_path / "p.json").read_text())["steps"][0]["config"]
    assert list(config) == ["max_length", "task_key", "padding_side", "padding", "truncation", "tokenizer_name"]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("max_length", 0), ("max_length", True), ("max_length", "48"), ("padding", "shortest"), ("padding", False),
        ("padding_side", "both"), ("truncation", "longest_first"), ("tokenizer_name", 3), ("task_key", None),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(argument, value):
    with pytest.raises(ConfigError, match=f"`{argument}` is"):
        Tokenize.build({argument: value}, {})


def test_reading_needs_the_files(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tokenizer({"tokenizer.json": tmp_path / "gone.json"}, "here")
    with pytest.raises(CheckpointError, match=r"`tokenizer\.json` in `here` is damaged"):
        TextTokenizer({"tokenizer.json": b"{}"}, "here")
