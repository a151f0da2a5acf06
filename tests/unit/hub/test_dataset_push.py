"""Datasets are pushed to a stand-in for the hub with the real client (`mimetic.testing.hub_server`)."""

from __future__ import annotations

import pytest

from mimetic.cli.app import main
from mimetic.data.publish import push_dataset
from mimetic.data.reader import open_dataset
from mimetic.errors import OfflineError
from mimetic.testing.datasets import TinyDataset, build_dataset
from mimetic.testing.hub_server import HubServer, as_the_hub


@pytest.fixture
def hub(monkeypatch):
    with HubServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            yield server


@pytest.fixture
def old(tmp_path):
    return build_dataset(tmp_path / "pick", TinyDataset(version="v2.1", lengths=(3, 4)))


def test_a_conversion_is_pushed_only_when_asked_for(hub, old, capsys):
    assert main(["dataset", "convert", f"--root={old}", "--repo-id=me/pick", "--engine=serial"]) == 0
    assert hub.requests == []
    assert (old.parent / "pick_v30").is_dir()


def test_a_pushed_conversion_can_be_opened_from_the_hub(hub, old, capsys, monkeypatch, tmp_path):
    flags = ["--repo-id=me/pick", "--push-to-hub", "true", "--private=true", "--engine=serial"]
    assert main(["dataset", "convert", f"--root={old}", *flags]) == 0
    repo = hub.repo("me/pick", "dataset")
    assert repo.private
    assert "LeRobot" in repo.read("README.md").decode()
    assert repo.tags == {"v3.0": repo.commit("main").oid}
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "elsewhere"))
    dataset = open_dataset("me/pick")
    assert dataset.meta.version == "v3.0"
    assert len(dataset) == 7


def test_files_of_the_older_layout_go_and_others_stay(hub, old, capsys):
    push_dataset(old, "me/pick")
    hub.store.put("me/pick", {"notes.txt": b"mine", "README.md": b"my card"}, repo_type="dataset")
    before = hub.repo("me/pick", "dataset")
    assert "data/chunk-000/episode_000001.parquet" in before.files
    assert main(["dataset", "convert", f"--root={old}", "--repo_id=me/pick", "--push_to_hub=true"]) == 0
    repo = hub.repo("me/pick", "dataset")
    assert {name for name in repo.files if "episode_" in name or name.endswith(".jsonl")} == set()
    assert "data/chunk-000/file-000.parquet" in repo.files
    assert (repo.read("notes.txt"), repo.read("README.md")) == (b"mine", b"my card")
    assert set(repo.tags) == {"v2.1", "v3.0"}


def test_the_tag_moves_with_a_second_push(hub, old):
    push_dataset(old, "me/pick")
    first = hub.repo("me/pick", "dataset").tags["v2.1"]
    (old / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "another"}\n')
    push_dataset(old, "me/pick")
    repo = hub.repo("me/pick", "dataset")
    assert repo.tags["v2.1"] == repo.commit("main").oid != first


def test_what_cannot_be_pushed_is_said_before_any_work(hub, old, monkeypatch, capsys):
    command = ["dataset", "convert", f"--root={old}", "--push_to_hub=true"]
    assert main([*command, "--repo_id=you/pick"]) == 2
    said = capsys.readouterr().err
    assert "`--repo_id=you/pick`: the token of `me` may not write there" in said
    assert "leave `--push_to_hub` out" in said
    hub.store.create("me/pick", repo_type="dataset")
    assert main([*command, "--repo_id=me/pick", "--private=true"]) == 2
    assert "public" in capsys.readouterr().err
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main([*command, "--repo_id=me/pick"]) == OfflineError.exit_code
    assert "HF_HUB_OFFLINE forbids the network" in capsys.readouterr().err
    assert not (old.parent / "pick_v30").exists()


@pytest.fixture
def new(tmp_path):
    return build_dataset(tmp_path / "set", TinyDataset(lengths=(3, 4, 2)))


def test_an_edit_is_pushed_under_the_name_of_its_result(hub, new, capsys, monkeypatch, tmp_path):
    command = [
        "dataset",
        "edit",
        f"--root={new}",
        "--operation.type=delete_episodes",
        "--operation.episode_indices=[1]",
    ]
    names = ["--repo_id=me/set", f"--new_root={tmp_path / 'fewer'}"]
    assert main([*command, *names, "--push_to_hub=true"]) == 2  # whether me/set is meant nobody said
    assert "--new_repo_id" in capsys.readouterr().err
    assert main([*command, *names, "--new_repo_id=me/fewer", "--push_to_hub=true", "--dry_run=true"]) == 0
    assert hub.requests == []
    assert main([*command, *names, "--new_repo_id=me/fewer", "--push_to_hub=true"]) == 0
    assert "pushed to me/fewer: " in capsys.readouterr().err
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "elsewhere"))
    assert len(open_dataset("me/fewer")) == 5


def test_the_parts_of_a_split_are_pushed_each(hub, new, monkeypatch, tmp_path):
    flags = ["--operation.type=split", "--operation.splits={train: 0.7, val: 0.3}", "--push_to_hub=true"]
    assert main(["dataset", "edit", f"--root={new}", "--repo_id=me/set", *flags]) == 0
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "elsewhere"))
    assert [len(open_dataset(f"me/set_{name}")) for name in ("train", "val")] == [7, 2]


def test_an_edit_that_cannot_be_pushed_is_not_begun(hub, new, capsys):
    flags = ["--operation.type=delete_episodes", "--operation.episode_indices=[1]", "--push_to_hub=true"]
    assert main(["dataset", "edit", f"--root={new}", "--repo_id=you/set", *flags]) == 2
    assert "`--new_repo_id=you/set`: the token of `me` may not write there" in capsys.readouterr().err
    assert {path.name for path in new.parent.iterdir()} == {"set"}
