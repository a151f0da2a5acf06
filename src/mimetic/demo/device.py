"""What the demo asks of this machine: a GPU for a policy of real size, and whether a small one trains in bfloat16."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from mimetic.demo.config import DemoConfig
from mimetic.demo.recipes import RECIPES, SMALL, recipe_of, steps_of
from mimetic.errors import ConfigError, DeviceError, MimeticError

if TYPE_CHECKING:
    from mimetic.accelerators.probe import TorchProbe

_QUESTION = """\
from mimetic.accelerators.probe import TORCH
from mimetic.demo.device import multiplies_bf16
print(multiplies_bf16({device!r}, TORCH))
"""


def require_device(config: DemoConfig) -> None:
    """Refuse to train a large policy on a CPU that nobody has asked for, and a device that is not there.

    Raises:
        ConfigError: the policy needs a GPU, and there is none.
        DeviceError: `--policy.device` names one that is absent.
    """
    recipe = recipe_of(config)
    if config.policy.device == "cpu" or (config.policy.device is None and (not recipe.needs_gpu or config.yes)):
        return  # without torch, which takes seconds to import
    from mimetic.accelerators.devices import choose_device

    if config.policy.device is not None:
        choose_device(config.policy.device)
        return
    device, _ = choose_device(None)
    if device.type != "cpu":
        return
    try:
        choose_device("cuda")
        reason = ""  # not reached where the choice of above was the CPU
    except DeviceError as error:
        reason = error.message.partition(": ")[2] or error.message
    another = "" if config.task in RECIPES[SMALL].steps else " and choose another task"
    raise ConfigError(
        f"`--real_size={config.real_size}` trains {recipe.words} for {steps_of(config):,} steps, and this machine has "
        f"no GPU for it: {reason}",
        f"leave `--real_size` out{another}: a small policy learns one in minutes on a CPU\n"
        f"`--policy.device=cpu` or `--yes=true` begins here all the same; a CPU takes {recipe.cpu_takes}",
    )


def multiplies_bf16(wanted: str | None, probe: TorchProbe) -> bool:
    """Whether training runs on a CPU, and that CPU multiplies bfloat16.

    Args:
        wanted: `--policy.device`; None takes a GPU where there is one.
        probe: whom to ask.

    Raises:
        DeviceError: the device is not there.
    """
    from mimetic.accelerators.devices import choose_device

    return choose_device(wanted, probe)[0].type == "cpu" and probe.cpu_has_bfloat16


def trains_in_bf16(config: DemoConfig) -> bool:
    """Whether a training that begins here should multiply bfloat16.

    Asked in a process of its own, since only torch knows: the demo waits for its commands for minutes or days, and the
    memory that torch takes is better left to them.

    Raises:
        MimeticError: torch cannot be asked.
    """
    device = config.policy.device
    if not recipe_of(config).halves or device not in (None, "cpu"):
        return False
    done = subprocess.run(
        [sys.executable, "-c", _QUESTION.format(device=device)],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    answer = done.stdout.split()[-1:]
    if done.returncode or answer not in (["True"], ["False"]):
        said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise MimeticError(
            f"torch does not say what this machine can compute with: {said}",
            "`mimetic info` shows what is installed",
        )
    return answer == ["True"]
