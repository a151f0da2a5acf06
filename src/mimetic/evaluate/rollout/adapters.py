"""Which function makes an environment's tasks from its settings, by the environment's name (`envs/catalog.py`)."""

from __future__ import annotations

from typing import Any

from mimetic.catalog import Catalog, Entry
from mimetic.config.codec import choice_name
from mimetic.envs.catalog import ENVS
from mimetic.evaluate.rollout.environment import EnvTask

ADAPTERS = Catalog(
    "environment",
    {
        "so101_cell": Entry("mimetic.evaluate.rollout.cell:cell_tasks", extra="sim"),
        "aloha": Entry("mimetic.evaluate.rollout.packages:aloha_tasks", extra="aloha"),
        "libero": Entry("mimetic.evaluate.rollout.packages:libero_tasks", extra="libero"),
        "metaworld": Entry("mimetic.evaluate.rollout.packages:metaworld_tasks", extra="metaworld"),
        "pusht": Entry("mimetic.evaluate.rollout.packages:pusht_tasks", extra="pusht"),
    },
)


def open_tasks(settings: Any) -> list[EnvTask]:
    """The tasks that an environment's settings (`--env.*`) name; none is opened yet.

    Raises:
        ConfigError: the environment has no adapter.
        MissingExtra: a package that it needs is not installed.
    """
    tasks: list[EnvTask] = ADAPTERS.load(choice_name(settings, ENVS))(settings)
    return tasks
