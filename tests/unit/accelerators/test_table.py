"""Which device trains in which precision, and what is said where it does not.

The table is the documentation; it is tested in every combination of machine, `--accelerator.mixed_precision`, `--tf32`
and `--accelerator.grad_scaler.enabled` on made-up machines. Below it, the devices of this machine take a real step in
every precision that they accept.
"""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import pytest
import torch

from mimetic.accelerators.config import GradScalerConfig
from mimetic.accelerators.devices import choose_device
from mimetic.accelerators.loss_scaler import describe_scaler
from mimetic.accelerators.precision import choose_precision
from mimetic.accelerators.probe import TORCH
from mimetic.accelerators.tf32 import apply_tf32
from mimetic.accelerators.witness import MatmulWitness
from mimetic.errors import PrecisionError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.build import make_policy
from mimetic.testing.machines import amd, apple, cpu_only, intel, nvidia

# Machine: what `choose_device` finds on it, and how the precision line shows it.
MACHINES = {
    "CPU": (cpu_only(), "cpu", "cpu, 16 threads"),
    "CPU without bf16 units": (cpu_only(bfloat16=False), "cpu", "cpu, 16 threads"),
    "NVIDIA sm_61": (nvidia("NVIDIA GeForce GTX 1080", (6, 1)), "cuda", "NVIDIA GeForce GTX 1080, capability 6.1"),
    "NVIDIA sm_70": (nvidia("Tesla V100-SXM2", (7, 0)), "cuda", "Tesla V100-SXM2, capability 7.0"),
    "NVIDIA sm_75": (nvidia("Tesla T4", (7, 5)), "cuda", "Tesla T4, capability 7.5"),
    "NVIDIA sm_80": (nvidia("NVIDIA A100", (8, 0)), "cuda", "NVIDIA A100, capability 8.0"),
    "NVIDIA sm_90": (nvidia("NVIDIA H200", (9, 0)), "cuda", "NVIDIA H200, capability 9.0"),
    "AMD gfx90a": (amd("AMD Instinct MI250X", "gfx90a"), "cuda", "AMD Instinct MI250X, gfx90a, ROCm 7.0"),
    "AMD gfx942": (amd("AMD Instinct MI300X", "gfx942"), "cuda", "AMD Instinct MI300X, gfx942, ROCm 7.0"),
    "AMD gfx950": (amd("AMD Instinct MI355X", "gfx950"), "cuda", "AMD Instinct MI355X, gfx950, ROCm 7.0"),
    "AMD gfx1100": (amd("Radeon RX 7900 XTX", "gfx1100"), "cuda", "Radeon RX 7900 XTX, gfx1100, ROCm 7.0"),
    "Apple 13, torch 2.4": (apple("13.6", "2.4.1"), "mps", "Apple GPU, macOS 13.6"),
    "Apple 13, torch 2.5": (apple("13.6", "2.5.1"), "mps", "Apple GPU, macOS 13.6"),
    "Apple 13, torch 2.6": (apple("13.6", "2.6.0"), "mps", "Apple GPU, macOS 13.6"),
    "Apple 13, torch 2.8": (apple("13.6", "2.8.0"), "mps", "Apple GPU, macOS 13.6"),
    "Apple 14, torch 2.5": (apple("14.0", "2.5.1"), "mps", "Apple GPU, macOS 14.0"),
    "Apple 14, torch 2.6": (apple("14.0", "2.6.0"), "mps", "Apple GPU, macOS 14.0"),
    "Apple 14, torch 2.8": (apple("14.0", "2.8.0"), "mps", "Apple GPU, macOS 14.0"),
    "Apple 26, torch 2.13": (apple("26.1", "2.13.0"), "mps", "Apple GPU, macOS 26.1"),
    "Intel": (intel("Intel(R) Data Center GPU Max 1550"), "xpu", "Intel(R) Data Center GPU Max 1550"),
    "Intel without float64": (intel("Intel(R) Arc(TM) A770", has_float64=False), "xpu", "Intel(R) Arc(TM) A770"),
}

# yes: accepted. yes*: accepted, and the line says that it is slow. Other words: refused, see MESSAGES.
# TF32: switched by `--tf32`; none: the card has none, and says so; -: no such thing, nothing is said.
TABLE = """
    machine                | no  | bf16     | fp16      | fp16, grad_scaler.enabled=false | TF32
    CPU                    | yes | yes      | cpu       | cpu                             | -
    CPU without bf16 units | yes | yes*     | cpu       | cpu                             | -
    NVIDIA sm_61           | yes | emulated | yes       | yes                             | none
    NVIDIA sm_70           | yes | emulated | yes       | yes                             | none
    NVIDIA sm_75           | yes | emulated | yes       | yes                             | none
    NVIDIA sm_80           | yes | yes      | yes       | yes                             | switched
    NVIDIA sm_90           | yes | yes      | yes       | yes                             | switched
    AMD gfx90a             | yes | yes      | yes       | yes                             | none
    AMD gfx942             | yes | yes      | yes       | yes                             | switched
    AMD gfx950             | yes | yes      | yes       | yes                             | switched
    AMD gfx1100            | yes | yes      | yes       | yes                             | none
    Apple 13, torch 2.4    | yes | mps bf16 | mps fp16  | mps fp16                        | -
    Apple 13, torch 2.5    | yes | mps bf16 | mps scale | yes                             | -
    Apple 13, torch 2.6    | yes | macos    | mps scale | yes                             | -
    Apple 13, torch 2.8    | yes | macos+   | yes       | yes                             | -
    Apple 14, torch 2.5    | yes | mps bf16 | mps scale | yes                             | -
    Apple 14, torch 2.6    | yes | yes      | scale14   | yes                             | -
    Apple 14, torch 2.8    | yes | yes      | yes       | yes                             | -
    Apple 26, torch 2.13   | yes | yes      | yes       | yes                             | -
    Intel                  | yes | yes      | yes       | yes                             | -
    Intel without float64  | yes | yes      | no double | yes                             | -
"""

