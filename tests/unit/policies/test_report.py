"""What is proposed where the weights of a file do not fit."""

import pytest

from mimetic.errors import KeyMismatch
from mimetic.policies.report import LoadReport

LAYER = ("attention.q", "attention.k", "attention.v", "mlp.up", "mlp.down", "norm")


def report(matched, missing=(), unexpected=()):
    return LoadReport(
        matched=matched, missing=missing, unexpected=unexpected, mismatched=(), reinitialised=(), ignored=()
    )


def hint_of(found):
    with pytest.raises(KeyMismatch) as error:
        found.require_complete("`file`")
    return error.value.hint


def layer(number):
    return tuple(f"model.layers.{number}.{name}.weight" for name in LAYER)


def test_whole_layers_are_one_pattern_each():
    hint = hint_of(report(layer(0) + layer(1), unexpected=layer(2) + layer(3)))
    assert hint.endswith("""to leave them out: `--allow_missing='["model.layers.2.*", "model.layers.3.*"]'`""")


def test_a_pattern_never_covers_a_tensor_that_fits():
    hint = hint_of(report(layer(0) + layer(1)[:1], missing=layer(1)[1:]))
    for name in LAYER[1:3]:
        assert f'"model.layers.1.{name}.*"' in hint
    assert '"model.layers.1.mlp.*"' in hint
    assert '"model.layers.1.*"' not in hint
    assert '"model.layers.1.attention.*"' not in hint


def test_few_modules_are_named_one_by_one():
    hint = hint_of(report(layer(0), missing=("model.head.weight", "model.head.bias", "model.tail.weight")))
    assert """`--allow_missing='["model.head*", "model.tail*"]'`""" in hint


def test_another_model_is_not_proposed_to_be_made_random():
    hint = hint_of(report((), missing=layer(0), unexpected=("other.weight",)))
    assert "holds another model" in hint
    assert "--allow_missing" not in hint
