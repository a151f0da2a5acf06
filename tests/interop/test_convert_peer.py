"""What LeRobot 0.6.1 sees of our conversions; it runs in its own environment (docs/benchmarks.md says how to make it).

Exact: rows, indices, tasks, padding. Colour frames: at most 2 of 255 (another FFmpeg may round otherwise).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import TinyDataset, build_dataset

FIXTURES = Path(__file__).parents[1] / "fixtures"
PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]

SCRIPT = """
import json, sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from lerobot.datasets.lerobot_dataset import LeRobotDataset

root, out, indices = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
dataset = LeRobotDataset("me/converted", root=root, video_backend="pyav")
tensors, described = {}, {}
for index in indices or range(len(dataset)):
    item = dataset[index]
    described[index] = {"task": item["task"], "keys": list(item)}
    for key, value in item.items():
        if isinstance(value, torch.Tensor):
            tensors[f"{index}/{key}"] = value.contiguous()
save_file(tensors, str(out / "items.safetensors"))
stats = {name: sorted(entry) for name, entry in dataset.meta.stats.items()}
facts = {"length": len(dataset), "episodes": dataset.num_episodes, "items": described, "stats": stats}
(out / "items.json").write_text(json.dumps(facts))
"""


def peer_items(root, out, indices=()):
    out.mkdir()
    script = out / "script.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(out / "hf"),
        "HF_LEROBOT_HOME": str(out / "lerobot"),
    }
    command = [PEER, str(script), str(root), str(out), json.dumps(list(indices))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((out / "items.json").read_text()), load_file(out / "items.safetensors")


def assert_equal(root, out, indices=()):
    facts, tensors = peer_items(root, out, indices)
    ours = open_dataset(root=root, video_backend="pyav")
    assert (facts["length"], facts["episodes"]) == (len(ours), len(ours.episodes))
    assert facts["items"]
    for index, described in facts["items"].items():
        item = ours[int(index)]
        assert list(item) == described["keys"]
        assert item["task"] == described["task"]
        for key in (name.split("/", 1)[1] for name in tensors if name.split("/")[0] == index):
            mine, theirs = np.asarray(item[key]), tensors[f"{index}/{key}"]
            assert mine.shape == theirs.shape, key
            if key.startswith("observation.images"):
                assert np.abs(mine.astype(np.float64) - theirs).max() <= 2 / 255 + 1e-6, key
            else:
                np.testing.assert_array_equal(mine, theirs, err_msg=key)
    return facts


def test_lerobot_reads_our_conversion_of_v21(tmp_path):
    made = convert(
        ConvertConfig(
            root=FIXTURES / "dataset" / "v21",
            output_dir=tmp_path / "made",
            data_file_size_in_mb=0.008,
            video_file_size_in_mb=0.025,
        )
    )
    facts = assert_equal(made, tmp_path / "peer")
    assert facts["length"] == 115
    assert "q99" in facts["stats"]["action"]


def test_lerobot_reads_our_conversion_of_a_real_recording(tmp_path):
    made = convert(ConvertConfig(root=FIXTURES / "real" / "g1_v21", output_dir=tmp_path / "made"))
    assert assert_equal(made, tmp_path / "peer", [0, 119, 120, 269, 270, 379])["episodes"] == 3


def test_lerobot_reads_our_conversion_of_v20_with_pictures_in_its_data_files(tmp_path):
    spec = TinyDataset(version="v2.0", lengths=(4, 5, 3), cameras={"top": (20, 24)}, camera_dtype="image", fps=10)
    made = convert(ConvertConfig(root=build_dataset(tmp_path / "old", spec), output_dir=tmp_path / "made"))
    assert_equal(made, tmp_path / "peer")


def test_lerobot_converts_what_we_converted_back(tmp_path):
    """Its converter takes our v2.1 folder, and reads the same items from its own result."""
    old = convert(
        ConvertConfig(root=FIXTURES / "dataset" / "video_v30", output_dir=tmp_path / "old" / "pick", to="v2.1")
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    command = [PEER, "-m", "lerobot.scripts.convert_dataset_v21_to_v30", "--repo-id=me/pick", f"--root={old}"]
    done = subprocess.run(
        [*command, "--push-to-hub=false"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    theirs = open_dataset(root=old, return_uint8=True, video_backend="pyav")
    ours = open_dataset(root=FIXTURES / "dataset" / "video_v30", return_uint8=True, video_backend="pyav")
    assert theirs.meta.version == "v3.0"
    for index in range(len(ours)):
        for key, value in ours[index].items():
            assert value == theirs[index][key] if key == "task" else bool((value == theirs[index][key]).all()), key
