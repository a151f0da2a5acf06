"""Expressions out of files: the same matches as `re`, or a refusal, and never much time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.policies.name_patterns import NamePattern, PatternError

NAMES = [
    f"model.vlm_with_expert.{part}.layers.{i}.self_attn.{kind}_proj"
    for part in ("vlm.model.text_model", "lm_expert")
    for i in range(16)
    for kind in "qkvo"
]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(model\.vlm_with_expert\.lm_expert\..*\.(q|v)_proj|model\.(state_proj|action_in_proj))",
        r"^(?!.*text_model).*(?:q_proj|v_proj)$",
        r".*\.layers\.(1[0-5]|[02468])\..*[qv]_proj",
        r".*(?=q_)q_proj",
        r"(?P<start>model).*\b\d{2}\b.*k_\w+?",
        r"model.*{1}",
        r"nothing",
        r"",
    ],
)
def test_usual_expressions_match_what_re_matches(pattern):
    try:
        expected = [name for name in NAMES if re.fullmatch(pattern, name)]
    except re.error:
        with pytest.raises(PatternError):
            NamePattern(pattern)
        return
    assert NamePattern(pattern).matching(NAMES) == expected


ATOMS = st.sampled_from(
    ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\w", "_", r"\d", "{", "}", "]", "^", "$", r"\b", r"\B"]
)
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{,2}", "{1,}", "{,}", "{0}", "*?", "+?", "??"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda both: f"({both[0]}|{both[1]})"),
        st.tuples(inner, COUNTS).map(lambda both: f"(?:{both[0]}){both[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!"]), inner).map(lambda both: f"{both[0]}{both[1]})"),
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(pattern=PATTERNS, names=st.lists(st.text("ab._1{}]\n", max_size=6), max_size=8))
def test_any_expression_matches_what_re_matches(pattern, names):
    try:
        expected = [name for name in names if re.fullmatch(pattern, name)]
    except re.error:
        return
    assert NamePattern(pattern).matching(names) == expected


@pytest.mark.parametrize(
    "pattern", [r"([a-z_.0-9]+)+!", r"(.*)*X", r".*.*.*.*.*.*.*.*X", r"(.{1,40}){1,40}x", r"(?=(.*)*x)*.*"]
)
def test_expressions_that_keep_re_busy_for_ever_take_no_time(pattern):
    started = time.process_time()
    NamePattern(pattern).matching(NAMES)
    assert time.process_time() - started < 5  # 0.3 s; `re` does not come back


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        r"(?<=a)b",
        r"(?i)a",
        r"(?i:a)",
        r"(?>a)",
        r"a++",
        r"\x41",
        "(",
        "(?:" * 100 + ")" * 100,
        r"((((a{1,100}){1,100}){1,100}){1,100})",
        r"((?=.*(?=.*(?=.*(?=.*x)))).)*",
        "a" * 10**6,
    ],
    ids=range(13),
)
def test_what_is_not_supported_or_too_much_is_refused(pattern):
    with pytest.raises(PatternError):
        NamePattern(pattern).matching(NAMES)
