"""Data that are damaged, or go away, in the middle of a training: named exactly, and stopped at or left out as asked."""

import errno
import json
import logging
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from mimetic.cli.train import load_policy
from mimetic.config.codec import decode
from mimetic.config.parse import parse
from mimetic.data.loader import BatchLoader
from mimetic.data.reader import open_dataset
from mimetic.data.sampler import EpisodeSampler
from mimetic.errors import CacheError, DatasetError, DatasetFormatError, TrainingError, VideoError
from mimetic.policies.catalog import POLICIES
from mimetic.testing import frame_policy
from mimetic.testing.datasets import build_dataset, coded_image, read_code, write_video
from mimetic.testing.frame_policy import FramePolicy
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

CAMERA = "observation.images.front"
LENGTHS = (8, 12, 10)
SIZE = (32, 48)


def video(root, number=1):
    return root / "videos" / CAMERA / "chunk-000" / f"file-{number:03d}.mp4"


def data(root, number=0):
    return root / "data" / "chunk-000" / f"file-{number:03d}.parquet"


def overwrite_packets(path, numbers, first=4):
    """Fill some packets of a video from a byte on; its header and the number of its frames stay."""
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for number in numbers:
        start, size = places[number]
        content[start + first : start + size] = b"\xa5" * (size - first)
    path.write_bytes(bytes(content))


@pytest.fixture
def root(tmp_path):
    return build_dataset(tmp_path / "set", lengths=LENGTHS, cameras={"front": SIZE})


@pytest.fixture
def pictures(tmp_path):
    """Pictures inside one data file, one row group an episode."""
    return build_dataset(
        tmp_path / "set", lengths=LENGTHS, cameras={"front": SIZE}, camera_dtype="image", episodes_per_file=None
    )


def loader_of(dataset, **others):
    starts, ends = dataset.episode_bounds()
    settings = {"batch_size": 5, "num_workers": 1, "prefetch_factor": 1, "seed": 0, "excluded": dataset.excluded}
    return BatchLoader(dataset, EpisodeSampler(starts, ends), **{**settings, **others})


def failure(dataset, **others):
    """The error that ends reading a whole epoch."""
    with pytest.raises(DatasetError) as caught:
        list(loader_of(dataset, **others).batches(0))
    return caught.value


# What the messages say


def test_a_damaged_packet_is_named_by_file_episode_frame_camera_and_time(root):
    overwrite_packets(video(root), [7])
    dataset = open_dataset(root=root, exclude_episodes=[2])
    assert dataset.check_video_lengths() == []
    error = failure(dataset)
    assert isinstance(error, VideoError)
    assert error.message.startswith(f"frame 7 of `{video(root)}` ")
    assert error.message.endswith(f"(episode 1, frame 7 of `{CAMERA}`, at 0.700 s of the file)")
    assert error.hint == (
        "copy the file again from where the dataset came from, or leave episode 1 out with "
        "`--dataset.exclude_episodes=[1,2]`"
    )


def test_the_frame_that_is_damaged_is_named_not_the_one_that_waits_in_the_decoder(root):
    overwrite_packets(video(root), [8], first=0)  # the decoder refuses it, while frame 7 is not out yet
    dataset = open_dataset(root=root)
    assert [read_code(frame) for frame in dataset.batch([8 + 6, 8 + 7])[CAMERA]] == [(1, 6), (1, 7)]
    assert read_code(dataset[8 + 7][CAMERA]) == (1, 7)
    assert "(episode 1, frame 8 of" in failure(dataset).message


def test_frames_of_a_merged_file_are_named_in_their_own_episode(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=LENGTHS, cameras={"front": SIZE}, episodes_per_file=None)
    overwrite_packets(video(root, 0), [11])
    error = failure(open_dataset(root=root))
    assert f"frame 11 of `{video(root, 0)}`" in error.message
    assert "(episode 1, frame 3 of" in error.message
    assert "at 1.100 s of the file" in error.message
    assert "--dataset.exclude_episodes=[1]" in error.hint


