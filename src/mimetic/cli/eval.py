"""`mimetic eval`: how often a policy succeeds in an environment, or how close its actions are to recorded ones."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic.cli import output
from mimetic.cli.places import require_writable

if TYPE_CHECKING:
    from mimetic.evaluate.config import EvalConfig
    from mimetic.evaluate.result import OpenLoopResult

SUMMARY = "Count a policy's successes in an environment, or compare its actions with recorded episodes"


def main(argv: list[str], *, debug: bool) -> int:
    """Evaluate a policy, write the numbers and a report, and print a summary.

    Args:
        argv: words after the command's name.
        debug: show more; not used here.

    Returns:
        0.

    Raises:
        MimeticError: the command, the checkpoint, the dataset or the environment must change.
    """
    from mimetic.config.parse import parse
    from mimetic.evaluate.config import EvalConfig

    parsed = parse(EvalConfig, argv, prog="mimetic eval", load_policy=load_policy)
    for text in parsed.notes:
        output.note(f"note: {text}")
    config = with_output_dir(parsed.value)
    if config.env is not None:
        from mimetic.cli.eval_closed_loop import play

        return play(config, parsed.origins)
    from mimetic.evaluate.store import check_absent, save, to_document

    assert config.output_dir is not None
    check_absent(config.output_dir)
    require_writable(config.output_dir)
    from mimetic.evaluate.open_loop import evaluate_open_loop

    with progress_bar() as advance:
        result = evaluate_open_loop(config, origins=parsed.origins, on_progress=advance)
    written = save(result, config.output_dir)
    if config.report:
        from mimetic.report.open_loop import write_report

        written = write_report(config.output_dir)
    if config.json:
        output.say_json(to_document(result))
    else:
        show(result)
        output.say(f"{'Report' if config.report else 'Numbers'}: {written}")
    return 0


def load_policy(place: str, revision: str | None = None) -> Mapping[str, Any]:
    """Settings of the policy behind `--policy.path`: a folder, a run, or a hub id."""
    from mimetic.policies.own_settings import stored_settings

    return stored_settings(place, revision)


def with_output_dir(config: EvalConfig, now: datetime.datetime | None = None) -> EvalConfig:
    """Fill in the names that the user left open: `outputs/eval/<date>/<time>_<job_name>`.

    Args:
        config: settings as parsed.
        now: time of the evaluation; the current one without it.
    """
    assert config.policy is not None
    if config.output_dir is not None:
        return config
    job = config.job_name or f"{_subject(config)}_{config.policy.type_name}"
    moment = now or datetime.datetime.now()
    folder = Path("outputs") / "eval" / f"{moment:%Y-%m-%d}" / f"{moment:%H-%M-%S}_{job}"
    return replace(config, job_name=job, output_dir=folder)


def _subject(config: EvalConfig) -> str:
    """What is evaluated on, as part of a name."""
    if config.dataset is not None:
        return (config.dataset.repo_id or Path(config.dataset.root or "dataset").name).replace("/", "_")
    from mimetic.config.codec import choice_name
    from mimetic.envs.catalog import ENVS

    return choice_name(config.env, ENVS)


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr that counts predictions; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(result: OpenLoopResult) -> None:
    """Print the table and the verdict to stdout."""
    scores = result.numbers.scores
    rows = [
        (
            name,
            *(_number(scores.mae[source, index]) for source in range(3)),
            _number(scores.normalised[0, index]),
            _number(scores.skill_hold[index], "+.2f"),
            _number(scores.skill_mean[index], "+.2f"),
            _number(100 * scores.movement[index], ".0f"),
        )
        for index, name in enumerate(result.joints)
    ]
    total = (
        "all moving joints",
        "",
        "",
        "",
        _number(scores.overall[0]),
        _number(scores.overall_skill_hold, "+.2f"),
        _number(scores.overall_skill_mean, "+.2f"),
        _number(100 * scores.overall_movement, ".0f"),
    )
    headers = ("joint", "MAE", "hold MAE", "mean MAE", "error/std", "vs hold", "vs mean", "movement %")
    output.say_table(headers, [*rows, total])
    verdict = result.verdict
    output.say()
    output.say(output.paint(verdict.headline, "bold", sys.stdout))
    for line in verdict.findings:
        output.say(f"  {line}")
    for line in verdict.advice:
        output.say(f"  Try: {line[:1].lower()}{line[1:]}")
    output.say()
    for line in (result.choice.note, *verdict.caveats):
        output.say(f"Note: {line}")
    output.say()


def _number(value: float, form: str = ".4g") -> str | None:
    return f"{value:{form}}" if value == value and abs(value) != float("inf") else None
