"""What success depends on, as a picture: one row a split or missing input, its change of success with its interval.

A forest plot of boxes placed by the style sheet: it needs no script, follows the width of the page, and its words stay
words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mimetic.report.page import escape

STYLE = """
.forest { display:grid; grid-template-columns:minmax(150px,max-content) minmax(200px,1fr) max-content; gap:7px 16px;
  align-items:center; font-size:13.5px; font-variant-numeric:tabular-nums }
.forest .name b { font-weight:600 }
.forest .name span,.forest .axis { color:var(--muted); font-size:12.5px }
.forest .plot { position:relative; height:22px; border-right:1px solid var(--rule);
  background:linear-gradient(90deg,var(--rule) 1px,transparent 1px) 0 0/25% 100% }
.forest .plot u { position:absolute; left:50%; top:-4px; bottom:-4px; width:2px; margin-left:-1px;
  background:var(--muted); opacity:.55 }
.forest .plot i { position:absolute; top:9px; height:4px; border-radius:2px; background:currentColor; opacity:.55 }
.forest .plot b { position:absolute; top:5px; width:12px; height:12px; margin-left:-6px; background:currentColor }
.forest .depends .plot b { transform:rotate(45deg) }
.forest .possible .plot b { transform:rotate(45deg) scale(.8); background:var(--card); border:3px solid }
.forest .unclear .plot b { border-radius:6px }
.below { margin-bottom:14px }
.forest .row { display:contents }
.forest .depends .plot { color:var(--bad) }
.forest .possible .plot { color:var(--weak) }
.forest .unclear .plot,.forest .unknown .plot { color:var(--unknown) }
.forest .opposite .plot { color:var(--good) }
.forest .value { text-align:right; white-space:nowrap }
.forest .value span { color:var(--muted) }
.forest .axis { position:relative; height:18px }
.forest .axis span { position:absolute; transform:translateX(-50%); white-space:nowrap }
.forest .axis span:first-child { transform:none }
.forest .axis span:last-child { transform:translateX(-100%) }
@media(max-width:760px) {
  .forest { grid-template-columns:1fr max-content; gap:2px 10px; grid-auto-flow:row dense }
  .forest .name { grid-column:1 }
  .forest .value { grid-column:2; align-self:start }
  .forest .plot,.forest .axis { grid-column:1 / -1; margin-bottom:9px }
  .forest .blank { display:none }
}
"""
_INPUTS = {
    "blind": ("without pictures", "every camera shows its mean colour"),
    "mute": ("without instruction", "the text is empty"),
    "swap": ("wrong instruction", "the text is another task's"),
}
_VERDICTS = {"better": "depends", "unclear": "unclear", "worse": "opposite"}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the picture.

    Args:
        name: what was changed.
        words: what that means.
        verdict: "depends", "possible", "unclear", "unknown", "opposite".
        change: of the success rate [points]; negative where the change costs successes; None without an episode.
        interval: of it [points].
    """

    name: str
    words: str
    verdict: str
    change: float | None
    interval: tuple[float, float]


def dependence(document: Mapping[str, Any]) -> str:
    """The section of a page; empty where nothing was compared.

    Args:
        document: closed_loop.json.
    """
    rows = _rows(document)
    if not rows:
        return ""
    reading = document.get("reading") or ""
    lead = f"<p><strong>{escape(reading)}.</strong></p>" if reading else ""
    note = (
        "Change of the success rate in points, with its 95 % interval: left of the line success is lower. A red "
        "diamond is a dependence that the exact test finds, an open one a possible dependence; a grey dot is one that "
        "was not found, which does not prove that there is none."
    )
    axis = "".join(f'<span style="left:{50 + tick / 2:g}%">{_signed(tick)}</span>' for tick in (-100, -50, 0, 50, 100))
    body = "".join(_line(row) for row in rows)
    return (
        f'<h2>What success depends on</h2>{lead}<p class="note">{escape(note)}</p>'
        f'<div class="card below"><div class="forest">{body}<div class="blank"></div>'
        f'<div class="axis" aria-hidden="true">{axis}</div><div class="blank"></div></div></div>'
    )


def shift_rows(document: Mapping[str, Any]) -> list[tuple[list[str], str]]:
    """Cells of the table of comparisons between splits, and the style of each row."""
    rows = [(_cells(one, one["split"]), "all" if document.get("shifts_by_task") else "") for one in document["shifts"]]
    rows += [(_cells(one, f"{one['task']}, {one['split']}"), "") for one in document.get("shifts_by_task", ())]
    return rows


def _cells(one: Mapping[str, Any], title: str) -> list[str]:
    low, high = one["difference_interval"]
    return [
        title,
        f"{one['successes']} of {one['n_episodes']}",
        one["reference"],
        f"{one['reference_successes']} of {one['reference_n_episodes']}",
        _signed(one["difference"]),
        f"{_signed(low)} to {_signed(high)}",
        _p(one["p_value"]),
        _p(one["p_corrected"]),
        "\u2013" if one["detectable"] is None else f"{one['detectable']:.0f}",
    ]


def _rows(document: Mapping[str, Any]) -> list[Row]:
    rows = []
    for one in document.get("shifts", ()):
        low, high = one["difference_interval"]
        # Of an easier split the row shows what its absence costs.
        sign = 1 if one["is_harder"] else -1
        change = None if one["difference"] is None else sign * one["difference"]
        interval = (low, high) if sign > 0 else (-high, -low)
        pair = (one["reference"], one["split"]) if sign < 0 else (one["split"], one["reference"])
        rows.append(
            Row(
                name=pair[0],
                words=f"against {pair[1]}",
                verdict=one["verdict"],
                change=change,
                interval=interval,
            )
        )
    for one in document["differences"]:
        if one["run"] in _INPUTS:
            name, words = _INPUTS[one["run"]]
            low, high = one["difference_interval"]
            change = None if one["difference"] is None else -one["difference"]
            verdict = _VERDICTS.get(one.get("verdict", "unclear"), "unclear")
            rows.append(Row(name=name, words=words, verdict=verdict, change=change, interval=(-high, -low)))
    return rows


def _line(row: Row) -> str:
    low, high = (min(100.0, max(-100.0, end)) for end in row.interval)
    mark = "" if row.change is None else f'<b style="left:{50 + row.change / 2:.1f}%"></b>'
    bar = f'<i style="left:{50 + low / 2:.1f}%;width:{max(0.5, (high - low) / 2):.1f}%"></i>'
    value = f"{_signed(row.change)} <span>({_signed(low)} to {_signed(high)})</span>"
    return (
        f'<div class="row {escape(row.verdict)}"><div class="name"><b>{escape(row.name)}</b> '
        f'<span>{escape(row.words)}</span></div><div class="plot">{bar}{mark}<u></u></div>'
        f'<div class="value">{value}</div></div>'
    )


def _signed(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "\u2013"
    return f"{round(value):+d}".replace("-", "\u2212") if round(value) else "0"


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.2g}"
