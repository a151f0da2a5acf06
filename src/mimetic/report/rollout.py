"""Writes the report of an evaluation in an environment: one HTML page, made of the evaluation's files alone.

Every text that comes from a checkpoint or an environment passes through `escape`; the page has no scripts and loads
nothing.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mimetic.errors import ConfigError
from mimetic.report.dependence import STYLE as FOREST_STYLE
from mimetic.report.dependence import dependence, shift_rows
from mimetic.report.open_loop import REPORT
from mimetic.report.page import escape
from mimetic.report.style import page_style

FORMAT, NEWEST = "mimetic closed-loop evaluation", 1
MOST_STRIPS = 24
"""Episodes of a task whose pictures are in the page; failures go first."""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
.meter { position:relative; display:inline-block; width:220px; height:14px; vertical-align:middle;
  background:var(--rule); border-radius:7px }
.meter i { position:absolute; top:0; height:14px; border-radius:7px; background:var(--policy); opacity:.28 }
.meter b { position:absolute; top:-2px; width:3px; height:18px; border-radius:2px; background:var(--policy) }
.chip { display:inline-block; border-radius:9px; padding:0 9px; font-size:12.5px; font-weight:600 }
.episode { margin:0; padding:10px 12px }
.episode img { width:100%; display:block; border-radius:6px; image-rendering:auto }
.episode figcaption { margin-top:6px; display:flex; gap:10px; align-items:center; flex-wrap:wrap }
.strips { display:grid; grid-template-columns:repeat(auto-fill,minmax(420px,1fr)); gap:12px }
.left td:nth-child(2),.left th:nth-child(2) { text-align:left }
@media(max-width:760px) { .strips { grid-template-columns:1fr } }
"""
_RUNS = {
    "policy": "the policy",
    "compare": "the second checkpoint",
    "blind": "without pictures",
    "mute": "with an empty instruction",
    "swap": "with another task's instruction",
}


def write_report(folder: Path) -> Path:
    """Make the page; making it again gives the same bytes.

    Args:
        folder: of an evaluation, with closed_loop.json, episodes.jsonl, eval_config.json and strips.

    Returns:
        The path of report.html.

    Raises:
        ConfigError: there is no evaluation in the folder, or it is of a newer format.
    """
    document, config = _read(folder / "closed_loop.json"), _read(folder / "eval_config.json")
    if document.get("format") != FORMAT or document.get("format_version", 0) > NEWEST:
        raise ConfigError(
            f"{folder / 'closed_loop.json'} is not an evaluation that this version of mimetic can show",
            "use the version that wrote it, or a newer one",
        )
    lines = (folder / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    episodes = [json.loads(line) for line in lines]
    partial = folder / f".{REPORT}.partial"
    partial.write_text(render(document, config, episodes, folder), encoding="utf-8")
    partial.replace(folder / REPORT)
    return folder / REPORT


def render(
    document: Mapping[str, Any], config: Mapping[str, Any], episodes: Sequence[Mapping[str, Any]], folder: Path
) -> str:
    """The page as text.

    Args:
        document: closed_loop.json.
        config: eval_config.json.
        episodes: lines of episodes.jsonl.
        folder: that the pictures are in.
    """
    title = escape(f"Evaluation of {config['checkpoint']['path']} in an environment")
    body = [
        f"<h1>{title}</h1>",
        _verdict(document),
        _tiles(document),
        dependence(document),
        _reasons(document),
        _rates(document),
        _shifts(document),
        _differences(document),
        _strips(episodes, folder),
        _provenance(document, config),
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{page_style()}{_STYLE}{FOREST_STYLE}</style>"
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>\n{chr(10).join(part for part in body if part)}\n</main></body></html>\n"
    )


def _verdict(document: Mapping[str, Any]) -> str:
    share = document.get("main", document["overall"])["pc_success"]
    level, sign = "unknown", "?"
    if share is not None:
        level, sign = ("good", "✓") if share >= 80 else ("weak", "≈") if share >= 30 else ("bad", "✕")
    return (
        f'<section class="verdict {level}"><div class="sign" aria-hidden="true">{sign}</div>'
        f"<div><strong>{escape(document['headline'])}</strong>"
        "<span>Counted by the environment itself, each episode from a start of its own</span></div></section>"
    )


def _tiles(document: Mapping[str, Any]) -> str:
    overall, speed = document["overall"], document["latency"]
    main = document.get("main", overall)
    where = "success" if main["title"] == overall["title"] else f"success in {main['title']}"
    tiles = [
        (_percent(main["pc_success"]), where, f"95 % interval {_range(main['interval'])}"),
        (str(overall["n_episodes"]), "episodes", f"{overall['successes']} successful"),
    ]
    if overall["mean_length_of_successes"] is not None and speed is not None:
        seconds = overall["mean_length_of_successes"] / speed["fps"]
        tiles.append((f"{seconds:.1f} s", "a successful episode", f"{overall['mean_length_of_successes']:.0f} ticks"))
    if speed is not None:
        words = "fast enough" if speed["keeps_up"] else "slower than a tick"
        tiles.append((f"{speed['p95_ms']:.3g} ms", f"a prediction, {words}", f"a tick has {speed['tick_ms']:.1f} ms"))
    cells = (f'<div class="tile"><b>{escape(a)}</b>{escape(b)}<br><span>{escape(c)}</span></div>' for a, b, c in tiles)
    return f'<section class="tiles">{"".join(cells)}</section>'


def _reasons(document: Mapping[str, Any]) -> str:
    findings = [one for one in document["findings"] if one != document.get("reading")]  # that stands above already
    caveats = document["caveats"]
    left = f'<div class="card"><h3>Findings</h3>{_list(findings)}</div>' if findings else ""
    right = f'<div class="card"><h3>How far to trust this</h3>{_list(caveats)}</div>'
    return f'<section class="columns">{left}{right}</section>'


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}.</li>' for line in lines)}</ul>"


