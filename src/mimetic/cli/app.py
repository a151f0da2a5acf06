"""`mimetic <command>`: the table of commands, and what every command shares (help, switches, errors, exit codes).

A command is a module with `main(argv: list[str], *, debug: bool) -> int`, where `argv` holds the flags after the
command's name. Its settings are a dataclass that the table names as "module:Class"; from it `--help` and
`--print_config` are answered here. A module may define `load_policy(place, revision)` for `--policy.path`, and
`with_preset(config, origins)` for what its settings become before they are used. Only the chosen command's module is
imported.

Exit codes: 0 done, 1 a known failure, 2 the command must change, 70 a bug of mimetic, 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mimetic.cli import output
from mimetic.errors import ConfigError, MimeticError

if TYPE_CHECKING:
    from types import ModuleType

HELP = ("-h", "--help")
SWITCHES = ("--debug", "--print_config")
EXIT_BUG = 70
_MACHINE = {
    errno.EACCES: "choose a place that you may read and write, or change its permissions",
    errno.EPERM: "choose a place that you may read and write, or change its permissions",
    errno.EROFS: "choose a place that can be written to",
    errno.ENOTDIR: "a part of the path before its end is a file; choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOSPC: "free some space, or choose a place on another disk",
    errno.EFBIG: "raise the limit of the size of files (`ulimit -f`), or choose a disk that holds files of this size",
    errno.EDQUOT: "free some space, or choose a place on another disk",
    errno.EIO: "the disk or its connection fails; see the system's log",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
}
"""Errors that the machine causes and not mimetic -> what to do."""
EXIT_INTERRUPTED = 130
_OTHER_NAMES = {"edit-dataset": "dataset edit", "dataset-viz": "dataset view"}
"""LeRobot's name of a command -> ours, where they differ."""


@dataclass(frozen=True)
class Command:
    """One row of the table of commands.

    Args:
        module: module that runs it.
        summary: one sentence for listings, no full stop.
        config: "module:Class" of its settings.
        example: flags of a typical call, for help and hints.
    """

    module: str
    summary: str
    config: str
    example: str = ""


