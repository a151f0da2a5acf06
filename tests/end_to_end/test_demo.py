"""A tiny demo from its first command to its report: uninterrupted, and killed in every step that takes long."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser

import pytest

from mimetic.cli import app, demo
from mimetic.demo import child
from mimetic.demo.child import Ended
from mimetic.demo.config import DemoConfig
from mimetic.demo.lock import LOCK
from mimetic.demo.steps import steps_of_demo
from mimetic.evaluate.rollout.journal import VOLATILE

FLAGS = [
    *("--task=reach", "--n_demonstrations=3", "--steps=25", "--n_episodes=3", "--policy.device=cpu"),
    *("--renderer=rays", "--width=32", "--height=32"),
]


def in_this_process(signals, words, *, keep=(), on_start=None):
    """Runs a command of the demo here, which saves its start-up time."""
    begun = time.monotonic()
    return Ended(app.main(list(words)), time.monotonic() - begun, 0.5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A demo that nothing interrupts, and what it printed."""
    folder = tmp_path_factory.mktemp("whole") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child.Signals, "run", in_this_process)
        lines = []
        patch.setattr(demo, "_say", lines.append)
        patch.setattr(demo, "_table", lambda headers, rows: lines.extend([headers, *rows]))
        assert app.main(["demo", *FLAGS, f"--output_dir={folder}"]) == 0
    return folder, lines


def outcome(folder):
    """What must not depend on interruptions: every episode of the evaluation, and the weights."""
    lines = (folder / "eval" / "episodes.jsonl").read_text().splitlines()
    episodes = [{k: v for k, v in json.loads(line).items() if k not in VOLATILE} for line in lines]
    weights = next((folder / "train" / "checkpoints").glob("*/pretrained_model/model.safetensors"))
    return episodes, weights.read_bytes()


class Page(HTMLParser):
    """What a page shows, loads and links to."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.sources, self.links = [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name == "src"]
        self.links += [value for name, value in attrs if name == "href"]


def test_the_whole_demo_counts_successes_and_says_where_everything_is(whole):
    folder, lines = whole
    text = "\n".join(line for line in lines if isinstance(line, str))
    document = json.loads((folder / "eval" / "closed_loop.json").read_text())
    assert document["overall"]["n_episodes"] == 3
    assert re.search(r"of 3 episodes succeeded: .*95 % interval", text)
    assert document["headline"] in text
    assert f"Report: {folder / 'report.html'}" in text
    rows = [line for line in lines if isinstance(line, tuple) and line[0] == "train"]
    assert rows[0][2] is None  # before the training there is a prediction only
    assert rows[-1][1] == rows[0][1]
    assert rows[-1][2] is not None
    assert not (folder / "plan").exists()
    assert {one["split"] for one in map(json.loads, (folder / "eval" / "episodes.jsonl").read_text().splitlines())} == {
        "held_out"
    }


def test_the_page_is_complete_and_needs_nothing_but_the_pages_beside_it(whole):
    folder, _ = whole
    page = Page(folder / "report.html")
    assert "script" not in page.tags
    assert page.tags.count("video") == 3
    assert all(source.startswith("data:video/mp4;base64,") for source in page.sources)
    assert set(page.links) == {"eval/report.html", "check.html"}
    assert all((folder / link).is_file() for link in page.links)
    assert "polyline" in page.tags


def test_a_finished_demo_is_shown_again_and_repeats_nothing(whole, capsys, monkeypatch):
    folder, _ = whole
    monkeypatch.setattr(child.Signals, "run", lambda *_, **__: pytest.fail("a command ran again"))
    assert app.main(["demo", *FLAGS, f"--output_dir={folder}"]) == 0
    assert "of 3 episodes succeeded" in capsys.readouterr().out


def test_a_training_goes_on_where_its_device_is_not(whole, tmp_path, monkeypatch):
    """As on a laptop after a GPU; `xpu` stands for a device that this machine has not."""
    import torch

    if torch.xpu.is_available():
        pytest.skip("this machine has an xpu device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = tmp_path / "demo" / "train"
    shutil.copytree(whole[0] / "train", run, symlinks=True)
    for path in (run / "checkpoints").glob("[0-9]*/pretrained_model/*.json"):
        path.write_text(path.read_text().replace('"device": "cpu"', '"device": "xpu"'))
    stored = json.loads((run / "checkpoints" / "last" / "pretrained_model" / "mimetic.json").read_text())
    assert stored["config"]["policy"]["device"] == "xpu"
    config = DemoConfig(task="reach", steps=25, output_dir=tmp_path / "demo")
    train = steps_of_demo(config, instruction="", cores=1, bf16=False)[3]
    assert any(mark.exists() for mark in train.begun)
    (words,) = train.going_on
    assert app.main([*words, "--steps=26"]) == 0
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["steps"] == 26


def test_another_demo_in_the_same_folder_is_refused(whole, capsys):
    folder, _ = whole
    assert app.main(["demo", *FLAGS, "--steps=7", f"--output_dir={folder}"]) == 2
    error = capsys.readouterr().err
    assert f"error: {folder} holds another demo: `--steps` was 25 and is 7" in error
    assert "`--resume=false` moves it aside" in error


def listening_to_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it


def begin(folder):
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "mimetic", "demo", *FLAGS, f"--output_dir={folder}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        preexec_fn=listening_to_ctrl_c,  # noqa: PLW1509  no other thread runs here
    )


def wait_for(process, condition):
    """Waits until the files say so; the demo must not end before that."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if condition():
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.kill()
    pytest.fail("what was waited for did not come")


