"""The writer: what is on disk after each step, and what every failure leaves."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.encoding.encoder import VideoEncoder
from mimetic.data.features import NUMERIC
from mimetic.data.reader import open_dataset
from mimetic.data.record import journal, stage
from mimetic.data.record.clocks import read_verdicts
from mimetic.data.record.config import WriterConfig
from mimetic.data.record.journal import WORK_DIR
from mimetic.data.record.sinks import Sink
from mimetic.data.statistics import numeric_stats
from mimetic.data.stats import read_stats
from mimetic.data.store.episode_rows import read_episode_rows
from mimetic.data.writer import DatasetWriter
from mimetic.errors import ConfigError, DatasetError, DatasetNotFound, VideoError
from mimetic.names import DEFAULT_FEATURES
from mimetic.testing.datasets import read_code

from .conftest import AS_IMAGE, FEATURES, WITHOUT, add, files, frame, record


def contents(root):
    """(episode, frame) of every row, read from its picture, its numbers and its columns alike."""
    dataset = open_dataset(root=root)
    found = []
    for row in range(len(dataset)):
        item = dataset[row]
        place = (item["episode_index"].item(), item["frame_index"].item())
        assert item["index"].item() == row
        assert item["action"].tolist() == list(place)
        assert item["task"] == f"task {place[0] % 2}"
        if "observation.images.top" in item:
            assert read_code(item["observation.images.top"].numpy()) == place
        found.append(place)
    dataset.close()
    return found


def expected(lengths):
    return [(e, k) for e, length in enumerate(lengths) for k in range(length)]


@pytest.mark.parametrize("features", [FEATURES, AS_IMAGE, WITHOUT], ids=["video", "image", "rows"])
def test_the_dataset_is_complete_after_every_save(features, root):
    writer = DatasetWriter.create("local/recorded", 10, features, root)
    lengths = []
    for episode, length in enumerate((4, 1, 3)):
        add(writer, episode, length)
        saved = writer.save_episode()
        lengths.append(length)
        assert (saved.episode_index, saved.length) == (episode, length)
        assert contents(root) == expected(lengths)
        info = json.loads((root / "meta" / "info.json").read_text())
        assert (info["total_episodes"], info["total_frames"]) == (len(lengths), sum(lengths))
        assert info["splits"] == {"train": f"0:{len(lengths)}"}
    writer.finalize()
    writer.finalize()
    assert contents(root) == expected(lengths)
    assert not (root / WORK_DIR).exists()
    assert len(files(root / "data")) == 1, "not packed"


@pytest.mark.parametrize("encoding", ["fast", "small", "lossless"])
@pytest.mark.parametrize("features", [FEATURES, AS_IMAGE], ids=["video", "image"])
def test_case_24_an_episode_is_recorded_again(features, encoding, root):
    with DatasetWriter.create("local/recorded", 10, features, root, settings=WriterConfig(encoding=encoding)) as writer:
        add(writer, 0, 12)
        assert writer.discard_episode() == 12
        assert files(root / WORK_DIR) == ["lock"]
        add(writer, 0, 7)
        assert writer.save_episode().episode_index == 0
        add(writer, 1, 2)
        writer.save_episode()
    assert contents(root) == expected((7, 2))
    names = files(root)
    assert [name for name in names if not name.startswith(("data/", "meta/", "videos/"))] == []


@pytest.mark.parametrize("features", [FEATURES, AS_IMAGE], ids=["video", "image"])
def test_continuing_equals_recording_in_one_go(features, root, tmp_path):
    record(tmp_path / "whole", (3, 2, 4, 1), features)
    for session, lengths in enumerate(((3, 2), (4,), (), (1,))):
        if session == 0:
            writer = DatasetWriter.create("local/recorded", 10, features, root)
        else:
            writer = DatasetWriter.resume("local/recorded", root, fps=10, features=features)
        for length in lengths:
            add(writer, writer.num_episodes, length)
            writer.save_episode()
        writer.finalize()
    assert contents(root) == expected((3, 2, 4, 1))
    one, other = read_stats(root), read_stats(tmp_path / "whole")
    assert one.keys() == other.keys()
    for name, entry in other.items():
        for key, value in entry.items():
            np.testing.assert_allclose(one[name][key], value, rtol=1e-12, err_msg=f"{name} {key}")


def test_statistics_are_those_of_all_rows_after_every_episode(root):
    writer = DatasetWriter.create("local/recorded", 10, AS_IMAGE, root)
    for episode in range(3):
        add(writer, episode, 3 + episode)
        writer.save_episode()
        tables = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
        stats = read_stats(root)
        for name in ("action", "observation.state", "timestamp", "index", "episode_index", "task_index"):
            rows = np.concatenate([np.asarray(table[name].to_pylist()) for table in tables])
            for key, value in numeric_stats(rows).items():
                np.testing.assert_allclose(stats[name][key], value, rtol=1e-12, atol=1e-12, err_msg=f"{name} {key}")
        pictures = np.concatenate(
            [frame(e, k)["observation.images.top"][None] for e, k in expected([3, 4, 5][: episode + 1])]
        )
        values = pictures.reshape(-1, 3) / 255.0
        top = {key: np.ravel(value) for key, value in stats["observation.images.top"].items()}
        assert top["count"] == [len(pictures)]
        np.testing.assert_allclose(top["mean"], values.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(top["std"], values.std(axis=0), rtol=1e-12)
        for key, level in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
            np.testing.assert_allclose(top[key], np.quantile(values, level, axis=0), rtol=1e-12)
    writer.finalize()


def test_without_kept_histograms_pictures_are_aggregated(root):
    record(root, (4, 4), AS_IMAGE)
    before = read_stats(root)["observation.images.top"]
    (root / "meta" / "mimetic" / "pictures.parquet").unlink()
    with DatasetWriter.resume("local/recorded", root) as writer:
        add(writer, 2, 8)
        writer.save_episode()
    after = read_stats(root)["observation.images.top"]
    assert after["count"] == [16]
    pictures = np.stack([frame(e, k)["observation.images.top"] for e, k in expected((4, 4, 8))])
    np.testing.assert_allclose(np.ravel(after["mean"]), (pictures.reshape(-1, 3) / 255).mean(axis=0), rtol=1e-9)
    assert not np.array_equal(before["mean"], after["mean"])


def test_packing_keeps_to_the_limits_and_to_the_grid(root):
    settings = WriterConfig(data_files_size_in_mb=0.012, video_files_size_in_mb=0.006)
    lengths = (5, 3, 8, 1, 6, 9, 2, 4)
    record(root, lengths, settings=settings)
    assert contents(root) == expected(lengths)
    rows = read_episode_rows(root, open_dataset(root=root).features)
    video_files = sorted({row.videos["observation.images.top"].file for row in rows})
    data_files = sorted({row.data_file for row in rows})
    assert video_files == list(range(len(video_files)))
    assert data_files == list(range(len(data_files)))
    assert 1 < len(video_files) < len(lengths)
    assert 1 < len(data_files) < len(lengths)
    start = {}
    for row in rows:
        place = row.videos["observation.images.top"]
        first = start.get(place.file, 0)
        assert place.from_s == first / 10, "not on the grid of frames"
        assert place.to_s == (first + row.length) / 10
        start[place.file] = first + row.length
    assert len(files(root / "videos")) == len(video_files)
    assert len(files(root / "meta" / "episodes")) == 1
    for path in root.glob("data/*/*.parquet"):
        metadata = pq.read_metadata(path)
        in_file = [row.length for row in rows if row.data_file == int(path.stem.split("-")[1])]
        assert [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)] == in_file


def test_files_that_are_full_already_stay_as_they_are(root):
    settings = WriterConfig(data_files_size_in_mb=0.0001, video_files_size_in_mb=0.0001)
    record(root, (5, 3, 4), settings=settings)
    assert contents(root) == expected((5, 3, 4))
    assert len(files(root / "videos")) == len(files(root / "data")) == 3


def test_files_that_no_episode_names_are_not_replaced(root):
    record(root, (2,))
    orphan = root / "videos" / "observation.images.top" / "chunk-000" / "file-001.mp4"
    orphan.write_bytes(b"mine")
    with DatasetWriter.resume("local/recorded", root) as writer:
        add(writer, 1, 3)
        writer.save_episode()
    assert orphan.read_bytes() == b"mine"
    assert contents(root) == expected((2, 3))


def test_rows_that_are_not_in_order_are_not_continued(root):
    record(root, (2, 2), WITHOUT)
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    place = table.column_names.index("index")
    pq.write_table(table.set_column(place, table.schema.field(place), [[1, 0, 2, 3]]), path)
    with pytest.raises(DatasetError, match="not numbered one after the other"):
        DatasetWriter.resume("local/recorded", root)


def test_chunks_are_filled_and_left(root):
    writer = record(root, (1, 1), WITHOUT, finalize=False)
    raw = json.loads((root / "meta" / "info.json").read_text())
    writer.finalize()
    (root / "meta" / "info.json").write_text(json.dumps({**raw, "chunks_size": 2, "data_files_size_in_mb": 0.0001}))
    with DatasetWriter.resume("local/recorded", root) as writer:
        for episode in range(2, 5):
            add(writer, episode, 1)
            writer.save_episode()
    assert contents(root) == expected((1,) * 5)
    assert "data/chunk-001/file-001.parquet" in files(root)


def test_every_type_of_number_comes_back(root):
    """float16 and uint64 too, which LeRobot declares but seldom uses."""
    shapes = [(1,), (3,), (2, 2), (2, 1, 3), (1, 2, 1, 2), (2, 1, 1, 1, 2)]
    features = {
        f"{dtype}.{len(shape)}": {"dtype": dtype, "shape": shape, "names": None}
        for number, dtype in enumerate(NUMERIC)
        for shape in (shapes[number % len(shapes)], (1,))
    }
    values = {}
    with DatasetWriter.create("local/recorded", 10, features, root) as writer:
        for k in range(4):
            value = {
                name: (np.arange(int(np.prod(entry["shape"]))) + k).reshape(entry["shape"]).astype(entry["dtype"])
                for name, entry in features.items()
            }
            for name, array in value.items():
                values.setdefault(name, []).append(array)
            writer.add_frame({**value, "task": "x"})
        writer.save_episode()
    table = pq.read_table(next(root.glob("data/*/*.parquet")))
    for name, arrays in values.items():
        stored = np.asarray(table[name].to_pylist(), dtype=features[name]["dtype"])
        assert np.array_equal(stored.reshape(np.shape(arrays)), arrays), name
    assert set(read_stats(root)) == {*features, *DEFAULT_FEATURES}
    DatasetWriter.resume("local/recorded", root, features=features).finalize()


def test_a_dataset_without_episodes_is_continued(root):
    record(root, ())
    with DatasetWriter.resume("local/recorded", root, fps=10, features=FEATURES) as writer:
        assert writer.encoders["observation.images.top"].vcodec == "h264"
        add(writer, 0, 3)
        writer.save_episode()
    assert contents(root) == expected((3,))


def test_one_frame_is_an_episode(root):
    record(root, (1, 1))
    assert contents(root) == expected((1, 1))


def test_tasks_are_numbered_by_their_first_frame(root):
    with DatasetWriter.create("local/recorded", 10, WITHOUT, root) as writer:
        for tasks in (("b", "a", "b"), ("c", "a")):
            for k, task in enumerate(tasks):
                writer.add_frame({**frame(0, k, WITHOUT), "task": task})
            writer.save_episode()
    dataset = open_dataset(root=root)
    assert dataset.meta.tasks == {0: "b", 1: "a", 2: "c"}
    assert [item["task"] for item in (dataset[row] for row in range(5))] == ["b", "a", "b", "c", "a"]
    assert dataset.meta.episodes.tasks == (("b", "a"), ("c", "a"))


def test_language_columns(root):
    language = {
        name: {"dtype": "language", "shape": (1,), "names": None} for name in ("language_persistent", "language_events")
    }
    with DatasetWriter.create("local/recorded", 10, {**WITHOUT, **language}, root) as writer:
        writer.add_frame(
            {
                **frame(0, 0, WITHOUT),
                "language_persistent": [{"role": "assistant", "content": "grasp", "style": "subtask"}],
            }
        )
        event = {"role": "user", "content": "no", "style": "interjection", "tool_calls": [{"name": "say"}]}
        writer.add_frame({**frame(0, 1, WITHOUT), "language_events": [event]})
        writer.add_frame(frame(0, 2, WITHOUT))
        writer.save_episode()
    dataset = open_dataset(root=root)
    items = [dataset[row] for row in range(3)]
    assert [len(item["language_persistent"]) for item in items] == [1, 1, 1]
    assert items[2]["language_persistent"][0]["timestamp"] == 0.0
    assert [len(item["language_events"]) for item in items] == [0, 1, 0]
    assert items[1]["language_events"][0]["tool_calls"] == [{"name": "say"}]


def test_nothing_is_made_when_a_new_dataset_is_refused(root, tmp_path):
    with pytest.raises(DatasetError, match="shape"):
        DatasetWriter.create("local/recorded", 10, {"action": {"dtype": "float32", "shape": (0,)}}, root)
    with pytest.raises(DatasetError, match="fps"):
        DatasetWriter.create("local/recorded", 0, WITHOUT, root)
    with pytest.raises(ConfigError, match="repository id"):
        DatasetWriter.create("no such/name/x", 10, WITHOUT)
    with pytest.raises(ConfigError, match="crf=99"):
        DatasetWriter.create(
            "local/recorded", 10, FEATURES, root, settings=WriterConfig(rgb_encoder=RgbEncoderConfig(crf=99))
        )
    with pytest.raises(ConfigError, match="encoding"):
        DatasetWriter.create(
            "local/recorded", 10, FEATURES, root, settings=WriterConfig(encoding="fast", rgb_encoder=RgbEncoderConfig())
        )
    odd = {**WITHOUT, "observation.images.odd": {"dtype": "video", "shape": (47, 63, 3), "names": None}}
    with pytest.raises(ConfigError, match=r"observation.images.odd.*cannot be recorded"):
        DatasetWriter.create(
            "local/recorded", 10, odd, root, settings=WriterConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264"))
        )
    assert list(tmp_path.iterdir()) == []
    DatasetWriter.create("local/recorded", 10, odd, root).finalize()


def test_an_existing_folder_is_refused_and_left_alone(root):
    root.mkdir()
    (root / "mine.txt").write_text("mine")
    with pytest.raises(DatasetError, match="exists already"):
        DatasetWriter.create("local/recorded", 10, WITHOUT, root)
    assert files(root) == ["mine.txt"]
    (root / "mine.txt").unlink()
    DatasetWriter.create("local/recorded", 10, WITHOUT, root).finalize()
    with pytest.raises(DatasetError, match="exists already"):
        DatasetWriter.create("local/recorded", 10, WITHOUT, root)


def test_a_dataset_without_root_lies_below_the_home_of_lerobot(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    DatasetWriter.create("me/pick", 10, WITHOUT).finalize()
    assert (tmp_path / "me" / "pick" / "meta" / "info.json").is_file()


def test_every_difference_to_the_dataset_is_named(root):
    record(root, (2,), robot_type="so101")
    before = files(root)
    other = {
        "action": {"dtype": "float64", "shape": (2,), "names": ["x", "z"]},
        "observation.state": {"dtype": "float64", "shape": (4,), "names": None},
        "observation.images.side": FEATURES["observation.images.top"],
    }
    settings = WriterConfig(rgb_encoder=RgbEncoderConfig(vcodec="hevc", pix_fmt="yuv444p"))
    with pytest.raises(DatasetError) as caught:
        DatasetWriter.resume("local/recorded", root, fps=30, features=other, robot_type="koch", settings=settings)
    for words in (
        "10 frames a second and the recording 30",
        "'so101' and this one is 'koch'",
        "`observation.images.side` is not in the dataset",
        "`observation.images.top` of the dataset is not recorded",
        "`action` has the dtype float32 in the dataset and float64 here",
        "['x', 'y'] in the dataset and ['x', 'z'] here",
        "`observation.state` has the shape (3,) in the dataset and (4,) here",
        "codec h264; hevc is asked for",
        "pix_fmt yuv420p; yuv444p is asked for",
    ):
        assert words in caught.value.message
    assert files(root) == before


def test_a_missing_or_broken_dataset_is_not_continued(root, tmp_path):
    with pytest.raises(DatasetNotFound):
        DatasetWriter.resume("local/recorded", root)
    record(root, (2, 3))
    (root / "data" / "chunk-000" / "file-000.parquet").rename(tmp_path / "away.parquet")
    with pytest.raises(DatasetError, match=r"0 rows.*5"):
        DatasetWriter.resume("local/recorded", root)
    assert not (root / WORK_DIR).exists()


def test_only_one_process_records(root):
    writer = record(root, (2,), WITHOUT, finalize=False)
    with pytest.raises(DatasetError, match=f"process {os.getpid()} records"):
        DatasetWriter.resume("local/recorded", root)
    assert journal.recover(root) == []
    add(writer, 1, 2)
    writer.save_episode()
    writer.finalize()
    assert contents(root) == expected((2, 2))


def test_an_exception_loses_the_episode_in_progress_only(root, caplog):
    with (
        pytest.raises(RuntimeError, match="the arm fell over"),
        DatasetWriter.create("local/recorded", 10, FEATURES, root) as writer,
    ):
        add(writer, 0, 3)
        writer.save_episode()
        add(writer, 1, 2)
        raise RuntimeError("the arm fell over")
    assert contents(root) == expected((3,))
    assert "2 frames of the episode in progress are discarded" in caplog.text
    assert not (root / WORK_DIR).exists()


def test_an_unsaved_episode_at_the_end_is_named(root, caplog):
    with DatasetWriter.create("local/recorded", 10, WITHOUT, root) as writer:
        add(writer, 0, 3)
        writer.save_episode()
        add(writer, 1, 2)
        assert writer.has_pending_frames()
        assert writer.num_pending_frames == 2
    assert "2 frames of an episode that was not saved are discarded" in caplog.text
    assert contents(root) == expected((3,))


def test_misuse_is_said(root):
    with DatasetWriter.create("local/recorded", 10, WITHOUT, root) as writer:
        with pytest.raises(DatasetError, match="no frame"):
            writer.save_episode()
        with pytest.raises(DatasetError, match="not cameras"):
            writer.add_frame(frame(0, 0, WITHOUT), camera_clocks_s={"top": 1.0})
    for call in (writer.save_episode, writer.discard_episode, lambda: writer.add_frame(frame(0, 0, WITHOUT))):
        with pytest.raises(DatasetError, match="finalized"):
            call()


class FullDisk:
    """Stands in for a writing function and fails as a full disk does until `is_full` is cleared."""

    def __init__(self, real):
        self.real = real
        self.is_full = True

    def __call__(self, *arguments, **options):
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(*arguments, **options)


@pytest.mark.parametrize("name", ["_write_data", "_write_json", "write_pictures", "write_tasks_file"])
@pytest.mark.parametrize("features", [FEATURES, AS_IMAGE], ids=["video", "image"])
def test_a_full_disk_at_any_file_leaves_the_episode_to_be_saved_again(name, features, root, monkeypatch, tmp_path):
    writer = record(root, (3,), features, finalize=False)
    before = {path: (root / path).read_bytes() for path in files(root) if not path.startswith(WORK_DIR)}
    disk = FullDisk(getattr(stage, name))
    monkeypatch.setattr(stage, name, disk)
    add(writer, 1, 4)
    for _ in range(2):
        with pytest.raises(DatasetError, match="No space left on device") as caught:
            writer.save_episode()
        assert "save it again, or discard it" in caught.value.hint
        assert {path: (root / path).read_bytes() for path in files(root) if not path.startswith(WORK_DIR)} == before
    disk.is_full = False
    writer.save_episode()
    writer.finalize()
    assert contents(root) == expected((3, 4))
    record(tmp_path / "whole", (3, 4), features)
    one, other = (read_stats(folder)["observation.images.top"]["mean"] for folder in (root, tmp_path / "whole"))
    assert np.array_equal(one, other), "pictures of failed attempts were counted"


def test_a_full_disk_at_the_journal_changes_nothing(root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    disk = FullDisk(journal.write_json)
    monkeypatch.setattr(journal, "write_json", disk)
    add(writer, 1, 4)
    with pytest.raises(DatasetError, match="No space left"):
        writer.save_episode()
    assert contents(root) == expected((3,))
    writer.discard_episode()
    disk.is_full = False
    add(writer, 1, 2)
    writer.save_episode()
    writer.finalize()
    assert contents(root) == expected((3, 2))


def test_an_interruption_between_two_renames_is_completed_at_once(root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    real, calls = journal._apply, []

    def apply(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            content = arguments[1]
            (root / content["renames"][0][0]).replace(root / "interrupted.mp4")
            (root / "interrupted.mp4").replace(root / content["renames"][0][0])
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(journal, "_apply", apply)
    add(writer, 1, 4)
    with pytest.raises(KeyboardInterrupt):
        writer.save_episode()
    assert len(calls) == 2
    assert writer.num_episodes == 2
    add(writer, 2, 2)
    writer.save_episode()
    writer.finalize()
    assert contents(root) == expected((3, 4, 2))


def test_a_change_that_cannot_be_completed_is_completed_at_the_next_opening(root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_apply", FullDisk(None))
        add(writer, 1, 4)
        with pytest.raises(DatasetError, match="could not get its name") as caught:
            writer.save_episode()
        assert "nothing is lost" in caught.value.hint
        with pytest.raises(DatasetError, match="finalized"):
            add(writer, 2, 1)
        writer.finalize()
    assert contents(shutil.copytree(root, root.with_name("read"))) == expected((3, 4))  # whoever reads completes it too
    with DatasetWriter.resume("local/recorded", root) as again:
        assert again.recovered == ["a change that was interrupted is complete now: episode 1 was saved"]
        assert again.num_episodes == 2
    assert contents(root) == expected((3, 4))


def test_packing_that_fails_leaves_every_episode(root, monkeypatch, caplog):
    writer = record(root, (3, 2), finalize=False)
    monkeypatch.setattr("mimetic.data.record.pack.join_videos", FullDisk(None))
    writer.finalize()
    assert "could not be packed" in caplog.text
    assert contents(root) == expected((3, 2))
    assert len(files(root / "videos")) == 2
    assert not (root / WORK_DIR).exists()
    monkeypatch.undo()
    DatasetWriter.resume("local/recorded", root).finalize()
    assert contents(root) == expected((3, 2))
    assert len(files(root / "videos")) == 1, "an earlier session's episodes are packed too"


@pytest.mark.parametrize("at", [0, 2])
def test_an_encoder_that_fails_is_said_at_once_and_costs_one_episode(at, root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    real = VideoEncoder.add

    def failing(self, picture):
        if self.n_frames == at:
            raise VideoError("the encoder died")
        return real(self, picture)

    monkeypatch.setattr(VideoEncoder, "add", failing)
    with pytest.raises(DatasetError, match=r"observation.images.top.*could not be stored.*the encoder died"):
        for k in range(300):
            writer.add_frame(frame(1, k))
        writer.save_episode()
    with pytest.raises(DatasetError, match="the encoder died"):
        writer.save_episode()
    monkeypatch.undo()
    writer.discard_episode()
    add(writer, 1, 2)
    writer.save_episode()
    writer.finalize()
    assert contents(root) == expected((3, 2))


@pytest.mark.parametrize("is_counted", [False, True], ids=["not counted", "counted"])
def test_a_picture_that_an_encoder_loses_is_noticed(is_counted, root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    real = VideoEncoder.add

    def forgetful(self, picture):
        if len(seen) != 2:
            real(self, picture)
        elif is_counted:
            self.n_frames += 1
        seen.append(picture)

    seen = []
    with monkeypatch.context() as patch:
        patch.setattr(VideoEncoder, "add", forgetful)
        add(writer, 1, 5)
        with pytest.raises(DatasetError, match="4 frames and the episode 5" if is_counted else "5 rows and 4 pictures"):
            writer.save_episode()
    assert contents(root) == expected((3,))
    writer.discard_episode()
    writer.finalize()


def test_an_interrupted_wait_for_room_leaves_rows_and_pictures_equal(root, monkeypatch):
    two = {**FEATURES, "observation.images.side": FEATURES["observation.images.top"]}
    writer = DatasetWriter.create("local/recorded", 10, two, root)

    def value(k):
        return {**frame(0, k), "observation.images.side": frame(0, k)["observation.images.top"]}

    writer.add_frame(value(0))
    real, calls = Sink.reserve, []

    def interrupted(self, picture):
        calls.append(self.camera)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, picture)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "reserve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.add_frame(value(1))
    writer.add_frame(value(1))
    writer.save_episode()
    assert writer._budget._held == 0
    writer.finalize()
    assert contents(root) == expected((2,))


def test_an_encoder_that_fails_at_its_end_costs_one_episode(root, monkeypatch):
    writer = record(root, (3,), finalize=False)
    real = VideoEncoder.close
    with monkeypatch.context() as patch:
        patch.setattr(VideoEncoder, "close", FullDisk(real))
        add(writer, 1, 4)
        with pytest.raises(DatasetError, match="could not be stored"):
            writer.save_episode()
    writer.discard_episode()
    writer.finalize()
    assert contents(root) == expected((3,))


LIMITED = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.path.insert(0, sys.argv[2])
from data_record.conftest import FEATURES, add
from mimetic.data.record.config import WriterConfig
from mimetic.data.writer import DatasetWriter
from mimetic.errors import DatasetError
import numpy as np
writer = DatasetWriter.create("local/full", 10, FEATURES, Path(sys.argv[1]), settings=WriterConfig(encoding="lossless"))
add(writer, 0, 3)
writer.save_episode()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
noise = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
try:
    for k in range(400):
        writer.add_frame({"action": np.float32([1, k]), "observation.state": np.zeros(3), "observation.images.top": noise, "task": "x"})
    writer.save_episode()
    print("saved")
except DatasetError as error:
    print("refused", error.message)
writer.discard_episode()
add(writer, 1, 2)
writer.save_episode()
writer.finalize()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="needs limits of file sizes")
def test_a_disk_that_is_really_full_costs_one_episode(root, repository):
    folder = repository / "tests" / "unit"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(root), str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("refused the pictures of `observation.images.top`"), done.stdout
    assert contents(root) == expected((3, 2))


def test_a_full_queue_repeats_and_marks_when_asked(root, monkeypatch, caplog):
    import threading

    gate = threading.Event()
    real = VideoEncoder.add

    def slow(self, picture):
        gate.wait(60)
        return real(self, picture)

    monkeypatch.setattr(VideoEncoder, "add", slow)
    big = {"observation.images.top": {"dtype": "video", "shape": (480, 640, 3), "names": None}}
    settings = WriterConfig(queue_mb=2, on_overflow="repeat")
    monkeypatch.setattr("mimetic.data.writer.try_encoders", lambda *arguments: None)
    with DatasetWriter.create("local/recorded", 10, big, root, settings=settings) as writer:
        for k in range(5):
            picture = np.full((480, 640, 3), 40 * k, dtype=np.uint8)
            writer.add_frame({"observation.images.top": picture, "task": "x"})
        gate.set()
        saved = writer.save_episode()
    assert saved.repeated == {"observation.images.top": [2, 3, 4]}
    assert "3 pictures of observation.images.top show the one before" in caplog.text
    dataset = open_dataset(root=root, return_uint8=True)
    assert [round(int(dataset[k]["observation.images.top"].float().mean()) / 40) for k in range(5)] == [0, 1, 1, 1, 1]
    assert read_verdicts(root)[0]["repeated_frames"] == {"observation.images.top": [2, 3, 4]}


def test_a_full_queue_lets_the_loop_wait_and_loses_nothing(root):
    big = {"observation.images.top": {"dtype": "video", "shape": (240, 320, 3), "names": None}}
    with DatasetWriter.create("local/recorded", 10, big, root, settings=WriterConfig(queue_mb=1)) as writer:
        for k in range(20):
            writer.add_frame({"observation.images.top": np.full((240, 320, 3), 10 * k, np.uint8), "task": "x"})
        writer.save_episode()
    dataset = open_dataset(root=root, return_uint8=True)
    means = [dataset[k]["observation.images.top"].float().mean().item() for k in range(20)]
    np.testing.assert_allclose(means, [10 * k for k in range(20)], atol=3)


FORGOTTEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from data_record.conftest import FEATURES, add
from mimetic.data.writer import DatasetWriter
writer = DatasetWriter.create("local/forgotten", 10, FEATURES, Path(sys.argv[1]))
add(writer, 0, 3)
writer.save_episode()
add(writer, 1, 5)
"""


def test_a_program_that_forgets_to_close_ends_and_keeps_what_was_saved(root, repository):
    folder = repository / "tests" / "unit"
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, str(root), str(folder)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(root) == expected((3,))
    with DatasetWriter.resume("local/recorded", root) as writer:
        assert writer.num_episodes == 1
    assert not (root / WORK_DIR).exists()


def test_the_memory_of_a_picture_may_be_used_again(root):
    buffer = np.empty((64, 80, 3), dtype=np.uint8)
    with DatasetWriter.create("local/recorded", 10, FEATURES, root) as writer:
        for k in range(8):
            buffer[:] = frame(0, k)["observation.images.top"]
            writer.add_frame({**frame(0, k), "observation.images.top": buffer})
            buffer[:] = 0
        writer.save_episode()
    assert contents(root) == expected((8,))
