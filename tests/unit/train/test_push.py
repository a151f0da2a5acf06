"""Pushing beside a training: it never waits, never fails, and ends with everything sent or named."""

import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mimetic.config.parse import parse
from mimetic.errors import ConfigError, HubError, Interrupted, OfflineError
from mimetic.hub.card import CardFacts
from mimetic.testing.hub_server import Fault, HubServer, as_the_hub
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.push import Patience, Pusher, open_pusher, require_hub

QUICK = Patience(first_s=0.01, stopped_s=0.2, silence_s=30, tell_s=0.05)
FACTS = CardFacts(repo_id="me/pick", policy_type="act", dataset="me/cubes", episodes=3, frames=9, fps=10)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the hub with the user `me` logged in and the repository me/pick."""
    http = pytest.importorskip("huggingface_hub.utils._http", reason="needs huggingface_hub")
    monkeypatch.setattr(http, "time", SimpleNamespace(sleep=lambda seconds: None), raising=False)
    with HubServer() as server:
        # Through monkeypatch too, which is undone after this: what a test sets goes back to what was there before.
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        with as_the_hub(server):
            server.store.create("me/pick")
            yield server


@pytest.fixture
def pusher(hub):
    one = Pusher("me/pick", patience=QUICK)
    yield one
    one.close()


@pytest.fixture
def checkpoint(tmp_path):
    def make(name="000002", **files):
        folder = tmp_path / "run" / "checkpoints" / name
        content = {"pretrained_model/config.json": "{}", "pretrained_model/model.safetensors": name, **files}
        content["training_state/training_step.json"] = name
        for path, text in content.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


def titles(hub, repo_id="me/pick"):
    return [commit.title for commit in hub.repo(repo_id).commits[1:]]


def settle(pusher, folder):
    deadline = time.monotonic() + 60  # a loaded machine is no failure
    while pusher.busy(folder):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def config(*flags):
    base = ["--dataset.repo_id=local/x", *(flag for flag in TINY_ACT if "push_to_hub" not in flag)]
    return parse(TrainConfig, [*base, *flags], prog="mimetic train").value


# What is checked before a training


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--policy.push_to_hub=true"],  # refused where settings are resolved, without asking anybody
        ["--policy.repo_id=me/pick", "--policy.push_to_hub=false"],
    ],
)
def test_nobody_is_asked_when_nothing_is_to_be_pushed(hub, flags):
    require_hub(config(*flags))
    assert open_pusher(config(*flags)) is None
    assert hub.requests == []


def test_a_run_that_pushes_makes_its_repository_and_says_so(hub, caplog):
    with caplog.at_level("INFO", logger="mimetic"):
        require_hub(config("--policy.repo_id=me/new", "--policy.private=true", "--save_checkpoint_to_hub=true"))
    assert hub.repo("me/new").private
    assert "the repository me/new was made on the hub (private)" in caplog.text
    assert "each checkpoint and the policy at the end will be pushed to me/new" in caplog.text


def test_checkpoints_alone_are_pushed_too(hub, checkpoint):
    settings = config("--policy.repo_id=me/pick", "--policy.push_to_hub=false", "--save_checkpoint_to_hub=true")
    require_hub(settings)
    pusher = open_pusher(settings, patience=QUICK)
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    pusher.finish(folder, FACTS)
    assert titles(hub) == ["checkpoint 000002"]


def test_a_policy_alone_is_pushed_without_its_checkpoints(hub, checkpoint):
    pusher = open_pusher(config("--policy.repo_id=me/pick"), patience=QUICK)
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    assert not pusher.busy(folder)
    pusher.finish(folder, FACTS)
    assert titles(hub) == ["Upload policy weights, train config and readme"]


def test_a_dry_run_asks_for_the_login_and_makes_nothing(hub):
    settings = config("--policy.repo_id=me/new", "--dry_run=true")
    require_hub(settings)
    assert ("model", "me/new") not in hub.store.repos
    assert [path for _, path, _ in hub.requests if "whoami" in path]
    assert open_pusher(settings) is None


def test_without_checkpoints_there_is_nothing_to_push(hub):
    with pytest.raises(ConfigError, match=r"`--save_checkpoint=false` leaves nothing to push"):
        require_hub(config("--policy.repo_id=me/pick", "--save_checkpoint=false"))
    assert hub.requests == []


def test_offline_a_push_is_refused_before_anything_else(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(OfflineError, match=r"`--policy\.repo_id=me/pick` asks to push"):
        require_hub(config("--policy.repo_id=me/pick"))


def test_a_token_in_a_setting_is_refused_before_anything_else(hub):
    with pytest.raises(ConfigError, match="`--wandb` holds what looks like a token"):
        require_hub(config("--policy.repo_id=me/pick", "--wandb.notes=hf_abcdefghijklmnopqrstuvwxyz0123"))
    assert hub.requests == []


# While a training goes on


def test_a_checkpoint_goes_to_its_place_with_commit_and_tag(hub, pusher, checkpoint):
    for name in ("000002", "000004"):
        pusher.checkpoint(checkpoint(name), int(name))
    settle(pusher, checkpoint("000004"))
    repo = hub.repo("me/pick")
    assert titles(hub) == ["checkpoint 000002", "checkpoint 000004"]
    assert repo.tags == {"000002": repo.commits[1].oid, "000004": repo.commits[2].oid}
    assert repo.read("checkpoints/000002/training_state/training_step.json") == b"000002"
    assert repo.read("checkpoints/000004/pretrained_model/model.safetensors") == b"000004"


def test_a_checkpoint_saved_again_leaves_nothing_of_the_first(hub, pusher, checkpoint):
    first = checkpoint(**{"training_state/scheduler_state.json": "{}"})
    pusher.checkpoint(first, 2)
    settle(pusher, first)
    (first / "training_state" / "scheduler_state.json").unlink()
    (first / "pretrained_model" / "config.json").write_text("changed")
    pusher.checkpoint(first, 2)
    settle(pusher, first)
    files = hub.repo("me/pick").files
    assert "checkpoints/000002/training_state/scheduler_state.json" not in files
    assert hub.repo("me/pick").tags["000002"] == hub.repo("me/pick").commits[-1].oid


def test_the_training_does_not_wait_and_retention_sees_what_is_in_use(hub, pusher, checkpoint, monkeypatch):
    hub.fail(Fault(path="/commit/", wait_s=1.5))
    folder, other = checkpoint(), checkpoint("000004")
    begun = time.perf_counter()
    pusher.checkpoint(folder, 2)
    assert time.perf_counter() - begun < 1  # a loaded machine is no failure; the hub answers after 1.5 s
    assert pusher.busy(folder)
    monkeypatch.chdir(folder.parent)
    assert pusher.busy(Path("000002"))  # whatever the way it is written
    assert not pusher.busy(other)
    settle(pusher, folder)
    assert titles(hub) == ["checkpoint 000002"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(path="/commit/", status=503, times=4),
        Fault(path="/commit/", status=429, times=2, headers={"Retry-After": "0"}),
        Fault(path="/commit/", drop="before", times=3),
        Fault(path="/commit/", drop="after"),
        Fault(path="/tag/", status=500, times=2),
        Fault(path="/_large/", drop="before", times=2),
    ],
    ids=lambda fault: f"{fault.path} {fault.status or fault.drop}",
)
def test_a_hub_that_fails_for_a_while_gets_everything_once(hub, pusher, checkpoint, fault):
    hub.fail(fault)
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    settle(pusher, folder)
    assert titles(hub) == ["checkpoint 000002"]
    assert hub.repo("me/pick").tags == {"000002": hub.repo("me/pick").commits[-1].oid}


def test_waits_grow_and_stay_within_bounds(hub, checkpoint, caplog):
    waits = []
    pusher = Pusher("me/pick", patience=replace(QUICK, first_s=1.0, longest_s=6.0))
    pusher._abandoned.wait = lambda seconds: waits.append(seconds)
    hub.fail(Fault(path="/commit/", status=503, times=5))
    folder = checkpoint()
    with caplog.at_level("INFO", logger="mimetic"):
        pusher.checkpoint(folder, 2)
        settle(pusher, folder)
    pusher.close()
    assert len(waits) == 4  # five attempts
    for seconds, mean in zip(waits, (1, 2, 4, 8), strict=True):
        assert min(0.5 * mean, 6) <= seconds <= min(1.5 * mean, 6)
    assert "attempt 4 of 5 failed (status 503)" in caplog.text
    assert titles(hub) == []


def test_the_hub_may_ask_for_a_longer_wait(hub, pusher, checkpoint):
    waits = []
    pusher._abandoned.wait = lambda seconds: waits.append(seconds)
    hub.fail(Fault(path="/commit/", status=429, headers={"Retry-After": "77"}))
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    settle(pusher, folder)
    assert waits == [77]


@pytest.mark.parametrize("status", [401, 403, 404, 400])
def test_a_refusal_is_not_tried_again_and_is_told_with_the_command(hub, pusher, checkpoint, caplog, status):
    hub.fail(Fault(path="/commit/", status=status, times=9))
    folder, other = checkpoint(), checkpoint("000004")
    pusher.checkpoint(folder, 2)
    settle(pusher, folder)
    assert sum("/commit/" in path for _, path, _ in hub.requests) == 1
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    command = f'hf upload me/pick {folder} checkpoints/000002 --commit-message "checkpoint 000002"'
    assert len(warnings) == 1
    assert f"the checkpoint of step 2 could not be pushed to me/pick: status {status}" in warnings[0]
    assert command in warnings[0]
    hub._faults.clear()
    pusher.checkpoint(other, 4)  # what failed does not hold up what follows
    pusher.finish(other, FACTS)
    assert titles(hub) == ["checkpoint 000004", "Upload policy weights, train config and readme"]
    last = caplog.records[-1].getMessage()
    assert "not pushed to me/pick: the checkpoint of step 2" in last
    assert command in last


def test_a_folder_that_went_away_is_one_warning(hub, pusher, checkpoint, caplog):
    folder = checkpoint()
    hub.fail(Fault(path="/tree/", wait_s=0.1))
    pusher.checkpoint(folder, 2)
    (folder / "pretrained_model" / "model.safetensors").unlink()
    settle(pusher, folder)
    assert "could not be pushed" in caplog.text


def test_many_that_wait_are_told_once(hub, pusher, checkpoint, caplog):
    hub.fail(Fault(path="/commit/", wait_s=0.3))
    for step in range(1, 8):
        folder = checkpoint(f"{step:06d}")
        pusher.checkpoint(folder, step)
    assert caplog.text.count("checkpoints wait to be pushed") == 1
    settle(pusher, folder)


def test_the_global_generator_is_not_touched(hub, pusher, checkpoint):
    hub.fail(Fault(path="/commit/", status=503, times=2))
    random.seed(5)
    before = random.getstate()
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    pusher.finish(folder, FACTS)
    assert random.getstate() == before


# At the end


def test_the_policy_goes_to_the_root_with_its_card(hub, pusher, checkpoint, caplog):
    hub.store.put("me/pick", {"adapter_model.safetensors": b"of an earlier run", "notes.txt": b"mine"})
    folder = checkpoint(**{"pretrained_model/tokenizer/tokenizer.json": "[]"})
    with caplog.at_level("INFO", logger="mimetic"):
        pusher.finish(folder, FACTS)
    files = hub.repo("me/pick").files
    assert sorted(files) == [
        ".gitattributes",
        "README.md",
        "config.json",
        "model.safetensors",
        "notes.txt",
        "tokenizer/tokenizer.json",
    ]
    assert files["README.md"].data == (folder.parent.parent / "README.md").read_bytes()
    assert b"me/cubes" in files["README.md"].data
    assert titles(hub)[-1] == "Upload policy weights, train config and readme"
    assert f"Model pushed to {hub.url}/me/pick" in caplog.text
    assert not (folder / "pretrained_model" / "README.md").exists()  # a saved checkpoint stays as it is


def test_averaged_weights_get_a_repository_of_their_own(hub, pusher, checkpoint):
    folder = checkpoint(
        **{"pretrained_model_ema/model.safetensors": "average", "pretrained_model_ema/config.json": "{}"}
    )
    pusher.finish(folder, FACTS)
    assert hub.repo("me/pick-ema").read("model.safetensors") == b"average"
    assert b"moving average" in hub.repo("me/pick-ema").read("README.md")
    assert hub.repo("me/pick").read("model.safetensors") == b"000002"


def test_averaged_weights_that_do_not_arrive_are_a_warning(hub, pusher, checkpoint, caplog):
    hub.fail(Fault(path="me/pick-ema", status=403, times=9))
    pusher.finish(checkpoint(**{"pretrained_model_ema/model.safetensors": "average"}), FACTS)
    assert "the averaged weights (status 403)" in caplog.text
    assert "hf upload me/pick-ema " in caplog.text


def test_a_policy_that_does_not_arrive_is_an_error_after_everything_else(hub, pusher, checkpoint, caplog):
    folder = checkpoint()
    pusher.checkpoint(folder, 2)
    settle(pusher, folder)
    hub.fail(Fault(path="/commit/", status=403, times=9))
    with pytest.raises(
        HubError, match="the training is complete, but its policy could not be pushed to me/pick: "
    ) as caught:
        pusher.finish(folder, FACTS)
    assert f"hf upload me/pick {folder}/pretrained_model ." in caught.value.hint
    assert f"hf upload me/pick {folder.parent.parent}/README.md README.md" in caught.value.hint
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert not [text for text in told if "the policy" in text]  # told once, by the error


def test_a_card_that_the_hub_refuses_does_not_keep_the_weights_back(hub, pusher, checkpoint, caplog):
    hub.fail(Fault(path="validate-yaml", status=400))
    pusher.finish(checkpoint(), FACTS)
    assert "the model card is refused and left out" in caplog.text
    files = hub.repo("me/pick").files
    assert "model.safetensors" in files
    assert "README.md" not in files


def test_a_hub_that_falls_silent_is_given_up(hub, checkpoint, caplog):
    pusher = Pusher("me/pick", patience=replace(QUICK, silence_s=0.3))
    release = threading.Event()
    folder = checkpoint()
    pusher._send_policy = lambda *_: release.wait(60)
    with caplog.at_level("INFO", logger="mimetic"), pytest.raises(HubError, match="nothing arrived for"):
        pusher.finish(folder, FACTS)
    assert "still sending after" in caplog.text
    release.set()


def test_a_long_training_between_two_pushes_is_no_silence(hub, pusher, checkpoint):
    first, last = checkpoint(), checkpoint("000004")
    pusher.checkpoint(first, 2)
    settle(pusher, first)
    pusher._heard -= 3600
    pusher.finish(last, FACTS)
    assert titles(hub) == ["checkpoint 000002", "Upload policy weights, train config and readme"]


def test_ctrl_c_while_waiting_ends_with_the_commands(hub, checkpoint, caplog, monkeypatch):
    pusher = Pusher("me/pick", patience=QUICK)
    release = threading.Event()
    pusher._send_policy = lambda *_: release.wait(60)
    heard = []

    class Event(threading.Event):
        def wait(self, timeout=None):
            if threading.current_thread() is threading.main_thread() and not heard:
                heard.append(1)
                raise KeyboardInterrupt
            return super().wait(timeout)

    folder = checkpoint()
    add = pusher._add

    def add_interrupted(*args, **kwargs):
        job = add(*args, **kwargs)
        job.done = Event()
        return job

    pusher._add = add_interrupted
    with pytest.raises(Interrupted, match="stopped while pushing"):
        pusher.finish(folder, FACTS)
    release.set()
    assert "not pushed to me/pick: the policy (not sent yet)" in caplog.text
    assert "hf upload me/pick" in caplog.text


def test_a_stopped_run_waits_a_little_and_names_the_rest(hub, checkpoint, caplog):
    pusher = Pusher("me/pick", patience=QUICK)
    hub.fail(Fault(path="/commit/", wait_s=3))
    first, second = checkpoint("000002"), checkpoint("000004")
    pusher.checkpoint(first, 2)
    pusher.checkpoint(second, 4)
    begun = time.monotonic()
    pusher.close()
    assert time.monotonic() - begun < 2.5  # 0.2 s; the hub answers after 3 s
    assert "not sent yet" in caplog.text
    assert f"hf upload me/pick {second} checkpoints/000004" in caplog.text


def test_closing_what_never_began_is_nothing(hub, caplog):
    Pusher("me/pick").close()
    assert caplog.text == ""
    assert hub.requests == []
