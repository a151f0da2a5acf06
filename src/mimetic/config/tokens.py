"""The words of a command line: `--name=value` and `--name value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mimetic.config.problems import Problems

_DASHES = "‐‑‒–—−"


@dataclass(frozen=True)
class Token:
    """One flag as typed.

    Args:
        name: dotted name without dashes at its beginning; dashes within it, as other tools have them, are underscores.
        text: what stands after `=` or in the next word; None when there is nothing.
    """

    name: str
    text: str | None

    @property
    def value(self) -> str:
        """The text, empty when there is none."""
        return self.text or ""


def read_tokens(argv: Sequence[str], problems: Problems) -> list[Token]:
    """Split words into flags with values; there are no abbreviations and no positional words.

    Args:
        argv: words after the command's name.
        problems: words that fit nowhere are noted here.
    """
    tokens: list[Token] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if _is_flag(word):
            name, equals, text = word[2:].partition("=")
            name = name.replace("-", "_")
            if equals:
                tokens.append(Token(name, text))
            else:
                tokens.append(Token(name, words.pop(0) if words and not _is_flag(words[0]) else None))
            continue
        stray = [word]
        while words and not _is_flag(words[0]):
            stray.append(words.pop(0))
        _report_stray(stray, tokens, problems)
    return tokens


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _report_stray(stray: list[str], tokens: list[Token], problems: Problems) -> None:
    """Say what is wrong with words that belong to no flag; they are often the rest of the value before them."""
    word, text = stray[0], " ".join(stray)
    before = tokens[-1] if tokens else Token("", "")
    if not text.strip():
        problems.add("an empty word stands between the flags", "does a line end in a backslash and a space?")
    elif word[:1] in _DASHES:
        hint = f"type two hyphens: `--{word.lstrip(_DASHES + '-')}`"
        problems.add(f"`{word}` begins with a typographic dash", hint)
    elif _is_open(before.value):
        tokens.pop()
        hint = f"put it in quotes: `--{before.name}='{before.value} {text}'`"
        problems.add(f"the value of `--{before.name}` was cut at a space, before `{word}`", hint)
    elif before.value and all(item.lstrip("-").isdigit() for item in (before.value, *stray)):
        tokens.pop()
        hint = f"a list stands in brackets: `--{before.name}=[{','.join((before.value, *stray))}]`"
        problems.add(f"unexpected `{text}` after `--{before.name}`", hint)
    elif word.startswith("-") and len(word) > 1:
        problems.add(f"unexpected `{text}`", f"flags have two hyphens: `--{word.lstrip('-')}`")
    elif "=" in word:
        problems.add(f"unexpected `{text}`", f"did you mean `--{word}`?")
    elif before.value:
        hint = f"a value with spaces stands in quotes: `--{before.name}='{before.value} {text}'`"
        problems.add(f"unexpected `{text}` after `--{before.name}`", hint)
    else:
        problems.add(f"unexpected `{text}`", "every setting is a flag: `--name=value`")


def _is_open(text: str) -> bool:
    """Whether a bracketed value has lost its end."""
    closing = {"[": "]", "{": "}"}.get(text[:1])
    return closing is not None and text.count(text[0]) > text.count(closing)
