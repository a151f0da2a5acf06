"""The accelerators' part of `mimetic info`, on machines that are not here."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from mimetic.accelerators import devices as devices_module
from mimetic.accelerators.drivers import Host, TorchBuild
from mimetic.accelerators.machine import look
from mimetic.cli import app, info
from mimetic.cli import info_accelerators as accelerators

CPU = TorchBuild("2.13.0+cpu")
CUDA = TorchBuild("2.14.1+cu130", cuda="13.0")
ROCM = TorchBuild("2.10.0+rocm7.0", hip="7.0.51831")

NVIDIA = {
    "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu\n",
    "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: NVIDIA A100\n",
    "/dev/nvidia0": "",
}
AMD = {
    "/dev/kfd": "",
    "/dev/dri/renderD128": "",
    "/sys/class/drm/renderD128/device/vendor": "0x1002",
    "/sys/module/amdgpu/version": "6.12.12",
    "/sys/class/kfd/kfd/topology/nodes/1/properties": "gfx_target_version 90402\n",
}


def host(root: Path, files: dict[str, str], environment: dict[str, str] | None = None) -> Host:
    """A Linux machine that has these files and variables."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(
        root=root, environment=environment or {}, run=lambda command: "", may_use=lambda path: True, system="linux"
    )


def row(kind: str, *devices: dict[str, Any], reason: str = "absent") -> dict[str, Any]:
    """A row as `describe_devices` makes it."""
    return {"type": kind, "available": bool(devices), "reason": "" if devices else reason, "devices": list(devices)}


H200 = {
    "name": "NVIDIA H200",
    "memory_gib": 139.8,
    "capability": "9.0",
    "architecture": "sm_90",
    "supports": {"bf16": True, "fp16": True, "tf32": True, "compile": True},
    "why_not": {},
}
T4 = {
    "name": "Tesla T4",
    "memory_gib": 14.6,
    "capability": "7.5",
    "supports": {"bf16": False, "fp16": True, "tf32": False},
    "why_not": {"bf16": "no units"},
}
MI300 = {
    "name": "AMD Instinct MI300X",
    "memory_gib": 191.7,
    "architecture": "gfx942",
    "supports": {"bf16": True, "fp16": True, "tf32": True},
}


# --- text ---


def test_rows_show_memory_architecture_and_precisions() -> None:
    assert info._row(row("cuda", H200, T4)) == (
        "cuda: NVIDIA H200 (memory 139.8 GiB, capability 9.0, architecture sm_90, precisions float32 bf16 fp16 TF32); "
        "Tesla T4 (memory 14.6 GiB, capability 7.5, precisions float32 fp16)"
    )
    assert info._row(row("cuda", MI300)) == (
        "cuda: AMD Instinct MI300X (memory 191.7 GiB, architecture gfx942, precisions float32 bf16 fp16 TF32)"
    )
    assert info._row(row("mps", {"name": "Apple GPU"})) == "mps: Apple GPU"


def test_absent_devices_show_reason_remedy_and_what_torch_says() -> None:
    absent = row("cuda", reason="too old")
    assert info._row(absent) == "cuda: not here (too old)"
    assert info._row(absent | {"remedy": "`x`"}) == "cuda: not here (too old): `x`"
    assert info._row(absent | {"remedy": "", "torch says": "no"}) == "cuda: not here (too old); torch says: no"


# --- drivers ---


def test_drivers_of_a_machine_with_nvidia(tmp_path: Path) -> None:
    found = look(host(tmp_path, NVIDIA, {"CUDA_VISIBLE_DEVICES": "0"}))
    assert accelerators.driver_facts(CUDA, found) == {
        "NVIDIA driver": {
            "version": "535.129.03",
            "from": "/proc/driver/nvidia/version",
            "cards": ["NVIDIA A100"],
            "lowest for CUDA 13.0": "580",
        },
        "AMD driver": "none found",
        "Intel GPU": "none found",
        "Apple GPU": "not macOS",
        "Visible devices": {"CUDA_VISIBLE_DEVICES": "`0`"},
    }
    assert "lowest for CUDA 13.0" not in accelerators.driver_facts(CPU, found)["NVIDIA driver"]


def test_drivers_of_a_machine_with_amd(tmp_path: Path) -> None:
    environment = {
        "HIP_VISIBLE_DEVICES": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "ROCR_VISIBLE_DEVICES": "0",
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0",
    }
    found = accelerators.driver_facts(ROCM, look(host(tmp_path, AMD, environment)))
    assert found["NVIDIA driver"] == "none found"
    assert found["AMD driver"] == {
        "amdgpu": "6.12.12",
        "/dev/kfd": "usable",
        "cards": ["gfx942"],
        "HSA_OVERRIDE_GFX_VERSION": "10.3.0, shown to programs as gfx1030",
    }
    assert found["Visible devices"] == {
        "CUDA_VISIBLE_DEVICES": "`0` (ignored: HIP_VISIBLE_DEVICES is set)",
        "HIP_VISIBLE_DEVICES": "`0`",
        "ROCR_VISIBLE_DEVICES": "`0` (applied first)",
    }


def test_an_amd_driver_without_rights_or_compute_interface(tmp_path: Path) -> None:
    locked = Host(
        root=host(tmp_path / "a", AMD).root, environment={}, run=lambda command: "", may_use=lambda path: False
    )
    assert accelerators.driver_facts(ROCM, look(locked))["AMD driver"]["/dev/kfd"] == "no right to open it"
    own = host(tmp_path / "b", {"/sys/module/amdgpu/parameters/x": ""})
    assert accelerators.driver_facts(ROCM, look(own))["AMD driver"] == {
        "amdgpu": "the kernel's own",
        "/dev/kfd": "missing",
    }


