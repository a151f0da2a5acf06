"""Numbers for Weights & Biases, with a stand-in for its package; for real: tests/end_to_end/test_trackers.py."""

import json
import os
import sys
import time
import types
from pathlib import Path

import pytest

from mimetic.cli.app import main
from mimetic.config.parse import parse
from mimetic.errors import ConfigError, MissingExtra
from mimetic.log import JsonLines
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.tracker_config import WandbConfig
from mimetic.train.trackers import wandb as wandb_tracker
from mimetic.train.trackers.wandb import WandbTracker, require_wandb, run_tags, wandb_mode

FLAGS = [
    *TINY_ACT,
    "--dataset.repo_id=local/tiny_vec",
    "--dataset.eval_split=0.3",
    "--batch_size=4",
    "--num_workers=0",
    "--steps=4",
    "--save_freq=2",
    "--log_freq=1",
    "--eval_steps=2",
    "--wandb.enable=true",
    "--wandb.disable_artifact=true",  # test_trackers_artifacts.py
]


class FakeRun:
    """Remembers what it is given; raises where the test says so."""

    def __init__(self, package, arguments):
        self.package, self.arguments = package, arguments
        self.id = arguments["id"] or f"id{len(package.runs)}"
        self.dir = f"{arguments['dir']}/wandb/run-1-{self.id}/files"
        self.logged, self.exit_code = [], None

    @property
    def url(self):
        assert self.arguments["mode"] == "online"  # the real one warns otherwise
        return f"https://wandb.example/{self.id}"

    def log(self, values, step):
        self.package.on_log()
        self.logged.append((step, values))

    def finish(self, exit_code):
        self.package.on_finish()
        self.exit_code = exit_code


