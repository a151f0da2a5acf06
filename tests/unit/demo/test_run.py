"""The order of steps, what is done again and what is not, and what is said when something goes wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mimetic.cli import app, demo
from mimetic.demo import child
from mimetic.demo.child import Ended, Signals
from mimetic.demo.config import DemoConfig
from mimetic.demo.lock import DemoLock
from mimetic.demo.recipes import RECIPES, SMALL
from mimetic.demo.run import Voice, run_demo
from mimetic.demo.state import STATE
from mimetic.errors import ConfigError, Interrupted, MimeticError, MissingExtra

SECONDS = {"demo": 12.5, "dataset": 2.0, "train": 30.0, "eval": 8.0}


class Commands:
    """Stands for the commands of mimetic: makes the files that they would, notes who was called."""

    def __init__(self):
        self.called = []
        self.codes = {}
        self.told = None
        self.bf16 = False
        self.asked = 0
        self.typed = []

    def run(self, signals, words, *, keep=(), on_start=None):
        name = " ".join(word for word in words if not word.startswith("--"))
        flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        self.typed.append(words)
        self.called.append(name + (" resumed" if flags.get("resume") == "true" else ""))
        code = self.codes.pop(name, 0)
        if self.told is not None:
            signals.received, self.told = self.told, None
        if code == 0:
            getattr(self, name.replace(" ", "_"))(flags)
        return Ended(code, SECONDS[words[0]], 0.25)

    def demo_record(self, flags):
        root = Path(flags["root"])
        write(root / "meta/info.json", {"total_frames": 1000})
        write(root / "meta/mimetic/simulation.json", {"episodes": [{"length": n} for n in (40, 50, 70)]})

    def dataset_check(self, flags):
        write(Path(flags["html"]), {})

    def train(self, flags):
        folder = Path(flags.get("output_dir") or flags["config_path"])
        steps = int(flags.get("steps", 20))
        windows = [
            {"kind": "train", "steps": steps // 2, "step_s": 9.0, "loss": 2.0},
            {"kind": "train", "steps": steps, "step_s": 0.5, "loss": 1.0},
        ]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in windows))
        (folder / "checkpoints/last").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints/weights").write_bytes(bytes(1_000_000))

    def eval(self, flags):
        folder = Path(flags["output_dir"])
        ticks = int(flags.get("env.episode_length", 80))
        episode = {"run": "policy", "episode": 0, "length": ticks, "wall_s": ticks / 50, "success": True}
        write(folder / "videos/a.mp4", "x" * 58)
        (folder / "episodes.jsonl").write_text(json.dumps({**episode, "video": "videos/a.mp4"}) + "\n")
        overall = {"pc_success": 100.0, "interval": [70.0, 100.0]}
        write(folder / "closed_loop.json", {"headline": "1 of 1 episodes succeeded", "overall": overall})
        write(folder / "eval_config.json", {})
        write(folder / "report.html", {})


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def commands(monkeypatch):
    fake = Commands()
    monkeypatch.setattr(child.Signals, "run", lambda *args, **rest: fake.run(*args, **rest))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)

    def answer(config):
        fake.asked += 1
        return fake.bf16

    monkeypatch.setattr("mimetic.demo.run.trains_in_bf16", answer)
    return fake


@pytest.fixture
def config(tmp_path):
    return DemoConfig(output_dir=tmp_path / "demo", task="reach", steps=100, n_episodes=20)


ALL = ["demo record", "dataset check", "train", "eval", "train", "eval"]


def run(config, lines=None):
    lines = [] if lines is None else lines
    voice = Voice(lines.append, lines.append, lambda headers, rows: lines.extend(rows))
    outcome = run_demo(config, voice, typed="mimetic demo --x")
    return outcome, lines


def test_every_step_runs_once_and_is_shown_before(commands, config):
    outcome, lines = run(config)
    assert commands.called == ALL
    assert outcome.is_finished
    assert outcome.page == config.output_dir / "report.html"
    said = "\n".join(map(str, lines))
    assert said.index("$ mimetic demo record \\\n    --repo_id=local/demo_reach") < said.index(
        "$ mimetic dataset check"
    )
    assert "lerobot-record" in said
    run(config)
    assert commands.called == ALL


def test_the_plan_follows_from_what_was_measured(commands, config, monkeypatch):
    monkeypatch.setitem(RECIPES, SMALL, replace(RECIPES[SMALL], places=1))
    _, lines = run(replace(config, until="plan"))
    plan = json.loads((config.output_dir / "plan.json").read_text())
    assert plan["frames_per_s"] == pytest.approx(1000 / 12.5)
    assert plan["step_s"] == pytest.approx(0.5)  # without the first window
    assert plan["ticks_per_s"] == pytest.approx(50)
    # 30 s of the trial without its 12 steps of half a second, and 100 steps
    assert plan["train"]["seconds"] == pytest.approx(30 - 12 * 0.5 + 100 * 0.5)
    assert plan["train"]["disk_bytes"] == pytest.approx(2e6)
    assert plan["train"]["memory_gb"] == 0.25
    # 8 s of the trial without its 60 ticks; 20 episodes, of the median length of a demonstration or of the limit of 200
    once = 8 - 60 / 50
    assert plan["eval"]["seconds"] == pytest.approx(once + 20 * 50 / 50)
    assert plan["eval"]["seconds_at_most"] == pytest.approx(once + 20 * 200 / 50)
    assert plan["eval"]["disk_bytes"] == pytest.approx(10 * 50 * 60 / 60 + 3 * 20 * 20e3)
    assert not (config.output_dir / "plan").exists()
    rows = {row[0]: row for row in lines if isinstance(row, tuple)}
    assert rows["train"] == ("train", "1 min 14 s", None, "about 0.2 GB", "about 2 MB")
    assert rows["eval"][1] == "27 s to 1 min 27 s"
    assert rows["record"][2:4] == ("12 s", "0.2 GB")


def test_predicted_and_real_stand_side_by_side_at_the_end(commands, config):
    _, lines = run(config)
    rows = [row for row in lines if isinstance(row, tuple)]
    assert rows[-1][:3] == ("all", None, "1 min 30 s")  # 12.5 + 2 + (30 + 8) + 30 + 8
    assert [row[0] for row in rows[-6:]] == ["record", "check", "plan", "train", "eval", "all"]
    assert rows[-3][1:3] == ("1 min 14 s", "30 s")


def test_until_stops_and_the_same_demo_goes_on(commands, config):
    outcome, lines = run(replace(config, until="check"))
    assert commands.called == ALL[:2]
    assert (outcome.is_finished, outcome.page) == (False, None)
    assert "without `--until` the same command goes on" in lines[-1]
    _, lines = run(config)
    assert commands.called == ALL
    assert lines[0] == f"Going on with the demo in {config.output_dir}; done: record, check"


def test_a_failed_command_is_repeated_and_nothing_before_it(commands, config):
    commands.codes["train"] = 1
    with pytest.raises(MimeticError, match="step 3 of 5, plan: `mimetic train` ended with exit code 1") as caught:
        run(config)
    assert caught.value.hint == "mend that; the same command then goes on: `mimetic demo --x`"
    run(config)
    assert commands.called == [*ALL[:3], *ALL[2:]]


def test_a_dataset_with_defects_is_not_trained_on(commands, config):
    commands.codes["dataset check"] = 1
    with pytest.raises(MimeticError, match="the demonstrations have defects"):
        run(config)
    assert commands.called == ALL[:2]


def test_memory_that_runs_out_is_suspected(commands, config):
    commands.codes["eval"] = -9
    with pytest.raises(MimeticError, match="was ended by SIGKILL; the system does that when memory runs out"):
        run(config)


@pytest.mark.parametrize(("name", "text"), [("SIGINT", "Ctrl-C"), ("SIGTERM", "SIGTERM")])
def test_a_signal_during_a_command_ends_the_demo_in_order(name, text, commands, config):
    number = signal.Signals[name]
    commands.told, commands.codes["demo record"] = number, 130
    with pytest.raises(Interrupted, match=f"stopped by {text} during step 1 of 5, record") as caught:
        run(config)
    assert caught.value.exit_code == 128 + number
    assert "goes on: `mimetic demo --x`" in caught.value.hint


def test_a_command_that_ends_well_in_spite_of_a_signal_is_done(commands, config):
    commands.told = signal.SIGINT
    with pytest.raises(Interrupted):
        run(config)
    run(config)
    assert commands.called == ALL


def test_interrupted_steps_go_on_where_their_commands_can(commands, config):
    run(config)
    path = config.output_dir / STATE
    state = json.loads(path.read_text())
    for name in ("record", "train", "eval"):
        state["steps"][name]["is_done"] = False
    path.write_text(json.dumps(state))
    commands.called.clear()
    _, lines = run(config)
    assert commands.called == ["demo record resumed", "train resumed", "eval resumed"]
    rows = {row[0]: row for row in lines if isinstance(row, tuple)}
    assert rows["train"][2] == "1 min 00 s in 2 parts"


def test_a_start_that_left_nothing_to_go_on_from_is_made_anew(commands, config):
    run(replace(config, until="plan"))
    path = config.output_dir / STATE
    state = json.loads(path.read_text())
    state["steps"]["train"]["is_begun"] = True
    path.write_text(json.dumps(state))
    write(config.output_dir / "train" / "effective_config.json", {})
    commands.called.clear()
    _, lines = run(config)
    assert commands.called == ["train", "eval"]
    assert any("holds nothing to go on from: removed" in str(line) for line in lines)
    assert not (config.output_dir / "train" / "effective_config.json").exists()


def test_a_folder_of_somebody_else_inside_the_demo_is_not_touched(commands, config):
    write(config.output_dir / "train" / "mine.json", {})
    with pytest.raises(ConfigError, match="exists and holds no demo"):
        run(config)
    assert not (config.output_dir / "demo.lock").exists()
    (config.output_dir / "train").rename(config.output_dir.parent / "kept")
    run(replace(config, until="plan"))
    (config.output_dir.parent / "kept").rename(config.output_dir / "train")
    with pytest.raises(ConfigError, match="the demo has not begun step 4, train"):
        run(config)
    assert (config.output_dir / "train" / "mine.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 7}, "`--steps` was 100 and is 7"),
        ({"task": "push"}, "`--task` was reach and is push"),
        ({"width": 64}, "`--width` was not given and is 64"),
        ({"n_demonstrations": 4, "seed": 1}, "`--n_demonstrations` was 50 and is 4; `--seed` was 0 and is 1"),
    ],
)
def test_other_settings_are_another_demo(changes, words, commands, config):
    run(replace(config, until="record"))
    with pytest.raises(ConfigError) as caught:
        run(replace(config, **changes))
    assert caught.value.message == f"{config.output_dir} holds another demo: {words}"
    assert "`--resume=false` moves it aside and begins anew" in caught.value.hint
    assert commands.called == ["demo record"]


def test_a_demo_of_other_commands_is_another_one(commands, config):
    run(replace(config, until="record"))
    path = config.output_dir / STATE
    path.write_text(path.read_text().replace("--batch_size=", "--batch_size=9"))
    with pytest.raises(ConfigError, match="it was begun by a mimetic with other commands for plan, train"):
        run(config)


BF16 = "--accelerator.mixed_precision=bf16"


def begun_in_bf16(commands):
    return [BF16 in words for words in commands.typed if words[0] == "train" and "--resume=true" not in words]


@pytest.mark.parametrize("bf16", [True, False])
def test_a_demo_goes_on_on_another_machine(bf16, commands, config):
    """Before the training has begun with what suits the other machine, afterwards with what it began with."""
    commands.bf16 = bf16
    run(replace(config, until="plan"))
    commands.bf16 = not bf16
    run(replace(config, until="train"))
    assert begun_in_bf16(commands) == [bf16, not bf16]
    assert commands.asked == 2
    path = config.output_dir / STATE
    state = json.loads(path.read_text())
    state["steps"]["train"]["is_done"] = False
    path.write_text(json.dumps(state))
    commands.bf16 = bf16
    run(config)
    assert commands.called == [*ALL[:5], "train resumed", "eval"]
    assert ("--policy.device=null" in commands.typed[-2]) is bf16  # it began with the other answer, float32
    assert commands.asked == 2
    assert (BF16 in (config.output_dir / "report.html").read_text()) is not bf16


def test_a_training_that_begins_anew_suits_the_machine_that_it_begins_on(commands, config):
    commands.bf16 = True
    run(replace(config, until="plan"))
    path = config.output_dir / STATE
    state = json.loads(path.read_text())
    state["steps"]["train"]["is_begun"] = True
    path.write_text(json.dumps(state))
    write(config.output_dir / "train" / "effective_config.json", {})  # and no checkpoint
    commands.bf16 = False
    run(config)
    assert begun_in_bf16(commands) == [True, False]
    assert json.loads(path.read_text())["bf16"] is False


def test_the_machine_is_asked_once_and_only_for_a_training(commands, config):
    run(replace(config, until="check"))
    assert commands.asked == 0
    run(config)
    assert commands.asked == 1
    run(config)
    assert commands.asked == 1


def test_the_machine_answers_without_torch_in_the_process_that_waits(tmp_path):
    """The memory is for the commands."""
    from mimetic.accelerators.probe import TORCH

    script = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import test_run
from mimetic.cli import app
from mimetic.demo import child
fake = test_run.Commands()
child.Signals.run = lambda *args, **rest: fake.run(*args, **rest)
assert app.main(["demo", "--task=reach", "--policy.device=cpu", "--open=false", "--output_dir={tmp_path}/demo"]) == 0
print(len(fake.called), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1:] == ["6 False"], done.stderr
    assert json.loads((tmp_path / "demo" / STATE).read_text())["bf16"] is TORCH.cpu_has_bfloat16


def test_the_folder_may_be_named_in_another_way_and_the_report_opened(commands, config, monkeypatch):
    run(replace(config, until="record"))
    monkeypatch.chdir(config.output_dir.parent)
    run(replace(config, output_dir=Path("demo"), open=True))
    assert commands.called == ALL


def test_a_new_demo_moves_the_old_one_aside(commands, config):
    run(replace(config, until="record"))
    _, lines = run(replace(config, steps=7, resume=False))
    assert lines[0] == f"What was in {config.output_dir} is now in {config.output_dir}.1"
    assert commands.called == ["demo record", *ALL]
    run(replace(config, resume=False, until="record"))
    assert Path(f"{config.output_dir}.2").is_dir()
    assert Path(f"{config.output_dir}.1").is_dir()


@pytest.mark.parametrize(
    ("place", "shown", "words"),
    [
        ("demo", ".", "`.` aside: it is the current folder"),
        ("demo", "../demo", "`../demo` aside: it is the current folder"),
        ("demo/data", "..", "`..` aside: the current folder, .*demo/data, is inside it"),
        ("demo/data", "../../demo", "aside: the current folder, .*demo/data, is inside it"),
        (".", "demo/data/..", "aside: it is called by no name of its own"),
    ],
)
def test_a_folder_that_cannot_be_renamed_is_left_alone(place, shown, words, commands, config, monkeypatch):
    run(replace(config, until="record"))
    before = sorted(config.output_dir.parent.rglob("*"))
    monkeypatch.chdir(config.output_dir.parent / place)
    with pytest.raises(ConfigError, match=words) as caught:
        run(replace(config, output_dir=Path(shown), resume=False))
    assert "--output_dir" in caught.value.hint
    assert sorted(config.output_dir.parent.rglob("*")) == before
    assert commands.called == ["demo record"]


def test_a_current_folder_that_is_empty_need_not_move(commands, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(DemoConfig(output_dir=Path(), task="reach", resume=False, until="record"))
    assert commands.called == ["demo record"]


def test_a_rename_that_the_system_refuses_is_one_clear_error(commands, config, monkeypatch):
    """Such as that of a mount point."""
    run(replace(config, until="record"))

    def busy(path, other):
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    monkeypatch.setattr(Path, "rename", busy)
    with pytest.raises(ConfigError, match=r"cannot move `.*demo` aside, to `.*demo\.1`: Device or resource busy"):
        run(replace(config, resume=False))
    assert commands.called == ["demo record"]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format": "mimetic demo"}', '{"format": "mimetic demo", "format_version": 2}', "\udcff"],
)
def test_a_damaged_state_is_one_clear_error(text, commands, config):
    run(replace(config, until="record"))
    (config.output_dir / STATE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=r"demo\.json cannot be read as the state of a demo") as caught:
        run(config)
    assert "`--resume=false` moves it aside" in caught.value.hint
    assert commands.called == ["demo record"]


def test_a_state_with_other_types_is_refused(commands, config):
    run(replace(config, until="record"))
    path = config.output_dir / STATE
    state = json.loads(path.read_text())
    state["steps"]["record"]["seconds"] = "long"
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="a number is missing"):
        run(config)
    state["steps"]["record"]["seconds"], state["bf16"] = 1.0, "yes"
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="`bf16` is 'yes'"):
        run(config)


def test_a_disk_that_is_too_small_for_the_plan_stops_before_the_training(commands, config, monkeypatch):
    import shutil

    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 9 * 10**8, 10**8))
    with pytest.raises(ConfigError, match=r"training and evaluation need about 203 MB in .* and 100 MB are free"):
        run(config)
    assert commands.called == ALL[:4]


def test_a_full_disk_is_one_clear_error(commands, config, monkeypatch, capsys):
    def full(path, data):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("mimetic.demo.state.write_bytes", full)
    assert app.main(["demo", f"--output_dir={config.output_dir}"]) == 1
    error = capsys.readouterr().err
    assert "demo.json`: no space left on device" in error
    assert "hint: free some space" in error


def test_without_the_simulation_nothing_begins(monkeypatch, config):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mujoco" else real(name, *rest)
    )
    with pytest.raises(MissingExtra, match="`mujoco` is not installed") as caught:
        run(config)
    assert caught.value.hint == "`pip install 'mimetic[sim]'`"
    assert not config.output_dir.exists()


def test_a_large_policy_needs_a_gpu_unless_told_otherwise(monkeypatch, capsys, config, commands):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    import torch

    for kind in ("cuda", "mps", "xpu"):
        if getattr(torch, kind).is_available():
            pytest.skip(f"this machine has a {kind} device")
    flags = ["demo", "--real-size", f"--output_dir={config.output_dir}"]
    assert app.main(flags) == 2
    error = capsys.readouterr().err
    assert "error: `--real_size=act` trains ACT in its full size for 20,000 steps, and this machine has no GPU" in error
    assert "`--policy.device=cpu` or `--yes=true`" in error
    assert not config.output_dir.exists()
    assert app.main([*flags, "--yes", "--until=record"]) == 0
    assert commands.called == ["demo record"]
    assert app.main([*flags, "--policy.device=cuda"]) == 2


def test_a_task_that_the_policy_cannot_learn_is_refused_before_anything_begins(capsys, config, commands):
    assert app.main(["demo", "--task=sort", f"--output_dir={config.output_dir}"]) == 2
    error = capsys.readouterr().err
    assert "a small keypoint policy, which this demo would train, reads no instruction" in error
    assert "hint: `--real_size=smolvla`" in error
    assert commands.called == []
    assert not config.output_dir.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--real-size", "--yes"], ["--real-size=act", "--yes=true"]),
        (["--real_size", "smolvla", "--open"], ["--real_size", "smolvla", "--open=true"]),
        (["--no-open", "--resume=false"], ["--open=false", "--resume=false"]),
        (["--resume", "--task", "push"], ["--resume=true", "--task", "push"]),
    ],
)
def test_switches_may_stand_alone(argv, words):
    assert demo.with_values(argv) == words


def test_the_command_that_goes_on_does_not_begin_anew():
    assert demo._again(["--resume=false", "--steps=3"]) == ["--steps=3"]
    assert demo._again(["--resume", "false", "--steps=3"]) == ["--steps=3"]


def test_one_demo_a_folder(tmp_path):
    with (
        DemoLock(tmp_path) as lock,
        pytest.raises(MimeticError, match=f"another demo is at work in .*: process {os.getpid()} on") as caught,
    ):
        lock.tell(None)
        with DemoLock(tmp_path):
            pass
    assert f"kill -INT {os.getpid()}" in caught.value.hint
    with DemoLock(tmp_path):
        pass


posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs signals between processes, which Windows does not have"
)


@posix
def test_a_command_that_outlives_its_demo_holds_the_folder(tmp_path):
    with DemoLock(tmp_path) as lock:
        command = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=lock.handles)
        lock.tell(command.pid)
        text = (tmp_path / "demo.lock").read_bytes()
        lock._file.forget()  # as the end of a process does it, without a word
    (tmp_path / "demo.lock").write_bytes(text)
    try:
        with pytest.raises(MimeticError, match=f"or its command {command.pid} on"), DemoLock(tmp_path):
            pass
    finally:
        command.communicate(b"\n")
    with DemoLock(tmp_path):
        pass


CHILD = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
told = []
def note(number, frame):
    told.append(number)
    (here / "told").write_text(" ".join(map(str, told)))
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, note)
(here / "ready").touch()
end = time.monotonic() + 120
while not told and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(7)
"""


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_reaches_the_command_once_and_its_code_comes_back(name, tmp_path):
    script = f"""
import os, signal, subprocess, sys, threading, time, pathlib
from mimetic.demo import child
signal.signal({int(signal.Signals[name])}, signal.SIG_DFL)  # whoever runs the tests may ignore it, as nohup does
child._start = lambda words, keep: subprocess.Popen([sys.executable, "-c", {CHILD!r}, {str(tmp_path)!r}], process_group=0)
here = pathlib.Path({str(tmp_path)!r})
def tell():
    while not (here / "ready").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), {int(signal.Signals[name])})
threading.Thread(target=tell).start()
with child.Signals() as signals:
    ended = signals.run(["x"])
    try:
        signals.run(["y"])
    except KeyboardInterrupt:
        print(ended.code, signals.received.name, ended.seconds > 0.3, 0 < ended.memory_gb < 1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"7 {name} True True\n", done.stderr
    assert (tmp_path / "told").read_text() == str(int(signal.Signals[name]))


class Trial:
    """A command that is made up, and one signal that arrives before a given instruction of Python.

    Args:
        at: number of the instruction, counted through everything that runs a command and passes signals on.
    """

    WATCHED = (Signals.run.__code__, Signals._send_owed.__code__)

    def __init__(self, at, monkeypatch):
        self.at, self.count = at, 0
        self.sent, self.at_end = [], None
        self.is_begun = False
        monkeypatch.setattr(child, "_start", self.start)
        monkeypatch.setattr(child, "_wait", self.wait)
        monkeypatch.setattr(os, "kill", lambda pid, number: self.sent.append((pid, number)))

    def start(self, words, keep):
        self.is_begun = True
        return SimpleNamespace(pid=12345)

    def wait(self, process):
        self.at_end = list(self.sent)
        return 0, None

    def run(self):
        """Returns whether the command was run to its end, and the signals object."""
        with Signals() as signals:
            former = sys.gettrace()
            sys.settrace(self.trace)
            try:
                signals.run(["x"])
            except KeyboardInterrupt:
                return False, signals
            finally:
                sys.settrace(former)
            return True, signals

    def trace(self, frame, event, value):
        if frame.f_code not in (*self.WATCHED, Trial.start.__code__, Trial.wait.__code__):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                signal.raise_signal(signal.SIGINT)
        return self.trace


@posix
def test_a_signal_at_any_moment_reaches_the_command_once_or_keeps_it_from_beginning(monkeypatch):
    at_first = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    try:
        undisturbed = Trial(0, monkeypatch)
        assert undisturbed.run()[0]
        assert undisturbed.sent == []
        outcomes = set()
        for at in range(1, undisturbed.count + 1):
            trial = Trial(at, monkeypatch)
            is_run, signals = trial.run()
            assert signals.received == signal.SIGINT
            assert len(trial.sent) <= 1, at
            if is_run and trial.at_end is not None:
                outcomes.add("told" if trial.at_end else "ended before")
            else:
                # Told before it began, or when it had ended.
                assert not trial.is_begun or trial.at_end is not None, at
                outcomes.add("never begun" if not trial.is_begun else "ended before")
        assert outcomes == {"told", "never begun", "ended before"}
    finally:
        signal.signal(signal.SIGINT, at_first)


@posix
def test_every_signal_is_passed_on_and_the_one_before_the_start_is_not_repeated(monkeypatch):
    sent = []
    at_first = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(words, keep):
        signal.raise_signal(signal.SIGINT)  # Ctrl-C while it is being started
        assert sent == []
        return SimpleNamespace(pid=12345)

    def wait(process):
        assert sent == [(12345, signal.SIGINT)]
        signal.raise_signal(signal.SIGINT)  # a second one means: give up
        return 130, None

    monkeypatch.setattr(child, "_start", start)
    monkeypatch.setattr(child, "_wait", wait)
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    try:
        with Signals() as signals:
            assert signals.run(["x"]).code == 130
    finally:
        signal.signal(signal.SIGINT, at_first)
    assert sent == [(12345, signal.SIGINT)] * 2


@posix
def test_a_pause_pauses_the_command_too(tmp_path):
    script = f"""
