"""What stands between a card and torch: every reason, its exact words, and its remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mimetic.accelerators import machine as machines
from mimetic.accelerators.drivers import Host, TorchBuild
from mimetic.accelerators.machine import Finding

CPU = TorchBuild("2.13.0+cpu")
CUDA_13 = TorchBuild("2.14.1+cu130", cuda="13.0")
CUDA_12 = TorchBuild("2.11.0+cu128", cuda="12.8")
ROCM = TorchBuild("2.10.0+rocm7.0", hip="7.0.51831")
XPU = TorchBuild("2.9.0+xpu", xpu="20250301")

NVIDIA = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Thu\n",
    "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: NVIDIA A100\n",
    "/dev/nvidia0": "",
}
OLD_NVIDIA = {
    **NVIDIA,
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n",
}
OLDER_NVIDIA = {
    **NVIDIA,
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.223.02  Thu\n",
}
AMD = {
    "/dev/kfd": "",
    "/dev/dri/renderD128": "",
    "/sys/class/drm/renderD128/device/vendor": "0x1002",
    "/sys/module/amdgpu/version": "6.12.12",
    "/sys/class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 90402\n",
}
INTEL = {"/dev/dri/renderD128": "", "/sys/class/drm/renderD128/device/vendor": "0x8086"}

INDEX = "`INDEX` is the address that pytorch.org shows for it"
GET_CUDA = f"`pip uninstall -y torch && pip install torch --index-url INDEX` with a CUDA build; {INDEX}"
GET_ROCM = f"`pip uninstall -y torch && pip install torch --index-url INDEX` with the ROCm build; {INDEX}"
GET_12_6 = (
    "install a torch built for CUDA 12.6, up to torch 2.14: "
    f"`pip uninstall -y torch && pip install 'torch<=2.14.99' --index-url INDEX`; {INDEX}"
)
GET_11_8 = GET_12_6.replace("12.6", "11.8").replace("2.14", "2.7")


def look(
    root: Path, files: dict[str, str], *, environment: dict[str, str] | None = None, locked: tuple[str, ...] = ()
) -> machines.Machine:
    """What is found on a machine with these files and variables; `locked` device files may not be opened."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return machines.look(
        Host(
            root=root,
            environment=environment or {},
            run=lambda command: "",
            may_use=lambda path: path.name not in locked,
            system="linux",
        )
    )


@pytest.mark.parametrize(
    ("build", "files", "environment", "locked", "problem", "remedy"),
    [
        (None, NVIDIA, {}, (), "torch is not installed", "`pip install torch`"),
        # torch for something else
        (CPU, {}, {}, (), "torch 2.13.0+cpu is built for the CPU only", ""),
        (CPU, INTEL, {}, (), "torch 2.13.0+cpu is built for the CPU only", ""),
        (CPU, NVIDIA, {}, (), "torch 2.13.0+cpu is built for the CPU only, and this machine has an NVIDIA card", GET_CUDA),
        (CPU, OLD_NVIDIA, {}, (), "torch 2.13.0+cpu is built for the CPU only, and this machine has an NVIDIA card", GET_12_6),
        (CPU, AMD, {}, (), "torch 2.13.0+cpu is built for the CPU only, and this machine has an AMD card", GET_ROCM),
        (XPU, AMD, {}, (), "torch 2.9.0+xpu is built for Intel GPUs, and this machine has an AMD card", GET_ROCM),
        (CUDA_13, AMD, {}, (), "torch 2.14.1+cu130 is built for NVIDIA (CUDA 13.0), and the card in this machine is AMD's", GET_ROCM),
        (ROCM, NVIDIA, {}, (), "torch 2.10.0+rocm7.0 is built for AMD (ROCm (HIP 7.0.51831)), and the card in this machine is NVIDIA's", GET_CUDA),
        # NVIDIA
        (
            CUDA_13, {}, {}, (),
            "no NVIDIA driver: neither /proc/driver/nvidia/version nor `nvidia-smi` answers",
            "install NVIDIA's driver; a container needs `docker run --gpus all`",
        ),
        (
            CUDA_13, {"/dev/nvidia0": ""}, {}, (),
            "/dev/nvidia0 is there, and no NVIDIA driver is loaded",
            "install NVIDIA's driver again, or restart after its update",
        ),
        (CUDA_13, NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, (), "`CUDA_VISIBLE_DEVICES=` hides every NVIDIA card", "`unset CUDA_VISIBLE_DEVICES`"),
        (CUDA_13, NVIDIA, {"CUDA_VISIBLE_DEVICES": "1"}, (), "`CUDA_VISIBLE_DEVICES=1` hides every NVIDIA card", "`unset CUDA_VISIBLE_DEVICES`"),
        (
            CUDA_13, OLD_NVIDIA, {}, (),
            "the NVIDIA driver 535.129.03 is older than 580, which torch 2.14.1+cu130 (CUDA 13.0) needs",
            f"update the driver to 580 or newer, or {GET_12_6}",
        ),
        (
            CUDA_12, OLDER_NVIDIA, {}, (),
            "the NVIDIA driver 470.223.02 is older than 525.60.13, which torch 2.11.0+cu128 (CUDA 12.8) needs",
            f"update the driver to 525.60.13 or newer, or {GET_11_8}",
        ),
        (
            CUDA_13, {name: text for name, text in NVIDIA.items() if name != "/dev/nvidia0"}, {}, (),
            "the NVIDIA driver 580.65.06 is loaded, and there is no /dev/nvidia0",
            "`sudo nvidia-modprobe -u -c=0`; a container needs `docker run --gpus all`",
        ),
        (CUDA_13, NVIDIA, {}, ("nvidia0",), "this user may not open /dev/nvidia0", "`ls -l /dev/nvidia*` shows the group that may"),
        # AMD
        (
            ROCM, {}, {}, (),
            "there is no /dev/kfd, and the kernel has no amdgpu driver loaded",
            "install AMD's driver (`sudo modprobe amdgpu`); a container needs `--device=/dev/kfd --device=/dev/dri`",
        ),
        (
            ROCM, {"/sys/module/amdgpu/version": "6.12.12"}, {}, (),
            "there is no /dev/kfd",
            "install AMD's driver (`sudo modprobe amdgpu`); a container needs `--device=/dev/kfd --device=/dev/dri`",
        ),
        (ROCM, AMD, {"HIP_VISIBLE_DEVICES": "-1"}, (), "`HIP_VISIBLE_DEVICES=-1` hides every AMD card", "`unset HIP_VISIBLE_DEVICES`"),
        (
            ROCM, AMD, {}, ("kfd", "renderD128"),
            "this user may not open /dev/kfd, /dev/dri/renderD128",
            "`sudo usermod -aG GROUP $USER` and log in again; a container needs `--group-add GROUP`",
        ),
    ],
)  # fmt: skip
def test_why_cuda_cannot_work(
    tmp_path: Path,
    build: TorchBuild | None,
    files: dict[str, str],
    environment: dict[str, str],
    locked: tuple[str, ...],
    problem: str,
    remedy: str,
) -> None:
    found = look(tmp_path, files, environment=environment, locked=locked)
    remedy = remedy.replace("GROUP", tmp_path.group())
    assert machines.obstacle("cuda", build, found) == Finding(problem, remedy)
    assert machines.why_absent("cuda", build, found) == Finding(problem, remedy)


