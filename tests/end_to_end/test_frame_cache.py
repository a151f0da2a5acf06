"""Training on kept frames is training on decoded ones, bit for bit; what cannot be kept does not stop a run."""

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mimetic.cli.train import load_policy
from mimetic.config.codec import decode as decode_config
from mimetic.config.parse import parse
from mimetic.data.frames import decode
from mimetic.data.source import Source
from mimetic.errors import CacheError, ConfigError, WorkerError
from mimetic.policies.catalog import POLICIES
from mimetic.testing import frame_policy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_flags, write_tiny_vlm
from mimetic.train.bottleneck import Bottleneck
from mimetic.train.config import TrainConfig
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

LENGTHS = (20, 24, 22)
FRAMES = sum(LENGTHS)
MEASURES = ("loss", "grad_norm", "lr", "eval_loss", "eval_loss_per_task")

CHILD = """
import os, sys, time
from mimetic.cli.app import main
from mimetic.policies.catalog import POLICIES
from mimetic.testing import frame_policy
POLICIES._entries[frame_policy.NAME] = frame_policy.ENTRY
from mimetic.data.frames import decode
decode.FRAMES_A_TASK = 4
rows = decode.decode_rows
def slow(task):
    while os.path.exists(sys.argv[1]) and task.numbers[0] > 10:
        time.sleep(0.02)
    return rows(task)
decode.decode_rows = slow
sys.exit(main(["train", *sys.argv[2:]]))
"""


@pytest.fixture(autouse=True)
def known_policy(monkeypatch):
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    cameras = {"top": (48, 64), "side": (48, 64)}
    return build_dataset(tmp_path_factory.mktemp("data") / "set", cameras=cameras, lengths=LENGTHS, gop=5)


def flags(root, folder, *more):
    return [
        "--policy.type=frame_policy",
        "--policy.freeze=false",  # a frozen encoder's features would be kept, and no frame be read
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--dataset.repo_id=me/set",
        f"--dataset.root={root}",
        f"--dataset.cache_folder={folder}",
        "--num_workers=1",
        "--steps=18",
        "--batch_size=8",
        "--log_freq=1",
        "--save_freq=6",
        *more,
    ]


def settings(root, folder, *more):
    return parse(TrainConfig, flags(root, folder, *more), prog="mimetic train").value


