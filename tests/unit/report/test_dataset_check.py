"""The page of the dataset check: complete, from one file, and nothing of the dataset becomes markup."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from mimetic.data.check.finding import CheckReport, Claim, Finding
from mimetic.data.check.pictures.run import Comparison, PictureChecks, Thumbnail
from mimetic.data.check.run import check_dataset
from mimetic.report import dataset_check_data as module
from mimetic.report.dataset_check import embedded, prose, render, write_check_report
from mimetic.testing.datasets import build_dataset

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">\'"&`'


def report(**changes):
    findings = [
        Finding(
            id="image.black", claim=Claim.DEFECT, message="front is black in 1 episode (3)", impact="nothing is learnt",
            repair="mimetic dataset edit --root=x", episodes=(3,), feature="observation.images.front",
        ),
        Finding(id="motion.idle", claim=Claim.RISK, message="idle", episodes=(1, 2, 5)),
        Finding(id="image.codec", claim=Claim.FACT, message="h264"),
        Finding(id="time.skew", claim=Claim.NOT_CHECKED, message="no clock"),
        Finding(id="time.jitter", claim=Claim.NOT_CHECKED, message="no clock"),
        Finding(id="meta.counts", claim=Claim.DEFECT, message="counts differ", accepted="known since May"),
    ]  # fmt: skip
    found = CheckReport(
        root=Path("nowhere/pick"), level="rows", episodes=tuple(range(8)), lengths=(30,) * 8, fps=10, findings=findings,
        rules=("image.black", "motion.idle"), keep=(0, 1, 2, 4, 5, 6, 7), seconds=1.25,
        facts={"name": "pick", "tasks": [{"task": "stack", "episodes": 8}], "camera_keys": ["observation.images.front"]},
        measures={"image.shift_px[observation.images.front]": np.asarray([0.0] * 7 + [np.nan])},
    )  # fmt: skip
    return replace(found, **changes)


class Reader(HTMLParser):
    """Elements and attributes of a page; what stands in scripts is text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.handlers = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "action", "data", "srcset")]
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def page_json(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_findings_stand_in_their_groups_with_impact_and_command():
    text = render(report())
    defects, risks = text.index(">Defects "), text.index(">Risks ")
    assert defects < text.index("Front is black in 1 episode (3).") < risks
    assert "nothing is learnt" in text
    assert "<code>mimetic dataset edit --root=x</code>" in text
    assert "episodes 1-2, 5" in text
    assert "known since May" in text
    assert text.count("No clock.") == 1  # rules with one reason share a line
    assert "1 defect to mend before training" in text
    assert 'aria-label="grade 88 of 100"' in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"findings": ()}, "No defects"), ({"findings": (), "rules": ()}, "Nothing could be checked")],
)
def test_the_verdict_says_no_more_than_is_known(changes, words):
    assert words in render(report(**changes))


def test_names_of_the_dataset_keep_their_letters():
    messages = [("q.effort[0]: NaN", "q.effort"), ("gripper: NaN", "gripper"), ("many frames rest", "")]
    text = render(
        report(
            findings=[Finding(id="a.b", claim=Claim.RISK, message=words, feature=name) for words, name in messages],
            facts={"tasks": [{"task": "x" * 9000, "episodes": 1}]},
        )
    )
    for sentence in ("<p>q.effort[0]: NaN.", "<p>gripper: NaN.", "<p>Many frames rest."):
        assert sentence in text


def test_nothing_of_the_dataset_becomes_markup():
    hostile = report(
        findings=[
            Finding(
                id=HOSTILE, claim=claim, message=HOSTILE, impact=HOSTILE, repair=HOSTILE, feature=HOSTILE, episodes=(1,),
                accepted=accepted,
            )
            for claim in Claim
            for accepted in ("", HOSTILE)
        ],
        facts={
            "name": HOSTILE, "robot_type": HOSTILE, "version": HOSTILE, "tasks": [{"task": HOSTILE, "episodes": 1}],
            "camera_keys": [HOSTILE],
        },
        measures={f"image.luminance[{HOSTILE}]": np.ones(8)},
        root=Path(HOSTILE),
    )  # fmt: skip
    pictures = PictureChecks([], thumbnails=[Thumbnail(HOSTILE, 1, 0, b"\xff\xd8")])
    reader, plain = Reader(render(hostile, pictures)), Reader(render(report(), pictures))
    assert reader.tags.count("script") == plain.tags.count("script") == 2
    assert "img" not in reader.tags
    assert reader.handlers == []
    assert reader.links == []
    assert page_json(render(hostile, pictures))["cameras"][0]["key"] == HOSTILE


