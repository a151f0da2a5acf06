"""`mimetic info`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from mimetic.cli import app, info

LEROBOT_BULLETS = [
    "LeRobot version",
    "Platform",
    "Python version",
    "Huggingface Hub version",
    "Transformers version",
    "Datasets version",
    "Numpy version",
    "FFmpeg version",
    "PyTorch version",
    "Torchcodec version",
    "Is PyTorch built with CUDA support?",
    "Cuda version",
    "GPU model",
    "Using GPU in script?",
]


def test_the_bullets_of_lerobot_come_in_its_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["info", "--devices=false"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("- ", "  - ")) for line in lines)
    names = [line[2:].partition(": ")[0] for line in lines]
    assert [name for name in names if name in LEROBOT_BULLETS] == LEROBOT_BULLETS
    assert f"- Python version: {sys.version.split()[0]}" in lines
    assert f"- Numpy version: {metadata.version('numpy')}" in lines


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["info", "--devices=false", "--json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(LEROBOT_BULLETS) < set(found)
    assert found["GPU model"] == "not asked (--devices=false)"
    assert "Devices" not in found
    assert found["Warnings"] == []
    assert found["Video decoders"]["pyav"].startswith("works")


def test_devices_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["info", "--json=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["type"] for row in found["Devices"]] == ["cuda", "mps", "xpu", "cpu"]
    assert isinstance(found["Is PyTorch built with CUDA support?"], bool)
    assert all(row["reason"] for row in found["Devices"] if not row["available"])


def test_without_devices_torch_is_not_imported() -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        "from mimetic.cli.info import gather; gather(with_devices=False)\n"
        "print('torch' in sys.modules, time.process_time() - start)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported, seconds = done.stdout.split()
    assert imported == "False"
    assert float(seconds) < 1.0  # measured: 0.15 s of processor time; the bound is what the command promises


def test_a_broken_torch_does_not_take_the_other_facts_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mimetic.accelerators.devices", None)
    found = info.gather(with_devices=True)
    assert found["Devices"].startswith("torch cannot be imported")
    assert found["GPU model"] == info.MISSING
    assert [one["problem"] for one in found["Warnings"]] == [found["Devices"]]
    assert found["Numpy version"] == metadata.version("numpy")


def test_extras_name_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: ["torch>=2", 'absent-thing>=1; extra == "report"', 'numpy; extra == "training"'],
    )
    found = info.extras()
    assert found["report"] == "missing absent-thing: pip install 'mimetic[report]'"
    assert found["training"] == "installed"


def test_scripts_are_listed_with_the_aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "mimetic" in info.scripts()
    points = [
        metadata.EntryPoint("mimetic", "mimetic.cli.app:main", "console_scripts"),
        metadata.EntryPoint("lerobot-train", "lerobot_cli_mimetic:main", "console_scripts"),
        metadata.EntryPoint("lerobot-info", "lerobot.scripts.lerobot_info:main", "console_scripts"),
        metadata.EntryPoint("pip", "pip._internal.cli.main:main", "console_scripts"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    assert info.scripts() == ["lerobot-info", "lerobot-train", "mimetic"]


def test_kept_features_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMETIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert info.kept_features() == "none in ~/cache/features"
    for name in ("a", "b"):
        entry = tmp_path / "cache" / "features" / name
        entry.mkdir(parents=True)
        (entry / "header.json").write_text("{}" if name == "a" else "torn")
        (entry / "features.bin").write_bytes(b"x" * 60_000_000)
    assert info.kept_features() == "2 arrays, 0.1 GB in ~/cache/features"
    assert info.kept_frames() == "none in ~/cache/frames"
    (tmp_path / "cache" / "frames" / "c").mkdir(parents=True)
    (tmp_path / "cache" / "frames" / "c" / "header.json").write_text("{}")
    (tmp_path / "cache" / "frames" / "c" / "frames.bin").write_bytes(b"x" * 2_000_000)
    assert info.kept_frames() == "1 arrays, 2.0 MB in ~/cache/frames"
