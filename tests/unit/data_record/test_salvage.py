"""What LeRobot's recorder leaves when it is killed is made readable again, or it is said why not (case 4)."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.features import parse_features
from mimetic.data.reader import open_dataset
from mimetic.data.record.salvage.dataset import needs_salvage, salvage
from mimetic.data.record.salvage.footer import with_footer
from mimetic.data.record.salvage.thrift import NotThrift, Reader, encode
from mimetic.data.store.data_file import DataFileWriter
from mimetic.data.store.schema import data_schema, episode_table
from mimetic.data.writer import DatasetWriter
from mimetic.errors import DatasetError
from mimetic.testing.datasets import read_code

from .conftest import add, files, record

LENGTHS = (10, 11, 12)


@pytest.fixture
def killed(fixtures, tmp_path):
    return shutil.copytree(fixtures / "dataset" / "killed_v30", tmp_path / "killed")


def values(root):
    """(episode, frame, brightness) of each row."""
    dataset = open_dataset(root=root, return_uint8=True)
    items = [dataset[row] for row in range(len(dataset))]
    dataset.close()
    return [
        (int(i["episode_index"]), int(i["frame_index"]), round(float(i["observation.images.top"].float().mean())))
        for i in items
    ]


def assert_whole(root, lengths=LENGTHS):
    found = values(root)
    assert [place[:2] for place in found] == [(e, k) for e, length in enumerate(lengths) for k in range(length)]
    for episode, k, brightness in found:
        assert abs(brightness - (40 * episode + 3 * k)) <= 3


def test_case_4_the_saved_episodes_are_readable_again(killed):
    before = (killed / "data" / "chunk-000" / "file-000.parquet").read_bytes()
    done = salvage(killed)
    assert done[0] == "3 episodes are readable, 3 of them again"
    assert "file-000.parquet.broken" in done[-1]
    assert_whole(killed)
    assert (killed / "data" / "chunk-000" / "file-000.parquet.broken").read_bytes() == before
    assert len(files(killed / "images")) == 3
    dataset = open_dataset(root=killed)
    assert dataset.meta.episodes.tasks == (("task 0",), ("task 1",), ("task 0",))
    np.testing.assert_allclose(dataset.meta.stats["action"]["max"], 3.1, rtol=1e-6)
    assert dataset.meta.stats["observation.images.top"]["count"] == [33]
    assert salvage(killed) == []


def test_case_4_recording_goes_on(killed):
    with DatasetWriter.resume("local/written", killed) as writer:
        assert writer.recovered[0] == "3 episodes are readable, 3 of them again"
        for k in range(4):
            picture = np.full((64, 64, 3), 120 + 3 * k, np.uint8)
            numbers = {"action": np.full(2, k, np.float32), "observation.state": np.zeros(3, np.float32)}
            numbers |= {"next.done": np.array([False]), "grid": np.zeros((2, 2), np.float32)}
            writer.add_frame({**numbers, "observation.images.top": picture, "task": "task 2"})
        assert writer.save_episode().episode_index == 3
    assert_whole(killed, (*LENGTHS, 4))


@pytest.mark.parametrize(("n_bytes", "lengths"), [(1, (10, 11)), (900, (10, 11)), (1300, (10,))])
def test_a_data_file_that_was_cut_gives_its_whole_episodes(n_bytes, lengths, killed):
    path = killed / "data" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:-n_bytes])
    done = salvage(killed)
    assert f"{3 - len(lengths)} episodes that meta/info.json counts could not be read" in done
    assert_whole(killed, lengths)


def test_footage_that_is_short_ends_the_dataset(killed, tmp_path):
    video = next(killed.glob("videos/*/*/*.mp4"))
    with VideoEncoder(video, fps=10, height=64, width=64, settings=RgbEncoderConfig()) as encoder:
        for episode in range(2):
            for k in range(LENGTHS[episode]):
                encoder.add(np.full((64, 64, 3), 40 * episode + 3 * k, np.uint8))
    done = salvage(killed)
    assert done[0] == "2 episodes are readable, 2 of them again"
    assert any("footage of 2 episodes only" in sentence for sentence in done)
    assert_whole(killed, LENGTHS[:2])
    rows = sum(pq.read_metadata(path).num_rows for path in killed.glob("data/*/*.parquet"))
    assert rows == 21, "rows without footage stayed in the data file"


def test_nothing_readable_is_an_honest_error_and_changes_nothing(killed):
    path = killed / "data" / "chunk-000" / "file-000.parquet"
    path.write_bytes(path.read_bytes()[:200])
    before = files(killed)
    with pytest.raises(DatasetError, match="holds no complete episode"):
        salvage(killed)
    assert files(killed) == before
    assert path.stat().st_size == 200


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_recorder_at_work_is_left_alone(killed):
    before = {name: (killed / name).read_bytes() for name in files(killed)}
    with (killed / "data" / "chunk-000" / "file-000.parquet").open("ab"), pytest.raises(DatasetError) as caught:
        salvage(killed)
    assert f"process {os.getpid()} records into" in caught.value.message
    assert {name: (killed / name).read_bytes() for name in files(killed)} == before


def test_a_second_session_that_was_killed(root):
    """The first session's tables stay; of the second one the footers are missing."""
    record(root, (3, 4))
    with DatasetWriter.resume("local/recorded", root) as writer:
        for episode in (2, 3):
            add(writer, episode, 5)
            writer.save_episode()
    for name in ("data/chunk-000/file-001.parquet", "meta/episodes/chunk-000/file-001.parquet"):
        content = (root / name).read_bytes()
        length = int.from_bytes(content[-8:-4], "little")
        (root / name).write_bytes(content[: -8 - length])
    assert needs_salvage(root)
    done = salvage(root)
    assert done[0] == "4 episodes are readable, 2 of them again"
    dataset = open_dataset(root=root)
    found = [read_code(dataset[row]["observation.images.top"].numpy()) for row in range(len(dataset))]
    assert found == [(e, k) for e, length in enumerate((3, 4, 5, 5)) for k in range(length)]
    assert json.loads((root / "meta" / "info.json").read_text())["total_episodes"] == 4


