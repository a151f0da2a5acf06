"""Streams: the samples of the map-style dataset, read as they are needed, and every fault named."""

import itertools
import json
import re
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from mimetic.data import stream_files, stream_rows
from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler, shard_batches
from mimetic.data.stream import open_stream
from mimetic.data.stream_files import StreamFiles
from mimetic.data.stream_order import Span, StreamOrder
from mimetic.data.stream_rows import Recent
from mimetic.errors import ConfigError, DatasetError, DatasetFormatError, EpisodeError, OfflineError, VideoError
from mimetic.testing.datasets import build_dataset, read_code

CAMERA = "observation.images.front"
SIZE = (32, 48)
CASE3 = (8, 12, 10, 9)
FIXTURES = Path(__file__).parents[2] / "fixtures" / "dataset"


def assert_same(one, two):
    assert list(one) == list(two)
    for key, value in one.items():
        assert torch.equal(value, two[key]) if isinstance(value, torch.Tensor) else value == two[key], key


def place(sample):
    return int(sample["episode_index"]), int(sample["frame_index"])


# Right samples


@pytest.mark.parametrize("episodes_per_file", [1, 2, None])
@pytest.mark.parametrize("camera_dtype", ["video", "image"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_every_streamed_frame_is_that_of_map_style_access(tmp_path, version, camera_dtype, episodes_per_file):
    # cases.md 3
    root = build_dataset(
        tmp_path / "set",
        lengths=CASE3,
        cameras={"front": SIZE},
        camera_dtype=camera_dtype,
        version=version,
        episodes_per_file=episodes_per_file,
    )
    windows = {"action": range(-2, 5), CAMERA: [-1, 0, 1]}
    expected = {place(sample): sample for sample in open_dataset(root=root, delta_indices=windows)}
    found = list(open_stream(root=root, delta_indices=windows))
    assert len(found) == 39 == len(expected)
    assert {place(sample) for sample in found} == set(expected)
    for sample in found:
        assert_same(sample, expected[place(sample)])
        assert read_code(sample[CAMERA][1]) == place(sample)


@pytest.mark.parametrize("name", ["dtypes_v30", "video_v30", "image_v30", "v21"])
def test_every_kind_of_column_comes_as_from_the_map_style_dataset(name):
    dataset, stream = open_dataset(root=FIXTURES / name), open_stream(root=FIXTURES / name)
    for position in range(len(dataset)):
        assert_same(stream[position], dataset[position])
        assert stream.address(position) == dataset.address(position)
    assert_same(stream.batch(range(len(dataset))), dataset.batch(range(len(dataset))))


def test_episodes_and_exclude_episodes_are_honoured(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE}, episodes_per_file=2)
    for choice in (
        {"episodes": [1, 3]},
        {"exclude_episodes": [0, 2]},
        {"episodes": [3, 1, 0], "exclude_episodes": [0]},
    ):
        dataset, stream = open_dataset(root=root, **choice), open_stream(root=root, **choice)
        assert stream.episodes == [1, 3] == dataset.episodes
        assert {place(sample) for sample in stream} == {place(sample) for sample in dataset}
        assert_same(stream.batch(range(21)), dataset.batch(range(21)))
        assert stream.frame_numbers().tolist() == dataset.frame_numbers().tolist()
    assert stream.with_windows({}, episodes=[3]).num_frames == 9


def test_rows_come_in_the_order_of_the_files_not_of_the_table(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE})
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    table = pq.read_table(path)
    pq.write_table(table.take(pa.array([2, 0, 3, 1])), path)
    dataset, stream = open_dataset(root=root), open_stream(root=root)
    assert stream.episodes == dataset.episodes == [0, 1, 2, 3]
    assert stream.frame_numbers().tolist() == dataset.frame_numbers().tolist()
    assert_same(stream.batch(range(39)), dataset.batch(range(39)))


def test_augmentation_and_whole_columns_are_those_of_the_dataset(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3)
    dataset, stream = open_dataset(root=root), open_stream(root=root, exclude_episodes=[1])
    assert np.array_equal(stream.column("action"), open_dataset(root=root, exclude_episodes=[1]).column("action"))
    assert stream.episode_bounds()[1].tolist() == [8, 18, 27]
    assert len(dataset) == 39


