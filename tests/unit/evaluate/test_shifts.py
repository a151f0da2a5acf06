"""What a policy depends on: the statistics behind it against simulation, and the words that follow from them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from mimetic.evaluate.rollout.cell import SHIFTS
from mimetic.evaluate.rollout.environment import EnvTask
from mimetic.evaluate.rollout.independent import (
    Counts,
    detectable_fall,
    difference,
    fisher,
    holm,
    newcombe_independent,
)
from mimetic.evaluate.rollout.intervals import Pairs
from mimetic.evaluate.rollout.play import Episode
from mimetic.evaluate.rollout.shifts import reading, shift_effects
from mimetic.evaluate.rollout.summary import Difference


def counts(successes, n, others, m):
    return Counts(successes=successes, n=n, other_successes=others, other_n=m)


def test_fisher_sums_what_is_at_most_as_likely():
    """7 of 10 against 2 of 8, by hand: margins 9 of 18, so the number in the first row is hypergeometric."""
    chances = {k: math.comb(10, k) * math.comb(8, 9 - k) / math.comb(18, 9) for k in range(1, 10)}
    expected = sum(chance for chance in chances.values() if chance <= chances[7] * (1 + 1e-9))
    assert fisher([counts(7, 10, 2, 8)]) == pytest.approx(expected, rel=1e-12)
    assert fisher([counts(3, 5, 3, 5)]) == pytest.approx(1.0)
    assert fisher([counts(0, 5, 0, 9)]) == pytest.approx(1.0)
    assert fisher([]) == 1.0


def test_fisher_of_strata_is_that_of_all_their_outcomes():
    """Two small tasks, every pair of outcomes written out."""
    strata = [counts(4, 5, 1, 5), counts(2, 4, 1, 6)]
    each = []
    for one in strata:
        both = one.successes + one.other_successes
        whole = math.comb(one.n + one.other_n, both)
        each.append({k: math.comb(one.n, k) * math.comb(one.other_n, both - k) / whole for k in range(both + 1)})
    chances: dict[int, float] = {}
    for (k, first), (m, second) in product(each[0].items(), each[1].items()):
        chances[k + m] = chances.get(k + m, 0.0) + first * second
    expected = sum(chance for chance in chances.values() if chance <= chances[6] * (1 + 1e-9))
    assert fisher(strata) == pytest.approx(expected, rel=1e-12)


def test_a_mixture_of_tasks_is_no_difference():
    """An easy task played more often in one split than in the other: pooled rates differ, the strata do not."""
    strata = [counts(81, 90, 9, 10), counts(1, 10, 9, 90)]
    assert difference(strata) == pytest.approx(0.0)
    low, high = newcombe_independent(strata)
    assert low < 0 < high
    assert fisher(strata) > 0.9
    assert fisher([counts(82, 100, 18, 100)]) < 1e-6


def test_the_interval_of_strata_covers_the_truth():
    rng = np.random.default_rng(0)
    first, second = np.array([0.9, 0.4]), np.array([0.7, 0.35])
    covered = []
    for _ in range(2000):
        drawn, other = rng.binomial(40, first), rng.binomial(40, second)
        strata = [counts(int(a), 40, int(b), 40) for a, b in zip(drawn, other, strict=True)]
        low, high = newcombe_independent(strata)
        covered.append(low <= 0.125 <= high)
    assert 0.93 < np.mean(covered) < 0.985


def power(rate, other, n, level=0.05):
    """Exact power of Fisher's test, over all outcomes."""
    found = 0.0
    chance = [math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]
    others = [math.comb(n, k) * other**k * (1 - other) ** (n - k) for k in range(n + 1)]
    for a, b in product(range(n + 1), repeat=2):
        if chance[a] * others[b] > 1e-9 and fisher([counts(a, n, b, n)]) < level:
            found += chance[a] * others[b]
    return found


@pytest.mark.parametrize("rate", [0.84, 0.5])
def test_the_detectable_fall_is_found_with_80_percent_chance(rate):
    n = 40
    fall = detectable_fall(rate, n, n)
    assert fall is not None
    assert 0.76 < power(rate, rate - fall, n) < 0.88


def test_the_detectable_fall_shrinks_with_episodes_and_may_not_exist():
    assert detectable_fall(0.8, 200, 200) < detectable_fall(0.8, 50, 50) < detectable_fall(0.8, 50, 50, level=0.01)
    assert detectable_fall(0.05, 50, 50) is None
    assert detectable_fall(0.0, 50, 50) is None
    assert detectable_fall(0.8, 0, 50) is None


def test_one_cry_of_wolf_in_twenty_evaluations_and_not_in_one_comparison():
    """Four comparisons of equal splits: at most 5 % of evaluations find anything (the exact test is cautious)."""
    rng = np.random.default_rng(4)
    cries = 0
    for _ in range(800):
        base, *rest = rng.binomial(50, 0.8, 5)
        p_values = [fisher([counts(int(k), 50, int(base), 50)]) for k in rest]
        cries += min(holm(p_values)) < 0.05
    assert cries / 800 <= 0.05


def tasks(*names, splits=("train", "held_out", "unseen_positions", "shifted_camera", "shifted_light")):
    return [
        EnvTask(
            group=f"so101_cell_{split}",
            task_id=number,
            task=name,
            split=split,
            features={},
            fps=30,
            episode_length=10,
            open=lambda places, processes: None,
            shift=SHIFTS.get(split),
        )
        for split in splits
        for number, name in enumerate(names)
    ]


