import gc
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch

from mimetic.data.loader import BatchLoader, SampleGenerators
from mimetic.data.sampler import EpisodeSampler
from mimetic.errors import VideoError


def make(dataset, *, num_workers=2, batch_size=4, prefetch_factor=2, seed=7, shuffle=True, **others):
    sampler = EpisodeSampler([0], [dataset.n], shuffle=shuffle, seed=seed)
    return BatchLoader(
        dataset,
        sampler,
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        seed=seed,
        **others,
    )


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("mimetic-loader")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    assert not loader_threads()
    yield
    gc.collect()
    assert not loader_threads()


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[key], second[key]) if isinstance(first[key], torch.Tensor) else first[key] == second[key]
        for key in first
    )


def test_batches_follow_the_samplers_order_and_the_last_one_is_smaller(fake_dataset):
    loader = make(fake_dataset(10))
    found = list(loader.batches(3))
    assert [len(batch["index"]) for batch in found] == [4, 4, 2]
    assert torch.cat([batch["index"] for batch in found]).tolist() == loader.sampler.order(3).tolist()


def test_workers_zero_builds_in_the_asking_thread_when_asked(fake_dataset):
    dataset = fake_dataset(10)
    iterator = make(dataset, num_workers=0).batches(0)
    assert dataset.asked == []
    next(iterator)
    assert len(dataset.asked) == 1
    assert dataset.threads == {threading.current_thread().name}


def test_workers_build_in_threads_of_their_own(fake_dataset):
    dataset = fake_dataset(40)
    list(make(dataset, num_workers=3).batches(0))
    assert threading.current_thread().name not in dataset.threads
    assert len(dataset.threads) > 1


def test_prefetch_is_bounded(fake_dataset):
    dataset = fake_dataset(1000)
    iterator = make(dataset, num_workers=2, prefetch_factor=3).batches(0)
    next(iterator)
    deadline = time.monotonic() + 60
    while len(dataset.asked) < 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(dataset.asked) == 7  # the delivered one and two workers' three
    iterator.close()


def test_endless_goes_on_with_the_next_epoch(fake_dataset):
    loader = make(fake_dataset(10))
    iterator = loader.endless(1, 8)
    found = [next(iterator)["index"].tolist() for _ in range(4)]
    order = [loader.sampler.order(epoch).tolist() for epoch in (1, 2)]
    assert found == [order[0][8:], order[1][:4], order[1][4:8], order[1][8:]]
    iterator.close()


def test_augmentation_differs_between_samples_cameras_and_epochs(fake_dataset):
    loader = make(fake_dataset(10), shuffle=False)
    first, second = (torch.cat([batch["noise"] for batch in loader.batches(epoch)]) for epoch in (0, 1))
    draws = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
    assert len({tuple(row.tolist()) for row in draws}) == 40


