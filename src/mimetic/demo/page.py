"""The demo's own page: result, films, learning curve, times and commands; it links to the pages of single steps.

It has no scripts and loads nothing: films are inside it, so that it can be sent to somebody.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mimetic import __version__
from mimetic.data.store.atomic import write_bytes
from mimetic.demo.config import DemoConfig
from mimetic.demo.plan import time_words
from mimetic.demo.recipes import recipe_of
from mimetic.demo.state import State
from mimetic.demo.steps import Step, check_page, eval_folder, in_one_line, run_folder, shown
from mimetic.names import METRICS_JSONL
from mimetic.report.page import escape
from mimetic.report.style import page_style

PAGE = "report.html"
_POLICY = "default-src 'none'; media-src data:; style-src 'unsafe-inline'"
_MOST_FILMS, _LARGEST_FILM = 6, 1_500_000
_FAILURES = 2
"""Films of failures that are shown where there are some; the rest are successes."""
_STYLE = """
.films { display:grid; grid-template-columns:repeat(auto-fill,minmax(340px,1fr)); gap:12px }
.films figure { margin:0; padding:10px 12px }
.films video { width:100%; display:block; border-radius:6px; background:var(--rule) }
.films figcaption { margin-top:6px; display:flex; gap:10px; align-items:center; font-size:13px }
.chip { display:inline-block; border-radius:9px; padding:0 9px; font-size:12.5px; font-weight:600 }
.curve { width:100%; height:auto; display:block }
.curve text { fill:var(--muted); font:12px system-ui,sans-serif }
.curve polyline { fill:none; stroke:var(--policy); stroke-width:1.6 }
.curve line { stroke:var(--rule) }
pre { margin:6px 0 14px; padding:10px 14px; overflow-x:auto; background:var(--page); border-radius:8px;
  font:12.5px/1.45 ui-monospace,monospace }
