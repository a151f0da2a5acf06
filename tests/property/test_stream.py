"""Every frame of a stream once an epoch, over any workers, processes, seeds and settings, and the right one."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.reader import open_dataset
from mimetic.data.sampler import shard_batches
from mimetic.data.stream import open_stream
from mimetic.data.stream_order import Span, StreamOrder
from mimetic.testing.datasets import build_dataset

LENGTHS = (5, 1, 9, 4, 7)


@pytest.fixture(scope="module", params=[1, 2, None])
def root(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    return build_dataset(
        folder / "set", lengths=LENGTHS, cameras={"top": (16, 24)}, episodes_per_file=request.param, gop=4
    )


def assert_same(one, two):
    assert list(one) == list(two)
    for key, value in one.items():
        assert torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else value == two[key], key


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    units=st.integers(1, 4),
    drop=st.integers(0, 3),
    buffer_size=st.integers(1, 40),
    shards=st.integers(1, 6),
    batch_size=st.integers(1, 7),
    ranks=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_the_ranks_batches_hold_every_frame_once_but_for_the_filling_of_the_last_round(
    lengths, units, drop, buffer_size, shards, batch_size, ranks, seed, epoch, shuffle
):
    ends = np.cumsum(lengths).tolist()
    spans = [Span(end - length, end, n // units) for n, (length, end) in enumerate(zip(lengths, ends, strict=True))]
    usable = [position for span in spans for position in range(span.start, span.end - drop)]
    if not usable:
        return
    order = StreamOrder(
        spans,
        shuffle=shuffle,
        seed=seed,
        buffer_size=buffer_size,
        max_num_shards=shards,
        batch_size=batch_size,
        num_processes=ranks,
        drop_n_last_frames=drop,
    )
    positions = order.order(epoch)
    assert len(order) == len(positions)
    assert sorted(positions.tolist()) == usable
    places = np.concatenate(
        [
            np.concatenate(shard_batches(len(positions), batch_size, num_processes=ranks, rank=rank))
            for rank in range(ranks)
        ]
    )
    seen = Counter(positions[places % len(positions)].tolist())
    assert set(seen) == set(usable)
    repeated = sum(seen.values()) - len(usable)
    assert repeated < batch_size * ranks
    if ranks == 1:
        assert repeated == 0


@settings(max_examples=15)
@given(
    episodes=st.sets(st.integers(0, 4), min_size=1),
    workers=st.integers(0, 3),
    ranks=st.integers(1, 3),
    batch_size=st.integers(1, 5),
    buffer_size=st.integers(1, 12),
    shards=st.integers(1, 3),
    seed=st.integers(0, 1000),
    window=st.lists(st.integers(-6, 6), min_size=1, max_size=4),
)
def test_streamed_samples_are_those_of_map_style_access_over_workers_ranks_and_epochs(
    root, episodes, workers, ranks, batch_size, buffer_size, shards, seed, window
):
    choice = {"episodes": sorted(episodes), "video_backend": "pyav", "return_uint8": True}
    windows = {"observation.images.top": window, "action": [*window, 0]}
    dataset = open_dataset(root=root, delta_indices=windows, **choice)
    stream = open_stream(root=root, delta_indices=windows, rows_budget=2000, **choice)
    for epoch in (0, 3):
        seen = Counter()
        for rank in range(ranks):
            loader = stream.loader(
                batch_size=batch_size,
                num_workers=workers,
                num_processes=ranks,
                rank=rank,
                seed=seed,
                buffer_size=buffer_size,
                max_num_shards=shards,
            )
            for batch in loader.batches(epoch):
                places = list(zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True))
                seen.update(places)
                before = np.cumsum([0] + [LENGTHS[episode] for episode in dataset.episodes])
                positions = [before[dataset.episodes.index(episode)] + frame for episode, frame in places]
                assert_same(batch, dataset.batch(positions))
        assert len(seen) == len(dataset)
        assert sum(seen.values()) - len(dataset) < batch_size * ranks
    stream.close()
    dataset.close()


@settings(max_examples=15)
@given(start=st.integers(0, 25), batch_size=st.integers(1, 7), workers=st.integers(0, 2), seed=st.integers(0, 99))
def test_a_stream_goes_on_from_any_batch_with_the_same_bits(root, start, batch_size, workers, seed):
    first = start // batch_size * batch_size

    def batches(start_index):
        stream = open_stream(root=root, video_backend="pyav")
        loader = stream.loader(batch_size=batch_size, num_workers=workers, seed=seed, buffer_size=6, max_num_shards=2)
        found = list(loader.batches(1, start_index))
        stream.close()
        return found

    whole = batches(0)
    for one, two in zip(batches(first), whole[first // batch_size :], strict=True):
        assert_same(one, two)
