"""The dataset check tells a sloppy operator's recordings from a careful one's, and says what is wrong with them."""

import json
import re

import pytest

pytest.importorskip("mujoco", reason="needs the package mujoco")

from mimetic.cli import dataset_check, demo_record
from mimetic.data.writer import DatasetWriter
from mimetic.envs.cell import Cell
from mimetic.envs.config import FPS, CellConfig
from mimetic.envs.demonstration import demonstrate
from mimetic.envs.manner import CAREFUL, SLOPPY
from mimetic.names import SIMULATION_JSON

EPISODES = 24
HABITS = {"motion.idle_head", "action.shaking", "motion.pause", "motion.tempo"}


def record(root, manner, seed):
    """Recordings of `push` without pictures, failures included, as the check reads them."""
    cell = Cell(CellConfig(task="push", renderer="rays"))
    names = cell.features()["action"]["names"]
    joints = {key: {"dtype": "float32", "shape": (6,), "names": names} for key in ("action", "observation.state")}
    with DatasetWriter.create("local/demo", FPS, joints, root, robot_type="so101_follower", live=False) as writer:
        for number in range(EPISODES):
            one = demonstrate(cell, manner, seed + number, pictures=False)
            for row in one.rows():
                writer.add_frame(row, one.instruction)
            writer.save_episode()
        writer.finalize()
    cell.close()
    return root


def check(root, capsys):
    """Findings of `mimetic dataset check` by their class."""
    code = dataset_check.main([str(root), "--json"], debug=False)
    findings = json.loads(capsys.readouterr().out)["findings"]
    return code, {claim: [one for one in findings if one["claim"] == claim] for claim in ("DEFECT", "RISK")}


def test_the_sloppy_operator_is_flagged_for_its_habits_and_the_careful_one_is_not(tmp_path, capsys):
    code, careful = check(record(tmp_path / "careful", CAREFUL, 100), capsys)
    assert code == 0
    assert careful["DEFECT"] == []
    assert not HABITS & {one["id"] for one in careful["RISK"]}
    _, sloppy = check(record(tmp_path / "sloppy", SLOPPY, 100), capsys)
    found = {one["id"]: one for one in sloppy["RISK"]}
    assert set(found) >= HABITS
    assert len(found["motion.idle_head"]["episodes"]) > EPISODES / 2
    assert len(found["action.shaking"]["episodes"]) > EPISODES / 2
    assert "trim" in found["motion.idle_head"]["repair"]


def test_failures_that_were_kept_are_named_with_the_command_that_takes_them_out(tmp_path, capsys):
    root = tmp_path / "kept"
    flags = [
        "--task=reach",
        "--operator=sloppy",
        "--keep_failures=true",
        "--n_episodes=10",
        "--width=32",
        "--height=32",
    ]
    assert demo_record.main([f"--root={root}", "--distractors=0", *flags], debug=False) == 0
    capsys.readouterr()
    noted = json.loads((root / SIMULATION_JSON).read_text())["episodes"]
    failed = [number for number, one in enumerate(noted) if not one["success"]]
    assert 0 < len(failed) < 10
    _, found = check(root, capsys)
    (finding,) = [one for one in found["RISK"] if one["id"] == "variety.failures"]
    assert finding["episodes"] == failed
    assert json.loads(re.search(r"episode_indices=(\[.*\])", finding["repair"])[1]) == failed
