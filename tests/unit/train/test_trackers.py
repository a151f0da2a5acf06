"""Trackers as one, their thread, and trackio and TensorBoard with stand-ins for their packages."""

import json
import os
import sys
import threading
import time
import types

import pytest

from mimetic.config.parse import parse
from mimetic.errors import MissingExtra, TrainingError
from mimetic.train.config import TrainConfig
from mimetic.train.trackers import worker as worker_module
from mimetic.train.trackers.open import Trackers, open_trackers, require_trackers
from mimetic.train.trackers.tracker import named_values
from mimetic.train.trackers.worker import Worker, deadline_after

RECORD = {"kind": "train", "steps": 3, "loss": 0.5}


def settings(*flags):
    words = ["--policy.type=act", "--policy.dim_model=16", "--dataset.repo_id=me/x", "--job_name=pick", *flags]
    return parse(TrainConfig, words, prog="t").value


# --- names


def test_training_values_have_lerobots_names():
    record = {**RECORD, "ema": {"decay": 0.9, "step": 2}, "scale": 65536.0, "skip": 1, "text": "x", "flag": True}
    assert named_values(record) == {
        "train/steps": 3,
        "train/loss": 0.5,
        "train/ema/decay": 0.9,
        "train/ema/step": 2,
        "train/scale": 65536.0,
        "train/skip": 1,
    }


def test_heldout_values_have_lerobots_name_and_no_task_becomes_one():
    record = {"kind": "heldout", "steps": 3, "eval_loss": 0.5, "eval_loss_per_task": {"lift it": 0.4}}
    assert named_values(record) == {"eval/eval_loss": 0.5}


@pytest.mark.parametrize(
    "record", [{}, {"kind": "resume", "steps": 3}, {"kind": "early_stop", "steps": 3, "best": 1.0}]
)
def test_other_records_have_no_values(record):
    assert named_values(record) == {}


# --- the thread


def test_jobs_are_done_in_order_before_the_end():
    done, one = [], Worker("w")
    for number in range(50):
        one.put(lambda number=number: done.append(number))
    assert one.close(deadline_after(0))
    assert done == list(range(50))


def test_a_failure_is_told_once_and_ends_the_jobs(caplog):
    done, one = [], Worker("w")

    def fail():
        done.append(1)
        raise OSError("gone")

    for _ in range(3):
        one.put(fail)
    assert one.close(deadline_after(0))
    assert done == [1]
    assert caplog.messages == ["w failed and gets nothing more of this run: gone; metrics.jsonl has it all"]


def test_after_a_failure_nothing_piles_up():
    one = Worker("w")
    one.put(lambda: 1 / 0)
    while not one._is_deaf:
        time.sleep(0.001)
    for _ in range(100):
        one.put(lambda: None)
    assert one._queue.empty()
    one.close(deadline_after(0))


def test_what_hangs_is_left_with_one_warning_that_says_what_to_do(caplog):
    may_go, one = threading.Event(), Worker("w")

    def late():
        may_go.wait(60)
        raise OSError("too late to tell")

    one.put(late)
    started = time.monotonic()
    assert not one.close(time.monotonic() + 0.05, hint="call somebody")
    assert time.monotonic() - started < 30  # what hangs goes on for 60 s
    may_go.set()
    one._thread.join(60)
    assert caplog.messages == ["w has not taken everything after 0 s; call somebody"]


def test_ctrl_c_ends_the_wait_and_not_the_program(monkeypatch, caplog):
    caplog.set_level("INFO")
    may_go, one = threading.Event(), Worker("w")
    one.put(lambda: may_go.wait(60))

    def interrupted(timeout):
        raise KeyboardInterrupt

    monkeypatch.setattr(one._thread, "join", interrupted)
    assert not one.close(deadline_after(0))
    assert caplog.messages[0] == "w: not waiting any longer, as asked"
    may_go.set()


