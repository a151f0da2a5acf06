"""AMD's driver, rights and variables, found in folders that stand for other machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from mimetic.accelerators import rocm
from mimetic.accelerators.drivers import Host

NODES = "/sys/class/kfd/kfd/topology/nodes"


def machine(
    root: Path, files: dict[str, str], environment: dict[str, str] | None = None, locked: tuple[str, ...] = ()
) -> Host:
    """A machine that has these files and variables; `locked` names device files that may not be opened."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(
        root=root, environment=environment or {}, run=lambda command: "", may_use=lambda path: path.name not in locked
    )


CARDS = {
    "/dev/kfd": "",
    "/dev/dri/renderD128": "",
    "/dev/dri/renderD129": "",
    "/sys/class/drm/renderD128/device/vendor": "0x1002\n",
    "/sys/class/drm/renderD129/device/vendor": "0x8086\n",
    "/sys/module/amdgpu/version": "6.12.12\n",
    f"{NODES}/0/properties": "cpu_cores_count 64\nsimd_count 0\ngfx_target_version 0\n",
    f"{NODES}/1/properties": "cpu_cores_count 0\nsimd_count 1216\ngfx_target_version 90402\n",
    f"{NODES}/2/properties": "simd_count 440\ngfx_target_version 90010\n",
}


def test_a_server_with_two_cards(tmp_path: Path) -> None:
    amd = rocm.find_amd(machine(tmp_path, CARDS))
    assert amd == rocm.Amd(kfd=True, loaded=True, driver="6.12.12", architectures=("gfx942", "gfx90a"))
    assert amd.present


def test_a_machine_without_amd(tmp_path: Path) -> None:
    amd = rocm.find_amd(machine(tmp_path, {}))
    assert amd == rocm.Amd()
    assert not amd.present


def test_the_kernels_own_driver_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    amd = rocm.find_amd(machine(tmp_path, {}))
    assert (amd.loaded, amd.driver, amd.kfd) == (True, None, False)


def test_files_that_this_user_may_not_open_and_the_group_that_may(tmp_path: Path) -> None:
    amd = rocm.find_amd(machine(tmp_path, CARDS, locked=("kfd", "renderD128", "renderD129")))
    assert amd.locked == ("/dev/kfd", "/dev/dri/renderD128")  # renderD129 is Intel's
    assert amd.groups == ((tmp_path / "dev").group(),)


@pytest.mark.parametrize(
    ("number", "name"),
    [(90402, "gfx942"), (90500, "gfx950"), (90010, "gfx90a"), (90008, "gfx908"), (90006, "gfx906"), (100300, "gfx1030"), (110000, "gfx1100"), (110501, "gfx1151"), (120001, "gfx1201")],
)  # fmt: skip
def test_architecture_names(number: int, name: str) -> None:
    assert rocm.gfx_name(number) == name


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("10.3.0", "gfx1030"),
        ("11.0.0", "gfx1100"),
        ("9.0.10", "gfx90a"),
        (" 9.4.2 ", "gfx942"),
        ("gfx1030", ""),
        ("", ""),
    ],
)
def test_what_the_override_shows_to_programs(version: str, name: str) -> None:
    assert rocm.override_name(version) == name


@pytest.mark.parametrize(
    ("environment", "applied", "ignored"),
    [
        ({}, {}, {}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0"}, {}),
        ({"HIP_VISIBLE_DEVICES": "1"}, {"HIP_VISIBLE_DEVICES": "1"}, {}),
        (
            {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"},
            {"HIP_VISIBLE_DEVICES": "1"},
            {"CUDA_VISIBLE_DEVICES": "1"},
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "1"},
            {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
            {},
        ),
        (
            {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "2,3"},
            {"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"},
            {},
        ),
    ],
)
def test_which_variable_counts(
    tmp_path: Path, environment: dict[str, str], applied: dict[str, str], ignored: dict[str, str]
) -> None:
    found = rocm.visibility(Host(root=tmp_path, environment=environment), n_cards=4)
    assert (found.applied, found.ignored) == (applied, ignored)
    assert list(found.applied) == list(applied)
    assert (found.problem, found.remedy, found.hidden) == ("", "", False)


@pytest.mark.parametrize(
    ("environment", "cards", "problem", "remedy", "hidden"),
    [
        (
            {"ROCR_VISIBLE_DEVICES": ""},
            1,
            "`ROCR_VISIBLE_DEVICES=` hides every AMD card",
            "unset ROCR_VISIBLE_DEVICES",
            True,
        ),
        (
            {"ROCR_VISIBLE_DEVICES": "4"},
            2,
            "`ROCR_VISIBLE_DEVICES=4` hides every AMD card",
            "unset ROCR_VISIBLE_DEVICES",
            True,
        ),
        (
            {"HIP_VISIBLE_DEVICES": "-1"},
            1,
            "`HIP_VISIBLE_DEVICES=-1` hides every AMD card",
            "unset HIP_VISIBLE_DEVICES",
            True,
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "-1"},
            1,
            "`CUDA_VISIBLE_DEVICES=-1` hides every AMD card",
            "unset CUDA_VISIBLE_DEVICES",
            True,
        ),
        (
            {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": ""},
            1,
            "`HIP_VISIBLE_DEVICES=0` and `CUDA_VISIBLE_DEVICES=` disagree; the first counts",
            "unset CUDA_VISIBLE_DEVICES",
            False,
        ),
        (
            {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"},
            2,
            "`HIP_VISIBLE_DEVICES=1` counts the 1 that `ROCR_VISIBLE_DEVICES=1` leaves, from 0, and names others",
            "unset HIP_VISIBLE_DEVICES",
            True,
        ),
        (
            {"HIP_VISIBLE_DEVICES": "0,2", "ROCR_VISIBLE_DEVICES": "1,3"},
            4,
            "`HIP_VISIBLE_DEVICES=0,2` counts the 2 that `ROCR_VISIBLE_DEVICES=1,3` leaves, from 0, and names others",
            "unset HIP_VISIBLE_DEVICES",
            False,
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"},
            2,
            "`CUDA_VISIBLE_DEVICES=1` counts the 1 that `ROCR_VISIBLE_DEVICES=1` leaves, from 0, and names others",
            "unset CUDA_VISIBLE_DEVICES",
            True,
        ),
    ],
)
def test_variables_that_hide_or_contradict(
    tmp_path: Path, environment: dict[str, str], cards: int, problem: str, remedy: str, hidden: bool
) -> None:
    found = rocm.visibility(Host(root=tmp_path, environment=environment), n_cards=cards)
    assert (found.problem, found.remedy, found.hidden) == (problem, remedy, hidden)
