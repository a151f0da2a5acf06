"""The decision itself, and what of it reaches the forward pass; who may train in what is in test_table.py."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

from mimetic.accelerators.config import AcceleratorConfig, GradScalerConfig
from mimetic.accelerators.devices import capabilities
from mimetic.accelerators.precision import Precision, check_trainable_dtypes, choose_precision
from mimetic.errors import PrecisionError
from mimetic.testing.machines import nvidia

CPU = torch.device("cpu")


def test_the_older_way_to_make_one_still_works():
    precision = Precision(CPU, None, "")
    assert precision.scaler is False
    with pytest.raises(FrozenInstanceError):
        precision.scaler = True


@pytest.mark.parametrize(("name", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_reaches_products_and_can_be_entered_every_step(name, dtype):
    precision = choose_precision(name, CPU)
    layer = nn.Linear(4, 4)
    for _ in range(2):
        with precision.autocast():
            assert layer(torch.ones(2, 4)).dtype is dtype
    assert layer(torch.ones(2, 4)).dtype is torch.float32


def test_every_choice_of_the_flag_is_known():
    probe = nvidia("NVIDIA H200", (9, 0))
    choices = AcceleratorConfig.__dataclass_fields__["mixed_precision"].metadata["choices"]
    for name in choices:
        choose_precision(name, torch.device("cuda"), probe=probe)
    assert set(choices) == {"no", "bf16", "fp16"}


@pytest.mark.parametrize(
    ("name", "hint"),
    [("bf61", "did you mean `bf16`?"), ("float8", "use `no`, `bf16` or `fp16`"), ("", "use `no`, `bf16` or `fp16`")],
)
def test_what_is_no_precision_is_refused(name, hint):
    with pytest.raises(PrecisionError) as caught:
        choose_precision(name, CPU)
    assert caught.value.message == f"`--accelerator.mixed_precision={name}` is not a precision"
    assert caught.value.hint == hint


def test_the_check_of_the_card_is_not_fooled_by_emulation(monkeypatch):
    """torch says that a V100 supports bfloat16, because it can emulate it (spec/training.md 17.2)."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    v100 = nvidia("Tesla V100-SXM2", (7, 0))
    assert not capabilities(torch.device("cuda"), v100).bf16
    with pytest.raises(PrecisionError, match=r"Tesla V100-SXM2 has compute capability 7\.0") as caught:
        choose_precision("bf16", torch.device("cuda"), probe=v100)
    assert "`--accelerator.mixed_precision=fp16`" in caught.value.hint


class TestTrainedWeights:
    SCALED = Precision(torch.device("cuda"), torch.float16, "", scaler=True)

    @staticmethod
    def model(dtype, trained=True):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(dtype))
        model[1].requires_grad_(trained)
        return model

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_narrow_ones_are_refused_under_the_scaler(self, dtype):
        with pytest.raises(PrecisionError) as caught:
            check_trainable_dtypes(self.model(dtype).named_parameters(), self.SCALED)
        name = str(dtype).removeprefix("torch.")
        assert caught.value.message.endswith(f": `1.weight` ({name}), `1.bias` ({name})")
        assert "`--accelerator.mixed_precision=bf16`" in caught.value.hint

    def test_many_are_counted(self):
        layers = nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))).half()
        with pytest.raises(PrecisionError, match=r"`1\.weight` \(float16\) and 5 more"):
            check_trainable_dtypes(layers.named_parameters(), self.SCALED)

    def test_torch_itself_would_refuse_float16(self):
        """Why the check exists: without it the first update fails with torch's message."""
        weight = nn.Parameter(torch.ones(2, dtype=torch.float16))
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(weight.sum()).backward()
        with pytest.raises(ValueError, match="unscale FP16"):
            scaler.unscale_(torch.optim.SGD([weight], lr=0.1))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_frozen_ones_may_be_narrow(self, dtype):
        check_trainable_dtypes(self.model(dtype, trained=False).named_parameters(), self.SCALED)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_wide_ones_are_accepted(self, dtype):
        check_trainable_dtypes(self.model(dtype).named_parameters(), self.SCALED)

    @pytest.mark.parametrize(
        "precision", [Precision(CPU, None, ""), Precision(CPU, torch.bfloat16, ""), Precision(CPU, torch.float16, "")]
    )
    def test_without_the_scaler_nothing_is_refused(self, precision):
        check_trainable_dtypes(self.model(torch.float16).named_parameters(), precision)


def test_the_scaler_s_default_is_on():
    probe = nvidia("NVIDIA H200", (9, 0))
    cuda = torch.device("cuda")
    assert choose_precision("fp16", cuda, probe=probe).scaler
    assert choose_precision("fp16", cuda, probe=probe) == choose_precision(
        "fp16", cuda, grad_scaler=GradScalerConfig(), probe=probe
    )
