"""Regular expressions out of files, matched in linear time.

Python's `re` tries alternatives one after the other, so that an expression such as `(.*)*x` in a checkpoint could keep
a process busy for ever. Here all alternatives advance together through the text (Thompson's construction), and the work
is bounded. The expressions are those of `re` without back-references, look-behind, possessive repeats, atomic groups
and flags, which names of modules do not need.

Source: Thompson, Regular Expression Search Algorithm, Communications of the ACM 11 (6), 1968.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_LONGEST, _DEEPEST, _MOST_STATES, _MOST_WORK = 50_000, 50, 100_000, 4_000_000
_QUANTIFIER = re.compile(r"[*+?]|\{(?=[\d,])(\d*)(?:(,)(\d*))?\}")
_PLACE = re.compile(r"[$^]|\\[AZbB]")
_GROUP = re.compile(r"\((?:\?(?:P<\w+>|[:=!]))?")
_CHARACTER = re.compile(r"\\[dDwWsStnrfv]|\\[^0-9a-zA-Z]|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[()|*+?]", re.DOTALL)

_Build = Callable[[int], int]
"""Adds states after a given one, and returns the last."""


class PatternError(ValueError):
    """The expression is broken, uses what is not supported, or takes too much work."""


@dataclass(slots=True)
class _State:
    """A place in the automaton: it reads a character, or it leads on without one where `test` allows it."""

    reads: re.Pattern[str] | None = None
    test: Callable[[str, int], bool] | None = None
    after: list[int] = field(default_factory=list)


class NamePattern:
    """An expression that names are compared with from end to end.

    Args:
        text: the expression.

    Raises:
        PatternError: see there.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise PatternError(f"it has {len(text):,} characters")
        try:
            re.compile(text)
            self._states: list[_State] = []
            self._depends_on_place = False
            start = self._new()
            reader = _Reader(text, self)
            self._end = reader.alternatives()(start)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error) or "it is nested too deeply") from error
        if reader.at < len(text):
            raise reader.unsupported()
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._work = 0

    def matching(self, names: Iterable[str]) -> list[str]:
        """Those of the names that the expression matches.

        Raises:
            PatternError: it takes too much work.
        """
        self._work = 0
        return [name for name in names if self._runs(name, 0, 0, self._end, whole=True)]

    def _runs(self, text: str, at: int, start: int, end: int, *, whole: bool) -> bool:
        """Whether what lies between two states matches the text from `at` on: to its end, or to anywhere."""
        active = self._spread({start}, text, at)
        while at < len(text) and active and (whole or end not in active):
            key = (active, text[at])
            at += 1
            following = self._known.get(key)
            if following is None:
                following = self._spread(self._step(active, text[at - 1]), text, at)
                if not self._depends_on_place:
                    self._known[key] = following
            active = following
        return end in active and (not whole or at == len(text))

    def _step(self, active: frozenset[int], letter: str) -> set[int]:
        after: set[int] = set()
        for index in active:
            state = self._states[index]
            if state.reads is not None and state.reads.fullmatch(letter):
                after.update(state.after)
        return after

    def _spread(self, states: set[int], text: str, at: int) -> frozenset[int]:
        """What can be reached without reading a character."""
        waiting = list(states)
        while waiting:
            state = self._states[waiting.pop()]
            if state.reads is None and (state.test is None or state.test(text, at)):
                fresh = [index for index in state.after if index not in states]
                states.update(fresh)
                waiting += fresh
        self._work += len(states)
        if self._work > _MOST_WORK:
            raise PatternError("it takes too much work")
        return frozenset(states)

    def _new(self, *before: int) -> int:
        """A new state that the given ones lead to."""
        if len(self._states) >= _MOST_STATES:
            raise PatternError("its repeats are too many")
        self._states.append(_State())
        for index in before:
            self._states[index].after.append(len(self._states) - 1)
        return len(self._states) - 1

    # What the parts of an expression add to the automaton.

    def character(self, piece: str) -> _Build:
        """One character, as `re` understands the piece."""
        pattern = re.compile(piece)

        def build(start: int) -> int:
            state = self._new(start)
            self._states[state].reads = pattern
            return self._new(state)

        return build

    def place(self, test: Callable[[str, int], bool]) -> _Build:
        """Nothing, where the test allows it."""
        self._depends_on_place = True

        def build(start: int) -> int:
            state = self._new(start)
            self._states[state].test = test
            return self._new(state)

        return build

    def look_ahead(self, inner: _Build, *, wanted: bool) -> _Build:
        """Nothing, where what follows matches or does not."""
        start = self._new()
        end = inner(start)
        return self.place(lambda text, at: self._runs(text, at, start, end, whole=False) == wanted)

    def one_of(self, parts: list[_Build]) -> _Build:
        """Any of the parts."""
        return parts[0] if len(parts) == 1 else lambda start: self._new(*[part(self._new(start)) for part in parts])

    def repeat(self, part: _Build, least: int, most: int | None) -> _Build:
        """The part several times; None is without limit."""

        def build(start: int) -> int:
            at = self._new(start)
            for _ in range(least):
                at = part(at)
            if most is None:
                hub = self._new(at)
                self._states[part(hub)].after.append(hub)
                return self._new(hub)
            ends = [at]
            for _ in range(most - least):
                ends.append(part(ends[-1]))
            return self._new(*ends)

        return build


