"""What the demo trains: a table of policies, and of steps by task. Nothing else in the demo knows a policy's flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimetic.demo.config import DemoConfig
from mimetic.errors import ConfigError

SMALL = "small"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one policy is trained in the cell.

    Args:
        words: the policy in a few words, with an article.
        type_name: `--policy.type` for whatever only needs to know the kind of policy.
        policy: flags that choose the policy and its size.
        training: further flags of `mimetic train`.
        places: episodes that the evaluation plays at once; 0 leaves it to the number of cores.
        steps: training steps by task.
        picture: width and height of a camera's picture [px].
        needs_gpu: whether nobody would want to wait for a CPU.
        cpu_takes: how long a CPU would take, in words.
        extra: package and extra that the policy needs; empty for none.
    """

    words: str
    type_name: str
    policy: tuple[str, ...]
    training: tuple[str, ...]
    steps: Mapping[str, int]
    places: int = 0
    picture: tuple[int, int] = (96, 96)
    needs_gpu: bool = False
    cpu_takes: str = ""
    extra: tuple[str, str] = ("", "")


RECIPES: dict[str, Recipe] = {
    SMALL: Recipe(
        words="a small ACT",
        type_name="act",
        policy=(
            "--policy.type=act",
            "--policy.pretrained_backbone_weights=null",
            "--policy.dim_model=128",
            "--policy.n_heads=4",
            "--policy.dim_feedforward=512",
            "--policy.n_encoder_layers=2",
            "--policy.use_vae=false",
            "--policy.pre_norm=true",
            "--policy.dropout=0",
            "--policy.chunk_size=20",
            "--policy.n_action_steps=10",
            "--policy.optimizer_lr=1e-3",
            "--policy.optimizer_lr_backbone=1e-4",
        ),
        training=("--batch_size=8", "--num_workers=1"),
        steps={"reach": 400, "push": 600, "pick_place": 800, "sort": 1000, "stack": 1000},
    ),
    "act": Recipe(
        words="ACT in its full size",
        type_name="act",
        policy=("--policy.type=act", "--policy.optimizer_lr=3e-5", "--policy.optimizer_lr_backbone=3e-5"),
        training=("--batch_size=32", "--num_workers=4"),
        steps={"reach": 10_000, "push": 15_000, "pick_place": 20_000, "sort": 30_000, "stack": 30_000},
        picture=(320, 240),
        needs_gpu=True,
        cpu_takes="a day or more",
    ),
    "smolvla": Recipe(
        words="SmolVLA, fine-tuned from lerobot/smolvla_base",
        type_name="smolvla",
        policy=("--policy.path=lerobot/smolvla_base",),
        training=("--batch_size=64", "--num_workers=4"),
        steps={"reach": 10_000, "push": 15_000, "pick_place": 20_000, "sort": 20_000, "stack": 20_000},
        picture=(256, 256),
        needs_gpu=True,
        cpu_takes="weeks",
        extra=("tokenizers", "smolvla"),
    ),
}


def recipe_of(config: DemoConfig) -> Recipe:
    """The recipe that the settings choose.

    Raises:
        ConfigError: there is none of that name.
    """
    name = config.real_size or SMALL
    if name not in RECIPES:
        raise ConfigError(f"`--real_size={name}` is no size; there are {', '.join(sorted(RECIPES.keys() - {SMALL}))}")
    return RECIPES[name]


def picture_of(config: DemoConfig) -> tuple[int, int]:
    """Width and height of the pictures [px]."""
    width, height = recipe_of(config).picture
    return config.width or width, config.height or height


def steps_of(config: DemoConfig) -> int:
    """Training steps."""
    return config.steps or recipe_of(config).steps[config.task]
