import json
import re

import pytest

from mimetic.errors import CheckpointError, CheckpointNotFound, HubError, OfflineError
from mimetic.hub.checkpoints import looks_like_hub_id, newest_checkpoint, newest_policy, require_safe, settings_file
from mimetic.hub.policies import find_policy
from mimetic.testing.hub_server import Fault


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("manifest", [True, False])
def test_the_newest_checkpoint_arrives_alone_and_whole(hub, remote_files, tmp_path, manifest):
    wanted = remote_files("000010", manifest=manifest)
    hub.store.put("me/pick", {**remote_files("000009"), **wanted, "config.json": b"{}"})
    remote, lacks = newest_checkpoint("me/pick")
    assert (remote.name, lacks, remote.bytes) == ("000010", [], sum(map(len, wanted.values())))
    folder = remote.download(tmp_path / "run")
    assert folder == tmp_path / "run" / "checkpoints" / "000010"
    assert contents(tmp_path / "run") == wanted


def test_steps_are_compared_as_numbers(hub, remote_files):
    hub.store.put("me/pick", {**remote_files("999999"), **remote_files("1000000")})
    assert newest_checkpoint("me/pick")[0].name == "1000000"


def test_settings_come_without_the_weights(hub, remote_files):
    hub.store.put("me/pick", remote_files())
    folder = newest_checkpoint("me/pick")[0].settings_folder()
    assert json.loads((folder / "train_config.json").read_text()) == {"seed": 3}
    assert not any("model.safetensors" in path for method, path, _ in hub.requests if "resolve" in path)


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ({"pretrained_model/model.safetensors": None}, "pretrained_model/model.safetensors"),
        ({"pretrained_model/model.safetensors": b"half"}, r"the whole of pretrained_model/model.safetensors \(4 of 7"),
        ({"mimetic.json": b"{"}, "a readable mimetic.json"),
        ({"mimetic.json": b'{"files": {"a": 3}}'}, "a readable mimetic.json"),
        ({"mimetic.json": None, "training_state/training_step.json": None}, "training_state/training_step.json"),
        (
            {
                "mimetic.json": None,
                "training_state/optimizer_state.safetensors": None,
                "training_state/optimizer_param_groups.json": None,
            },
            "the optimiser's state",
        ),
    ],
)
def test_an_incomplete_checkpoint_is_passed_over_and_named(hub, remote_files, change, lack):
    files = remote_files("000004")
    for name, data in change.items():
        files.pop(f"checkpoints/000004/{name}")
        if data is not None:
            files[f"checkpoints/000004/{name}"] = data
    hub.store.put("me/pick", {**remote_files("000002"), **files})
    remote, lacks = newest_checkpoint("me/pick")
    assert remote.name == "000002"
    assert len(lacks) == 1
    assert re.search(lack, lacks[0])
    hub.store.put("me/other", files)
    with pytest.raises(CheckpointNotFound, match=f"no complete checkpoint to resume from: .*000004 .*lacks {lack}"):
        newest_checkpoint("me/other")


def test_a_repository_without_checkpoints_says_what_it_can_do(hub):
    hub.store.put("me/pick", {"config.json": b"{}"})
    with pytest.raises(CheckpointNotFound, match="no complete checkpoint") as caught:
        newest_checkpoint("me/pick")
    assert caught.value.hint == "its policy can begin a new run: `--policy.path=me/pick`"


def test_absent_private_and_unreachable_repositories_are_told_apart(hub):
    with pytest.raises(HubError, match="no model `me/nothing` that you may read"):
        newest_checkpoint("me/nothing")
    hub.store.put("me/pick", {"config.json": b"{}"})
    hub.fail(Fault(path="/api/models/me/pick", drop="before"))
    with pytest.raises(OfflineError, match="cannot be reached"):
        newest_checkpoint("me/pick")


@pytest.mark.parametrize(
    "name",
    [
        "../../../.ssh/authorized_keys.json",
        "pretrained_model/../../../evil.json",
        "pretrained_model//x.json",
        "pretrained_model/a\\..\\b.json",
        "pretrained_model/C:x.json",
        "pretrained_model/new\nline.json",
        "pretrained_model/[a].json",
        "a/b/c/d/e/f/g/h.json",
    ],
)
def test_names_that_could_leave_the_folder_stop_everything(hub, remote_files, tmp_path, name):
    from mimetic.testing.hub_store import Blob

    repo = hub.store.put("me/pick", remote_files())
    repo.add("evil", {**repo.files, f"checkpoints/000002/{name}": Blob(b"{}", False)})
    with pytest.raises(CheckpointError, match="dangerous name"):
        newest_checkpoint("me/pick")
    assert not any(method == "GET" and "resolve" in path for method, path, _ in hub.requests)


