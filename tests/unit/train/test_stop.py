"""Signals: what is remembered, what ends at once, which exit code a scheduler sees."""

import signal
import threading
from types import SimpleNamespace

import pytest

from mimetic.errors import Interrupted
from mimetic.train.stop import StartUp, StopRequest, scheduler_signals

REQUEUE = 99
SCHEDULER = scheduler_signals()


def handlers():
    return [signal.getsignal(number) for number in (signal.SIGINT, *SCHEDULER)]


@pytest.mark.parametrize("number", [signal.SIGINT, *SCHEDULER], ids=lambda number: number.name)
def test_a_signal_is_remembered_with_its_name_and_nothing_else_happens(number):
    before = handlers()
    with StopRequest() as stop:
        assert not stop.requested
        assert stop.reason == ""
        signal.raise_signal(number)
        assert stop.requested
    assert stop.reason == ("Ctrl-C" if number == signal.SIGINT else number.name)
    assert handlers() == before


@pytest.mark.parametrize(
    ("number", "saved", "code"),
    [
        (signal.SIGINT, True, 130),
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, True, REQUEUE),
        (signal.SIGTERM, False, 143),
        *((number, saved, code) for number in SCHEDULER for saved, code in ((True, REQUEUE), (False, 143))),
    ],
)
def test_the_exit_code_asks_for_another_turn_only_when_all_is_saved(number, saved, code):
    with StopRequest() as stop:
        signal.raise_signal(number)
    assert stop.exit_code(saved, REQUEUE) == code


def test_only_a_second_ctrl_c_interrupts_at_once():
    with StopRequest() as stop:
        for number in (signal.SIGTERM, signal.SIGTERM, *SCHEDULER):
            signal.raise_signal(number)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.reason == "SIGTERM"  # who asked first decides about the exit code


def test_the_signals_are_those_of_the_platform():
    names = [number.name for number in SCHEDULER]
    assert names[0] == "SIGTERM"
    assert ("SIGUSR1" in names) == hasattr(signal, "SIGUSR1")
    windows = SimpleNamespace(SIGTERM=15, SIGBREAK=21)
    assert scheduler_signals(windows) == [15, 21]


def test_outside_the_main_thread_nothing_is_touched():
    before, seen = handlers(), []

    def work():
        with StopRequest() as stop, StartUp() as start:
            seen.append((stop.requested, handlers()))
            start.over()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


@pytest.mark.parametrize("number", SCHEDULER, ids=lambda number: number.name)
def test_a_signal_before_the_first_step_ends_at_once_and_says_that_nothing_is_lost(number):
    before, went_on = handlers(), []
    with pytest.raises(Interrupted) as caught, StartUp():
        try:
            signal.raise_signal(number)
        except Exception:  # as libraries have it while they are imported
            went_on.append("swallowed")
        went_on.append("the program")
    assert went_on == []
    assert (
        caught.value.message == f"{number.name} came before the first step; nothing was trained yet, so nothing is lost"
    )
    assert caught.value.hint == "the same command starts again"
    assert caught.value.exit_code == 143
    assert handlers() == before


def test_a_signal_whose_exception_was_dropped_still_ends_the_start():
    went_on = []
    with pytest.raises(Interrupted, match="SIGTERM came before the first step"), StartUp() as start:
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:  # as in a destructor, where Python drops it
            pass
        start.over()
        went_on.append("the loop")
    assert went_on == []


def test_the_loop_and_the_feature_builder_go_first_while_they_are_active():
    with StartUp():
        at_start = handlers()
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested
        assert handlers() == at_start


def test_other_errors_of_the_start_are_left_alone():
    with pytest.raises(ValueError, match="bad data"), StartUp():
        raise ValueError("bad data")


def test_after_the_start_signals_mean_what_they_meant_before():
    before = handlers()
    with StartUp() as start:
        assert handlers() != before
        start.over()
        assert handlers() == before


def test_handlers_that_python_did_not_set_become_the_default_ones(monkeypatch):
    set_to = []
    monkeypatch.setattr(signal, "signal", lambda number, handler: set_to.append(handler))
    with StopRequest():
        set_to.clear()
    assert set(set_to) == {signal.SIG_DFL}
