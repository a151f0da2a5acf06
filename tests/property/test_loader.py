"""What must hold for every dataset, batch size and number of workers."""

import gc
import threading
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.config import ImageTransformsConfig
from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler, resume_position, shard_batches, steps_per_epoch
from mimetic.data.transforms.pipeline import ImageTransforms
from mimetic.errors import DatasetError, VideoError
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


class Numbers:
    """Samples without files; some cannot be read."""

    def __init__(self, n, bad):
        self.n = n
        self.bad = bad

    def batch(self, positions, generators=None):
        for position in positions:
            if position in self.bad:
                raise VideoError(f"sample {position}")
        noise = [torch.rand(1, generator=generators[place]) for place in range(len(positions))]
        return {"index": torch.tensor(positions), "noise": torch.stack(noise)}

    def address(self, position):
        return SimpleNamespace(episode=position // 7, frame=position % 7)

    def files_in_use(self):
        return []


def plain_batches(order, bad, batch_size, seed, epoch, most):
    """What skipping must give, worked out sample by sample: batches, and the bad samples in the order met."""
    met = []
    for start in range(0, len(order), batch_size):
        batch = []
        for place in range(start, min(start + batch_size, len(order))):
            reach = place
            while order[reach % len(order)] in bad:
                met.append(order[reach % len(order)])
                reach += 1
            entropy = np.random.SeedSequence([seed, epoch, place]).generate_state(1, np.uint64)[0]
            noise = torch.rand(1, generator=torch.Generator().manual_seed(int(entropy)))
            batch.append((order[reach % len(order)], noise.item()))
        if len(set(met)) > most:
            return
        yield batch, list(dict.fromkeys(met))


@settings(max_examples=60)
@given(
    n=st.integers(1, 40),
    share=st.floats(0, 0.9),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 1000),
    num_workers=st.sampled_from([0, 1, 4]),
    most=st.integers(1, 12),
    by_rows=st.booleans(),
    data=st.data(),
)
def test_skipping_gives_what_a_plain_computation_that_knows_the_bad_samples_gives(
    n, share, batch_size, seed, num_workers, most, by_rows, data
):
    bad = set(data.draw(st.lists(st.integers(0, n - 1), max_size=int(share * n), unique=True)))
    sampler = EpisodeSampler([0], [n], shuffle=True, seed=seed)
    loader = BatchLoader(
        Numbers(n, bad),
        sampler,
        batch_size=batch_size,
        num_workers=num_workers,
        prefetch_factor=2,
        seed=seed,
        on_bad_frame="skip",
        max_bad_frames=most,
        row_faults=(lambda p: {k: "nan" for k, one in enumerate(p) if one in bad and one % 2}) if by_rows else None,
    )
    found, end = [], None
    iterator = loader.batches(1)
    try:
        for batch in iterator:
            pairs = zip(batch["index"].tolist(), batch["noise"].flatten().tolist(), strict=True)
            found.append((list(pairs), [one.position for one in loader.bad_frames]))
    except DatasetError as error:
        end = error
    expected = list(plain_batches(sampler.order(1).tolist(), bad, batch_size, seed, 1, most))
    assert found == expected
    assert (end is None) == (len(found) == -(-n // batch_size))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Two cameras; in one of them packets of three episodes are overwritten, and a row holds no number."""
    values = np.arange(23 * 2, dtype=np.float32).reshape(23, 2)
    values[20] = np.nan
    root = build_dataset(
        tmp_path_factory.mktemp("damaged") / "tiny",
        lengths=LENGTHS,
        cameras={"top": (32, 48), "side": (24, 32)},
        columns={"observation.force": values},
    )
    for episode, packets in ((1, [1]), (2, [3, 4]), (3, [7])):
        path = sorted((root / "videos" / "observation.images.top").rglob("*.mp4"))[episode]
        with av.open(str(path)) as container:
            places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
        content = bytearray(path.read_bytes())
        for number in packets:
            start, size = places[number]
            content[start + 4 : start + size] = b"\xa5" * (size - 4)
        path.write_bytes(bytes(content))
    windows = {"observation.images.top": [-1, 0], "action": list(range(8)), "observation.force": [0, 1]}
    transforms = ImageTransforms(ImageTransformsConfig(enable=True))
    return open_dataset(root=root, delta_indices=windows, return_uint8=True, image_transforms=transforms)


def skipping(dataset, num_workers):
    loader = make(dataset, num_workers)
    return BatchLoader(
        dataset,
        loader.sampler,
        batch_size=4,
        num_workers=num_workers,
        prefetch_factor=2,
        seed=3,
        on_bad_frame="skip",
        row_faults=lambda positions: dataset.row_faults(positions, ["observation.force", "action"]),
    )


def readable(dataset, position):
    """Whether a sample can be read by a reader of its own, and holds numbers."""
    try:
        sample = dataset.item(position)
    except DatasetError:
        return False
    finally:
        dataset.close()
    return bool(torch.isfinite(sample["observation.force"]).all())


def test_real_damage_gives_the_same_batches_for_every_number_of_workers_and_when_resumed(damaged):
    good = [position for position in range(23) if readable(damaged, position)]
    assert 8 <= len(good) <= 19
    whole = [batch for epoch in range(2) for batch in skipping(damaged, 0).batches(epoch)]
    assert {int(index) for batch in whole for index in batch["index"]} == set(good)
    assert [len(batch["index"]) for batch in whole] == [4, 4, 4, 4, 4, 3] * 2
    for num_workers in (0, 1, 4):
        damaged.close()
        loader = skipping(damaged, num_workers)
        assert_equal(whole, [batch for epoch in range(2) for batch in loader.batches(epoch)])
        assert sorted(bad.position for bad in loader.bad_frames) == sorted(set(range(23)) - set(good))
        for step in (1, 5, 6, 9):
            epoch, start = resume_position(step, 23, 4, 1)
            iterator = skipping(damaged, num_workers).endless(epoch, start)
            tail = [next(iterator) for _ in range(len(whole) - step)]
            iterator.close()
            assert_equal(whole[step:], tail)


def test_replacements_show_their_own_footage(damaged):
    for batch in skipping(damaged.with_windows({}), 1).batches(0):
        for place, (episode, frame) in enumerate(zip(batch["episode_index"], batch["frame_index"], strict=True)):
            assert read_code(batch["observation.images.top"][place]) == (int(episode), int(frame))
            assert read_code(batch["observation.images.side"][place]) == (int(episode), int(frame))
