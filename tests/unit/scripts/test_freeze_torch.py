"""`scripts/freeze_torch.py` pins the torch of the environment that runs it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "freeze_torch.py"

ROCM = {
    "torch": "2.12.0+rocm7.14.0a20260608",
    "torchvision": "0.27.0+rocm7.14.0a20260608",
    "triton": "3.7.0+git1.rocm7.14",
    "numpy": "1.26.4",
}


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("freeze_torch", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def rocm(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """An environment with AMD's torch; what is put into the dictionary is what is installed."""
    versions = dict(ROCM)

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "__version__ = '2.12.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.14.60850'\n"
    )
    spec = importlib.util.spec_from_file_location(
        "torch", tmp_path / "torch" / "__init__.py", submodule_search_locations=[str(tmp_path / "torch")]
    )
    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    return versions


def test_this_environment_as_a_program() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120, check=True)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert lines[0] == f"torch=={metadata.version('torch')}"
    assert f"numpy=={metadata.version('numpy')}" in lines
    assert all(len(line.split("==")) == 2 for line in lines)


def test_it_needs_neither_mimetic_nor_an_import_of_torch() -> None:
    code = f"import sys, runpy; sys.argv = ['x']\ntry:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\nexcept SystemExit:\n    pass\nprint([name for name in ('torch', 'mimetic', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_part_behind_the_plus_sign_is_kept(
    script: ModuleType, rocm: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.run(["--build=rocm", f"--output={tmp_path / 'overrides.txt'}"])
    assert (tmp_path / "overrides.txt").read_text().splitlines()[1:] == [
        f"{name}=={version}" for name, version in ROCM.items()
    ]
    assert capsys.readouterr().err == f"{tmp_path / 'overrides.txt'}: torch {ROCM['torch']} (rocm) and 3 more\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["overrides.txt"]


def test_the_file_that_was_written_is_what_is_installed(
    script: ModuleType, rocm: dict[str, str], tmp_path: Path
) -> None:
    script.run([f"--output={tmp_path / 'o.txt'}"])
    script.run([f"--check={tmp_path / 'o.txt'}"])


def test_a_torch_that_was_replaced_is_found(script: ModuleType, rocm: dict[str, str], tmp_path: Path) -> None:
    script.run([f"--output={tmp_path / 'o.txt'}"])
    rocm["torch"] = "2.13.0"
    del rocm["triton"]
    with pytest.raises(script.Problem) as found:
        script.run([f"--check={tmp_path / 'o.txt'}"])
    assert str(found.value) == f"torch was {ROCM['torch']} and is 2.13.0; triton was {ROCM['triton']} and is missing"
    assert found.value.hint.startswith("`pip install -r ")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("hip = '7.0'", "rocm"),
        ("cuda: Optional[str] = '13.0'", "cuda"),
        ("xpu: Optional[str] = '2025'", "xpu"),
        ("cuda = None\nhip = None", "cpu"),
    ],
)
def test_what_torch_was_built_for(
    script: ModuleType, rocm: dict[str, str], tmp_path: Path, line: str, kind: str
) -> None:
    (tmp_path / "torch" / "version.py").write_text(line + "\n")
    assert script.target() == kind


def test_the_wrong_build_is_refused(script: ModuleType, rocm: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch" / "version.py").write_text("cuda = '13.0'\n")
    rocm["torch"] = "2.14.1"
    with pytest.raises(script.Problem, match=r"torch 2\.14\.1 is built for cuda, not for rocm"):
        script.run(["--build=rocm"])


def test_a_torchvision_of_another_build_is_refused(script: ModuleType, rocm: dict[str, str]) -> None:
    rocm["torchvision"] = "0.29.1"
    with pytest.raises(script.Problem, match=r"torchvision 0\.29\.1 is not a ROCm build, and torch is one"):
        script.run(["--build=rocm"])
    script.run(["--build=any"])


def test_an_environment_without_torch_is_refused(script: ModuleType, rocm: dict[str, str]) -> None:
    rocm.clear()
    with pytest.raises(script.Problem, match="torch is not installed here") as found:
        script.run([])
    assert sys.executable in found.value.hint


def test_files_that_cannot_be_written_or_read_are_named(
    script: ModuleType, rocm: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(script.Problem, match=r"cannot write .*none/o\.txt: No such file or directory"):
        script.run([f"--output={tmp_path / 'none' / 'o.txt'}"])
    with pytest.raises(script.Problem, match=r"cannot read .*missing\.txt: No such file or directory"):
        script.run([f"--check={tmp_path / 'missing.txt'}"])


def test_a_problem_is_two_lines_and_exit_code_1() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check=/nowhere/o.txt"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert (
        done.stderr
        == "error: cannot read /nowhere/o.txt: No such file or directory\nhint: write it first, with `--output`\n"
    )
