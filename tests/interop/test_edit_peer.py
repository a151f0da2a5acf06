"""What mimetic edited, a real LeRobot 0.6.1 opens, and its own editor edits again."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from mimetic.data.edit.config import (
    ConvertImageToVideoConfig,
    DeleteEpisodesConfig,
    MergeConfig,
    ModifyTasksConfig,
    RecomputeStatsConfig,
    ReencodeVideosConfig,
    RemoveFeatureConfig,
    RenameConfig,
    TrimConfig,
)
from mimetic.data.edit.run import edit_dataset
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.repair.run import repair

FIXTURES = Path(__file__).parents[1] / "fixtures" / "dataset"
PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]
OPEN = """
import json, sys
from lerobot.datasets.lerobot_dataset import LeRobotDataset
found = {}
for root in sys.argv[1:]:
    dataset = LeRobotDataset("me/edited", root=root)
    items = [dataset[i] for i in (0, len(dataset) // 2, len(dataset) - 1)]
    found[root] = [len(dataset), dataset.num_episodes, [item["task"] for item in items], [int(item["index"]) for item in items]]
print("FOUND " + json.dumps(found))
"""
EDITS = {
    "delete": ("video_v30", DeleteEpisodesConfig(episode_indices=[1, 4])),
    "delete_image": ("image_v30", DeleteEpisodesConfig(episode_indices=[0, 3])),
    "merge": ("video_v30", MergeConfig(roots=["a", "b"], data_files_size_in_mb=100, video_files_size_in_mb=200)),
    "merge_many": ("video_v30", MergeConfig(roots=["a", "b"])),
    "remove": ("video_v30", RemoveFeatureConfig(feature_names=["observation.images.wrist"])),
    "tasks": ("video_v30", ModifyTasksConfig(task_replacements={"Pick up the red cube.": "Lift it."})),
    "convert": ("image_v30", ConvertImageToVideoConfig()),
    "recompute": ("video_v30", RecomputeStatsConfig(relative_action=True, chunk_size=8, skip_image_video=False)),
    "reencode": ("video_v30", ReencodeVideosConfig(rgb_encoder=RgbEncoderConfig(vcodec="h264", crf=23))),
    "trim": ("video_v30", TrimConfig(by="frames", head=3, tail=1)),
    "rename": ("video_v30", RenameConfig(features={"observation.images.top": "observation.images.front"})),
    "depth": ("dtypes_v30", DeleteEpisodesConfig(episode_indices=[0])),
}


def environment(tmp_path):
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf"), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    for name, (source, config) in EDITS.items():
        roots = [FIXTURES / source] * (2 if name.startswith("merge") else 1)
        edit_dataset(roots, config, new_root=folder / name)
    edit_dataset(FIXTURES / "video_v30", DeleteEpisodesConfig(episode_indices=[2]), new_root=folder / "repaired")
    repair(folder / "repaired", apply=True)
    return folder


def test_lerobot_opens_every_result(edited, tmp_path):
    roots = [str(path) for path in sorted(edited.iterdir())]
    done = subprocess.run(
        [PEER, "-c", OPEN, *roots], capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), "")
    assert line, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(line.removeprefix("FOUND "))
    assert set(found) == set(roots)
    for root, (frames, episodes, tasks, index) in found.items():
        info = json.loads((Path(root) / "meta" / "info.json").read_text())
        assert (frames, episodes) == (info["total_frames"], info["total_episodes"])
        assert index == [0, frames // 2, frames - 1]
        assert all(tasks)


def peer_edit(tmp_path, target, *flags):
    """Run LeRobot's editor; what it made counts, since the peer's process may abort at its end after a success."""
    editor = Path(PEER).with_name("lerobot-edit-dataset")
    command = [str(editor), "--new_repo_id=me/result", f"--new_root={target}", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path), check=False)
    info = target / "meta" / "info.json"
    assert info.is_file(), done.stderr[-4000:]
    return json.loads(info.read_text())


def delete_one(tmp_path, root):
    flags = ["--repo_id=me/edited", f"--root={root}", "--operation.type=delete_episodes"]
    after = peer_edit(tmp_path, tmp_path / "again", *flags, "--operation.episode_indices=[1]")
    before = json.loads((root / "meta" / "info.json").read_text())
    assert after["total_episodes"] == before["total_episodes"] - 1


@pytest.mark.parametrize("name", [name for name in EDITS if name != "depth"])
def test_lerobots_editor_edits_every_result_again(edited, tmp_path, name):
    delete_one(tmp_path, edited / name)


FAULTY = {
    "merge": [
        "--operation.type=merge",
        "--operation.repo_ids=['a/b', 'a/c']",
        f"--operation.roots=['{FIXTURES / 'video_v30'}', '{FIXTURES / 'video_v30'}']",
    ],
    "remove_feature": [
        "--repo_id=me/a",
        f"--root={FIXTURES / 'video_v30'}",
        "--operation.type=remove_feature",
        "--operation.feature_names=['observation.images.wrist']",
    ],
    "convert_image_to_video": [
        "--repo_id=me/a",
        f"--root={FIXTURES / 'image_v30'}",
        "--operation.type=convert_image_to_video",
    ],
}


@pytest.mark.parametrize("name", FAULTY)
def test_results_that_lerobot_cannot_edit_again_can_be_after_a_repair(tmp_path, name):
    peer_edit(tmp_path, tmp_path / "faulty", *FAULTY[name])
    assert repair(tmp_path / "faulty", apply=True).mended
    assert repair(tmp_path / "faulty").repairs == ()
    delete_one(tmp_path, tmp_path / "faulty")