def test_rows_that_are_not_finite_are_found_as_in_the_dataset(tmp_path):
    from mimetic.testing.datasets import TinyDataset, make_columns

    values = make_columns(TinyDataset(lengths=CASE3))["action"].copy()
    values[10, 1] = np.nan
    root = build_dataset(tmp_path / "set", lengths=CASE3, columns={"action": values})
    windows = {"action": [0, 1]}
    dataset, stream = (opened(root=root, delta_indices=windows) for opened in (open_dataset, open_stream))
    faults = stream.row_faults(range(39), ["action", "observation.state"])
    assert set(faults) == {9, 10}
    assert faults == dataset.row_faults(range(39), ["action", "observation.state"])


# Order


def spans(lengths, unit=lambda number: number):
    ends = np.cumsum(lengths).tolist()
    return [
        Span(end - length, end, unit(number)) for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]


def test_the_order_depends_on_seed_and_epoch_alone():
    made = [StreamOrder(spans([50] * 8), seed=3, buffer_size=20, max_num_shards=3) for _ in range(2)]
    assert np.array_equal(made[0].order(1), made[1].order(1))
    assert not np.array_equal(made[0].order(0), made[0].order(1))
    assert not np.array_equal(made[0].order(0), StreamOrder(spans([50] * 8), seed=4, buffer_size=20).order(0))
    assert np.array_equal(StreamOrder(spans([5, 3]), shuffle=False).order(7), np.arange(8))
    # For good: checkpoints resume in the middle of an order.
    assert StreamOrder(spans([4, 4, 4]), seed=1, buffer_size=3, max_num_shards=2).order(0).tolist() == GOLDEN


GOLDEN = [5, 8, 6, 4, 9, 10, 0, 1, 2, 7, 3, 11]


def test_few_episodes_are_read_at_the_same_time():
    order = StreamOrder(spans([40] * 30), buffer_size=1, max_num_shards=4).order(0)
    episode = order // 40
    first = {number: int(np.flatnonzero(episode == number)[0]) for number in range(30)}
    last = {number: int(np.flatnonzero(episode == number)[-1]) for number in range(30)}
    most = max(sum(first[n] <= at <= last[n] for n in range(30)) for at in range(len(order)))
    assert most <= 5  # four, and one whose last frame waits in the buffer of one


def test_the_buffer_bounds_how_far_a_frame_moves_ahead():
    order = StreamOrder(spans([1000]), buffer_size=50).order(0)
    assert (order - np.arange(1000)).max() <= 50
    assert np.abs(order - np.arange(1000)).mean() > 10


