"""Token ids of the real SmolLM2 vocabulary (`tests/fixtures/tokenizer`); exact, because they are indices."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mimetic.processing.steps.tokenizer import Tokenize

IMAGE_TOKENS = [
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    "<fake_token_around_image>",
    "<image>",
]


@pytest.fixture(scope="module")
def folder(fixtures, tmp_path_factory):
    """A model's folder with `tokenizer.json` and `tokenizer_config.json`, built from vocabulary and merges."""
    source = fixtures / "tokenizer"
    head = json.loads((source / "vocab_head.json").read_text(encoding="utf-8"))
    merges = [tuple(line.split(" ")) for line in (source / "merges.txt").read_text(encoding="utf-8").splitlines()]
    words = [*head["special_tokens"], *head["alphabet"], *(left + right for left, right in merges)]
    assert len(words) == head["vocab_size"]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [*head["special_tokens"], *IMAGE_TOKENS]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    target = tmp_path_factory.mktemp("smollm2")
    tokenizer.save(str(target / "tokenizer.json"))
    settings = {"pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "truncation_side": "left"}
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def samples(fixtures):
    return json.loads((fixtures / "tokenizer/samples.json").read_text(encoding="utf-8"))


def test_all_samples_have_their_ids_and_padding(folder, samples):
    assert len(samples) == 29
    step = Tokenize(max_length=80, padding="longest", tokenizer_name=str(folder))
    tokens, mask, longest = step.tokenise([sample["text"] for sample in samples])
    assert longest == max(len(sample["ids"]) for sample in samples) == tokens.shape[1] == 63
    for row, valid, sample in zip(tokens, mask, samples, strict=True):
        assert row[valid].tolist() == sample["ids"], sample["text"]
        assert valid.tolist() == [True] * len(sample["ids"]) + [False] * (longest - len(sample["ids"]))
        assert set(row[~valid].tolist()) <= {2}


@pytest.mark.parametrize("limit", [1, 10, 48])
def test_the_beginning_is_lost_of_what_is_too_long(folder, samples, limit):
    step = Tokenize(max_length=limit, padding="max_length", tokenizer_name=str(folder))
    tokens, mask, longest = step.tokenise([sample["text"] for sample in samples])
    assert tokens.shape == (29, limit)
    assert longest == limit
    assert mask.dtype == torch.bool
    for row, valid, sample in zip(tokens, mask, samples, strict=True):
        assert row[valid].tolist() == sample["ids"][-limit:], sample["text"]


def test_the_image_tokens_have_the_ids_of_the_backbone(folder):
    step = Tokenize(max_length=8, padding="longest", tokenizer_name=str(folder))
    tokens, _, _ = step.tokenise(["<global-img><row_1_col_1><row_6_col_6><fake_token_around_image><image>"])
    assert tokens.tolist() == [[49152, 49153, 49188, 49189, 49190]]
