"""Which device is taken, why, and what is said about one that is not there."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import torch

from mimetic.accelerators import devices
from mimetic.accelerators.devices import (
    capabilities,
    choose_device,
    describe_device,
    describe_devices,
    device_name,
)
from mimetic.accelerators.probe import TORCH, DeviceFacts, InstalledTorch, version_pair
from mimetic.errors import DeviceError
from mimetic.testing.machines import Machine, amd, apple, cpu_only, intel, nvidia

H200 = nvidia("NVIDIA H200", (9, 0), count=3)
MI300X = amd("AMD Instinct MI300X", "gfx942", count=8)
EVERYTHING = Machine(
    built=("cuda", "mps", "xpu"),
    devices={kind: (DeviceFacts(kind, capability=(9, 0)),) for kind in ("cuda", "mps", "xpu")},
)


def without(machine, *kinds):
    return replace(machine, devices={k: v for k, v in machine.devices.items() if k not in kinds})


@pytest.mark.parametrize(
    ("absent", "expected"),
    [((), "cuda"), (("cuda",), "mps"), (("cuda", "mps"), "xpu"), (("cuda", "mps", "xpu"), "cpu")],
)
def test_the_first_in_the_order_is_taken(absent, expected):
    device, reason = choose_device(None, without(EVERYTHING, *absent))
    assert device == torch.device(expected)
    first = "the first available of cuda, mps, xpu, cpu"
    assert reason == ("no accelerator found" if expected == "cpu" else first)


@pytest.mark.parametrize("wanted", ["cpu", "cuda", "mps", "xpu"])
def test_what_is_there_is_taken_as_asked(wanted):
    assert choose_device(wanted, EVERYTHING) == (torch.device(wanted), "as asked")


@pytest.mark.parametrize(("wanted", "index"), [("cuda:0", 0), ("cuda:2", 2), ("cuda:01", 1)])
def test_an_index_is_honoured(wanted, index):
    assert choose_device(wanted, H200) == (torch.device("cuda", index), "as asked")


@pytest.mark.parametrize(
    ("wanted", "machine", "message", "hint"),
    [
        ("cuda:3", H200, "there are only 3 of them", "count from 0: `cuda:0` to `cuda:2`"),
        ("cuda:1", nvidia("NVIDIA H200", (9, 0)), "there is only one of them", "count from 0: `cuda:0`"),
        ("cpu:1", cpu_only(), "there is only one of them", "count from 0: `cpu:0`"),
    ],
)
def test_an_index_beyond_the_last_is_refused(wanted, machine, message, hint):
    with pytest.raises(DeviceError) as caught:
        choose_device(wanted, machine)
    assert (caught.value.message, caught.value.hint) == (f"`--policy.device={wanted}`: {message}", hint)


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("cdua", "did you mean `cuda`?"),
        ("CUDA", "did you mean `cuda`?"),
        ("rocm", "NVIDIA and AMD GPUs are `cuda`"),
        ("GPU", "NVIDIA and AMD GPUs are `cuda`"),
        ("hip:0", "NVIDIA and AMD GPUs are `cuda`"),
        ("tpu-pod", "available here: cuda:0-2, cpu"),
        ("meta", "available here: cuda:0-2, cpu"),
        ("cuda:", "did you mean `cuda`?"),
        ("cuda:one", "did you mean `cuda`?"),
        ("cuda:-1", "did you mean `cuda`?"),
        ("cuda:\N{ARABIC-INDIC DIGIT ONE}", "did you mean `cuda`?"),
        ("", "available here: cuda:0-2, cpu"),
    ],
)
def test_what_is_no_device_is_refused_with_a_hint(wanted, hint):
    with pytest.raises(DeviceError) as caught:
        choose_device(wanted, H200)
    assert caught.value.message == f"`--policy.device={wanted}` is not a device"
    assert caught.value.hint == hint


NOT_BUILT = "this torch (2.13.0+cpu) is built without"
HIDDEN = {"variables": {"CUDA_VISIBLE_DEVICES": ""}}


@pytest.mark.parametrize(
    ("wanted", "machine", "why"),
    [
        ("cuda", cpu_only(), f"{NOT_BUILT} CUDA and ROCm"),
        ("mps", cpu_only(), f"{NOT_BUILT} MPS"),
        ("xpu:0", cpu_only(), f"{NOT_BUILT} XPU"),
        ("cuda", without(H200, "cuda"), "torch finds no NVIDIA device (no card, or its driver is missing or too old)"),
        ("cuda", replace(without(H200, "cuda"), **HIDDEN), "CUDA_VISIBLE_DEVICES= hides every device"),
        (
            "cuda",
            replace(without(H200, "cuda"), variables={"HIP_VISIBLE_DEVICES": "-1"}),  # of no effect on NVIDIA
            "torch finds no NVIDIA device (no card, or its driver is missing or too old)",
        ),
        (
            "cuda",
            without(MI300X, "cuda"),
            "torch finds no AMD device (driver missing, or no rights on /dev/kfd and /dev/dri)",
        ),
        (
            "cuda",
            replace(without(MI300X, "cuda"), variables={"HIP_VISIBLE_DEVICES": "-1"}),
            "HIP_VISIBLE_DEVICES=-1 hides every device",
        ),
        ("mps", without(apple("12.1"), "mps"), "no Apple GPU that this torch can use on macOS 12.1"),
        (
            "xpu",
            without(intel("Arc"), "xpu"),
            "torch finds no Intel GPU (no card, its driver is missing, or ZE_AFFINITY_MASK hides it)",
        ),
    ],
)
def test_what_is_absent_is_refused_with_the_reason_and_what_is_there(wanted, machine, why):
    with pytest.raises(DeviceError) as caught:
        choose_device(wanted, machine)
    assert caught.value.message == f"`--policy.device={wanted}`: {why}"
    assert caught.value.hint == "available here: cpu; leave `--policy.device` out to take the first"


def test_the_hint_lists_all_that_is_there():
    with pytest.raises(DeviceError) as caught:
        choose_device("mps", H200)
    assert caught.value.hint.startswith("available here: cuda:0-2, cpu;")


def test_the_current_device_is_asked_when_no_index_is_named():
    old, new = DeviceFacts("Tesla T4", capability=(7, 5)), DeviceFacts("NVIDIA H200", capability=(9, 0))
    machine = Machine(cuda_version="13.0", built=("cuda",), devices={"cuda": (old, new)}, current=1)
    assert capabilities(torch.device("cuda"), machine).bf16
    assert not capabilities(torch.device("cuda:0"), machine).bf16
    assert device_name(torch.device("cuda"), machine) == "NVIDIA H200"


@pytest.mark.parametrize(
    ("device", "machine", "name", "description"),
    [
        ("cpu", cpu_only(), "16 threads", "cpu, 16 threads"),
        ("cuda:1", H200, "NVIDIA H200", "NVIDIA H200, capability 9.0"),
        ("cuda", MI300X, "AMD Instinct MI300X (ROCm 7.0)", "AMD Instinct MI300X, gfx942, ROCm 7.0"),
        ("mps", apple("14.5"), "Apple GPU", "Apple GPU, macOS 14.5"),
        ("xpu", intel("Arc"), "Arc", "Arc"),
    ],
)
def test_names(device, machine, name, description):
    assert device_name(torch.device(device), machine) == name
    assert describe_device(torch.device(device), machine) == description


def test_a_device_of_torch_that_nothing_here_computes_on():
    with pytest.raises(DeviceError, match="does not compute on `meta`"):
        capabilities(torch.device("meta"))


# What each kind can do besides autocast, which is the subject of test_table.py.
@pytest.mark.parametrize(
    ("machine", "device", "absent"),
    [
        (cpu_only(), "cpu", {"fp16", "scaler", "tf32", "pinned_memory"}),
        (nvidia("GTX 1080", (6, 1)), "cuda", {"bf16", "tf32", "compile"}),
        (nvidia("V100", (7, 0)), "cuda", {"bf16", "tf32"}),
        (H200, "cuda", set()),
        (MI300X, "cuda", set()),
        (amd("RX 7900 XTX", "gfx1100"), "cuda", {"tf32"}),
        (amd("?", ""), "cuda", {"tf32"}),
        (apple("26.0", "2.13.0"), "mps", {"tf32", "pinned_memory", "compile", "float64"}),
        (
            apple("13.0", "2.4.0"),
            "mps",
            {"bf16", "fp16", "scaler", "tf32", "pinned_memory", "fused_optimizer", "compile", "float64"},
        ),
        (intel("Max"), "xpu", {"tf32"}),
        (intel("Arc", has_float64=False), "xpu", {"tf32", "scaler", "float64"}),
    ],
)
def test_what_a_device_cannot_do(machine, device, absent):
    can = capabilities(torch.device(device), machine)
    assert {name for name, answer in can.items() if not answer} == absent
    assert all(bool(answer.reason) != bool(answer) for _, answer in can.items())


def test_rows_for_info():
    rows = {row["type"]: row for row in describe_devices(H200)}
    assert list(rows) == ["cuda", "mps", "xpu", "cpu"]
    assert rows["mps"] == {
        "type": "mps",
        "available": False,
        "reason": "this torch (2.13.0+cu130) is built without MPS",
        "devices": [],
    }
    assert len(rows["cuda"]["devices"]) == 3
    card = rows["cuda"]["devices"][2]
    assert (card["name"], card["memory_gib"], card["capability"]) == ("NVIDIA H200", 80.0, "9.0")
    assert card["architecture"] == "sm_90"
    assert card["supports"]["bf16"] is True
    assert card["why_not"] == {}
    json.dumps(list(rows.values()))


def test_an_amd_card_shows_its_architecture_and_no_compute_capability():
    card = describe_devices(MI300X)[0]["devices"][0]
    assert card["architecture"] == "gfx942"
    assert "capability" not in card


def test_an_older_card_says_what_it_lacks():
    card = describe_devices(nvidia("Tesla T4", (7, 5)))[0]["devices"][0]
    assert card["supports"]["bf16"] is False
    assert card["why_not"]["bf16"].startswith("Tesla T4 has compute capability 7.5")
    assert set(card["why_not"]) == {"bf16", "tf32"}


def test_this_machine_answers_for_itself():
    assert choose_device("cpu") == (torch.device("cpu"), "as asked")
    rows = describe_devices()
    assert [row["type"] for row in rows] == [kind.name for kind in devices.KINDS]
    assert all(row["available"] or row["reason"] for row in rows)
    cpu = rows[-1]["devices"][0]
    assert cpu["name"] == f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    assert device_name(torch.device("cpu")) == f"{torch.get_num_threads()} threads"
    assert TORCH.torch_version == torch.__version__
    for kind in ("cuda", "mps", "xpu", "cpu"):
        assert TORCH.is_available(kind) == (TORCH.count(kind) > 0)
        assert TORCH.is_built(kind) or not TORCH.is_available(kind)
    assert TORCH.environment("PATH") == os.environ["PATH"]
    assert TORCH.environment("MIMETIC_NO_SUCH_VARIABLE") is None


class TestWhatTorchIsAsked:
    """The real probe over a torch that claims to have devices."""

    def test_nvidia(self, monkeypatch):
        asked = []
        properties = type("P", (), {"name": "NVIDIA X", "total_memory": 2**33, "major": 8, "minor": 6})

        def of(index):
            asked.append(index)
            return properties

        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
        monkeypatch.setattr(torch.cuda, "get_device_properties", of)
        assert InstalledTorch().facts("cuda", 1) == DeviceFacts("NVIDIA X", memory=2**33, capability=(8, 6))
        InstalledTorch().facts("cuda", None)
        assert asked == [1, 5]

    def test_amd_without_the_feature_flags_of_its_architecture(self, monkeypatch):
        # torch gives AMD cards a "capability" too, which must not be taken for NVIDIA's.
        properties = type(
            "P",
            (),
            {"name": "AMD Y", "total_memory": 1, "major": 9, "minor": 4, "gcnArchName": "gfx942:sramecc+:xnack-"},
        )
        monkeypatch.setattr(torch.version, "hip", "7.0")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
        assert InstalledTorch().facts("cuda", 0) == DeviceFacts("AMD Y", memory=1, gcn_arch="gfx942")

    def test_intel(self, monkeypatch):
        properties = type("P", (), {"name": "Arc", "total_memory": 3, "has_fp64": 0})
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: properties)
        assert InstalledTorch().facts("xpu", 0) == DeviceFacts("Arc", memory=3, has_float64=False)

    def test_apple(self):
        assert not InstalledTorch().facts("mps", None).has_float64


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.6.0a0+git123", (2, 6)),
        ("2.10rc1", (2, 10)),
        ("14", (14, 0)),
        ("14.5", (14, 5)),
        ("", (0, 0)),
        ("unknown", (0, 0)),
    ],
)
def test_versions(text, pair):
    assert version_pair(text) == pair