def test_a_sound_dataset_is_left_alone(root):
    record(root, (2,))
    before = {name: (root / name).read_bytes() for name in files(root)}
    assert salvage(root) == []
    assert {name: (root / name).read_bytes() for name in files(root)} == before


KINDS = parse_features(
    {
        "vector": {"dtype": "float32", "shape": [3], "names": None},
        "flag": {"dtype": "bool", "shape": [1], "names": None},
        "grid": {"dtype": "int16", "shape": [2, 2], "names": None},
        "note": {"dtype": "string", "shape": [1], "names": None},
        "cam": {"dtype": "image", "shape": [4, 4, 3], "names": None},
        "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    },
    where="test",
)


def table(length, seed):
    chance = np.random.default_rng(seed)
    return episode_table(
        KINDS,
        {
            "vector": chance.normal(size=(length, 3)).astype(np.float32),
            "flag": chance.random(length) < 0.5,
            "grid": chance.integers(0, 9, (length, 2, 2), dtype=np.int16),
            "note": [f"note {k}" for k in range(length)],
            # larger than a page, and than a dictionary may become
            "cam": [(chance.bytes(int(chance.integers(1, 60_000))), f"frame-{k:06d}.png") for k in range(length)],
            "frame_index": np.arange(length),
        },
    )


@settings(max_examples=25)
@given(st.lists(st.integers(1, 90), min_size=1, max_size=4), st.floats(0, 1), st.integers(0, 3))
def test_a_file_cut_anywhere_gives_every_row_group_before_the_cut(tmp_path_factory, lengths, share, seed):
    path = tmp_path_factory.mktemp("cut") / "file.parquet"
    tables = [table(length, seed + number) for number, length in enumerate(lengths)]
    with DataFileWriter(path, KINDS) as writer:
        for one in tables:
            writer.write(one)
    content = path.read_bytes()
    footer = pq.read_metadata(path)
    ends = []
    for group in range(footer.num_row_groups):
        columns = [footer.row_group(group).column(c) for c in range(footer.num_columns)]
        starts = [
            c.dictionary_page_offset if c.dictionary_page_offset is not None else c.data_page_offset for c in columns
        ]
        ends.append(max(start + c.total_compressed_size for start, c in zip(starts, columns, strict=True)))
    cut = int(share * len(content))
    completed, n_groups = with_footer(content[:cut], data_schema(KINDS), KINDS)
    assert n_groups == sum(end <= cut for end in ends)
    read = pq.ParquetFile(io.BytesIO(completed))
    assert read.metadata.num_row_groups == n_groups
    for group in range(n_groups):
        assert read.read_row_group(group).to_pylist() == tables[group].to_pylist()


@given(st.binary(max_size=300))
def test_any_bytes_are_thrift_or_are_refused(data):
    try:
        fields = Reader(data).struct()
    except NotThrift:
        return
    assert Reader(encode(fields)).struct() == fields


@given(st.binary(max_size=400))
def test_any_bytes_give_a_readable_file(data):
    completed, n_groups = with_footer(b"PAR1" + data, data_schema(KINDS), KINDS)
    assert pq.ParquetFile(io.BytesIO(completed)).metadata.num_row_groups == n_groups