def test_the_page_needs_nothing_but_itself():
    text = render(report())
    assert Reader(text).links == []
    rest = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert "http:" not in rest
    assert "https:" not in rest
    assert "default-src 'none'" in text
    assert "script-src 'sha256-" in text


def test_json_in_the_page_cannot_end_its_element():
    assert "<" not in embedded({"x": "</script><!--"})
    assert json.loads(embedded({"x": "</script>\u2028"})) == {"x": "</script>\u2028"}
    assert prose("a `b` c`") == "a `b` c`"
    assert prose("a `<b>` c") == "a <code>&lt;b&gt;</code> c"


def test_numbers_that_json_does_not_know_become_null():
    data = page_json(render(report()))
    assert data["curves"][0]["values"][-1] is None


def test_the_map_joins_episodes_of_long_datasets(monkeypatch):
    monkeypatch.setattr(module, "MOST_CELLS", 4)
    found = module.page_data(report(), None)["map"]
    assert (found["step"], found["columns"]) == (2, 4)
    assert {row["id"]: row["cells"] for row in found["rows"]} == {"image.black": [1], "motion.idle": [0, 1, 2]}


def test_pictures_fit_into_the_page(monkeypatch):
    thumbs = [Thumbnail("cam", episode, frame, bytes(1000)) for episode in range(8) for frame in (0, 10, 20)]
    pictures = PictureChecks([], thumbnails=thumbs)

    def kept(limit):
        monkeypatch.setattr(module, "PICTURE_BYTES", limit)
        cameras = module.page_data(report(), pictures)["cameras"]
        return [[frame for frame, _ in item["frames"]] for item in cameras[0]["episodes"]]

    assert kept(10**6) == [[0, 10, 20]] * 8
    assert kept(15_000) == [[10]] * 8
    assert len(kept(5_000)) == 3
    monkeypatch.setattr(module, "PICTURE_BYTES", 10**6)
    flags = {item["episode"]: item["flag"] for item in module.page_data(report(), pictures)["cameras"][0]["episodes"]}
    assert set(flags.values()) == {""}  # the finding is on another camera


def test_pictures_that_the_report_carries_are_used():
    thumbs = [Thumbnail("observation.images.front", 3, 0, b"x")]
    moved = [Comparison("observation.images.front", (5,), b"a", b"b", (3.0, -1.0))]
    data = module.page_data(report(facts={"thumbnails": thumbs, "comparisons": moved}), None)
    assert data["cameras"][0]["episodes"][0]["flag"] == "DEFECT"
    assert data["moves"][0]["shift"] == [3.0, -1.0]


def test_the_page_of_a_real_check(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=[12, 9, 14, 11, 10, 13, 9, 12, 15, 11])
    path = tmp_path / "check.html"
    write_check_report(check_dataset(root), path)
    data = page_json(path.read_text(encoding="utf-8"))
    assert [joint["name"] for joint in data["joints"]] == ["joint_0.pos", "joint_1.pos", "joint_2.pos"]
    line = data["joints"][0]["lines"][0]
    assert len(line) == module.POINTS
    assert (min(line), max(data["joints"][0]["lines"][-1])) == (0, module.LEVELS)
    assert all(off == pytest.approx(0, abs=0.001) for off in data["timing"]["off_ms"])
    assert data["coverage"]["points"]
    assert path.stat().st_size < 400_000


def test_a_dataset_that_has_gone_or_cannot_be_read(tmp_path):
    root = build_dataset(tmp_path / "set")
    (root / "meta" / "info.json").write_text("{")
    text = render(check_dataset(root))
    assert "meta.info" in text
    assert page_json(text)["joints"] == []
    assert page_json(render(check_dataset(root, level="quick")))["timing"] is None
