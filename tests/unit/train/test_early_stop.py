"""The held-out losses of a run: which is the best, when to stop, and that a resumed run judges the same."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimetic.errors import CheckpointError
from mimetic.train.keep_config import EarlyStopConfig, KeepConfig
from mimetic.train.retention import Selection

NAN, INF = math.nan, math.inf
LOSSES = st.lists(st.one_of(st.sampled_from([NAN, INF, -INF]), st.floats(-2, 2)), max_size=12)


def judge(losses, **early_stop):
    selection = Selection(EarlyStopConfig(**early_stop))
    return selection, [selection.note(10 * n, loss) for n, loss in enumerate(losses, start=1)]


def test_a_loss_below_all_before_is_the_best():
    selection, judged = judge([0.5, 0.4, 0.4, 0.6, 0.3])
    assert [j.is_best for j in judged] == [True, True, False, False, True]
    assert not any(j.stop for j in judged)
    assert selection.ranking() == [50, 20, 30, 10, 40]
    assert selection.lowest == (50, 0.3)


def test_what_is_not_finite_is_never_the_best_and_is_no_progress():
    selection, judged = judge([NAN, 0.5, NAN, -INF, INF], patience=3)
    assert [j.is_best for j in judged] == [False, True, False, False, False]
    assert [j.stop for j in judged] == [False, False, False, False, True]
    assert selection.ranking() == [20]


def test_patience_counts_measurements_in_a_row():
    _, judged = judge([0.5, 0.6, 0.6, 0.4, 0.4, 0.5, 0.41], patience=3)
    assert [j.stop for j in judged] == [False] * 6 + [True]


def test_a_fall_must_be_larger_than_min_delta_but_many_small_ones_count_together():
    selection, judged = judge([1.0, 0.95, 0.92, 0.89, 0.86], patience=4, min_delta=0.1)
    assert [j.is_best for j in judged] == [True] * 5  # the best checkpoint is the lowest anyway
    assert not any(j.stop for j in judged)
    assert selection.waited == 1
    _, judged = judge([1.0, 0.9375, 0.875], patience=2, min_delta=0.125)  # exactly min_delta: not more
    assert judged[-1].stop


def test_the_reason_names_the_lowest_loss_and_where_it_is():
    selection = Selection(EarlyStopConfig(patience=5), KeepConfig(best=1))
    judged = [
        selection.note(step, loss) for step, loss in zip(range(4000, 10000, 1000), [0.03124] + [0.5] * 5, strict=True)
    ]
    assert [j.reason for j in judged[:-1]] == [""] * 5
    assert judged[-1].reason == (
        "the held-out loss has not fallen for 5 measurements; lowest 0.03124 at step 4000, checkpoints/best"
    )
    _, judged = judge([0.5, 0.5], patience=1, min_delta=0.1)
    assert judged[-1].reason == (
        "the held-out loss has not fallen by more than 0.1 for 1 measurement; lowest 0.5 at step 10"
    )
    _, judged = judge([NAN, NAN], patience=2)
    assert judged[-1].reason == ("the held-out loss has not fallen for 2 measurements; it was never a finite number")


@given(losses=LOSSES, cut=st.integers(0, 12), patience=st.integers(0, 4), min_delta=st.sampled_from([0.0, 0.25]))
def test_a_resumed_run_judges_as_one_that_never_stopped(losses, cut, patience, min_delta, tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    config = EarlyStopConfig(patience=patience, min_delta=min_delta)
    whole, expected = judge(losses, patience=patience, min_delta=min_delta)
    first = Selection(config)
    judged = [first.note(10 * n, loss) for n, loss in enumerate(losses[:cut], start=1)]
    first.save(folder)
    json.loads((folder / "selection.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    second = Selection.load(folder, config)
    judged += [second.note(10 * n, loss) for n, loss in enumerate(losses[cut:], start=1 + len(losses[:cut]))]
    assert judged == expected
    assert second.ranking() == whole.ranking()
    files = []
    for selection in (whole, second):
        selection.save(folder)
        files.append((folder / "selection.json").read_bytes())
    assert files[0] == files[1]


def test_a_run_that_ended_by_patience_is_still_over_after_a_restart_until_patience_grows(tmp_path):
    selection, _ = judge([0.5, 0.6, 0.7], patience=2)
    selection.save(tmp_path)
    assert Selection.load(tmp_path, EarlyStopConfig(patience=2)).is_over
    assert (
        Selection.load(tmp_path, EarlyStopConfig(patience=2)).verdict().startswith("the held-out loss has not fallen")
    )
    assert not Selection.load(tmp_path, EarlyStopConfig(patience=3)).is_over
    assert not Selection.load(tmp_path, EarlyStopConfig(patience=0)).is_over


def test_a_checkpoint_without_losses_starts_an_empty_selection(tmp_path):
    selection = Selection.load(tmp_path, EarlyStopConfig(patience=2), KeepConfig(best=1))
    assert selection == Selection(EarlyStopConfig(patience=2), KeepConfig(best=1))
    assert selection.lowest is None
    assert not selection.is_over


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"losses": [1]}', '{"losses": [[1, "x"]], "progress_loss": null, "waited": 0}', "{", "null"]
)
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / "selection.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        Selection.load(tmp_path)
    assert str(tmp_path / "selection.json") in caught.value.message
    assert caught.value.hint == "an older checkpoint of the run may be complete"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"patience": -1}, "`--early_stop.patience=-1` must be at least 0"),
        ({"min_delta": -0.5}, "`--early_stop.min_delta=-0.5` must be at least 0 and finite"),
        ({"min_delta": NAN}, "`--early_stop.min_delta=nan` must be at least 0 and finite"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, problem):
    assert EarlyStopConfig(**settings).check() == [problem]
