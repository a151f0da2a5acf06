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
        halves: whether training on a CPU that multiplies bfloat16 uses it, which makes convolutions twice as fast.
        steps: training steps by task; without those that this policy cannot learn, since it reads no instruction.
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
    halves: bool = False
    places: int = 0
    picture: tuple[int, int] = (96, 96)
    needs_gpu: bool = False
    cpu_takes: str = ""
    extra: tuple[str, str] = ("", "")


RECIPES: dict[str, Recipe] = {
    SMALL: Recipe(
        words="a small keypoint policy",
        type_name="keypoint",
        policy=("--policy.type=keypoint",),
        training=("--batch_size=64", "--num_workers=1"),
        steps={"reach": 1500, "push": 3000, "pick_place": 4000, "stack": 4000},
        halves=True,
        places=2,
    ),
    "act": Recipe(
        words="ACT in its full size",
        type_name="act",
        policy=("--policy.type=act", "--policy.optimizer_lr=3e-5", "--policy.optimizer_lr_backbone=3e-5"),
        training=("--batch_size=32", "--num_workers=4"),
        steps={"reach": 10_000, "push": 15_000, "pick_place": 20_000, "stack": 30_000},
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


def require_task(config: DemoConfig) -> None:
    """Refuse a task that the policy cannot learn, whatever its number of steps.

    Raises:
        ConfigError: the instruction says what to do, and the policy reads none.
    """
    recipe = recipe_of(config)
    if config.task in recipe.steps:
        return
    readers = [name for name, other in RECIPES.items() if config.task in other.steps]
    raise ConfigError(
        f"`--task={config.task}` says only in its instruction what to do (which colour), and {recipe.words}, which "
        "this demo would train, reads no instruction",
        f"{' or '.join(f'`--real_size={name}`' for name in readers)} trains a policy that reads it, on a GPU; without "
        f"one choose another task: {', '.join(sorted(recipe.steps))}",
    )


def training_flags(config: DemoConfig, *, bf16: bool) -> tuple[str, ...]:
    """Flags of `mimetic train` beside the policy's.

    Args:
        config: settings.
        bf16: whether the training multiplies bfloat16.
    """
    return (*recipe_of(config).training, *(("--accelerator.mixed_precision=bf16",) if bf16 else ()))


def picture_of(config: DemoConfig) -> tuple[int, int]:
    """Width and height of the pictures [px]."""
    width, height = recipe_of(config).picture
    return config.width or width, config.height or height


def steps_of(config: DemoConfig) -> int:
    """Training steps."""
    return config.steps or recipe_of(config).steps[config.task]
