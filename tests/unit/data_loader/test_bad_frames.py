"""Samples that cannot be read: replaced, dropped or fatal, counted, and named."""

import copy
import errno
import logging
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from mimetic.data.bad_frames import BadFrame, BadFrames, exclude_flag, is_data_fault
from mimetic.data.loader import BatchLoader, SampleGenerators
from mimetic.data.sampler import EpisodeSampler
from mimetic.errors import CacheError, DatasetError, DatasetFormatError, OfflineError, TrainingError, VideoError

WORKERS = [0, 1, 3]


def make(dataset, *, num_workers=0, batch_size=4, shuffle=False, on_bad_frame="skip", **others):
    return BatchLoader(
        dataset,
        EpisodeSampler([0], [dataset.n], shuffle=shuffle, seed=7),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=2,
        seed=7,
        on_bad_frame=on_bad_frame,
        **others,
    )


def indices(batches):
    return [batch["index"].tolist() for batch in batches]


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("num_workers", WORKERS)
def test_the_next_readable_sample_of_the_order_takes_the_place_and_batches_stay_full(num_workers, fake_dataset):
    loader = make(fake_dataset(10, broken=[2, 5, 6, 9]), num_workers=num_workers)
    assert indices(loader.batches(0)) == [[0, 1, 3, 3], [4, 7, 7, 7], [8, 0]]


def test_the_replacement_follows_the_shuffled_order(fake_dataset):
    loader = make(fake_dataset(10, broken=[5]), shuffle=True, batch_size=10)
    order = loader.sampler.order(3).tolist()
    place = order.index(5)
    order[place] = order[(place + 1) % 10]
    assert indices(loader.batches(3)) == [order]


@pytest.mark.parametrize("num_workers", WORKERS)
def test_augmentation_stays_with_the_place_in_the_epoch(num_workers, fake_dataset):
    (batch,) = make(fake_dataset(4, broken=[1]), num_workers=num_workers).batches(2)
    expected = [torch.rand(2, generator=SampleGenerators(7, 2, [place])[0]) for place in range(4)]
    assert torch.equal(batch["noise"][:, 0], torch.stack(expected))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_each_bad_sample_is_told_and_counted_once_when_its_batch_is_delivered(num_workers, fake_dataset, caplog):
    loader = make(fake_dataset(12, broken=[6, 1]), num_workers=num_workers)
    iterator = loader.endless(0, 0)
    next(iterator)
    time.sleep(0.05)  # workers are ahead, and have met the other one
    assert [bad.position for bad in loader.bad_frames] == [1]
    for _ in range(8):
        next(iterator)
    iterator.close()
    assert loader.skipped == 2
    assert [bad.record() for bad in loader.bad_frames] == [
        {"episode": 0, "frame": 1, "cause": "`video.mp4` has 8 frames, frame 1 was asked"},
        {"episode": 0, "frame": 6, "cause": "`video.mp4` has 8 frames, frame 6 was asked"},
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "left out (1 of at most 100): episode 0, frame 1: `video.mp4` has 8 frames, frame 1 was asked",
        "left out (2 of at most 100): episode 0, frame 6: `video.mp4` has 8 frames, frame 6 was asked",
    ]


def test_a_bad_sample_is_not_read_again(fake_dataset):
    dataset = fake_dataset(8, broken=[2])
    loader = make(dataset)
    list(loader.batches(0))
    dataset.asked.clear()
    list(loader.batches(1))
    assert not any(2 in asked for asked in dataset.asked)
    assert len(dataset.asked) == 2


def test_without_bad_samples_nothing_is_read_twice(fake_dataset):
    skipping, plain = fake_dataset(10), fake_dataset(10)
    assert indices(make(skipping).batches(0)) == indices(make(plain, on_bad_frame="stop").batches(0))
    assert skipping.asked == plain.asked


@pytest.mark.parametrize("num_workers", WORKERS)
def test_one_more_than_allowed_stops_with_the_episodes_and_the_flag(num_workers, fake_dataset):
    loader = make(
        fake_dataset(60, broken=[3, 21, 22, 40]), num_workers=num_workers, max_bad_frames=3, excluded=[9], batch_size=5
    )
    iterator = loader.batches(0)
    assert len([next(iterator) for _ in range(8)]) == 8
    with pytest.raises(DatasetError) as caught:
        next(iterator)
    assert caught.value.message == (
        "4 samples cannot be read, and `--max_bad_frames=3` allows 3; by episode: 0 (1), 2 (2), 4 (1); "
        "the last one is episode 4, frame 0: `video.mp4` has 8 frames, frame 40 was asked"
    )
    assert caught.value.hint == (
        "leave these episodes out with `--dataset.exclude_episodes=[0,2,4,9]`, repair their files, or allow more with "
        "`--max_bad_frames`"
    )


