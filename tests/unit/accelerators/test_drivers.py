"""Drivers and builds, found in folders that stand for other machines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mimetic.accelerators import drivers
from mimetic.accelerators.drivers import Host, TorchBuild

PROPRIETARY = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22-I3)\n"
    "GCC version:  gcc version 13.3.0\n"
)


def put(root: Path, files: dict[str, str]) -> Host:
    """A machine that has these files; programs answer nothing and every file may be used."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root=root, environment={}, run=lambda command: "", may_use=lambda path: True, system="linux")


# --- torch's build ---


@pytest.mark.parametrize(
    ("lines", "target", "text"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None", "cpu", "CPU only"),
        ("__version__ = '2.14.1+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None", "cuda", "CUDA 13.0"),
        ("__version__ = '2.10.0+rocm7.0'\ncuda = None\nhip = '7.0.51831'", "rocm", "ROCm (HIP 7.0.51831)"),
        (
            "__version__ = '2.9.0+xpu'\ncuda: Optional[str] = None\nxpu: Optional[str] = '20250301'",
            "xpu",
            "XPU (SYCL 20250301)",
        ),
    ],
)
def test_the_build_is_read_from_the_version_file(tmp_path: Path, lines: str, target: str, text: str) -> None:
    (tmp_path / "version.py").write_text("from typing import Optional\n\n" + lines + "\ngit_version = 'abc'\n")
    build = drivers.torch_build(tmp_path)
    assert build is not None
    assert (build.target, build.text) == (target, text)
    assert build.version == lines.split("'")[1]


def test_the_build_equals_what_torch_says_of_itself() -> None:
    import torch

    assert drivers.torch_build() == TorchBuild(
        torch.__version__, torch.version.cuda, torch.version.hip, torch.version.xpu
    )


@pytest.mark.parametrize("text", [None, "", "cuda = '13.0'", "\x00"])
def test_no_build_without_a_readable_version_file(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "version.py").write_text(text)
    assert drivers.torch_build(tmp_path) is None


def test_no_build_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert drivers.torch_build() is None


# --- NVIDIA ---


@pytest.mark.parametrize(("text", "version"), [(PROPRIETARY, "535.129.03"), (OPEN, "580.65.06")])
def test_the_driver_is_read_from_the_kernel_without_running_anything(tmp_path: Path, text: str, version: str) -> None:
    host = put(
        tmp_path,
        {
            "/proc/driver/nvidia/version": text,
            "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ: 1\n",
            "/proc/driver/nvidia/gpus/0000:41:00.0/information": "Model: \t\t NVIDIA A100-SXM4-80GB\n",
            "/dev/nvidia0": "",
            "/dev/nvidia1": "",
            "/dev/nvidiactl": "",
            "/dev/nvidia-uvm": "",
        },
    )
    ran: list[object] = []
    host = Host(root=tmp_path, environment={}, run=lambda command: ran.append(command) or "", may_use=host.may_use)
    nvidia = drivers.find_nvidia(host)
    assert (nvidia.driver, nvidia.source) == (version, "/proc/driver/nvidia/version")
    assert nvidia.cards == ("NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-80GB")
    assert nvidia.files == ("nvidia0", "nvidia1")
    assert nvidia.locked == ()
    assert nvidia.present
    assert nvidia.needs_files
    assert ran == []


def test_nvidia_smi_is_asked_where_the_kernel_says_nothing(tmp_path: Path) -> None:
    asked = []

    def run(command: list[str]) -> str:
        asked.append(command[0])
        return "528.49, NVIDIA GeForce RTX 3060\n528.49, NVIDIA T4\n"

    nvidia = drivers.find_nvidia(Host(root=tmp_path, environment={}, run=run))  # type: ignore[arg-type]
    assert asked == ["nvidia-smi"]
    assert (nvidia.driver, nvidia.source) == ("528.49", "nvidia-smi")
    assert nvidia.cards == ("NVIDIA GeForce RTX 3060", "NVIDIA T4")
    assert not nvidia.needs_files


@pytest.mark.parametrize(
    "answer", ["", "NVIDIA-SMI has failed because it couldn't communicate with the driver\n", "No devices\n"]
)
def test_no_driver_where_nothing_answers(tmp_path: Path, answer: str) -> None:
    nvidia = drivers.find_nvidia(Host(root=tmp_path, environment={}, run=lambda command: answer))
    assert nvidia == drivers.Nvidia()
    assert not nvidia.present


def test_a_device_file_without_a_driver_is_a_card(tmp_path: Path) -> None:
    host = put(tmp_path, {"/dev/nvidia0": ""})
    nvidia = drivers.find_nvidia(host)
    assert nvidia.present
    assert nvidia.driver is None


def test_device_files_that_this_user_may_not_open_are_named(tmp_path: Path) -> None:
    put(tmp_path, {"/proc/driver/nvidia/version": OPEN, "/dev/nvidia0": "", "/dev/nvidia1": ""})
    host = Host(root=tmp_path, environment={}, run=lambda command: "", may_use=lambda path: path.name == "nvidia1")
    assert drivers.find_nvidia(host).locked == ("nvidia0",)


