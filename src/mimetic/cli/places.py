"""Whether a command may write where it is asked to, found out before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from mimetic.errors import ConfigError


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made; makes nothing.

    Args:
        folder: folder that the command will make, with the folders above it.

    Raises:
        ConfigError: a file stands in the way, or the nearest folder that exists takes no new ones.
    """
    above = folder.absolute().parent
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise ConfigError(f"`--output_dir={folder}` cannot be made: `{above}` is a file", "choose another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(
            f"`--output_dir={folder}` cannot be made: `{above}` cannot be written to",
            "choose another folder, or change the permissions of that one",
        )