class _Reader:
    """Reads an expression that `re` has accepted."""

    def __init__(self, text: str, automaton: NamePattern) -> None:
        self.at = 0
        self._text = text
        self._automaton = automaton
        self._depth = 0

    def alternatives(self) -> _Build:
        """Read `a|b|c`."""
        parts = [self._sequence()]
        while self._take("|"):
            parts.append(self._sequence())
        return self._automaton.one_of(parts)

    def unsupported(self) -> PatternError:
        """The error for what stands here."""
        return PatternError(f"`{self._text[self.at : self.at + 20]}` (character {self.at + 1}) is not supported")

    def _take(self, sign: str) -> bool:
        found = self._text.startswith(sign, self.at)
        self.at += len(sign) * found
        return found

    def _sequence(self) -> _Build:
        items: list[_Build] = []
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            items.append(self._repeated())

        def build(start: int) -> int:
            for item in items:
                start = item(start)
            return start

        return build

    def _repeated(self) -> _Build:
        item = self._item()
        found = _QUANTIFIER.match(self._text, self.at)
        if not found:
            return item
        self.at = found.end()
        if self._text.startswith("+", self.at):
            raise self.unsupported()
        self._take("?")  # the shortest match first: a match all the same
        if found[0] in "*+?":
            return self._automaton.repeat(item, int(found[0] == "+"), 1 if found[0] == "?" else None)
        least = int(found[1] or 0)
        most = (int(found[3]) if found[3] else None) if found[2] else least
        return self._automaton.repeat(item, least, most)

    def _item(self) -> _Build:
        """Read a place, a group, or a piece that stands for one character."""
        if found := _PLACE.match(self._text, self.at):
            self.at = found.end()
            match = re.compile(found[0]).match
            return self._automaton.place(lambda text, at: match(text, at) is not None)
        if found := _GROUP.match(self._text, self.at):
            self.at, self._depth = found.end(), self._depth + 1
            if self._depth > _DEEPEST:
                raise PatternError("it is nested too deeply")
            inner = self.alternatives()
            if not self._take(")"):
                raise self.unsupported()
            self._depth -= 1
            return self._automaton.look_ahead(inner, wanted=found[0] == "(?=") if found[0] in ("(?=", "(?!") else inner
        if found := _CHARACTER.match(self._text, self.at):
            self.at = found.end()
            return self._automaton.character(found[0])
        raise self.unsupported()
