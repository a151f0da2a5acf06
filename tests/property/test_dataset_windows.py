"""Fast paths of the reader against naive ones that stay here: windows row by row, batches item by item."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import default_collate

from mimetic.data.reader import open_dataset
from mimetic.data.windows import window_rows
from mimetic.testing.datasets import build_dataset, read_code

LENGTHS = (5, 1, 7, 3)
DELTAS = st.lists(st.integers(-9, 9), min_size=1, max_size=6)
DTYPES = Path(__file__).parents[1] / "fixtures" / "dataset" / "dtypes_v30"


@cache
def dataset_of(kind):
    root = Path(mkdtemp()) / kind
    if kind == "low":
        build_dataset(root, lengths=LENGTHS)
    elif kind == "image":
        build_dataset(root, lengths=LENGTHS, cameras={"a": (48, 64)}, camera_dtype="image", episodes_per_file=2)
    else:
        per_file = {"video": 1, "merged": None}[kind]
        build_dataset(root, lengths=LENGTHS, cameras={"a": (48, 64), "b": (64, 64)}, episodes_per_file=per_file)
    return open_dataset(root=root, return_uint8=True, video_backend="pyav")


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    deltas=DELTAS,
    data=st.data(),
)
def test_windows_equal_the_definition_step_by_step(lengths, deltas, data):
    ends = np.cumsum(lengths)
    row = data.draw(st.integers(0, int(ends[-1]) - 1))
    episode = int(np.searchsorted(ends, row, side="right"))
    start, end = int(ends[episode]) - lengths[episode], int(ends[episode])
    rows, is_pad = window_rows(np.asarray([row]), np.asarray(deltas), np.asarray([start]), np.asarray([end]))
    assert rows[0].tolist() == [max(start, min(end - 1, row + delta)) for delta in deltas]
    assert is_pad[0].tolist() == [row + delta < start or row + delta >= end for delta in deltas]


@settings(max_examples=40, deadline=None)
@given(deltas=DELTAS, state=DELTAS)
def test_items_equal_a_naive_reading_of_the_rows(deltas, state):
    base = dataset_of("low")
    dataset = base.with_windows({"action": deltas, "observation.state": state})
    rows = [row for path in base.meta.layout.data_files() for row in pq.read_table(path).to_pylist()]
    for position, row in enumerate(rows):
        item = dataset[position]
        for key, offsets in (("action", deltas), ("observation.state", state)):
            inside = [r for r in rows if r["episode_index"] == row["episode_index"]]
            frames = [row["frame_index"] + offset for offset in offsets]
            expected = [inside[max(0, min(len(inside) - 1, frame))][key] for frame in frames]
            assert torch.equal(item[key], torch.tensor(expected, dtype=torch.float32))
            assert item[f"{key}_is_pad"].tolist() == [not 0 <= frame < len(inside) for frame in frames]


@pytest.mark.parametrize("kind", ["low", "image", "video", "merged"])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_batch_equals_the_collated_items(kind, data):
    base = dataset_of(kind)
    deltas = {"action": data.draw(DELTAS)}
    if base.meta.camera_keys and data.draw(st.booleans()):
        deltas[base.meta.camera_keys[0]] = data.draw(DELTAS)
    episodes = data.draw(st.lists(st.sampled_from(range(len(LENGTHS))), min_size=1, unique=True))
    dataset = base.with_windows(deltas, episodes=episodes)
    positions = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, max_size=7))
    batch = dataset.batch(positions)
    expected = default_collate([dataset[position] for position in positions])
    assert list(batch) == list(expected)
    for key, value in expected.items():
        if key == "task":
            assert batch[key] == value
        else:
            assert batch[key].dtype == value.dtype
            assert torch.equal(batch[key], value), key


@settings(max_examples=20, deadline=None)
@given(positions=st.lists(st.integers(0, 9), min_size=1, max_size=6), k=st.integers(1, 3))
def test_a_batch_of_all_dtypes_equals_the_collated_items(positions, k):
    deltas = {key: list(range(k)) for key in ("observation.images.depth_vid", "observation.images.depth_img", "flags")}
    dataset = open_dataset(root=DTYPES, delta_indices=deltas)
    batch = dataset.batch(positions)
    expected = default_collate([dataset[position] for position in positions])
    for key, value in expected.items():
        assert batch[key] == value if key in ("task", "note") else torch.equal(batch[key], value), key


@pytest.mark.parametrize("kind", ["image", "video", "merged"])
@settings(max_examples=15, deadline=None)
@given(offsets=st.lists(st.integers(-9, 9), min_size=2, max_size=4))
def test_every_frame_of_a_window_is_the_frame_that_its_row_names(kind, offsets):
    base = dataset_of(kind)
    key = base.meta.camera_keys[-1]
    dataset = base.with_windows({key: offsets})
    for position in range(len(dataset)):
        item = dataset[position]
        episode, frame = int(item["episode_index"]), int(item["frame_index"])
        expected = [(episode, max(0, min(LENGTHS[episode] - 1, frame + offset))) for offset in offsets]
        assert [read_code(picture) for picture in item[key]] == expected


class _Shift:
    """Stand-in for the augmentation: adds a number drawn from the sample's own generator."""

    def __call__(self, images, generator):
        return images + torch.randint(1, 9, (), generator=generator).to(images.dtype)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_augmentation_of_a_sample_depends_on_its_own_generator_only(kind):
    dataset = dataset_of(kind).with_windows({"action": [0, 1]}, image_transforms=_Shift())
    positions = [4, 0, 9]
    batch = dataset.batch(positions, [torch.Generator().manual_seed(position) for position in positions])
    for row, position in enumerate(positions):
        item = dataset.item(position, torch.Generator().manual_seed(position))
        plain = dataset_of(kind)[position]
        for key in dataset.meta.camera_keys:
            assert torch.equal(batch[key][row], item[key])
            assert not torch.equal(item[key], plain[key])


def test_reading_leaves_the_global_generators_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    dataset = dataset_of("video").with_windows(None, image_transforms=_Shift())
    dataset.batch([0, 1])
    assert dataset[0]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


def test_items_do_not_share_memory_with_the_columns():
    dataset = dataset_of("low").with_windows({"action": [0, 1, 2]})
    item = dataset[0]
    before = dataset.column("action").copy()
    item["action"].fill_(-1)
    item["observation.state"].fill_(-1)
    assert np.array_equal(dataset.column("action"), before)
    assert dataset[0]["observation.state"].min() >= 0