COMMANDS: dict[str, Command] = {
    "train": Command(
        "mimetic.cli.train",
        "Train a policy on recorded demonstrations, or continue a run",
        "mimetic.train.config:TrainConfig",
        "--dataset.repo_id=me/pick --dataset.root=data/pick --policy.type=act --output_dir=outputs/pick",
    ),
    "eval": Command(
        "mimetic.cli.eval",
        "Count a policy's successes in simulation, or compare it with recordings",
        "mimetic.evaluate.config:EvalConfig",
        "--policy.path=outputs/pick --dataset.repo_id=me/pick --dataset.root=data/pick",
    ),
    "inspect": Command(
        "mimetic.cli.inspect",
        "Show what is inside a checkpoint: policy, features, statistics, weights, state",
        "mimetic.cli.inspect:InspectConfig",
        "--path=outputs/pick",
    ),
    "dataset info": Command(
        "mimetic.cli.dataset_info",
        "Show what a dataset holds: episodes, rate, tasks, cameras, features, statistics",
        "mimetic.cli.dataset_info:DatasetInfoConfig",
        "--root=data/pick",
    ),
    "dataset check": Command(
        "mimetic.cli.dataset_check",
        "Find what is wrong with a dataset before training does, and how to mend it",
        "mimetic.cli.dataset_check:DatasetCheckConfig",
        "--root=data/pick --policy.type=act",
    ),
    "dataset convert": Command(
        "mimetic.cli.dataset_convert",
        "Convert LeRobot v2.x to v3.0 and back, and HDF5, Zarr and MCAP recordings",
        "mimetic.data.convert.config:ConvertConfig",
        "--root=data/pick",
    ),
    "dataset edit": Command(
        "mimetic.cli.dataset_edit",
        "Delete, keep, split, merge, trim, rename, relabel, and encode or count again",
        "mimetic.cli.dataset_edit:DatasetEditConfig",
        "--root=data/pick --operation.type=delete_episodes --operation.episode_indices=[3] --new_root=data/pick_clean",
    ),
    "dataset repair": Command(
        "mimetic.cli.dataset_repair",
        "Mend what `mimetic dataset check` finds; only shows it without --apply=true",
        "mimetic.cli.dataset_repair:DatasetRepairConfig",
        "--root=data/pick --only=meta.data_file --apply=true",
    ),
    "dataset view": Command(
        "mimetic.cli.dataset_view",
        "Look at cameras, curves and findings on one time line; mark episodes",
        "mimetic.cli.dataset_view:DatasetViewConfig",
        "--root=data/pick",
    ),
    "demo": Command(
        "mimetic.cli.demo",
        "Record, check, plan, train and evaluate in the simulated cell, in minutes",
        "mimetic.demo.config:DemoConfig",
        "--task=pick_place --n_demonstrations=50 --n_episodes=100 --output_dir=outputs/demo",
    ),
    "demo record": Command(
        "mimetic.cli.demo_record",
        "Record demonstrations of a scripted operator in the simulated cell",
        "mimetic.cli.demo_record:DemoRecordConfig",
        "--repo_id=local/demo --root=data/demo --task=pick_place --n_episodes=50",
    ),
    "info": Command(
        "mimetic.cli.info",
        "Show versions, devices and decoders of this machine, ready to paste into an issue",
        "mimetic.cli.info:InfoConfig",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: words after `mimetic`; the process's own when absent.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    words, switches = _take_switches(words)
    debug = "--debug" in switches
    try:
        return _dispatch(words, switches, debug=debug)
    except MimeticError as error:
        if debug:
            _print_traceback()
        output.print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            _print_traceback()
        output.print_problem("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`mimetic ... | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            _print_traceback()
        if isinstance(error, OSError) and error.errno in _MACHINE:
            _report_machine(error)
            return MimeticError.exit_code
        _report_bug(error, debug=debug)
        return EXIT_BUG


def _dispatch(words: list[str], switches: set[str], *, debug: bool) -> int:
    if not words or words[0] in (*HELP, "help"):
        rest = words[1:]
        if rest and not rest[0].startswith("-") and words[0] == "help":
            return _dispatch([*rest, "--help"], switches, debug=debug)
        output.say(general_help())
        return 0
    if len(words) > 1 and words[1] in HELP and words[0] not in COMMANDS and (inside := _inside(words[0])):
        output.say(_group_help(words[0], inside))
        return 0
    if words[0] in ("--version", "-V"):
        from mimetic import __version__

        output.say(f"mimetic {__version__}")
        return 0
    name, argv = _split(words)
    command = COMMANDS[name]
    if any(word in HELP for word in argv):
        output.say(_command_help(name, command, argv))
        return 0
    if "--print_config" in switches:
        from mimetic.cli.print_config import print_config

        module = _load_module(command.module, name)
        return print_config(_load(command.config), argv, prog=f"mimetic {name}", module=module)
    from mimetic import log

    log.set_up(debug=debug)
    code = _load_module(command.module, name).main(argv, debug=debug)
    return int(code)


def _take_switches(words: list[str]) -> tuple[list[str], set[str]]:
    """Separate `--debug` and `--print_config`, which need no value, from the other words."""
    rest, found = [], set()
    for word in words:
        name, equals, value = word.partition("=")
        if name in SWITCHES and (not equals or value.lower() in ("true", "false")):
            if value.lower() != "false":
                found.add(name)
        else:
            rest.append(word)
    return rest, found


def _split(words: list[str]) -> tuple[str, list[str]]:
    """Name of the command (one or two words) and its own words."""
    for length in (2, 1):
        name = " ".join(words[:length])
        if len(words) >= length and name in COMMANDS:
            inside = _inside(name)
            if inside and words[length:] and not words[length].startswith("-"):
                hint = f"available: {', '.join(map(_quote, inside))}, and `{name}` alone"
                raise ConfigError(f"unknown command `{name} {words[length]}`", hint)
            return name, words[length:]
    # A LeRobot user may type the console script's name.
    plain = words[0].removeprefix("lerobot-").removeprefix("mimetic-")
    plain = _OTHER_NAMES.get(plain, plain)
    if plain in COMMANDS:
        raise ConfigError(f"unknown command `{words[0]}`", f"did you mean `mimetic {plain}`?")
    if words[0].startswith("-"):
        raise ConfigError(
            f"`{words[0]}` comes before a command", f"the command comes first: {', '.join(map(_quote, COMMANDS))}"
        )
    if inside := _inside(words[0]):
        given = f"unknown command `{' '.join(words[:2])}`" if words[1:] else f"`{words[0]}` needs a second word"
        raise ConfigError(given, f"available: {', '.join(map(_quote, inside))}")
    if words[0].startswith("lerobot-"):
        raise ConfigError(f"`{words[0]}` is not part of mimetic yet", f"commands: {', '.join(map(_quote, COMMANDS))}")
    from mimetic.catalog import closest_hint

    hint = closest_hint(words[0], COMMANDS)
    known = f"commands: {', '.join(map(_quote, COMMANDS))}"
    raise ConfigError(f"unknown command `{words[0]}`", f"{hint} See `mimetic --help`" if hint else known)


def _inside(word: str) -> list[str]:
    """Commands of two words that begin with `word`."""
    return [name for name in COMMANDS if name.startswith(word + " ")]


def _quote(name: str) -> str:
    return f"`{name}`"


def _listing(names: Iterable[str]) -> str:
    names = list(names)
    width = max(map(len, names)) + 2
    return "\n".join(f"  {name.ljust(width)}{COMMANDS[name].summary}" for name in names)


def _group_help(word: str, names: list[str]) -> str:
    return f"Usage: mimetic {word} COMMAND [--FLAG=VALUE ...]\n\nCommands\n{_listing(names)}"


def general_help() -> str:
    """The text of `mimetic --help`."""
    commands = _listing(COMMANDS)
    return f"""\
Usage: mimetic COMMAND [--FLAG=VALUE ...]

Teach robot arms from demonstrations, on the computer you own.

Commands
{commands}

Switches
  -h, --help [WORD ...]  Show help; after a command also its flags, filtered by words
  --version              Show the version
  --print_config         Show every setting of a command, its value and its origin, and stop
  --debug                Show debug messages, and tracebacks of errors

Flags are LeRobot's: what follows `lerobot-train` there follows `mimetic train` here."""


def _command_help(name: str, command: Command, argv: list[str]) -> str:
    from mimetic.config.help import format_help

    words, flags, after = [], [], False
    for word in argv:
        if word in HELP:
            after = True
        elif after and not word.startswith("-"):
            words.append(word)
        else:
            flags.append(word)
    text = format_help(
        _load(command.config),
        prog=f"mimetic {name}",
        summary=command.summary,
        example=command.example,
        argv=flags,
        words=words,
    )
    inside = _inside(name)
    return f"{text}\n\nCommands inside\n{_listing(inside)}" if inside and not words else text


def _load(target: str) -> Any:
    from mimetic.catalog import load_object

    return load_object(target)


def _load_module(module: str, name: str) -> ModuleType:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise MimeticError(f"`mimetic {name}` is not part of this installation of mimetic") from error
        raise


def _print_traceback() -> None:
    import traceback

    output.note(traceback.format_exc().rstrip())


def _report_machine(error: OSError) -> None:
    what = error.strerror or os.strerror(error.errno or 0)
    where = f"`{error.filename}`: " if error.filename is not None else ""
    output.print_problem(f"{where}{what[:1].lower()}{what[1:]}", _MACHINE[error.errno or 0])


def _report_bug(error: Exception, *, debug: bool) -> None:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    again = "" if debug else "run it again with `--debug` to see where, and "
    output.print_problem(
        f"mimetic failed unexpectedly: {what}",
        f"this is a bug of mimetic; {again}report it together with the output of `mimetic info`",
    )
