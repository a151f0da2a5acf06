"""`policy.use_amp` and a policy's `dtype` become `--accelerator.mixed_precision` (spec/training.md 17.1)."""

from __future__ import annotations

import pytest
import torch

from mimetic.accelerators.older_flags import older_precision_flags

NEW = "--accelerator.mixed_precision"
AMP = "--policy.use_amp=true"


def ask(mixed_precision="no", *, is_given=False, use_amp=False, device="cuda", dtype=None):
    return older_precision_flags(
        mixed_precision, is_given=is_given, use_amp=use_amp, device=torch.device(device), dtype=dtype
    )


@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize("is_given", [True, False])
def test_without_older_settings_nothing_changes(mixed_precision, is_given):
    assert ask(mixed_precision, is_given=is_given) == (mixed_precision, None)


@pytest.mark.parametrize(("device", "meant"), [("cuda", "fp16"), ("cuda:1", "fp16"), ("xpu", "fp16"), ("cpu", "bf16")])
def test_use_amp_means_the_default_of_autocast(device, meant):
    kind = device.partition(":")[0]
    assert ask(use_amp=True, device=device) == (
        meant,
        f"{AMP} is taken as {NEW}={meant}, as in LeRobot 0.6.1 on {kind}",
    )
    expected = {"fp16": torch.float16, "bf16": torch.bfloat16}[meant]
    assert torch.get_autocast_dtype(kind) is expected


def test_use_amp_has_no_effect_on_apple():
    assert ask(use_amp=True, device="mps") == ("no", f"{AMP} has no effect on mps, as in LeRobot 0.6.1; use {NEW}")


@pytest.mark.parametrize("given", ["no", "bf16"])
def test_the_newer_flag_wins_and_that_is_said(given):
    found = ask(given, is_given=True, use_amp=True)
    assert found == (given, f"{AMP} has no effect: {NEW}={given} is given too")


def test_flags_that_agree_need_no_note():
    assert ask("fp16", is_given=True, use_amp=True) == ("fp16", None)
    assert ask("bf16", is_given=True, dtype="bfloat16") == ("bf16", None)


@pytest.mark.parametrize(("dtype", "meant"), [("bfloat16", "bf16"), ("float16", "fp16")])
def test_a_policy_s_dtype_maps(dtype, meant):
    note = f"--policy.dtype={dtype} is taken as {NEW}={meant}, as in LeRobot 0.6.1 on cuda"
    assert ask(dtype=dtype) == (meant, note)
    assert ask(dtype=dtype, use_amp=True) == (meant, note)
    other = "no"
    assert ask(other, is_given=True, dtype=dtype) == (
        other,
        f"--policy.dtype={dtype} has no effect: {NEW}={other} is given too",
    )


def test_float32_is_what_a_policy_has_and_needs_no_note():
    assert ask(dtype="float32") == ("no", None)
    assert ask("bf16", is_given=True, dtype="float32") == ("bf16", None)


def test_float32_beats_use_amp():
    note = f"{AMP} has no effect: --policy.dtype=float32 decides, as in LeRobot 0.6.1; use {NEW}"
    assert ask(dtype="float32", use_amp=True) == ("no", note)


@pytest.mark.parametrize("dtype", ["auto", "float64", ""])
def test_other_dtypes_are_the_policy_s_business(dtype):
    assert ask(dtype=dtype) == ("no", None)
    assert ask(dtype=dtype, use_amp=True)[0] == "fp16"
