"""Names of environments; importing this imports nothing else."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_PLANNED = {
    "gym_manipulator": "hilserl",
    "isaaclab_arena": "isaaclab",
    "libero_plus": "libero",
    "robocasa": "robocasa",
    "robomme": "robomme",
    "robotwin": "robotwin",
    "vlabench": "vlabench",
}
"""LeRobot's other environments, and what of LeRobot each needs; their adapters come after this release."""

ENVS = Catalog(
    "environment",
    {
        "so101_cell": Entry(
            "mimetic.envs.gym:make_env",
            config="mimetic.envs.config:CellSuiteConfig",
            extra="sim",
            summary="A simulated SO-101 arm at a table: reach, push, pick and place, sort, stack",
        ),
        "aloha": Entry(
            "mimetic.envs.aloha.env:make_env",
            config="mimetic.envs.aloha.config:AlohaConfig",
            extra="aloha",
            summary="gym-aloha: two arms insert a peg or hand over a cube",
        ),
        "libero": Entry(
            "mimetic.envs.libero.env:make_env",
            config="mimetic.envs.libero.config:LiberoConfig",
            extra="libero",
            summary="LIBERO: 130 tasks of a Panda arm, in words",
        ),
        "metaworld": Entry(
            "mimetic.envs.metaworld.env:make_env",
            config="mimetic.envs.metaworld.config:MetaWorldConfig",
            extra="metaworld",
            summary="Meta-World: 50 tasks of a Sawyer arm",
        ),
        "pusht": Entry(
            "mimetic.envs.pusht.env:make_env",
            config="mimetic.envs.pusht.config:PushTConfig",
            extra="pusht",
            summary="gym-pusht: push a T-shaped block onto its outline",
        ),
        **{
            name: Entry(summary=f"`lerobot-eval` plays in it, with LeRobot's `{package}`")
            for name, package in _PLANNED.items()
        },
    },
)
"""What `--env.type` may be. The settings of a name are those of an evaluation, which may play in several tasks; its
target makes a `gymnasium.Env` of one of them.
"""
