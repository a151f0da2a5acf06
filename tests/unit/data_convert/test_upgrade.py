"""v2.0 and v2.1 to v3.0 on tiny datasets: the same items, the input untouched, odd inputs named before any work."""

from __future__ import annotations

import json
import logging
import shutil

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.progress import no_bar, show_stage
from mimetic.data.convert.run import convert, output_folder
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError, DatasetError, DatasetFormatError, EpisodeError, VideoError
from mimetic.testing.datasets import TinyDataset, build_dataset, read_code

CAMERA = "observation.images.top"


@pytest.fixture
def copy(v21, tmp_path):
    return shutil.copytree(v21, tmp_path / "pick")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_info(root, **changes):
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def data_file(root, episode):
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def change_column(path, name, values):
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), path)


def assert_same_items(one, other):
    mine = open_dataset(root=one, return_uint8=True, video_backend="pyav")
    theirs = open_dataset(root=other, return_uint8=True, video_backend="pyav")
    assert len(mine) == len(theirs)
    for index in range(len(theirs)):
        for key, value in theirs[index].items():
            is_same = value == mine[index][key]
            assert is_same if isinstance(value, str) else bool(is_same.all()), (index, key)


def assert_nothing_was_made(root):
    assert [path.name for path in root.parent.iterdir() if "pick_v30" in path.name] == []


def test_items_are_those_of_the_input(v21, v30):
    assert_same_items(v30, v21)
    dataset = open_dataset(root=v30, return_uint8=True)
    assert [read_code(dataset[index][CAMERA].permute(1, 2, 0)) for index in (0, 5, 32)] == [(0, 0), (1, 0), (5, 7)]


def test_several_files_of_each_kind_were_made(v30):
    assert len(list((v30 / "data").rglob("*.parquet"))) > 1
    assert len(list((v30 / "videos").rglob("*.mp4"))) > 1


def test_the_input_is_not_touched(v21, small, content, tmp_path):
    before = content(v21), {path: path.stat().st_mtime_ns for path in v21.rglob("*")}
    convert(small(v21, tmp_path / "out"))
    assert (content(v21), {path: path.stat().st_mtime_ns for path in v21.rglob("*")}) == before
    assert not list(v21.parent.glob(".*"))


def test_a_pool_gives_the_same_bytes(v21, v30, small, content, tmp_path):
    convert(small(v21, tmp_path / "out", engine="pool", num_workers=2))
    assert content(tmp_path / "out") == content(v30)


def test_many_files_fill_chunk_folders(v21, tmp_path, copy, small):
    change_info(copy, chunks_size=2)
    for kind in ("data", "videos"):
        for path in sorted((copy / kind).rglob("episode_*")):
            number = int(path.stem[-6:])
            target = copy / str(path.relative_to(copy)).replace("chunk-000", f"chunk-{number // 2:03d}")
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    made = convert(small(copy, tmp_path / "out", data_file_size_in_mb=1e-6))
    names = [path.relative_to(made).as_posix() for path in sorted((made / "data").rglob("*.parquet"))]
    assert names == [f"data/chunk-{number // 2:03d}/file-{number % 2:03d}.parquet" for number in range(6)]
    assert_same_items(made, v21)