def test_a_dataset_that_has_gone_is_given_up_soon(fake_dataset):
    dataset = fake_dataset(1000, broken=range(1000))
    with pytest.raises(DatasetError, match="6 samples cannot be read"):
        next(make(dataset, max_bad_frames=5).batches(0))
    assert len(dataset.asked) < 20


def test_when_no_sample_can_be_read_it_says_so(fake_dataset):
    with pytest.raises(DatasetError, match="none of the 3 samples can be read; the first one: episode 0, frame 0: `vi"):
        next(make(fake_dataset(3, broken=range(3))).batches(0))


@pytest.mark.parametrize("num_workers", WORKERS)
def test_drop_shrinks_batches_and_leaves_empty_ones_out(num_workers, fake_dataset):
    loader = make(fake_dataset(12, broken=[1, 4, 5, 6, 7]), num_workers=num_workers, on_bad_frame="drop")
    assert indices(loader.batches(0)) == [[0, 2, 3], [8, 9, 10, 11]]
    assert [bad.position for bad in loader.bad_frames] == [1, 4, 5, 6, 7]


@pytest.mark.parametrize("num_workers", WORKERS)
@pytest.mark.parametrize("step", [1, 2, 4])
def test_resuming_gives_the_tail(num_workers, step, fake_dataset):
    def run(workers, start):
        iterator = make(fake_dataset(23, broken=[2, 3, 11, 17]), num_workers=workers, shuffle=True).endless(*start)
        found = [next(iterator) for _ in range(14 - step * (start != (0, 0)))]
        iterator.close()
        return found

    whole, tail = run(0, (0, 0)), run(num_workers, (0, 4 * step))
    assert indices(whole)[step:] == indices(tail)
    assert all(torch.equal(a["noise"], b["noise"]) for a, b in zip(whole[step:], tail, strict=True))


def test_rows_that_must_not_be_learnt_from_are_bad_and_never_read(fake_dataset):
    dataset = fake_dataset(8)
    loader = make(
        dataset,
        row_faults=lambda positions: {
            n: "`action` is nan" for n, position in enumerate(positions) if position in (2, 3)
        },
    )
    assert indices(loader.batches(0)) == [[0, 1, 4, 4], [4, 5, 6, 7]]
    assert [str(bad) for bad in loader.bad_frames] == [
        "episode 0, frame 2: `action` is nan",
        "episode 0, frame 3: `action` is nan",
    ]
    assert not any({2, 3} & set(asked) for asked in dataset.asked)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [TypeError, KeyError, RuntimeError, IndexError, CacheError])
def test_errors_of_the_program_and_of_the_cache_are_never_skipped(kind, num_workers, fake_dataset):
    loader = make(fake_dataset(12, broken={6: kind}), num_workers=num_workers)
    iterator = loader.batches(0)
    next(iterator)
    with pytest.raises(kind):
        next(iterator)
    assert loader.skipped == 0


@pytest.mark.parametrize("on_bad_frame", ["stop", "skip"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_that_ran_out_is_an_error_with_a_remedy(on_bad_frame, num_workers, fake_dataset):
    loader = make(fake_dataset(8, broken={5: MemoryError}), num_workers=num_workers, on_bad_frame=on_bad_frame)
    iterator = loader.batches(0)
    next(iterator)
    with pytest.raises(TrainingError) as caught:
        next(iterator)
    assert caught.value.message.startswith("memory ran out while building batch 1 of epoch 0: episode 0 frame 4, ")
    assert "--prefetch_factor" in caught.value.hint
    assert loader.skipped == 0


def test_an_error_of_the_system_stops_with_the_frames_that_were_read(fake_dataset):
    loader = make(fake_dataset(4, broken={2: lambda _: OSError(errno.EIO, "Input/output error")}), on_bad_frame="stop")
    with pytest.raises(DatasetError) as caught:
        next(loader.batches(0))
    assert caught.value.message == (
        "data cannot be read while building batch 0 of epoch 0: episode 0 frame 0, episode 0 frame 1, "
        "episode 0 frame 2, episode 0 frame 3: [Errno 5] Input/output error"
    )


def test_an_error_of_the_system_is_skipped_with_its_sample(fake_dataset):
    loader = make(fake_dataset(4, broken={2: lambda _: OSError(errno.EIO, "Input/output error")}))
    assert indices(loader.batches(0)) == [[0, 1, 3, 3]]
    assert loader.bad_frames[0].cause == "[Errno 5] Input/output error"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC])
