"""`mimetic dataset repair`: mend what `mimetic dataset check` finds in the tables; dry unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.fields import setting

if TYPE_CHECKING:
    from mimetic.data.repair.run import RepairResult

SUMMARY = "Mend what `mimetic dataset check` finds in a dataset's tables; shows what it would do unless --apply=true"


@dataclass(frozen=True, kw_only=True)
class DatasetRepairConfig:
    """Settings of `mimetic dataset repair`; the folder may also stand alone, `mimetic dataset repair data/pick`."""

    repo_id: str = setting(
        "", "Name of the dataset; without a folder it is looked up as training does", layer="mimetic"
    )
    root: Path | None = setting(None, "Folder of the dataset", layer="mimetic")
    only: list[str] = setting(
        factory=list,
        help="Mend only these ids of `mimetic dataset check`, such as meta.data_file,stats.match",
        layer="mimetic",
    )
    apply: bool = setting(False, "Do it; otherwise only what would be done is shown", layer="mimetic")
    short_video: str = setting(
        "shorten",
        "Episodes whose footage ends before their rows: shorten leaves the last rows out, drop the whole episode",
        choices=("shorten", "drop"),
        layer="mimetic",
    )
    json: bool = setting(False, "Print JSON instead of text", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.root or self.repo_id else ["no dataset is named: `mimetic dataset repair --root=FOLDER`"]


def main(argv: list[str], *, debug: bool) -> int:
    """Show or do what mends a dataset.

    Args:
        argv: flags; a bare first word is the folder.
        debug: not used here.

    Returns:
        0, or 1 when something cannot be mended.

    Raises:
        MimeticError: anything that the user can mend.
    """
    from mimetic.cli.dataset_info import with_root_flag
    from mimetic.config.parse import parse

    words = with_only_list(with_root_flag(argv))
    config: DatasetRepairConfig = parse(DatasetRepairConfig, words, prog="mimetic dataset repair").value
    from mimetic.data.reader import find_dataset
    from mimetic.data.repair.run import repair

    root = config.root if config.root is not None else find_dataset(config.repo_id)
    result = repair(root, only=config.only, short_video=config.short_video, apply=config.apply)
    show(result, config)
    return 1 if result.left else 0


def with_only_list(argv: Sequence[str]) -> list[str]:
    """The words with `--only=a,b` written as the list that it is."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        if name == "--only" and equals and not value.startswith("["):
            word = f"--only=[{value}]"
        words.append(word)
    return words


def show(result: RepairResult, config: DatasetRepairConfig) -> None:
    """Print what was found, and what was or would be done."""
    if config.json:
        output.say_json(
            {
                "root": str(result.root),
                "applied": result.is_applied,
                "backup": None if result.backup is None else str(result.backup),
                "repairs": [
                    {"id": one.id, "message": one.message, "episodes": list(one.episodes), "mended": one.is_mended}
                    for one in result.repairs
                ],
            }
        )
        return
    for one in result.mended:
        output.say(f"{one.id}: {one.message}")
    for one in result.left:
        output.say(f"{one.id}: cannot be mended: {one.message}")
    if not result.mended:
        output.say("nothing to mend" if not result.left else "nothing was changed")
    elif not config.apply:
        output.say("nothing was changed; `--apply=true` does it")
    else:
        output.say(f"mended {len(result.mended)} faults of `{result.root}`")
        if result.backup is not None:
            output.say(f"every changed file is in `{result.backup}` as it was")