def test_a_run_that_was_stopped_waits_shorter(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    assert deadline_after(0) == 160.0
    assert deadline_after(0, longer_s=900.0) == 1060.0
    assert deadline_after(99, longer_s=900.0) == 110.0


# --- several as one


class Spy:
    """Remembers its calls; fails in those that the test names."""

    def __init__(self, *fails):
        self.fails, self.calls = fails, []

    def _call(self, name, *given):
        self.calls.append((name, *given))
        if name in self.fails:
            raise RuntimeError(f"no {name}")

    def write(self, record):
        self._call("write", record)

    def saved(self, folder, step):
        self._call("saved", folder, step)

    def close(self, *, exit_code):
        self._call("close", exit_code)


def test_every_tracker_hears_everything(tmp_path):
    spies = [Spy(), Spy()]
    trackers = Trackers(spies)
    trackers.write(RECORD)
    trackers.saved(tmp_path, 3)
    trackers.close(exit_code=0)
    trackers.close(exit_code=1)
    for spy in spies:
        assert spy.calls == [("write", RECORD), ("saved", tmp_path, 3), ("close", 0)]


@pytest.mark.parametrize("where", ["write", "saved", "close"])
def test_the_failure_of_one_costs_one_warning_and_the_others_go_on(tmp_path, caplog, where):
    bad, good = Spy(where), Spy()
    trackers = Trackers([bad, good])
    for _ in range(2):
        trackers.write(RECORD)
        trackers.saved(tmp_path, 3)
    trackers.close(exit_code=0)
    assert [call[0] for call in good.calls] == ["write", "saved", "write", "saved", "close"]
    assert [call[0] for call in bad.calls].count(where) == 1
    assert caplog.messages == [f"Spy failed and gets nothing more of this run: no {where}; metrics.jsonl has it all"]


def test_without_trackers_there_is_nothing(tmp_path):
    trackers = open_trackers(settings(), tmp_path / "run", resumes=False)
    assert (len(trackers), (tmp_path / "run").exists()) == (0, False)
    trackers.write(RECORD)
    trackers.close(exit_code=0)


# --- trackio


class FakeTrackio(types.ModuleType):
    """The calls that mimetic makes."""

    def __init__(self, folder):
        super().__init__("trackio")
        self.TRACKIO_DIR, self.given, self.logged, self.variables = folder, [], [], []
        self.finished, self.error = 0, None

    def init(self, **given):
        print("* Trackio project initialized")
        self.variables.append({name for name in os.environ if name.startswith("TRACKIO_")})
        if self.error:
            raise self.error
        self.given.append(given)
        return types.SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, values, step):
        self.logged.append((step, values))

    def finish(self):
        print("* Run finished. Uploading logs")
        self.finished += 1


