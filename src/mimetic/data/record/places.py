"""Where a new dataset goes."""

from __future__ import annotations

from pathlib import Path

from mimetic.data.record.journal import WORK_DIR, WorkFolder
from mimetic.errors import DatasetError
from mimetic.hub.locate import check_repo_id, lerobot_home


def dataset_folder(repo_id: str, root: Path | str | None) -> Path:
    """The folder of a dataset: `root`, else that of its name below `$HF_LEROBOT_HOME`.

    Raises:
        ConfigError: not a repository id.
    """
    check_repo_id(repo_id)
    return Path(root).expanduser() if root is not None else lerobot_home() / repo_id


def make_room(folder: Path) -> None:
    """Make sure that a folder does not exist; an empty one, or what a killed `create` left, is removed.

    Raises:
        DatasetError: there is something in it, or another process begins a dataset there.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir() or not _is_leftover(folder):
        raise DatasetError(
            f"`{folder}` exists already", "continue it with `DatasetWriter.resume`, or choose another name or folder"
        )
    if (folder / WORK_DIR).is_dir():
        WorkFolder(folder).close(remove=True)  # refused while the other process lives
    if (folder / "meta").is_dir():
        (folder / "meta").rmdir()
    folder.rmdir()


def _is_leftover(folder: Path) -> bool:
    """Whether a folder holds nothing but what `create` makes before the dataset has its info.json."""
    names = {path.name for path in folder.iterdir()}
    has_files = (folder / "meta").is_dir() and any((folder / "meta").iterdir())
    return names <= {WORK_DIR, "meta"} and not has_files
