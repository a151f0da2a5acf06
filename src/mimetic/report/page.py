"""The open-loop report as one HTML page, without scripts and without anything from elsewhere.

Every text that comes from a dataset or checkpoint passes through `escape`.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape as plain_escape

from mimetic.report.charts import LINES, Charts
from mimetic.report.document import Document, Episode, Joint, Picture
from mimetic.report.style import page_style

LEVELS = {
    "good": ("✓", "better than both baselines"),
    "weak": ("≈", "not shown to be better than the baselines"),
    "bad": ("✕", "not good enough"),
    "unknown": ("?", "nothing can be told"),
}
ABLATIONS = {
    "blind": "error with blank cameras",
    "mute": "error without an instruction",
    "swap": "error with another task's instruction",
}
# The page needs nothing but itself; a browser is told so, whatever a name in the dataset contains.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def escape(text: str) -> str:
    """Text as HTML; a number and its per cent sign stay on one line."""
    return plain_escape(text).replace(" %", "&nbsp;%")


def render(document: Document, charts: Charts | None, why_none: str = "") -> str:
    """The page as text.

    Args:
        document: what was found.
        charts: its pictures; None when they cannot be drawn.
        why_none: in that case, why, and how to get them.
    """
    title = escape(f"Open-loop evaluation of {document.facts['checkpoint']}")
    body = [
        f"<h1>{title}</h1>",
        _verdict(document),
        _tiles(document),
        _reasons(document),
        _strip(document),
        _joints(document, has_charts=charts is not None),
        _absence(why_none) if charts is None else _summary_charts(charts),
        _episodes(document),
        "" if charts is None else _motion(document, charts),
        _provenance(document, has_charts=charts is not None),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{page_style()}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n</main></body></html>\n"
    )


def _verdict(document: Document) -> str:
    level = document.level if document.level in LEVELS else "unknown"
    sign, words = LEVELS[level]
    return (
        f'<section class="verdict {level}"><div class="sign" aria-hidden="true">{sign}</div>'
        f"<div><strong>{escape(document.headline)}</strong><span>Verdict by open-loop error: {words}</span></div>"
        "</section>"
    )


def _tiles(document: Document) -> str:
    overall, count = document.overall, len(document.episodes)
    seen = {True: "trained on", False: "not trained on", None: "may have been trained on"}[document.were_trained_on]
    predictions = f"{document.chunks} {'prediction' if document.chunks == 1 else 'predictions'}"
    tiles = [
        (_change(overall.skill_hold), "error against holding still", _changes(overall.skill_hold_interval)),
        (_change(overall.skill_mean), "error against the mean action", _changes(overall.skill_mean_interval)),
        (_percent(overall.movement_ratio), "of the recorded movement", "in predicted chunks"),
        (str(count), f"{'episode' if count == 1 else 'episodes'}, {seen}", predictions),
    ]
    for item in document.ablations:
        # The growth of the error is the negative of a skill, and so are its bounds, the other way around.
        low, high = item.growth_interval
        tiles.append((_change(-item.growth), ABLATIONS.get(item.name, item.name), _changes((-high, -low))))
    cells = (f'<div class="tile"><b>{a}</b>{escape(b)}<br><span>{escape(c)}</span></div>' for a, b, c in tiles)
    return f'<section class="tiles">{"".join(cells)}</section>'


def _reasons(document: Document) -> str:
    found = f"<h3>Findings</h3>{_list(document.findings)}" if document.findings else ""
    advice = f"<h3>What to try</h3>{_list(document.advice)}" if document.advice else ""
    limits = f"<h3>How far to trust this</h3>{_list((document.training_note, *document.caveats))}"
    left = f'<div class="card">{found}{advice}</div>' if found or advice else ""
    return f'<section class="columns">{left}<div class="card">{limits}</div></section>'


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_prose(line)}</li>' for line in lines)}</ul>"


def _prose(text: str) -> str:
    """A sentence as HTML; `words` between backticks are set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _strip(document: Document) -> str:
    if not document.pictures:
        return ""
    figures = "".join(_figure(picture, document.fps) for picture in document.pictures)
    return f'<h2>What the policy saw</h2><section class="strip">{figures}</section>'