def test_a_generator_is_kept_for_all_cameras_of_its_sample():
    generators = SampleGenerators(1, 2, [5, 6])
    assert generators[0] is generators[0]
    assert generators[0].initial_seed() != generators[1].initial_seed()
    assert [generator.initial_seed() for generator in generators] == [
        SampleGenerators(1, 2, [5])[0].initial_seed(),
        SampleGenerators(1, 2, [6])[0].initial_seed(),
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_comes_in_its_turn_with_its_type_and_the_frames(num_workers, fake_dataset):
    loader = make(fake_dataset(100, broken=[22]), num_workers=num_workers, shuffle=False)
    iterator = loader.batches(0)
    good = [next(iterator)["index"].tolist() for _ in range(5)]
    assert good[-1] == [16, 17, 18, 19]
    with pytest.raises(VideoError) as caught:
        next(iterator)
    assert caught.value.hint == "copy it again"
    assert caught.value.__notes__ == [
        "while building batch 5 of epoch 0: episode 2 frame 0, episode 2 frame 1, episode 2 frame 2, episode 2 frame 3"
    ]
    assert not loader_threads()


def test_a_big_batch_is_named_in_short(fake_dataset):
    loader = make(fake_dataset(100, broken=[22]), num_workers=0, batch_size=50, shuffle=False)
    with pytest.raises(VideoError) as caught:
        next(loader.batches(0))
    assert caught.value.__notes__[0].endswith("episode 0 frame 7 and 42 more")


def test_closing_the_iterator_ends_the_threads(fake_dataset):
    iterator = make(fake_dataset(1000)).batches(0)
    next(iterator)
    assert loader_threads()
    iterator.close()
    assert not loader_threads()


def test_dropping_the_iterator_ends_the_threads(fake_dataset):
    loader = make(fake_dataset(1000))
    for batch in loader.batches(0):
        assert len(batch["index"]) == 4
        break
    gc.collect()
    assert not loader_threads()


def test_closing_the_loader_ends_all_iterators(fake_dataset):
    loader = make(fake_dataset(1000))
    first, second = loader.batches(0), loader.endless(0, 0)
    next(first), next(second)
    loader.close()
    assert not loader_threads()
    assert len(list(first)) <= 5
    assert len(list(second)) <= 5


def test_closing_waits_only_for_batches_that_are_being_built(fake_dataset):
    gate = threading.Event()
    dataset = fake_dataset(1000, gate=gate)
    loader = make(dataset, num_workers=2, prefetch_factor=8)
    iterator = loader.batches(0)
    gate.set()
    next(iterator)
    gate.clear()
    n_started = len(dataset.asked)
    threading.Timer(0.05, gate.set).start()
    loader.close()
    assert len(dataset.asked) <= n_started + 2
    iterator.close()


def test_an_iterator_that_was_never_asked_starts_no_thread(fake_dataset):
    iterator = make(fake_dataset(10)).batches(0)
    assert not loader_threads()
    del iterator


@pytest.mark.parametrize("num_workers", [0, 2])
def test_global_generators_are_not_touched(num_workers, fake_dataset):
    before = torch.get_rng_state()
    list(make(fake_dataset(40), num_workers=num_workers).batches(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_compute_in_one_thread_and_the_consumer_as_before(num_workers, fake_dataset):
    torch.set_num_threads(2)
    dataset = fake_dataset(40)
    for _ in make(dataset, num_workers=num_workers).batches(0):
        assert torch.get_num_threads() == 2
    assert dataset.torch_threads == {1}
    counts = []
    later = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert counts == [2]


def test_processes_share_the_batches_and_every_sample_is_seen(fake_dataset):
    dataset = fake_dataset(41)
    found = [list(make(dataset, num_processes=3, rank=rank).batches(0)) for rank in range(3)]
    assert {len(batches) for batches in found} == {4}
    seen = [index for batches in found for batch in batches for index in batch["index"].tolist()]
    assert set(seen) == set(range(41))
    assert len(seen) == 48


@pytest.mark.parametrize("how", ["error", "interrupt"])
def test_a_program_that_stops_in_the_middle_ends_at_once(how):
    """The iterator is still open and kept by a global when the interpreter ends."""
    program = textwrap.dedent(
        f"""
        import signal, threading, time, _thread
        import torch
        from mimetic.data.loader import BatchLoader
        from mimetic.data.sampler import EpisodeSampler

        # A test run in the background of a shell may have inherited that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        class Slow:
            def batch(self, positions, generators=None):
                time.sleep(0.02)
                return {{"index": torch.tensor(positions)}}
            def address(self, position):
                raise KeyError(position)

        loader = BatchLoader(Slow(), EpisodeSampler([0], [10**6]), batch_size=4, num_workers=3, prefetch_factor=4, seed=0)
        kept = loader.endless(0, 0)
        next(kept)
        how = {how!r}
        if how == "error":
            raise RuntimeError("stopped")
        if how == "interrupt":
            threading.Timer(0.2, _thread.interrupt_main).start()
            for batch in kept:
                pass
        """
    )
    start = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert time.monotonic() - start < 150  # the loader could go on for an hour
    assert ended.returncode == 1 or (how == "interrupt" and ended.returncode in (130, -2))
    expected = {"error": "RuntimeError: stopped", "interrupt": "KeyboardInterrupt"}[how]
    assert expected in ended.stderr
    assert "Fatal" not in ended.stderr