def test_v20_gets_statistics_of_episodes_and_cameras(tmp_path, small):
    root = build_dataset(tmp_path / "old", TinyDataset(version="v2.0", cameras={"top": (32, 48)}, lengths=(5, 7, 6)))
    made = convert(small(root, tmp_path / "out"))
    row = pq.read_table(made / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    source = open_dataset(root=root, return_uint8=True)
    frames = np.stack([np.asarray(source[index][CAMERA]) for index in range(5, 12)]) / 255.0
    np.testing.assert_allclose(np.ravel(row[f"stats/{CAMERA}/mean"]), frames.mean(axis=(0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(
        np.ravel(row[f"stats/{CAMERA}/q90"]), np.quantile(frames, 0.9, axis=(0, 2, 3)), rtol=1e-9
    )
    assert row[f"stats/{CAMERA}/count"] == [7]
    whole = json.loads((made / "meta/stats.json").read_text())
    everything = np.stack([np.asarray(source[index][CAMERA]) for index in range(18)]) / 255.0
    np.testing.assert_allclose(np.ravel(whole[CAMERA]["std"]), everything.std(axis=(0, 2, 3)), rtol=1e-9)
    np.testing.assert_allclose(np.ravel(whole[CAMERA]["q10"]), np.quantile(everything, 0.1, axis=(0, 2, 3)), rtol=1e-9)
    assert whole[CAMERA]["count"] == [18]
    assert_same_items(made, root)


def test_camera_statistics_are_kept_unless_new_ones_are_asked_for(v21, small, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="mimetic"):
        kept = convert(small(v21, tmp_path / "kept"))
    assert "--recompute_camera_stats=true" in caplog.text
    stored = lines(v21 / "meta/episodes_stats.jsonl")[2]["stats"][CAMERA]
    row = pq.read_table(kept / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[2]
    assert row[f"stats/{CAMERA}/mean"] == stored["mean"]
    assert f"stats/{CAMERA}/q50" not in row
    new = convert(small(v21, tmp_path / "new", recompute_camera_stats=True))
    row = pq.read_table(new / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[2]
    assert f"stats/{CAMERA}/q50" in row
    assert row[f"stats/{CAMERA}/mean"] != stored["mean"]


def test_pictures_inside_data_files_are_copied_and_counted(tmp_path, small):
    spec = TinyDataset(version="v2.0", cameras={"top": (20, 24)}, camera_dtype="image", lengths=(3, 4))
    root = build_dataset(tmp_path / "old", spec)
    made = convert(small(root, tmp_path / "out"))
    assert_same_items(made, root)
    assert json.loads((made / "meta/info.json").read_text())["video_path"] is None
    assert "q99" in json.loads((made / "meta/stats.json").read_text())[CAMERA]


@pytest.mark.parametrize("missing", ["video", "data"])
def test_missing_files_are_all_counted_before_any_work(copy, small, missing):
    for episode in (1, 4):
        path = data_file(copy, episode) if missing == "data" else next(copy.rglob(f"episode_{episode:06d}.mp4"))
        path.unlink()
    with pytest.raises(EpisodeError, match=r"and 1 more files are missing; episodes 1, 4 need them") as caught:
        convert(ConvertConfig(root=copy))
    assert "episode_000001" in caught.value.message
    assert "meta/episodes.jsonl" in caught.value.hint
    assert_nothing_was_made(copy)


def test_a_wrong_number_of_rows_is_named_before_any_work(copy):
    table = pq.read_table(data_file(copy, 3))
    pq.write_table(table.slice(0, 4), data_file(copy, 3))
    with pytest.raises(EpisodeError, match=r"episode_000003.parquet` has 4 rows; meta/episodes.jsonl says 6"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert_nothing_was_made(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: change_column(data_file(root, 2), "action", [[1.0, 2.0, 3.0]] * 4), "12 values instead of 8"),
        (lambda root: change_column(data_file(root, 2), "action", ["a"] * 4), "holds string instead of numbers"),
        (
            lambda root: pq.write_table(pq.read_table(data_file(root, 2)).drop(["action"]), data_file(root, 2)),
            "`action` is missing",
        ),
    ],
)
def test_columns_that_are_not_those_declared_are_named(copy, change, said):
    change(copy)
    with pytest.raises(DatasetFormatError, match=said) as caught:
        convert(ConvertConfig(root=copy, engine="serial"))
    assert "episode_000002.parquet" in caught.value.message
    assert_nothing_was_made(copy)


def test_an_unknown_task_number_is_named_before_any_work(copy):
    change_column(data_file(copy, 2), "task_index", [7] * 4)
    with pytest.raises(EpisodeError, match=r"task_index 7, which meta/tasks.jsonl does not have"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert_nothing_was_made(copy)


def test_a_task_number_that_only_some_rows_have_is_named(copy):
    write_lines(
        copy / "meta/tasks.jsonl",
        [{"task_index": 0, "task": "pick"}, {"task_index": 1, "task": "push"}, {"task_index": 5, "task": "pull"}],
    )
    change_column(data_file(copy, 2), "task_index", [0, 3, 5, 5])
    with pytest.raises(EpisodeError, match=r"task_index 3"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert not (copy.parent / "pick_v30").exists()


def test_task_numbers_with_gaps_become_contiguous(copy, v21, caplog):
    write_lines(copy / "meta/tasks.jsonl", [{"task_index": 9, "task": "push"}, {"task_index": 4, "task": "pick"}])
    for episode in range(6):
        table = pq.read_table(data_file(copy, episode))
        change_column(
            data_file(copy, episode), "task_index", [{0: 4, 1: 9}[n] for n in table["task_index"].to_pylist()]
        )
    made = convert(ConvertConfig(root=copy, engine="serial"))
    assert "have gaps; they become 0 to 1" in caplog.text
    assert [row["task"] for row in pq.read_table(made / "meta/tasks.parquet").to_pylist()] == ["pick", "push"]
    mine, theirs = open_dataset(root=made), open_dataset(root=v21)
    assert [mine[index]["task"] for index in range(33)] == [theirs[index]["task"] for index in range(33)]


def test_episode_numbers_with_gaps_become_contiguous(copy, caplog):
    for name in ("episodes.jsonl", "episodes_stats.jsonl"):
        rows = lines(copy / "meta" / name)
        write_lines(copy / "meta" / name, [row for row in rows if row["episode_index"] not in (1, 4)])
    made = convert(ConvertConfig(root=copy, engine="serial"))
    assert "the episode numbers have gaps" in caplog.text
    assert "2 data files are not in meta/episodes.jsonl and are left out" in caplog.text
    dataset = open_dataset(root=made, return_uint8=True)
    assert dataset.episodes == [0, 1, 2, 3]
    np.testing.assert_array_equal(dataset.column("index"), np.arange(23))
    assert read_code(dataset[5][CAMERA].permute(1, 2, 0)) == (2, 0)
    assert float(dataset[5]["observation.state"][0]) == 200.0


@pytest.mark.parametrize("key", ["data_path", "video_path"])
@pytest.mark.parametrize(
    "template",
    ["../outside/episode_{episode_index:06d}.parquet", "/etc/passwd", "data/{episode_index.__class__}", "~/x"],
)
def test_hostile_templates_are_refused(copy, key, template):
    change_info(copy, **{key: template})
    with pytest.raises(DatasetFormatError, match=key):
        convert(ConvertConfig(root=copy))
    assert_nothing_was_made(copy)


def test_links_out_of_the_folder_are_refused(copy, tmp_path):
    secret = tmp_path / "secret.parquet"
    data_file(copy, 2).rename(secret)
    data_file(copy, 2).symlink_to(secret)
    with pytest.raises(DatasetFormatError, match=r"leads out of the dataset's folder"):
        convert(ConvertConfig(root=copy))


def test_pictures_that_only_name_a_file_are_refused(tmp_path):
    root = build_dataset(
        tmp_path / "pick",
        TinyDataset(version="v2.1", cameras={"top": (20, 24)}, camera_dtype="image", lengths=(3, 4)),
    )
    cells = [{"bytes": None, "path": "/etc/passwd"}] * 3
    change_column(data_file(root, 0), CAMERA, cells)
    with pytest.raises(DatasetFormatError, match=r"is not opened"):
        convert(ConvertConfig(root=root, engine="serial"))
    assert not (tmp_path / "pick_v30").exists()


def test_a_video_with_too_few_frames_is_named_before_any_work(copy):
    video, shorter = (next(copy.rglob(f"episode_{episode:06d}.mp4")) for episode in (5, 4))
    shutil.copyfile(shorter, video)
    with pytest.raises(VideoError, match=r"episode_000005.mp4` has 3 frames; episode 5 has 8 rows"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert_nothing_was_made(copy)


def test_a_damaged_video_is_named_before_any_work(copy):
    video = next(copy.rglob("episode_000003.mp4"))
    video.write_bytes(b"not a video")
    with pytest.raises(VideoError, match=r"episode_000003.mp4"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert_nothing_was_made(copy)


def test_a_video_of_another_size_is_named_before_any_work(copy, tmp_path):
    other = build_dataset(tmp_path / "other", TinyDataset(version="v2.1", cameras={"top": (48, 32)}, lengths=(5,)))
    shutil.copyfile(next(other.rglob("*.mp4")), next(copy.rglob("episode_000000.mp4")))
    with pytest.raises(VideoError, match=r"shows 32x48 pixels; meta/info.json declares 48x32"):
        convert(ConvertConfig(root=copy, engine="serial"))


def test_a_rate_that_is_not_the_videos_is_named_before_any_work(copy):
    change_info(copy, fps=30)
    with pytest.raises(VideoError, match=r"the file's rate is not the dataset's"):
        convert(ConvertConfig(root=copy, engine="serial"))


def test_videos_of_different_encoders_go_into_different_files(copy, v21, tmp_path):
    other = build_dataset(
        tmp_path / "other",
        TinyDataset(version="v2.1", cameras={"top": (32, 48)}, lengths=(5, 7, 4, 6), codec="libsvtav1", fps=10),
    )
    shutil.copyfile(next(other.rglob("episode_000002.mp4")), next(copy.rglob("episode_000002.mp4")))
    made = convert(ConvertConfig(root=copy, engine="serial"))
    files = sorted((made / "videos").rglob("*.mp4"))
    codecs = []
    for path in files:
        with av.open(str(path)) as container:
            codecs.append(container.streams.video[0].codec_context.codec.canonical_name)
    assert codecs == ["h264", "av1", "h264"]
    dataset = open_dataset(root=made, return_uint8=True)
    assert [read_code(dataset[index][CAMERA].permute(1, 2, 0)) for index in (11, 12, 16)] == [(1, 6), (2, 0), (3, 0)]


def test_surplus_frames_stay_and_are_said(copy, v21, caplog):
    video, longer = (next(copy.rglob(f"episode_{episode:06d}.mp4")) for episode in (2, 1))
    shutil.copyfile(longer, video)  # 7 frames for 4 rows
    made = convert(ConvertConfig(root=copy, engine="serial"))
    assert "more frames than rows in episodes 2" in caplog.text
    dataset = open_dataset(root=made, return_uint8=True)
    assert [read_code(dataset[index][CAMERA].permute(1, 2, 0)) for index in (12, 15, 16)] == [(1, 0), (1, 3), (3, 0)]


def test_what_a_worker_wrote_wrongly_is_found(v21, small, tmp_path, monkeypatch):
    from mimetic.data.convert import parts

    real = parts.join_videos
    monkeypatch.setattr(parts, "join_videos", lambda sources, out: real([sources[0], *sources[1:][::-1]], out))
    with pytest.raises(DatasetError, match=r"packet 0 of .*episode_000001.mp4` is not in its place"):
        convert(small(v21, tmp_path / "out", video_file_size_in_mb=100))
    assert not (tmp_path / "out").exists()


def test_a_single_flipped_bit_of_a_video_is_found(v21, small, tmp_path, monkeypatch):
    from mimetic.data.convert import parts

    real = parts.join_videos

    def flip(sources, out):
        durations = real(sources, out)
        with av.open(str(out)) as container:
            place = container.streams.video[0].index_entries[9].pos + 7
        content = bytearray(out.read_bytes())
        content[place] ^= 1
        out.write_bytes(content)
        return durations

    monkeypatch.setattr(parts, "join_videos", flip)
    with pytest.raises(DatasetError, match=r"packet 4 of .*episode_000001.mp4` is not in its place"):
        convert(small(v21, tmp_path / "out", video_file_size_in_mb=100))
    assert not (tmp_path / "out").exists()


def test_rows_that_were_written_wrongly_are_found(v21, small, tmp_path, monkeypatch):
    from mimetic.data.convert import parts

    real = parts.read_episode

    def wrong(rows, features):
        columns = real(rows, features)
        columns["action"] = columns["action"] + (rows.number == 3)
        return columns

    monkeypatch.setattr(parts, "read_episode", wrong)
    with pytest.raises(DatasetError, match=r"`action` of episode 3"):
        convert(small(v21, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_columns_that_are_not_declared_are_said(copy, caplog):
    for episode in range(6):
        table = pq.read_table(data_file(copy, episode))
        pq.write_table(table.append_column("secret", pa.array(range(len(table)))), data_file(copy, episode))
    convert(ConvertConfig(root=copy, engine="serial"))
    assert "does not declare are left out: secret" in caplog.text


@pytest.mark.parametrize("to", ["v3.0", "v2.1"])
def test_a_full_disk_is_said_before_any_work(v21, v30, tmp_path, monkeypatch, to):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10_000, 9_000, 1_000))
    config = ConvertConfig(root=v21 if to == "v3.0" else v30, output_dir=tmp_path / "out", to=to, engine="serial")
    with pytest.raises(DatasetError, match=r"GB are free"):
        convert(config)
    assert list(tmp_path.iterdir()) == []


def test_long_work_is_in_the_log_every_minute(caplog):
    times = iter([0.0, 10.0, 61.0, 61.0, 70.0])
    with (
        caplog.at_level(logging.INFO, logger="mimetic"),
        show_stage(no_bar, "Videos", "file", 9, clock=lambda: next(times)) as advance,
    ):
        for done in (1, 2, 3):
            advance(done)
    assert caplog.messages == ["Videos: 2 of 9 files"]


def test_a_v30_dataset_needs_no_conversion(v30):
    with pytest.raises(DatasetFormatError, match=r"v3.0 dataset already") as caught:
        convert(ConvertConfig(root=v30))
    assert "--to=v2.1" in caught.value.hint


def test_the_result_never_goes_into_the_input(v21):
    for target in (v21, v21 / "converted"):
        with pytest.raises(ConfigError, match=r"never changed"):
            output_folder(v21, ConvertConfig(root=v21, output_dir=target))


def test_the_result_of_a_download_does_not_go_into_the_hubs_cache(v21, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "datasets"))
    snapshot = shutil.copytree(v21, tmp_path / "hub/datasets--me--pick/snapshots/0123abcd")
    assert output_folder(snapshot, ConvertConfig(root=snapshot, repo_id="me/pick")) == tmp_path / "datasets/me/pick_v30"


def test_the_result_lies_beside_the_link_that_was_named(v21, tmp_path):
    (tmp_path / "link").symlink_to(v21)
    assert output_folder(tmp_path / "link", ConvertConfig(root=tmp_path / "link")) == tmp_path / "link_v30"


def test_statistics_that_are_of_no_use_are_named_before_any_work(copy):
    rows = lines(copy / "meta/episodes_stats.jsonl")
    del rows[3]["stats"][CAMERA]["count"]
    write_lines(copy / "meta/episodes_stats.jsonl", rows)
    with pytest.raises(DatasetFormatError, match=r"statistics of `observation.images.top` lack 'count'"):
        convert(ConvertConfig(root=copy, engine="serial"))
    assert_nothing_was_made(copy)


def test_statistics_that_some_episodes_lack_are_made_anew(copy):
    rows = lines(copy / "meta/episodes_stats.jsonl")
    del rows[3]["stats"][CAMERA]
    write_lines(copy / "meta/episodes_stats.jsonl", rows)
    made = convert(ConvertConfig(root=copy, engine="serial"))
    assert "q50" in json.loads((made / "meta/stats.json").read_text())[CAMERA]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"root": None}, "no dataset is named"),
        ({"fps": 0}, "--fps=0"),
        ({"data_file_size_in_mb": -1.0}, "--data_file_size_in_mb"),
        ({"push_to_hub": True}, "--repo_id=USER/NAME"),
        ({"num_workers": -2}, "--num_workers=-2"),
        ({"to": "v2.1", "video_file_size_in_mb": 5.0}, "--to=v3.0"),
    ],
)
def test_settings_that_make_no_sense_are_named(tmp_path, changes, said):
    problems = ConvertConfig(**{"root": tmp_path, **changes}).check()
    assert len(problems) == 1
    assert said in problems[0]