td:last-child, th:last-child { padding-right:12px }
"""
Table = tuple[Sequence[str], Sequence[Sequence[str | None]]]


def write_page(
    config: DemoConfig, steps: Sequence[Step], state: State, document: Mapping[str, Any], table: Table
) -> Path:
    """Make the page of a finished demo.

    Args:
        config: settings.
        steps: of the demo.
        state: how they went.
        document: closed_loop.json of the evaluation.
        table: headers and rows, predicted against real.

    Returns:
        Its path.

    Raises:
        OSError: it cannot be written.
    """
    folder = config.output_dir
    title = escape(f"mimetic demo: {config.task}")
    body = (
        f"<h1>{title}</h1>",
        _verdict(document),
        _tiles(config, state, document),
        _links(config),
        _films(eval_folder(config)),
        _times(table),
        _curve(_losses(run_folder(config) / METRICS_JSONL)),
        _commands(steps),
        f'<p class="note">Made by mimetic {escape(__version__)}; all numbers are in the files beside this page.</p>',
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{page_style()}{_STYLE}</style>"
    )
    text = (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n</main></body></html>\n"
    )
    write_bytes(folder / PAGE, text.encode("utf-8"))
    return folder / PAGE


def _verdict(document: Mapping[str, Any]) -> str:
    share = document["overall"]["pc_success"]
    level, sign = "unknown", "?"
    if share is not None:
        level, sign = ("good", "✓") if share >= 80 else ("weak", "≈") if share >= 30 else ("bad", "✕")
    return (
        f'<section class="verdict {level}"><div class="sign" aria-hidden="true">{sign}</div>'
        f"<div><strong>{escape(str(document['headline']))}</strong>"
        "<span>Counted in simulation, from positions that no demonstration began at. "
        "A policy of the simulated cell does not carry over to a real arm by itself.</span></div></section>"
    )


def _tiles(config: DemoConfig, state: State, document: Mapping[str, Any]) -> str:
    overall = document["overall"]
    low, high = overall["interval"]
    share = overall["pc_success"]
    seconds = sum(one.seconds for one in state.steps.values())
    cores = os.cpu_count() or 1
    tiles = (
        ("–" if share is None else f"{share:.0f} %", "success", f"95 % interval {low:.0f} to {high:.0f} %"),
        (str(config.n_demonstrations), "demonstrations", f"of {config.task}"),
        (time_words(seconds), "in all", f"{recipe_of(config).words}, {cores} processor cores"),
    )
    cells = (f'<div class="tile"><b>{escape(a)}</b>{escape(b)}<br><span>{escape(c)}</span></div>' for a, b, c in tiles)
    return f'<section class="tiles">{"".join(cells)}</section>'


def _links(config: DemoConfig) -> str:
    pages = (
        (eval_folder(config) / "report.html", "every episode in pictures"),
        (check_page(config), "what the check found in the demonstrations"),
    )
    links = [
        f'<a href="{escape(path.relative_to(config.output_dir).as_posix())}">{escape(words)}</a>'
        for path, words in pages
        if path.is_file()
    ]
    return f"<p>More: {' and '.join(links)}.</p>" if links else ""


def _films(folder: Path) -> str:
    lines = (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    filmed = [one for one in map(json.loads, lines) if one.get("video") and one.get("run") == "policy"]
    failed = [one for one in filmed if not one["success"]]
    succeeded = [one for one in filmed if one["success"]]
    failed = failed[: max(_FAILURES, _MOST_FILMS - len(succeeded))]
    figures = [
        figure
        for one in (*succeeded[: _MOST_FILMS - len(failed)], *failed)
        if (figure := _film(folder, one)) is not None
    ]
    if not figures:
        return ""
    note = "Front and wrist camera of the first episodes. The others are in the report of every episode."
    return f'<h2>What it looks like</h2><p class="note">{note}</p><section class="films">{"".join(figures)}</section>'


def _film(folder: Path, one: Mapping[str, Any]) -> str | None:
    path = (folder / str(one["video"])).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file() or path.stat().st_size > _LARGEST_FILM:
        return None
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    level, word = ("good", "success") if one["success"] else ("bad", "failure")
    words = escape(f"episode {one['episode']}, {one['length']} ticks")
    return (
        f'<figure class="card"><video controls autoplay muted loop playsinline preload="metadata" '
        f'src="data:video/mp4;base64,{data}"></video>'
        f'<figcaption><span class="chip {level}">{word}</span><span>{words}</span></figcaption></figure>'
    )


def _times(table: Table) -> str:
    headers, rows = table
    head = "".join(f"<th>{escape(name)}</th>" for name in headers)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(cell or '–')}</td>" for cell in row)
        lines.append(f'<tr class="all">{cells}</tr>' if row[0] == "all" else f"<tr>{cells}</tr>")
    note = (
        "Predictions come from a dozen training steps and two seconds of play, measured before the rest began. An "
        "evaluation ends earlier the more often the policy succeeds, so it has a range. Memory: the largest process."
    )
    return (
        f'<h2>Predicted and real</h2><p class="note">{escape(note)}</p><div class="card scroll"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _losses(path: Path) -> list[tuple[int, float]]:
    """Step and mean loss of each window; steps that were lost to an interruption and done again count once."""
    points: list[tuple[int, float]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one.get("kind") == "resume":
            points = [(step, loss) for step, loss in points if step <= int(one["steps"])]
        elif one.get("kind") == "train" and isinstance(one.get("loss"), (int, float)):
            points.append((int(one["steps"]), float(one["loss"])))
    return points


def _curve(points: Sequence[tuple[int, float]]) -> str:
    """Loss over steps as an SVG line."""
    if len(points) < 2:
        return ""
    width, height, left, bottom = 860, 220, 64, 26
    last, most, least = points[-1][0], max(loss for _, loss in points), min(loss for _, loss in points)
    span = most - least or 1.0
    dots = " ".join(
        f"{left + (width - left - 10) * step / last:.1f},{10 + (height - bottom - 20) * (most - loss) / span:.1f}"
        for step, loss in points
    )
    base = height - bottom - 10
    return (
        '<h2>Learning</h2><p class="note">The loss of the training, mean of each window of steps.</p><div class="card">'
        f'<svg class="curve" viewBox="0 0 {width} {height}" role="img" aria-label="Loss over training steps">'
        f'<line x1="{left}" y1="10" x2="{width - 10}" y2="10"/><line x1="{left}" y1="{base}" x2="{width - 10}" '
        f'y2="{base}"/><polyline points="{dots}"/>'
        f'<text x="{left - 8}" y="14" text-anchor="end">{most:.3g}</text>'
        f'<text x="{left - 8}" y="{base + 4}" text-anchor="end">{least:.3g}</text>'
        f'<text x="{left}" y="{height - 8}">step 0</text>'
        f'<text x="{width - 10}" y="{height - 8}" text-anchor="end">{last:,}</text></svg></div>'
    )


def _commands(steps: Sequence[Step]) -> str:
    parts = []
    for step in steps:
        ran = "\n".join(shown(words) for words in step.commands)
        own = "\n".join(shown(words, program) for program, *words in map(shlex.split, step.own))
        parts.append(
            f"<h3>{step.number}. {escape(step.title)}</h3><p>{escape(step.why)}</p><pre>{escape(ran)}</pre>"
            f'<p class="note">The same for your own arm:</p><pre>{escape(own)}</pre>'
        )
    again = escape(in_one_line(("demo", "--help")))
    return f'<h2>Every step, to type yourself</h2><div class="card">{"".join(parts)}</div><p><code>{again}</code></p>'
