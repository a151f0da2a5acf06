"""The page of an evaluation in an environment: nothing in it comes alive, nothing outside its folder is read."""

from __future__ import annotations

import json

import pytest

from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.documents import MEANING
from mimetic.report.rollout import MOST_STRIPS, write_report

HOSTILE = "<script>alert(1)</script>\"'&"
JPEG = b"\xff\xd8\xff\xe0 not really"


def rate(**changes):
    return {
        "title": HOSTILE,
        "run": "policy",
        "n_episodes": 3,
        "successes": 1,
        "pc_success": 100 / 3,
        "interval": [6.1, 79.2],
        "mean_length_of_successes": 40.0,
        **changes,
    }


def shift(**changes):
    return {
        "split": HOSTILE,
        "reference": HOSTILE + "!",
        "task": None,
        "verdict": HOSTILE,
        "is_harder": True,
        "successes": 6,
        "n_episodes": 50,
        "reference_successes": 42,
        "reference_n_episodes": 50,
        "difference": -72.0,
        "difference_interval": [-82.0, -55.0],
        "p_value": 1e-9,
        "p_corrected": 4e-9,
        "detectable": None,
        **changes,
    }


def write(folder, *, episodes=None, **changes):
    (folder / "strips").mkdir(parents=True)
    (folder / "strips/a.jpg").write_bytes(JPEG)
    document = {
        "format": "mimetic closed-loop evaluation",
        "format_version": 1,
        "headline": HOSTILE,
        "findings": [HOSTILE],
        "caveats": [HOSTILE],
        "overall": rate(),
        "tasks": [rate(), rate()],
        "splits": [rate()],
        "other_passes": [rate(run="blind"), rate(run=HOSTILE, pc_success=None, mean_length_of_successes=None)],
        "differences": [
            {
                "run": HOSTILE,
                "both": 1,
                "only_policy": 2,
                "only_other": 0,
                "neither": 0,
                "difference": 66.7,
                "difference_interval": [-10.0, 90.0],
                "p_value": 1e-5,
                "detectable": 45.0,
            }
        ],
        "shifts": [shift(), shift(is_harder=False, difference=14.0, difference_interval=[-10.0, 40.0])],
        "shifts_by_task": [shift(task=HOSTILE)],
        "reading": HOSTILE + "?",
        "main": changes.get("overall", rate()),
        "latency": {"keeps_up": True, "fps": 30, "tick_ms": 33.3, "median_ms": 2.0, "p95_ms": 4.0},
        "meaning": dict.fromkeys(MEANING, "words"),
        **changes,
    }
    config = {
        "seed": 1000,
        "checkpoint": {"path": HOSTILE, "type": HOSTILE, "sha256": "0" * 64},
        "compare": {"path": HOSTILE, "sha256": ""},
        "device": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "environments": {HOSTILE: {"renderer": HOSTILE}},
    }
    rows = episodes or [episode()]
    (folder / "closed_loop.json").write_text(json.dumps(document))
    (folder / "eval_config.json").write_text(json.dumps(config))
    (folder / "episodes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def episode(**changes):
    return {
        "run": "policy",
        "group": HOSTILE,
        "task_id": 0,
        "task": HOSTILE,
        "split": HOSTILE,
        "episode": 0,
        "seed": 1000,
        "instruction": HOSTILE,
        "length": 12,
        "success": False,
        "video": HOSTILE,
        "strip": "strips/a.jpg",
        **changes,
    }


def test_every_text_is_escaped(tmp_path):
    text = write_report(write(tmp_path / "a")).read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "default-src &#x27;none&#x27;" in text or "default-src 'none'" in text
    assert text.count("data:image/jpeg;base64,") == 1


def test_the_picture_of_dependences_shows_falls_to_the_left(tmp_path):
    """An easier split is shown by what its absence costs, so that every fall points the same way."""
    text = write_report(write(tmp_path / "a")).read_text()
    assert "What success depends on" in text
    assert '<b style="left:14.0%"></b>' in text  # 72 points below the middle, of 200
    assert "−72 <span>(−82 to −55)</span>" in text
    assert "−14 <span>(−40 to +10)</span>" in text
    before = text.index("What success depends on")
    assert before < text.index("Findings")


def test_a_file_of_an_older_version_is_shown_without_it(tmp_path):
    folder = write(tmp_path / "a", differences=[])
    document = json.loads((folder / "closed_loop.json").read_text())
    for name in ("shifts", "shifts_by_task", "reading", "main"):
        del document[name]
    (folder / "closed_loop.json").write_text(json.dumps(document))
    assert "What success depends on" not in write_report(folder).read_text()


def test_pictures_come_from_the_folder_only(tmp_path):
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    rows = [
        episode(strip="../secret.jpg"),
        episode(strip=str(tmp_path / "secret.jpg")),
        episode(strip="strips/none.jpg"),
    ]
    text = write_report(write(tmp_path / "a", episodes=rows)).read_text()
    assert "data:image/jpeg" not in text


def test_failures_come_first_and_a_page_stays_small(tmp_path):
    rows = [episode(episode=k, success=k != 30) for k in range(31)]
    text = write_report(write(tmp_path / "a", episodes=rows)).read_text()
    assert text.count("data:image/jpeg;base64,") == MOST_STRIPS
    assert text.index("episode 30,") < text.index("episode 0,")
    assert f"{31 - MOST_STRIPS} more are in the folder strips" in text


def test_nothing_succeeded_nothing_measured(tmp_path):
    changes = {"overall": rate(pc_success=None, mean_length_of_successes=None), "latency": None, "differences": []}
    text = write_report(write(tmp_path / "a", **changes)).read_text()
    assert 'class="verdict unknown"' in text


@pytest.mark.parametrize(("share", "level"), [(80.0, "good"), (79.9, "weak"), (29.9, "bad")])
def test_the_colour_of_the_verdict_follows_the_share(tmp_path, share, level):
    text = write_report(write(tmp_path / "a", overall=rate(pc_success=share))).read_text()
    assert f'class="verdict {level}"' in text


def test_a_newer_file_and_none_at_all_are_said(tmp_path):
    with pytest.raises(ConfigError, match="not an evaluation that this version"):
        write_report(write(tmp_path / "a", format_version=2))
    with pytest.raises(ConfigError, match="nothing to report"):
        write_report(tmp_path / "nowhere")
