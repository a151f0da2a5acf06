"""What a tokenizer out of a file may do to a text, asked before it sees one.

A `tokenizer.json` describes steps that rewrite the text. A chain of them can double it again and again, and a
template can surround it with any number of tokens; the library runs all that without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST_BYTES = 4_000_000
"""Of the description of steps, without vocabulary; the tables of sentencepiece's normaliser have 0.4 MB."""
_MOST_STEPS = 64
_MOST_GROWTH = 10_000
_MOST_ADDED = 64


def excess(tokenizer: Tokenizer) -> str:
    """Why a tokenizer is not used, in words; empty when nothing is out of proportion."""
    if (added := tokenizer.num_special_tokens_to_add(False)) > _MOST_ADDED:
        return f"it adds {added} tokens to every text"
    growth = 1.0
    steps = 0
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is None:
            continue
        described = part.__getstate__()
        if len(described) > _MOST_BYTES:
            return f"the description of its steps has {len(described) / 1e6:.0f} MB"
        for step in _steps(json.loads(described)):
            steps += 1
            growth *= _growth(step)
    if steps > _MOST_STEPS:
        return f"it rewrites a text in {steps} steps"
    if growth > _MOST_GROWTH:
        return f"its steps can make a text {growth:.2g} times as long"
    return ""


def _steps(described: Any) -> Iterator[Mapping[str, Any]]:
    """The single steps of a chain of chains."""
    waiting = [described]
    while waiting:
        step = waiting.pop()
        inner = [*(step.get("normalizers") or ()), *(step.get("pretokenizers") or ())]
        waiting += inner
        if not inner:
            yield step


def _growth(step: Mapping[str, Any]) -> float:
    """How many times as long a step can make a text, about; of steps that change nothing a second time, 1."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return 2.0  # a character becomes the letters of its bytes, two bytes each
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if kind == "Replace":
        pattern = step.get("pattern")
        found = pattern.get("String") if isinstance(pattern, Mapping) else None
        return max(1.0, len(str(step.get("content", ""))) / max(1, len(found) if isinstance(found, str) else 1))
    return 1.0
