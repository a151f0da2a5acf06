"""Checkpoints in a repository of the hub: which is the newest complete one, and how it gets onto this machine.

A repository is a stranger's text: names are checked before anything is written, only files that cannot hold code are
fetched, and what arrives is compared with sizes and hashes before it gets its name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimetic.catalog import closest
from mimetic.errors import CheckpointError, CheckpointNotFound
from mimetic.hub.download import download_files, list_files
from mimetic.hub.locate import is_offline
from mimetic.hub.upload import POLICY_FILES
from mimetic.names import (
    ADAPTER_WEIGHTS,
    CHECKPOINTS_DIR,
    CONFIG_JSON,
    MIMETIC_JSON,
    PRETRAINED_DIR,
    RNG_STATE,
    TRAIN_CONFIG_JSON,
    TRAINING_STATE_DIR,
    TRAINING_STEP_JSON,
    WEIGHTS,
)

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")
_STEP = re.compile(rf"{CHECKPOINTS_DIR}/(\d{{1,18}})/(.+)", re.ASCII | re.DOTALL)
_NAME = re.compile(r"[\w.@+=-]{1,200}", re.ASCII)
_NEEDED = (
    f"{PRETRAINED_DIR}/{CONFIG_JSON}",
    f"{PRETRAINED_DIR}/{TRAIN_CONFIG_JSON}",
    f"{TRAINING_STATE_DIR}/{TRAINING_STEP_JSON}",
    f"{TRAINING_STATE_DIR}/{RNG_STATE}",
)
"""What every checkpoint of LeRobot has, besides weights and an optimiser's state."""
_LONGEST_MANIFEST = 5_000_000


@dataclass(frozen=True)
class RemoteCheckpoint:
    """One checkpoint on the hub.

    Args:
        repo_id: `user/name`.
        commit: the repository's state that was looked at; everything is fetched from it.
        name: folder name below `checkpoints/`.
        files: name below that folder -> size [bytes].
        manifest: name -> size and sha256 as mimetic wrote them; None for LeRobot's checkpoints.
    """

    repo_id: str
    commit: str
    name: str
    files: Mapping[str, int]
    manifest: Mapping[str, tuple[int, str]] | None

    @property
    def place(self) -> str:
        """Its folder in the repository."""
        return f"{CHECKPOINTS_DIR}/{self.name}"

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(self.files.values())

    def settings_folder(self) -> Path:
        """`pretrained_model` with the settings only, in the hub's cache on this machine.

        Raises:
            OfflineError: the network is forbidden or not there.
            HubError: the hub refuses.
        """
        wanted = [name for name in (TRAIN_CONFIG_JSON, MIMETIC_JSON) if f"{PRETRAINED_DIR}/{name}" in self.files]
        paths = [f"{self.place}/{PRETRAINED_DIR}/{name}" for name in wanted]
        return download_files(self.repo_id, paths, revision=self.commit) / self.place / PRETRAINED_DIR

    def download(self, folder: Path) -> Path:
        """Fetch it into `<folder>/checkpoints/<name>` and compare it with its manifest.

        Args:
            folder: a new folder; the caller gives it its name when all is there.

        Returns:
            The checkpoint's folder.

        Raises:
            OfflineError: the network is forbidden or not there.
            HubError: the hub refuses.
            CheckpointError: what arrived is not what the manifest or the listing says.
        """
        paths = [f"{self.place}/{name}" for name in self.files]
        download_files(self.repo_id, paths, revision=self.commit, into=folder)
        target = folder / self.place
        for name, size in self.files.items():
            self._compare(target / name, name, size)
        return target

    def _compare(self, path: Path, name: str, size: int) -> None:
        where = f"{self.place}/{name} of `{self.repo_id}`"
        if path.is_symlink() or not path.is_file():
            raise CheckpointError(f"{where} did not arrive as a file", "try again")
        wanted_size, wanted_hash = (self.manifest or {}).get(name, (size, ""))
        if path.stat().st_size != wanted_size:
            raise CheckpointError(
                f"{where} has {path.stat().st_size} bytes and should have {wanted_size}",
                "it was damaged on its way; try again",
            )
        if wanted_hash:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != wanted_hash:
                raise CheckpointError(
                    f"{where} has another content than when it was saved (sha256 {found[:12]}, not {wanted_hash[:12]})",
                    f"take an older one: `hf download {self.repo_id} --local-dir FOLDER`, then "
                    f"`--config_path=FOLDER/{CHECKPOINTS_DIR}/STEP`",
                )


def looks_like_hub_id(place: str) -> bool:
    """Whether a `--config_path` means a repository of the hub, which may be asked.

    It has the form of one, nothing of that name lies here, nor anything that it could be a misspelling of.
    """
    if not _HUB_ID.fullmatch(place) or ".." in place or place.endswith((".json", ".yaml", ".yml", ".toml")):
        return False
    if is_offline() or Path(place).exists():
        return False
    parent, name = Path(place).parent, Path(place).name
    return not (parent.is_dir() and closest(name, [path.name for path in parent.iterdir()]))


