"""The viewer and the report in a real browser: keys, exact frames, playing videos, marks, and no word in its log."""

import base64
import io
import json

import chrome
import numpy as np
import pytest
from drawn_scene import Faults, build_scene
from PIL import Image

from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.pictures.run import check_pictures
from mimetic.data.check.run import check_dataset
from mimetic.report.dataset_check import write_check_report
from mimetic.report.view.library import Library
from mimetic.report.view.marks import Marks
from mimetic.report.view.server import Viewing, ViewServer, serving
from mimetic.testing.datasets import build_dataset, read_code

pytestmark = pytest.mark.skipif(chrome.find() is None, reason="needs Chromium")

READY = "document.body.dataset.ready === 'true'"
STATE = "return {episode: Number(document.body.dataset.episode), frame: Number(document.body.dataset.frame)}"
PIXELS = """
  const image = document.querySelectorAll('#cameras img')[arguments[0]];
  const canvas = document.createElement('canvas');
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  canvas.getContext('2d').drawImage(image, 0, 0);
  return canvas.toDataURL('image/png').split(',')[1];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chrome.Chrome(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def viewing(tmp_path_factory):
    """Three episodes of coded images, one camera as H.264 video, in one file, so that episodes begin inside it."""
    root = build_dataset(
        tmp_path_factory.mktemp("data") / "coded",
        lengths=(40, 25, 30),
        cameras={"top": (96, 128), "wrist": (96, 128)},
        episodes_per_file=None,
        tasks=("pick <b>the</b> cube", "stack"),
        gop=10,
    )
    marks = Marks()
    marks.take(
        [
            Finding(
                id="state.frozen", claim=Claim.DEFECT, message="the `state` rests", episodes=(1,), spans=((1, 7, 12),)
            )
        ],
        "given",
    )
    library = Library(root)
    with serving(ViewServer(Viewing(library, marks, root.parent / "plan.json"))) as server:
        yield server


def where(browser):
    browser.wait(READY)
    found = browser.run(STATE)
    return found["episode"], found["frame"]


def shown(browser, camera=0):
    """Episode and frame that the picture on the screen spells."""
    browser.wait(READY)
    picture = Image.open(io.BytesIO(base64.b64decode(browser.run(PIXELS, camera)))).convert("RGB")
    return read_code(np.asarray(picture))


def test_keys_move_to_exactly_the_frame_that_is_said(browser, viewing):
    browser.open(viewing.url)
    assert where(browser) == (0, 0)
    assert shown(browser) == (0, 0)
    for key, place in [
        (".", (0, 1)), (".", (0, 2)), (",", (0, 1)), ("ArrowRight", (0, 11)), ("ArrowLeft", (0, 1)), ("End", (0, 39)),
        (".", (0, 39)), ("Home", (0, 0)), ("j", (1, 0)), ("n", (1, 7)), ("j", (2, 0)), ("j", (2, 0)), ("k", (1, 0)),
    ]:  # fmt: skip
        browser.press(key)
        browser.wait(f"document.body.dataset.episode === '{place[0]}' && document.body.dataset.frame === '{place[1]}'")
        assert where(browser) == place
        assert shown(browser, 0) == place
        assert shown(browser, 1) == place
    assert browser.log() == []


def test_videos_play_together_and_stop_at_a_frame(browser, viewing):
    browser.open(viewing.url + "#1")
    browser.wait("document.body.dataset.episode === '1'")
    browser.wait(READY)
    browser.press(" ")
    browser.wait("document.body.dataset.playing === 'true'")
    browser.wait("[...document.querySelectorAll('video')].filter(v => !v.hidden && v.currentTime > 4.3).length === 2")
    times = browser.run("return [...document.querySelectorAll('video')].map(v => v.currentTime)")
    assert abs(times[0] - times[1]) < 0.3
    browser.press(" ")
    episode, frame = where(browser)
    assert episode == 1
    assert frame > 0
    assert shown(browser) == (1, frame)
    browser.press("Home", " ")
    browser.wait("document.body.dataset.playing === 'false' && document.body.dataset.frame === '24'", 15)
    assert shown(browser) == (1, 24)
    assert browser.log() == []


def test_names_of_the_dataset_are_text_and_findings_are_on_the_timeline(browser, viewing):
    browser.open(viewing.url)
    browser.wait(READY)
    assert browser.run("return document.getElementById('task').textContent") == "pick <b>the</b> cube"
    assert browser.run("return document.querySelectorAll('#task b, #list .task b').length") == 0
    browser.press("j")
    browser.wait("document.body.dataset.episode === '1'")
    assert browser.run("return document.querySelector('#findings button').className") == "DEFECT"
    browser.click("#findings button")
    assert where(browser) == (1, 7)
    colour = browser.run(
        "const c = document.getElementById('timeline'); const x = Math.round(c.width * 9 / 24);"
        "return [...c.getContext('2d').getImageData(x, c.height - 6, 1, 1).data]"
    )
    assert colour[:3] == [194, 74, 5]


def test_long_names_do_not_push_the_cameras_out_of_sight(browser, tmp_path):
    root = build_dataset(
        tmp_path / "long", lengths=(4,), cameras={"top": (48, 64), "q" * 150: (48, 64)}, tasks=["x" * 9000]
    )
    marks = Marks()
    marks.take([Finding(id="a.b", claim=Claim.DEFECT, message="y" * 3000, episodes=(0,))], "given")
    with serving(ViewServer(Viewing(Library(root), marks, tmp_path / "plan.json"))) as server:
        browser.open(server.url)
        browser.wait(READY)
        try:
            for size in [(1440, 900), (800, 700), (390, 800)]:
                browser.resize(*size)
                browser.wait("document.querySelectorAll('#findings button').length === 1")
                assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
                assert browser.run("return document.querySelector('#task').getBoundingClientRect().height < 90")
                assert browser.run("return document.querySelector('#findings button').clientHeight < 200")
        finally:
            browser.resize(1280, 900)
    assert browser.log() == []


def test_a_video_that_is_missing_does_not_stop_those_of_other_episodes(browser, tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(20, 5, 20), cameras={"top": (48, 64)}, gop=5)
    next(root.glob("videos/**/file-001.mp4")).unlink()
    with serving(ViewServer(Viewing(Library(root), Marks(), tmp_path / "plan.json"))) as server:
        browser.open(server.url + "#1")
        browser.wait("document.body.dataset.episode === '1'")
        browser.wait("!document.querySelector('#cameras .screen p').hidden")
        browser.wait("document.querySelectorAll('#cameras video').length === 0")
        browser.press("j")
        browser.wait("document.body.dataset.episode === '2'")
        browser.wait("document.querySelectorAll('#cameras video').length === 1")
        assert shown(browser) == (2, 0)
        assert browser.run("return document.querySelector('#cameras .screen p').hidden")
        browser.press(" ")
        browser.wait("!document.querySelector('#cameras video').hidden")
        browser.wait("document.body.dataset.playing === 'false' && document.body.dataset.frame === '19'")
        assert shown(browser) == (2, 19)
    browser.log()  # the missing file's answers


def test_the_list_is_filtered(browser, viewing):
    browser.open(viewing.url)
    browser.wait(READY)
    browser.press("/", *"stack", "Enter")
    browser.wait("document.querySelectorAll('#list button').length === 1")
    browser.run("const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input'))")
    browser.wait("document.querySelectorAll('#list button').length === 3")
    browser.click("#flagged")
    browser.wait("document.querySelectorAll('#list button').length === 1")
    assert browser.run("return document.querySelector('#list button').dataset.episode") == "1"


def test_marks_become_a_plan_and_the_dataset_stays_as_it_is(browser, viewing):
    root = viewing.viewing.library.root
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    browser.open(viewing.url + "#2")
    browser.wait("document.body.dataset.episode === '2'")
    browser.wait(READY)
    browser.press("x", "k")
    browser.wait("document.body.dataset.episode === '1'")
    browser.press("r")
    browser.run("document.getElementById('new-task').value = 'it\\'s a \"new\" task'")
    browser.press("Enter")
    assert (
        browser.run("return document.getElementById('plan-text').textContent") == "1 episode to delete, 1 task to set"
    )
    browser.click("#save")
    browser.wait("document.body.dataset.saved === 'yes'")
    plan = json.loads((root.parent / "plan.json").read_text())
    assert plan["delete"] == [2]
    assert plan["relabel"] == {"1": 'it\'s a "new" task'}
    assert browser.run("return document.getElementById('plan-commands').textContent").count("mimetic dataset edit") == 2
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    browser.press("x")
    browser.open(viewing.url)  # the saved plan comes back
    browser.wait(READY)
    assert browser.run("return document.querySelectorAll('#list .gone').length") == 1


@pytest.mark.parametrize("size", [(1600, 1000), (700, 900)])
def test_the_curves_and_the_timeline_have_one_cursor(browser, viewing, size):
    browser.resize(*size)
    browser.open(viewing.url)
    browser.wait(READY)
    browser.wait("document.getElementById('curve-canvas') !== null")
    browser.press("ArrowRight")
    browser.wait("document.body.dataset.frame === '10'")
    cursors = """
      const canvas = document.getElementById(arguments[0]), row = canvas.height - 2, found = [];
      const data = canvas.getContext('2d').getImageData(0, row, canvas.width, 1).data;
      const dark = (x) => data[4 * x + 3] > 200 && data[4 * x] < 60 && data[4 * x + 2] < 70;
      for (let x = 0; x < canvas.width; x += 1) if (dark(x) && !(x && dark(x - 1))) found.push(x / canvas.width);
      return found;
    """
    timeline, curves = (browser.run(cursors, name) for name in ("timeline", "curve-canvas"))
    assert timeline == [pytest.approx(10 / 39, abs=0.01)]
    assert curves == [pytest.approx(timeline[0], abs=0.006)]
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.resize(1280, 900)


def test_pictures_in_data_files_are_stepped_and_played(browser, tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(12, 9), cameras={"top": (48, 64)}, camera_dtype="image", fps=10)
    with serving(ViewServer(Viewing(Library(root), Marks(), tmp_path / "plan.json"))) as server:
        browser.open(server.url + "#1")
        browser.wait("document.body.dataset.episode === '1'")
        browser.wait(READY)
        browser.press(".", ".")
        browser.wait("document.body.dataset.frame === '2'")
        assert shown(browser) == (1, 2)
        browser.press(" ")
        browser.wait("document.body.dataset.playing === 'false' && document.body.dataset.frame === '8'")
        assert shown(browser) == (1, 8)


def test_the_report_draws_everything_from_one_file(browser, tmp_path):
    faults = Faults(black=(2,), moved=dict.fromkeys((8, 9), (7, 0)))
    hostile = "</script><img src=x onerror=alert(1)>"
    build_scene(
        tmp_path / "set",
        episodes=10,
        length=14,
        cameras=("front",),
        size=(90, 120),
        faults=faults,
        tasks=(hostile, "b"),
    )
    kept = []
    report = check_dataset(
        tmp_path / "set", level="video", pictures=lambda source: kept.append(check_pictures(source)) or kept[0]
    )
    path = tmp_path / "check.html"
    write_check_report(report, path, kept[0])
    browser.open(path.as_uri())
    browser.wait("document.documentElement.dataset.drawn === 'yes'")
    assert browser.log() == []
    visible = browser.run(
        "return [...document.querySelectorAll('section.chart')].filter(s => !s.hidden).map(s => s.id)"
    )
    assert visible == ["map", "footage", "moves", "cameras", "coverage", "lengths", "timing", "joints"]
    browser.wait("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert (
        browser.run("return document.querySelectorAll('#footage .defect').length") == 3
    )  # black, and moved by 6 % of the width
    for width in (390, 800):
        browser.resize(width, 800)
        browser.open(path.as_uri())
        browser.wait("document.documentElement.dataset.drawn === 'yes'")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        # Words in charts stay legible: no drawing is shrunk by more than a quarter.
        assert (
            browser.run(
                "return [...document.querySelectorAll('.chart:not([hidden]) svg')].filter("
                "s => s.clientWidth < 0.74 * s.viewBox.baseVal.width).map(s => s.getAttribute('aria-label'))"
            )
            == []
        )
    browser.resize(1280, 900)
    assert browser.run("return [...document.querySelectorAll('td')].some(c => c.textContent === arguments[0])", hostile)
    assert (
        browser.run("return performance.getEntriesByType('resource').filter(r => !r.name.startsWith('data:')).length")
        == 0
    )
    browser.click(".copy")
    browser.wait("document.querySelector('.copy').textContent === 'copied'")
    browser.click("#footage button")
    assert browser.run("return document.querySelector('dialog[open] img') !== null")
    for width in (1280, 520):
        browser.resize(width, 900)
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.resize(1280, 900)