def test_a_video_that_is_cut_off_while_it_is_read(root):
    dataset = open_dataset(root=root)
    dataset.batch(range(20))
    os.truncate(video(root), video(root).stat().st_size // 2)
    error = failure(dataset)
    assert f"`{video(root)}` cannot be opened as a video" in error.message
    assert error.message.endswith(f"(`{CAMERA}` of episode 1)")
    assert "`--dataset.exclude_episodes=[1]`" in error.hint


def test_a_video_that_becomes_shorter_names_the_first_frame_it_lacks_and_all_episodes(tmp_path, caplog):
    root = build_dataset(tmp_path / "set", lengths=LENGTHS, cameras={"front": SIZE}, episodes_per_file=None)
    dataset = open_dataset(root=root)
    dataset.batch(range(20))
    write_video(tmp_path / "short.mp4", [coded_image(0, frame, SIZE) for frame in range(17)], fps=10)
    (tmp_path / "short.mp4").replace(video(root, 0))
    with caplog.at_level(logging.WARNING):
        error = failure(dataset)
    assert f"`{video(root, 0)}` has 17 frames, frame 17 was asked (episode 1, frame 9 of" in error.message
    assert "leave episodes 1, 2 out with `--dataset.exclude_episodes=[1,2]`" in error.hint
    assert [r.getMessage().split(" (")[0] for r in caplog.records] == [
        f"{video(root, 0)} was changed while it is in use"
    ]


def test_a_video_that_is_deleted_while_it_is_open(root):
    dataset = open_dataset(root=root)
    dataset.batch(range(20))
    video(root).unlink()
    error = failure(dataset)
    assert error.message == f"video file `{video(root)}` does not exist (`{CAMERA}` of episode 1)"
    assert "`--dataset.exclude_episodes=[1]`" in error.hint


@pytest.mark.skipif(sys.platform != "linux", reason="a file whose reading fails is to be had on Linux only")
def test_a_sector_that_cannot_be_read(root):
    dataset = open_dataset(root=root)
    video(root).unlink()
    video(root).symlink_to("/proc/self/mem")  # EIO for whoever reads its beginning
    error = failure(dataset)
    assert "cannot be opened as a video: Input/output error" in error.message
    assert error.message.endswith(f"(`{CAMERA}` of episode 1)")
    assert error.hint.startswith("the file may be whole: look at the disk, the network and the rights; else copy")
    assert "`--dataset.exclude_episodes=[1]`" in error.hint


def test_a_file_whose_state_cannot_be_asked_is_not_called_missing(root, monkeypatch):
    dataset = open_dataset(root=root)
    stat = Path.stat

    def fails(self, **options):
        if self == video(root):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(self, **options)

    monkeypatch.setattr(Path, "stat", fails)
    error = failure(dataset)
    assert error.message == f"`{video(root)}` cannot be read: {os.strerror(errno.ESTALE)} (`{CAMERA}` of episode 1)"


def test_a_damaged_picture_is_named_with_its_row(pictures):
    table = pq.read_table(data(pictures))
    cells = table[CAMERA].to_pylist()
    cells[13]["bytes"] = cells[13]["bytes"][:60]
    column = pa.array(cells, table[CAMERA].type)
    pq.write_table(table.set_column(table.column_names.index(CAMERA), CAMERA, column), data(pictures))
    error = failure(open_dataset(root=pictures, exclude_episodes=[2]))
    assert isinstance(error, DatasetFormatError)
    assert error.message.startswith(f"`{CAMERA}` of episode 1, frame 5 is not a readable picture: ")
    assert error.message.endswith(f"(row 13 of `{data(pictures)}`)")
    assert error.hint == "leave episode 1 out with `--dataset.exclude_episodes=[1,2]`"


def corrupt_row_group(path, group):
    """Destroy the header of the picture column's first page in one row group."""
    column = pq.read_metadata(path).row_group(group)
    (chunk,) = [
        column.column(n) for n in range(column.num_columns) if column.column(n).path_in_schema.endswith("bytes")
    ]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * 40)


def test_a_corrupt_row_group_costs_its_own_episodes_only(pictures):
    dataset = open_dataset(root=pictures)
    corrupt_row_group(data(pictures), 1)
    error = failure(dataset)
    assert f"`{data(pictures)}` is damaged: " in error.message
    assert error.message.endswith(f"(`{CAMERA}` of episode 1, frame 0)")
    assert error.hint == "restore this file from a copy, or leave episode 1 out with `--dataset.exclude_episodes=[1]`"
    loader = loader_of(dataset, on_bad_frame="skip")
    for batch in loader.batches(0):
        for place, (episode, frame) in enumerate(zip(batch["episode_index"], batch["frame_index"], strict=True)):
            assert read_code(batch[CAMERA][place]) == (int(episode), int(frame))
    assert [(bad.episode, bad.frame) for bad in loader.bad_frames] == [(1, frame) for frame in range(12)]


