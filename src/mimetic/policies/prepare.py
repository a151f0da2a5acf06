"""What `--accelerator.*` asks to be done to a policy before it is trained."""

from __future__ import annotations

from mimetic.accelerators.config import AcceleratorConfig
from mimetic.errors import ConfigError
from mimetic.policies.activation_checkpointing import checkpoint_activations
from mimetic.policies.base import Policy
from mimetic.policies.compiling import compile_training


def prepare_for_training(policy: Policy, config: AcceleratorConfig) -> list[str]:
    """Compile and recompute as configured; call it once, when the policy is complete, with its adapter, on its device.

    Parameters, their order and names, checkpoints and evaluation stay what they are.

    Args:
        policy: changed in place.
        config: settings of the run.

    Returns:
        Sentences for the log; none when nothing is asked for.

    Raises:
        ConfigError: settings that do not go together, that the policy cannot follow, or that do not work here.
    """
    recomputes = config.activation_checkpointing.mode == "full"
    if recomputes and config.compile.enabled:
        _require_both(policy, config)
    said = []
    if config.compile.enabled:
        said.append(compile_training(policy, config.compile))
    if recomputes:
        said.append(checkpoint_activations(policy))
    return said


def _require_both(policy: Policy, config: AcceleratorConfig) -> None:
    """Whether layers can be compiled and recomputed.

    The second run must go through the code of the first. Code compiled for exact sizes cannot be confused: whatever
    tells two inputs apart was read, and is checked, in both. Code for changing sizes can.
    """
    both = "`--accelerator.activation_checkpointing.mode=full` with `--accelerator.compile.enabled=true`"
    if not config.compile.regional:
        raise ConfigError(
            f"{both}: layers are recomputed, and `--accelerator.compile.regional=false` leaves none, because the "
            "compiler plans the memory of the whole loss",
            "use `--accelerator.compile.regional=true`, or leave out one of the two",
        )
    if any(each.varying_sizes for each in policy.layer_classes):
        raise ConfigError(
            f"{both}: the inputs of policy `{policy.config.type_name}` change their sizes from batch to batch, and "
            "torch may recompute a layer with other compiled code than it ran first",
            "leave out one of the two",
        )