def test_episodes_of_one_file_follow_each_other():
    order = StreamOrder(spans([10] * 12, unit=lambda number: number // 4), buffer_size=1, max_num_shards=1)
    files = (order.order(0) // 40).tolist()
    assert sum(one != two for one, two in itertools.pairwise(files)) == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_reads_a_stretch_of_its_own_and_all_of_them_everything(ranks):
    # cases.md 23
    lengths, size = [7, 11, 23], 4
    order = StreamOrder(spans(lengths), buffer_size=5, batch_size=size, num_processes=ranks)
    for epoch in range(3):
        whole = order.order(epoch)
        assert sorted(whole) == list(range(41))
        shares = [shard_batches(41, size, num_processes=ranks, rank=rank) for rank in range(ranks)]
        assert len({len(share) for share in shares}) == 1
        seen = [whole[np.concatenate(share) % 41] for share in shares]
        assert set(np.concatenate(seen)) == set(range(41))
        whole_rounds = 41 // ranks // size * size
        for rank, positions in enumerate(seen):
            mine = positions[:whole_rounds]
            assert mine.min() >= 41 * rank // ranks
            assert mine.max() < 41 * (rank + 1) // ranks


def test_nothing_to_visit_and_senseless_numbers_are_refused():
    with pytest.raises(ConfigError, match="no frame is left"):
        StreamOrder(spans([3, 2]), drop_n_last_frames=3)
    assert sorted(StreamOrder(spans([3, 2]), drop_n_last_frames=2).order(0)) == [0]
    for name in ("buffer_size", "max_num_shards", "batch_size", "num_processes"):
        with pytest.raises(ConfigError, match=name):
            StreamOrder(spans([3]), **{name: 0})


def test_a_loader_gives_the_same_batches_for_every_number_of_workers(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE})
    stream = open_stream(root=root)
    wanted = list(stream.loader(batch_size=6, buffer_size=10).batches(2))
    for workers in (1, 3):
        loader = stream.loader(batch_size=6, num_workers=workers, buffer_size=10)
        for one, two in zip(loader.batches(2), wanted, strict=True):
            assert_same(one, two)
    later = list(stream.loader(batch_size=6, num_workers=2, buffer_size=10).batches(2, 18))
    for one, two in zip(later, wanted[3:], strict=True):
        assert_same(one, two)


def test_samples_start_where_they_are_told_to(tmp_path):
    stream = open_stream(root=build_dataset(tmp_path / "set", lengths=CASE3))
    whole = [place(sample) for sample in stream.samples(1, buffer_size=7)]
    assert [place(sample) for sample in stream.samples(1, buffer_size=7, start=30)] == whole[30:]


# Bounded


def test_rows_are_read_by_row_group_and_forgotten(tmp_path, monkeypatch):
    root = build_dataset(tmp_path / "set", lengths=[20] * 30, episodes_per_file=10, cameras={"front": SIZE})
    for path in sorted((root / "data").rglob("*.parquet")):  # one row group an episode, as recorders write them
        table = pq.read_table(path)
        with pq.ParquetWriter(path, table.schema) as writer:
            for first in range(0, table.num_rows, 20):
                writer.write_table(table.slice(first, 20))
    read = []
    original = stream_rows.read_groups

    def reading(path, groups, columns, metadata=None):
        read.append((path, tuple(groups), tuple(columns)))
        return original(path, groups, columns, metadata)

    monkeypatch.setattr(stream_rows, "read_groups", reading)
    stream = open_stream(root=root, rows_budget=8000).with_windows({"action": range(5)}, skip=[CAMERA])
    assert read == []  # opening reads no rows
    stream[0]
    assert [entry[1] for entry in read if len(entry[2]) > 1] == [(0,)]
    parts = stream.stream_source.stream_rows._parts
    for _ in stream.loader(batch_size=8, max_num_shards=2, buffer_size=10).batches(0):
        assert parts.size <= 8000
    assert len([entry for entry in read if len(entry[2]) > 1]) < 120  # 30 groups, some of them more than once


def test_memory_does_not_grow_with_the_rows(tmp_path):
    wide = np.zeros((4000, 500), dtype=np.float32)
    root = build_dataset(tmp_path / "set", lengths=[200] * 20, episodes_per_file=1, columns={"action": wide})
    stream = open_stream(root=root, rows_budget=2_000_000)
    list(stream.loader(batch_size=50, max_num_shards=2, buffer_size=50).batches(0))
    tracemalloc.start()
    for _ in stream.loader(batch_size=50, max_num_shards=2, buffer_size=50).batches(1):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < wide.nbytes


def test_recent_values_are_made_once_and_the_oldest_is_forgotten_first():
    recent, made = Recent[str](10), []

    def make(key):
        return recent.get(key, lambda: (made.append(key) or key, 4))

    for key in "abaca":
        assert make(key) == key
    assert made == ["a", "b", "c"]
    make("b")
    assert made == ["a", "b", "c", "b"]
    assert recent.size <= 10
    with pytest.raises(ZeroDivisionError):
        recent.get("x", lambda: (1 / 0, 1))
    assert recent.get("x", lambda: ("y", 1)) == "y"


# Faults


def data(root, number=0):
    return root / "data" / "chunk-000" / f"file-{number:03d}.parquet"


def test_a_video_frame_that_cannot_be_decoded_is_named(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE}, gop=3)
    path = root / "videos" / CAMERA / "chunk-000" / "file-001.mp4"
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 200 : start + 600] = b"\xa5" * 400
    path.write_bytes(bytes(content))
    with pytest.raises(VideoError) as found:
        list(open_stream(root=root).loader(batch_size=4).batches(0))
    assert str(path) in found.value.message
    assert "episode 1, frame" in found.value.message
    assert "--dataset.exclude_episodes=[1]" in found.value.hint