def test_a_data_file_that_is_replaced_serves_no_row_of_another_frame(pictures):
    dataset = open_dataset(root=pictures)
    pq.write_table(pq.read_table(data(pictures)).slice(1), data(pictures))
    error = failure(dataset)
    assert f"`{data(pictures)}` had 30 rows when the dataset was opened, and has 29 now" in error.message


def test_a_data_file_that_is_deleted(pictures):
    dataset = open_dataset(root=pictures)
    data(pictures).unlink()
    error = failure(dataset)
    assert error.message == f"`{data(pictures)}` is missing (`{CAMERA}` of episode 0, frame 0)"


def test_a_full_temporary_folder_blames_no_picture(pictures, monkeypatch):
    monkeypatch.setattr("tempfile.mkstemp", lambda **_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    dataset = open_dataset(root=pictures)
    dataset._source.cells._budget = 0
    loader = loader_of(dataset, on_bad_frame="skip")
    with pytest.raises(CacheError, match=r"encoded pictures cannot be kept in .*No space left") as caught:
        next(loader.batches(0))
    assert "TMPDIR" in caught.value.hint
    assert loader.skipped == 0


# What skipping does


def test_a_window_with_a_bad_frame_makes_its_sample_bad(root):
    overwrite_packets(video(root), [7])
    dataset = open_dataset(root=root, delta_indices={CAMERA: [-2, 0]})
    loader = loader_of(dataset, on_bad_frame="skip")
    list(loader.batches(0))
    assert [(bad.episode, bad.frame) for bad in loader.bad_frames] == [(1, 7), (1, 9)]
    assert all("(episode 1, frame 7 of" in bad.cause for bad in loader.bad_frames)


def test_a_deleted_file_uses_up_the_quota_and_the_message_names_the_episode(root):
    dataset = open_dataset(root=root)
    video(root).unlink()
    error = failure(dataset, on_bad_frame="skip", max_bad_frames=6)
    assert error.message.startswith("7 samples cannot be read, and `--max_bad_frames=6` allows 6; by episode: 1 (7);")
    assert f"`{video(root)}` does not exist" in error.message
    assert "`--dataset.exclude_episodes=[1]`" in error.hint


def test_rows_that_are_not_finite_are_named_by_frame_and_row(tmp_path):
    values = torch.arange(60, dtype=torch.float32).reshape(30, 2).numpy()
    values[12, 1], values[25, 0] = float("nan"), float("inf")
    root = build_dataset(tmp_path / "set", lengths=LENGTHS, columns={"observation.force": values})
    dataset = open_dataset(root=root, delta_indices={"observation.force": [0, 1], "action": range(4)})
    assert dataset.row_faults([0, 11, 12, 13], ["action", "task_index"]) == {}
    cause = f"`observation.force` of episode 1, frame 4 is not finite (row 4 of `{data(root, 1)}`)"
    assert dataset.row_faults([0, 11, 12, 13], ["observation.force", "action"]) == {1: cause, 2: cause}
    view = dataset.with_windows({}, episodes=[2])
    assert list(view.row_faults(range(10), ["observation.force"])) == [5]
    loader = loader_of(
        dataset, on_bad_frame="skip", row_faults=lambda positions: dataset.row_faults(positions, ["observation.force"])
    )
    assert all(torch.isfinite(batch["observation.force"]).all() for batch in loader.batches(0))
    assert [(bad.episode, bad.frame) for bad in loader.bad_frames] == [(1, 3), (1, 4), (2, 4), (2, 5)]


# Whole runs


def settings(root, *more):
    flags = [
        *TINY_ACT,
        "--policy.pretrained_backbone_weights=null",
        "--dataset.repo_id=me/set",
        f"--dataset.root={root}",
        "--batch_size=6",
        "--steps=12",
        "--save_freq=4",
        "--log_freq=1",
        "--seed=5",
        *more,
    ]
    return parse(TrainConfig, flags, prog="mimetic train", load_policy=load_policy).value


def weights(run, step):
    return load_file(run / "checkpoints" / f"{step:06d}" / "pretrained_model" / "model.safetensors")


def bad_frames(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["episode"], record["frame"]) for record in records if record["kind"] == "bad_frame"]