def measured(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [{key: record[key] for key in MEASURES if key in record} for record in records]
    return [record for record in found if record]


def weights(run):
    return load_file(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def assert_same_run(one, two):
    assert measured(one) == measured(two)
    ours, theirs = weights(one), weights(two)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.fixture(scope="module")
def plain(root, tmp_path_factory):
    """The run without a cache, with which others are compared."""
    run = tmp_path_factory.mktemp("plain") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
        train(replace(settings(root, run.parent / "kept", "--dataset.cache=off"), output_dir=run))
    return run


def reads(monkeypatch):
    """Counts the frames that are decoded for samples."""
    counted = []
    original = Source.read_raw

    def counting(self, key, rows):
        counted.append(len(rows))
        return original(self, key, rows)

    monkeypatch.setattr(Source, "read_raw", counting)
    return counted


@pytest.mark.parametrize(
    "more",
    [
        ("--dataset.eval_split=0.3", "--eval_steps=6"),
        ("--dataset.image_transforms.enable=true", "--num_workers=3"),
    ],
    ids=["held out", "augmented"],
)
def test_a_run_on_kept_frames_is_the_run_on_decoded_ones(root, tmp_path, monkeypatch, caplog, more):
    caplog.set_level(logging.INFO)
    counted = reads(monkeypatch)
    plain = settings(root, tmp_path / "kept", *more, "--dataset.cache=off")
    train(replace(plain, output_dir=tmp_path / "plain"))
    assert sum(counted) >= 2 * 18 * 8 - 24
    for mode in ("auto", "frames", "memory"):
        counted.clear()
        caplog.clear()
        config = settings(root, tmp_path / "kept", *more, f"--dataset.cache={mode}")
        train(replace(config, output_dir=tmp_path / mode))
        assert counted == [], mode
        assert_same_run(tmp_path / mode, tmp_path / "plain")
        assert "decoded frames are kept" in caplog.text
    assert "all of them are there already" not in caplog.text  # the last one was in memory


def test_a_cached_run_is_resumed_with_and_without_its_cache_bit_for_bit(root, tmp_path):
    whole = settings(root, tmp_path / "kept")
    train(replace(whole, output_dir=tmp_path / "whole"))
    train(replace(whole, output_dir=tmp_path / "run", steps=6))
    resumed = decode_config(TrainConfig, find_checkpoint(tmp_path / "run").settings(), where="checkpoint")
    assert resumed.dataset.cache == "auto"
    train(
        replace(
            resumed,
            steps=18,
            resume=True,
            output_dir=tmp_path / "run",
            dataset=replace(resumed.dataset, cache="off"),
        )
    )
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_auto_says_in_one_line_what_it_does_and_why(root, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    train(replace(settings(root, tmp_path / "kept", "--steps=3"), output_dir=tmp_path / "short"))
    assert (
        "decoded frames are not kept: each is read about 0.4 times in this run, so keeping them would not pay "
        "(--dataset.cache=frames keeps them all the same)" in caplog.messages
    )
    assert not (tmp_path / "kept").exists()
    caplog.clear()
    train(replace(settings(root, tmp_path / "kept"), output_dir=tmp_path / "long"))
    (line,) = [text for text in caplog.messages if text.startswith("decoded frames are kept")]
    assert f"on disk in {tmp_path / 'kept'}: 66 frames x 2 cameras, 1.2 MB (each is read about 2.2 times" in line
    assert "decoding takes about 1 s" in line
    assert any(text.startswith("frames are kept: 132 decoded in") for text in caplog.messages)
    caplog.clear()
    train(replace(settings(root, tmp_path / "kept", "--steps=3"), output_dir=tmp_path / "again"))
    assert "all of them are there already" in caplog.text


def test_what_was_asked_for_and_does_not_fit_ends_the_run_before_its_folder(root, tmp_path):
    config = settings(root, tmp_path / "kept", "--dataset.cache=frames", "--dataset.cache_gb=0.001")
    with pytest.raises(ConfigError, match=r"need 1\.2 MB more on disk, and the budget there is 1\.0 MB"):
        train(replace(config, output_dir=tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    fits = settings(root, tmp_path / "kept", "--dataset.cache=auto", "--dataset.cache_gb=0.001", "--steps=20")
    train(replace(fits, output_dir=tmp_path / "run"))


def test_a_full_disk_is_said_and_training_goes_on_with_what_is_kept(root, plain, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(decode, "FRAMES_A_TASK", 8)
    write, calls = decode._write_at, []

    def full(*args):
        calls.append(1)
        if len(calls) > 30:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*args)

    monkeypatch.setattr(decode, "_write_at", full)
    counted = reads(monkeypatch)
    train(replace(settings(root, tmp_path / "kept", "--dataset.cache=frames"), output_dir=tmp_path / "run"))
    told = [text for text in caplog.messages if "No space left on device" in text]
    assert len(told) == 2  # one a camera
    assert all("training goes on and decodes what is not kept" in text for text in told)
    assert 0 < sum(counted) < 2 * 18 * 8
    assert_same_run(tmp_path / "run", plain)


@pytest.mark.parametrize("error", [WorkerError("a worker process was ended"), CacheError("cannot be locked")])
def test_a_build_that_fails_is_said_and_every_frame_decoded(root, tmp_path, monkeypatch, caplog, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("mimetic.train.frames.build_on_disk", fail)
    counted = reads(monkeypatch)
    config = settings(root, tmp_path / "kept", "--dataset.cache=frames", "--steps=2")
    train(replace(config, output_dir=tmp_path / "run"))
    assert sum(counted) >= 2 * 2 * 8
    assert f"{error.message}; training goes on and decodes what is not kept" in caplog.text


def test_bad_frames_are_skipped_and_told_as_without_a_cache(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)}, lengths=LENGTHS, gop=5)
    path = root / "videos" / "observation.images.top" / "chunk-000" / "file-001.mp4"
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 300 : start + 700] = b"\xa5" * 400
    path.write_bytes(bytes(content))
    for mode in ("off", "frames", "memory"):
        config = settings(root, tmp_path / "kept", f"--dataset.cache={mode}", "--on_bad_frame=skip")
        train(replace(config, output_dir=tmp_path / mode))

    def told(run):
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [record for record in records if record["kind"] == "bad_frame"]

    assert told(tmp_path / "off")
    for mode in ("frames", "memory"):
        assert told(tmp_path / mode) == told(tmp_path / "off")
        assert_same_run(tmp_path / mode, tmp_path / "off")


# Resized


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "vlm")


def noise(episode, frame, size):
    chance = np.random.default_rng([episode, frame])
    return chance.integers(0, 256, (*size, 3), dtype=np.uint8)


def test_resized_frames_are_asked_for_measured_and_said(vlm, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64), "side": (48, 64)}, lengths=LENGTHS, picture=noise)
    base = [argument for argument in flags(root, tmp_path / "kept") if not argument.startswith("--policy.")]
    base += [*tiny_smolvla_flags(vlm), "--policy.precision=float32", "--cache.features=off", "--steps=6"]

    def run(name, *more):
        caplog.clear()
        config = parse(TrainConfig, [*base, *more], prog="mimetic train", load_policy=load_policy).value
        train(replace(config, output_dir=tmp_path / name))
        return [record["loss"] for record in measured(tmp_path / name)]

    plain, exact = run("plain", "--dataset.cache=off"), run("exact", "--dataset.cache=frames")
    assert exact == plain
    assert "differ from the policy's own resize" not in caplog.text
    small = run("small", "--dataset.cache=frames", "--dataset.cache_resize=true")
    height, width = decode_config(
        TrainConfig, find_checkpoint(tmp_path / "small").settings(), where=""
    ).policy.frame_size(48, 64)
    assert f"66 frames x 2 cameras resized to {width}x{height}" in caplog.text
    (line,) = [text for text in caplog.messages if "differ from the policy's own resize" in text]
    assert re.search(r"by at most 0\.00\d\d and by 0\.00\d\d in the mean", line)
    assert small != plain
    # Half of 1/255 in the frames, through a few layers: far less than what another frame would give.
    assert small == pytest.approx(plain, rel=2e-2)
    assert run("memory", "--dataset.cache=memory", "--dataset.cache_resize=true") == small