def test_a_missing_video_is_named_at_the_start_and_a_missing_data_file_when_its_turn_comes(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE})
    data(root, 2).unlink()
    with pytest.raises(DatasetFormatError, match=r"file-002\.parquet` is missing"):
        list(open_stream(root=root))
    (root / "videos" / CAMERA / "chunk-000" / "file-003.mp4").unlink()
    with pytest.raises(VideoError, match=r"file-003\.mp4"):
        open_stream(root=root)


def rewrite(path, **changes):
    table = pq.read_table(path)
    for name, values in changes.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    pq.write_table(table, path)


def test_an_episode_that_the_table_places_wrongly_is_named(tmp_path):
    # cases.md 6
    root = build_dataset(tmp_path / "set", lengths=CASE3)
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    rewrite(path, **{"data/file_index": [0, 0, 2, 3]})
    with pytest.raises(EpisodeError, match=r"episode 1: .*file-000\.parquet`, which holds episodes 0") as found:
        list(open_stream(root=root))
    assert "--dataset.exclude_episodes=[1]" in found.value.hint
    assert len(list(open_stream(root=root, exclude_episodes=[1]))) == 27


def test_a_hole_in_the_episode_numbering_serves_the_others(tmp_path):
    # cases.md 5
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE}, episodes_per_file=None)
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    pq.write_table(pq.read_table(path).take(pa.array([0, 2, 3])), path)
    table = pq.read_table(data(root))
    pq.write_table(table.filter(pa.compute.not_equal(table["episode_index"], 1)), data(root))
    found = list(open_stream(root=root))
    assert len(found) == 27
    assert all(read_code(sample[CAMERA]) == place(sample) for sample in found)


@pytest.mark.parametrize(
    ("column", "values", "error"),
    [
        ("frame_index", [0, 1, 2, 3, 4, 6, 5, 7], "says frame_index 6"),
        ("episode_index", [0, 0, 0, 0, 0, 0, 0, 5], "episode 0 has 7 rows"),
        ("task_index", [0, 0, 0, 0, 0, 0, 0, 3], "task_index 3"),
        ("timestamp", np.arange(8, dtype=np.float32) / 30, "timestamp 0.0"),
    ],
)
def test_rows_that_contradict_the_tables_are_named(tmp_path, column, values, error):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE})
    rewrite(data(root), **{column: values})
    with pytest.raises(DatasetError, match=error):
        list(open_stream(root=root))
    assert len(list(open_stream(root=root, exclude_episodes=[0]))) == 31


def test_a_data_file_without_a_declared_column_is_named(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3)
    pq.write_table(pq.read_table(data(root, 1)).drop_columns(["action"]), data(root, 1))
    with pytest.raises(DatasetFormatError, match=r"file-001\.parquet` lacks the declared columns `action`"):
        list(open_stream(root=root))


def test_a_table_without_data_files_is_refused(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3)
    (path,) = (root / "meta" / "episodes").rglob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["data/file_index"]), path)
    with pytest.raises(DatasetFormatError, match="does not say in which data files"):
        open_stream(root=root)


def test_bad_frames_are_skipped_as_in_the_dataset(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=CASE3, cameras={"front": SIZE}, camera_dtype="image")
    table = pq.read_table(data(root, 1))
    cells = table[CAMERA].to_pylist()
    cells[3] = {"bytes": b"no picture", "path": None}
    pq.write_table(table.set_column(table.column_names.index(CAMERA), CAMERA, pa.array(cells)), data(root, 1))

    def left_out(dataset, order):
        loader = BatchLoader(
            dataset, order, batch_size=8, num_workers=2, prefetch_factor=1, seed=0, on_bad_frame="skip"
        )
        batches = list(loader.batches(0))
        # Pillow's words hold the address of an object.
        return [(bad.episode, bad.frame, re.sub("0x[0-9a-f]+", "", bad.cause)) for bad in loader.bad_frames], batches

    stream, dataset = open_stream(root=root), open_dataset(root=root)
    found, batches = left_out(stream, stream.order(buffer_size=10))
    starts, ends = dataset.episode_bounds()
    assert found == left_out(dataset, EpisodeSampler(starts, ends))[0]
    assert [entry[:2] for entry in found] == [(1, 3)]
    assert "row 3 of" in found[0][2]
    assert sum(len(batch["index"]) for batch in batches) == 39