@pytest.mark.parametrize(
    ("build", "files", "problem", "remedy"),
    [
        (
            CUDA_13, NVIDIA,
            "torch finds no NVIDIA card although driver 580.65.06 is there",
            "`nvidia-smi` must list the card; after an update of the driver, restart the machine",
        ),
        (ROCM, AMD, "torch finds no AMD card although its driver is there", "`rocminfo` must list the card as an agent"),
    ],
)  # fmt: skip
def test_nothing_stands_in_the_way_and_torch_finds_none(
    tmp_path: Path, build: TorchBuild, files: dict[str, str], problem: str, remedy: str
) -> None:
    found = look(tmp_path, files)
    assert machines.obstacle("cuda", build, found) is None
    assert machines.why_absent("cuda", build, found) == Finding(problem, remedy)


def test_the_driver_is_new_enough_for_an_older_build(tmp_path: Path) -> None:
    assert machines.obstacle("cuda", CUDA_12, look(tmp_path, OLD_NVIDIA)) is None


def test_a_driver_that_no_torch_supports(tmp_path: Path) -> None:
    ancient = {
        **NVIDIA,
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Thu\n",
    }
    found = look(tmp_path, ancient)
    assert machines.obstacle("cuda", CPU, found) == Finding(
        "torch 2.13.0+cpu is built for the CPU only, and this machine has an NVIDIA card",
        "update the NVIDIA driver (390.157 is too old for any torch)",
    )
    assert machines.obstacle("cuda", CUDA_12, found) == Finding(
        "the NVIDIA driver 390.157 is older than 525.60.13, which torch 2.11.0+cu128 (CUDA 12.8) needs",
        "update the driver to 525.60.13 or newer",
    )