FLAG = "--accelerator.mixed_precision"
# Word of the table: error and hint. {name}, {number}, {torch}, {macos} are the machine's.
MESSAGES = {
    "cpu": (
        f"`{FLAG}=fp16` needs an accelerator, and the device is `cpu`: no loss scaler exists there and the run would "
        "silently be float32",
        "use `bf16` or `no`, or choose a device with `--policy.device`",
    ),
    "emulated": (
        f"`{FLAG}=bf16`: {{name}} has compute capability {{number}} and no bfloat16 units (8.0 and newer have them); "
        "torch would emulate it, slower than float32",
        f"use `{FLAG}=fp16`, which this card has, or `no`",
    ),
    "mps bf16": (
        f"`{FLAG}=bf16`: bfloat16 on an Apple GPU needs macOS 14 and torch 2.6, and this is torch {{torch}} on macOS "
        "{macos}",
        "update torch (and macOS before 14), or use `no`",
    ),
    "macos": (
        f"`{FLAG}=bf16`: bfloat16 on an Apple GPU needs macOS 14 and torch 2.6, and this is torch {{torch}} on macOS "
        "{macos}",
        "update macOS, or use `no`",
    ),
    "macos+": (
        f"`{FLAG}=bf16`: bfloat16 on an Apple GPU needs macOS 14 and torch 2.6, and this is torch {{torch}} on macOS "
        "{macos}",
        "update macOS, or use `fp16` or `no`",
    ),
    "mps fp16": (
        f"`{FLAG}=fp16`: float16 autocast on an Apple GPU needs torch 2.5, and this is torch {{torch}} on macOS {{macos}}",
        "update torch, or use `no`",
    ),
    "mps scale": (
        f"`{FLAG}=fp16`: the loss scaler needs torch 2.8 on an Apple GPU, and this is torch {{torch}} on macOS {{macos}}",
        "update torch, or use `no`",
    ),
    "scale14": (
        f"`{FLAG}=fp16`: the loss scaler needs torch 2.8 on an Apple GPU, and this is torch {{torch}} on macOS {{macos}}",
        "update torch, or use `bf16` or `no`",
    ),
    "no double": (
        f"`{FLAG}=fp16`: torch's loss scaler computes in double precision, which {{name}} does not have",
        f"use `{FLAG}=bf16`, which this card has, or `no`",
    ),
}
SCALER = "loss scale 65536, x2 after 2000 updates, x0.5 after an overflow"
PHRASE = {
    ("no", True): "float32",
    ("no", False): "float32",
    ("bf16", True): "bf16 autocast, float32 weights",
    ("bf16", False): "bf16 autocast, float32 weights",
    ("fp16", True): f"fp16 autocast, float32 weights, {SCALER}",
    ("fp16", False): "fp16 autocast, float32 weights, no loss scaling",
}
# `--tf32` on a card that has it: phrase, and the switches of products and convolutions afterwards.
TF32 = {
    True: ("TF32 on", (True, True)),
    False: ("TF32 off", (False, False)),
    None: ("TF32 off for products, on for convolutions (torch's setting)", (False, True)),
}
UNTOUCHED = (False, True)  # torch's defaults
DTYPE = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def rows():
    lines = [[cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines()]
    for machine, no, bf16, fp16, unscaled, tf32 in lines[1:]:
        yield machine, {"no": no, "bf16": bf16, "fp16": fp16, "fp16, unscaled": unscaled}, tf32


def switches():
    """Stand-in for `torch.backends`, as it is when Python starts."""
    return SimpleNamespace(
        cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=False)), cudnn=SimpleNamespace(allow_tf32=True)
    )


CASES = [
    pytest.param(
        machine, precision, setting, scaled, answers, column, id=f"{machine}-{precision}-tf32={setting}-{scaled}"
    )
    for machine, answers, column in rows()
    for precision, setting, scaled in itertools.product(("no", "bf16", "fp16"), (True, False, None), (True, False))
]


def test_every_machine_is_in_the_table():
    assert [machine for machine, _, _ in rows()] == list(MACHINES)
    assert {word for _, answers, _ in rows() for word in answers.values()} - {"yes", "yes*"} == set(MESSAGES)


