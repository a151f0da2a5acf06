"""The demo's page shows what the files say, and nothing that they smuggle in."""

from __future__ import annotations

import json
import re

import pytest

from mimetic.demo.config import DemoConfig
from mimetic.demo.page import write_page
from mimetic.demo.plan import size_of, size_words, time_words
from mimetic.demo.state import new_state
from mimetic.demo.steps import steps_of_demo

DOCUMENT = {"headline": "3 of 4 <b>episodes</b> succeeded", "overall": {"pc_success": 75.0, "interval": [30.1, 95.4]}}
TABLE = (("step", "took"), [("train", "1 s"), ("all", None)])


@pytest.fixture
def config(tmp_path):
    return DemoConfig(output_dir=tmp_path / "demo", task="push")


def page(config, episodes, losses):
    for name, lines in (("eval/episodes.jsonl", episodes), ("train/metrics.jsonl", losses)):
        path = config.output_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = steps_of_demo(config, instruction="Push & shove", cores=2, bf16=False)
    return write_page(config, steps, new_state(config), DOCUMENT, TABLE).read_text()


def episode(number, success, **more):
    return {
        "run": "policy",
        "episode": number,
        "length": 90,
        "success": success,
        "video": f"videos/{number}.mp4",
        **more,
    }


def film(config, number, size=10):
    path = config.output_dir / "eval" / "videos" / f"{number}.mp4"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"f" * size)


def test_failures_are_shown_where_there_are_some(config):
    for number in range(10):
        film(config, number)
    episodes = [episode(number, number not in (6, 7, 9)) for number in range(10)]
    text = page(
        config, episodes, [{"kind": "train", "steps": 5, "loss": 2.0}, {"kind": "train", "steps": 9, "loss": 0.5}]
    )
    assert text.count("<video ") == 6
    assert text.count(">failure<") == 2
    assert [f"episode {number}," in text for number in range(10)] == [
        *[True] * 4,
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert '<polyline points="' in text
    assert ">2</text>" in text
    assert ">0.5</text>" in text


def test_steps_that_were_done_again_are_drawn_once(config):
    def windows(*steps, loss):
        return [{"kind": "train", "steps": step, "loss": loss} for step in steps]

    resumed = [
        *windows(10, 20, 30, 40, loss=9.0),  # killed after 40; the newest checkpoint is of 20
        {"kind": "resume", "steps": 20},
        *windows(30, loss=5.0),  # killed again before the next checkpoint
        {"kind": "resume", "steps": 20},
        *windows(30, 40, 50, loss=2.0),
    ]
    whole = [*windows(10, 20, loss=9.0), *windows(30, 40, 50, loss=2.0)]
    text = page(config, [], resumed)
    assert text == page(config, [], whole)
    (points,) = re.findall(r'<polyline points="([^"]*)"', text)
    across = [float(point.partition(",")[0]) for point in points.split()]
    assert across == sorted(set(across))
    assert len(across) == 5


def test_few_films_are_all_shown(config):
    film(config, 0)
    film(config, 1)
    text = page(config, [episode(0, False), episode(1, False), episode(2, True)], [])
    assert text.count("<video ") == 2
    assert "polyline" not in text.partition("<body>")[2]


def test_what_files_say_is_text_and_paths_stay_inside(config):
    (config.output_dir / "eval").mkdir(parents=True)
    (config.output_dir / "secret.mp4").write_bytes(b"secret")
    film(config, 3, size=2_000_000)
    hostile = [
        episode(0, True, video="../secret.mp4"),
        episode(1, True, video="/etc/hostname"),
        episode(2, True, video="videos/none.mp4"),
        episode(3, True),
        episode(4, True, run="blind"),
    ]
    text = page(config, hostile, [{"kind": "train", "steps": 5, "loss": None}])
    assert "<video " not in text
    assert "3 of 4 &lt;b&gt;episodes&lt;/b&gt; succeeded" in text
    assert "push &amp; shove" in text
    assert "<script" not in text


def test_the_page_says_what_is_known(config):
    text = page(config, [], [])
    for words in ("75&nbsp;%", "interval 30 to 95&nbsp;%", "--dataset.root=", "<td>–</td>", "lerobot-record"):
        assert words in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (93784, "26 h 03 min"),
    ],
)
def test_times(seconds, words):
    assert time_words(seconds) == words


@pytest.mark.parametrize(
    ("size", "words"), [(0, "0 B"), (999.6, "1 kB"), (1.5e6, "2 MB"), (2.34e9, "2.3 GB"), (5e12, "5000.0 GB")]
)
def test_sizes(size, words):
    assert size_words(size) == words


def test_a_folder_counts_its_files_once(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(70))
    (tmp_path / "c").symlink_to(tmp_path / "a" / "b")
    assert size_of(tmp_path) == 70
    assert size_of(tmp_path / "a" / "b") == 70
    assert size_of(tmp_path / "none") == 0
