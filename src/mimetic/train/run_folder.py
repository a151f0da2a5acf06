"""The folder that a run makes for itself: a name of its own even when many runs begin in the same second."""

from __future__ import annotations

import itertools
from pathlib import Path

from mimetic.errors import TrainingError


def free_name(wanted: Path) -> Path:
    """`wanted`, or with `-2`, `-3`, ... the first name that nothing has yet.

    The default name holds the time in seconds, which jobs of one array share, and which comes twice when a clock is set
    back.
    """
    names = (wanted if n == 1 else wanted.with_name(f"{wanted.name}-{n}") for n in itertools.count(1))
    return next(name for name in names if not _is_taken(name))


def make_run_folder(wanted: Path, *, may_choose: bool) -> Path:
    """Make the folder of a new run; of two runs that want the same one, only one gets it.

    Args:
        wanted: the folder.
        may_choose: whether another name will do (the program chose this one), or an existing folder is an error.

    Returns:
        The folder that was made.

    Raises:
        TrainingError: the folder exists, or cannot be made.
    """
    while True:
        folder = free_name(wanted) if may_choose else wanted
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            if may_choose and _is_taken(folder):  # by another run, just now
                continue
            raise TrainingError(
                f"{folder} was made by another run in the meantime" if folder.is_dir() else f"{folder} is a file",
                "choose another folder with `--output_dir`",
            ) from error
        except OSError as error:
            raise TrainingError(
                f"the run's folder {folder} cannot be made: {error.strerror or error}",
                "choose another place with `--output_dir`",
            ) from error
        return folder


def _is_taken(path: Path) -> bool:
    return path.is_symlink() or path.exists()
