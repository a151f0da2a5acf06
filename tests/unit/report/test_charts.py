import io
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from PIL import Image

from mimetic.errors import MissingExtra
from mimetic.report.charts import MOST_CHUNKS, draw_charts, error_by_horizon, error_by_joint, joint_motion
from mimetic.report.document import Trace, read_document
from mimetic.report.figure import drawing, to_svg
from mimetic.report.style import DARK, LIGHT


@pytest.fixture
def document(evaluation):
    return read_document(evaluation())


def all_elements(charts):
    return [charts.error_by_joint, charts.error_by_steps_ahead, *(svg for row in charts.motion for svg in row)]


def test_every_colour_in_the_page_is_a_variable_that_both_themes_define(document):
    assert LIGHT.keys() == DARK.keys()
    used = set()
    for svg in all_elements(draw_charts(document)):
        tags = "".join(re.findall("<[^>]*>", svg))
        assert not re.search(r"#[0-9a-f]{6}\b(?!\")", re.sub(r'(href|url)[^"]*"?#\w+', "", tags).replace("url(#", ""))
        used |= set(re.findall(r"var\(--(\w+)\)", svg))
    assert used == LIGHT.keys() - {"card"}


def test_no_two_pictures_share_an_inner_name(document):
    names = [name for svg in all_elements(draw_charts(document)) for name in re.findall(r'\bid="([^"]*)"', svg)]
    assert names
    assert len(set(names)) == len(names)


def test_inner_references_lead_somewhere(document):
    for svg in all_elements(draw_charts(document)):
        names = set(re.findall(r'\bid="([^"]*)"', svg))
        assert set(re.findall(r'href="#([^"]*)"', svg)) | set(re.findall(r"url\(#([^)]*)\)", svg)) <= names


def test_a_picture_says_what_it_shows_and_its_words_are_words(document):
    charts = draw_charts(document)
    for joint, svg in zip(document.joints, charts.motion[0], strict=True):
        root = ElementTree.fromstring(svg)
        assert root.get("aria-label") == f"Recorded and predicted action of {joint.name} in episode 0"
        words = [element.text for element in root.iter() if element.tag.endswith("text")]
        assert joint.name in words
        assert "time [s]" in words


@pytest.mark.parametrize(
    "name",
    ["$x_1$", "$\\undefined{", "100 $", "a\nb\x00c", "<b>&amp;\"'", "#2563c9", "関節", "-->", "x" * 300],
)
def test_any_name_of_a_joint_can_be_drawn(evaluation, name):
    charts = draw_charts(read_document(evaluation(names=(name, "plain"), episodes=1)))
    words = "".join(ElementTree.fromstring(charts.motion[0][0].replace("\x00", "")).itertext())
    shown = name.replace("\n", " ").replace("\x00", " ")
    assert (shown if len(shown) < 36 else shown[:35] + "…") in words
    assert all(re.fullmatch(r"[\w-]+\.png", file) for file in charts.files)


def test_files_are_pictures_on_white(document):
    files = draw_charts(document).files
    assert list(files) == [
        "00_shoulder.png",
        "01_elbow.png",
        "02_wrist.png",
        "03_gripper.png",
        "error_by_joint.png",
        "error_by_steps_ahead.png",
    ]
    for content in files.values():
        image = Image.open(io.BytesIO(content)).convert("RGB")
        assert image.width >= 900
        assert image.getpixel((0, 0)) == (255, 255, 255)
        assert len(image.getcolors(1 << 20)) > 5


def test_pictures_made_again_have_the_same_bytes_whatever_the_users_settings(document):
    once = draw_charts(document)
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": "other", "font.size": 20, "axes.grid": False}):
        assert draw_charts(document) == once


