"""What `evaluate.store` writes is what `report.document` reads."""

import json

import numpy as np
import pytest

from mimetic.errors import ConfigError
from mimetic.evaluate.store import save, to_json
from mimetic.report.document import read_document

NAMES = ("shoulder", "elbow", "wrist", "gripper")


def test_numbers_survive_the_way_through_the_files(result_of, tmp_path):
    result = result_of(NAMES)
    save(result, tmp_path / "evaluation")
    document = read_document(tmp_path / "evaluation")
    scores = result.numbers.scores
    assert [joint.name for joint in document.joints] == list(NAMES)
    for index, joint in enumerate(document.joints):
        assert list(joint.mae.values()) == scores.mae[:, index].tolist()
        assert joint.skill_hold == scores.skill_hold[index]
        assert joint.is_worse == scores.worse_than_hold[index]
    assert document.overall.skill_hold == scores.overall_skill_hold
    assert [step.error["policy"] for step in document.horizon] == result.numbers.horizon[0].tolist()
    assert [item.episode for item in document.episodes] == [0, 1, 2]
    np.testing.assert_allclose(document.traces[0].predicted, result.numbers.traces[0].predicted, rtol=1e-6)
    assert document.pictures[1].jpeg == result.pictures[1].jpeg


def test_nan_is_null_and_the_json_is_strict(result_of, tmp_path):
    save(result_of(NAMES), tmp_path / "evaluation")

    def refuse(constant):
        raise AssertionError(constant)

    text = (tmp_path / "evaluation" / "open_loop.json").read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=refuse)
    assert document["joints"][-1]["skill_mean"] is None  # the gripper never moves
    assert document["overall"]["blind_error"] is None
    lines = (tmp_path / "evaluation" / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse)["episode"] for line in lines] == [0, 1, 2]


def test_an_existing_folder_is_never_touched(result_of, tmp_path):
    folder = tmp_path / "evaluation"
    folder.mkdir()
    (folder / "precious").write_text("kept")
    with pytest.raises(ConfigError, match="exists already") as caught:
        save(result_of(NAMES), folder)
    assert "--output_dir" in caught.value.hint
    assert [path.name for path in tmp_path.rglob("*")] == ["evaluation", "precious"]


def test_a_failed_write_leaves_no_folder(result_of, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        save(result_of(NAMES), tmp_path / "evaluation")
    assert not list(tmp_path.iterdir())


def test_settings_of_any_kind_become_json(tmp_path):
    assert to_json({"a": (1, 2.5, float("nan")), 3: tmp_path, "b": [True, None]}) == {
        "a": [1, 2.5, None],
        "3": str(tmp_path),
        "b": [True, None],
    }
