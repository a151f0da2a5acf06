import pytest

from mimetic.errors import ConfigError, HubError, OfflineError
from mimetic.hub.upload import (
    Push,
    check_push_id,
    files_of,
    is_policy_file,
    is_transient,
    push,
    reason,
    require_no_secret,
    require_repo,
    retry_after,
)
from mimetic.testing.hub_server import Fault, HubServer, as_the_hub
from mimetic.testing.hub_store import Account


@pytest.mark.parametrize("repo_id", ["me/pick", "My-Lab_2/pick.v1", "me/" + "x" * 80])
def test_names_that_the_hub_takes(repo_id):
    check_push_id(repo_id)


@pytest.mark.parametrize(
    "repo_id",
    ["", "pick", "a/b/c", "me/../x", "me/pick--2", "me/pick.git", "/pick", "me/pick ", "me/" + "x" * 96, "me/ü"],
)
def test_names_that_the_hub_refuses_are_refused_at_once(repo_id):
    with pytest.raises(ConfigError, match=r"`--policy\.repo_id=.*is not a name that the hub takes") as caught:
        check_push_id(repo_id)
    assert "USER/NAME" in caught.value.hint


def test_a_bare_name_gets_its_full_form_as_the_hint():
    with pytest.raises(ConfigError) as caught:
        check_push_id("pick")
    assert "`--policy.repo_id=USER/pick`" in caught.value.hint


@pytest.mark.parametrize(("private", "word"), [(True, "private"), (None, "public"), (False, "public")])
def test_an_absent_repository_is_made(hub, private, word):
    assert f"was made on the hub ({word}" in require_repo("me/pick", private=private)
    assert hub.repo("me/pick").private is (word == "private")


def test_a_repository_of_ones_own_is_used_as_it_is(hub):
    hub.store.create("me/pick", private=True)
    commits = len(hub.repo("me/pick").commits)
    assert require_repo("me/pick", private=None) == "the repository me/pick is there on the hub (private)"
    assert len(hub.repo("me/pick").commits) == commits


def test_a_dry_run_makes_nothing(hub):
    assert "`me`" in require_repo("me/pick", private=None, create=False)
    assert hub.store.repos == {}


def test_what_should_be_private_never_goes_to_a_public_repository(hub):
    hub.store.create("me/pick")
    with pytest.raises(ConfigError, match=r"`--policy\.private=true`, and .*already and public"):
        require_repo("me/pick", private=True)


def test_without_a_login_nobody_is_contacted(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "absent"))
    with HubServer() as server, as_the_hub(server, token=""):
        with pytest.raises(ConfigError, match="nobody is logged in") as caught:
            require_repo("me/pick", private=None)
        assert server.requests == []
    assert "hf auth login" in caught.value.hint


def test_a_token_that_the_hub_does_not_know_is_refused():
    with HubServer() as server, as_the_hub(server, token="hf_" + "x" * 34):
        with pytest.raises(ConfigError, match=r"does not accept the token of this machine \(401"):
            require_repo("me/pick", private=None)
        assert server.store.repos == {}


def test_a_token_that_may_only_read_is_refused():
    server = HubServer({"hf_reader": Account("me", role="read")})
    refused = pytest.raises(ConfigError, match="token of `me` on this machine may only read")
    with server, as_the_hub(server), refused:
        require_repo("me/pick", private=None)


@pytest.mark.parametrize("exists", [True, False])
def test_a_repository_of_somebody_else_is_refused(hub, exists):
    if exists:
        hub.store.create("you/pick")
    with pytest.raises(ConfigError, match=r"token of `me` may not write there \((403|404)\)") as caught:
        require_repo("you/pick", private=None)
    assert "--policy.repo_id=me/pick" in caught.value.hint
    assert [path for method, path, _ in hub.requests if method == "POST" and "commit" in path] == []


def test_a_token_for_one_repository_only_is_accepted_there(hub):
    hub.store.create("me/pick")
    hub.fail(Fault(path="/api/repos/create", status=403))  # may not make repositories
    assert "is there on the hub" in require_repo("me/pick", private=None)


def test_an_organisation_of_the_user_is_accepted():
    with HubServer({"hf_a": Account("me", orgs=("lab",))}) as server, as_the_hub(server):
        require_repo("lab/pick", private=None)
        assert server.repo("lab/pick")


def test_offline_it_says_what_to_do(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match="HF_HUB_OFFLINE forbids the network") as caught:
        require_repo("me/pick", private=None)
    assert "unset HF_HUB_OFFLINE" in caught.value.hint
    assert "hf upload" in caught.value.hint
    assert hub.requests == []


