"""`modify_tasks`: instructions are changed frame by frame, not episode by episode (spec/dataset.md 15, 20.4)."""

from __future__ import annotations

from collections.abc import Sequence

from mimetic.catalog import closest_hint
from mimetic.data.edit.config import ModifyTasksConfig
from mimetic.data.edit.episodes import Plans, require_episodes
from mimetic.data.edit.plan import keep_all, lay_out
from mimetic.data.edit.source import EditSource
from mimetic.errors import ConfigError


def plan_modify_tasks(sources: Sequence[EditSource], config: ModifyTasksConfig) -> Plans:
    """A frame's task: that of its episode, else the replacement of its old one, else the new one, else the old one.

    Raises:
        ConfigError: episodes or tasks that do not exist; all of them are named.
    """
    source = sources[0]
    of_episode = {int(str(key)): text for key, text in (config.episode_tasks or {}).items()}
    require_episodes(source, list(of_episode), "episode_tasks")
    replacements = dict(config.task_replacements or {})
    known = list(source.metadata.tasks.values())
    unknown = [text for text in replacements if text not in known]
    if unknown:
        raise ConfigError(
            f"`--operation.task_replacements` names {', '.join(f'`{text}`' for text in unknown[:5])}; "
            f"`{source.root}` has no such task",
            closest_hint(unknown[0], known) or f"its tasks are {', '.join(f'`{text}`' for text in known[:5])}",
        )

    def rule(episode: int, task: str) -> str:
        if episode in of_episode:
            return of_episode[episode]
        if task in replacements:
            return replacements[task]
        return task if config.new_task is None else config.new_task

    plan = keep_all(source, config.type_name)
    plan.task_rule, plan.sort_tasks = rule, True
    lay_out(plan)
    return [("", plan)]
