"""One dataset on the hub, file by file: its metadata at once, everything else when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mimetic.hub.download import dataset_commit, download_dataset_file, download_snapshot
from mimetic.hub.locate import cached_snapshot
from mimetic.names import INFO_JSON


@dataclass(frozen=True)
class HubDataset:
    """A dataset of which some files are here.

    They lie in a cache of their own: in LeRobot's, a folder with some of the files would pass for the whole dataset.

    Args:
        repo_id: `user/name`.
        commit: the commit that all files are of.
        folder: folder of the files that are here.
        cache: folder of the cache.
    """

    repo_id: str
    commit: str
    folder: Path
    cache: Path

    @classmethod
    def open(cls, repo_id: str, revision: str | None = None, *, cache: Path) -> HubDataset:
        """Fetch the metadata.

        Args:
            repo_id: `user/name`.
            revision: branch, tag or commit; without it the tag that fits v3.0 best, else an older readable one.
            cache: folder that gets the files.

        Raises:
            OfflineError: the network is forbidden or not there.
            HubError: the hub refuses.
        """
        commit = dataset_commit(repo_id, revision)
        folder = download_snapshot(repo_id, "dataset", revision=commit, cache=cache, allow_patterns=["meta/*"])
        return cls(repo_id, commit, folder, cache)

    @classmethod
    def fetched(cls, repo_id: str, revision: str | None = None, *, cache: Path) -> HubDataset | None:
        """What is here of a dataset (arguments as `open`); None when not even its metadata are."""
        folder = cached_snapshot(repo_id, "dataset", revision, cache)
        if folder is None or not (folder / INFO_JSON).is_file():
            return None
        return cls(repo_id, folder.name, folder, cache)

    def fetch(self, name: str) -> None:
        """Fetch one file by its name in the repository, unless it is here.

        Raises:
            OfflineError: the network is not there.
            HubError: the hub refuses, or has no such file.
        """
        download_dataset_file(self.repo_id, name, revision=self.commit, cache=self.cache)
