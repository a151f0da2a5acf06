"""Datasets to the hub and back, with the real client and a stand-in for the server."""

from types import SimpleNamespace

import pytest

from mimetic.data.publish import dataset_files, pull_dataset, push_dataset
from mimetic.data.record.journal import WORK_DIR
from mimetic.data.writer import DatasetWriter
from mimetic.errors import ConfigError, DatasetError, DatasetNotFound, HubError, OfflineError
from mimetic.testing.hub_server import Fault, HubServer, as_the_hub
from mimetic.testing.hub_store import Account

from .conftest import add, files, record


@pytest.fixture
def hub(tmp_path, monkeypatch):
    http = pytest.importorskip("huggingface_hub.utils._http", reason="needs huggingface_hub")
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("mimetic.data.publish.time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(http, "time", SimpleNamespace(sleep=lambda seconds: None), raising=False)
    with HubServer({"hf_" + "a" * 34: Account("me")}) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            yield server


@pytest.fixture
def dataset(root):
    record(root, (3, 2))
    return root


def contents(root):
    return {name: (root / name).read_bytes() for name in files(root)}


def test_what_comes_back_is_what_was_pushed(hub, dataset, tmp_path):
    arrived = []
    pushed = push_dataset(dataset, "me/pick", private=True, tags=["kitchen"], progress=lambda: arrived.append(1))
    repo = hub.repo("me/pick", "dataset")
    assert repo.private
    assert repo.tags == {"v3.0": pushed.commit}
    assert pushed.n_files == len(files(dataset)) + 1
    assert arrived
    assert b"visualize_dataset?path=me/pick" in repo.read("README.md")
    back = pull_dataset("me/pick", tmp_path / "back")
    assert {name: data for name, data in contents(back).items() if name != "README.md"} == contents(dataset)
    with DatasetWriter.resume("me/pick", back) as writer:
        add(writer, 2, 2)
        writer.save_episode()
    assert contents(dataset) == {n: d for n, d in contents(dataset).items() if not n.startswith(".")}


def test_a_second_push_replaces_moves_the_tag_and_removes_what_is_gone(hub, dataset):
    first = push_dataset(dataset, "me/pick")
    hub.store.put("me/pick", {"notes.txt": b"mine", "videos/old/chunk-000/file-000.mp4": b"x"}, repo_type="dataset")
    with DatasetWriter.resume("me/pick", dataset) as writer:
        add(writer, 2, 4)
        writer.save_episode()
    second = push_dataset(dataset, "me/pick")
    repo = hub.repo("me/pick", "dataset")
    assert repo.tags == {"v3.0": second.commit}
    assert first.commit != second.commit
    assert set(repo.files) == {*files(dataset), "README.md", "notes.txt", ".gitattributes"}


def test_an_own_card_is_kept(hub, dataset):
    (dataset / "README.md").write_text("# mine")
    push_dataset(dataset, "me/pick")
    assert hub.repo("me/pick", "dataset").read("README.md") == b"# mine"


def test_a_card_that_somebody_wrote_on_the_hub_is_kept_and_ours_is_renewed(hub, dataset):
    push_dataset(dataset, "me/pick")
    push_dataset(dataset, "me/pick", tags=["kitchen"])
    assert b"- kitchen" in hub.repo("me/pick", "dataset").read("README.md")
    hub.store.put("me/pick", {"README.md": b"# mine"}, repo_type="dataset")
    push_dataset(dataset, "me/pick")
    assert hub.repo("me/pick", "dataset").read("README.md") == b"# mine"


def test_videos_may_stay_at_home(hub, dataset):
    push_dataset(dataset, "me/pick", videos=False, tag_version=False)
    repo = hub.repo("me/pick", "dataset")
    assert not [name for name in repo.files if name.startswith("videos")]
    assert repo.tags == {}


def test_only_files_of_the_dataset_are_sent(dataset, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (dataset / "meta" / "link.json").symlink_to(tmp_path / "secret.json")
    (dataset / "meta" / ".hidden.json").write_text("{}")
    (dataset / "data" / "notes.txt").write_text("x")
    (dataset / "data" / "chunk-000" / "file-000.parquet.broken").write_bytes(b"x")
    (dataset / "images").mkdir()
    (dataset / "images" / "x.png").write_bytes(b"x")
    own = [name for name in files(dataset) if name.startswith(("meta/", "data/", "videos/"))]
    left_out = {"meta/link.json", "meta/.hidden.json", "data/notes.txt", "data/chunk-000/file-000.parquet.broken"}
    assert sorted(dataset_files(dataset)) == sorted(set(own) - left_out)


def test_a_name_is_needed(hub, dataset):
    with pytest.raises(ConfigError, match="no repository was named") as caught:
        push_dataset(dataset, "")
    assert "--repo_id=USER/NAME" in caught.value.hint
    with pytest.raises(ConfigError, match="`--repo_id=pick` is not a name"):
        push_dataset(dataset, "pick")
    assert hub.store.repos == {}


def test_what_is_no_dataset_or_is_being_recorded_is_not_pushed(hub, root, tmp_path):
    with pytest.raises(DatasetNotFound):
        push_dataset(tmp_path, "me/pick")
    writer = record(root, (2,), finalize=False)
    with pytest.raises(DatasetError, match="is being recorded"):
        push_dataset(root, "me/pick")
    writer.finalize()
    assert not (root / WORK_DIR).exists()
    push_dataset(root, "me/pick")


def test_a_token_in_a_card_stays_here(hub, dataset):
    (dataset / "README.md").write_text("token: hf_" + "b" * 34)
    with pytest.raises(ConfigError, match="looks like a token"):
        push_dataset(dataset, "me/pick")
    assert hub.store.repos == {}


def test_a_private_dataset_never_goes_to_a_public_repository(hub, dataset):
    hub.store.create("me/pick", "dataset")
    with pytest.raises(ConfigError, match="`--private=true`, and the repository me/pick is there already and public"):
        push_dataset(dataset, "me/pick", private=True)


def test_failures_that_pass_are_tried_again(hub, dataset, caplog):
    hub.fail(Fault(path="commit", method="POST", times=2, status=503))
    push_dataset(dataset, "me/pick")
    assert "meta/info.json" in hub.repo("me/pick", "dataset").files


def test_a_hub_that_keeps_failing_is_said(hub, dataset):
    hub.fail(Fault(path="commit", method="POST", times=99, status=500))
    with pytest.raises(HubError, match="could not be pushed"):
        push_dataset(dataset, "me/pick")
    assert set(hub.repo("me/pick", "dataset").files) == {".gitattributes"}


def test_without_the_network_nothing_is_tried(dataset, tmp_path):
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE"):
        push_dataset(dataset, "me/pick")
    with pytest.raises(OfflineError):
        pull_dataset("me/pick", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_what_cannot_be_pulled_leaves_nothing(hub, dataset, tmp_path):
    with pytest.raises(HubError):
        pull_dataset("me/absent", tmp_path / "back")
    hub.store.put("me/odd", {"README.md": b"x"}, repo_type="dataset")
    with pytest.raises(DatasetNotFound):
        pull_dataset("me/odd", tmp_path / "back")
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("back")]
    push_dataset(dataset, "me/pick")
    with pytest.raises(DatasetError, match="exists already"):
        pull_dataset("me/pick", dataset)
