"""Colours and the style sheet of reports, in a light and a dark theme.

Charts are drawn in the light colours; in a page each of them becomes the variable of its name (`report.figure`).
"""

from __future__ import annotations

LIGHT = {
    "ink": "#1c2330",
    "muted": "#5b6474",
    "rule": "#e3e6ec",
    "card": "#ffffff",
    "policy": "#2563c9",
    "hold": "#c2570c",
    "mean": "#7a4fb5",
}
DARK = {
    "ink": "#e8ebf1",
    "muted": "#9aa3b2",
    "rule": "#2c333f",
    "card": "#171b22",
    "policy": "#6aa5ff",
    "hold": "#f39a4a",
    "mean": "#bd97f2",
}

PAGE = """
:root {
  color-scheme:light dark; --page:#f4f5f8; --good:#12743f; --good-bg:#e4f5ea; --weak:#855700;
  --weak-bg:#fdf1d7; --bad:#b3261e; --bad-bg:#fde9e7; --unknown:#5b6474; --unknown-bg:#e9ebf0; $LIGHT
}
@media(prefers-color-scheme:dark) {
  :root {
    --page:#0f1216; --good:#6fd79b; --good-bg:#12301f; --weak:#f0c368; --weak-bg:#352a10; --bad:#ff8d83;
    --bad-bg:#3b1714; --unknown:#9aa3b2; --unknown-bg:#22272f; $DARK
  }
}
* { box-sizing:border-box }
body { margin:0; background:var(--page); color:var(--ink); font:15px/1.5 system-ui,sans-serif }
main { max-width:1180px; margin:0 auto; padding:28px 20px 60px }
h1 { font-size:15px; font-weight:600; color:var(--muted); margin:0 0 12px }
h2 { font-size:18px; margin:34px 0 6px }
h3 { font-size:14px; margin:18px 0 6px }
p { margin:6px 0 }
.note { color:var(--muted); font-size:13.5px; max-width:118ch }
code { font:13px ui-monospace,monospace; overflow-wrap:anywhere }
.verdict { border-radius:12px; padding:20px 24px; display:flex; gap:18px; align-items:flex-start }
.verdict .sign { font-size:30px; line-height:1.15; font-weight:700 }
.verdict strong { font-size:22px; line-height:1.3; display:block }
.verdict span { font-size:13px }
.good { background:var(--good-bg); color:var(--good) }
.weak { background:var(--weak-bg); color:var(--weak) }
.bad { background:var(--bad-bg); color:var(--bad) }
.unknown { background:var(--unknown-bg); color:var(--unknown) }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(200px,1fr)); gap:12px; margin:14px 0 }
.tile,.card { background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:12px 16px }
.tile b { font-size:24px; display:block; font-variant-numeric:tabular-nums }
.tile span { color:var(--muted); font-size:13px }
.columns { display:grid; grid-template-columns:3fr 2fr; gap:12px }
.columns ul { margin:4px 0; padding-left:20px }
.card h2,.card h3 { margin-top:0 }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:13.5px; font-variant-numeric:tabular-nums }
th {
  color:var(--muted); font-weight:500; text-align:right; padding:4px 7px;
  border-bottom:1px solid var(--rule); white-space:nowrap;
}
td { padding:3px 7px; text-align:right; border-bottom:1px solid var(--rule); white-space:nowrap }
tr:last-child td { border-bottom:0 }
th:first-child,td:first-child { text-align:left }
.words-last td:last-child,.words-last th:last-child {
  text-align:left; white-space:normal; padding-left:18px; min-width:220px;
}
tr.worse td:first-child:after { content:" ▼ worse"; color:var(--bad); font-size:12px }
tr.still td { color:var(--muted) }
tr.all td { font-weight:650 }
a { color:inherit; text-decoration-color:var(--rule); text-underline-offset:3px }
.range { color:var(--muted); font-size:12px }
.bar { width:80px; height:12px; position:relative; display:inline-block; vertical-align:middle }
.bar i { position:absolute; left:0; height:5px; border-radius:0 3px 3px 0 }
.bar i.p { top:0; background:var(--policy) }
.bar i.h { top:7px; background:var(--hold) }
.grid2 { display:grid; grid-template-columns:repeat(auto-fill,minmax(430px,1fr)); gap:12px }
.grid2 .card { padding:8px 8px 4px }
svg { display:block; width:100%; height:auto }
.wide svg { min-width:640px }
svg text { font-family:system-ui,sans-serif !important }
.legend { display:flex; gap:20px; flex-wrap:wrap; font-size:13px; color:var(--muted); margin:6px 0 }
.legend i { width:26px; display:inline-block; vertical-align:middle; margin-right:6px; border-top:2px solid }
.legend .recorded { border-color:var(--ink) }
.legend .executed { border-color:var(--policy) }
.legend .replaced { border-color:var(--policy); opacity:.4 }
.legend .hold { border-color:var(--hold); border-top-style:dotted }
.strip { display:flex; gap:10px; flex-wrap:wrap }
.strip figure { margin:0; flex:1 1 240px; max-width:360px }
.strip img { width:100%; border-radius:8px; display:block }
figcaption { font-size:12.5px; color:var(--muted) }
details>summary { cursor:pointer; margin:14px 0 8px }
dl { display:grid; grid-template-columns:max-content 1fr; gap:4px 18px; margin:0 }
dt { color:var(--muted) }
dd { margin:0; overflow-wrap:anywhere }
@media(max-width:760px) {
  .columns { grid-template-columns:1fr }
  .grid2 { grid-template-columns:1fr }
}
@media print {
  body { background:#fff }
  .card,.tile { break-inside:avoid }
}
"""


def page_style() -> str:
    """Style sheet of a page with charts."""
    return PAGE.replace("$LIGHT", _variables(LIGHT)).replace("$DARK", _variables(DARK))


def _variables(theme: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in theme.items())