def test_a_process_that_has_run_out_of_something_blames_no_sample(number, fake_dataset):
    def short_of(position):
        return caused(VideoError(f"frame {position}"), OSError(number, "out of it"))

    loader = make(fake_dataset(4, broken={2: short_of}))
    with pytest.raises(VideoError):
        next(loader.batches(0))
    assert loader.skipped == 0


def test_a_fault_that_passes_costs_no_sample(fake_dataset):
    dataset = fake_dataset(4)
    read, n_failures = dataset.batch, [1]

    def fails_once(positions, generators=None):
        if n_failures[0]:
            n_failures[0] -= 1
            raise VideoError("not now")
        return read(positions, generators)

    dataset.batch = fails_once
    (batch,) = make(dataset).batches(0)
    assert batch["index"].tolist() == [0, 1, 2, 3]
    expected = [torch.rand(2, generator=SampleGenerators(7, 0, [place])[0]) for place in range(4)]
    assert torch.equal(batch["noise"][:, 0], torch.stack(expected))
    n_failures[0] = 10**9
    dataset.batch = lambda positions, generators: (
        fails_once(positions) if len(positions) > 1 else read(positions, generators)
    )
    with pytest.raises(VideoError, match="not now"):
        next(make(dataset).batches(0))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (VideoError("x"), True),
        (DatasetFormatError("x"), True),
        (OSError(errno.EIO, "x"), True),
        (TimeoutError("x"), True),
        (OfflineError("x"), False),
        (CacheError("x"), False),
        (ValueError("x"), False),
        (MemoryError(), False),
        (caused(DatasetFormatError("does not fit"), MemoryError()), False),
        (caused(VideoError("x"), caused(VideoError("y"), OSError(errno.EMFILE, "x"))), False),
        (caused(VideoError("x"), OSError(errno.EIO, "x")), True),
    ],
)
def test_what_is_a_fault_of_the_data(error, expected):
    assert is_data_fault(error) is expected


def test_the_flag_keeps_what_is_left_out_already():
    assert exclude_flag([7, 3], [5, 3]) == "--dataset.exclude_episodes=[3,5,7]"


def test_several_threads_may_add_the_same_sample():
    bad = BadFrames(5)
    for cause in ("first", "second"):
        bad.add(3, type("Address", (), {"episode": 1, "frame": 2}), cause)
    bad.deliver([bad.known[3]])
    bad.deliver([bad.known[3]])
    assert [one.cause for one in bad.delivered] == ["first"]
    assert isinstance(bad.delivered[0], BadFrame)


def test_errors_with_a_place_survive_a_copy():
    from mimetic.data.images import DamagedRows
    from mimetic.data.video.index import FrameError

    frame = copy.copy(FrameError("a", "b", 7))
    rows = copy.copy(DamagedRows("a", "b", range(2, 5)))
    assert (frame.message, frame.hint, frame.frame) == ("a", "b", 7)
    assert (rows.message, rows.hint, rows.rows) == ("a", "b", range(2, 5))


class Stuck:
    """Readers that do not come back before they are let go."""

    n = 8

    def __init__(self):
        self.gate = threading.Event()

    def batch(self, positions, generators=None):
        assert self.gate.wait(120)
        return {"index": torch.tensor(positions)}

    def address(self, position):
        return type("Address", (), {"episode": 1, "frame": position})

    def files_in_use(self):
        return [(Path("/far/away.mp4"), 12.3)]


