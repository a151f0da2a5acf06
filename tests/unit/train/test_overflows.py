"""Skipped updates are counted, explained once, and end a run that only skips."""

import logging

import pytest
import torch

from mimetic.errors import TrainingError
from mimetic.train.metrics import Counters, Window, log_line, summarise
from mimetic.train.overflows import MOST_IN_A_ROW, OverflowWatch

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)
ROOMY = torch.tensor(2.0**40)


def test_the_first_skip_is_explained_and_all_are_counted(caplog):
    watch = OverflowWatch(CPU)
    with caplog.at_level(logging.INFO, logger="mimetic"):
        for step, landed in enumerate([YES, NO, NO, YES, NO], start=1):
            watch.watch(step, landed, torch.tensor(1024.0))
    assert caplog.text.count("skipped updates in the first steps are normal while the scale adapts") == 1
    assert "step 2: a float16 gradient overflowed" in caplog.text
    assert "loss scale falls to 1024" in caplog.text
    assert (watch.landed, watch.skipped, watch.in_a_row) == (2, 3, 1)
    assert watch.take_window() == 3
    assert watch.take_window() == 0


def test_fifty_skips_in_a_row_stop_the_run():
    watch = OverflowWatch(CPU)
    watch.watch(1, YES, ROOMY)
    for step in range(2, MOST_IN_A_ROW + 1):
        watch.watch(step, NO, ROOMY)
    with pytest.raises(
        TrainingError, match=r"the last 50 updates overflowed .* \(1 updates of this run landed\)"
    ) as caught:
        watch.watch(MOST_IN_A_ROW + 1, NO, ROOMY)
    assert "--accelerator.mixed_precision=bf16" in caught.value.hint


def test_an_update_that_lands_starts_the_count_anew():
    watch = OverflowWatch(CPU, in_a_row=MOST_IN_A_ROW - 1, skipped=MOST_IN_A_ROW - 1)
    watch.watch(1, YES, ROOMY)
    watch.watch(2, NO, ROOMY)
    assert watch.in_a_row == 1


def test_a_resumed_run_goes_on_counting():
    watch = OverflowWatch(CPU, in_a_row=MOST_IN_A_ROW - 1, skipped=70, landed=4)
    with pytest.raises(TrainingError, match="has collapsed"):
        watch.watch(1, NO, ROOMY)


def test_a_scale_below_one_stops_the_run():
    watch = OverflowWatch(CPU)
    watch.watch(1, NO, torch.tensor(1.0))
    with pytest.raises(TrainingError, match=r"the loss scale has collapsed to 0.5 at step 2"):
        watch.watch(2, NO, torch.tensor(0.5))


def test_on_an_accelerator_the_answer_is_read_later():
    watch = OverflowWatch(torch.device("meta"))
    watch.watch(1, NO, torch.tensor(0.5))
    assert watch.skipped == 0
    with pytest.raises(TrainingError, match="collapsed"):
        watch.wait()


def test_values_of_skipped_updates_stay_out_of_the_means():
    window = Window(finite_only=True)
    for value in (1.0, float("inf"), 3.0, float("nan")):
        window.add("grad_norm", torch.tensor(value))
    window.add("loss", torch.tensor(float("nan")))
    means = window.means()
    assert means["grad_norm"] == 2.0
    assert means["loss"] != means["loss"]


def test_scale_and_skips_stand_in_the_line():
    counters = Counters(batch_size=4, num_frames=40, num_episodes=2, step=7)
    means = dict.fromkeys(("loss", "grad_norm", "lr", "update_s", "dataloading_s", "preprocessing_s", "step_s"), 0.5)
    record = summarise(counters, means | {"scale": 32768.0, "skip": 2, "l1_loss": 0.25})
    assert (record["scale"], record["skip"]) == (32768.0, 2)
    line = log_line(record)
    assert " prep_s:0.500 step_s:0.500 scale:32768 skip:2" in line
    assert line.count("scale") == line.count("skip") == 1
