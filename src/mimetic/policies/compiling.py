"""`--accelerator.compile.*`: torch.compile of what training runs.

Regional, the default: one compiled function for each class of repeated layers, which takes the layer as an argument,
so that it is compiled once for all of them. Otherwise the policy's whole loss. Parameters, names, checkpoints and
evaluation stay as they are: only training with gradients goes through compiled code.

Random numbers are drawn as without compilation, from the same generator in the same order, so that a compiled run has
the dropout and the noise of one that is not. Layers whose inputs keep their sizes are compiled for each size that
comes: a shorter last batch of an epoch is one more compilation. The code then depends on the sizes alone, not on what
came before, as a resumed run needs.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mimetic.accelerators.config import CompileConfig
from mimetic.errors import ConfigError
from mimetic.policies.base import Policy
from mimetic.policies.repeated_layers import describe, differentiated_layers, set_training_forward

if TYPE_CHECKING:
    from torch._dynamo.exc import TorchDynamoException

logger = logging.getLogger(__name__)

_FLAG = "--accelerator.compile"
_INDUCTOR = "inductor"
_OFF = f"`{_FLAG}.enabled=false` trains without a compiler"
_MOST_COMPILATIONS = 64
"""Of one function, for different sizes; beyond them it runs uncompiled, and torch says so."""
_SHOWN = 300


def compile_training(policy: Policy, config: CompileConfig) -> str:
    """Compile the training pass of a policy; the compiler runs when the first batch comes.

    Args:
        policy: changed in place, with its adapter attached and on its device.
        config: what to compile, and how.

    Returns:
        A sentence for the log.

    Raises:
        ConfigError: an unknown backend or mode, the backend does not work on this machine (it is tried here), or the
            policy has nothing that can be compiled so.
    """
    require_usable(config, policy.device)
    if not config.regional:
        _require_whole(policy)
        compiled = _compiled(type(policy).loss, config, dynamic=False)
        what = f"the whole loss of policy `{policy.config.type_name}`"
    else:
        compiled = None
        what = _compile_layers(policy, config)
    policy.__dict__["loss"] = TrainingLoss(policy, compiled)
    mode = f", mode {config.mode}" if config.mode else ""
    return f"compiling {what} with {config.backend}{mode}; the first step takes longer ({_OFF})"


def _require_whole(policy: Policy) -> None:
    """A loss with changing sizes also looks at values on its way: it would fall to pieces, frozen parts among them,
    whose compiled features are not those that evaluation and the feature cache compute.
    """
    if any(each.varying_sizes for each in policy.layer_classes):
        raise ConfigError(
            f"`{_FLAG}.regional=false`: the sizes inside the loss of policy `{policy.config.type_name}` change from "
            "batch to batch, so it cannot be compiled as a whole",
            f"use `{_FLAG}.regional=true`",
        )


def _compile_layers(policy: Policy, config: CompileConfig) -> str:
    layers = {each: group for each, group in differentiated_layers(policy).items() if each.is_uniform}
    if not layers:
        raise ConfigError(
            f"`{_FLAG}.regional=true`: policy `{policy.config.type_name}` has no repeated layers",
            f"compile the whole loss with `{_FLAG}.regional=false`",
        )
    for each, group in layers.items():
        forward = _compiled(each.kind.forward, config, dynamic=each.varying_sizes)
        for layer in group:
            set_training_forward(layer, forward)
    return f"one layer of each kind for all of its kind ({describe(layers)})"


def require_usable(config: CompileConfig, device: torch.device) -> None:
    """Check names, and compile and run three operations to see whether the backend works here.

    Args:
        config: backend and mode.
        device: where training will run.

    Raises:
        ConfigError: an unknown backend or mode, or the backend does not work.
    """
    known = torch.compiler.list_backends(exclude_tags=())
    if config.backend not in known:
        usual = sorted({*torch.compiler.list_backends(), "eager", "aot_eager"})
        close = difflib.get_close_matches(config.backend, known, n=1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        raise ConfigError(
            f"`{_FLAG}.backend={config.backend}` is no backend of torch.compile",
            f"{meant}this torch has {', '.join(usual)}",
        )
    if config.mode is not None:
        if config.backend != _INDUCTOR:
            raise ConfigError(
                f"`{_FLAG}.mode={config.mode}` is a mode of `{_INDUCTOR}`, and the backend is `{config.backend}`",
                f"leave out `{_FLAG}.mode`",
            )
        modes = list(torch._inductor.list_mode_options())
        if config.mode not in modes:
            raise ConfigError(
                f"`{_FLAG}.mode={config.mode}` is no mode of torch.compile", f"choose one of {', '.join(modes)}"
            )
    x = torch.ones(4, device=device, requires_grad=True)
    try:
        _compiled(_three_operations, config, dynamic=False)(x).backward()
    except (RuntimeError, ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"`{_FLAG}.enabled=true`: backend `{config.backend}` does not work on this machine: {_in_one_line(error)}",
            _remedy(config, device),
        ) from error


def _three_operations(x: Tensor) -> Tensor:
    return (x.sin() * 2).sum()


def _remedy(config: CompileConfig, device: torch.device) -> str:
    if config.backend == _INDUCTOR and device.type == "cpu":
        return f"it needs a C++ compiler (Debian, Ubuntu: `apt-get install g++`; `CXX` names another one); {_OFF}"
    if config.backend == _INDUCTOR:
        return f"on GPUs it needs the package triton and a C compiler; {_OFF}"
    return f"choose another `{_FLAG}.backend`; {_OFF}"


def _compiled(function: Callable[..., Any], config: CompileConfig, *, dynamic: bool) -> Callable[..., Any]:
    arguments: dict[str, Any] = {"backend": config.backend, "dynamic": dynamic}
    if config.backend == _INDUCTOR:
        # A mode is a name for options, and torch.compile takes either; this one keeps the random numbers of eager code.
        arguments["options"] = {**_mode_options(config.mode), "fallback_random": True}
    offered = inspect.signature(torch.compile).parameters
    # Older versions have one limit for all users of a function in the process, and 8 is what they allow.
    wishes = {"recompile_limit": _MOST_COMPILATIONS, "isolate_recompiles": True}
    arguments |= {name: value for name, value in wishes.items() if name in offered}
    return torch.compile(function, **arguments)


def _mode_options(mode: str | None) -> dict[str, Any]:
    if mode is None:
        return {}
    options: dict[str, Any] = torch._inductor.list_mode_options(mode)
    return options


class TrainingLoss:
    """Stands in a policy's `loss`: runs it, compiled or not, and says when something has been compiled.

    Args:
        policy: the policy.
        compiled: its whole loss, compiled; None: only layers are.
    """

    def __init__(self, policy: Policy, compiled: Callable[..., Any] | None) -> None:
        self.policy = policy
        self.compiled = compiled
        self._graphs, self._seconds = _spent()
        self._steps = 0

    def __call__(self, *inputs: Any, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """As the policy's `loss`.

        Raises:
            ConfigError: the compiler fails at this policy.
        """
        loss: Callable[..., Any] = type(self.policy).loss
        if not (self.policy.training and torch.is_grad_enabled()):
            return loss(self.policy, *inputs, **options)  # type: ignore[no-any-return]
        self._report()
        self._steps += 1
        try:
            return (self.compiled or loss)(self.policy, *inputs, **options)  # type: ignore[no-any-return]
        except _compiler_errors() as error:
            raise ConfigError(
                f"`{_FLAG}.enabled=true`: the compiler failed at policy `{self.policy.config.type_name}`: "
                f"{_in_one_line(error)}",
                _OFF,
            ) from error

    def _report(self) -> None:
        """The step before is over here, with its backward pass, which is compiled when it first runs."""
        graphs, seconds = _spent()
        if graphs > self._graphs:
            logger.info(
                "compiled %d %s in %.1f s of step %d%s",
                graphs - self._graphs,
                "graph" if graphs == self._graphs + 1 else "graphs",
                seconds - self._seconds,
                self._steps,
                "" if self._steps == 1 else ": its batch has other sizes than those before",
            )
        self._graphs, self._seconds = graphs, seconds


def _spent() -> tuple[int, float]:
    """Graphs that torch.compile has made in this process, and the seconds that it took."""
    from torch._dynamo import utils

    return utils.counters["stats"]["unique_graphs"], utils.calculate_time_spent().get("total_wall_time", 0.0)


def _compiler_errors() -> type[TorchDynamoException]:
    from torch._dynamo.exc import TorchDynamoException

    return TorchDynamoException


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1]) or type(error).__name__
    return text[:_SHOWN].rstrip(".")
