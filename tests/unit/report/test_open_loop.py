import html.parser
import json
import re
import sys

import numpy as np
import pytest

from mimetic.errors import MimeticError
from mimetic.report.document import read_document
from mimetic.report.open_loop import write_report

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Tags and text of a page; fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.links, self.words = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_is_well_formed_and_needs_nothing_from_elsewhere(evaluation):
    text = write_report(evaluation()).read_text(encoding="utf-8")
    page = Page(text)
    assert not {"script", "iframe", "link", "object"} & set(page.tags)
    assert all(link.startswith(("data:image/jpeg;base64,", "#")) for link in page.links)
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "default-src 'none'" in text


def test_the_verdict_comes_first_then_the_table_then_the_pictures(evaluation):
    folder = evaluation()
    text = write_report(folder).read_text(encoding="utf-8")
    headline = json.loads((folder / "open_loop.json").read_text())["verdict"]["headline"].replace(" %", "&nbsp;%")
    places = [
        text.index(words)
        for words in (headline.replace("'", "&#x27;"), "Joint by joint", "Error by joint", "Motion in episode 0")
    ]
    assert places == sorted(places)


def test_names_from_the_dataset_cannot_inject_html(evaluation):
    evil = "<img src=x onerror=alert(1)>\"'&"
    folder = evaluation(names=(evil, "</svg><script>alert(2)</script>", "plain"))
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.tags.count("img") == 3
    assert evil in "".join(page.words)


def test_there_is_a_plot_a_joint_and_a_link_to_it(evaluation):
    names = [f"joint{index}.pos" for index in range(26)]
    folder = evaluation(names=names)
    text = write_report(folder).read_text(encoding="utf-8")
    plots = sorted(path.name for path in (folder / "plots").iterdir())
    assert plots[:26] == [f"{index:02d}_joint{index}_pos.png" for index in range(26)]
    assert plots[26:] == ["error_by_joint.png", "error_by_steps_ahead.png"]
    for index in range(26):
        assert text.count(f'href="#joint-{index}"') == text.count(f'id="joint-{index}"') == 1


def test_a_report_made_again_has_the_same_bytes(evaluation):
    folder = evaluation()

    def files():
        write_report(folder)
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert files() == files()
    assert not [path for path in folder.rglob("*") if path.name.endswith(".partial")]


def test_numbers_without_traces_and_pictures_still_make_a_page(evaluation):
    folder = evaluation(pictures=False)
    (folder / "traces.npz").unlink()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "img" not in page.tags
    assert "Motion in episode" not in "".join(page.words)


@pytest.mark.parametrize("trouble", [None, "broken"])
def test_without_matplotlib_the_page_has_all_but_the_charts_and_says_how_to_get_them(
    evaluation, monkeypatch, caplog, tmp_path, trouble
):
    if trouble is None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        reason = "`matplotlib` is not installed"
    else:
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "matplotlib.py").write_text("raise ImportError('a library of numpy is too old')")
        monkeypatch.syspath_prepend(tmp_path)
        reason = "`matplotlib` cannot be imported (a library of numpy is too old)"
    folder = evaluation()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    words = "".join(page.words)
    command = "pip install 'mimetic[report]'"
    assert f"the report has no charts: {reason}; `{command}` adds them" in caplog.messages
    assert f"The report has no charts: {reason.replace('`', '')}; {command} adds them." in words
    assert page.tags.count("table") == 2
    assert page.tags.count("img") == 3
    assert "svg" not in page.tags
    assert not page.links or all(link.startswith("data:") for link in page.links)
    assert "Motion in episode" not in words
    assert not (folder / "plots").exists()


def test_numbers_that_are_not_defined_are_dashes(evaluation):
    folder = evaluation(quality=0.0, episodes=1, frames=10, stride=10)
    document = read_document(folder)
    assert np.isnan(document.overall.skill_hold_interval).all()
    text = "".join(Page(write_report(folder).read_text(encoding="utf-8")).words)
    assert "nan" not in text.lower()
    assert "too few predictions for an interval" in text


def test_a_folder_without_an_evaluation_is_refused(tmp_path):
    with pytest.raises(MimeticError, match="holds no open-loop evaluation"):
        write_report(tmp_path)


def test_a_newer_format_is_refused(evaluation):
    folder = evaluation()
    path = folder / "open_loop.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(MimeticError, match="version 2; this release reads version 1"):
        write_report(folder)


def test_a_picture_outside_the_folder_is_refused(evaluation, tmp_path):
    folder = evaluation()
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    path = folder / "open_loop.json"
    document = json.loads(path.read_text())
    document["pictures"][0]["file"] = "../secret.jpg"
    path.write_text(json.dumps(document))
    with pytest.raises(MimeticError, match="outside its folder"):
        write_report(folder)
