"""What a policy depends on: its success in each variation against that in the one that they are compared with.

A verdict goes by the exact test, corrected for the number of variations; the interval says how large the change is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mimetic.evaluate.effect import BLIND, MUTE, SWAP
from mimetic.evaluate.rollout.environment import EnvTask, Shift
from mimetic.evaluate.rollout.independent import (
    Counts,
    detectable_fall,
    difference,
    fisher,
    holm,
    newcombe_independent,
)
from mimetic.evaluate.rollout.passes import POLICY
from mimetic.evaluate.rollout.play import Episode
from mimetic.evaluate.rollout.summary import SIGNIFICANT, Difference

_INPUTS = {BLIND: "its pictures", MUTE: "an instruction", SWAP: "what the instruction says"}


@dataclass(frozen=True, kw_only=True)
class ShiftEffect:
    """Success in a variation, compared with that in its reference.

    Args:
        split: the variation.
        shift: what it changes.
        task: the one task that is compared; empty for all of them, each as a stratum of its own.
        strata: outcomes task by task; the first condition is the variation.
        p_value: of Fisher's exact test.
        p_corrected: by Holm, for all comparisons of its kind.
        comparisons: how many those are.
    """

    split: str
    shift: Shift
    task: str
    strata: tuple[Counts, ...]
    p_value: float
    p_corrected: float
    comparisons: int

    @property
    def difference(self) -> float:
        """Success rate here minus that in the reference; tasks have the same weight."""
        return difference(self.strata)

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return newcombe_independent(self.strata)

    @property
    def here(self) -> tuple[int, int]:
        """Successes and episodes in the variation."""
        return sum(one.successes for one in self.strata), sum(one.n for one in self.strata)

    @property
    def there(self) -> tuple[int, int]:
        """Successes and episodes in the reference."""
        return sum(one.other_successes for one in self.strata), sum(one.other_n for one in self.strata)

    @property
    def detectable(self) -> float | None:
        """Smallest fall that so many episodes, tasks put together, find with 80 % chance; None: success is too rare."""
        first, second = (self.there, self.here) if self.shift.is_harder else (self.here, self.there)
        return detectable_fall(first[0] / first[1], first[1], second[1], level=SIGNIFICANT / self.comparisons)

    @property
    def verdict(self) -> str:
        """What was found.

        "depends"; "opposite", where the change is for the better; "possible", where the interval leaves zero out and
        the corrected test does not find the fall; "unknown", where success is too rare to fall; else "unclear".
        """
        if self.p_corrected < SIGNIFICANT:
            return "depends" if self._falls else "opposite"
        low, high = self.interval
        if self._falls and not low <= 0 <= high:
            return "possible"
        return "unknown" if self.detectable is None else "unclear"

    @property
    def _falls(self) -> bool:
        return self.difference != 0 and (self.difference < 0) == self.shift.is_harder

    @property
    def sentence(self) -> str:
        """In words."""
        return _sentence(self)


def shift_effects(episodes: Sequence[Episode], tasks: Sequence[EnvTask], *, by_task: bool = False) -> list[ShiftEffect]:
    """Compare every variation with its reference, where both were played.

    Args:
        episodes: of all passes; the policy's own count.
        tasks: that they were played in.
        by_task: one comparison for each task instead of one for all.
    """
    shifts = {task.split: task.shift for task in tasks if task.shift is not None}
    counted: dict[tuple[str, str], list[bool]] = {}
    for one in episodes:
        if one.run == POLICY:
            counted.setdefault((one.split, one.task), []).append(one.success)
    found: list[tuple[str, Shift, str, tuple[Counts, ...]]] = []
    for split, shift in shifts.items():
        strata = {
            task: Counts(
                successes=sum(outcomes),
                n=len(outcomes),
                other_successes=sum(counted[shift.reference, task]),
                other_n=len(counted[shift.reference, task]),
            )
            for (own_split, task), outcomes in counted.items()
            if own_split == split and (shift.reference, task) in counted
        }
        if by_task:
            found += [(split, shift, task, (counts,)) for task, counts in strata.items()]
        elif strata:
            found.append((split, shift, "", tuple(strata.values())))
    p_values = [fisher(strata) for *_, strata in found]
    return [
        ShiftEffect(
            split=split,
            shift=shift,
            task=task,
            strata=strata,
            p_value=p_value,
            p_corrected=corrected,
            comparisons=len(found),
        )
        for (split, shift, task, strata), p_value, corrected in zip(found, p_values, holm(p_values), strict=True)
    ]


def reading(shifts: Sequence[ShiftEffect], differences: Sequence[Difference]) -> str:
    """One sentence on what success depends on, by variations and by inputs that were taken away; empty without any."""
    verdicts = [(one.shift.short, one.verdict) for one in shifts]
    verdicts += [
        (_INPUTS[one.run], {"better": "depends", "unclear": "unclear"}.get(one.verdict, "opposite"))
        for one in differences
        if one.run in _INPUTS
    ]
    if not verdicts:
        return ""
    depends, possible, unclear, unknown = (
        _listed([what for what, verdict in verdicts if verdict == wanted])
        for wanted in ("depends", "possible", "unclear", "unknown")
    )
    parts = [f"success depends on {depends}"] if depends else []
    if possible:
        parts.append(f"it may depend on {possible}" if depends else f"success may depend on {possible}")
    if unclear:
        parts.append(f"no dependence was found on {unclear}")
    if unknown:
        parts.append(f"what {unknown} is worth cannot be told")
    whole = "; ".join(parts)
    return whole[:1].upper() + whole[1:]


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _sentence(one: ShiftEffect) -> str:
    """From the easier side to the harder one, in the order in which a fall is expected."""
    here, there = (one.split, *one.here), (one.shift.reference, *one.there)
    first, second = (there, here) if one.shift.is_harder else (here, there)
    low, high = one.interval
    sign = 1 if one.shift.is_harder else -1
    change = sign * one.difference
    # Rounded to whole points only here; the numbers are in closed_loop.json.
    bounds = (low, high) if sign > 0 else (-high, -low)
    rates = f"from {_rate(*first)} to {_rate(*second)}"
    corrected = f"exact p {_p(one.p_corrected)}" + (
        f", corrected for {one.comparisons} comparisons" if one.comparisons > 1 else ""
    )
    if one.verdict in ("depends", "possible"):
        fall = f"success falls {rates}, by {_points(-change)} points ({_points(-bounds[1])} to {_points(-bounds[0])}; "
        if one.verdict == "depends":
            return f"{one.shift.depends}: {fall}{corrected})"
        perhaps = one.shift.depends[:1].lower() + one.shift.depends[1:]
        return f"Perhaps {perhaps}: {fall}{corrected}). More episodes would tell"
    if one.verdict == "opposite":
        return (
            f"In `{second[0]}` it succeeds more often than in `{first[0]}`, which was not to be expected: {rates}, "
            f"by {_points(change)} points ({_points(bounds[0])} to {_points(bounds[1])}; {corrected})"
        )
    seen = f"success goes {rates}, {_signed(change)} points ({_signed(bounds[0])} to {_signed(bounds[1])}; {corrected})"
    if one.verdict == "unknown":
        return (
            f"What {one.shift.short} is worth to it cannot be told: {seen}, and success is too rare for a fall to show"
        )
    least = one.detectable
    assert least is not None
    return (
        f"{one.shift.not_found}: {seen}. So many episodes find a fall of {_points(least)} points with 80 % chance; a "
        "smaller one may be there"
    )


def _rate(split: str, successes: int, n: int) -> str:
    return f"{100 * successes / n:.0f} % ({split}, {successes} of {n})"


def _points(share: float) -> str:
    return f"{round(100 * share)}".replace("-", "−")


def _signed(share: float) -> str:
    return f"{round(100 * share):+d}".replace("-", "−")


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"
