"""Tokens that the model cannot look up, or that are not one task a sample, are refused on the host."""

from __future__ import annotations

import json

import pytest
import torch

from mimetic.errors import CheckpointError, ShapeError
from mimetic.names import LANGUAGE_LARGEST, LANGUAGE_LONGEST, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE
from mimetic.policies.build import make_policy
from mimetic.policies.smolvla.language import take_language
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.testing.smolvla import FRONT, TINY_BACKBONE, WRIST, tiny_smolvla_config, write_tiny_vlm

VOCAB = TINY_BACKBONE.vocab_size


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm"))


@pytest.fixture(scope="module")
def policy(vlm):
    torch.manual_seed(0)
    return make_policy(tiny_smolvla_config(vlm), init_backbone=False)


def language(ids, mask=None, **more):
    tokens = torch.tensor(ids)
    mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    return {LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask, **more}


def observation(rows):
    return {
        STATE: torch.zeros(rows, 5),
        FRONT: torch.rand(rows, 3, 24, 32),
        WRIST: torch.rand(rows, 3, 40, 20),
    }


def take(batch, rows=1, **more):
    return take_language(batch, rows=rows, vocab_size=VOCAB, **{"keep_padding": False, **more})


@pytest.mark.parametrize("bad", [VOCAB, 70_000, -1])
def test_an_id_without_an_embedding_is_one_clear_error(policy, bad):
    batch = {**observation(1), **language([[5, bad, 6]])}
    with pytest.raises(CheckpointError, match=f"token id {bad}, .*0 to {VOCAB - 1}") as error:
        policy.predict_chunk(batch)
    assert "tokenizer" in error.value.hint
    policy.predict_chunk({**observation(1), **language([[5, VOCAB - 1, 0]])})


def test_padding_ids_are_looked_up_too_and_so_checked(policy):
    with pytest.raises(CheckpointError, match="token id 999"):
        policy.predict_chunk({**observation(1), **language([[5, 999]], [[1, 0]])})


def test_ids_on_a_device_are_judged_by_the_number_that_the_tokenizer_step_sets():
    # The meta device stands for one that must not be asked: reading from it raises.
    batch = {name: value.to("meta") for name, value in language([[5, 6]]).items()}
    with pytest.raises(CheckpointError, match="token id 300"):
        take({**batch, LANGUAGE_LARGEST: 300, LANGUAGE_LONGEST: 2})
    tokens, _ = take({**batch, LANGUAGE_LARGEST: VOCAB - 1, LANGUAGE_LONGEST: 1})
    assert tokens.shape == (1, 1)
    assert take(batch)[0].shape == (1, 2)


def test_the_tokenizer_of_another_model_is_caught_before_the_device(vlm, tmp_path, policy):
    other = write_tiny_vlm(tmp_path / "other", weights=False)
    content = json.loads((other / "tokenizer.json").read_text())
    content["added_tokens"].append(
        {"id": VOCAB + 5, "content": "cube", "special": False, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
    )  # fmt: skip
    (other / "tokenizer.json").write_text(json.dumps(content))
    step = Tokenize(tokenizer_name=str(other), max_length=24)
    tokens, mask, longest = step.tokenise(["cube\n"])
    assert int(tokens.max()) >= VOCAB
    with pytest.raises(CheckpointError, match="belongs to another model"):
        policy.predict_chunk(
            {**observation(1), LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask, LANGUAGE_LONGEST: longest}
        )
    tokens, mask, _ = step.tokenise(["pick\n"])  # its tasks without the token work
    policy.predict_chunk({**observation(1), LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask})


@pytest.mark.parametrize(("tasks", "rows"), [(1, 3), (3, 2)])
def test_another_number_of_tasks_than_samples_is_refused(policy, tasks, rows):
    with pytest.raises(ShapeError, match=f"{tasks} tasks and {rows} samples"):
        policy.predict_chunk({**observation(rows), **language([[5, 6]] * tasks)})


def test_another_number_of_frames_than_samples_is_refused(policy):
    batch = {**observation(2), **language([[5, 6]] * 2), WRIST: torch.rand(3, 3, 40, 20)}
    with pytest.raises(ShapeError, match=r"`observation\.images\.wrist` has 3 frames, and the batch has 2 samples"):
        policy.predict_chunk(batch)


@pytest.mark.parametrize(
    "broken",
    [
        {LANGUAGE_TOKENS: torch.zeros(2, dtype=torch.int64), LANGUAGE_MASK: torch.ones(2, dtype=torch.bool)},
        {LANGUAGE_TOKENS: torch.zeros(1, 2), LANGUAGE_MASK: torch.ones(1, 2, dtype=torch.bool)},
        {LANGUAGE_TOKENS: torch.zeros(1, 2, dtype=torch.int64), LANGUAGE_MASK: torch.ones(1, 3, dtype=torch.bool)},
        {},
        {LANGUAGE_TOKENS: torch.zeros(1, 2, dtype=torch.int64)},
    ],
)
def test_other_forms_are_refused(broken):
    with pytest.raises(ShapeError, match=r"observation\.language\.tokens"):
        take(broken)


def test_padding_is_cut_where_nobody_has_a_token():
    batch = language([[5, 6, 2, 2], [7, 2, 2, 2]], [[1, 1, 0, 0], [1, 0, 0, 0]])
    assert take(batch, rows=2)[0].tolist() == [[5, 6], [7, 2]]
    assert take(batch, rows=2, keep_padding=True)[0].shape == (2, 4)
    nothing = language([[2, 2]], [[0, 0]])
    assert take(nothing)[0].shape == (1, 0)