def _figure(picture: Picture, fps: float) -> str:
    data = base64.b64encode(picture.jpeg).decode("ascii")
    words = escape(f"{picture.camera}, episode {picture.episode}, {picture.frame / fps:.1f} s")
    source = f"data:image/jpeg;base64,{data}"
    return f'<figure><img alt="{words}" src="{source}"><figcaption>{words}</figcaption></figure>'


def _joints(document: Document, *, has_charts: bool) -> str:
    joints, meaning = document.joints, document.meaning
    largest = max(
        (value for joint in joints for key, value in joint.error.items() if key != "mean" and math.isfinite(value)),
        default=1.0,
    )
    columns = {
        "joint": "",
        "MAE": meaning["mae"],
        "RMSE": meaning["rmse"],
        "error [σ]": meaning["error"],
        "policy / hold": "error of the policy above, of holding still below",
        "hold MAE": document.baselines["hold"],
        "mean MAE": document.baselines["mean"],
        "skill against hold": f"{meaning['skill']}; {meaning['interval']}",
        "against mean": meaning["skill"],
        "movement": meaning["movement_ratio"],
    }
    rows = [_joint(index, joint, largest, has_charts and bool(document.traces)) for index, joint in enumerate(joints)]
    note = (
        "MAE and RMSE are in the units of the dataset, errors in σ: "
        f"{meaning['scale']}. "
        "Skill is 1 for a perfect policy, 0 for one as good as the baseline, negative for a worse one; "
        f"in grey its interval ({meaning['interval']}). "
        f"{_sentence(document.baselines['hold'])} {_sentence(document.baselines['mean'])}"
    )
    return f'<h2>Joint by joint</h2><p class="note">{_prose(note)}</p>{_table(columns, [*rows, _total(document)])}'