def _rates(document: Mapping[str, Any]) -> str:
    rows = [_rate(one) for one in document["tasks"]]
    rows += [_rate({**one, "title": f"all of {one['title']}"}, "all") for one in document["splits"]]
    if len(document["tasks"]) > 1:
        rows.append(_rate(document["overall"], "all"))
    rows += [
        _rate({**one, "title": f"{one['title']}: {_RUNS.get(one['run'], one['run'])}"}, "still")
        for one in document["other_passes"]
    ]
    head = ("task", "success", "", "95 % interval", "episodes", "ticks of a success")
    note = (
        "The mark is the share of successes, the band its 95 % interval. Other passes over the same episodes are grey."
    )
    return f'<h2>Task by task</h2><p class="note">{escape(note)}</p>{_table(head, rows, "left")}'


def _rate(one: Mapping[str, Any], css: str = "") -> str:
    low, high = one["interval"]
    share = one["pc_success"]
    mark = "" if share is None else f'<b style="left:calc({share:.1f}% - 1.5px)"></b>'
    meter = f'<span class="meter"><i style="left:{low:.1f}%;width:{max(high - low, 1):.1f}%"></i>{mark}</span>'
    ticks = one["mean_length_of_successes"]
    return _row(
        [
            escape(one["title"]),
            meter,
            escape(_percent(share)),
            escape(_range(one["interval"])),
            f"{one['successes']} of {one['n_episodes']}",
            "–" if ticks is None else f"{ticks:.0f}",
        ],
        css,
    )


def _shifts(document: Mapping[str, Any]) -> str:
    """Numbers behind the picture of what success depends on."""
    if not document.get("shifts"):
        return ""
    meaning = document["meaning"]
    note = (
        f"Starts differ from split to split, so nothing is paired. Difference: {meaning['shift']}; interval: "
        f"{meaning['shift_interval']}; p: {meaning['shift_p_value']}; corrected: {meaning['shift_p_corrected']}; "
        f"detectable fall: {meaning['shift_detectable']}."
    )
    head = (
        "split",
        "succeeded",
        "compared with",
        "succeeded there",
        "difference [points]",
        "95 % interval",
        "exact p",
        "corrected",
        "detectable fall [points]",
    )
    rows = [_row([escape(cell) for cell in cells], css) for cells, css in shift_rows(document)]
    return f'<h2>Split against split</h2><p class="note">{escape(note)}</p>{_table(head, rows)}'