@pytest.mark.parametrize(("machine", "precision", "setting", "scaled", "answers", "column"), CASES)
def test_accepted_or_refused(machine, precision, setting, scaled, answers, column):
    probe, kind, place = MACHINES[machine]
    device, _ = choose_device(None, probe)
    assert device == torch.device(kind)
    backends = switches()
    tf32 = apply_tf32(setting, device, probe, backends)
    expected, after = {"switched": TF32[setting], "none": ("no TF32 on this card", UNTOUCHED), "-": ("", UNTOUCHED)}[
        column
    ]
    assert tf32 == expected
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == after

    answer = answers["fp16, unscaled" if precision == "fp16" and not scaled else precision]
    settings = GradScalerConfig(enabled=scaled)
    if not answer.startswith("yes"):
        facts = probe.facts(kind, None)
        number = ".".join(map(str, facts.capability or ()))
        values = {"name": facts.name, "number": number, "torch": probe.torch_version, "macos": probe.macos_version}
        message, hint = (text.format(**values) for text in MESSAGES[answer])
        with pytest.raises(PrecisionError) as caught:
            choose_precision(precision, device, grad_scaler=settings, tf32=tf32, probe=probe)
        assert caught.value.message == message
        assert caught.value.hint == hint
        return
    chosen = choose_precision(precision, device, grad_scaler=settings, tf32=tf32, probe=probe)
    slow = ", this processor emulates bfloat16, which is slower than float32" if answer == "yes*" else ""
    inside = f"{PHRASE[precision, scaled]}, {tf32}" if tf32 else PHRASE[precision, scaled]
    assert chosen.reason == f"precision: {inside} ({place}{slow})"
    assert chosen.autocast_dtype is DTYPE[precision]
    assert chosen.device == device
    assert chosen.scaler is (precision == "fp16" and scaled)


def test_the_line_of_the_specification():
    probe = MACHINES["NVIDIA sm_90"][0]
    device = torch.device("cuda")
    line = choose_precision("bf16", device, tf32=apply_tf32(True, device, probe, switches()), probe=probe).reason
    assert line == "precision: bf16 autocast, float32 weights, TF32 on (NVIDIA H200, capability 9.0)"


def test_scaler_settings_stand_in_the_line():
    probe = MACHINES["NVIDIA sm_70"][0]
    settings = GradScalerConfig(init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=10)
    line = choose_precision("fp16", torch.device("cuda"), grad_scaler=settings, probe=probe).reason
    assert describe_scaler(settings) in line
    assert "1024" in line


# --- the devices of this machine -----------------------------------------------------------------------------------

NEEDS = {"cuda": "an NVIDIA or AMD GPU", "mps": "an Apple GPU", "xpu": "an Intel GPU"}
REAL = [
    pytest.param("cpu", True, id="cpu"),  # `--tf32` does not reach it
    *(
        pytest.param(kind, setting, marks=pytest.mark.gpu, id=f"{kind}, tf32={setting}")
        for kind, setting in itertools.product(NEEDS, (True, False, None))
    ),
]


@pytest.fixture(scope="module")
def act():
    config = ACTConfig(
        input_features={
            "observation.state": PolicyFeature(FeatureType.STATE, (6,)),
            "observation.images.front": PolicyFeature(FeatureType.VISUAL, (3, 32, 64)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (4,))},
        chunk_size=8,
        n_action_steps=8,
        dim_model=16,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    generator = torch.Generator().manual_seed(3)
    batch = {key: torch.randn(2, *f.shape, generator=generator) for key, f in config.input_features.items()}
    batch["action"] = torch.randn(2, 8, 4, generator=generator)
    batch["action_is_pad"] = torch.arange(8).expand(2, 8) >= torch.tensor([8, 6])[:, None]
    return make_policy(config), batch


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
@pytest.mark.parametrize(("kind", "setting"), REAL)
def test_a_real_step(act, kind, precision, setting, tf32_switches):
    if not TORCH.is_available(kind):
        pytest.skip(f"needs {NEEDS[kind]}")
    device, _ = choose_device(kind)
    tf32 = apply_tf32(setting, device)
    try:
        chosen = choose_precision(precision, device, tf32=tf32)
    except PrecisionError as error:
        assert precision != "no"
        assert error.hint
        return
    policy = copy.deepcopy(act[0]).to(device).train()
    batch = {key: value.to(device) for key, value in act[1].items()}
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(kind, init_scale=256.0, enabled=chosen.scaler)
    before = {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}
    with MatmulWitness() as witness:
        with chosen.autocast():
            loss, _ = policy.loss(batch)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.isfinite(loss)
    wanted = chosen.autocast_dtype or torch.float32
    assert witness.first is not None
    assert witness.first[1] is wanted
    assert witness.verdict(chosen).startswith("first matrix product ran in ")
    changed = [name for name, parameter in policy.named_parameters() if not torch.equal(before[name], parameter)]
    assert len(changed) > 40
    assert all(
        parameter.dtype is torch.float32 and torch.isfinite(parameter).all() for parameter in policy.parameters()
    )