@pytest.mark.parametrize("path", ["/etc/x.json", "..", "a/./b.json", "a/x.json.", "a/ b.json"])
def test_other_dangerous_names(path):
    with pytest.raises(CheckpointError, match="dangerous name"):
        require_safe([path], "me/pick")


def test_files_that_could_hold_code_are_not_fetched(hub, remote_files, tmp_path):
    odd = {f"checkpoints/000002/{name}": b"x" for name in ("pretrained_model/a.py", "ema_state.pt", ".hidden.json")}
    hub.store.put("me/pick", {**remote_files(), **odd})
    newest_checkpoint("me/pick")[0].download(tmp_path / "run")
    assert contents(tmp_path / "run") == remote_files()


def test_content_that_is_not_what_was_saved_is_refused(hub, remote_files, tmp_path):
    files = remote_files()
    files["checkpoints/000002/pretrained_model/model.safetensors"] = b"WEIGHTS"  # of the same size
    hub.store.put("me/pick", files)
    with pytest.raises(CheckpointError, match=r"model\.safetensors of `me/pick` has another content than when it was"):
        newest_checkpoint("me/pick")[0].download(tmp_path / "run")


def test_what_arrives_is_of_the_state_that_was_looked_at(hub, remote_files, tmp_path):
    hub.store.put("me/pick", remote_files())
    remote = newest_checkpoint("me/pick")[0]
    hub.store.put("me/pick", {"checkpoints/000002/pretrained_model/config.json": b"changed since"})
    remote.download(tmp_path / "run")
    assert contents(tmp_path / "run") == remote_files()


@pytest.mark.parametrize(
    ("place", "is_id"),
    [
        ("me/pick", True),
        ("lerobot/act_x.y-2", True),
        ("pick", False),
        ("a/b/c", False),
        ("./pick", False),
        ("/me/pick", False),
        ("me/..", False),
        ("configs/pick.yaml", False),
        ("here/run", False),
        ("here/rum", False),
        ("here/something_else", True),
    ],
)
def test_what_counts_as_a_name_on_the_hub(tmp_path, monkeypatch, place, is_id):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "run").mkdir(parents=True)
    assert looks_like_hub_id(place) is is_id
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not looks_like_hub_id(place)


def test_a_config_is_the_one_at_the_root_else_of_the_newest_checkpoint(hub, remote_files):
    hub.store.put("me/pick", remote_files("000002"))
    hub.store.put("me/pick", remote_files("000010", **{"pretrained_model/train_config.json": b'{"seed": 10}'}))
    assert json.loads(settings_file("me/pick").read_text()) == {"seed": 10}
    hub.store.put("me/pick", {"train_config.json": b'{"seed": 0}', "mimetic.json": b'{"config": {}}'})
    path = settings_file("me/pick")
    assert json.loads(path.read_text()) == {"seed": 0}
    assert (path.parent / "mimetic.json").is_file()
    hub.store.put("me/none", {"config.json": b"{}"})
    with pytest.raises(
        CheckpointNotFound, match=r"holds no train_config\.json, neither at its root nor in a checkpoint"
    ):
        settings_file("me/none")


def test_the_newest_policy_is_found_by_number():
    files = [f"checkpoints/{n}/pretrained_model/config.json" for n in ("9", "000010", "last", "x/1")]
    assert newest_policy(files) == "checkpoints/000010/pretrained_model"
    assert newest_policy(["config.json"]) is None


def test_a_finished_policy_is_fetched_without_the_checkpoints_beside_it(hub, remote_files):
    root = {"config.json": b"{}", "model.safetensors": b"final", "backbone/config.json": b"{}"}
    hub.store.put("me/pick", {**remote_files(), **root})
    folder = find_policy("me/pick")
    assert contents(folder) == root


def test_a_policy_that_is_not_finished_is_that_of_the_newest_checkpoint(hub, remote_files, caplog):
    hub.store.put("me/pick", {**remote_files("000002"), **remote_files("000004")})
    with caplog.at_level("INFO", logger="mimetic"):
        folder = find_policy("me/pick")
    assert folder.as_posix().endswith("checkpoints/000004/pretrained_model")
    assert "taking checkpoints/000004/pretrained_model, its newest checkpoint" in caplog.text
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert not any("training_state" in path for _, path, _ in hub.requests if "resolve" in path)


def test_a_repository_without_any_policy_is_refused(hub):
    hub.store.put("me/pick", {"README.md": b"#"})
    with pytest.raises(CheckpointNotFound, match=r"holds no policy \(expected config\.json\)"):
        find_policy("me/pick")
