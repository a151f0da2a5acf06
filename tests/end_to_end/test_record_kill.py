"""Recording is killed at random instants and at every step: what was saved is complete, nothing is left over, and recording goes on."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from mimetic.data.reader import open_dataset
from mimetic.data.record.journal import WORK_DIR, recover
from mimetic.testing.datasets import read_code

KILLS = 50
EPISODES = 5
LENGTH = 3

# Imports once, then forks one recording a line. `exit_at` ends a recording at its n-th access to the file system.
SERVER = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"
from pathlib import Path
import numpy as np
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.record.config import WriterConfig
from mimetic.data.writer import DatasetWriter
from mimetic.testing.datasets import coded_image

FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "observation.images.top": {"dtype": "video", "shape": (48, 64, 3), "names": None},
    "observation.images.side": {"dtype": "image", "shape": (48, 64, 3), "names": None},
}

# A few episodes a file, and some that stay alone and only change their number when they are packed.
LIMITS = {"data_files_size_in_mb": 0.011, "video_files_size_in_mb": 0.0045}

def watch(exit_at):
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        # not while a file is being imported, and not only before but also after every rename, removal and opening
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree"):
            if event == "open" and not str(arguments[0]).startswith(ROOT):
                return
            seen += 1
            if seen == exit_at:
                os._exit(9)
    sys.addaudithook(hook)

def record(root, acknowledged, episodes, length):
    settings = WriterConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264", crf=20, preset="ultrafast"), encoder_threads=1, **LIMITS)
    if (root / "meta" / "info.json").exists():
        writer = DatasetWriter.resume("local/kill", root, features=FEATURES, settings=settings)
    else:
        writer = DatasetWriter.create("local/kill", 10, FEATURES, root, settings=settings)
    with writer:
        while writer.num_episodes < episodes:
            episode = writer.num_episodes
            for k in range(length + episode):
                picture = coded_image(episode, k, (48, 64))
                value = {"action": np.array([episode, k], np.float32), "task": f"task {episode % 2}"}
                writer.add_frame({**value, "observation.images.top": picture, "observation.images.side": picture})
            writer.save_episode()
            os.write(acknowledged, b"%d\\n" % writer.num_episodes)

for line in sys.stdin:
    ROOT, log, episodes, length, exit_at = line.rstrip("\\n").split("\\t")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        acknowledged = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if int(exit_at):
            watch(int(exit_at))
        code = 0
        try:
            record(Path(ROOT), acknowledged, int(episodes), int(length))
        except BaseException as error:
            os.write(acknowledged, f"error {type(error).__name__}: {error}\\n".encode())
            code = 1
        os._exit(code)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class Server:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, root, log, *, episodes=EPISODES, length=LENGTH, exit_at=0):
        self.process.stdin.write(f"{root}\t{log}\t{episodes}\t{length}\t{exit_at}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def exit_code(self):
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


def saved(log):
    """Episodes whose `save_episode` had returned."""
    lines = log.read_text().splitlines() if log.exists() else []
    assert not [line for line in lines if line.startswith("error")], lines
    return max((int(line) for line in lines), default=0)


def check(root, log, length=LENGTH):
    """Everything that was acknowledged is there, frame for frame, and nothing is left over; returns the episodes."""
    recover(root)
    assert not (root / WORK_DIR).exists()
    assert not [path for path in root.rglob("*") if path.name.endswith(".writing")]
    assert not (root / "images").exists()
    if not any(root.glob("meta/episodes/*/*.parquet")):
        assert saved(log) == 0
        return 0
    dataset = open_dataset(root=root)
    n_episodes = len(dataset.episodes)
    assert n_episodes >= saved(log), "an episode whose save had returned is lost"
    assert dataset.meta.info.total_episodes == n_episodes
    assert dataset.meta.info.total_frames == len(dataset)
    expected = [(e, k) for e in range(n_episodes) for k in range(length + e)]
    assert len(dataset) == len(expected)
    for row, (episode, k) in enumerate(expected):
        item = dataset[row]
        assert (item["episode_index"].item(), item["frame_index"].item()) == (episode, k)
        assert item["action"].tolist() == [episode, k]
        assert item["task"] == f"task {episode % 2}"
        for camera in ("top", "side"):
            assert read_code(item[f"observation.images.{camera}"].numpy()) == (episode, k), camera
    dataset.close()
    used = {row for place in ("data_chunk", "data_file") for row in getattr(dataset.meta.episodes, place).tolist()}
    n_data = len(list(root.glob("data/*/*.parquet")))
    n_video = len(list(root.glob("videos/*/*/*.mp4")))
    assert n_data == len(
        {*zip(dataset.meta.episodes.data_chunk.tolist(), dataset.meta.episodes.data_file.tolist(), strict=True)}
    )
    assert n_video == len(
        {
            *zip(
                *(
                    getattr(dataset.meta.episodes.videos["observation.images.top"], n).tolist()
                    for n in ("chunk", "file")
                ),
                strict=True,
            )
        }
    )
    assert used
    return n_episodes


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork and SIGKILL")


@needs_fork
def test_fifty_kills_lose_no_saved_episode(server, tmp_path):
    whole, log = tmp_path / "whole", tmp_path / "whole.log"
    started = time.monotonic()
    server.start(whole, log)
    assert server.exit_code() == 0, log.read_text()
    duration = time.monotonic() - started
    assert check(whole, log) == EPISODES
    assert 1 < len(list(whole.glob("data/*/*.parquet"))) < EPISODES
    assert 1 < len(list(whole.glob("videos/*/*/*.mp4"))) < EPISODES
    chance, kills, finished, counts = random.Random(11), 0, 0, []
    root, log = tmp_path / "run-0", tmp_path / "run-0.log"
    while kills < KILLS:
        child = server.start(root, log)
        time.sleep(chance.uniform(0.02, 0.9) * duration)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = server.exit_code()
        assert code in (0, -signal.SIGKILL), log.read_text()
        kills += code == -signal.SIGKILL
        counts.append(check(root, log) if root.exists() else 0)
        if code == 0 or counts[-1] == EPISODES:
            finished += 1
            root, log = tmp_path / f"run-{finished}", tmp_path / f"run-{finished}.log"
    assert {1, 2, 3, 4} & set(counts), "no kill fell between two episodes; the test shows nothing"


@needs_fork
def test_every_step_may_be_the_last_one(server, tmp_path):
    """A recording of two episodes ends before its 1st, 4th, ... access to the file system, until it ends by itself."""
    step, results = -2, []
    while True:
        step += 3
        root, log = tmp_path / f"{step}", tmp_path / f"{step}.log"
        server.start(root, log, episodes=2, length=2, exit_at=step)
        code = server.exit_code()
        assert code in (0, 9), log.read_text()
        results.append(check(root, log, length=2) if root.exists() else 0)
        if code == 0:
            break
        if step % 8 == 1:  # and it goes on from there
            server.start(root, log, episodes=3, length=2)
            assert server.exit_code() == 0, log.read_text()
            assert check(root, log, length=2) == 3
    assert results == sorted(results), "a later end kept fewer episodes"
    assert set(results) == {0, 1, 2}
    assert step > 60, "the steps were not seen"
