"""The card of a pushed dataset: a README.md that tells the hub what the files are (spec/dataset.md 14)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.hub.card import LICENSES, as_code, harmless, one_line, yaml_scalar
from mimetic.hub.upload import client

_MOST_TASKS = 20
_MARK = "<!-- This card is written anew with every push, unless this line is gone. -->"
_VIEWER = "https://huggingface.co/spaces/lerobot/visualize_dataset?path="


@dataclass(frozen=True, kw_only=True)
class DatasetCard:
    """What the card says.

    Args:
        repo_id: where the dataset goes.
        info: content of meta/info.json.
        tasks: instructions.
        license: of the recordings.
        tags: the user's own.
    """

    repo_id: str
    info: Mapping[str, Any]
    tasks: Sequence[str] = ()
    license: str = "apache-2.0"
    tags: Sequence[str] = ()


def dataset_card_text(card: DatasetCard) -> str:
    """The README.md of a dataset.

    Args:
        card: what it says; names, tasks and tags are text of strangers and can become neither markup nor YAML.
    """
    return "\n\n".join(["\n".join(["---", *_front_matter(card), "---"]), *_body(card), _MARK]) + "\n"


def is_written_by_hand(repo_id: str) -> bool:
    """Whether a repository has a card that this module did not write; such a card is kept.

    Raises:
        Exception: whatever the client raises, but that there is no card.
    """
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = client().hf_hub_download(repo_id, "README.md", repo_type="dataset")
    except EntryNotFoundError:
        return False
    return _MARK not in Path(path).read_text(encoding="utf-8", errors="replace")


def _front_matter(card: DatasetCard) -> list[str]:
    license = card.license.strip().lower()
    lines = [f"license: {yaml_scalar(license if license in LICENSES else 'other')}"]
    if license not in LICENSES:
        lines.append(f"license_name: {yaml_scalar(re.sub(r'[^a-z0-9.]+', '-', license).strip('-.') or 'other')}")
    robot = str(card.info.get("robot_type") or "")
    tags = dict.fromkeys(["LeRobot", *(one_line(tag) for tag in (*card.tags, robot))])
    lines += ["tags:", *(f"- {yaml_scalar(tag)}" for tag in tags if tag)]
    lines += ["task_categories:", "- robotics", "configs:", "- config_name: default", "  data_files: data/*/*.parquet"]
    return lines


def _body(card: DatasetCard) -> list[str]:
    info = card.info
    episodes, frames, fps = (info.get(key, 0) for key in ("total_episodes", "total_frames", "fps"))
    robot = f" of {harmless(str(info['robot_type']))}" if info.get("robot_type") else ""
    text = [
        f"# {harmless(card.repo_id.rpartition('/')[2])}",
        f"Demonstrations{robot} in the LeRobotDataset format {info.get('codebase_version', '')}: {episodes} episodes, "
        f"{frames} frames at {fps} a second. [Look at them in the browser]({_VIEWER}{card.repo_id}).",
        "Train on it with `mimetic train --dataset.repo_id="
        + card.repo_id
        + "`, or with LeRobot; both read it as it is.",
    ]
    tasks = [one_line(task) for task in card.tasks if one_line(task)]
    if tasks:
        more = f"\n- and {len(tasks) - _MOST_TASKS} more" if len(tasks) > _MOST_TASKS else ""
        text.append("## Tasks\n\n" + "\n".join(f"- {harmless(task)}" for task in tasks[:_MOST_TASKS]) + more)
    cameras = [name for name, entry in info.get("features", {}).items() if entry.get("dtype") in ("image", "video")]
    if cameras:
        text.append("## Cameras\n\n" + "\n".join(f"- {as_code(name)}" for name in cameras))
    content = json.dumps(info, indent=4, ensure_ascii=False)
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", content)), 3)
    text.append(f"## meta/info.json\n\n{fence}json\n{content}\n{fence}")
    return text
