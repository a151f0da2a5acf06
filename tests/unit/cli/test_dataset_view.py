"""`mimetic dataset view`: its flags, LeRobot's spellings, and what it refuses."""

import re
import signal
import subprocess
import sys
import time
import types
import urllib.request

import pytest

from mimetic.cli.app import main
from mimetic.cli.dataset_view import DatasetViewConfig, is_loopback, rrd_path, with_values
from mimetic.config.parse import parse
from mimetic.errors import ConfigError
from mimetic.testing.datasets import build_dataset


def config(*words):
    return parse(DatasetViewConfig, with_values(words), prog="mimetic dataset view").value


def test_lerobot_spellings(tmp_path):
    found = config(
        "--repo-id", "me/pick", "--root", str(tmp_path), "--episode-index", "3", "--mode", "local", "--save", "1"
    )
    assert (found.repo_id, found.root, found.episode_index, found.mode) == ("me/pick", tmp_path, 3, "local")
    assert str(rrd_path(found, "pick", 3)) == "pick_episode_3.rrd"
    assert rrd_path(config(str(tmp_path), "--save=0"), "pick", 3) is None
    assert rrd_path(config(str(tmp_path), "--save=x/y.rrd"), "pick", 3).as_posix() == "x/y.rrd"
    assert (
        rrd_path(config(str(tmp_path), "--save=1", "--output-dir=out"), "pick", 3).as_posix()
        == "out/pick_episode_3.rrd"
    )


def test_switches_need_no_value(tmp_path):
    found = config(str(tmp_path), "--no_open", "--public", "--host=0.0.0.0")
    assert found.no_open
    assert found.public


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no dataset is named"),
        (("--root=x", "--mode=distant"), "ssh"),
        (("--root=x", "--host=0.0.0.0"), "can be reached from other machines"),
        (("--root=x", "--host=example.org"), "can be reached from other machines"),
        (("--root=x", "--web_port=70000"), "0 to 65535"),
        (("--root=x", "--mode=web", "--save=a.rrd"), "does not go with"),
        (("--root=x", "--output_dir=a"), "goes with"),
    ],
)
def test_what_makes_no_sense_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        config(*words)


def test_own_addresses():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "::", "localhost.evil.example", "")))


def test_an_episode_that_is_not_there(tmp_path, capsys):
    root = build_dataset(tmp_path / "set")
    assert main(["dataset", "view", f"--root={root}", "--episode_index=7", "--no_open"]) == 2
    assert "there is no such episode" in capsys.readouterr().err


def test_rerun_that_is_not_installed_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    root = build_dataset(tmp_path / "set")
    assert main(["dataset", "view", f"--root={root}", "--mode=rerun"]) == 1
    assert "viz" in capsys.readouterr().err


def test_frames_and_rows_are_sent_to_rerun(tmp_path, capsys, monkeypatch):
    logged, times, saved = [], [], []
    rerun = types.ModuleType("rerun")
    rerun.init = lambda name, spawn: saved.append((name, spawn))
    rerun.save = saved.append
    rerun.set_time = lambda name, **value: times.append((name, value))
    rerun.log = lambda place, value: logged.append((place, value))
    rerun.Scalars = float
    rerun.EncodedImage = lambda contents, media_type: (media_type, contents[:2])
    monkeypatch.setitem(sys.modules, "rerun", rerun)
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)})
    path = tmp_path / "out" / "one.rrd"
    assert main(["dataset", "view", f"--root={root}", "--episode_index=1", f"--save={path}"]) == 0
    assert saved == [("mimetic set", False), str(path)]
    assert ("episode_1/observation.images.top", ("image/jpeg", b"\xff\xd8")) in logged
    assert ("episode_1/observation.state/joint_0.pos", 106.0) in logged
    assert times[-2] == ("frame_index", {"sequence": 6})
    assert str(path) in capsys.readouterr().out


def test_the_command_serves_and_ends_with_ctrl_c(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"top": (48, 64)})
    command = [sys.executable, "-m", "mimetic", "dataset", "view", str(root), "--no_open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32,}/", url)
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert b"mimetic dataset view" in answer.read()
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) in (0, 130)
        assert "Traceback" not in process.stderr.read()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]
