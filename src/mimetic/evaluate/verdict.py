"""What the numbers of an open-loop evaluation mean, in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mimetic.evaluate.effect import BLIND, MUTE, SWAP, Effect
from mimetic.evaluate.metrics import Intervals, Scores

Level = Literal["good", "weak", "bad", "unknown"]

HARDLY_MOVES = 0.2
"""Movement ratio below which a policy is said to hardly move."""
RECORDED_RESTS = 0.02
"""Recorded movement, in deviations, below which there is nothing to follow."""
MOVES_LESS = 0.6
MOVES_MORE = 1.7
FEW_CHUNKS = 20
FEW_EPISODES = 5
MATTERS = {BLIND: 0.05, MUTE: 0.05, SWAP: 0.3}
"""Growth of the error, by pass, that shows that an input is used.

A wrong instruction makes a policy that follows it move elsewhere, which multiplies its error. Less than 30 % is what
any unusual text may cost: small policies that had been trained with one text for everything lost or gained up to 17 %
by a wrong one, by chance.
"""

Use = Literal["used", "little", "unused", "unclear"]

CAVEAT = (
    "Open-loop error compares predictions with what was done from recorded states. It does not prove that the task "
    "succeeds: small errors add up once the robot follows the policy, and another good action counts as an error"
)


@dataclass(frozen=True)
class Verdict:
    """The answer to "is this policy any good", with its reasons and its limits.

    Args:
        level: "good" (better than both baselines), "weak" (not shown to be better), "bad" (hardly moves, or worse than
            a baseline), "unknown" (nothing can be told).
        headline: one sentence.
        findings: further sentences, most important first.
        advice: what to do next; empty when there is nothing to say.
        caveats: what the numbers do not show.
    """

    level: Level
    headline: str
    findings: tuple[str, ...]
    advice: tuple[str, ...]
    caveats: tuple[str, ...]


def judge(
    scores: Scores,
    bounds: Intervals,
    names: Sequence[str],
    *,
    episodes: int,
    effects: Sequence[Effect] = (),
    notes: Sequence[str] = (),
) -> Verdict:
    """Put scores into words.

    Args:
        scores: of all evaluated chunks.
        bounds: their intervals.
        names: of the joints.
        episodes: how many episodes were evaluated.
        effects: what inputs are worth, where that was measured.
        notes: what could not be measured of it, as sentences.
    """
    level, headline, advice = _headline(scores, bounds)
    findings = [] if level == "unknown" else [*_comparison(scores, bounds), *_movement(scores), *_joints(scores, names)]
    if level != "unknown":
        findings += [_effect(effect) for effect in effects]
        advice += _text_advice(effects)
    findings += notes
    return Verdict(level, headline, tuple(findings), tuple(advice), (*_limits(scores, episodes), CAVEAT))


def _headline(scores: Scores, bounds: Intervals) -> tuple[Level, str, list[str]]:
    if not math.isfinite(scores.overall_skill_mean) or not scores.recorded_movement > RECORDED_RESTS:
        return "unknown", "Nothing can be told: the recorded actions hardly move in these episodes", []
    if scores.overall_movement < HARDLY_MOVES:
        return (
            "bad",
            f"The policy hardly moves: its chunks cover {_percent(scores.overall_movement)} of the recorded movement",
            [
                "If the training loss still falls, train longer; an average of all demonstrations is learned first",
                "Look for long pauses in the demonstrations: a policy learns to wait from them",
                "Check that cameras and statistics of the checkpoint are those of this dataset (`mimetic inspect`)",
            ],
        )
    for baseline, skill, interval in (
        ("holding still", scores.overall_skill_hold, bounds.overall_skill_hold),
        ("the mean action", scores.overall_skill_mean, bounds.overall_skill_mean),
    ):
        if not math.isfinite(skill):
            continue
        if skill < 0:
            return (
                "bad",
                f"No better than {baseline}: the policy's error is {_percent(-skill)} larger",
                ["Train longer; the joints that are worse than holding still show where it fails"],
            )
        if not interval[0] > 0:
            return (
                "weak",
                f"No better than {baseline}, as far as these episodes show: the error is {_percent(skill)} smaller, "
                "which is within chance",
                ["Evaluate more episodes, or predict more often with a smaller `--stride`"],
            )
    return (
        "good",
        "Better than both baselines: the error is "
        f"{_percent(scores.overall_skill_hold)} smaller than holding still's "
        f"and {_percent(scores.overall_skill_mean)} smaller than the mean action's",
        [],
    )


def _comparison(scores: Scores, bounds: Intervals) -> list[str]:
    lines = []
    for baseline, skill, interval in (
        ("holding still", scores.overall_skill_hold, bounds.overall_skill_hold),
        ("the mean action", scores.overall_skill_mean, bounds.overall_skill_mean),
    ):
        if not math.isfinite(skill):
            continue
        size = f"{_percent(abs(skill))} {'smaller' if skill >= 0 else 'larger'}"
        known = bool(interval[0] == interval[0])
        skills = (
            f"skill {skill:.2f}, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
            if known
            else f"skill {skill:.2f}"
        )
        lines.append(f"Against {baseline}: error {size} ({skills})")
    return lines


def _movement(scores: Scores) -> list[str]:
    ratio = scores.overall_movement
    text = f"The predicted chunks move {_percent(ratio)} as much as the recorded ones"
    if HARDLY_MOVES <= ratio < MOVES_LESS:
        return [text + ": the motion is damped"]
    if ratio > MOVES_MORE:
        return [text + ": the motion is exaggerated or jitters"]
    return [text]


def _joints(scores: Scores, names: Sequence[str]) -> list[str]:
    judged = [index for index in range(len(names)) if math.isfinite(scores.normalised[0, index])]
    lines = []
    gap = scores.normalised[0] - scores.normalised[1]
    worse = sorted((i for i in judged if scores.worse_than_hold[i]), key=lambda i: -float(gap[i]))
    if worse:
        lines.append(f"Worse than holding still on {len(worse)} of {len(judged)} joints: {_listing(names, worse)}")
    still = [index for index in range(len(names)) if index not in judged]
    if still:
        lines.append(
            f"{_count(len(still), 'joint')} without any recorded motion {'is' if len(still) == 1 else 'are'} "
            f"not part of the overall numbers: {_listing(names, still)}"
        )
    return lines


_EFFECTS = {
    BLIND: (
        "With blank images",
        "the policy uses its cameras",
        "the policy uses its cameras a little",
        "the policy hardly uses its cameras",
    ),
    MUTE: (
        "Without an instruction",
        "the policy notices that it is missing",
        "the policy hardly notices that it is missing",
        "the policy does not notice that it is missing",
    ),
    SWAP: (
        "With another task's instruction",
        "the policy follows its instruction",
        "the policy reacts to its instruction, but too little to say that it follows it",
        "the policy ignores its instruction",
    ),
}
"""By pass: what was done; what it means when the error grows, grows a little, and does not grow."""


def judge_effect(effect: Effect) -> Use:
    """Whether a policy uses an input, as far as the pairs of predictions show."""
    low, high = effect.interval
    if not all(map(math.isfinite, (effect.growth, low, high))):
        return "unclear"
    if low > MATTERS[effect.name]:
        return "used"
    if high < MATTERS[effect.name]:
        return "unused"
    return "little" if low > 0 else "unclear"


def _effect(effect: Effect) -> str:
    done, used, little, unused = _EFFECTS[effect.name]
    if not math.isfinite(effect.growth):
        return f"{done} the error cannot be compared"
    change = f"{done} the error changes by {100 * effect.growth:+.0f} %"
    if math.isfinite(effect.interval[0]):
        change += f" (95 % interval {100 * effect.interval[0]:+.0f} to {100 * effect.interval[1]:+.0f} %)"
    meaning = {
        "used": used,
        "little": little,
        "unused": unused,
        "unclear": "that may be chance; evaluate more episodes",
    }
    return f"{change}: {meaning[judge_effect(effect)]}"


def _text_advice(effects: Sequence[Effect]) -> list[str]:
    swap = next((effect for effect in effects if effect.name == SWAP), None)
    if swap is None or judge_effect(swap) not in ("little", "unused"):
        return []
    return [
        "Look whether scene or starting pose already give the task away (record all tasks in the same scenes), whether "
        "each episode carries its own text, and train longer: a text is learned after the common motion"
    ]


def _limits(scores: Scores, episodes: int) -> list[str]:
    lines = []
    if episodes < FEW_EPISODES:
        lines.append(
            f"Only {_count(episodes, 'episode')} "
            f"{'was' if episodes == 1 else 'were'} evaluated: the interval says little about other episodes"
        )
    if scores.chunks < FEW_CHUNKS:
        lines.append(f"Only {_count(scores.chunks, 'prediction')}: a smaller `--stride` gives steadier numbers")
    return lines


def _listing(names: Sequence[str], chosen: Sequence[int], most: int = 6) -> str:
    shown = ", ".join(names[index] for index in chosen[:most])
    return shown if len(chosen) <= most else f"{shown} and {len(chosen) - most} more"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _percent(share: float) -> str:
    value = 100.0 * share
    return f"{value:.1f} %" if 0 < value < 1 else f"{value:.0f} %"
