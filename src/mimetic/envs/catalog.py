"""Names of environments; importing this imports nothing else."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_PLANNED = {
    "aloha": "aloha",
    "gym_manipulator": "hilserl",
    "isaaclab_arena": "isaaclab",
    "libero": "libero",
    "libero_plus": "libero",
    "metaworld": "metaworld",
    "pusht": "pusht",
    "robocasa": "robocasa",
    "robomme": "robomme",
    "robotwin": "robotwin",
    "vlabench": "vlabench",
}
"""LeRobot's environments, and what of LeRobot each needs; their adapters come after this release."""

ENVS = Catalog(
    "environment",
    {
        "so101_cell": Entry(
            "mimetic.envs.gym:make_env",
            config="mimetic.envs.config:CellSuiteConfig",
            extra="sim",
            summary="A simulated SO-101 arm at a table: reach, push, pick and place, sort, stack",
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