def newest_checkpoint(repo_id: str) -> tuple[RemoteCheckpoint, list[str]]:
    """The newest complete checkpoint of a repository, and what newer ones lack, one sentence each.

    Args:
        repo_id: `user/name`.

    Raises:
        CheckpointNotFound: there is none, or none is complete.
        CheckpointError: a name in the repository is dangerous.
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    commit, files = list_files(repo_id)
    steps: dict[str, dict[str, int]] = {}
    for path, size in files.items():
        match = _STEP.fullmatch(path)
        if match:
            steps.setdefault(match[1], {})[match[2]] = size
    lacks: list[str] = []
    for name in sorted(steps, key=int, reverse=True):
        wanted = {path: size for path, size in steps[name].items() if path.endswith(POLICY_FILES)}
        require_safe([f"{CHECKPOINTS_DIR}/{name}/{path}" for path in wanted], repo_id)
        wanted = {path: size for path, size in wanted.items() if not path.startswith(".") and "/." not in path}
        manifest = _manifest(repo_id, commit, name) if MIMETIC_JSON in wanted else None
        lack = _lack(wanted, manifest)
        if lack is None:
            return RemoteCheckpoint(repo_id, commit, name, wanted, manifest), lacks
        lacks.append(f"checkpoint {name} on the hub lacks {lack}")
    there = f": {'; '.join(lacks[:3])}" if lacks else f" (no `{CHECKPOINTS_DIR}/<step>`)"
    has_policy = CONFIG_JSON in files
    raise CheckpointNotFound(
        f"the hub's `{repo_id}` holds no complete checkpoint to resume from{there}",
        f"its policy can begin a new run: `--policy.path={repo_id}`"
        if has_policy
        else "a run pushes its checkpoints with `--save_checkpoint_to_hub=true`",
    )


def settings_file(repo_id: str) -> Path:
    """The `train_config.json` that a repository stands for: at its root, else of its newest checkpoint.

    What lies beside it in `mimetic.json` is fetched too.

    Raises:
        CheckpointNotFound: it has neither.
        CheckpointError: a name in the repository is dangerous.
        OfflineError: the network is forbidden or not there.
        HubError: the hub refuses.
    """
    commit, files = list_files(repo_id)
    folders = [""]
    steps = {m[1] for path in files if (m := _STEP.fullmatch(path)) and m[2] == f"{PRETRAINED_DIR}/{TRAIN_CONFIG_JSON}"}
    folders += [f"{CHECKPOINTS_DIR}/{name}/{PRETRAINED_DIR}/" for name in sorted(steps, key=int, reverse=True)[:1]]
    for folder in folders:
        if folder + TRAIN_CONFIG_JSON in files:
            wanted = [folder + name for name in (TRAIN_CONFIG_JSON, MIMETIC_JSON) if folder + name in files]
            return download_files(repo_id, wanted, revision=commit) / folder / TRAIN_CONFIG_JSON
    raise CheckpointNotFound(
        f"the hub's `{repo_id}` holds no {TRAIN_CONFIG_JSON}, neither at its root nor in a checkpoint",
        f"its policy can begin a new run: `--policy.path={repo_id}`" if CONFIG_JSON in files else "",
    )


def newest_policy(files: Sequence[str]) -> str | None:
    """Place in a repository of the newest checkpoint's policy, `checkpoints/<step>/pretrained_model`; None: none."""
    ending = f"{PRETRAINED_DIR}/{CONFIG_JSON}"
    steps = {m[1] for path in files if (m := _STEP.fullmatch(path)) and m[2] == ending}
    return f"{CHECKPOINTS_DIR}/{max(steps, key=int)}/{PRETRAINED_DIR}" if steps else None


def require_safe(paths: Sequence[str], repo_id: str) -> None:
    """Refuse names that could leave their folder or that another system reads differently.

    Raises:
        CheckpointError: names the first of them.
    """
    for path in paths:
        parts = path.split("/")
        if len(parts) > 8 or any(not _NAME.fullmatch(part) or part.endswith(".") for part in parts):
            raise CheckpointError(
                f"the hub's `{repo_id}` holds a file of the dangerous name {path[:200]!r}, so nothing is taken from it"
            )


def _manifest(repo_id: str, commit: str, name: str) -> dict[str, tuple[int, str]]:
    """Sizes and hashes in a checkpoint's own list; empty when it cannot be read."""
    place = f"{CHECKPOINTS_DIR}/{name}/{MIMETIC_JSON}"
    path = download_files(repo_id, [place], revision=commit) / place
    try:
        if path.stat().st_size > _LONGEST_MANIFEST:
            return {}
        files: Any = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {str(file): (int(entry["bytes"]), str(entry["sha256"])) for file, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _lack(files: Mapping[str, int], manifest: Mapping[str, tuple[int, str]] | None) -> str | None:
    """What a checkpoint lacks first; None: nothing."""
    if manifest is not None:
        if not manifest:
            return f"a readable {MIMETIC_JSON}"
        for name, (size, _) in manifest.items():
            if name not in files:
                return name
            if files[name] != size:
                return f"the whole of {name} ({files[name]} of {size} bytes)"
    for name in _NEEDED:
        if name not in files:
            return name
    if not any(f"{PRETRAINED_DIR}/{name}" in files for name in (WEIGHTS, ADAPTER_WEIGHTS)):
        return f"{PRETRAINED_DIR}/{WEIGHTS}"
    if not any("optimizer" in name for name in files):
        return "the optimiser's state"
    return None
