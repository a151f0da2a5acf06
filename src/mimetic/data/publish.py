"""Datasets to and from the hub; nothing here runs unless a repository was named (spec/dataset.md 14)."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mimetic.data.metadata import Metadata
from mimetic.data.record.journal import WORK_DIR, recover
from mimetic.data.store.beside import FolderBuild
from mimetic.data.store.tables import read_raw_info
from mimetic.errors import ConfigError, DatasetError, HubError, MimeticError
from mimetic.hub.dataset_card import DatasetCard, dataset_card_text, is_written_by_hand
from mimetic.hub.download import download_dataset
from mimetic.hub.upload import Push, is_transient, push, reason, require_no_secret, require_repo, retry_after

logger = logging.getLogger(__name__)

FILES = {"meta": (".json", ".jsonl", ".parquet"), "data": (".parquet",), "videos": (".mp4",)}
"""Folders of a dataset that are sent, and the endings of their files; nothing else is."""
CARD = "README.md"
_ATTEMPTS = 4
_PAUSE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What `push_dataset` did.

    Args:
        repo_id: repository.
        commit: hash of the commit.
        n_files: files in it.
        n_bytes: their size.
        tag: tag on the commit; empty without.
    """

    repo_id: str
    commit: str
    n_files: int
    n_bytes: int
    tag: str


def dataset_files(root: Path, *, videos: bool = True) -> dict[str, Path]:
    """Files of a dataset that would be pushed: name in the repository -> file; no links, nothing hidden.

    Args:
        root: folder of the dataset.
        videos: whether the videos go along.
    """
    found: dict[str, Path] = {}
    for folder, endings in FILES.items():
        if folder == "videos" and not videos:
            continue
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            is_plain = path.is_file() and not path.is_symlink() and not any(p.startswith(".") for p in name.parts)
            if is_plain and path.suffix in endings:
                found[name.as_posix()] = path
    return found


def push_dataset(
    root: Path | str,
    repo_id: str,
    *,
    private: bool | None = None,
    license: str = "apache-2.0",
    tags: Sequence[str] = (),
    videos: bool = True,
    tag_version: bool = True,
    progress: Callable[[], None] = lambda: None,
    flag: str = "--repo_id",
) -> Pushed:
    """Push a dataset to the hub as one commit; the repository shows all of it or what it showed before.

    A README.md in the folder is the card; without one a card is written, unless the repository has one that somebody
    wrote by hand. Files of an earlier push that the dataset no longer has are removed there.

    Args:
        root: folder of the dataset.
        repo_id: `user/name`; there is no default.
        private: whether a new repository shall be private; None leaves it to the account's default.
        license: for the card.
        tags: for the card.
        videos: whether the videos go along.
        tag_version: put the tag of the format (`v3.0`) on the commit, by which LeRobot finds it.
        progress: called whenever a file has arrived.
        flag: what the user named the repository with, for messages.

    Raises:
        DatasetError: it is no dataset that can be read, it is being recorded, or a recording of it was interrupted.
        ConfigError: no name, no login, no right to write, or a file holds what looks like a token.
        OfflineError, HubError: the hub cannot be reached or fails.
    """
    root = Path(root).expanduser()
    if not repo_id:
        raise ConfigError("no repository was named, and none is taken by itself", f"give `{flag}=USER/NAME`")
    for sentence in recover(root):
        logger.warning("%s: %s", root, sentence)
    metadata = Metadata.open(root)
    if (root / WORK_DIR).exists():
        raise DatasetError(f"`{root}` is being recorded", "end the recording first")
    files = dataset_files(root, videos=videos)
    info = read_raw_info(root)
    card = DatasetCard(repo_id=repo_id, info=info, tasks=list(metadata.tasks.values()), license=license, tags=tags)
    more = {} if (root / CARD).is_file() else {CARD: dataset_card_text(card).encode()}
    if not more:
        files[CARD] = root / CARD
    require_no_secret({**files, **more})
    logger.info("%s", require_repo(repo_id, private=private, repo_type="dataset", flag=flag))
    tag = metadata.version if tag_version else ""
    job = Push(
        files=files,
        repo_id=repo_id,
        message=f"{metadata.total_episodes} episodes, {metadata.total_frames} frames",
        more=more,
        tag=tag,
        replaces=lambda name: name.split("/")[0] in FILES and (videos or not name.startswith("videos/")),
        repo_type="dataset",
    )
    commit = _patiently(lambda: _push_once(job, progress), repo_id, flag)
    n_bytes = sum(path.stat().st_size for path in files.values())
    return Pushed(repo_id=repo_id, commit=commit, n_files=len(files) + len(more), n_bytes=n_bytes, tag=tag)


def pull_dataset(repo_id: str, root: Path | str, *, revision: str | None = None) -> Path:
    """Fetch a dataset into a folder of its own.

    The download itself goes through `$HF_LEROBOT_HOME/hub`, where an interrupted one goes on; the folder appears when
    everything is there and its metadata can be read.

    Args:
        repo_id: `user/name`.
        root: folder to make; must not exist.
        revision: branch, tag or commit; without it the tag that fits v3.0 best.

    Raises:
        DatasetError: the folder exists, or what came is no dataset.
        OfflineError, HubError: the hub cannot be reached or refuses.
    """
    root = Path(root).expanduser()
    with FolderBuild(root) as build:
        source = download_dataset(repo_id, revision)
        for path in sorted(source.rglob("*")):
            name = path.relative_to(source)
            # A snapshot is made of links into the cache; whoever changed a linked file would change the cache.
            if path.is_file() and (name.parts[0] in FILES or name.as_posix() == CARD):
                target = build.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        Metadata.open(build.folder)
        build.commit()
    return root


def _push_once(job: Push, progress: Callable[[], None]) -> str:
    if CARD in job.more and is_written_by_hand(job.repo_id):
        job = replace(job, more={})
    return push(job, progress=progress)


def _patiently(work: Callable[[], str], repo_id: str, flag: str) -> str:
    """Do it, again after failures that may pass; what has arrived is not sent twice."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return work()
        except MimeticError:
            raise
        except Exception as error:  # the edge to a third-party client: its errors differ between releases
            if attempt == _ATTEMPTS or not is_transient(error):
                raise HubError(
                    f"`{flag}={repo_id}`: the dataset could not be pushed ({reason(error)})",
                    "the repository is as it was; push again, and what has arrived is not sent twice",
                ) from error
            pause = max(retry_after(error), _PAUSE_S * 2 ** (attempt - 1))
            logger.warning("pushing to %s failed (%s); trying again in %.0f s", repo_id, reason(error), pause)
            time.sleep(pause)
    raise AssertionError("unreachable")