def messages_of(caplog, count):
    """The first warnings, as soon as there are so many."""
    deadline = time.monotonic() + 60
    while len(caplog.records) < count and time.monotonic() < deadline:
        time.sleep(0.005)
    return [(record.created, record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_that_does_not_come_is_reported_again_and_again_with_growing_pauses(num_workers, caplog):
    dataset = Stuck()
    iterator = make(dataset, num_workers=num_workers, patience_s=0.05).batches(0)
    releaser = threading.Thread(target=lambda: (messages_of(caplog, 5), dataset.gate.set()))
    with caplog.at_level(logging.WARNING):
        releaser.start()
        assert next(iterator)["index"].tolist() == [0, 1, 2, 3]
    releaser.join()
    (first, text), (second, _), _, (fourth, _), (fifth, _) = messages_of(caplog, 5)[:5]
    assert text == (
        "still waiting (0 s) while building batch 0 of epoch 0: episode 1 frame 0, episode 1 frame 1, episode 1 frame 2, "
        "episode 1 frame 3; being read: `/far/away.mp4` for 12 s; if it goes on, look at the disk or the network file "
        "system"
    )
    assert fifth - fourth > 2 * (second - first)  # 8 times, were it not for what else the machine does
    iterator.close()


def test_a_batch_that_comes_in_time_is_not_reported(fake_dataset, caplog):
    for num_workers in (0, 2):
        list(make(fake_dataset(100), num_workers=num_workers, patience_s=0.5).batches(0))
    assert caplog.records == []


class Enough(Exception):
    pass


def away():
    raise Enough


def test_who_waits_can_be_called_away():
    dataset = Stuck()
    loader = make(dataset, num_workers=1, patience_s=0.02)
    loader.on_wait = away
    threading.Timer(0.2, dataset.gate.set).start()
    with pytest.raises(Enough):
        next(loader.batches(0))


def test_closing_says_what_it_waits_for(caplog):
    dataset = Stuck()
    loader = make(dataset, num_workers=1, patience_s=0.03)
    loader.on_wait = away
    threading.Timer(0.3, dataset.gate.set).start()
    with pytest.raises(Enough):
        next(loader.batches(0))
    assert "loader threads have not ended for 0 s; being read: `/far/away.mp4` for 12 s; `kill -9 " in caplog.text


def test_threads_that_have_gone_are_no_silent_hang(fake_dataset):
    from mimetic.data.loader_threads import LoaderThreads, Task

    threads = LoaderThreads(1, lambda job: job, lambda task, seconds: None, patience_s=0.02)
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    task = Task("job", thread=ended, begun=0.0)
    with pytest.raises(TrainingError, match="the threads that load data have ended without a result") as caught:
        threads.result(task)
    assert "--num_workers=0" in caught.value.hint
    threads.close(lambda seconds: None)
    with pytest.raises(TrainingError):
        threads.result(Task("job"))


def test_a_system_that_gives_too_few_threads_is_an_error_with_a_remedy(fake_dataset, monkeypatch):
    from mimetic.errors import ConfigError

    start, n_left = threading.Thread.start, [3]

    def few(self):
        if self.name.startswith("mimetic-loader"):
            n_left[0] -= 1
            if n_left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(ConfigError) as caught:
        next(make(fake_dataset(8), num_workers=5).batches(0))
    assert caught.value.message == "the system gives 3 of 5 threads for loading: can't start new thread"
    assert "--num_workers=1" in caught.value.hint
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mimetic-loader")]


def test_closing_leaves_no_watch_behind(fake_dataset):
    iterator = make(fake_dataset(8)).batches(0)
    next(iterator)
    assert [thread for thread in threading.enumerate() if thread.name == "mimetic-loader-watch"]
    iterator.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "mimetic-loader-watch"]


def test_counts_of_a_long_run_are_those_of_its_samples(fake_dataset):
    loader = make(fake_dataset(20, broken=[3, 4]), num_workers=2, shuffle=True)
    iterator = loader.endless(0, 0)
    seen = Counter(index for _ in range(5 * 6) for index in next(iterator)["index"].tolist())
    iterator.close()
    assert sum(seen.values()) == 6 * 20
    assert set(seen) == set(range(20)) - {3, 4}
    assert loader.skipped == 2


def test_closing_the_loader_ends_the_watch_of_an_iterator_that_is_still_there(fake_dataset):
    loader = make(fake_dataset(8))
    iterator = loader.batches(0)
    next(iterator)
    loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "mimetic-loader-watch"]
    next(iterator)  # nothing else of it ends: no thread builds for it
    assert not [thread for thread in threading.enumerate() if thread.name == "mimetic-loader-watch"]
