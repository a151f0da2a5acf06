"""Edit plans and findings files."""

import json
import shlex

import pytest

from mimetic.data.check.finding import Claim, Finding
from mimetic.errors import ConfigError, DatasetFormatError
from mimetic.report.view.marks import Marks, check_in_background, read_findings
from mimetic.report.view.plan import EditPlan, parse_plan, save_plan
from mimetic.testing.datasets import build_dataset


def test_commands_survive_the_shell_and_set_tasks_before_they_delete(tmp_path):
    plan = EditPlan((2, 5), {4: 'it\'s a "new" $task', 2: "goes anyway"})
    first, second = plan.commands(tmp_path / "my data")
    words = shlex.split(first)
    assert words[:3] == ["mimetic", "dataset", "edit"]
    assert f"--root={tmp_path / 'my data'}" in words
    tasks = next(word for word in words if word.startswith("--operation.episode_tasks="))
    assert json.loads(tasks.partition("=")[2]) == {"4": 'it\'s a "new" $task'}
    assert "--operation.episode_indices=[2,5]" in shlex.split(second)


def test_the_commands_are_understood_by_the_editor(tmp_path):
    from mimetic.cli.dataset_edit import DatasetEditConfig
    from mimetic.config.parse import parse

    for command in EditPlan((2,), {1: "it's: {odd}"}).commands(tmp_path):
        config = parse(DatasetEditConfig, shlex.split(command)[3:], prog="mimetic dataset edit").value
        assert config.root == tmp_path
    assert config.operation.episode_indices == [2]


def test_a_plan_comes_back_from_its_file(tmp_path):
    plan = EditPlan((3,), {0: "müll"}, {0: "blurred"})
    save_plan(plan, tmp_path, tmp_path / "new" / "plan.json")
    data = json.loads((tmp_path / "new" / "plan.json").read_text(encoding="utf-8"))
    assert data["format"] == "mimetic-edit-plan"
    assert parse_plan(data, range(4)) == plan
    assert EditPlan().is_empty
    assert EditPlan().commands(tmp_path) == []


def test_a_plan_for_episodes_that_are_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"not there: \[9\]"):
        parse_plan({"delete": [9]}, [0, 1])
    with pytest.raises(ConfigError, match="must give a text"):
        parse_plan({"relabel": {"0": "x" * 3000}}, [0])


def test_findings_of_a_saved_check(tmp_path):
    path = tmp_path / "check.json"
    rows = [
        {"id": "state.frozen", "claim": "DEFECT", "message": "rests", "episodes": [1], "spans": [[1, 2, 5]]},
        {"id": "image.codec", "claim": "FACT", "message": "h264"},
        {"id": "motion.idle", "claim": "RISK", "message": "idle", "episodes": [1, 2]},
        {"id": "meta.counts", "claim": "DEFECT", "message": "counts", "accepted": "known"},
        {"id": "variety.amount", "claim": "RISK", "message": "few"},
    ]
    path.write_text(json.dumps({"findings": rows}))
    marks = Marks()
    marks.take(read_findings(path), "given")
    assert marks.episodes() == {1: "DEFECT", 2: "RISK"}
    assert [item["spans"] for item in marks.of(1)] == [[[2, 5]], []]
    assert [item["id"] for item in marks.of_dataset()] == ["variety.amount"]


@pytest.mark.parametrize("text", ["[]", "{}", '{"findings": [{"id": 1}]}', '{"findings": [7]}', "nonsense"])
def test_other_files_are_no_findings(tmp_path, text):
    (tmp_path / "check.json").write_text(text)
    with pytest.raises(DatasetFormatError) as raised:
        read_findings(tmp_path / "check.json")
    assert "FILE" in raised.value.hint or "a finding" in raised.value.message


def test_a_check_runs_while_people_look(tmp_path):
    marks = Marks()
    check_in_background(build_dataset(tmp_path / "set"), "quick", marks).join(60)
    assert marks.state == "done"
    assert "metadata" in marks.note
    marks = Marks()
    check_in_background(tmp_path / "nothing", "quick", marks).join(60)
    assert marks.state == "failed"


def test_a_check_that_breaks_says_so(tmp_path, monkeypatch):
    def broken(root, level):
        raise KeyError("odd")

    monkeypatch.setattr("mimetic.report.view.marks.check_dataset", broken)
    marks = Marks()
    check_in_background(tmp_path, "quick", marks).join(60)
    assert (marks.state, marks.note) == ("failed", "the check failed: KeyError")


def test_the_worst_claim_counts():
    marks = Marks()
    claims = [Claim.DEFECT, Claim.RISK, Claim.NOT_CHECKED]
    marks.take([Finding(id="a.b", claim=claim, message="", episodes=(0,)) for claim in claims], "")
    assert marks.episodes() == {0: "DEFECT"}