def test_a_run_stops_with_its_steps_saved_and_the_command_of_its_hint_goes_on(mimetic, root, tmp_path):
    overwrite_packets(video(root), [7])
    run = tmp_path / "run"
    done = mimetic(
        "train",
        *TINY_ACT,
        "--policy.pretrained_backbone_weights=null",
        "--dataset.repo_id=me/set",
        f"--dataset.root={root}",
        "--dataset.exclude_episodes=[2]",
        "--batch_size=2",
        "--steps=12",
        "--seed=1",
        "--num_workers=1",
        f"--output_dir={run}",
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"frame 7 of `{video(root)}`" in done.stderr
    assert f"(episode 1, frame 7 of `{CAMERA}`, at 0.700 s of the file)" in done.stderr
    step = find_checkpoint(run).folder.name
    assert f"step {int(step)} is saved" in done.stderr
    assert "`--dataset.exclude_episodes=[1,2]`" in done.stderr
    more = mimetic(
        "train",
        "--resume=true",
        f"--config_path={run}",
        "--dataset.exclude_episodes=[1,2]",
        "--reset_data_order=true",
    )
    assert more.returncode == 0, more.stderr
    assert find_checkpoint(run).folder.name == "000012"


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_a_run_that_skips_is_the_same_when_resumed_and_with_any_workers(root, tmp_path, num_workers):
    overwrite_packets(video(root), [3, 7])
    skip = ["--on_bad_frame=skip", "--dataset.image_transforms.enable=true"]
    train(replace(settings(root, *skip, "--num_workers=0"), output_dir=tmp_path / "whole"))
    config = settings(root, *skip, f"--num_workers={num_workers}")
    train(replace(config, output_dir=tmp_path / "run", steps=7))
    checkpoint = find_checkpoint(tmp_path / "run")
    resumed = decode(TrainConfig, checkpoint.settings(), where="checkpoint")
    train(replace(resumed, resume=True, checkpoint_path=checkpoint.folder, steps=12))
    ours, theirs = weights(tmp_path / "run", 12), weights(tmp_path / "whole", 12)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert sorted(bad_frames(tmp_path / "whole")) == [(1, 3), (1, 7)]
    assert set(bad_frames(tmp_path / "run")) == {(1, 3), (1, 7)}


def test_a_run_that_skips_too_much_stops_with_its_steps_saved(root, tmp_path):
    overwrite_packets(video(root), range(12))
    config = settings(root, "--on_bad_frame=skip", "--max_bad_frames=6", "--num_workers=1", "--batch_size=2")
    with pytest.raises(DatasetError, match="7 samples cannot be read") as caught:
        train(replace(config, output_dir=tmp_path / "run"))
    assert "--dataset.exclude_episodes=[1]" in caught.value.hint
    assert f"step {int(find_checkpoint(tmp_path / 'run').folder.name)} is saved" in caught.value.hint


# Kept features


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Settings of runs on kept features of two cameras."""
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
    FramePolicy.encoded = 0
    root = build_dataset(tmp_path / "set", lengths=LENGTHS, cameras={"front": (48, 64), "side": (48, 64)})
    base = [
        "--policy.type=frame_policy",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--dataset.repo_id=me/set",
        f"--dataset.root={root}",
        f"--cache.folder={tmp_path / 'kept'}",
        "--cache.features=on",
        "--num_workers=1",
        "--steps=9",
        "--batch_size=6",
        "--save_freq=3",
        "--log_freq=1",
    ]
    return root, lambda *more: parse(TrainConfig, [*base, *more], prog="mimetic train", load_policy=load_policy).value


def test_damage_met_while_features_are_built_stops_and_keeps_what_is_built(kept, tmp_path):
    root, config = kept
    overwrite_packets(video(root), [7])
    with pytest.raises(VideoError) as caught:
        train(replace(config(), output_dir=tmp_path / "run"))
    assert f"(episode 1, frame 7 of `{CAMERA}`, at 0.700 s of the file)" in caught.value.message
    assert "`--dataset.exclude_episodes=[1]`" in caught.value.hint
    assert caught.value.hint.endswith("the same command with the episodes left out goes on from there")
    assert not (tmp_path / "run").exists()
    assert FramePolicy.encoded == 8
    train(replace(config("--dataset.exclude_episodes=[1]"), output_dir=tmp_path / "run"))
    assert FramePolicy.encoded == 2 * (8 + 10)  # none of them twice


@pytest.mark.parametrize("more", [[], ["--dataset.image_transforms.enable=true", "--cache.variants=2"]])
def test_features_are_built_without_the_damaged_frames_and_the_run_is_that_on_frames(kept, tmp_path, more):
    root, config = kept
    overwrite_packets(video(root), [7])
    train(replace(config("--on_bad_frame=skip", *more), output_dir=tmp_path / "run"))
    assert bad_frames(tmp_path / "run") == [(1, 7)]
    encoded = FramePolicy.encoded
    assert encoded == (29 + 30) * (2 if more else 1)
    train(replace(config("--on_bad_frame=skip", *more), output_dir=tmp_path / "again"))
    assert bad_frames(tmp_path / "again") == [(1, 7)]
    assert FramePolicy.encoded == encoded
    if not more:
        frames = replace(config("--on_bad_frame=skip"), output_dir=tmp_path / "frames")
        train(replace(frames, cache=replace(frames.cache, features="off")))
        ours, theirs = weights(tmp_path / "run", 9), weights(tmp_path / "frames", 9)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_held_out_frames_are_never_left_out(kept, tmp_path):
    root, config = kept
    overwrite_packets(video(root, 2), [5])
    more = ["--on_bad_frame=skip", "--dataset.eval_split=0.3", "--eval_steps=3"]
    with pytest.raises(VideoError, match="episode 2, frame 5 of"):
        train(replace(config(*more), output_dir=tmp_path / "run"))


def test_a_damaged_cache_is_no_bad_frame(kept, tmp_path):
    _, config = kept
    train(replace(config(), output_dir=tmp_path / "first"))
    for path in (tmp_path / "kept").glob("*/features.bin"):
        with path.open("r+b") as file:
            file.seek(5 * 6 * 8 * 5 * 4)
            file.write(b"\xff\xff\xff")
    with pytest.raises(CacheError, match=r"frame 5 .* damaged"):
        train(replace(config("--on_bad_frame=skip"), output_dir=tmp_path / "run"))


def test_files_in_use_are_those_that_are_read(root, monkeypatch):
    dataset = open_dataset(root=root)
    seen = []
    read = dataset._source.reader._decode
    monkeypatch.setattr(
        dataset._source.reader, "_decode", lambda *args: (seen.append(dataset.files_in_use()), read(*args))[1]
    )
    dataset.batch([0])
    assert [path for path, _ in seen[0]] == [video(root, 0)]
    assert dataset.files_in_use() == []
    shutil.rmtree(root)
    with pytest.raises(VideoError):
        dataset.batch([9])
    assert dataset.files_in_use() == []


def test_rows_that_are_not_finite_are_left_out_when_bad_frames_are(tmp_path):
    """Through the whole training: with "stop" the guard names them, with "skip" the run ends well and lists them."""
    root = build_dataset(tmp_path / "set", lengths=LENGTHS, cameras={"front": SIZE})
    path = min((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    rows = table.column("action").to_pylist()
    rows[3] = [float("nan")] * len(rows[3])
    column = table.schema.get_field_index("action")
    table = table.set_column(column, table.schema.field(column), pa.array(rows, table.schema.field(column).type))
    pq.write_table(table, path)
    flags = [
        *TINY_ACT,
        "--policy.pretrained_backbone_weights=null",
        "--policy.chunk_size=2",
        "--policy.n_action_steps=2",
        "--dataset.repo_id=local/nan",
        f"--dataset.root={root}",
        "--batch_size=5",
        "--steps=6",
        "--num_workers=0",
        "--log_freq=2",
    ]
    config = parse(TrainConfig, flags, prog="mimetic train").value
    with pytest.raises(TrainingError, match="not finite"):
        train(replace(config, output_dir=tmp_path / "stops"))
    train(replace(config, output_dir=tmp_path / "skips", on_bad_frame="skip"))
    records = [json.loads(line) for line in (tmp_path / "skips/metrics.jsonl").read_text().splitlines()]
    bad = {(record["episode"], record["frame"]) for record in records if record["kind"] == "bad_frame"}
    assert bad == {(0, 2), (0, 3)}  # its own sample, and the one whose chunk reaches it
    weights = load_file(tmp_path / "skips/checkpoints/last/pretrained_model/model.safetensors")
    assert all(torch.isfinite(value).all() for value in weights.values() if value.is_floating_point())
