"""`mimetic dataset info`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from mimetic.cli import app

DATASETS = Path(__file__).parents[2] / "fixtures"
VIDEO = DATASETS / "dataset/video_v30"
Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *argv: str) -> tuple[int, str, str]:
    code = app.main(["dataset", "info", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_facts_of_a_dataset(capsys: Capture) -> None:
    code, out, _ = run(capsys, f"--root={VIDEO}", "--repo_id=me/pick", "--json=true")
    assert code == 0
    found = json.loads(out)
    info = json.loads((VIDEO / "meta/info.json").read_text())
    assert found["repo_id"] == "me/pick"
    assert found["version"] == "v3.0"
    assert found["robot_type"] == info["robot_type"]
    assert found["fps"] == info["fps"]
    assert found["episodes"] == {"declared": info["total_episodes"], "in_table": info["total_episodes"]}
    assert found["frames"] == dict.fromkeys(("declared", "in_table", "in_files"), info["total_frames"])
    assert [row["name"] for row in found["features"]] == list(info["features"])
    top = found["cameras"][0]
    assert (top["name"], top["width"], top["height"], top["codec"]) == ("observation.images.top", 128, 96, "av1")
    assert "mean" in found["features"][0]["statistics"]
    assert sum(task["episodes"] for task in found["tasks"]) >= info["total_episodes"]


def test_the_text_has_it_too_and_a_bare_folder_is_enough(capsys: Capture) -> None:
    code, out, _ = run(capsys, str(VIDEO))
    assert code == 0
    for part in ("30 Hz", "128 x 96", "av1 yuv420p", "Pick up the red cube.", "shoulder_pan.pos"):
        assert part in out
    assert "shoulder_pan.pos" not in run(capsys, str(VIDEO), "--show_features=false")[1]


def test_an_old_dataset_is_read(capsys: Capture) -> None:
    assert json.loads(run(capsys, f"--root={DATASETS / 'real/g1_v21'}", "--json=true")[1])["version"] == "v2.1"


def test_numbers_that_disagree_are_shown_both(tmp_path: Path, capsys: Capture) -> None:
    root = tmp_path / "d"
    shutil.copytree(VIDEO, root)
    path = root / "meta/info.json"
    path.chmod(0o644)
    info = json.loads(path.read_text())
    real = info["total_frames"]
    path.write_text(json.dumps({**info, "total_frames": 7}))
    out = run(capsys, f"--root={root}")[1]
    assert f"7 by meta/info.json, but {real} in the table of episodes, {real} in the data files" in out


def test_no_dataset_is_two_lines(tmp_path: Path, capsys: Capture) -> None:
    code, out, err = run(capsys, f"--root={tmp_path}")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: no dataset at `{tmp_path}` (expected meta/info.json)\nhint: ")
    assert err.count("\n") == 2
    assert run(capsys)[2] == "error: no dataset is named: `mimetic dataset info --root=FOLDER`\n"


def test_a_cut_data_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    shutil.copytree(DATASETS / "training/dataset_tiny_vec", tmp_path / "cut")
    file = next((tmp_path / "cut/data").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:100])
    code, out, err = run(capsys, str(tmp_path / "cut"))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: `{file}` has no readable Parquet footer")
