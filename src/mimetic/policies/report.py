"""How stored weights and a network compare, said in full before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase

from mimetic.catalog import closest
from mimetic.errors import KeyMismatch
from mimetic.policies.tensors import TensorInfo, WeightsFile

_SHOWN = 10
"""Names that a message lists at most."""
_FEW = 4
"""Modules up to which a hint names each one."""


@dataclass(frozen=True)
class Mismatch:
    """One tensor whose stored shape differs from the network's.

    Args:
        name: tensor name.
        stored: shape in the file.
        wanted: shape in the network.
    """

    name: str
    stored: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True)
class LoadReport:
    """Result of comparing a weights file with a network.

    Args:
        matched: tensors that are in both with the same shape.
        missing: tensors of the network that the file lacks.
        unexpected: tensors of the file that the network lacks.
        mismatched: tensors whose shapes differ.
        reinitialised: missing or mismatched tensors that the caller allows; they keep their initial values.
        ignored: unexpected tensors that the caller allows.
    """

    matched: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[Mismatch, ...] = ()
    reinitialised: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether nothing differs that the caller did not allow."""
        allowed = {*self.reinitialised, *self.ignored}
        differing = (*self.missing, *self.unexpected, *(m.name for m in self.mismatched))
        return all(name in allowed for name in differing)

    def joined(self, other: LoadReport) -> LoadReport:
        """The report on two files that hold parts of the same network."""
        return LoadReport(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def summary(self) -> str:
        """One line: counts, and the names of what was re-initialised or ignored."""
        text = (
            f"{len(self.matched)} tensors matched, {len(self.missing)} missing, {len(self.unexpected)} unexpected,"
            f" {len(self.mismatched)} of another shape"
        )
        if self.reinitialised:
            text += f"; re-initialised: {_listed(self.reinitialised)}"
        if self.ignored:
            text += f"; ignored: {_listed(self.ignored)}"
        return text

    def require_complete(self, where: str) -> None:
        """Refuse what the caller did not allow.

        Args:
            where: file, for the message.

        Raises:
            KeyMismatch: lists missing and unexpected tensors with the nearest names, and the flag that allows them.
        """
        if self.is_complete:
            return
        allowed = {*self.reinitialised, *self.ignored}
        missing = [name for name in self.missing if name not in allowed]
        unexpected = [name for name in self.unexpected if name not in allowed]
        mismatched = [m for m in self.mismatched if m.name not in allowed]
        counts = f"missing {len(missing)}, unexpected {len(unexpected)}"
        if mismatched:
            counts += f", other shape {len(mismatched)}"
        parts = [f"{where} does not fit the policy: {counts}"]
        near = _nearest(missing, unexpected)
        if missing:
            parts.append("missing: " + _listed(f"`{n}`{near.get(n, '')}" for n in missing))
        if unexpected:
            parts.append("unexpected: " + _listed(f"`{n}`" for n in unexpected))
        if mismatched:
            parts.append(
                "other shape: " + _listed(f"`{m.name}` is {m.stored} and should be {m.wanted}" for m in mismatched)
            )
        hint = _allow_hint([*missing, *(m.name for m in mismatched)], unexpected, [*self.matched, *allowed])
        raise KeyMismatch("\n".join(parts), hint)


def compare(file: WeightsFile, wanted: Mapping[str, tuple[int, ...]], allow: Sequence[str] = ()) -> LoadReport:
    """Compare a weights file with the tensors that a network has.

    Args:
        file: header of the file.
        wanted: name -> shape of the network's parameters and persistent buffers.
        allow: shell patterns of tensor names that may be missing, unexpected, or of another shape.
    """
    stored: Mapping[str, TensorInfo] = file.tensors
    missing = tuple(name for name in wanted if name not in stored)
    unexpected = tuple(name for name in stored if name not in wanted)
    mismatched = tuple(
        Mismatch(name, stored[name].shape, shape)
        for name, shape in wanted.items()
        if name in stored and stored[name].shape != shape
    )
    differs = {m.name for m in mismatched}
    return LoadReport(
        matched=tuple(name for name in wanted if name in stored and name not in differs),
        missing=missing,
        unexpected=unexpected,
        mismatched=mismatched,
        reinitialised=tuple(n for n in (*missing, *(m.name for m in mismatched)) if _is_allowed(n, allow)),
        ignored=tuple(name for name in unexpected if _is_allowed(name, allow)),
    )


def _is_allowed(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _nearest(missing: Iterable[str], unexpected: Sequence[str]) -> dict[str, str]:
    """For each missing name, a remark with the unexpected name that resembles it most."""
    found = {}
    for name in list(missing)[:_SHOWN]:
        near = closest(name, unexpected)
        if near:
            found[name] = f" (nearest: `{near[0]}`)"
    return found


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _patterns(names: Sequence[str], fitting: Sequence[str]) -> list[str]:
    """Shell patterns for names: one for each module, or for the largest ones without a tensor that fits."""
    by_module = list(dict.fromkeys(f"{name.rpartition('.')[0] or name}*" for name in names))
    if len(by_module) <= _FEW:
        return by_module
    used = {name[:end] for name in fitting for end, letter in enumerate(name, 1) if letter == "."}
    found: dict[str, None] = {}
    for name in names:
        prefixes = (name[:end] for end, letter in enumerate(name, 1) if letter == ".")
        found[next((f"{prefix}*" for prefix in prefixes if prefix not in used), name)] = None
    return list(found)


def _allow_hint(absent: Sequence[str], unexpected: Sequence[str], fitting: Sequence[str]) -> str:
    """The flag that allows exactly these names, by their common modules."""
    if not fitting:
        return "no tensor of the file fits, so it holds another model; look with `mimetic inspect` which one"
    shown = ", ".join(f'"{pattern}"' for pattern in _patterns([*absent, *unexpected], fitting)[:_SHOWN])
    hint = "if these tensors are renamed, rename them in the file"
    if absent:
        hint += "; to start them from random values"
    else:
        hint += "; to leave them out"
    return f"{hint}: `--allow_missing='[{shown}]'`"
