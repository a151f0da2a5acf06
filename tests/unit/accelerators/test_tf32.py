"""The switches of the installed torch after `--tf32`; they can be set without a GPU (spec/training.md 17.6)."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
import torch

from mimetic.accelerators.tf32 import apply_tf32
from mimetic.testing.machines import amd, apple, cpu_only, intel, nvidia

CUDA = torch.device("cuda")
AMPERE = nvidia("NVIDIA A100", (8, 0))
TURING = nvidia("Tesla T4", (7, 5))
MI300X = amd("AMD Instinct MI300X", "gfx942")

pytestmark = pytest.mark.usefixtures("tf32_switches")


def read():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def single_operators():
    """The newer switches, which must agree with the older ones."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if not hasattr(cudnn, "conv"):
        pytest.skip("this torch has no switches of single operators")
    return matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


@pytest.mark.parametrize("probe", [AMPERE, MI300X])
@pytest.mark.parametrize("before", [(True, True), (False, False), (False, True), (True, False)])
def test_true_and_false_set_both_switches(probe, before):
    for setting, phrase in ((True, "TF32 on"), (False, "TF32 off")):
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
        assert apply_tf32(setting, CUDA, probe) == phrase
        assert read() == (setting, setting)
        assert (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()) == (
            setting,
            "high" if setting else "highest",
        )


def test_the_newer_switches_agree():
    apply_tf32(True, CUDA, AMPERE)
    assert single_operators() == ("tf32", "tf32", "tf32")
    apply_tf32(False, CUDA, AMPERE)
    assert single_operators()[0] == "ieee"
    assert "tf32" not in single_operators()


@pytest.mark.parametrize("before", [(True, True), (False, False), (False, True), (True, False)])
def test_null_touches_nothing(before):
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    phrase = apply_tf32(None, CUDA, AMPERE)
    assert read() == before
    products, convolutions = ("on" if on else "off" for on in before)
    same = f"TF32 {products}"
    expected = same if products == convolutions else f"{same} for products, {convolutions} for convolutions"
    assert phrase == f"{expected} (torch's setting)"


@pytest.mark.parametrize(
    ("device", "probe", "phrase"),
    [
        ("cpu", cpu_only(), ""),
        ("cpu", AMPERE, ""),
        ("mps", apple(), ""),
        ("xpu", intel("Arc"), ""),
        ("cuda", TURING, "no TF32 on this card"),
        ("cuda", amd("Radeon RX 7900 XTX", "gfx1100"), "no TF32 on this card"),
        ("cuda", amd("AMD Instinct MI250X", "gfx90a"), "no TF32 on this card"),
    ],
)
@pytest.mark.parametrize("setting", [True, False, None])
def test_a_device_without_it_touches_nothing(device, probe, phrase, setting):
    before = read()
    assert apply_tf32(setting, torch.device(device), probe) == phrase
    assert read() == before


def test_it_warns_about_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_tf32(True, CUDA, AMPERE)
        apply_tf32(None, CUDA, AMPERE)


@pytest.mark.parametrize("setting", [True, False])
def test_switches_of_single_operators_that_somebody_set_are_brought_in_line(setting):
    """With only those set, torch refuses to read the older ones, and torch.compile reads them."""
    single_operators()
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    with pytest.raises(RuntimeError):
        _ = torch.backends.cudnn.allow_tf32
    apply_tf32(setting, CUDA, AMPERE)
    assert read() == (setting, setting)


def test_null_can_be_described_while_switches_disagree():
    single_operators()
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert apply_tf32(None, CUDA, AMPERE) == "TF32 off (torch's setting)"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize(("setting", "value"), [(True, "tf32"), (False, "ieee")])
def test_a_torch_without_the_older_switches_gets_all_three_newer_ones(setting, value):
    matmul = SimpleNamespace(fp32_precision="none")
    cudnn = SimpleNamespace(conv=SimpleNamespace(fp32_precision="none"), rnn=SimpleNamespace(fp32_precision="none"))
    future = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn)
    assert apply_tf32(None, CUDA, AMPERE, future) == "TF32 off (torch's setting)"
    assert matmul.fp32_precision == "none"
    assert apply_tf32(setting, CUDA, AMPERE, future) == f"TF32 {'on' if setting else 'off'}"
    assert {matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision} == {value}


def test_a_rocm_build_that_wants_an_environment_variable_is_told_apart():
    """Some ROCm builds of torch leave products in float32 without it; the line says what really is set."""

    class Stubborn:
        allow_tf32 = property(lambda self: False, lambda self, value: None)

    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=Stubborn()), cudnn=SimpleNamespace(allow_tf32=False))
    assert apply_tf32(True, CUDA, MI300X, backends) == (
        "TF32 off for products, on for convolutions "
        "(products of this torch need HIPBLASLT_ALLOW_TF32=1 in the environment)"
    )