def command_of(folder):
    return json.loads((folder / LOCK).read_text())["child"]


def recorded(folder):
    path = folder / "data" / "meta" / "mimetic" / "simulation.json"
    return len(json.loads(path.read_text())["episodes"]) if path.is_file() else 0


def played(folder):
    path = folder / "eval" / "episodes.jsonl"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def take_check_and_plan(other, folder):
    """Those of another demo, which saves three commands."""
    state = json.loads((folder / "demo.json").read_text())
    for name, page in (("check", "check.html"), ("plan", "plan.json")):
        state["steps"][name] = {"is_begun": True, "is_done": True, "seconds": 1.0, "parts": 1, "memory_gb": 0.5}
        shutil.copy(other / page, folder)
    (folder / "demo.json").write_text(json.dumps(state))


@pytest.mark.timeout(600)  # eight starts of Python with torch, on a machine that others use too
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and SIGINT, which this system does not have")
def test_a_demo_that_is_killed_in_every_step_ends_as_one_that_is_not(whole, tmp_path):
    folder = tmp_path / "demo"

    first = begin(folder)  # killed with its command while it records, as a power cut would do it
    wait_for(first, lambda: recorded(folder) >= 2)
    command = command_of(folder)
    first.kill()
    os.kill(command, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    first.communicate()
    take_check_and_plan(whole[0], folder)

    second = begin(folder)  # Ctrl-C while it trains, once, to the demo only
    wait_for(second, lambda: (folder / "train" / "checkpoints" / "last").exists())
    command = command_of(folder)
    os.kill(command, signal.SIGSTOP)  # small steps must not be over before the signal has come
    second.send_signal(signal.SIGINT)
    os.kill(command, signal.SIGCONT)
    said = second.communicate(timeout=200)[0]
    assert second.returncode == 130, said
    assert "Going on with the demo" in said
    assert "--resume=true" in said
    assert (
        f"error: the demo was stopped by Ctrl-C during step 4 of 5, train; what it has done so far is in {folder}"
        in said
    )
    assert f"goes on: `mimetic demo {' '.join(FLAGS)} --output_dir={folder}`" in said

    third = begin(folder)  # its command alone is killed while the policy plays
    wait_for(third, lambda: played(folder) >= 1)
    os.kill(command_of(folder), signal.SIGKILL)
    said = third.communicate(timeout=200)[0]
    assert third.returncode == 1, said
    assert "error: step 5 of 5, eval: `mimetic eval` was ended by SIGKILL" in said

    last = begin(folder)
    said = last.communicate(timeout=200)[0]
    assert last.returncode == 0, said
    assert "done: record, check, plan, train" in said
    assert "in 2 parts" in said
    parts = {name: one["parts"] for name, one in json.loads((folder / "demo.json").read_text())["steps"].items()}
    assert parts == {"record": 2, "check": 1, "plan": 1, "train": 2, "eval": 2}
    assert outcome(folder) == outcome(whole[0])