def test_a_policy_that_does_not_resize_keeps_full_frames(root, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    config = settings(root, tmp_path / "kept", "--dataset.cache=frames", "--dataset.cache_resize=true", "--steps=2")
    train(replace(config, output_dir=tmp_path / "run"))
    assert "--dataset.cache_resize has no effect: the policy reads frames in their own size" in caplog.messages
    assert "differ from the policy's own resize" not in caplog.text


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--dataset.cache_resize=true"], "changes what the policy learns from"),
        (["--dataset.cache_gb=0"], "must be above 0"),
        (["--dataset.cache=frames", "--dataset.streaming=true"], "needs the whole dataset"),
        (["--cache.features=on", "--dataset.streaming=true"], "encodes the whole dataset first"),
        (["--dataset.cache=ram"], "expected `auto`, `frames`, `memory` or `off`"),
        (["--dataset.repo_type=bucket", "--dataset.streaming=true"], "buckets are not part of mimetic yet"),
        (["--dataset.streaming=true", "--dataset.buffer_size=0"], "must be at least 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_at_once(root, tmp_path, more, problem):
    with pytest.raises(ConfigError, match=problem):
        settings(root, tmp_path, *more)


# Stopped


def start(root, folder, hold, *more):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(hold), *flags(root, folder, *more)],
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_rows(folder, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if any(any(path.read_bytes()) for path in folder.glob("*/marks.bin")):
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate(timeout=60)[1])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_a_build_that_is_killed_or_stopped_is_continued_by_the_same_command(root, plain, tmp_path, monkeypatch, number):
    folder, hold = tmp_path / "kept", tmp_path / "hold"
    hold.touch()
    more = ["--dataset.cache=frames", f"--output_dir={tmp_path / 'run'}"]
    process = start(root, folder, hold, *more)
    wait_for_rows(folder, process)
    process.send_signal(number)
    if number == signal.SIGINT:
        time.sleep(0.3)
        hold.unlink()
    told = process.communicate(timeout=60)[1]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped while decoding frames" in told
        assert "the same command continues" in told
    assert not (tmp_path / "run").exists()
    hold.unlink(missing_ok=True)
    decoded = []
    original = decode.write_rows

    def counting(task):
        decoded.append(len(task.numbers))
        return original(task)

    monkeypatch.setattr("mimetic.data.frames.builder.write_rows", counting)
    train(replace(settings(root, folder, *more), output_dir=tmp_path / "run"))
    assert 0 < sum(decoded) < 2 * FRAMES
    assert_same_run(tmp_path / "run", plain)


# What limits a run


def test_the_log_says_once_which_side_waits_and_what_would_help(root, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    original = Source.read_raw

    def slow(self, key, rows):
        time.sleep(0.05)
        return original(self, key, rows)

    monkeypatch.setattr(Source, "read_raw", slow)
    config = settings(root, tmp_path / "kept", "--dataset.cache=off", "--steps=4", "--num_workers=0")
    train(replace(config, output_dir=tmp_path / "run"))
    (line,) = [text for text in caplog.messages if "limits this run" in text]
    assert line.startswith("decoding frames limits this run: the step waits for data ")
    assert "--dataset.cache=frames would decode each frame once (1.2 MB, at most " in line
    assert "--num_workers is 0" in line


@pytest.mark.parametrize(
    ("waited", "mode", "streaming", "parts"),
    [
        (0.1, "off", "false", ["computing limits this run", "10% of the time (0.100 of 1.000 s a step)"]),
        (0.9, "frames", "false", ["reading data limits this run", "90%", "a faster disk", "--num_workers is 1"]),
        (0.9, "off", "true", ["--dataset.streaming=false --dataset.cache=frames would", "would take about 0.100 s"]),
    ],
)
def test_the_verdict_fits_the_figures(root, tmp_path, waited, mode, streaming, parts):
    from mimetic.train.data import open_training_data
    from mimetic.train.frames import plan_kept_frames

    config = settings(root, tmp_path, f"--dataset.streaming={streaming}")
    data = open_training_data(config, config.policy)
    plan = replace(plan_kept_frames(config, data, config.policy, step=0), mode=mode)
    said = Bottleneck(config, plan).verdict({"dataloading_s": waited, "step_s": 1.0})
    for part in parts:
        assert part in said
