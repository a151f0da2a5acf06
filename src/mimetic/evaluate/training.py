"""What a checkpoint says about the episodes it was trained on."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from mimetic.data.metadata import Metadata
from mimetic.data.reader import select_episodes
from mimetic.data.split import split_episodes
from mimetic.errors import ConfigError
from mimetic.evaluate.episodes import Training
from mimetic.names import TRAIN_CONFIG_JSON, TRAINING_STATE_DIR
from mimetic.train.state import MIMETIC_STATE_JSON

logger = logging.getLogger(__name__)


def read_training(folder: Path, metadata: Metadata, repo_id: str) -> Training | None:
    """Which episodes of a dataset were trained on, and which were held out.

    Args:
        folder: `pretrained_model` folder.
        metadata: of the dataset that is evaluated.
        repo_id: its name; may be empty.

    Returns:
        None when the checkpoint has no train_config.json with a dataset.
    """
    path = folder / TRAIN_CONFIG_JSON
    if not path.is_file():
        return None
    try:
        dataset = json.loads(path.read_text(encoding="utf-8"))["dataset"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read, so it is not known what the policy was trained on: %s", path, error)
        return None
    if not isinstance(dataset, dict):
        return None
    name, root = str(dataset.get("repo_id") or ""), dataset.get("root")
    is_same = bool(repo_id and name == repo_id) or (root is not None and _is_same_folder(Path(root), metadata.root))
    if not is_same:
        return Training(name or str(root), is_same=False)
    used = _select(metadata, dataset.get("episodes"), dataset.get("exclude_episodes"))
    try:
        fraction = float(dataset.get("eval_split") or 0.0)
        trained, held_out = split_episodes([metadata.episodes[number] for number in used], fraction)
    except (ConfigError, TypeError, ValueError):
        # The dataset is not what it was, or the share is nonsense: what is there counts as seen, the cautious answer.
        trained, held_out = used, []
    stored = _stored_train_episodes(folder)
    if stored is not None and stored != frozenset(trained):
        # The dataset has changed since (episodes were added or removed): the run's own record is right.
        trained, held_out = sorted(stored), [number for number in held_out if number not in stored]
    return Training(name or str(root), is_same=True, trained=frozenset(trained), held_out=frozenset(held_out))


def _is_same_folder(one: Path, other: Path) -> bool:
    try:
        return one.expanduser().resolve() == other.resolve()
    except OSError:
        return False


def _select(metadata: Metadata, episodes: Sequence[int] | None, excluded: Sequence[int] | None) -> list[int]:
    there = None if episodes is None else [number for number in episodes if number in metadata.episodes]
    if there is not None and not there:
        return []
    return [int(number) for number in select_episodes(metadata, there, excluded)]


def _stored_train_episodes(folder: Path) -> frozenset[int] | None:
    path = folder.parent / TRAINING_STATE_DIR / MIMETIC_STATE_JSON
    try:
        episodes = json.loads(path.read_text(encoding="utf-8"))["dataset"]["train_episodes"]
        return frozenset(int(number) for number in episodes)
    except (OSError, ValueError, KeyError, TypeError):
        return None