def played(n=50, *, run="policy", task="reach", **successes):
    return [
        Episode(
            run=run,
            group=f"so101_cell_{split}",
            task_id=0,
            task=task,
            split=split,
            episode=k,
            seed=k,
            instruction="",
            length=5,
            success=k < count,
            sum_reward=0.0,
            max_reward=0.0,
            wall_s=0.0,
            policy_s=0.0,
            predictions=0,
        )
        for split, count in successes.items()
        for k in range(n)
    ]


ROUND = {"train": 45, "held_out": 42, "unseen_positions": 30, "shifted_camera": 6, "shifted_light": 40}


def test_every_split_is_compared_with_held_out_in_words():
    effects = shift_effects(played(**ROUND), tasks("reach"))
    found = {one.split: one for one in effects}
    assert list(found) == ["train", "unseen_positions", "shifted_camera", "shifted_light"]
    assert {one.comparisons for one in effects} == {4}
    camera = found["shifted_camera"]
    assert camera.verdict == "depends"
    assert camera.sentence.startswith(
        "The policy depends on the camera's place: success falls from 84 % (held_out, 42 of 50) to 12 % "
        "(shifted_camera, 6 of 50), by 72 points (55 to 82; exact p < 0.0001, corrected for 4 comparisons"
    )
    light = found["shifted_light"]
    assert light.verdict == "unclear"
    assert light.sentence.startswith("No dependence on the light was found: success goes from 84 %")
    assert "So many episodes find a fall of 33 points with 80 % chance; a smaller one may be there" in light.sentence
    train = found["train"]
    assert train.verdict == "unclear"
    assert "from 90 % (train, 45 of 50) to 84 % (held_out, 42 of 50), −6 points" in train.sentence
    assert found["unseen_positions"].verdict == "depends"
    assert reading(effects, []) == (
        "Success depends on a start like those of the demonstrations and the camera's place; no dependence was found "
        "on having seen the very start and the light"
    )


def test_a_difference_that_only_the_correction_forbids_is_said_to_be_possible():
    effects = {one.split: one for one in shift_effects(played(**ROUND | {"unseen_positions": 32}), tasks("reach"))}
    one = effects["unseen_positions"]
    assert one.p_value < 0.05 < one.p_corrected
    assert one.verdict == "possible"
    assert one.sentence.startswith("Perhaps the policy carries over less well to a region without demonstrations: ")
    assert one.sentence.endswith("More episodes would tell")


def test_starts_learnt_by_heart_are_a_fall_from_train_to_held_out():
    effects = shift_effects(played(train=48, held_out=20), tasks("reach", splits=("train", "held_out")))
    (one,) = effects
    assert one.verdict == "depends"
    assert one.difference > 0
    assert one.sentence.startswith(
        "The policy has learnt some starts by heart and succeeds less often from new ones between them: success falls "
        "from 96 % (train, 48 of 50) to 40 % (held_out, 20 of 50), by 56 points (39 to 69; exact p < 0.0001)"
    )


def test_more_success_where_less_was_expected_is_said():
    effects = shift_effects(played(held_out=20, shifted_light=45), tasks("reach", splits=("held_out", "shifted_light")))
    assert effects[0].verdict == "opposite"
    assert "which was not to be expected: from 40 % (held_out, 20 of 50) to 90 %" in effects[0].sentence


def test_what_a_policy_that_seldom_succeeds_depends_on_cannot_be_told():
    effects = shift_effects(played(held_out=2, shifted_light=1), tasks("reach", splits=("held_out", "shifted_light")))
    assert effects[0].verdict == "unknown"
    assert effects[0].detectable is None
    assert effects[0].sentence.startswith("What the light is worth to it cannot be told")
    assert reading(effects, []) == "What the light is worth cannot be told"


def test_nothing_is_compared_without_the_reference():
    names = ("train", "shifted_light")
    assert shift_effects(played(train=10, shifted_light=3), tasks("reach", splits=names)) == []
    assert reading([], []) == ""


def test_several_tasks_are_strata_and_can_be_told_apart():
    episodes = played(n=20, task="reach", held_out=19, shifted_camera=2)
    episodes += played(n=20, task="push", held_out=15, shifted_camera=14)
    here = tasks("reach", "push", splits=("held_out", "shifted_camera"))
    (whole,) = shift_effects(episodes, here)
    assert whole.here == (16, 40)
    assert whole.there == (34, 40)
    assert whole.difference == pytest.approx((-17 / 20 - 1 / 20) / 2)
    assert whole.verdict == "depends"
    each = {one.task: one for one in shift_effects(episodes, here, by_task=True)}
    assert each["reach"].verdict == "depends"
    assert each["push"].verdict == "unclear"
    assert {one.comparisons for one in each.values()} == {2}


def test_other_passes_do_not_count_and_missing_inputs_join_the_reading():
    episodes = played(held_out=42, shifted_light=41) + played(run="blind", held_out=0, shifted_light=0)
    effects = shift_effects(episodes, tasks("reach", splits=("held_out", "shifted_light")))
    assert effects[0].there == (42, 50)
    blind = Difference(
        run="blind", pairs=Pairs(both=0, only_first=83, only_second=0, neither=17), verdict="better", sentence=""
    )
    assert reading(effects, [blind]) == "Success depends on its pictures; no dependence was found on the light"
