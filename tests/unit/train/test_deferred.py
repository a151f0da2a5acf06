"""Answers of an accelerator are read in order, late, and seldom."""

import torch

from mimetic.train.deferred import Deferred


def test_where_there_are_no_events_the_device_is_waited_for_once_in_many_steps():
    """Reading one answer waits for all the work before it; read one by one, each step would wait."""
    arrived, reads = [], []
    deferred = Deferred(torch.device("meta"), lambda value, note: arrived.append((value.item(), note)))
    for step in range(200):
        before = len(arrived)
        deferred.put(torch.tensor(step), step)
        if len(arrived) > before:
            reads.append(step)
    assert reads == [64, 129, 194]
    deferred.wait()
    assert arrived == [(step, step) for step in range(200)]


def test_on_a_cpu_each_is_settled_at_once():
    arrived = []
    deferred = Deferred(torch.device("cpu"), lambda value, note: arrived.append(note))
    deferred.put(torch.tensor(1), 7)
    assert arrived == [7]


class Event:
    """An event of a GPU that has done no more than is said."""

    done = 0
    waited = 0
    made = 0

    def __init__(self):
        Event.made += 1
        self.number = Event.made

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.number <= Event.done

    def synchronize(self):
        if not self.query():
            Event.waited += 1


def test_with_events_what_has_arrived_is_taken_and_nothing_else_is_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    streams = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams.append(device) or "its stream")
    for name in ("done", "waited", "made"):
        monkeypatch.setattr(Event, name, 0)
    arrived = []
    deferred = Deferred(torch.device("cuda:1"), lambda value, note: arrived.append(note))
    for step in range(1, 61):
        deferred.put(torch.tensor(step), step)
    assert arrived == []
    Event.done = 50
    deferred.put(torch.tensor(61), 61)
    assert arrived == list(range(1, 51))
    assert Event.waited == 0
    assert deferred._pending[0][1].stream == "its stream"
    assert streams == [torch.device("cpu")] * 61  # that of the tensor, which is on the CPU here
    for step in range(62, 120):  # a device that is 64 answers behind is waited for, one answer at a time
        deferred.put(torch.tensor(step), step)
    assert arrived == list(range(1, 56))
    assert Event.waited == 5
    deferred.wait()
    assert arrived == list(range(1, 120))
