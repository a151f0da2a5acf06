"""Flags that were given and change nothing, as the settings stand: said, so that nobody trusts in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mimetic.train.config import TrainConfig


@dataclass(frozen=True)
class _Rule:
    """Flags that do nothing while something else is not set.

    Args:
        flags: dotted names or patterns of them.
        switch: names that these patterns match and that do something anyway.
        because: what stands in the way and how to change it, after "no effect".
    """

    flags: tuple[str, ...]
    because: str
    switch: tuple[str, ...] = ()


def idle_flags(config: TrainConfig, origins: Mapping[str, str], device_type: str) -> list[str]:
    """One sentence for each reason why given flags change nothing; files are not looked at, since they hold everything.

    Args:
        config: settings as parsed, in which older precision flags have been translated.
        origins: where each setting comes from, by dotted flag.
        device_type: type of the device that computes, such as "cpu".
    """
    given = [name for name, origin in origins.items() if origin == "flag"]
    told: set[str] = set()
    sentences = []
    for rule in _rules(config, device_type):
        idle = [
            name
            for name in given
            if name not in told
            and name not in rule.switch
            and any(fnmatchcase(name, pattern) for pattern in rule.flags)
            and not _is_off(config, name)
        ]
        told.update(idle)
        if idle:
            sentences.append(f"{', '.join(f'--{name}' for name in sorted(idle))}: no effect {rule.because}")
    return sentences


def _is_off(config: TrainConfig, name: str) -> bool:
    """Whether the flag itself says "no", so that doing nothing is what it asks for."""
    value: object = config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value in (None, False, 0, "no", "none", "off", "disabled")


def _rules(config: TrainConfig, device_type: str) -> Iterator[_Rule]:
    yield from _save_rules(config)
    yield from _measure_rules(config)
    yield from _precision_rules(config, device_type)
    for group, patterns in (("wandb", ("wandb.*",)), ("trackio", ("trackio.*",))):
        if not getattr(config, group).enable:
            yield _Rule(patterns, f"without --{group}.enable=true")
    if config.on_bad_frame != "skip":
        yield _Rule(("max_bad_frames",), "without --on_bad_frame=skip")
    if not config.dataset.image_transforms.enable:
        yield _Rule(("dataset.image_transforms.*",), "without --dataset.image_transforms.enable=true")
    if config.cache.features == "off":
        yield _Rule(("cache.folder", "cache.variants"), "with --cache.features=off")
    if config.dataset.streaming:
        yield _Rule(("dataset.cache", "dataset.cache_*"), "with --dataset.streaming=true, which keeps no frames")
    else:
        yield _Rule(("dataset.buffer_size", "dataset.max_num_shards"), "without --dataset.streaming=true")
    if config.dataset.cache == "off":
        yield _Rule(("dataset.cache_*",), "with --dataset.cache=off")
    if not config.resume:
        yield _Rule(("reset_data_order", "reset_optimizer"), "without --resume=true")
    if config.env is None:
        yield _Rule(("eval.*", "env_eval_freq"), "without --env.type, an environment to evaluate in")
    elif config.env_eval_freq <= 0:
        yield _Rule(("eval.*", "env.*"), "with --env_eval_freq=0", ("env.type",))
    yield _Rule(("job.*",), "since remote jobs are not part of mimetic yet", ("job.target",))


def _save_rules(config: TrainConfig) -> Iterator[_Rule]:
    if not config.save_checkpoint:
        yield _Rule(
            ("keep.*", "save_freq", "save_checkpoint_to_hub", "requeue_exit_code"), "with --save_checkpoint=false"
        )
    policy = config.policy
    if policy is not None and not policy.push_to_hub and not config.save_checkpoint_to_hub:
        yield _Rule(("policy.repo_id", "policy.private"), "with --policy.push_to_hub=false")


def _measure_rules(config: TrainConfig) -> Iterator[_Rule]:
    if config.early_stop.patience == 0:
        yield _Rule(("early_stop.min_delta",), "without --early_stop.patience")
    if config.eval_steps <= 0:
        yield _Rule(("max_eval_samples",), "without --eval_steps")
    if not config.ema.enable:
        yield _Rule(("ema.*",), "without --ema.enable=true", ("ema.enable",))
        return
    if config.ema.decay is not None:
        yield _Rule(("ema.inv_gamma", "ema.power", "ema.min_decay", "ema.max_decay"), "with a constant --ema.decay")
    if config.eval_steps <= 0:
        yield _Rule(("ema.use_for_eval",), "without --eval_steps")


def _precision_rules(config: TrainConfig, device_type: str) -> Iterator[_Rule]:
    accelerator = config.accelerator
    if accelerator.mixed_precision != "fp16":
        yield _Rule(("accelerator.grad_scaler.*",), "without --accelerator.mixed_precision=fp16")
    elif not accelerator.grad_scaler.enabled:
        yield _Rule(("accelerator.grad_scaler.*",), "with --accelerator.grad_scaler.enabled=false")
    if not accelerator.compile.enabled:
        yield _Rule(
            ("accelerator.compile.*",), "without --accelerator.compile.enabled=true", ("accelerator.compile.enabled",)
        )
    if device_type != "cuda":
        yield _Rule(("tf32", "cudnn_deterministic"), f"on {device_type}; it is for GPUs of NVIDIA and AMD")
