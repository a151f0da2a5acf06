"""The page of `mimetic dataset check`: one file, nothing from elsewhere, drawn by its own small script.

Every text of the dataset passes through `escape`, or reaches the script as JSON and the page as text nodes. The
browser is told to run this script only, by its hash, and to load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from html import escape as plain_escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from mimetic.data.check.checklist import Answer, checklist, propose_split
from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.pictures.camera import ranges
from mimetic.data.check.pictures.run import PictureChecks
from mimetic.data.store.atomic import write_bytes
from mimetic.report.dataset_check_data import page_data

GROUPS = {
    Claim.DEFECT: ("Defects", "objectively wrong: training fails, or learns from wrong data"),
    Claim.RISK: ("Risks", "signs that often go with bad results; look, and never delete by these alone"),
    Claim.FACT: ("Facts", "neither good nor bad"),
    Claim.NOT_CHECKED: ("Not checked", "and why; this is never a pass"),
}
MOST_FINDINGS = 400
_MOST_EPISODES = 14
_SIGNS = {"yes": "✓", "no": "✕", "not checked": "?"}


def write_check_report(report: CheckReport, path: Path, pictures: PictureChecks | None = None) -> None:
    """Write the page, atomically.

    Args:
        report: what the check found.
        path: the HTML file.
        pictures: what `check_pictures` gave, for footage and camera shifts.
    """
    write_bytes(Path(path), render(report, pictures).encode("utf-8"))


def render(report: CheckReport, pictures: PictureChecks | None = None) -> str:
    """The page as text (same arguments as `write_check_report`)."""
    name = escape(str(report.facts.get("name") or report.root.resolve().name))
    script, style = asset("check.js"), asset("check.css")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    body = "\n".join(
        part
        for part in (
            _header(report, name),
            _verdict(report),
            _tiles(report),
            _findings(report),
            _checklist(checklist(report)),
            _charts(),
            _tasks(report),
            _provenance(report),
        )
        if part
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{name}: dataset check</title><style>{style}</style></head>\n<body><main>\n{body}\n</main>\n"
        f'<script type="application/json" id="data">{embedded(page_data(report, pictures))}</script>\n'
        f"<script>{script}</script></body></html>\n"
    )


def asset(name: str) -> str:
    """A file of the page."""
    return (files("mimetic.report") / "assets" / name).read_text(encoding="utf-8")


def embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in, whatever a name in the dataset holds."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def escape(text: object) -> str:
    """Text as HTML."""
    return plain_escape(str(text), quote=True)


def prose(text: str) -> str:
    """A sentence as HTML; `words` between backticks are set as code."""
    parts = escape(text).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


def _header(report: CheckReport, name: str) -> str:
    facts = report.facts
    words = [
        f"LeRobotDataset {facts['version']}" if facts.get("version") else "",
        str(facts.get("robot_type") or ""),
        {"quick": "metadata only", "rows": "metadata and rows", "video": "rows and a sample of the pictures"}.get(
            report.level, "everything"
        ),
        f"checked in {report.seconds:.1f} s",
    ]
    line = " · ".join(escape(word) for word in words if word)
    return f'<header><p class="kind">Dataset check</p><h1>{name}</h1><p class="sub">{line}</p></header>'


def _verdict(report: CheckReport) -> str:
    defects, risks = len(report.defects), sum(_counts(item, Claim.RISK) for item in report.findings)
    if not report.rules:
        level, sign, title, text = "none", "?", "Nothing could be checked", "No rule was applied, so this is no pass."
    elif defects:
        bad = len(report.episodes) - len(report.keep)
        level, sign = "bad", "✕"
        title = f"{_count(defects, 'defect')} to mend before training"
        text = (
            f"{_count(bad, 'episode')} of {len(report.episodes)} concerned; {len(report.keep)} can be trained on now."
            if bad
            else "They concern the dataset as a whole."
        )
    else:
        level, sign, title = "good", "✓", "No defects"
        text = f"All {len(report.episodes)} episodes can be trained on."
    risky = f" {_count(risks, 'risk')} to look at." if risks else ""
    gauge = "" if level == "none" else _gauge(report.grade)
    return (
        f'<section class="verdict {level}"><span class="sign" aria-hidden="true"><b>{sign}</b></span>'
        f"<div><strong>{escape(title)}</strong><p>{escape(text + risky)}</p></div>{gauge}</section>"
    )


def _gauge(grade: int) -> str:
    """A ring that is filled as far as the worst class of defects leaves episodes."""
    length = 2 * 3.14159 * 26
    filled = length * grade / 100
    return (
        f'<figure class="gauge" title="share of episodes that the worst class of defects leaves">'
        f'<svg viewBox="0 0 64 64" role="img" aria-label="grade {grade} of 100">'
        f'<circle class="track" cx="32" cy="32" r="26"/><circle class="fill" cx="32" cy="32" r="26" '
        f'stroke-dasharray="{filled:.1f} {length:.1f}" transform="rotate(-90 32 32)"/>'
        f'<text x="32" y="37.5" text-anchor="middle">{grade}</text></svg><figcaption>grade</figcaption></figure>'
    )


def _tiles(report: CheckReport) -> str:
    seconds = sum(report.lengths) / report.fps if report.fps else 0.0
    lengths = sorted(report.lengths)
    middle = lengths[len(lengths) // 2] if lengths else 0
    cameras = report.facts.get("camera_keys", [])
    tasks = report.facts.get("tasks", [])
    tiles = [
        (f"{len(report.episodes)}", "episodes", f"median {middle / report.fps:.1f} s" if report.fps else ""),
        (_duration(seconds), "of demonstrations", f"{sum(report.lengths):,} frames".replace(",", " ")),
        (f"{report.fps} Hz" if report.fps else "–", "declared rate", ""),
        (f"{len(cameras)}", "cameras" if len(cameras) != 1 else "camera", ""),
        (f"{len(tasks)}", "tasks" if len(tasks) != 1 else "task", ""),
        (f"{len(report.rules)}", "rules applied", f"{_not_checked(report)} not checked"),
    ]
    cells = "".join(
        f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span><small>{escape(c)}</small></div>'
        for a, b, c in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _findings(report: CheckReport) -> str:
    parts = []
    shown = report.findings[:MOST_FINDINGS]
    for claim, (title, meaning) in GROUPS.items():
        group = [item for item in shown if item.claim is claim and not item.accepted]
        if not group:
            continue
        if claim is Claim.NOT_CHECKED:
            parts.append(_unchecked(group, title, meaning))
            continue
        cards = "".join(_card(item, len(report.episodes)) for item in group)
        body = (
            f'<h2>{title} <span class="count">{len(group)}</span></h2><p class="note">{escape(meaning)}</p>'
            f'<div class="findings">{cards}</div>'
        )
        if claim is Claim.FACT:
            body = (
                f'<details class="quiet"><summary>{title} <span class="count">{len(group)}</span> '
                f'<span class="note">{escape(meaning)}</span></summary><div class="findings">{cards}</div></details>'
            )
        parts.append(f'<section class="group {_css(claim)}">{body}</section>')
    accepted = [item for item in shown if item.accepted]
    if accepted:
        cards = "".join(_card(item, len(report.episodes)) for item in accepted)
        parts.append(
            '<section class="group accepted"><details class="quiet"><summary>Accepted '
            f'<span class="count">{len(accepted)}</span> <span class="note">on purpose; they do not count</span>'
            f'</summary><div class="findings">{cards}</div></details></section>'
        )
    if len(report.findings) > MOST_FINDINGS:
        parts.append(f'<p class="note">{len(report.findings) - MOST_FINDINGS} more findings: see the JSON output.</p>')
    return "\n".join(parts)


def _card(item: Finding, n_episodes: int) -> str:
    repair = (
        f'<div class="repair"><code>{escape(item.repair)}</code>'
        '<button type="button" class="copy" data-copy>copy</button></div>'
        if item.repair
        else ""
    )
    impact = f'<p class="impact">{prose(item.impact)}</p>' if item.impact else ""
    accepted = f'<p class="impact">Accepted: {prose(item.accepted)}</p>' if item.accepted else ""
    return (
        f'<article class="finding {_css(item.claim)}"><h3><code>{escape(item.id)}</code>'
        f"{_feature(item.feature)}{_episodes(item, n_episodes)}</h3>"
        f"<p>{prose(_sentence(item.message, item.feature))}</p>{impact}{accepted}{repair}</article>"
    )


def _feature(feature: str) -> str:
    return f'<span class="chip">{escape(feature)}</span>' if feature else ""


def _episodes(item: Finding, n_episodes: int) -> str:
    if not item.episodes:
        return '<span class="where">whole dataset</span>' if item.claim in (Claim.DEFECT, Claim.RISK) else ""
    listed = ranges(item.episodes, _MOST_EPISODES)
    word = "episode" if len(item.episodes) == 1 else "episodes"
    share = f" <small>({len(item.episodes)} of {n_episodes})</small>" if len(item.episodes) > 1 else ""
    return f'<span class="where">{word} {escape(listed)}{share}</span>'


def _unchecked(group: Sequence[Finding], title: str, meaning: str) -> str:
    """Rules with the same reason stand in one line."""
    reasons: dict[str, list[str]] = {}
    for item in group:
        reasons.setdefault(item.message, []).append(item.id)
    rows = "".join(
        f"<li>{prose(_sentence(reason))} {' '.join(f'<code>{escape(rule)}</code>' for rule in dict.fromkeys(rules))}"
        "</li>"
        for reason, rules in reasons.items()
    )
    return (
        f'<section class="group unchecked"><details class="quiet"><summary>{title} '
        f'<span class="count">{len(group)}</span> <span class="note">{escape(meaning)}</span></summary>'
        f"<ul>{rows}</ul></details></section>"
    )


def _checklist(answers: Iterable[Answer]) -> str:
    rows = "".join(
        f'<li class="{answer.answer.replace(" ", "-")}"><span class="sign" aria-hidden="true">'
        f"{_SIGNS.get(answer.answer, '?')}</span><div><b>{escape(answer.question)}</b> "
        f'<span class="says">{escape(answer.answer)}</span><p>{prose(_sentence(answer.detail))}</p></div></li>'
        for answer in answers
    )
    return f'<section id="checklist"><h2>Checklist</h2><ul class="checklist">{rows}</ul></section>'


def _charts() -> str:
    """Places that the script fills; without it the words above say everything that counts."""
    places = (
        ("map", "Findings by episode", "One column an episode, one row a rule."),
        ("footage", "Footage", "First, middle and last picture of each episode; a frame marks those with a finding."),
        ("moves", "Cameras that were moved", "Drag to compare what stays in the picture before and after."),
        ("cameras", "Cameras over the episodes", "Place and brightness of the background."),
        (
            "coverage",
            "Where the robot starts and grasps",
            "Each dot is an episode, in the two directions that vary most.",
        ),
        ("lengths", "Length of the episodes", ""),
        ("timing", "Time stamps", "Largest distance of a row's time from the frame grid."),
        ("joints", "Joint by joint", "All episodes over the part that has passed; coloured are those with a finding."),
    )
    return (
        "\n".join(
            f'<section class="chart" id="{place}" hidden><h2>{escape(title)}</h2><p class="note">{escape(note)}</p>'
            f'<div class="card body"></div></section>'
            for place, title, note in places
        )
        + '\n<noscript><p class="note">The charts of this page need JavaScript; all findings are above.</p></noscript>'
    )


def _tasks(report: CheckReport) -> str:
    tasks = report.facts.get("tasks", [])
    if not tasks:
        return ""
    most = max(int(task["episodes"]) for task in tasks)
    rows = "".join(
        f'<tr><td><span class="text">{escape(task["task"])}</span></td>'
        f"<td>{int(task['episodes'])}</td>"
        f'<td><i class="bar" style="width:{100 * int(task["episodes"]) / max(most, 1):.1f}%"></i></td></tr>'
        for task in tasks[:200]
    )
    more = f'<p class="note">{len(tasks) - 200} more tasks.</p>' if len(tasks) > 200 else ""
    return (
        '<section id="tasks"><h2>Tasks</h2><div class="card scroll"><table><thead><tr><th>instruction</th>'
        f"<th>episodes</th><th></th></tr></thead><tbody>{rows}</tbody></table></div>{more}</section>"
    )


def _provenance(report: CheckReport) -> str:
    split = propose_split(report)
    held = (
        f"<dt>proposed split</dt><dd>{escape(split.reason)}: {escape(ranges(split.held_out, 20))}</dd>"
        if split is not None
        else ""
    )
    return (
        '<section id="about"><h2>About this page</h2><div class="card"><dl>'
        f"<dt>folder</dt><dd><code>{escape(report.root)}</code></dd>"
        f"<dt>level</dt><dd>{escape(report.level)}, {len(report.rules)} rules</dd>"
        f"<dt>keep</dt><dd>{escape(ranges(report.keep, 20) or 'none')}</dd>{held}</dl>"
        '<p class="note">Defects decide pass or fail; the grade is the share of episodes that the worst class of '
        "defects leaves. Risks compare episodes with each other and rest on most of them being fine.</p>"
        "</div></section>"
    )


def _css(claim: Claim) -> str:
    return claim.value.lower().replace(" ", "-")


def _counts(item: Finding, claim: Claim) -> bool:
    return item.claim is claim and not item.accepted


def _not_checked(report: CheckReport) -> int:
    return len({item.id for item in report.findings if item.claim is Claim.NOT_CHECKED})


def _sentence(text: str, name: str = "") -> str:
    """A message as a sentence; a name of the dataset at its beginning keeps its letters."""
    text = text.rstrip(".")
    end = "" if text.endswith((".`", "?`", "!`", "?", "!")) else "."
    first = text.split(" ", 1)[0].rstrip(",:;")
    is_word = first.isalpha() and first != name
    return f"{text[:1].upper() if is_word else text[:1]}{text[1:]}{end}" if text else ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
