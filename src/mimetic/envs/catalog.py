"""Names of environments; importing this imports nothing else."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

ENVS = Catalog(
    "environment",
    {
        "so101_cell": Entry(
            "mimetic.envs.gym:make_env",
            config="mimetic.envs.config:CellConfig",
            extra="sim",
            summary="A simulated SO-101 arm at a table: reach, push, pick and place, sort, stack",
        ),
        **{
            name: Entry()
            for name in (
                "aloha",
                "gym_manipulator",
                "isaaclab_arena",
                "libero",
                "libero_plus",
                "metaworld",
                "pusht",
                "robocasa",
                "robomme",
                "robotwin",
                "vlabench",
            )
        },
    },
)
