"""Whether a policy of real size has a GPU to train on; said before anything is recorded."""

from __future__ import annotations

from mimetic.demo.config import DemoConfig
from mimetic.demo.recipes import RECIPES, SMALL, recipe_of, steps_of
from mimetic.errors import ConfigError, DeviceError


def require_device(config: DemoConfig) -> None:
    """Refuse to train a large policy on a CPU that nobody has asked for, and a device that is not there.

    Raises:
        ConfigError: the policy needs a GPU, and there is none.
        DeviceError: `--policy.device` names one that is absent.
    """
    recipe = recipe_of(config)
    if config.policy.device is None and (not recipe.needs_gpu or config.yes):
        return
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
