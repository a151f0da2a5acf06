"""From episodes to numbers and words: success rates with intervals, paired differences, latency, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mimetic.evaluate.effect import BLIND, MUTE, SWAP
from mimetic.evaluate.rollout.intervals import (
    Pairs,
    detectable_difference,
    mcnemar,
    newcombe,
    pair,
    wilson,
)
from mimetic.evaluate.rollout.passes import COMPARE, POLICY
from mimetic.evaluate.rollout.play import Episode

SIGNIFICANT = 0.05
_FEW = 30
_TOO_FEW_SUCCESSES = 5


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Successes of a part of the episodes.

    Args:
        title: what part.
        run: which pass.
        n: episodes.
        successes: of them.
        mean_length: control ticks of the successful ones; NaN without any.
    """

    title: str
    run: str
    n: int
    successes: int
    mean_length: float

    @property
    def share(self) -> float:
        """Success rate; NaN without an episode."""
        return self.successes / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        return wilson(self.successes, self.n)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two passes over the same episodes.

    Args:
        run: the other pass.
        pairs: outcomes; the first is the policy with everything.
        verdict: "better", "worse" or "unclear": what the policy is, compared with the other pass.
        sentence: in words.
    """

    run: str
    pairs: Pairs
    verdict: str
    sentence: str

    @property
    def p_value(self) -> float:
        """Of the exact McNemar test."""
        return mcnemar(self.pairs)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the difference."""
        return newcombe(self.pairs)

    @property
    def detectable(self) -> float:
        """Smallest difference that so many episodes find with 80 % chance."""
        return detectable_difference(self.pairs.n, self.pairs.only_first + self.pairs.only_second)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long the policy takes.

    Args:
        median_ms: of a prediction [ms].
        p95_ms: what 95 of 100 predictions do not exceed [ms].
        mean_ms: of all control ticks, those included that only take an action from the queue [ms].
        predictions: how many.
        tick_ms: time of a control tick [ms].
        fps: control ticks a second [Hz].
        sentence: whether the policy keeps the rate.
        keeps_up: whether it does, without help.
    """

    median_ms: float
    p95_ms: float
    mean_ms: float
    predictions: int
    tick_ms: float
    fps: float
    sentence: str
    keeps_up: bool


def rate(title: str, episodes: Sequence[Episode], run: str = POLICY) -> Rate:
    """Count the successes of a pass."""
    own = [one for one in episodes if one.run == run]
    lengths = [one.length for one in own if one.success]
    return Rate(
        title=title,
        run=run,
        n=len(own),
        successes=len(lengths),
        mean_length=float(np.mean(lengths)) if lengths else math.nan,
    )


def rates_by(episodes: Sequence[Episode], key: Callable[[Episode], str], run: str = POLICY) -> list[Rate]:
    """A rate for each group of episodes, in order of appearance."""
    titles = dict.fromkeys(key(one) for one in episodes if one.run == run)
    return [rate(title, [one for one in episodes if key(one) == title], run) for title in titles]


def task_title(one: Episode) -> str:
    """Name of a task in its split."""
    return f"{one.task}, {one.split}" if one.split else one.task


def paired(episodes: Sequence[Episode], run: str) -> Pairs:
    """Outcomes of the policy and of another pass in the episodes that both played."""
    first = {(one.group, one.task_id, one.episode): one.success for one in episodes if one.run == POLICY}
    second = {(one.group, one.task_id, one.episode): one.success for one in episodes if one.run == run}
    shared = [key for key in first if key in second]
    return pair([first[key] for key in shared], [second[key] for key in shared])


def difference(episodes: Sequence[Episode], run: str) -> Difference:
    """What another pass over the same episodes shows."""
    pairs = paired(episodes, run)
    verdict = "unclear"
    if mcnemar(pairs) < SIGNIFICANT:
        verdict = "better" if pairs.difference > 0 else "worse"
    return Difference(run=run, pairs=pairs, verdict=verdict, sentence=_sentence(run, pairs, verdict))


def _sentence(run: str, pairs: Pairs, verdict: str) -> str:
    first, second = pairs.both + pairs.only_first, pairs.both + pairs.only_second
    low, high = newcombe(pairs)
    numbers = (
        f"{first} against {second} of the same {pairs.n} episodes, a difference of {_points(pairs.difference)} "
        f"({_points(low)} to {_points(high)}, exact p {_p(mcnemar(pairs))})"
    )
    small = (
        "so many episodes find one of "
        f"{100 * detectable_difference(pairs.n, pairs.only_first + pairs.only_second):.0f} points with 80 % chance"
    )
    if run == COMPARE:
        return {
            "better": f"The first checkpoint succeeds more often than the second: {numbers}",
            "worse": f"The first checkpoint succeeds less often than the second: {numbers}",
            "unclear": f"No detectable difference between the checkpoints: {numbers}; {small}. That does not make them "
            "equal",
        }[verdict]
    what, without, uses = {
        BLIND: ("pictures", "with every picture replaced by its mean colour", "The policy looks at its cameras"),
        MUTE: ("the instruction", "with an empty instruction", "The policy reacts to a missing instruction"),
        SWAP: ("the instruction", "with another task's instruction", "The policy follows its instruction"),
    }[run]
    if verdict == "better":
        return f"{uses}: it succeeds less often {without}, {numbers}"
    if verdict == "worse":
        return f"The policy succeeds more often {without}: {numbers}"
    if first < _TOO_FEW_SUCCESSES:
        return (
            f"Whether the policy uses {what} cannot be told: it succeeded in {first} of {pairs.n} episodes with "
            f"everything, and in {second} {without}"
        )
    return f"No detectable difference {without}: {numbers}; {small}. That does not prove that it ignores {what}"


def latency(episodes: Sequence[Episode], fps: float, n_action_steps: int) -> Latency | None:
    """How long the policy takes, and whether that is fast enough for the rate of the environment."""
    own = [one for one in episodes if one.run == POLICY]
    times = [value for one in own for value in one.latency_ms]
    ticks = sum(one.length for one in own)
    if not times or not ticks:
        return None
    tick_ms = 1000 / fps
    median, p95 = (float(np.percentile(times, share)) for share in (50, 95))
    mean = 1000 * sum(one.policy_s for one in own) / ticks
    facts = f"a prediction takes {median:.3g} ms ({p95:.3g} ms at most in 95 of 100), a tick has {tick_ms:.1f} ms"
    if p95 <= tick_ms:
        sentence = f"The policy keeps {fps:g} Hz on this machine: {facts}"
    elif mean <= tick_ms:
        sentence = (
            f"The policy keeps {fps:g} Hz on this machine only if predictions run beside the motion: {facts}; one "
            f"serves {n_action_steps} ticks. Here the simulation waited for it, a robot would not"
        )
    else:
        sentence = (
            f"The policy does not keep {fps:g} Hz on this machine: {facts}, and it needs {mean:.3g} ms a tick on "
            "average. Here the simulation waited for it, a robot would not"
        )
    return Latency(
        median_ms=median,
        p95_ms=p95,
        mean_ms=mean,
        predictions=sum(one.predictions for one in own),
        tick_ms=tick_ms,
        fps=fps,
        sentence=sentence,
        keeps_up=p95 <= tick_ms,
    )


def headline(main: Rate, whole: Rate) -> str:
    """The result in one line.

    Args:
        main: what counts first: the split that others are compared with, or everything.
        whole: everything.
    """
    low, high = main.interval
    place = "" if main is whole else f" in {main.title}"
    rest = "" if main is whole else f"; {whole.successes} of {whole.n} in all splits"
    return (
        f"{main.successes} of {main.n} episodes succeeded{place}: {100 * main.share:.0f} % "
        f"(95 % interval {100 * low:.0f} to {100 * high:.0f} %){rest}"
    )


def caveats(
    rates: Sequence[Rate],
    *,
    stopped: Sequence[str],
    target: float,
    splits: Sequence[str],
    compares: bool,
    shifts: bool = False,
) -> list[str]:
    """How far the numbers can be trusted.

    Args:
        rates: of the tasks.
        stopped: titles of tasks that ended early.
        target: half-width at which they did.
        splits: evaluated variations.
        compares: whether two checkpoints were compared.
        shifts: whether variations were compared with each other.
    """
    found = []
    few = min((one.n for one in rates), default=0)
    if few < _FEW:
        found.append(
            f"{few} episodes a task are few: an interval from so many is wide, and a difference has to be large to show"
        )
    if stopped:
        found.append(
            f"Stopped early, at plus or minus {100 * target:g} points: {'; '.join(stopped)}. Stopping where an "
            "interval is narrow makes its true coverage slightly smaller than 95 %"
        )
    if set(splits) == {"train"}:
        found.append(
            "The split `train` begins like the demonstrations; `--env.split=held_out,unseen_positions` shows what "
            "carries over"
        )
    if compares:
        found.append(
            "This compares two trained checkpoints, not two recipes: training again with another seed alone moves "
            "success by several points, so train each recipe with three seeds or more before you believe in one"
        )
    if shifts:
        found.append(
            "A dependence was looked for in changes as large as the splits make; one that was not found may show in a "
            "larger change"
        )
    found.append(
        "The interval covers the chance of these starts; a simulator's success does not carry over to a robot by itself"
    )
    return found


def _points(share: float) -> str:
    return f"{100 * share:+.0f} points".replace("-", "−")


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"= {value:.2g}"
