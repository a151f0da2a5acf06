"""Learning-rate schedules as multipliers of each parameter group's own rate (spec/training.md 8).

s is the number of scheduler steps done: the first update uses lambda(0). T is the number of steps of the run, W the
warm-up, D the decay. The shapes, kinks included, are LeRobot's: a checkpoint continues on the same curve.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from mimetic.errors import ConfigError
from mimetic.optim.config import (
    ConstantWithWarmupConfig,
    CosineAnnealingWithWarmupConfig,
    CosineDecayWithWarmupConfig,
    DiffuserSchedulerConfig,
    SchedulerConfig,
    VQBeTSchedulerConfig,
)

logger = logging.getLogger(__name__)

Factor = Callable[[int], float]
_POLYNOMIAL_END = 1e-7
_NAMED = ("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup")


def make_scheduler(config: SchedulerConfig | None, optimizer: Optimizer, num_training_steps: int) -> LambdaLR | None:
    """Build the schedule of a run.

    Its state holds no function: the multipliers are plain functions, which `LambdaLR.state_dict` stores as null.

    Args:
        config: the schedule's settings; None: constant, no scheduler.
        optimizer: each group's rate at this moment is the group's base rate.
        num_training_steps: T.

    Raises:
        ConfigError: the settings name no possible schedule.
    """
    if config is None:
        return None
    first = optimizer.param_groups[0]
    factor = make_factor(config, num_training_steps, first.get("initial_lr", first["lr"]))
    if isinstance(config, CosineDecayWithWarmupConfig):
        _announce_scaling(config, num_training_steps)
    return LambdaLR(optimizer, factor)


def make_factor(config: SchedulerConfig, num_training_steps: int, base_lr: float) -> Factor:
    """The multiplier as a function of the scheduler step.

    Args:
        config: the schedule's settings.
        num_training_steps: T.
        base_lr: the first group's rate; only the polynomial shape reads it.

    Raises:
        ConfigError: the settings name no possible schedule.
    """
    total = num_training_steps
    if isinstance(config, CosineDecayWithWarmupConfig):
        if config.num_decay_steps < 1 or config.peak_lr <= 0:
            raise ConfigError(
                f"a cosine decay over {config.num_decay_steps} steps from a peak of {config.peak_lr:g} is no schedule",
                "set `--scheduler.num_decay_steps` to 1 or more and `--scheduler.peak_lr` above 0",
            )
        config = scale_to_run(config, total)
        alpha = config.decay_lr / config.peak_lr
        return _cosine_decay(config.num_warmup_steps, config.num_decay_steps, alpha)
    if isinstance(config, ConstantWithWarmupConfig):
        return _warmup_then(config.num_warmup_steps, _one)
    if isinstance(config, CosineAnnealingWithWarmupConfig):
        return _warmup_then(config.num_warmup_steps, _half_cosine(config.num_warmup_steps, total))
    if isinstance(config, VQBeTSchedulerConfig):
        return _vqbet(config, total)
    if isinstance(config, DiffuserSchedulerConfig):
        return _named(config, total, base_lr)
    raise ConfigError(
        f"there is no schedule for settings of type {type(config).__name__}", "choose another `--scheduler.type`"
    )


def scale_to_run(config: CosineDecayWithWarmupConfig, num_training_steps: int) -> CosineDecayWithWarmupConfig:
    """Shorten warm-up and decay in proportion when the run is shorter than the decay."""
    if num_training_steps >= config.num_decay_steps:
        return config
    factor = num_training_steps / config.num_decay_steps
    return CosineDecayWithWarmupConfig(
        num_warmup_steps=int(config.num_warmup_steps * factor),
        num_decay_steps=num_training_steps,
        peak_lr=config.peak_lr,
        decay_lr=config.decay_lr,
    )


def describe_schedule(config: SchedulerConfig | None, steps: int, base_lr: float) -> str:
    """One line on what the learning rate will do in a run.

    Args:
        config: the schedule's settings; None: constant.
        steps: updates of the run, T.
        base_lr: rate of the first parameter group.

    Raises:
        ConfigError: the settings name no possible schedule.
    """
    if config is None:
        return f"learning rate: constant at {base_lr:g}"
    factor = make_factor(config, steps, base_lr)
    shape = config.name if isinstance(config, DiffuserSchedulerConfig) else _SHAPES.get(type(config), "schedule")
    scaled = scale_to_run(config, steps) if isinstance(config, CosineDecayWithWarmupConfig) else config
    shortened = f" (shortened from {_decay_steps(config)})" if scaled is not config else ""
    warmup = _warmup_steps(scaled)
    parts = [f"learning rate: {shape} from {base_lr:g}", f"warm-up {warmup} steps" if warmup else "no warm-up"]
    floor = _floor(scaled, base_lr)
    last = base_lr * factor(max(steps - 1, 0))
    if floor is None:
        parts.append(f"last update at {last:.3g}")
        return ", ".join(parts)
    reached = _floor_step(scaled, steps)
    if reached <= steps and math.isclose(factor(reached), floor, abs_tol=1e-12):
        parts.append(f"floor {base_lr * floor:.3g} reached at step {reached} of {steps}{shortened}")
    else:
        parts.append(f"floor {base_lr * floor:.3g} not reached in this run: final lr {last:.3g}")
    return ", ".join(parts)


_SHAPES: dict[type[SchedulerConfig], str] = {
    CosineDecayWithWarmupConfig: "cosine decay",
    ConstantWithWarmupConfig: "constant",
    CosineAnnealingWithWarmupConfig: "cosine to zero",
    VQBeTSchedulerConfig: "constant, then cosine",
}


def _announce_scaling(config: CosineDecayWithWarmupConfig, num_training_steps: int) -> None:
    scaled = scale_to_run(config, num_training_steps)
    if scaled == config:
        return
    logger.info(
        "Auto-scaling LR scheduler: num_training_steps (%d) < num_decay_steps (%d). "
        "Scaling warmup: %d → %d, decay: %d → %d (scale factor: %.3f)",
        num_training_steps,
        config.num_decay_steps,
        config.num_warmup_steps,
        scaled.num_warmup_steps,
        config.num_decay_steps,
        scaled.num_decay_steps,
        num_training_steps / config.num_decay_steps,
    )


def _one(step: int) -> float:
    return 1.0


def _warmup_then(warmup: int, then: Factor) -> Factor:
    def factor(step: int) -> float:
        return step / max(1, warmup) if step < warmup else then(step)

    return factor


def _half_cosine(start: int, total: int, cycles: float = 0.5) -> Factor:
    def factor(step: int) -> float:
        progress = (step - start) / max(1, total - start)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))

    return factor


def _cosine_decay(warmup: int, decay: int, alpha: float) -> Factor:
    def factor(step: int) -> float:
        if step < warmup:
            if step <= 0:
                return 1 / (warmup + 1)
            return (1 / (warmup + 1) - 1) * (1 - step / warmup) + 1
        # Over the absolute step, not from the end of the warm-up: the peak is never quite reached.
        cosine = 0.5 * (1 + math.cos(math.pi * min(step, decay) / decay))
        return (1 - alpha) * cosine + alpha

    return factor


def _vqbet(config: VQBeTSchedulerConfig, total: int) -> Factor:
    after = _warmup_then(
        config.num_warmup_steps, _half_cosine(config.num_warmup_steps, total, cycles=config.num_cycles)
    )

    def factor(step: int) -> float:
        if step < config.num_vqvae_training_steps:
            return 1.0
        return after(step - config.num_vqvae_training_steps)

    return factor


def _named(config: DiffuserSchedulerConfig, total: int, base_lr: float) -> Factor:
    name, warmup = config.name, config.num_warmup_steps
    if name not in _NAMED:
        reason = "needs rules that no flag can give" if name == "piecewise_constant" else "is no schedule"
        raise ConfigError(f"`--scheduler.name={name}` {reason}", f"choose from {', '.join(_NAMED)}")
    if name == "constant":
        return _one
    if warmup is None:
        raise ConfigError(
            f"the schedule `{name}` needs a warm-up and `--scheduler.num_warmup_steps` is null",
            "set it, 0 for no warm-up",
        )
    shapes: dict[str, Factor] = {
        "constant_with_warmup": _one,
        "cosine": _half_cosine(warmup, total),
        "cosine_with_restarts": _restarts(warmup, total),
        "linear": _linear(warmup, total),
        "polynomial": _polynomial(warmup, total, base_lr),
    }
    return _warmup_then(warmup, shapes[name])


def _linear(warmup: int, total: int) -> Factor:
    def factor(step: int) -> float:
        return max(0.0, (total - step) / max(1, total - warmup))

    return factor


def _restarts(warmup: int, total: int) -> Factor:
    def factor(step: int) -> float:
        progress = (step - warmup) / max(1, total - warmup)
        return 0.0 if progress >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * (progress % 1.0))))

    return factor


def _polynomial(warmup: int, total: int, base_lr: float) -> Factor:
    def factor(step: int) -> float:
        if step > total:
            return _POLYNOMIAL_END / base_lr
        remaining = 1 - (step - warmup) / max(1, total - warmup)
        return ((base_lr - _POLYNOMIAL_END) * remaining + _POLYNOMIAL_END) / base_lr

    return factor


def _warmup_steps(config: SchedulerConfig) -> int:
    if isinstance(config, DiffuserSchedulerConfig) and config.name == "constant":
        return 0
    return int(getattr(config, "num_warmup_steps", 0) or 0)


def _floor(config: SchedulerConfig, base_lr: float) -> float | None:
    """Multiplier that the schedule ends at, None when it has no floor."""
    if isinstance(config, CosineDecayWithWarmupConfig):
        return config.decay_lr / config.peak_lr
    if isinstance(config, DiffuserSchedulerConfig) and config.name == "polynomial":
        return _POLYNOMIAL_END / base_lr
    if isinstance(config, ConstantWithWarmupConfig):
        return None
    if isinstance(config, DiffuserSchedulerConfig) and config.name.startswith("constant"):
        return None
    return 0.0


def _floor_step(config: SchedulerConfig, steps: int) -> int:
    if isinstance(config, CosineDecayWithWarmupConfig):
        return max(config.num_decay_steps, config.num_warmup_steps)
    if isinstance(config, VQBeTSchedulerConfig):
        return config.num_vqvae_training_steps + steps
    return steps


def _decay_steps(config: SchedulerConfig) -> int:
    return config.num_decay_steps if isinstance(config, CosineDecayWithWarmupConfig) else 0
