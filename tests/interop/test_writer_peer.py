"""LeRobot 0.6.1 opens what mimetic's writer wrote, with equal items, and both continue each other's datasets.

Decoded colour frames may differ by 2 of 255 (another FFmpeg build); everything else is exact.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.reader import open_dataset
from mimetic.data.record.config import WriterConfig
from mimetic.data.record.salvage.dataset import salvage
from mimetic.data.writer import DatasetWriter
from mimetic.testing.datasets import coded_image

PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")
SCRIPT = Path(__file__).with_name("peer_datasets.py")
SIZE = (64, 80)

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]


def peer(*arguments, home, check=True):
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [PEER, str(SCRIPT), *map(str, arguments)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 or not check, done.stdout[-2000:] + done.stderr[-4000:]
    return done


def peer_items(root, tmp_path):
    out = tmp_path / "items.npz"
    peer("read", root, out, home=tmp_path / "home")
    with np.load(out, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files}
    return json.loads(str(arrays.pop("about"))), arrays


def camera(dtype, channels=3):
    return {"dtype": dtype, "shape": (*SIZE, channels), "names": ["height", "width", "channels"]}


FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
    "observation.state": {"dtype": "float64", "shape": (3,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "counter": {"dtype": "int32", "shape": (1,), "names": None},
    "grid": {"dtype": "int16", "shape": (2, 3), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "observation.images.top": camera("video"),
    "observation.images.still": camera("image"),
}
DEPTH = {"observation.images.range": camera("video", 1), "observation.images.range_image": camera("image", 1)}


def frame(episode, k, *, depth=False, language=False):
    picture = coded_image(episode, k, SIZE)
    value = {
        "action": np.array([episode, k], dtype=np.float32),
        "observation.state": np.array([episode + k / 3, k, -k], dtype=np.float64),
        "next.done": np.array([k % 2 == 0]),
        "counter": np.array([k], dtype=np.int32),
        "grid": np.full((2, 3), 10 * episode + k, dtype=np.int16),
        "note": f"note {k}",
        "observation.images.top": picture,
        "observation.images.still": picture,
        "task": f"task {(episode + (k > 2)) % 2}",
    }
    if depth:
        slope = 600 + 10 * np.arange(SIZE[1], dtype=np.uint16) + 5 * np.arange(SIZE[0], dtype=np.uint16)[:, None]
        value |= {
            "observation.images.range": slope + k,
            "observation.images.range_image": (slope / 1000).astype(np.float32),
        }
    if language:
        value["language_events"] = [{"role": "user", "content": f"stop {k}", "style": "interjection"}] if k == 1 else []
        value["language_persistent"] = [{"role": "assistant", "content": "grasp", "style": "subtask"}] if k == 0 else []
    return value


def write(root, lengths, *, features=FEATURES, settings=None, sessions=1, finalize=True, **kinds):
    episodes = list(enumerate(lengths))
    for session in range(sessions):
        start = {"fps": 10, "features": features, "settings": settings}
        writer = (
            DatasetWriter.create("local/written", root=root, robot_type="toy", **start)
            if session == 0
            else DatasetWriter.resume("local/written", root=root, **start)
        )
        for episode, length in episodes[session::sessions] if sessions == 1 else [episodes[session]]:
            for k in range(length):
                writer.add_frame(frame(episode, k, **kinds))
            writer.save_episode()
        if finalize:
            writer.finalize()
    return writer


def assert_equal_items(root, tmp_path):
    about, arrays = peer_items(root, tmp_path)
    dataset = open_dataset(root=root)
    assert (about["episodes"], about["frames"]) == (len(dataset.episodes), len(dataset))
    assert about["tasks"] == list(dataset.meta.tasks.values())
    assert about["stats"] == sorted(dataset.meta.stats)
    assert about["robot_type"] == "toy"
    for row in range(len(dataset)):
        item = dataset[row]
        order = about["texts"][row].pop("__order__")
        assert list(item) == order
        for key, value in item.items():
            if not hasattr(value, "numpy"):
                assert about["texts"][row][key] == value, key
                continue
            ours, theirs = value.numpy(), arrays[f"{row}/{key}"]
            assert ours.dtype == theirs.dtype, key
            is_lossy = dataset.features.get(key) is not None and dataset.features[key].dtype == "video"
            np.testing.assert_allclose(
                ours, theirs, atol=2.01 / 255 if is_lossy and "range" not in key else 0, err_msg=key
            )


SMALL = {"data_files_size_in_mb": 0.03, "video_files_size_in_mb": 0.02}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fast", {}),
        ("shards", {"settings": WriterConfig(**SMALL)}),
        ("sessions", {"sessions": 4}),
        ("unfinalized", {"finalize": False}),
        ("small", {"settings": WriterConfig(encoding="small")}),
        ("lossless", {"settings": WriterConfig(encoding="lossless")}),
        ("lerobot_flags", {"settings": WriterConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264", crf=23, g=4))}),
        ("depth", {"features": {**FEATURES, **DEPTH}, "depth": True}),
    ],
)
def test_lerobot_reads_equal_items(name, options, tmp_path):
    root = tmp_path / "written"
    writer = write(root, (5, 1, 7, 2), **options)
    assert_equal_items(root, tmp_path)
    writer.finalize()


def test_lerobot_reads_language_columns(tmp_path):
    language = {
        name: {"dtype": "language", "shape": (1,), "names": None} for name in ("language_persistent", "language_events")
    }
    root = tmp_path / "written"
    write(root, (3, 4), features={**FEATURES, **language}, language=True)
    assert_equal_items(root, tmp_path)


def test_lerobot_continues_our_dataset_and_we_continue_it_again(tmp_path):
    features = {key: FEATURES[key] for key in ("action", "observation.state", "observation.images.top")}
    root = tmp_path / "written"
    with DatasetWriter.create(
        "local/written", 10, features, root, robot_type="toy", settings=WriterConfig(encoding="small")
    ) as writer:
        for episode in range(2):
            for k in range(5):
                writer.add_frame({key: value for key, value in frame(episode, k).items() if key in (*features, "task")})
            writer.save_episode()
    peer("resume", root, home=tmp_path / "home")
    with DatasetWriter.resume("local/written", root, fps=10, features=features) as writer:
        assert writer.num_episodes == 3
        for k in range(6):
            writer.add_frame({key: value for key, value in frame(3, k).items() if key in (*features, "task")})
        writer.save_episode()
    assert_equal_items(root, tmp_path)
    assert len(open_dataset(root=root)) == 5 + 5 + 4 + 6


def test_we_continue_what_lerobot_recorded(tmp_path):
    root = tmp_path / "written"
    peer("record", root, home=tmp_path / "home")
    with DatasetWriter.resume("local/written", root, robot_type="toy") as writer:
        assert writer.encoders["observation.images.top"] == RgbEncoderConfig(preset=12)
        for k in range(6):
            writer.add_frame(
                {
                    "action": np.zeros(2, np.float32),
                    "observation.state": np.zeros(3, np.float32),
                    "observation.images.top": coded_image(3, k, (64, 64)),
                    "next.done": np.array([False]),
                    "grid": np.zeros((2, 2), np.float32),
                    "task": "a third task",
                }
            )
        writer.save_episode()
    assert_equal_items(root, tmp_path)


def test_lerobot_reads_what_was_salvaged_of_its_own_recording(tmp_path):
    root = tmp_path / "written"
    done = peer("record", root, 3, home=tmp_path / "home", check=False)
    assert done.returncode == -9
    assert peer("read", root, tmp_path / "x.npz", home=tmp_path / "home", check=False).returncode != 0
    assert salvage(root)[0] == "3 episodes are readable, 3 of them again"
    assert_equal_items(root, tmp_path)
    peer("resume", root, home=tmp_path / "home")
    assert_equal_items(root, tmp_path)
    assert len(open_dataset(root=root)) == 10 + 11 + 12 + 4
