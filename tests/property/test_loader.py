"""What must hold for every dataset, batch size and number of workers."""

import gc
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.config import ImageTransformsConfig
from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler, resume_position, shard_batches, steps_per_epoch
from mimetic.data.transforms.pipeline import ImageTransforms
from mimetic.testing.datasets import build_dataset, read_code

LENGTHS = (1, 3, 7, 12)
WORKERS = (0, 1, 3)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """A real dataset with two cameras, plain and augmented."""
    root = build_dataset(
        tmp_path_factory.mktemp("loader") / "tiny", lengths=LENGTHS, cameras={"top": (32, 48), "side": (24, 32)}
    )
    windows = {"observation.images.top": [-1, 0], "action": list(range(8))}
    transforms = ImageTransforms(ImageTransformsConfig(enable=True))
    return {
        "plain": open_dataset(root=root, delta_indices=windows, return_uint8=True),
        "augmented": open_dataset(root=root, delta_indices=windows, return_uint8=True, image_transforms=transforms),
    }


def make(dataset, num_workers, batch_size=4, seed=3):
    first = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    end = [start + length for start, length in zip(first, LENGTHS, strict=True)]
    return BatchLoader(
        dataset,
        EpisodeSampler(first, end, shuffle=True, seed=seed),
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=2,
        seed=seed,
    )


def assert_equal(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            if isinstance(value, torch.Tensor):
                assert value.dtype == other[key].dtype
                assert torch.equal(value, other[key]), key
            else:
                assert value == other[key]


@pytest.mark.parametrize("kind", ["plain", "augmented"])
def test_batches_are_the_same_for_every_number_of_workers(kind, datasets):
    for epoch in range(2):
        inline, one, three = (list(make(datasets[kind], workers).batches(epoch)) for workers in WORKERS)
        assert_equal(inline, one)
        assert_equal(inline, three)


@pytest.mark.parametrize("num_workers", WORKERS)
def test_resuming_at_any_step_gives_the_tail_augmentation_included(num_workers, datasets):
    loader = make(datasets["augmented"], num_workers)
    n = len(loader.sampler)
    whole = [batch for epoch in range(2) for batch in loader.batches(epoch)]
    for step in range(0, len(whole), 1 if num_workers == 0 else 3):
        epoch, start = resume_position(step, n, 4, 1)
        iterator = loader.endless(epoch, start)
        tail = [next(iterator) for _ in range(len(whole) - step)]
        iterator.close()
        assert_equal(whole[step:], tail)


def test_every_frame_of_short_episodes_is_a_sample_with_its_own_picture(datasets):
    """Episodes of 1, 3, 7 and 12 frames, a chunk of 8, two observation steps."""
    seen = []
    for batch in make(datasets["plain"], 3).batches(0):
        for place, (episode, frame) in enumerate(zip(batch["episode_index"], batch["frame_index"], strict=True)):
            seen.append((int(episode), int(frame)))
            assert read_code(batch["observation.images.side"][place]) == seen[-1]
            assert read_code(batch["observation.images.top"][place, 1]) == seen[-1]
            left = LENGTHS[int(episode)] - int(frame)
            assert batch["action_is_pad"][place].tolist() == [offset >= left for offset in range(8)]
    assert sorted(seen) == [(episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)]


def test_cameras_of_a_sample_are_augmented_differently(datasets):
    plain, augmented = (next(make(datasets[kind], 0, 23).batches(0)) for kind in ("plain", "augmented"))
    changes = []
    for camera in ("top", "side"):
        key = f"observation.images.{camera}"
        ratio = augmented[key].float().flatten(1).mean(1) / plain[key].float().flatten(1).mean(1)
        changes.append(ratio)
    assert (changes[0] - changes[1]).abs().max() > 0.05


@pytest.mark.parametrize("n_taken", [0, 1, 3])
def test_closing_early_leaves_no_thread(n_taken, datasets):
    loader = make(datasets["augmented"], 3)
    iterator = loader.endless(0, 0)
    for _ in range(n_taken):
        next(iterator)
    del iterator
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mimetic-loader")]
    assert len(list(loader.batches(0))) == 6
    loader.close()


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    drop_first=st.integers(0, 2),
    drop_last=st.integers(0, 3),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 1000),
)
def test_an_order_is_a_permutation_of_the_usable_frames(lengths, drop_first, drop_last, seed, epoch):
    first = [sum(lengths[:number]) for number in range(len(lengths))]
    end = [start + length for start, length in zip(first, lengths, strict=True)]
    usable = [
        frame for start, stop in zip(first, end, strict=True) for frame in range(start + drop_first, stop - drop_last)
    ]
    if not usable:
        with pytest.raises(ValueError, match="no frame is left"):
            EpisodeSampler(first, end, drop_n_first_frames=drop_first, drop_n_last_frames=drop_last)
        return
    sampler = EpisodeSampler(
        first, end, drop_n_first_frames=drop_first, drop_n_last_frames=drop_last, shuffle=True, seed=seed
    )
    order = sampler.order(epoch)
    assert sorted(order.tolist()) == usable
    assert order.tolist() == sampler.order(epoch).tolist()


@settings(max_examples=50)
@given(n=st.integers(1, 200), batch_size=st.integers(1, 17), num_processes=st.integers(1, 5))
def test_processes_together_see_every_sample_in_equally_many_steps(n, batch_size, num_processes):
    shares = [shard_batches(n, batch_size, num_processes=num_processes, rank=rank) for rank in range(num_processes)]
    assert {len(share) for share in shares} == {steps_per_epoch(n, batch_size, num_processes)}
    places = [place for share in shares for batch in share for place in batch.tolist()]
    assert len(places) == len(set(places))
    assert {place % n for place in places} == set(range(n))
    if num_processes > 1:
        assert all(len(batch) == batch_size for share in shares for batch in share)


@given(
    step=st.integers(0, 10_000), n=st.integers(1, 300), batch_size=st.integers(1, 20), num_processes=st.integers(1, 4)
)
def test_a_resume_position_is_where_the_steps_before_it_end(step, n, batch_size, num_processes):
    epoch, start = resume_position(step, n, batch_size, num_processes)
    steps = steps_per_epoch(n, batch_size, num_processes)
    assert epoch == step // steps
    assert start == min((step % steps) * batch_size * num_processes, n)
    assert 0 <= start < n
