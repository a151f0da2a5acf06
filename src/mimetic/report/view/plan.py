"""What a person wants changed, noted while looking: an edit plan. The viewer itself never edits a dataset."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.data.store.atomic import write_json
from mimetic.errors import ConfigError

FORMAT = "mimetic-edit-plan"
VERSION = 1
MOST_TEXT = 2000


@dataclass(frozen=True)
class EditPlan:
    """Episodes to delete and tasks to set.

    Args:
        delete: episode numbers, ascending.
        relabel: new task by episode.
        notes: remarks by episode.
    """

    delete: tuple[int, ...] = ()
    relabel: Mapping[int, str] = field(default_factory=dict)
    notes: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be changed."""
        return not self.delete and not self.relabel

    def commands(self, root: Path) -> list[str]:
        """The commands that carry the plan out, in order: tasks first, since deleting renumbers the episodes."""
        place = f"--root={shlex.quote(str(root))}"
        found = []
        kept = {episode: task for episode, task in self.relabel.items() if episode not in self.delete}
        if kept:
            tasks = json.dumps({str(episode): kept[episode] for episode in sorted(kept)}, ensure_ascii=False)
            value = shlex.quote(f"--operation.episode_tasks={tasks}")
            found.append(f"mimetic dataset edit {place} --operation.type=modify_tasks {value}")
        if self.delete:
            listed = ",".join(map(str, self.delete))
            value = shlex.quote(f"--operation.episode_indices=[{listed}]")
            found.append(f"mimetic dataset edit {place} --operation.type=delete_episodes {value}")
        return found

    def document(self, root: Path) -> dict[str, Any]:
        """The plan as JSON data."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "root": str(root),
            "delete": list(self.delete),
            "relabel": {str(episode): task for episode, task in sorted(self.relabel.items())},
            "notes": {str(episode): text for episode, text in sorted(self.notes.items())},
            "commands": self.commands(root),
        }


def parse_plan(data: Any, episodes: Sequence[int]) -> EditPlan:
    """Read a plan, from the page or from a file.

    Args:
        data: decoded JSON.
        episodes: numbers that exist.

    Raises:
        ConfigError: it is not a plan, or names episodes that are not there.
    """
    if not isinstance(data, Mapping):
        raise ConfigError("an edit plan is a JSON object with `delete` and `relabel`")
    known = set(episodes)
    delete = data.get("delete", [])
    if not isinstance(delete, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in delete):
        raise ConfigError(f"`delete` of the edit plan must be a list of episode numbers, not {delete!r:.60}")
    relabel, notes = _texts(data, "relabel"), _texts(data, "notes")
    unknown = sorted((set(delete) | set(relabel) | set(notes)) - known)
    if unknown:
        raise ConfigError(f"the edit plan names episodes that are not there: {unknown[:8]}")
    empty = [episode for episode, task in relabel.items() if not task.strip()]
    if empty:
        raise ConfigError(f"the new task of episode {empty[0]} is empty")
    return EditPlan(tuple(sorted(set(delete))), relabel, notes)


def save_plan(plan: EditPlan, root: Path, path: Path) -> None:
    """Write a plan, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, plan.document(root))


def _texts(data: Mapping[str, Any], name: str) -> dict[int, str]:
    values = data.get(name, {})
    if not isinstance(values, Mapping):
        raise ConfigError(f"`{name}` of the edit plan must be an object, not {values!r:.60}")
    found: dict[int, str] = {}
    for key, text in values.items():
        if not str(key).isdigit() or len(str(key)) > 12 or not isinstance(text, str) or len(text) > MOST_TEXT:
            raise ConfigError(f"`{name}` of the edit plan must give a text to an episode number, not {key!r:.40}")
        found[int(key)] = text
    return found