def test_a_hub_that_is_not_there_or_fails_is_named_so(hub):
    hub.fail(Fault(path="whoami", drop="before"))
    with pytest.raises(OfflineError, match="cannot be reached"):
        require_repo("me/pick", private=None)
    hub.fail(Fault(path="whoami", status=500))
    with pytest.raises(HubError, match="the hub fails \\(status 500"):
        require_repo("me/pick", private=None)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "model"
    for name, text in {
        "config.json": "{}",
        "model.safetensors": "weights",
        "tokenizer/tokenizer.json": "[]",
        ".hidden.json": "secret",
        ".saving-7/config.json": "half",
        "code.py": "import os",
        "old.bin": "pickle",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (tmp_path / "outside.json").write_text("{}")
    (root / "link.json").symlink_to(tmp_path / "outside.json")
    return root


def test_only_plain_visible_files_of_known_endings_go(folder):
    assert list(files_of(folder)) == ["config.json", "model.safetensors", "tokenizer/tokenizer.json"]


def test_a_folder_is_one_commit_with_its_tag(hub, folder):
    repo = hub.store.create("me/pick")
    commit = push(Push(files=files_of(folder), repo_id="me/pick", into="a/b", message="checkpoint b", tag="b"))
    assert [one.title for one in repo.commits] == ["initial commit", "checkpoint b"]
    assert repo.tags == {"b": commit} == {"b": repo.commits[-1].oid}
    assert repo.read("a/b/model.safetensors") == b"weights"
    assert repo.files["a/b/model.safetensors"].is_large
    assert sorted(repo.files) == [
        ".gitattributes",
        "a/b/config.json",
        "a/b/model.safetensors",
        "a/b/tokenizer/tokenizer.json",
    ]


def test_large_files_are_told_one_by_one(hub, folder, monkeypatch):
    from mimetic.hub import upload

    monkeypatch.setattr(upload, "_LARGE", 6)
    hub.store.create("me/pick")
    heard = []
    push(
        Push(files=files_of(folder), repo_id="me/pick", message="x"),
        progress=lambda: heard.append(len(hub.store.large)),
    )
    assert heard == [1, 1]
    assert hub.repo("me/pick").read("model.safetensors") == b"weights"


def test_leftovers_of_an_earlier_push_go_and_other_files_stay(hub, folder):
    hub.store.put("me/pick", {"adapter_model.safetensors": b"old", "notes.md": b"mine", "mimetic_policy.json": b"{}"})
    push(Push(files=files_of(folder), repo_id="me/pick", message="x", replaces=is_policy_file))
    files = set(hub.repo("me/pick").files)
    assert "notes.md" in files
    assert not files & {"adapter_model.safetensors", "mimetic_policy.json"}


def test_pushing_the_same_again_makes_no_commit(hub, folder):
    repo = hub.store.create("me/pick")
    job = Push(files=files_of(folder), repo_id="me/pick", message="x", tag="t")
    assert push(job) == push(job)
    assert len(repo.commits) == 2


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, folder):
    repo = hub.store.create("me/pick")
    hub.fail(Fault(path="/commit/", drop="after"))
    job = Push(files=files_of(folder), repo_id="me/pick", message="x", tag="t")
    with pytest.raises(Exception) as caught:
        push(job)
    assert is_transient(caught.value)
    push(job)
    assert [one.title for one in repo.commits] == ["initial commit", "x"]
    assert repo.tags == {"t": repo.commits[-1].oid}


def test_the_tag_of_an_overwritten_checkpoint_moves(hub, folder):
    repo = hub.store.create("me/pick")
    push(Push(files=files_of(folder), repo_id="me/pick", message="first", tag="t"))
    (folder / "config.json").write_text('{"a": 1}')
    push(Push(files=files_of(folder), repo_id="me/pick", message="second", tag="t"))
    assert repo.tags == {"t": repo.commits[-1].oid}


def test_a_token_in_a_file_is_never_sent(hub, folder):
    repo = hub.store.create("me/pick")
    (folder / "config.json").write_text('{\n"notes": "hf_abcdefghijklmnopqrstuvwxyz0123"}')
    with pytest.raises(ConfigError, match=r"line 2 of .*config\.json holds what looks like a token"):
        push(Push(files=files_of(folder), repo_id="me/pick", message="x"))
    assert len(repo.commits) == 1
    assert hub.store.large == {}


def test_the_token_of_this_machine_is_found_whatever_it_looks_like(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "plain words")
    with pytest.raises(ConfigError, match=r"line 1 of README\.md"):
        require_no_secret({"README.md": b"some plain words"})
    require_no_secret({"README.md": b"hf_hub is no token, nor is a commit " + b"0123456789" * 4})


class Answer(Exception):
    def __init__(self, status, headers=None):
        super().__init__("said")
        self.response = type("R", (), {"status_code": status, "headers": headers or {}})()


def wrapped(error):
    outer = RuntimeError("Error while uploading")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("error", "again"),
    [
        *((Answer(status), True) for status in (408, 409, 412, 429, 500, 502, 503, 504)),
        *((Answer(status), False) for status in (400, 401, 403, 404, 413, 422)),
        (wrapped(Answer(503)), True),
        (wrapped(Answer(403)), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (type("ReadError", (Exception,), {})(), True),
        (FileNotFoundError("gone"), False),
        (ValueError("bad card"), False),
        (ConfigError("secret"), False),
    ],
)
def test_what_is_tried_again(error, again):
    assert is_transient(error) is again


def test_reasons_are_one_line_without_advice():
    assert reason(Answer(503, {"X-Error-Message": "too\nbusy"})) == "status 503: too busy"
    assert reason(wrapped(ConnectionResetError("gone"))) == "ConnectionResetError: gone"
    assert retry_after(wrapped(Answer(429, {"Retry-After": "7"}))) == 7
    assert retry_after(Answer(429, {"Retry-After": "Wed, 21 Oct"})) == 0


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("model.safetensors", True),
        ("policy_preprocessor_step_3_normalizer_processor.safetensors", True),
        ("tokenizer/tokenizer.json", True),
        ("mimetic_adapter.json", True),
        ("README.md", False),
        ("my_model.safetensors", False),
        ("checkpoints/000002/pretrained_model/config.json", False),
        (".gitattributes", False),
    ],
)
def test_which_names_a_pushed_policy_has(name, is_one):
    assert is_policy_file(name) is is_one
