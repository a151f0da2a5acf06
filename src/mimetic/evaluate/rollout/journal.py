"""episodes.jsonl: one line a finished episode, so that an interrupted evaluation goes on where it stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from mimetic.data.store.atomic import write_bytes
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.play import Episode

EPISODES = "episodes.jsonl"
VOLATILE = ("wall_s", "policy_s", "latency_ms")
"""Fields that differ from one run to the next; the rest is the same for the same seed, policy and environment."""
_NAMES = [field.name for field in fields(Episode)]
_REQUIRED = {name for name in _NAMES if name not in ("latency_ms", "video", "strip")}


class Journal:
    """Appends episodes to the file of an evaluation.

    Args:
        folder: of the evaluation; it exists.

    Raises:
        ConfigError: the file holds something else.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EPISODES
        self.episodes = read_episodes(folder)
        self.rewrite(self.episodes)  # without the line that a kill may have torn

    def add(self, episode: Episode) -> None:
        """Write an episode, and see it on the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(episode))
            file.flush()
            os.fsync(file.fileno())
        self.episodes.append(episode)

    def rewrite(self, episodes: Iterable[Episode]) -> None:
        """Replace the file by these episodes, in this order."""
        self.episodes = list(episodes)
        write_bytes(self.path, "".join(map(_line, self.episodes)).encode("utf-8"))


def read_episodes(folder: Path) -> list[Episode]:
    """Episodes of an evaluation, whole lines only; empty where there is no file.

    Raises:
        ConfigError: a line is not an episode.
    """
    path = folder / EPISODES
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines[:-1], start=1):  # what follows the last line end was torn by a kill
        try:
            data = json.loads(line)
            if _REQUIRED - set(data):
                raise ValueError(f"it has no `{min(_REQUIRED - set(data))}`")
            known = {name: data[name] for name in _NAMES if name in data}
            found.append(Episode(**{**known, "latency_ms": tuple(known.get("latency_ms", ()))}))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"line {number} of {path} is not an episode of an evaluation in an environment: {error}",
                "choose another `--output_dir`",
            ) from error
    return found


def _line(episode: Episode) -> str:
    return json.dumps(asdict(episode), ensure_ascii=False) + "\n"