def test_a_version_file_of_something_else_is_no_driver(tmp_path: Path) -> None:
    host = put(tmp_path, {"/proc/driver/nvidia/version": "garbage 1.2.3"})
    assert drivers.find_nvidia(host).driver is None


@pytest.mark.parametrize(
    ("cuda", "linux", "windows"),
    [
        ("11.8", "450.80.02", "452.39"),
        ("12.1", "525.60.13", "528.33"),
        ("12.8", "525.60.13", "528.33"),
        ("13.0", "580", "580"),
        ("14.0", None, None),
        ("", None, None),
    ],
)
def test_lowest_drivers(cuda: str, linux: str | None, windows: str | None) -> None:
    assert drivers.lowest_driver(cuda) == linux
    assert drivers.lowest_driver(cuda, windows=True) == windows


def test_the_guide_has_the_same_table() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/guides/accelerators.md").read_text()
    rows = re.findall(r"^\| (11|12|13)\.\w+ \| ([\d.]+) \| ([\d.]+) \|[^|]*\| ([\d.]*) ?\|", page, re.MULTILINE)
    assert len(rows) == 3
    for major, linux, windows, last in rows:
        assert (linux, windows) == (drivers.lowest_driver(major), drivers.lowest_driver(major, windows=True))
        assert last == (drivers.older_build(linux) or ("", ""))[1]


@pytest.mark.parametrize(
    ("version", "floor", "older"),
    [
        ("525.60.13", "525.60.13", False),
        ("525.60.11", "525.60.13", True),
        ("525.105.17", "525.60.13", False),  # as text, 105 sorts before 60
        ("580.65.06", "580", False),
        ("579.99", "580", True),
        ("1000.1", "580", False),
        ("450.80.02", "450.80.02", False),
    ],
)
def test_versions_are_compared_as_numbers(version: str, floor: str, older: bool) -> None:
    assert drivers.is_older(version, floor) is older


@pytest.mark.parametrize(
    ("driver", "build"),
    [
        ("570.86", ("12.6", "2.14")),
        ("525.60.13", ("12.6", "2.14")),
        ("470.223.02", ("11.8", "2.7")),
        ("390.157", None),
        ("580.1", None),
    ],
)
def test_the_newest_build_that_an_older_driver_runs(driver: str, build: tuple[str, str] | None) -> None:
    assert drivers.older_build(driver) == build


@pytest.mark.parametrize(
    ("value", "cards", "hidden"),
    [
        (None, 1, False),
        ("", 1, True),
        ("-1", 1, True),
        ("0", 1, False),
        ("0,-1", 1, False),
        ("-1,0", 2, True),
        ("1", 1, True),
        ("1", 2, False),
        ("1", 0, False),  # the number of cards is not known
        ("NoDevFiles", 1, True),
        ("none", 1, True),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1, False),
        ("MIG-1", 1, False),
    ],
)
def test_a_list_of_visible_devices_can_hide_all(value: str | None, cards: int, hidden: bool) -> None:
    assert drivers.hides_all(value, cards) is hidden


# --- the host ---


def test_render_nodes_know_their_vendor_and_rights(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "/dev/dri/card0": "",
            "/dev/dri/renderD128": "",
            "/dev/dri/renderD129": "",
            "/dev/dri/renderD130": "",
            "/sys/class/drm/renderD128/device/vendor": "0x8086\n",
            "/sys/class/drm/renderD129/device/vendor": "0x1002\n",
        },
    )
    host = Host(root=tmp_path, environment={}, may_use=lambda path: path.name != "renderD129")
    nodes = drivers.render_nodes(host)
    assert [(node.name, node.vendor, node.usable) for node in nodes] == [
        ("renderD128", "Intel", True),
        ("renderD129", "AMD", False),
        ("renderD130", "", True),
    ]
    assert all(node.group == (tmp_path / "dev").group() for node in nodes)


def test_a_group_without_a_name_is_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(path: Path) -> str:
        raise KeyError("getgrgid(): gid not found: 993")

    monkeypatch.setattr(Path, "group", nameless)
    assert drivers.owning_group(tmp_path) == str(tmp_path.stat().st_gid)


def test_wsl_counts_drivers_as_windows_does(tmp_path: Path) -> None:
    assert not put(tmp_path, {"/proc/version": "Linux version 6.8.0-generic"}).is_windows_driver
    assert put(tmp_path, {"/proc/version": "Linux version 5.15.90.1-microsoft-standard-WSL2"}).is_windows_driver
    assert Host(root=tmp_path / "none", system="win32").is_windows_driver


def test_a_program_that_is_missing_fails_or_hangs_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drivers.run_program(["no-such-program-anywhere"]) == ""
    assert drivers.run_program([sys.executable, "-c", "print(1); raise SystemExit(3)"]) == ""
    assert drivers.run_program([sys.executable, "-c", "print(1)"]) == "1\n"
    monkeypatch.setattr(drivers, "RUN_TIMEOUT_S", 0.05)
    assert drivers.run_program([sys.executable, "-c", "import time; time.sleep(60)"]) == ""


def test_variables_come_from_the_given_environment_or_the_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert Host().variable("CUDA_VISIBLE_DEVICES") == "7"
    assert Host(environment={}).variable("CUDA_VISIBLE_DEVICES") is None