def test_windows_are_given_once_and_units_are_known(tmp_path):
    root = build_dataset(tmp_path / "set")
    with pytest.raises(ConfigError, match="given twice"):
        open_stream(root=root, delta_indices={}, delta_timestamps={})
    with pytest.raises(ConfigError, match="depth unit"):
        open_stream(root=root, depth_output_unit="cm")
    with pytest.raises(EpisodeError, match="no episodes 9"):
        open_stream(root=root, episodes=[9])
    assert open_stream(root=root, delta_timestamps={"action": [0.0, 0.1]}).delta_indices == {"action": [0, 1]}


# Files that come later


@pytest.fixture
def remote(tmp_path):
    """A dataset of four files a camera, and an empty folder that it is fetched into."""
    complete = build_dataset(tmp_path / "complete", lengths=CASE3, cameras={"front": SIZE})
    here = tmp_path / "here"
    shutil.copytree(complete / "meta", here / "meta")
    return complete, here


def streamed(monkeypatch, complete, here, fetch=None):
    from mimetic.data import stream as module

    fetched = []

    def copy(name):
        fetched.append(name)
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(complete / name, here / name)

    monkeypatch.setattr(module, "_locate", lambda *args: (here, fetch or copy))
    return open_stream("me/set"), fetched


def test_files_are_fetched_once_when_needed_and_the_next_ones_meanwhile(remote, monkeypatch):
    complete, here = remote
    stream, fetched = streamed(monkeypatch, complete, here)
    assert fetched == []
    samples = stream.samples(0, buffer_size=1, max_num_shards=1)
    expected = {place(sample): sample for sample in open_dataset(root=complete)}
    first = next(samples)
    assert_same(first, expected[place(first)])
    stream.stream_source.files._pool.submit(int).result()
    assert 0 < len(fetched) <= 2 * 3  # the first episode's files, and those of the next two
    for sample in samples:
        assert_same(sample, expected[place(sample)])
    stream.close()
    assert sorted(fetched) == sorted(
        path.relative_to(complete).as_posix()
        for kind in ("data", "videos")
        for path in (complete / kind).rglob("file-*")
    )


def test_a_rank_fetches_the_files_of_its_stretch_only(remote, monkeypatch):
    complete, here = remote
    stream, fetched = streamed(monkeypatch, complete, here)
    assert len(list(stream.samples(0, num_processes=39, rank=0))) == 1
    stream.close()
    assert {name[-11:-4] for name in fetched if name.endswith(".mp4")} == {"ile-000"}


def test_a_hub_that_is_away_for_a_moment_is_asked_again(remote, monkeypatch, said):
    complete, here = remote
    monkeypatch.setattr(stream_files, "PAUSES_S", (0.0, 0.0))
    refusals = [2]

    def shaky(name):
        if refusals[0]:
            refusals[0] -= 1
            raise OfflineError("the hub cannot be reached")
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(complete / name, here / name)

    stream, _ = streamed(monkeypatch, complete, here, shaky)
    assert len(list(stream)) == 39
    assert said.text.count("trying again in 0 s") == 2
    stream.close()


def test_a_hub_that_stays_away_is_an_error_of_its_own_and_no_bad_frame(remote, monkeypatch):
    complete, here = remote
    monkeypatch.setattr(stream_files, "PAUSES_S", ())

    def away(name):
        raise OfflineError("the hub cannot be reached")

    stream, _ = streamed(monkeypatch, complete, here, away)
    loader = BatchLoader(
        stream, stream.order(), batch_size=4, num_workers=2, prefetch_factor=1, seed=0, on_bad_frame="skip"
    )
    with pytest.raises(OfflineError):
        list(loader.batches(0))
    assert loader.bad_frames == []
    stream.close()


def test_files_in_the_folder_are_never_fetched(tmp_path):
    root = build_dataset(tmp_path / "set")
    stream = open_stream(root=root)
    assert not stream.stream_source.files.is_remote
    assert isinstance(stream.stream_source.files, StreamFiles)
    stream.stream_source.files.require(Path("/nowhere"))
    assert json.loads((root / "meta" / "info.json").read_text())["total_frames"] == 18
