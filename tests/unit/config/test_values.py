"""The one grammar of values: every kind of value with its intended meaning."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimetic.config.flow import read_yaml
from mimetic.config.reading import read_text, read_value
from mimetic.config.values import Mismatch, Plain, convert, plain_data
from mimetic.features import FeatureType, NormalizationMode, PolicyFeature


def parse(text: str, hint: Any) -> Any:
    return convert(read_text(text, hint), hint)


ACCEPTED = [
    # bool: `true True TRUE yes on` / `false False No off`
    *[(text, bool, True) for text in ("true", "True", "TRUE", "yes", "Yes", "on", "ON")],
    *[(text, bool, False) for text in ("false", "False", "FALSE", "no", "No", "off")],
    # null into an optional field
    *[(text, int | None, None) for text in ("null", "~", "Null", "NULL", "None", "none")],
    *[(text, str | None, None) for text in ("null", "~", "None", "NULL")],
    ("None", str, "None"),
    ("null", str, "null"),
    ("", str, ""),
    ("", str | None, ""),
    # int: no octal, no base 60
    ("10", int, 10),
    ("-5", int, -5),
    ("+5", int, 5),
    ("0x10", int, 16),
    ("010", int, 10),
    ("1_000", int, 1000),
    (" 8 ", int, 8),
    # float
    ("1e-4", float, 1e-4),
    ("1.e-4", float, 1e-4),
    (".5", float, 0.5),
    ("10", float, 10.0),
    ("1_000.5", float, 1000.5),
    ("inf", float, math.inf),
    ("-.inf", float, -math.inf),
    ("Infinity", float, math.inf),
    # text stays as typed
    ("true", str, "true"),
    ("12:30", str, "12:30"),
    ("#x", str | None, "#x"),
    ("x #y", str, "x #y"),
    ("[x]", str, "[x]"),
    ("{a: b}", str, "{a: b}"),
    ("010", str, "010"),
    ("1e3", str | None, "1e3"),
    ("include_x", str, "include_x"),
    ("!include x", str, "!include x"),
    ("'null'", str | None, "null"),
    ('"null"', str | None, "null"),
    ('"a b"', str, "a b"),
    ("it's", str, "it's"),
    ('say "hi"', str, 'say "hi"'),
    ("'it''s'", str, "it's"),
    # lists, with and without inner quotes
    ("[0,1,2]", list[int], [0, 1, 2]),
    ("[0, 1, 2]", list[int] | None, [0, 1, 2]),
    ("[]", list[int] | None, []),
    ("[a,b]", list[str], ["a", "b"]),
    ('["a","b"]', list[str], ["a", "b"]),
    ("[a, 'true', 1.50, 010]", list[str], ["a", "true", "1.50", "010"]),
    ("[1.50, true]", list[str], ["1.50", "true"]),
    ("[True, no]", list[bool], [True, False]),
    ("[0.9, 0.95]", tuple[float, float], (0.9, 0.95)),
    ("[3, 96, 96]", tuple[int, ...], (3, 96, 96)),
    ("[q_proj, v_proj]", list[str] | str | None, ["q_proj", "v_proj"]),
    ("all-linear", list[str] | str | None, "all-linear"),
    ("null", list[str] | str | None, None),
    # mappings
    ("{a: b}", dict[str, str], {"a": "b"}),
    ('{"a": "b"}', dict[str, str], {"a": "b"}),
    (
        "{observation.images.front: observation.images.top}",
        dict[str, str],
        {"observation.images.front": "observation.images.top"},
    ),
    ("{}", dict[str, str], {}),
    ("{a: 1, b: 2.5, c: yes, d: null, e: 'x'}", dict[str, Any], {"a": 1, "b": 2.5, "c": "yes", "d": None, "e": "x"}),
    ("{lr: 1e-4}", dict[str, Any], {"lr": 1e-4}),
    # enums and paths
    ("{VISUAL: IDENTITY}", dict[str, NormalizationMode], {"VISUAL": NormalizationMode.IDENTITY}),
    ("outputs/run 1", Path, Path("outputs/run 1")),
    ("null", Path | None, None),
    (
        "{action: {type: ACTION, shape: [6]}}",
        dict[str, PolicyFeature],
        {"action": PolicyFeature(FeatureType.ACTION, (6,))},
    ),
]


@pytest.mark.parametrize(("text", "hint", "value"), ACCEPTED)
def test_accepted_with_the_intended_meaning(text: str, hint: Any, value: Any) -> None:
    found = parse(text, hint)
    assert found == value
    assert type(found) is type(value)


REFUSED = [
    *[(text, bool, "true or false") for text in ("1", "0", "y", "t", "None", "", "null")],
    *[
        (text, int, "a whole number")
        for text in ("12:30", "1e3", "1000.", "1.5", "true", "None", "", "abc", "0o17", "1__0", "１２")
    ],
    ("true", float, "a number"),
    ("x", float, "a number"),
    ("", float | None, "a number"),
    ("0", list[int], "a list in brackets"),
    ("0,1", list[int] | None, "a list in brackets"),
    ("[a]", list[int], "item 1: expected a whole number"),
    ("[0.9]", tuple[float, float], "a list of 2 values, and got 1"),
    ("[a, b", list[str], "brackets and quotes that match"),
    ("{a: b} # c", dict[str, str], "nothing after the closing bracket"),
    ("{a: b}{c: d}", dict[str, str], "brackets and quotes that match"),
    ("{a:b}", dict[str, str], "a space after each colon"),
    ("{a: 1, a: 2}", dict[str, int], "each name once"),
    ('{"a": 1, "a": 2}', dict[str, int], "each name once"),
    ('{"a": null}', dict[str, str], "`a`: expected text"),
    ("a: b", dict[str, str], "a mapping in braces"),
    ("[!!python/name:os.system x]", list[str], "no tags"),
    ("[!include x]", list[str], "no tags"),
    ("{VISUAL: MEANSTD}", dict[str, NormalizationMode], "`VISUAL`: expected `MIN_MAX`, `MEAN_STD`"),
    ("{action: {type: ACTION}}", dict[str, PolicyFeature], "`action`: expected `shape` in it"),
    ("{action: {type: ACTION, shape: [6], dtype: f}}", dict[str, PolicyFeature], "and got `dtype`"),
    ("", Path | None, "a path"),
]


@pytest.mark.parametrize(("text", "hint", "message"), REFUSED)
def test_refused_with_what_would_fit(text: str, hint: Any, message: str) -> None:
    with pytest.raises(Mismatch) as caught:
        parse(text, hint)
    assert message in str(caught.value)


def test_hints_show_how_to_write_it() -> None:
    hints = {}
    for text, hint in [
        ("1e5", int),
        ("0", list[int]),
        ("{a:b}", dict[str, str]),
        ("{VISUAL: MEANSTD}", dict[str, NormalizationMode]),
    ]:
        with pytest.raises(Mismatch) as caught:
            parse(text, hint)
        hints[text] = caught.value.hint
    assert hints == {
        "1e5": "write it as `100000`",
        "0": "write `[0]`",
        "{a:b}": "write `a: b`",
        "{VISUAL: MEANSTD}": "did you mean `MEAN_STD`?",
    }


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 5000,
        "9" * 10_000,
        '["' + "\\" * 999,
        "\0",
        "[\0]",
        "{? x}",
        "&a [*a]",
        "[*a]",
        "%",
        "[a\tb]",
    ],
)
def test_hostile_text_ends_in_a_value_or_a_mismatch(text: str) -> None:
    for hint in (int, float, bool, list[int], dict[str, Any], Path | None, Any):
        try:
            parse(text, hint)
        except Mismatch:
            pass


def test_aliases_cannot_blow_up() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(Mismatch, match="at most 100000 values"):
        read_yaml("\n".join(levels))


def test_a_bool_is_no_number_and_a_number_no_bool() -> None:
    for raw, hint in [(True, int), (True, float), (1, bool), (0, bool)]:
        with pytest.raises(Mismatch):
            convert(raw, hint)


def test_files_and_flags_have_the_same_grammar() -> None:
    text = "{a: 010, b: yes, c: [1e-4, 'x'], d: ~}"
    assert read_yaml(text) == read_value(text)
    assert plain_data(read_value(text)) == {"a": 10, "b": "yes", "c": [1e-4, "x"], "d": None}
    assert isinstance(read_value("{a: 010}")["a"], Plain)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_any_json_is_read_as_json(value: Any) -> None:
    assert plain_data(read_value(json.dumps(value))) == value


@given(st.text())
def test_text_that_is_not_quoted_or_null_is_kept_to_the_letter(text: str) -> None:
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    if not is_quoted:
        assert parse(text, str) == text


@given(st.integers())
def test_integers_survive(value: int) -> None:
    if len(str(value)) < 300:
        assert parse(str(value), int) == value


@given(st.floats(allow_nan=False))
def test_floats_survive(value: float) -> None:
    assert parse(repr(value), float) == value


@given(
    st.text(max_size=40),
    st.sampled_from([int, float, bool, list[int], list[str], dict[str, str], dict[str, Any], int | None, Any]),
)
def test_no_text_raises_anything_but_a_mismatch(text: str, hint: Any) -> None:
    try:
        parse(text, hint)
    except Mismatch:
        pass


def test_the_tilde_of_a_path_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert convert("~/runs/a", Path) == Path("/home/me/runs/a")
    assert convert("runs/~a", Path) == Path("runs/~a")
    assert convert("~nobody-has-this-name/a", Path) == Path("~nobody-has-this-name/a")
