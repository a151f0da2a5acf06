"""Writes the report of an open-loop evaluation: one HTML page and the plots as files."""

from __future__ import annotations

import logging
from pathlib import Path

from mimetic.errors import MissingExtra
from mimetic.report.charts import draw_charts
from mimetic.report.document import read_document
from mimetic.report.page import render

REPORT = "report.html"
PLOTS = "plots"

logger = logging.getLogger(__name__)


def write_report(folder: Path) -> Path:
    """Make the page from the numbers in a folder; making it again gives the same bytes.

    Without matplotlib the page has no charts, which it and the log say, and there are no plots.

    Args:
        folder: of an evaluation, with open_loop.json and, for the plots, traces.npz.

    Returns:
        The path of report.html.

    Raises:
        MimeticError: there is no evaluation in the folder, or it is of a newer format.
    """
    document = read_document(folder)
    charts, why_none = None, ""
    try:
        charts = draw_charts(document)
    except MissingExtra as error:
        why_none = f"the report has no charts: {error.message}; {error.hint} adds them"
        logger.warning("%s", why_none)
    if charts is not None:
        (folder / PLOTS).mkdir(exist_ok=True)
        for name, picture in charts.files.items():
            _write(folder / PLOTS / name, picture)
    _write(folder / REPORT, render(document, charts, why_none).encode("utf-8"))
    return folder / REPORT


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)
