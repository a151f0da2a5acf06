"""Names of optimisers and schedules (spec/training.md 1.4); importing this imports no torch."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_CONFIG = "mimetic.optim.config:"

OPTIMIZERS = Catalog(
    "optimizer",
    {
        "adam": Entry(config=_CONFIG + "AdamConfig", summary="Adam"),
        "adamw": Entry(config=_CONFIG + "AdamWConfig", summary="AdamW, decoupled weight decay"),
        "sgd": Entry(config=_CONFIG + "SGDConfig", summary="Stochastic gradient descent"),
        "multi_adam": Entry(),
        "xvla-adamw": Entry(),
        "molmoact2_adamw": Entry(),
    },
)

SCHEDULERS = Catalog(
    "scheduler",
    {
        "constant_with_warmup": Entry(config=_CONFIG + "ConstantWithWarmupConfig", summary="Warm-up, then constant"),
        "cosine_annealing_with_warmup": Entry(
            config=_CONFIG + "CosineAnnealingWithWarmupConfig", summary="Warm-up, then a cosine to zero"
        ),
        "cosine_decay_with_warmup": Entry(
            config=_CONFIG + "CosineDecayWithWarmupConfig", summary="Warm-up, then a cosine to a floor"
        ),
        "diffuser": Entry(config=_CONFIG + "DiffuserSchedulerConfig", summary="A named schedule of diffusers"),
        "vqbet": Entry(config=_CONFIG + "VQBeTSchedulerConfig", summary="Constant, warm-up, cosine"),
        "molmoact2_cosine_with_warmup": Entry(),
    },
)