def test_drawing_leaves_matplotlib_as_it_was(document):
    before = dict(matplotlib.rcParams)
    draw_charts(document)
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_loaded_only_to_draw_and_pyplot_never(evaluation):
    program = (
        "import sys; from pathlib import Path; import mimetic.report.open_loop as report;"
        "assert 'matplotlib' not in sys.modules;"
        f"report.write_report(Path({str(evaluation())!r}));"
        "assert 'matplotlib' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_matplotlib_the_error_is_the_install_command(document, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="`matplotlib` is not installed") as caught:
        draw_charts(document)
    assert caught.value.hint == "`pip install 'mimetic[report]'`"


def motion_of(trace, joint, steps):
    with drawing():
        figure = joint_motion(trace, 0, joint, fps=10.0, steps=steps)
        return figure.axes[0], to_svg(figure, "test")


def test_the_lines_are_the_recording_and_the_chunks_as_a_robot_executes_them(document):
    recorded = np.arange(8, dtype=np.float32)[:, None]
    starts = np.array([0, 2, 3, 6])  # the one at 3 would interrupt the chunk from 2
    predicted = (100 * starts[:, None] + np.arange(4))[..., None].astype(np.float32)
    trace = Trace(
        episode=0, recorded=recorded, starts=starts, predicted=predicted, hold=-starts[:, None].astype(np.float32)
    )
    axes, _ = motion_of(trace, document.joints[0], 2)
    nan = np.nan
    lines = {line.get_label(): line.get_xydata().T for line in axes.lines}
    np.testing.assert_allclose(lines["recorded"], [np.arange(8) / 10, np.arange(8)])
    xs, ys = lines["predicted and executed"]
    np.testing.assert_allclose(xs, [0, 0.1, nan, 0.2, 0.3, nan, 0.6, 0.7, nan])
    np.testing.assert_allclose(ys, [0, 1, nan, 200, 201, nan, 600, 601, nan])
    xs, ys = lines["predicted, replaced by the next chunk"]
    np.testing.assert_allclose(ys, [1, 2, 3, nan, 201, 202, 203, nan, 601, nan])  # nothing beyond the episode
    np.testing.assert_allclose(lines["hold still"][1], [0, 0, nan, -2, -2, nan, -6, -6, nan])


def test_a_long_episode_with_a_prediction_a_frame_makes_a_small_picture(document):
    generator = np.random.default_rng(0)
    frames = 6000
    trace = Trace(
        episode=0,
        recorded=generator.normal(size=(frames, 1)).astype(np.float32),
        starts=np.arange(frames),
        predicted=generator.normal(size=(frames, 50, 1)).astype(np.float32),
        hold=np.zeros((frames, 1), np.float32),
    )
    axes, svg = motion_of(trace, document.joints[0], 1)
    assert len(axes.lines[-1].get_xdata()) == MOST_CHUNKS
    assert len(svg) < 600_000


def test_the_noise_of_a_joint_at_rest_is_not_blown_up(document):
    recorded = (1.25 + 1e-7 * np.random.default_rng(0).normal(size=(30, 1))).astype(np.float32)
    start = np.array([0])
    trace = Trace(episode=0, recorded=recorded, starts=start, predicted=recorded[None, :10], hold=recorded[:1])
    axes, _ = motion_of(trace, document.joints[0], 5)
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(2.5e-3, rel=0.01)
    assert low < 1.25 < high


def test_every_moving_joint_has_its_row_and_its_name(document):
    with drawing():
        axes = error_by_joint(document.joints).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["shoulder", "elbow", "wrist"]  # the gripper rests
    policy = next(line for line in axes.lines if line.get_label() == "policy")
    assert list(policy.get_xdata()) == [joint.error["policy"] for joint in document.joints[:3]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["policy", "hold still", "mean action"]


def test_there_is_no_chart_of_nothing(document):
    assert error_by_joint(tuple(replace(joint, scale=float("nan")) for joint in document.joints)) is None
    assert error_by_horizon(document.horizon[:1]) is None
    nan = dict.fromkeys(("policy", "hold", "mean"), float("nan"))
    assert error_by_horizon(tuple(replace(step, error=nan) for step in document.horizon)) is None
