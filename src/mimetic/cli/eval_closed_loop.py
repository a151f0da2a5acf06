"""`mimetic eval --env.type=...`: plays, shows how far it is, and prints what came out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.cli.places import require_writable
from mimetic.errors import Interrupted

if TYPE_CHECKING:
    from mimetic.evaluate.config import EvalConfig
    from mimetic.evaluate.rollout.run import ClosedLoopResult


def play(config: EvalConfig, origins: Mapping[str, str]) -> int:
    """Evaluate in an environment.

    Args:
        config: settings with `env` and `output_dir`.
        origins: where each setting comes from.

    Returns:
        0.

    Raises:
        MimeticError: the command, the checkpoint or the environment must change.
        Interrupted: Ctrl-C; what was played stays.
    """
    assert config.output_dir is not None
    require_writable(config.output_dir)
    from mimetic.evaluate.rollout.run import evaluate_closed_loop

    try:
        with _progress() as advance:
            result = evaluate_closed_loop(config, origins=origins, on_progress=advance)
    except KeyboardInterrupt as error:
        raise Interrupted(
            f"stopped by Ctrl-C; the finished episodes are in {config.output_dir}",
            f"the same command with `--resume=true --output_dir={config.output_dir}` goes on",
        ) from error
    written = result.folder
    if config.report:
        from mimetic.report.rollout import write_report

        written = write_report(result.folder)
    if config.json:
        output.say_json(result.document)
    else:
        show(result)
        output.say(f"{'Report' if config.report else 'Numbers'}: {written}")
        if config.eval.recording:
            output.say(
                f"Recordings: {result.folder / 'recordings'}, a dataset a task; `mimetic dataset check` reads them"
            )
    return 0


def show(result: ClosedLoopResult) -> None:
    """Print the table and the findings to stdout."""
    rows = [
        (
            rate.title,
            str(rate.n),
            str(rate.successes),
            f"{100 * rate.share:.0f}",
            f"{100 * rate.interval[0]:.0f} to {100 * rate.interval[1]:.0f}",
            None if rate.mean_length != rate.mean_length else f"{rate.mean_length:.0f}",
        )
        for rate in (*result.tasks, *result.splits, *([result.whole] if len(result.tasks) > 1 else []))
    ]
    output.say_table(("task", "episodes", "successes", "success %", "95 % interval", "ticks"), rows)
    output.say()
    output.say(output.paint(result.headline, "bold", sys.stdout))
    for line in result.findings:
        output.say(f"  {line}")
    output.say()
    for line in result.caveats:
        output.say(f"Note: {line}")
    output.say()


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None] | None]:
    """A bar on stderr that counts episodes; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stderr=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, words: bar.update(task, description=words, completed=done, total=total)
