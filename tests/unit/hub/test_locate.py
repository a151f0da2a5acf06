import socket
from types import SimpleNamespace

import pytest

from mimetic.data.reader import find_dataset, open_dataset
from mimetic.errors import ConfigError, DatasetNotFound, HubError, OfflineError
from mimetic.hub import download
from mimetic.hub.download import best_version, download_dataset, download_snapshot
from mimetic.hub.locate import cached_snapshot, hub_cache, is_offline, lerobot_home, local_dataset
from mimetic.testing.datasets import build_dataset


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A private cache, and no way to open a connection."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_LEROBOT_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))

    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return tmp_path / "hf" / "lerobot"


def put_snapshot(cache, repo, commit, refs=()):
    folder = cache / f"datasets--{repo.replace('/', '--')}"
    build_dataset(folder / "snapshots" / commit, lengths=(2,))
    for ref in refs:
        path = folder / "refs" / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    return folder / "snapshots" / commit


def test_folders_follow_the_environment(home, monkeypatch, tmp_path):
    assert lerobot_home() == home
    assert hub_cache() == home.parent / "hub"
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert lerobot_home() == tmp_path / "mine"
    assert hub_cache() == tmp_path / "cache"
    monkeypatch.delenv("HF_HOME")
    monkeypatch.delenv("HF_LEROBOT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert lerobot_home() == tmp_path / "xdg" / "huggingface" / "lerobot"


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_network_can_be_forbidden(home, monkeypatch, value, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert is_offline() is offline


def test_a_given_folder_wins_and_a_local_copy_comes_before_snapshots(home, tmp_path):
    given = build_dataset(tmp_path / "given", lengths=(2,))
    snapshot = put_snapshot(home / "hub", "me/set", "abc", ["v3.0"])
    assert find_dataset("me/set", root=given) == given
    assert find_dataset("me/set") == snapshot
    local = build_dataset(home / "me" / "set", lengths=(3,))
    assert find_dataset("me/set") == local
    assert len(open_dataset("me/set")) == 3
    assert find_dataset("me/set", revision="v3.0") == snapshot
    assert find_dataset(str(given)) == given


def test_snapshots_are_found_by_revision_by_main_or_as_the_only_one(home):
    cache = home / "hub"
    put_snapshot(cache, "me/set", "one", ["v2.1"])
    main = put_snapshot(cache, "me/set", "two", ["main", "refs-pr"])
    assert cached_snapshot("me/set", "dataset", None, cache) == main
    assert cached_snapshot("me/set", "dataset", "v2.1", cache).name == "one"
    assert cached_snapshot("me/set", "dataset", "two", cache) == main
    assert cached_snapshot("me/set", "dataset", "v9", cache) is None
    assert cached_snapshot("me/set", "dataset", "../../x", cache) is None
    assert cached_snapshot("me/other", "dataset", None, cache) is None
    put_snapshot(home.parent / "hub", "me/third", "three")
    assert local_dataset("me/third").name == "three"


def test_offline_an_unknown_name_fails_without_the_network(home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    build_dataset(home / "me" / "pick_cube", lengths=(2,))
    with pytest.raises(DatasetNotFound) as caught:
        find_dataset("me/pick_cub")
    assert str(home / "me" / "pick_cub") in str(caught.value)
    assert "HF_HUB_OFFLINE" in str(caught.value)
    assert "pick_cube" in caught.value.hint
    assert caught.value.exit_code == 2
    for call in (lambda: download_dataset("me/pick_cub"), lambda: download_snapshot("me/x", "model")):
        with pytest.raises(OfflineError, match="HF_HUB_OFFLINE"):
            call()


def test_a_given_folder_never_touches_the_network(home, tmp_path):
    with pytest.raises(DatasetNotFound):
        open_dataset("me/set", root=tmp_path / "missing")
    with pytest.raises(DatasetNotFound):
        open_dataset(str(tmp_path / "missing"))
    with pytest.raises(ConfigError):
        open_dataset("a/b/c")


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["main", "v2.1", "v3.0"], "v3.0"),
        (["v2.0", "v2.1"], "v2.1"),
        (["v3.1", "v1.6"], "v3.1"),
        (["v4.0"], None),
        (["main"], None),
    ],
)
def test_the_best_readable_version_is_chosen(names, best):
    assert best_version(names) == best


class RepositoryNotFoundError(Exception):
    pass


class ConnectError(Exception):
    pass


class LocalEntryNotFoundError(FileNotFoundError, ValueError):
    pass


def unreached():
    error = LocalEntryNotFoundError("An error happened while trying to locate the files on the Hub. Please check ...")
    error.__cause__ = ConnectError("[Errno -2] Name or service\nnot known")
    return error


@pytest.mark.parametrize(
    ("error", "expected", "text"),
    [
        (unreached(), OfflineError, r"cannot be reached \(ConnectError: \[Errno -2\] Name or service not known\)"),
        (RepositoryNotFoundError("404"), HubError, "has no dataset"),
        (ConnectError("no route"), OfflineError, "cannot be reached"),
        (TimeoutError("slow"), OfflineError, "cannot be reached"),
        (ValueError("odd"), HubError, "failed"),
    ],
)
def test_errors_of_the_client_become_ours(home, monkeypatch, error, expected, text):
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(expected, match=text):
        download_snapshot("me/set", "dataset")


def test_a_download_asks_for_the_best_version_and_returns_its_folder(home, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    asked = {}

    def snapshot(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(put_snapshot(home / "hub", "me/set", "abc"))

    refs = SimpleNamespace(tags=[SimpleNamespace(name="v2.1"), SimpleNamespace(name="v3.0")], branches=[])
    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    monkeypatch.setattr(hub.HfApi, "list_repo_refs", lambda self, repo_id, **_: refs)
    assert len(open_dataset("me/set")) == 2
    assert (asked["repo_id"], asked["revision"], asked["repo_type"]) == ("me/set", "v3.0", "dataset")
    assert asked["cache_dir"] == home / "hub"
    assert download.WANTED_VERSION == (3, 0)
