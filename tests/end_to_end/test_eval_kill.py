"""An evaluation is killed at many instants and goes on: its files are those of one that was never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import av
import numpy as np
import pytest
import toy_env

from mimetic.data.features import policy_features
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.identity import only_one
from mimetic.evaluate.rollout.journal import VOLATILE
from mimetic.names import ACTION, STATE, SUCCESS
from mimetic.policies.catalog import POLICIES
from mimetic.testing import script_policy
from mimetic.testing.script_policy import Script, save_scripts

if not hasattr(os, "fork"):
    pytest.skip("needs os.fork", allow_module_level=True)

N, SEED = 8, 1000

# Imports once, then forks one evaluation a line.
SERVER = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, sys.argv[1])
from dataclasses import replace
from pathlib import Path
import toy_env
from mimetic.envs.catalog import ENVS
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.rollout.adapters import ADAPTERS
from mimetic.evaluate.rollout.run import evaluate_closed_loop
from mimetic.policies.catalog import POLICIES
from mimetic.policies.checkpoint import read_config
from mimetic.report.rollout import write_report
from mimetic.testing import script_policy
from mimetic.train.config import EnvEvalConfig

for catalog in (ENVS, ADAPTERS):
    catalog._entries[toy_env.NAME] = toy_env.ENTRY
POLICIES._entries[script_policy.NAME] = script_policy.ENTRY

def evaluate(checkpoint, output, recording, resume):
    config = EvalConfig(
        policy=replace(read_config(checkpoint), pretrained_path=str(checkpoint)),
        env=toy_env.ToyEnvConfig(splits=2),
        eval=EnvEvalConfig(n_episodes=%(n)d, batch_size=3, use_async_envs=False, recording=recording),
        output_dir=output,
        seed=%(seed)d,
        ablate="blind",
        videos=3,
        resume=resume,
    )
    evaluate_closed_loop(config)
    write_report(output)

for line in sys.stdin:
    checkpoint, output, recording, resume = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        code = 0
        try:
            evaluate(Path(checkpoint), Path(output), recording == "1", resume == "1")
        except BaseException as error:
            Path(output + ".error").write_text(repr(error))
            code = 1
        os._exit(code)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Server:
    def __init__(self):
        code = SERVER % {"n": N, "seed": SEED}
        where = str(Path(toy_env.__file__).parent)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, checkpoint, output, *, recording, resume):
        self.process.stdin.write(f"{checkpoint}\t{output}\t{int(recording)}\t{int(resume)}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def exit_code(self):
        return int(self.process.stdout.readline())

    def whole(self, checkpoint, output, *, recording, resume=False):
        self.start(checkpoint, output, recording=recording, resume=resume)
        code = self.exit_code()
        error = Path(f"{output}.error")
        assert code == 0, error.read_text() if error.exists() else code

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """An expert with noise: lengths and successes differ, and every random number counts."""
    scripts = []
    for number in range(N):
        colour, points = toy_env.layout(SEED + number)
        steps = toy_env.script(SEED + number)
        scripts.append(Script(toy_env.picture(points), toy_env.instruction(colour), steps))
    features = policy_features(toy_env.toy_tasks(toy_env.ToyEnvConfig())[0].features)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES._entries, script_policy.NAME, script_policy.ENTRY)
        return save_scripts(tmp_path_factory.mktemp("policy"), scripts, features, noise=0.12)


def without_times(folder):
    """Texts of the files, without times and without the folder's own name."""
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    episodes = [json.dumps({key: value for key, value in row.items() if key not in VOLATILE}) for row in rows]
    info = json.loads((folder / "eval_info.json").read_text())
    del info["overall"]["eval_s"], info["overall"]["eval_ep_s"]
    document = json.loads((folder / "closed_loop.json").read_text())
    spoken = document.pop("latency")["sentence"]
    document["findings"].remove(spoken)
    config = json.loads((folder / "eval_config.json").read_text())
    del config["seconds"], config["settings"]["resume"]
    return [text.replace(str(folder), "FOLDER") for text in (*episodes, *map(json.dumps, (info, document, config)))]


def pictures(folder):
    """Decoded films and bytes of strips, by relative path."""
    found = {path.relative_to(folder): path.read_bytes() for path in folder.glob("strips/**/*.jpg")}
    for path in folder.glob("videos*/**/*.mp4"):
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24").tobytes() for frame in container.decode(video=0)]
        found[path.relative_to(folder)] = b"".join(frames)
    return found


def recorded(folder):
    found = {}
    for root in sorted((folder / "recordings").iterdir()):
        dataset = open_dataset("local/x", root=root)
        found[root.name] = [np.asarray(dataset.column(key)).tobytes() for key in (STATE, ACTION, SUCCESS)]
        found[root.name] += [dataset[index][toy_env.CAMERA].numpy().tobytes() for index in range(len(dataset))]
    return found


def lines(folder):
    path = folder / "episodes.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("recording", "kills"), [(False, 8), (True, 4)])
def test_a_killed_evaluation_goes_on_and_equals_the_uninterrupted_one(server, checkpoint, tmp_path, recording, kills):
    whole = tmp_path / "whole"
    server.whole(checkpoint, whole, recording=recording)
    expected, shown = without_times(whole), pictures(whole)
    assert bool(list(whole.glob("videos/**/*.mp4"))) != recording
    frames = recorded(whole) if recording else {}
    rng = random.Random(7)
    total, killed_at = 2 * 2 * N, []
    for kill in range(kills):
        folder = tmp_path / f"killed_{kill}"
        child = server.start(checkpoint, folder, recording=recording, resume=False)
        wanted = round(kill * (total - 2) / (kills - 1))
        deadline = time.monotonic() + 120
        while lines(folder) < wanted and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        if server.exit_code() == -signal.SIGKILL:
            killed_at.append(lines(folder))
        if folder.exists():
            server.whole(checkpoint, folder, recording=recording, resume=True)
        else:
            server.whole(checkpoint, folder, recording=recording)
        assert without_times(folder) == expected
        assert pictures(folder) == shown
        assert not [path for path in folder.rglob("*") if path.name.endswith(".writing")]
        if recording:
            assert recorded(folder) == frames
            assert not list((folder / "recordings").glob("tmp*"))
    assert len(set(killed_at)) >= kills // 2, killed_at


def test_two_processes_do_not_evaluate_into_one_folder(tmp_path):
    with only_one(tmp_path / "a"), pytest.raises(ConfigError, match="another process is evaluating"):
        only_one(tmp_path / "a").__enter__()
    with only_one(tmp_path / "a"):
        pass
