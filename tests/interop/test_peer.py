"""mimetic against a real LeRobot 0.6.1, which runs in its own environment (docs/benchmarks.md says how to make it).

Each test runs `python -m benchmarks.interop NAME`, which holds the comparisons and their tolerances: actions 1e-5,
weights and optimiser state 2e-6 (summation order of another torch), everything else exact.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PEER = os.environ.get("MIMETIC_PEER_PYTHON", "")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        not PEER, reason="needs LeRobot 0.6.1: set MIMETIC_PEER_PYTHON to its interpreter (docs/benchmarks.md)"
    ),
]


def compare(name: str, tmp_path: Path) -> list[dict]:
    """Run one group of comparisons and return its checks."""
    target = tmp_path / "checks.json"
    command = [sys.executable, "-m", "benchmarks.interop", name, "--json", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert target.exists(), done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(target.read_text())


def failed(checks: list[dict]) -> list[str]:
    """What differs, readable."""
    return [f"{check['name']}: {check['detail']}" for check in checks if not check["passed"]]


def test_both_sides_act_alike_on_checkpoints_of_both_sides(tmp_path):
    checks = compare("actions", tmp_path)
    assert len(checks) == 4
    assert failed(checks) == []


def test_lerobot_continues_our_run_as_if_we_had_continued(tmp_path):
    checks = compare("peer_resumes", tmp_path)
    assert len(checks) == 5
    assert failed(checks) == []


def test_we_continue_lerobots_run_as_if_it_had_continued(tmp_path):
    checks = compare("we_resume", tmp_path)
    assert len(checks) == 5
    assert failed(checks) == []


def test_both_sides_read_equal_items(tmp_path):
    checks = compare("datasets", tmp_path)
    assert len(checks) == 9
    assert failed(checks) == []