@pytest.fixture
def trackio(monkeypatch, tmp_path):
    for name in ("TRACKIO_DIR", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    package = FakeTrackio(tmp_path / "db")
    monkeypatch.setitem(sys.modules, "trackio", package)
    return package


def test_trackio_gets_the_values_and_the_settings(trackio, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    config = settings("--trackio.enable=true", "--trackio.project=arms")
    require_trackers(config)
    trackers = open_trackers(config, tmp_path / "run", resumes=False)
    trackers.write(RECORD)
    trackers.write({"kind": "resume", "steps": 3})
    trackers.saved(tmp_path, 3)
    trackers.close(exit_code=0)
    (given,) = trackio.given
    assert given["project"] == "arms"
    assert given["name"].startswith("pick-")
    assert given["config"]["policy"]["dim_model"] == 16
    assert (given["embed"], given["auto_log_gpu"], given["auto_log_cpu"]) == (False, False, False)
    assert trackio.logged == [(3, {"train/steps": 3, "train/loss": 0.5})]
    assert trackio.finished == 1
    assert capsys.readouterr().out == ""  # data alone goes there
    (told,) = caplog.messages
    for words in (given["name"], str(tmp_path / "db"), '`trackio show --project "arms"`'):
        assert words in told


def test_a_resumed_run_keeps_its_name_and_a_new_one_has_its_own(trackio, tmp_path, caplog):
    caplog.set_level("INFO")
    config = settings("--trackio.enable=true")
    for folder, resumes in (("a", False), ("a", True), ("b", False)):
        open_trackers(config, tmp_path / folder, resumes=resumes).close(exit_code=0)
    first, again, other = [given["name"] for given in trackio.given]
    assert first == again != other
    assert all(given["resume"] == "allow" for given in trackio.given)
    assert "the run goes on" in caplog.messages[1]


@pytest.mark.parametrize("content", [None, "{", "[]", '{"name": 3}', '{"project": "other", "name": "x"}'])
def test_without_a_name_a_resumed_run_begins_a_new_one(trackio, tmp_path, caplog, content):
    caplog.set_level("INFO")
    if content is not None:
        (tmp_path / "trackio_run.json").write_text(content)
    open_trackers(settings("--trackio.enable=true"), tmp_path, resumes=True).close(exit_code=0)
    assert "has no run in the project mimetic yet, so a new one begins" in caplog.messages[0]
    assert json.loads((tmp_path / "trackio_run.json").read_text())["name"] == trackio.given[0]["name"]


def test_trackio_stays_on_this_machine(trackio, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "me/space")
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://somewhere")
    open_trackers(settings("--trackio.enable=true"), tmp_path / "run", resumes=False).close(exit_code=0)
    assert trackio.variables == [set()]
    assert os.environ["TRACKIO_SPACE_ID"] == "me/space"
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        assert f"trackio: {name} is not followed" in caplog.text


def test_a_folder_that_trackio_cannot_write_is_refused(trackio, tmp_path):
    (tmp_path / "file").touch()
    trackio.TRACKIO_DIR = tmp_path / "file" / "db"
    with pytest.raises(TrainingError, match="cannot be written: Not a directory") as caught:
        require_trackers(settings("--trackio.enable=true"))
    assert "TRACKIO_DIR" in caught.value.hint


# --- TensorBoard


class FakeWriter:
    """Remembers what it is given."""

    made = []
    error = None

    def __init__(self, log_dir, purge_step, flush_secs):
        if self.error:
            raise self.error
        self.log_dir, self.purge_step, self.scalars, self.text, self.closed = log_dir, purge_step, [], None, False
        FakeWriter.made.append(self)

    def add_text(self, tag, text, step):
        self.text = (tag, text, step)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.closed = True


@pytest.fixture
def tensorboard(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = FakeWriter
    monkeypatch.setattr(FakeWriter, "made", [])
    monkeypatch.setattr(FakeWriter, "error", None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return FakeWriter


def test_tensorboard_gets_the_values_and_the_settings(tensorboard, tmp_path, caplog):
    caplog.set_level("INFO")
    config = settings("--tensorboard.enable=true")
    require_trackers(config)
    trackers = open_trackers(config, tmp_path / "run", resumes=False)
    trackers.write(RECORD)
    trackers.saved(tmp_path, 3)
    trackers.close(exit_code=0)
    (writer,) = tensorboard.made
    assert writer.log_dir == str(tmp_path / "run" / "tensorboard")
    assert writer.purge_step is None
    assert writer.scalars == [("train/steps", 3, 3), ("train/loss", 0.5, 3)]
    tag, text, _ = writer.text
    assert (tag, json.loads(text)["policy"]["dim_model"]) == ("config", 16)
    assert writer.closed
    assert caplog.messages == [f"TensorBoard: `tensorboard --logdir {tmp_path / 'run' / 'tensorboard'}` opens it"]


def test_points_after_the_checkpoint_are_forgotten(tensorboard, tmp_path):
    open_trackers(settings("--tensorboard.enable=true"), tmp_path, resumes=True, step=400).close(exit_code=0)
    assert tensorboard.made[0].purge_step == 401


# --- what cannot start


@pytest.mark.parametrize(
    ("flag", "module", "package"),
    [
        ("--wandb.enable=true", "wandb", "wandb"),
        ("--trackio.enable=true", "trackio", "trackio"),
        ("--tensorboard.enable=true", "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_without_the_package_it_says_how_to_get_it(monkeypatch, flag, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=f"`{flag}` needs the package `{package}`") as caught:
        require_trackers(settings(flag))
    assert caught.value.hint == (
        f'`pip install "mimetic[{package}]"`, or leave out `{flag}`: the same values stand in metrics.jsonl'
    )


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_folder_of_the_packages_name_is_not_the_package(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    with pytest.raises(MissingExtra, match="only a folder of that name") as caught:
        require_trackers(settings(f"--{package}.enable=true"))
    assert f'pip install "mimetic[{package}]"' in caught.value.hint


def test_what_is_not_enabled_is_not_even_imported(monkeypatch):
    for module in ("wandb", "trackio", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    require_trackers(settings("--wandb.project=x", "--trackio.project=y"))


@pytest.mark.parametrize(("existed", "resumes"), [(False, False), (True, False), (True, True)])
def test_a_failed_start_ends_the_others_and_leaves_no_folder_of_ours(tensorboard, trackio, tmp_path, existed, resumes):
    tensorboard.error = OSError("disk full")
    run = tmp_path / "run"
    if existed:
        (run / "checkpoints").mkdir(parents=True)
    config = settings("--trackio.enable=true", "--tensorboard.enable=true")
    with pytest.raises(TrainingError, match=r"TensorBoard's file could not be begun in .*: disk full"):
        open_trackers(config, run, resumes=resumes)
    assert trackio.finished == 1
    assert run.exists() == existed


def test_trackio_that_does_not_start_is_an_error_with_a_way_out(trackio, tmp_path):
    trackio.error = ValueError("bad project")
    with pytest.raises(TrainingError, match="trackio could not start the run: bad project") as caught:
        open_trackers(settings("--trackio.enable=true"), tmp_path / "run", resumes=False)
    assert "--trackio.enable=true" in caught.value.hint
    assert not (tmp_path / "run").exists()


def test_ctrl_c_at_the_start_leaves_no_folder(trackio, tmp_path):
    trackio.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        open_trackers(settings("--trackio.enable=true"), tmp_path / "run", resumes=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_an_error(trackio, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"the run's folder .* cannot be made: Not a directory") as caught:
        open_trackers(settings("--trackio.enable=true"), tmp_path / "file" / "run", resumes=False)
    assert "--output_dir" in caught.value.hint


def test_trackers_go_through_a_training_that_one_of_them_hangs_in(trackio, tensorboard, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(worker_module, "PATIENCE_S", 0.05)
    may_go = threading.Event()
    monkeypatch.setattr(trackio, "log", lambda values, step: may_go.wait(60))
    config = settings("--trackio.enable=true", "--tensorboard.enable=true")
    trackers = open_trackers(config, tmp_path / "run", resumes=False)
    started = time.monotonic()
    trackers.write(RECORD)
    trackers.close(exit_code=0)
    assert time.monotonic() - started < 30  # what hangs goes on for 60 s
    assert tensorboard.made[0].closed
    assert "trackio has not taken everything after 0 s" in caplog.text
    may_go.set()