def test_wsl_needs_no_device_files_and_counts_drivers_as_windows_does(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/version").write_text("Linux version 5.15.90.1-microsoft-standard-WSL2")
    host = Host(root=tmp_path, environment={}, run=lambda command: "527.0, NVIDIA RTX A2000\n", system="linux")
    found = machines.obstacle("cuda", CUDA_12, machines.look(host))
    assert found is not None
    assert found.problem == "the NVIDIA driver 527.0 is older than 528.33, which torch 2.11.0+cu128 (CUDA 12.8) needs"
    host = replace(host, run=lambda command: "581.15, NVIDIA RTX A2000\n")
    assert machines.obstacle("cuda", CUDA_13, machines.look(host)) is None


def test_a_cuda_newer_than_the_table_is_not_judged(tmp_path: Path) -> None:
    future = TorchBuild("3.0.0+cu140", cuda="14.0")
    assert machines.obstacle("cuda", future, look(tmp_path, NVIDIA)) is None
    assert machines.lowest_driver_here(future, look(tmp_path, NVIDIA)) is None


# --- Intel and Apple ---


@pytest.mark.parametrize(
    ("build", "files", "locked", "problem", "remedy"),
    [
        (CPU, INTEL, (), "torch 2.13.0+cpu is built without XPU", ""),
        (XPU, {}, (), "no Intel GPU: no render node of Intel's in /dev/dri", "a container needs `--device=/dev/dri`"),
        (
            XPU,
            INTEL,
            ("renderD128",),
            "this user may not open /dev/dri/renderD128",
            "`sudo usermod -aG GROUP $USER` and log in again",
        ),
        (
            XPU,
            INTEL,
            (),
            "torch finds no Intel GPU",
            "install Intel's compute runtime (Level Zero); `sycl-ls` must list it",
        ),
    ],
)
def test_why_there_is_no_xpu(
    tmp_path: Path, build: TorchBuild, files: dict[str, str], locked: tuple[str, ...], problem: str, remedy: str
) -> None:
    found = look(tmp_path, files, locked=locked)
    assert machines.why_absent("xpu", build, found) == Finding(problem, remedy.replace("GROUP", tmp_path.group()))


@pytest.mark.parametrize(
    ("system", "processor", "macos", "problem"),
    [
        ("linux", "x86_64", "", "this is not macOS"),
        ("darwin", "x86_64", "14.5", "this Python runs on x86_64; MPS needs an Apple processor"),
        ("darwin", "arm64", "12.1", "macOS 12.1 is too old for MPS"),
        ("darwin", "arm64", "15.1", "torch finds no Apple GPU"),
    ],
)
def test_why_there_is_no_mps(tmp_path: Path, system: str, processor: str, macos: str, problem: str) -> None:
    found = look(tmp_path, {})
    found = replace(found, host=replace(found.host, system=system), processor=processor, macos=macos)
    assert machines.why_absent("mps", CPU, found).problem == problem


# --- warnings ---


def test_a_machine_without_a_card_warns_of_nothing(tmp_path: Path) -> None:
    assert machines.warnings(CPU, look(tmp_path, INTEL)) == []
    assert machines.warnings(CUDA_13, look(tmp_path, {}), cuda_works=False) == []


@pytest.mark.parametrize(("build", "files"), [(CPU, NVIDIA), (CUDA_13, AMD), (ROCM, NVIDIA), (CUDA_13, OLD_NVIDIA)])
def test_a_card_that_cannot_be_used_is_a_warning_even_when_torch_is_not_asked(
    tmp_path: Path, build: TorchBuild, files: dict[str, str]
) -> None:
    found = look(tmp_path, files)
    assert machines.warnings(build, found) == [machines.obstacle("cuda", build, found)]
    assert machines.warnings(build, found, cuda_works=False) == [machines.obstacle("cuda", build, found)]


def test_what_torch_can_use_is_no_warning_whatever_the_files_say(tmp_path: Path) -> None:
    # A driver's forward-compatibility package makes an older driver enough; torch's answer counts.
    assert machines.warnings(CUDA_13, look(tmp_path, OLD_NVIDIA), cuda_works=True) == []


def test_a_card_that_torch_does_not_find_is_a_warning(tmp_path: Path) -> None:
    found = look(tmp_path, NVIDIA)
    assert machines.warnings(CUDA_13, found) == []
    assert machines.warnings(CUDA_13, found, cuda_works=False) == [machines.why_absent("cuda", CUDA_13, found)]


def test_with_cards_of_both_vendors_the_build_decides(tmp_path: Path) -> None:
    both = look(tmp_path, NVIDIA | AMD)
    assert machines.warnings(CUDA_13, both) == []
    assert machines.warnings(ROCM, both) == []
    assert len(machines.warnings(CPU, both)) == 1


def test_variables_that_contradict_are_a_warning_for_a_rocm_torch_only(tmp_path: Path) -> None:
    environment = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
    found = look(tmp_path, AMD, environment=environment)
    expected = Finding(
        "`HIP_VISIBLE_DEVICES=0` and `CUDA_VISIBLE_DEVICES=1` disagree; the first counts",
        "`unset CUDA_VISIBLE_DEVICES`",
    )
    assert machines.warnings(ROCM, found, cuda_works=True) == [expected]
    assert (
        machines.warnings(
            CUDA_13, look(tmp_path / "other", NVIDIA, environment={"HIP_VISIBLE_DEVICES": "0"}), cuda_works=True
        )
        == []
    )


def test_variables_that_hide_all_are_said_once(tmp_path: Path) -> None:
    found = look(tmp_path, AMD, environment={"HIP_VISIBLE_DEVICES": "-1"})
    assert [one.problem for one in machines.warnings(ROCM, found)] == ["`HIP_VISIBLE_DEVICES=-1` hides every AMD card"]
