"""Names of environments for evaluation during training; none is part of mimetic yet."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

ENVIRONMENTS = Catalog(
    "environment",
    {
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
)
