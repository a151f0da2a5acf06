"""`mimetic dataset convert`: older LeRobot datasets, and recordings of other programs, to a v3.0 dataset."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.cli.dataset_info import with_root_flag
from mimetic.errors import Interrupted

if TYPE_CHECKING:
    from pathlib import Path

    from mimetic.data.convert.config import ConvertConfig


def main(argv: list[str], *, debug: bool) -> int:
    """Convert a dataset and print the folder of the result to stdout.

    Args:
        argv: flags; a bare first word is the folder.
        debug: not used here.

    Returns:
        0.

    Raises:
        Interrupted: the user stopped it; what is finished is kept.
    """
    from mimetic.config.parse import parse
    from mimetic.data.convert.config import ConvertConfig
    from mimetic.data.convert.run import convert
    from mimetic.train.bar import progress_bar

    config: ConvertConfig = parse(ConvertConfig, with_root_flag(argv), prog="mimetic dataset convert").value
    if config.root is None:
        from mimetic.data.reader import find_dataset

        config = replace(config, root=find_dataset(config.repo_id))
    if config.push_to_hub:
        from mimetic.hub.upload import require_repo

        require_repo(config.repo_id, private=config.private, repo_type="dataset", flag="--repo_id")
    try:
        folder = convert(config, bar=progress_bar)
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        raise Interrupted(
            "the conversion was interrupted; what is finished is kept",
            f"go on with `mimetic dataset convert {shlex.join(argv)}`",
        ) from error
    output.say(str(folder))
    if config.push_to_hub:
        _push(folder, config)
    return 0


def _push(folder: Path, config: ConvertConfig) -> None:
    from mimetic.data.publish import push_dataset

    pushed = push_dataset(folder, config.repo_id, private=config.private)
    output.note(f"pushed to {pushed.repo_id}: {pushed.n_files} files, tagged {pushed.tag}")