def _table(columns: Mapping[str, str], rows: Sequence[str], css: str = "") -> str:
    head = "".join(f'<th title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in columns.items())
    return (
        f'<div class="card scroll"><table class="{css}"><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _row(cells: Sequence[str], css: str = "") -> str:
    """A table row; cells are HTML already."""
    opening = f'<tr class="{css}">' if css else "<tr>"
    return f"{opening}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _joint(index: int, joint: Joint, largest: float, has_plot: bool) -> str:
    name = f'<a href="#joint-{index}">{escape(joint.name)}</a>' if has_plot else escape(joint.name)
    cells = [
        name,
        _number(joint.mae["policy"]),
        _number(joint.rmse["policy"]),
        "never moves" if joint.is_still else _number(joint.error["policy"]),
        _bar(joint, largest),
        _number(joint.mae["hold"]),
        _number(joint.mae["mean"]),
        _skill_cell(joint.skill_hold, joint.skill_hold_interval),
        _skill(joint.skill_mean),
        _percent(joint.movement_ratio),
    ]
    return _row(cells, "still" if joint.is_still else "worse" if joint.is_worse else "")


def _total(document: Document) -> str:
    overall = document.overall
    cells = [
        "all moving joints",
        "",
        "",
        _number(overall.error["policy"]),
        "",
        "",
        "",
        _skill_cell(overall.skill_hold, overall.skill_hold_interval),
        _skill(overall.skill_mean),
        _percent(overall.movement_ratio),
    ]
    return _row(cells, "all")


def _skill_cell(skill: float, bounds: tuple[float, float]) -> str:
    known = all(math.isfinite(value) for value in bounds)
    interval = f" {_skill(bounds[0])} … {_skill(bounds[1])}" if known else ""
    return f'{_skill(skill)}<span class="range">{interval}</span>'


def _bar(joint: Joint, largest: float) -> str:
    if joint.is_still or largest <= 0:
        return ""
    policy, hold = (100 * joint.error[source] / largest for source in ("policy", "hold"))
    return (
        f'<span class="bar"><i class="p" style="width:{policy:.1f}%"></i>'
        f'<i class="h" style="width:{hold:.1f}%"></i></span>'
    )


def _absence(reason: str) -> str:
    return f'<h2>Charts</h2><div class="card"><p>{_prose(_sentence(reason))}</p></div>'


def _summary_charts(charts: Charts) -> str:
    parts = []
    if charts.error_by_joint:
        parts.append(
            '<h2>Error by joint</h2><p class="note">Further left is better. '
            "The line joins the policy with holding still.</p>"
            f'<div class="card scroll wide">{charts.error_by_joint}</div>'
        )
    if charts.error_by_steps_ahead:
        parts.append(
            '<h2>Error by steps ahead</h2><p class="note">How the error grows within a chunk, '
            "in σ, averaged over joints.</p>"
            f'<div class="card scroll wide">{charts.error_by_steps_ahead}</div>'
        )
    return "".join(parts)


def _episodes(document: Document) -> str:
    names = ("episode", "frames", "chunks", "error [σ]", "hold [σ]", "against hold", "against mean", "movement", "task")
    columns = dict.fromkeys(names, "")
    rows = [_row(_episode(item)) for item in document.episodes]
    return f"<h2>Episode by episode</h2>{_table(columns, rows, 'words-last')}"


def _episode(item: Episode) -> list[str]:
    return [
        str(item.episode),
        str(item.frames),
        str(item.chunks),
        _number(item.error["policy"]),
        _number(item.error["hold"]),
        _skill(item.skill_hold),
        _skill(item.skill_mean),
        _percent(item.movement_ratio),
        escape(item.task),
    ]


def _motion(document: Document, charts: Charts) -> str:
    signs = "".join(f'<span><i class="{line}"></i>{words}</span>' for line, words in LINES.items())
    parts = []
    for number, (trace, row) in enumerate(zip(document.traces, charts.motion, strict=True)):
        cards = []
        for index, picture in enumerate(row):
            place = f' id="joint-{index}"' if number == 0 else ""
            cards.append(f'<div class="card"{place}>{picture}</div>')
        grid = f'<div class="legend">{signs}</div><div class="grid2">{"".join(cards)}</div>'
        if number == 0:
            parts.append(
                f'<h2>Motion in episode {trace.episode}</h2><p class="note">A dot marks the frame at which the policy '
                f"looked; from there on it predicted without looking.</p>{grid}"
            )
        else:
            parts.append(f"<details><summary>Motion in episode {trace.episode}</summary>{grid}</details>")
    return "".join(parts)


def _provenance(document: Document, *, has_charts: bool) -> str:
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in document.facts.items())
    plots = ", the plots in the folder plots" if has_charts else ""
    return (
        f'<h2>Where this comes from</h2><div class="card"><dl>{rows}</dl></div>'
        f'<p class="note">All numbers are in open_loop.json and episodes.jsonl beside this page{plots}.</p>'
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:#.3g}"


def _skill(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if value < -99:
        return "&lt; −99"
    return f"{value:.2f}"[:5].rstrip(".").replace("-", "−")


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.1f} %" if 0 < value < 0.01 else f"{100 * value:.0f} %"


def _change(skill: float) -> str:
    """Skill as a change of the error: 0.6 is −60 %."""
    return f"{-100 * skill:+.0f} %".replace("-", "−") if math.isfinite(skill) else "–"


def _changes(bounds: tuple[float, float]) -> str:
    if not all(math.isfinite(value) for value in bounds):
        return "too few predictions for an interval"
    return f"95 % interval {_change(bounds[1])} to {_change(bounds[0])}"