def test_an_intel_card_is_named_with_its_rights(tmp_path: Path) -> None:
    files = {"/dev/dri/renderD128": "", "/sys/class/drm/renderD128/device/vendor": "0x8086"}
    assert accelerators.driver_facts(CPU, look(host(tmp_path, files)))["Intel GPU"] == {"renderD128": "usable"}


def test_lerobots_bullets_know_the_build_without_asking_torch() -> None:
    assert accelerators.lerobot_facts(CUDA, None) == {
        "Is PyTorch built with CUDA support?": True,
        "Cuda version": "13.0",
        "GPU model": "not asked (--devices=false)",
    }
    found = accelerators.lerobot_facts(ROCM, [row("cuda", MI300), row("cpu", {"name": "8 cores"})])
    assert found == {
        "Is PyTorch built with CUDA support?": False,
        "Cuda version": "N/A",
        "GPU model": "AMD Instinct MI300X",
    }


# --- devices ---


def test_reasons_for_absent_devices_are_those_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        devices_module, "describe_devices", lambda: [row("cuda"), row("mps"), row("cpu", {"name": "8 cores"})]
    )
    found = accelerators.find_devices(CUDA, look(host(tmp_path, NVIDIA)))
    assert isinstance(found, list)
    assert found[0]["reason"].startswith("the NVIDIA driver 535.129.03 is older than 580")
    assert found[0]["remedy"].startswith("update the driver to 580 or newer, or install a torch built for CUDA 12.6")
    assert found[1]["reason"] == "this is not macOS"
    assert "remedy" not in found[2]


def test_what_torch_warns_of_is_kept_in_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe() -> list[dict[str, Any]]:
        warnings.warn("The NVIDIA driver on your system is too old (found version 12020).\nPlease update", stacklevel=1)
        return [row("cuda")]

    monkeypatch.setattr(devices_module, "describe_devices", describe)
    found = accelerators.find_devices(CUDA, look(host(tmp_path, NVIDIA)))
    assert isinstance(found, list)
    assert found[0]["torch says"] == "The NVIDIA driver on your system is too old (found version 12020)."


def test_a_torch_that_fails_when_asked_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe() -> list[dict[str, Any]]:
        raise RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment\nmore")

    monkeypatch.setattr(devices_module, "describe_devices", describe)
    found = accelerators.find_devices(CUDA, look(host(tmp_path, NVIDIA)))
    assert found == (
        "torch fails when asked for devices: CUDA unknown error - this may be due to an incorrectly set up environment"
    )


# --- warnings ---


def test_a_card_for_another_build_is_warned_of_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mimetic.accelerators import drivers, machine

    found = look(host(tmp_path, AMD))
    monkeypatch.setattr(machine, "look", lambda: found)
    monkeypatch.setattr(drivers, "torch_build", lambda: CPU)
    assert app.main(["info", "--devices=false"]) == 0
    assert capsys.readouterr().out.endswith(
        "- Warnings:\n  - torch 2.13.0+cpu is built for the CPU only, and this machine has an AMD card: "
        "`pip uninstall -y torch && pip install torch --index-url INDEX` with the ROCm build; "
        "`INDEX` is the address that pytorch.org shows for it\n"
    )


def test_a_card_without_kernels_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_90", "sm_120"])
    v100 = {"name": "Tesla V100", "capability": "7.0", "architecture": "sm_70"}
    found = accelerators.find_warnings(CUDA, look(host(tmp_path, NVIDIA)), [row("cuda", H200, v100)])
    assert [one["problem"] for one in found] == [
        "Tesla V100 (compute capability 7.0) is not among what this torch is built for (sm_75, sm_80, sm_90, sm_120)"
    ]
    assert "accelerators.md" in found[0]["remedy"]


@pytest.mark.parametrize(
    ("card", "built_for", "runs"),
    [
        ("8.6", ["sm_80", "sm_90"], True),  # binaries run on the same major version
        ("8.0", ["sm_86"], False),  # and not on a lower minor one
        ("8.9", ["sm_75", "sm_80"], True),
        ("9.0", ["sm_80"], False),  # and not on another major one
        ("12.0", ["sm_90", "compute_90"], True),  # the driver compiles for newer cards
        ("7.0", ["sm_75", "compute_75"], False),
        ("10.0", ["sm_100a"], True),
        ("6.1", ["sm_50", "sm_60"], True),
        ("9.0", [], True),
        ("gfx942", ["gfx90a", "gfx942:sramecc+:xnack-"], True),
        ("gfx1031", ["gfx1030"], False),
        ("?", ["sm_80"], True),
    ],
)
def test_which_cards_a_build_has_kernels_for(card: str, built_for: list[str], runs: bool) -> None:
    assert accelerators.has_kernels(card, built_for) is runs


def test_the_build_for_people_names_mps_on_apple_processors(tmp_path: Path) -> None:
    from dataclasses import replace

    found = look(host(tmp_path, {}))
    apple = replace(found, macos="15.1", processor="arm64")
    assert accelerators.build_facts(CPU, found, None)["PyTorch build"] == "CPU only"
    assert accelerators.build_facts(CPU, apple, None)["PyTorch build"] == "CPU and MPS"
    assert accelerators.build_facts(None, found, None) == {"PyTorch build": "N/A", "HIP version": "N/A"}
    assert accelerators.driver_facts(CPU, apple)["Apple GPU"] == "macOS 15.1 on arm64"