class FakeWandb(types.ModuleType):
    """The calls that mimetic makes."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.logged_in, self.init_error = [], True, None
        self.on_log = self.on_finish = lambda: None

    def login(self, *, prompt=True):
        assert prompt is False  # nothing waits for an answer before a training
        if isinstance(self.logged_in, Exception):
            raise self.logged_in
        return self.logged_in

    def init(self, **arguments):
        if self.init_error is not None:
            raise self.init_error
        self.runs.append(FakeRun(self, arguments))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch):
    package = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", package)
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # what an offline run sets would stay
    return package


@pytest.fixture
def train(fixtures, tmp_path):
    """Runs the command; the output folder is `tmp_path / "run"`."""
    root = fixtures / "training" / "dataset_tiny_vec"
    return lambda *more: main(
        ["train", *FLAGS, f"--dataset.root={root}", f"--output_dir={tmp_path / 'run'}", *more],
    )


def records(folder, kind):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_every_value_of_the_metrics_file_is_logged_under_lerobots_name(wandb, train, tmp_path):
    assert train() == 0
    (run,) = wandb.runs
    by_name = [(step, values) for step, values in run.logged if "train/loss" in values]
    rows = records(tmp_path / "run", "train")
    assert [step for step, _ in by_name] == [row["steps"] for row in rows] == [1, 2, 3, 4]
    for (_, values), row in zip(by_name, rows, strict=True):
        assert values == {f"train/{name}": value for name, value in row.items() if name != "kind"}
    assert {"train/grad_norm", "train/lr", "train/update_s", "train/samples_per_s"} <= set(by_name[0][1])
    held_out = [(step, values) for step, values in run.logged if "eval/eval_loss" in values]
    wanted = [(row["steps"], {"eval/eval_loss": row["eval_loss"]}) for row in records(tmp_path / "run", "heldout")]
    assert held_out == wanted
    assert len(wanted) == 2
    assert run.exit_code == 0


def test_the_run_is_described_as_from_lerobot(wandb, train, tmp_path):
    assert (
        train("--wandb.project=arms", "--wandb.entity=lab", "--wandb.notes=why", "--job_name=j", "--wandb.run_id=r7")
        == 0
    )
    (run,) = wandb.runs
    given = run.arguments
    expected = {
        "id": "r7",
        "project": "arms",
        "entity": "lab",
        "name": "j",
        "notes": "why",
        "tags": ["policy:act", "seed:1000", "dataset:local/tiny_vec"],
        "dir": str(tmp_path / "run"),
        "job_type": "train_eval",
        "save_code": False,
        "resume": None,
        "mode": "online",
    }
    assert {name: given[name] for name in expected} == expected
    assert given["config"]["policy"]["dim_model"] == 16
    assert given["config"]["optimizer"]["type"] == "adamw"  # as resolved, not as typed
    assert json.dumps(given["config"])


def test_tags_are_cut_where_wandb_would_refuse_them(fixtures):
    config = parse(
        TrainConfig, ["--policy.type=act", f"--dataset.repo_id=me/{'x' * 80}", "--seed=null"], prog="t"
    ).value
    assert run_tags(config) == ["policy:act", f"dataset:me/{'x' * 53}"]
    assert len(run_tags(config)[1]) == 64


LIMIT = {"finish_timeout": 30, "finish_timeout_raises": True}


@pytest.mark.parametrize(("known", "limit"), [(LIMIT, LIMIT), ({}, {})])
def test_a_connection_that_hangs_does_not_hold_up_the_end_where_wandb_can_help_it(wandb, train, known, limit):
    wandb.Settings = types.SimpleNamespace(model_fields=known)
    assert train() == 0
    assert wandb.runs[0].arguments["settings"] == {"silent": True, **limit}


def test_an_end_that_takes_too_long_says_how_to_send_the_rest(wandb, train, capsys):
    def late():
        raise TimeoutError("Timed out finishing run.")

    wandb.on_finish = late
    assert train() == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    place = Path(wandb.runs[0].dir).parent
    assert len(told) == 1
    assert f"wandb has not taken everything after 30 s; `wandb sync --include-online {place}` sends it" in told[0]


def test_tags_can_be_left_out(wandb, train):
    assert train("--wandb.add_tags=false") == 0
    assert wandb.runs[0].arguments["tags"] is None


def test_a_resumed_training_goes_on_in_the_same_run(wandb, train, tmp_path):
    assert train() == 0
    assert main(["train", "--resume=true", f"--config_path={tmp_path / 'run'}", "--steps=6"]) == 0
    first, second = wandb.runs
    assert (second.id, second.arguments["resume"]) == (first.id, "allow")
    assert [step for step, values in second.logged if "train/loss" in values] == [5, 6]
    assert json.loads((tmp_path / "run" / "wandb_run.json").read_text())["id"] == first.id


def test_a_run_of_lerobot_is_found_by_the_folder_that_it_left(tmp_path):
    folder = tmp_path / "wandb" / "latest-run"
    folder.mkdir(parents=True)
    (folder / "run-abc123.wandb").touch()
    assert wandb_tracker._stored_id(tmp_path) == "abc123"


@pytest.mark.parametrize("content", ["", "[]", '{"id": 3}', "{"])
def test_a_damaged_file_of_the_id_begins_a_new_run(tmp_path, content):
    (tmp_path / "wandb_run.json").write_text(content)
    assert wandb_tracker._stored_id(tmp_path) is None


def test_resuming_a_training_without_a_run_begins_one(wandb, train, tmp_path):
    assert train("--wandb.enable=false") == 0
    assert not (tmp_path / "run" / "wandb_run.json").exists()
    assert (
        main(["train", "--resume=true", f"--config_path={tmp_path / 'run'}", "--steps=6", "--wandb.enable=true"]) == 0
    )
    assert wandb.runs[0].arguments["resume"] is None


def test_checkpoints_are_the_same_with_and_without(wandb, train, tmp_path):
    assert train() == 0
    assert train("--wandb.enable=false", f"--output_dir={tmp_path / 'plain'}") == 0
    for name in ("pretrained_model/model.safetensors", "training_state/rng_state.safetensors"):
        parts = ("checkpoints", "000004", *name.split("/"))
        assert tmp_path.joinpath("run", *parts).read_bytes() == tmp_path.joinpath("plain", *parts).read_bytes()


def test_a_failure_in_mid_run_costs_one_warning(wandb, train, tmp_path, capsys):
    calls = []

    def fail():
        calls.append(1)
        if len(calls) > 1:
            raise OSError("the service is gone")

    wandb.on_log = fail
    assert train() == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "the service is gone" in line]
    assert len(told) == 1
    assert "metrics.jsonl has it all" in told[0]
    assert len(calls) == 2  # it is not tried again
    assert len(records(tmp_path / "run", "train")) == 4
    assert (tmp_path / "run" / "checkpoints" / "000004").is_dir()


def test_a_service_that_hangs_holds_up_nothing(wandb, train, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wandb_tracker, "FINISH_S", 0.2)
    monkeypatch.setattr(wandb_tracker, "_MARGIN_S", 0.0)
    hang = []
    wandb.on_log = lambda: (hang.append(1), time.sleep(120))
    started = time.monotonic()
    assert train() == 0
    assert time.monotonic() - started < 60  # the first of the eight values alone hangs for 120 s
    assert hang == [1]
    assert "wandb has not taken everything" in capsys.readouterr().err
    assert len(records(tmp_path / "run", "train")) == 4


def test_a_training_that_fails_is_marked_so(wandb, train, monkeypatch):
    def full(self, record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonLines, "write", full)
    assert train() == 1
    assert wandb.runs[0].exit_code == 1


def test_without_the_package_it_says_how_to_get_it(train, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train() == 1
    told = capsys.readouterr().err
    assert 'pip install "mimetic[wandb]"' in told
    assert "metrics.jsonl" in told
    assert "Creating dataset" not in told  # before anything that takes time
    assert not (tmp_path / "run").exists()
    with pytest.raises(MissingExtra):
        require_wandb(WandbConfig(enable=True, mode="offline"))


@pytest.mark.parametrize(
    ("logged_in", "words"),
    [(False, "nobody is logged in"), (RuntimeError("wrong key"), "refuses the login: wrong key")],
)
def test_without_a_login_nothing_starts(wandb, train, tmp_path, capsys, logged_in, words):
    wandb.logged_in = logged_in
    assert train() == 2
    told = capsys.readouterr().err
    assert words in told
    for way_out in ("`wandb login`", "--wandb.mode=offline"):
        assert way_out in told
    assert not (tmp_path / "run").exists()
    assert not wandb.runs


def test_a_dry_run_checks_the_login_too_and_starts_nothing(wandb, train):
    assert train("--dry_run=true") == 0
    assert not wandb.runs
    wandb.logged_in = False
    assert train("--dry_run=true") == 2


def test_offline_needs_no_login_and_says_how_to_send_it_later(wandb, train, tmp_path, capsys):
    wandb.logged_in = False
    assert train("--wandb.mode=offline") == 0
    assert wandb.runs[0].arguments["mode"] == "offline"
    assert f"`wandb sync {tmp_path / 'run' / 'wandb' / 'run-1-id0'}`" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(None, "false"), ("true", "true")])
def test_offline_the_package_reports_nothing_about_itself_unless_asked(wandb, monkeypatch, before, after):
    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    if before is not None:
        monkeypatch.setenv("WANDB_ERROR_REPORTING", before)
    require_wandb(WandbConfig(enable=True))
    assert os.environ.get("WANDB_ERROR_REPORTING") == before
    require_wandb(WandbConfig(enable=True, mode="offline"))
    assert os.environ["WANDB_ERROR_REPORTING"] == after


def test_disabled_needs_nothing(train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train("--wandb.mode=disabled") == 0
    assert len(records(tmp_path / "run", "train")) == 4


def test_a_start_that_fails_leaves_no_folder_so_that_the_command_can_be_repeated(wandb, train, tmp_path, capsys):
    wandb.init_error = RuntimeError("no route to the server")
    assert train() == 1
    told = capsys.readouterr().err
    assert "no route to the server" in told
    assert "--wandb.mode=offline" in told
    assert not (tmp_path / "run").exists()
    wandb.init_error = None
    assert train() == 0


def test_a_failed_start_of_a_resumed_training_leaves_its_checkpoints(wandb, train, tmp_path):
    assert train() == 0
    wandb.init_error = RuntimeError("no route to the server")
    assert main(["train", "--resume=true", f"--config_path={tmp_path / 'run'}", "--steps=6"]) == 1
    assert (tmp_path / "run" / "checkpoints" / "000004").is_dir()


@pytest.mark.parametrize(
    ("flag", "variable", "mode"),
    [
        (None, None, "online"),
        (None, "offline", "offline"),
        (None, "nonsense", "online"),
        ("online", "offline", "online"),
        ("disabled", None, "disabled"),
    ],
)
def test_the_flag_wins_over_the_environment(monkeypatch, flag, variable, mode):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    assert wandb_mode(WandbConfig(mode=flag)) == mode


def test_a_mode_that_does_not_exist_is_refused(train, capsys):
    assert train("--wandb.mode=dryrun") == 2
    assert "must be one of online, offline, disabled" in capsys.readouterr().err


def test_an_older_package_without_prompt_is_not_asked(wandb, monkeypatch):
    monkeypatch.setattr(wandb, "login", lambda: False)
    require_wandb(WandbConfig(enable=True))


def test_a_refused_login_is_an_error_of_the_command(wandb):
    wandb.logged_in = False
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        require_wandb(WandbConfig(enable=True))
    require_wandb(WandbConfig())


def test_a_record_without_scalars_is_not_logged(wandb):
    run = wandb.init(id=None, dir="x", mode="offline")
    tracker = WandbTracker(run)
    tracker.write({"kind": "resume", "steps": 3})
    tracker.close(exit_code=0)
    assert (run.logged, run.exit_code) == ([], 0)
