"""Training on a stream: every frame, the same bits after a resume, files fetched from the hub as they are needed."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mimetic.cli.train import load_policy
from mimetic.config.codec import decode
from mimetic.config.parse import parse
from mimetic.data.dataset import Dataset
from mimetic.data.reader import open_dataset
from mimetic.data.stream import open_stream
from mimetic.data.stream_files import StreamFiles
from mimetic.errors import ConfigError, HubError, OfflineError
from mimetic.policies.catalog import POLICIES
from mimetic.testing import frame_policy
from mimetic.testing.datasets import build_dataset
from mimetic.testing.hub_server import Fault, HubServer, as_the_hub
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data
from mimetic.train.resume import find_checkpoint
from mimetic.train.run import train

LENGTHS = (20, 24, 22)


@pytest.fixture(autouse=True)
def known_policy(monkeypatch):
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "set"
    return build_dataset(folder, cameras={"top": (48, 64)}, lengths=LENGTHS, gop=5)


def settings(*more):
    flags = [
        "--policy.type=frame_policy",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
        "--dataset.repo_id=me/set",
        "--dataset.streaming=true",
        "--dataset.buffer_size=12",
        "--dataset.max_num_shards=2",
        "--num_workers=1",
        "--steps=20",
        "--batch_size=8",
        "--log_freq=1",
        "--save_freq=5",
        *more,
    ]
    return parse(TrainConfig, flags, prog="mimetic train", load_policy=load_policy).value


def measured(run):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["steps"], record["loss"]) for record in records if record["kind"] == "train"]


def weights(run):
    return load_file(run / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def read_places(monkeypatch):
    """Episode and frame of every sample that is read, in the order of reading."""
    seen = []
    original = Dataset.batch

    def batch(self, positions, generators=None):
        found = original(self, positions, generators)
        seen.extend(zip(found["episode_index"].tolist(), found["frame_index"].tolist(), strict=True))
        return found

    monkeypatch.setattr(Dataset, "batch", batch)
    return seen


def test_an_epoch_of_a_training_visits_every_frame_once(root, tmp_path, monkeypatch):
    seen = read_places(monkeypatch)
    config = settings(f"--dataset.root={root}", "--num_workers=0", "--steps=9", "--dataset.exclude_episodes=[1]")
    train(replace(config, output_dir=tmp_path / "run"))
    first = seen[:42]  # an epoch ends with a smaller batch
    assert sorted(first) == [(episode, frame) for episode in (0, 2) for frame in range(LENGTHS[episode])]
    assert first != sorted(first)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_stream_goes_on_bit_for_bit(root, tmp_path, workers):
    # cases.md 12
    config = settings(f"--dataset.root={root}", f"--num_workers={workers}", "--dataset.image_transforms.enable=true")
    train(replace(config, output_dir=tmp_path / "whole"))
    for steps in (5, 10, 15, 20):
        if steps == 5:
            train(replace(config, output_dir=tmp_path / "run", steps=5))
            continue
        resumed = decode(TrainConfig, find_checkpoint(tmp_path / "run").settings(), where="checkpoint")
        train(replace(resumed, resume=True, steps=steps, output_dir=tmp_path / "run"))
    assert measured(tmp_path / "run") == measured(tmp_path / "whole")
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_another_order_is_not_taken_for_the_same_run(root, tmp_path):
    config = settings(f"--dataset.root={root}", "--steps=5")
    train(replace(config, output_dir=tmp_path / "run"))
    resumed = decode(TrainConfig, find_checkpoint(tmp_path / "run").settings(), where="checkpoint")
    for changes in ({"buffer_size": 50}, {"max_num_shards": 1}, {"streaming": False}):
        other = replace(resumed, resume=True, steps=6, output_dir=tmp_path / "run")
        other = replace(other, dataset=replace(resumed.dataset, **changes))
        with pytest.raises(ConfigError, match="stream was"):
            train(other)
    map_style = replace(config, dataset=replace(config.dataset, streaming=False), output_dir=tmp_path / "map")
    train(map_style)
    stored = decode(TrainConfig, find_checkpoint(tmp_path / "map").settings(), where="checkpoint")
    with pytest.raises(ConfigError, match="stream was none, is buffer_size=12, max_num_shards=2"):
        train(replace(stored, dataset=config.dataset, resume=True, steps=6, output_dir=tmp_path / "map"))


def test_held_out_episodes_of_a_stream_are_those_of_a_dataset(root, tmp_path):
    more = [f"--dataset.root={root}", "--dataset.eval_split=0.3", "--eval_steps=5", "--steps=5"]
    found = {}
    for streaming in ("true", "false"):
        config = settings(*more, f"--dataset.streaming={streaming}")
        train(replace(config, output_dir=tmp_path / streaming))
        records = map(json.loads, (tmp_path / streaming / "metrics.jsonl").read_text().splitlines())
        assert [record["steps"] for record in records if record["kind"] == "heldout"] == [5]
        heldout = open_training_data(config, config.policy).heldout
        assert heldout.episodes == [2]
        found[streaming] = heldout.batch(range(len(heldout)))
    for key, value in found["true"].items():
        assert torch.equal(value, found["false"][key]) if isinstance(value, torch.Tensor) else True


def test_bad_frames_of_a_stream_are_skipped_and_named(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)}, lengths=LENGTHS, gop=5)
    path = root / "videos" / "observation.images.top" / "chunk-000" / "file-001.mp4"
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 300 : start + 700] = b"\xa5" * 400
    path.write_bytes(bytes(content))
    config = settings(f"--dataset.root={root}", "--on_bad_frame=skip")
    train(replace(config, output_dir=tmp_path / "run"))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    bad = [record for record in records if record["kind"] == "bad_frame"]
    assert bad
    assert all(record["episode"] == 1 and str(path) in record["cause"] for record in bad)


def test_nothing_is_cached_for_a_stream_and_nothing_is_said_about_it(root, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path / "cache"))
    train(replace(settings(f"--dataset.root={root}"), output_dir=tmp_path / "run"))
    assert not (tmp_path / "cache").exists()
    assert "features of" not in caplog.text


# From the hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "lerobot"))
    monkeypatch.setattr("mimetic.data.stream_files.PAUSES_S", (0.0,))
    with HubServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            yield server


@pytest.fixture
def on_hub(hub, root):
    import huggingface_hub

    client = huggingface_hub.HfApi()
    client.create_repo("me/set", repo_type="dataset")
    client.upload_folder(repo_id="me/set", folder_path=root, repo_type="dataset")
    client.create_tag("me/set", tag="v3.0", repo_type="dataset")
    hub.requests.clear()
    return hub


def fetched(hub):
    """Files of the repository that were asked for with their content, in order."""
    return [
        path.split("/resolve/")[1].split("/", 1)[1]
        for method, path, status in hub.requests
        if method == "GET" and "/resolve/" in path and status == 200
    ]


def test_files_of_a_repository_are_fetched_as_they_are_needed(on_hub, root, tmp_path):
    stream = open_stream("me/set")
    assert all(name.startswith("meta/") for name in fetched(on_hub))
    samples = stream.samples(0, buffer_size=1, max_num_shards=1, shuffle=False)
    whole = list(open_dataset(root=root))
    first = [next(samples) for _ in range(3)]
    assert [int(sample["index"]) for sample in first] == [0, 1, 2]
    rest = list(samples)
    for one, two in zip([*first, *rest], whole, strict=True):
        assert all(torch.equal(value, two[key]) for key, value in one.items() if isinstance(value, torch.Tensor))
    stream.close()
    data = [name for name in fetched(on_hub) if name.startswith("data/")]
    assert data == sorted(set(data))  # each of them once, in the order of need
    assert len(data) == 3
    again = open_stream("me/set")
    on_hub.requests.clear()
    assert len(list(again.samples(0))) == 66
    assert fetched(on_hub) == []
    again.close()


def test_a_partly_fetched_dataset_is_never_taken_for_the_whole(on_hub, root):
    stream = open_stream("me/set")
    stream.item(0)
    stream.close()
    assert len(open_dataset("me/set")) == 66  # downloads what is missing, instead of complaining about it
    assert np.array_equal(open_dataset("me/set").column("index"), np.arange(66))


def test_a_training_streams_from_the_hub(on_hub, root, tmp_path):
    train(replace(settings("--steps=10"), output_dir=tmp_path / "hub"))
    train(replace(settings("--steps=10", f"--dataset.root={root}"), output_dir=tmp_path / "local"))
    assert measured(tmp_path / "hub") == measured(tmp_path / "local")


def test_a_fault_of_the_hub_in_the_middle_is_tried_again_then_saved_and_named(on_hub, tmp_path, caplog):
    on_hub.fail(Fault("data/chunk-000/file-00[012]", times=2, status=503))
    train(replace(settings("--steps=10"), output_dir=tmp_path / "run"))
    on_hub.fail(Fault("videos/", times=1000, status=404))
    (tmp_path / "cache").rename(tmp_path / "old")
    with pytest.raises(HubError, match=r"`videos/.*\.mp4` of dataset `me/set` cannot be fetched"):
        train(replace(settings("--steps=10"), output_dir=tmp_path / "other"))


def test_without_the_network_the_message_says_so(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="forbids the network"):
        open_stream("me/set")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(HubError, match="no dataset `me/nothing`"):
        open_stream("me/nothing")


def test_what_was_fetched_before_can_be_streamed_without_the_network(on_hub, root, monkeypatch, caplog):
    stream = open_stream("me/set", episodes=[0])
    whole = [int(sample["index"]) for sample in stream.samples(0)]
    stream.close()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    again = open_stream("me/set", episodes=[0])
    assert [int(sample["index"]) for sample in again.samples(0)] == whole
    assert "going on with what was fetched of it before" in caplog.text
    with pytest.raises(OfflineError):
        list(open_stream("me/set").samples(0))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    on_hub.fail(Fault("", times=1000, drop="before"))
    assert len(list(open_stream("me/set", episodes=[0]).samples(0))) == 20


def test_the_end_of_a_training_does_not_wait_for_files_that_nobody_needs(on_hub, tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr(StreamFiles, "close", lambda self: closed.append(self))
    train(replace(settings("--steps=2"), output_dir=tmp_path / "run"))
    assert closed