def _differences(document: Mapping[str, Any]) -> str:
    if not document["differences"]:
        return ""
    rows = [
        _row(
            [
                escape(_RUNS.get(one["run"], one["run"])),
                f"{one['both']}",
                f"{one['only_policy']}",
                f"{one['only_other']}",
                f"{one['neither']}",
                escape(_points(one["difference"])),
                escape(f"{_points(one['difference_interval'][0])} to {_points(one['difference_interval'][1])}"),
                "&lt; 0.0001" if one["p_value"] < 0.0001 else f"{one['p_value']:.2g}",
                f"{one['detectable']:.0f}",
            ]
        )
        for one in document["differences"]
    ]
    head = (
        "against",
        "both succeed",
        "only the policy",
        "only the other",
        "neither",
        "difference [points]",
        "95 % interval",
        "exact p",
        "detectable [points]",
    )
    meaning = document["meaning"]
    note = (
        f"Pairs of the same episodes. Difference: {meaning['difference']}; interval: {meaning['difference_interval']}; "
        f"p: {meaning['p_value']}; detectable: {meaning['detectable']}. No detectable difference does not mean equal."
    )
    return f'<h2>The same episodes, played otherwise</h2><p class="note">{escape(note)}</p>{_table(head, rows)}'


def _table(head: Sequence[str], rows: Sequence[str], css: str = "") -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f'<div class="card scroll"><table class="{css}"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>{chr(10).join(rows)}</tbody></table></div>"
    )


def _row(cells: Sequence[str], css: str = "") -> str:
    opening = f'<tr class="{css}">' if css else "<tr>"
    return f"{opening}{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _strips(episodes: Sequence[Mapping[str, Any]], folder: Path) -> str:
    own = [one for one in episodes if one["run"] == "policy" and one.get("strip")]
    parts: list[str] = []
    for key in dict.fromkeys((one["group"], one["task_id"]) for one in own):
        mine = [one for one in own if (one["group"], one["task_id"]) == key]
        chosen = sorted(mine, key=lambda one: (one["success"], one["episode"]))[:MOST_STRIPS]
        failures = sum(not one["success"] for one in mine)
        more = f"; {len(mine) - len(chosen)} more are in the folder strips" if len(chosen) < len(mine) else ""
        title = f"{mine[0]['task']}, {mine[0]['split']}" if mine[0]["split"] else str(mine[0]["task"])
        words = f"{title}: {failures} failed, {len(mine) - failures} succeeded{more}"
        figures = "".join(figure for figure in (_figure(one, folder) for one in chosen) if figure)
        is_open = " open" if not parts else ""
        parts.append(
            f'<details{is_open}><summary>{escape(words)}</summary><section class="strips">{figures}</section></details>'
        )
    if not parts:
        return ""
    note = "Each strip runs from the first picture of an episode to its last. Failures come first."
    return f'<h2>Episode by episode</h2><p class="note">{escape(note)}</p>{"".join(parts)}'


def _figure(one: Mapping[str, Any], folder: Path) -> str:
    path = (folder / str(one["strip"])).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file():
        return ""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    level, word = ("good", "success") if one["success"] else ("bad", "failure")
    words = f"episode {one['episode']}, seed {one['seed']}, {one['length']} ticks"
    said = f"“{one['instruction']}”" if one["instruction"] else ""
    rest = escape(" · ".join(part for part in (words, said) if part))
    if one.get("video"):
        rest += f' · <a href="{escape(quote(str(one["video"])))}">film</a>'
    return (
        f'<figure class="card episode"><img alt="{escape(f"{word}, {words}")}" src="data:image/jpeg;base64,{data}">'
        f'<figcaption><span class="chip {level}">{word}</span><span>{rest}</span></figcaption></figure>'
    )


def _provenance(document: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    facts = {
        "policy": f"{config['checkpoint']['path']} ({config['checkpoint']['type']})",
        "its files, SHA-256": config["checkpoint"]["sha256"],
        "second checkpoint": (config.get("compare") or {}).get("path"),
        "first seed": config["seed"],
        "device": config["device"],
        "precision": config.get("precision"),
        "environment": "; ".join(_described(one) for one in (config.get("environments") or {}).values()),
        "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items()),
    }
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value)
    return (
        f'<h2>Where this comes from</h2><div class="card"><dl>{rows}</dl></div>'
        '<p class="note">All numbers are in closed_loop.json, eval_info.json and episodes.jsonl beside this page, the '
        "settings in eval_config.json, films in the folder videos.</p>"
    )


def _described(one: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in one.items() if value is not None and not key.endswith("_reason")
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _range(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.0f} to {bounds[1]:.0f} %"


def _points(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:+.0f}".replace("-", "−")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise TypeError("it is no object")
        return data
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read, so there is nothing to report: {error}", "give the folder of an evaluation"
        ) from error