import subprocess, sys, pathlib
from mimetic.demo import child
counter = "import pathlib, time\\nfor n in range(400):\\n    pathlib.Path(r'{tmp_path}/count').write_text(str(n))\\n    time.sleep(0.02)"
child._start = lambda words, keep: subprocess.Popen([sys.executable, "-c", counter], process_group=0)
with child.Signals() as signals:
    signals.run(["x"])
"""
    process = subprocess.Popen([sys.executable, "-c", script], process_group=0)
    count = tmp_path / "count"

    def value():
        text = count.read_text() if count.exists() else ""
        return int(text) if text else -1

    def wait(condition):
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.02)

    try:
        wait(lambda: value() > 2)
        process.send_signal(signal.SIGTSTP)
        wait(lambda: stopped(process.pid))
        before = value()
        time.sleep(0.3)
        assert value() <= before + 1
        process.send_signal(signal.SIGCONT)
        wait(lambda: value() > before + 3)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def stopped(pid):
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return status.startswith("T")


@posix
def test_a_signal_that_is_ignored_stays_so():
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@posix
def test_signals_are_given_back():
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    at_first = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
    try:
        before = [signal.getsignal(number) for number in numbers]
        with Signals():
            assert signal.getsignal(signal.SIGINT) != before[0]
        assert before == [signal.getsignal(number) for number in numbers]
    finally:
        signal.signal(signal.SIGINT, at_first)
