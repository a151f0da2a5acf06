"""`mimetic dataset view`: look at a dataset, in a page of this machine or in rerun."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.errors import ConfigError
from mimetic.fields import setting

if TYPE_CHECKING:
    from mimetic.report.view.library import Library
    from mimetic.report.view.plan import EditPlan
    from mimetic.report.view.server import Viewing

SUMMARY = "Look at a dataset: cameras, curves and findings on one time line; mark episodes to delete or relabel"
MODES = ("auto", "web", "rerun", "local", "distant")
_SWITCHES = ("no_open", "public")


@dataclass(frozen=True, kw_only=True)
class DatasetViewConfig:
    """Settings of `mimetic dataset view`; the folder may also stand alone, `mimetic dataset view data/pick`."""

    repo_id: str = setting("", "Name of the dataset; without --root it is looked up as training does")
    root: Path | None = setting(None, "Folder of the dataset")
    episode_index: int | None = setting(None, "Episode shown at first; rerun shows this one only")
    mode: str = setting(
        "auto",
        "`web` serves a page on this machine, `rerun` opens rerun; `auto` and LeRobot's `local` take rerun only with "
        "--save, else the page",
        choices=MODES,
    )
    save: Path | None = setting(
        None, "Write an .rrd file for rerun here instead of opening anything (a folder, or 1 for ./<name>.rrd)"
    )
    output_dir: Path | None = setting(None, "Folder of the .rrd file of --save=1")
    web_port: int = setting(0, "Port of the page; 0 takes a free one")
    host: str = setting(
        "127.0.0.1", "Address to listen at; others than this machine's own need --public", layer="mimetic"
    )
    public: bool = setting(
        False,
        "Listen at an address that other machines reach; whoever has the page's address sees the dataset",
        layer="mimetic",
    )
    no_open: bool = setting(False, "Print the address, and open no browser", layer="mimetic")
    findings: Path | None = setting(
        None, "Findings to show: the output of `mimetic dataset check --json`", layer="mimetic"
    )
    check_level: str = setting(
        "quick",
        "What is checked while you look, without --findings: metadata (`quick`), also rows (`rows`), or nothing",
        choices=("quick", "rows", "none"),
        layer="mimetic",
    )
    plan: Path | None = setting(
        None, "Where the edit plan is saved; <name of the dataset>_edit_plan.json here without it", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        problems = []
        if self.root is None and not self.repo_id:
            problems.append("no dataset is named: `mimetic dataset view --root=FOLDER`")
        if self.mode == "distant":
            problems.append(
                "`--mode=distant` is not part of mimetic; `--mode=web` serves a page, which an ssh tunnel "
                "(`ssh -L 8000:127.0.0.1:8000 HOST`, with `--web_port=8000`) brings to another machine"
            )
        if self.mode == "web" and self.save is not None:
            problems.append("`--save` writes a file for rerun and does not go with `--mode=web`")
        if not 0 <= self.web_port <= 65535:
            problems.append(f"`--web_port={self.web_port}` must lie in 0 to 65535")
        if not self.public and not is_loopback(self.host):
            problems.append(
                f"`--host={self.host}` can be reached from other machines; say so with `--public=true`, or use an ssh "
                "tunnel to 127.0.0.1"
            )
        if self.output_dir is not None and self.save is None:
            problems.append("`--output_dir` goes with `--save=1`")
        return problems


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def main(argv: list[str], *, debug: bool) -> int:
    """Show a dataset until Ctrl-C, or write a file for rerun.

    Args:
        argv: flags; a bare first word is the folder, and `--no_open`, `--public` need no value.
        debug: not used here.

    Raises:
        MimeticError: the dataset cannot be opened, or rerun is not installed.
    """
    from mimetic.config.parse import parse

    config: DatasetViewConfig = parse(DatasetViewConfig, with_values(argv), prog="mimetic dataset view").value
    root = config.root
    if root is None:
        from mimetic.data.reader import find_dataset

        root = find_dataset(config.repo_id)
    from mimetic.report.view.library import Library

    library = Library(root)
    if not library.episodes:
        raise ConfigError(f"the dataset at `{root}` has no episode to show")
    if config.episode_index is not None and config.episode_index not in library:
        raise ConfigError(
            f"`--episode_index={config.episode_index}`: there is no such episode",
            f"the dataset has {len(library.episodes)}, from {library.episodes[0]} to {library.episodes[-1]}",
        )
    if config.mode == "rerun" or config.save is not None:
        return _rerun(config, library)
    return _serve(config, library)


def with_values(argv: Sequence[str]) -> list[str]:
    """The words with a leading bare path and bare switches written out."""
    from mimetic.cli.dataset_info import with_root_flag

    return [
        f"{word}=true" if word.removeprefix("--").replace("-", "_") in _SWITCHES else word
        for word in with_root_flag(argv)
    ]


def _rerun(config: DatasetViewConfig, library: Library) -> int:
    from mimetic.report.view.rerun_mode import show_in_rerun

    episodes = [config.episode_index if config.episode_index is not None else library.episodes[0]]
    save = None if config.save is None else rrd_path(config, library.name, episodes[0])
    if save is None and str(config.save) == "0":
        output.note("opening rerun")
    try:
        show_in_rerun(library, episodes, save=save)
    finally:
        library.close()
    if save is not None:
        output.say(str(save))
    return 0


def rrd_path(config: DatasetViewConfig, name: str, episode: int) -> Path | None:
    """Where the file for rerun goes; None when nothing is to be saved (`--save=0`, as LeRobot writes it)."""
    if config.save is None or str(config.save) == "0":
        return None
    if config.save.suffix == ".rrd":
        return config.save
    folder = config.output_dir or Path() if str(config.save) == "1" else config.save
    return folder / f"{name}_episode_{episode}.rrd"


def _serve(config: DatasetViewConfig, library: Library) -> int:
    import time

    from mimetic.report.view.marks import Marks, check_in_background, read_findings
    from mimetic.report.view.server import Viewing, ViewServer, serving

    marks = Marks()
    if config.findings is not None:
        marks.take(read_findings(config.findings), f"findings of {config.findings.name}")
    elif config.check_level != "none":
        check_in_background(library.root, config.check_level, marks)
    first = config.episode_index if config.episode_index is not None else library.episodes[0]
    plan_path = config.plan or Path(f"{library.name}_edit_plan.json")
    viewing = Viewing(library, marks, plan_path.absolute(), first)
    viewing.on_saved = lambda plan: _tell_plan(plan, viewing)
    try:
        server = ViewServer(viewing, host=config.host, port=config.web_port)
    except OSError as error:
        raise ConfigError(
            f"`--host={config.host} --web_port={config.web_port}` cannot be listened at: {error.strerror or error}",
            "choose another port, or 0 for a free one",
        ) from error
    with serving(server):
        output.say(server.url)
        output.note("Ctrl-C ends it. Keys: space, arrows, comma and point for frames, j and k for episodes, ? for all.")
        if config.public:
            output.note("note: whoever has this address can see the dataset; it travels unencrypted")
        if not config.no_open:
            _open_browser(server.url)
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:
            output.note("")
    return 0


def _tell_plan(plan: EditPlan, viewing: Viewing) -> None:
    output.note(f"edit plan saved to {viewing.plan_path}")
    for command in plan.commands(viewing.library.root):
        output.note(f"  {command}")


def _open_browser(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        output.note("no browser could be opened; open the address above yourself")
