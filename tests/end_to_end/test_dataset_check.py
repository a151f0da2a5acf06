"""`mimetic dataset check` as users call it: output, files, exit codes."""

import json
from xml.etree import ElementTree

import pytest

from mimetic.cli.app import main
from mimetic.testing.datasets import build_dataset
from mimetic.testing.faults import build_faulty, picture_recording


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    return build_faulty(tmp_path_factory.mktemp("faulty") / "set", "frozen_state")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return build_faulty(tmp_path_factory.mktemp("clean") / "set", "")


def check(*words):
    return main(["dataset", "check", *map(str, words)])


def test_findings_come_first_with_what_mends_them(faulty, capsys):
    assert check(faulty) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{faulty}: 20 episodes")
    assert lines[1] == "Episodes have 135 to 160 frames, in the median 151.5 (5.05 s)"
    assert lines[3] == "DEFECT (1)"
    assert lines[4].strip() == "state.frozen"
    assert "67 frames from 20 on" in lines[5]
    assert "Why it matters" in lines[6]
    assert lines[7].strip().startswith("Mend: mimetic dataset edit")
    titles = [line.split(" (")[0] for line in lines if line.split(" (")[0] in ("DEFECT", "RISK", "FACT", "NOT CHECKED")]
    assert titles == ["DEFECT", "RISK", "FACT", "NOT CHECKED"]
    assert lines[-1] == "FAILED: 1 defects, 1 risks; 19 of 20 episodes are without defect; grade 95 of 100"
    assert (
        sum(line.lstrip().startswith(("Enough", "Each", "One string", "Cameras", "A variation")) for line in lines) == 5
    )


def test_a_clean_set_passes_and_risks_fail_only_when_asked(clean, capsys):
    assert check(clean) == 0
    assert "OK: no defect found" in capsys.readouterr().out
    assert check(clean, "--fail_on=risk") == 1


def test_json_goes_to_stdout_alone_and_files_are_written(faulty, tmp_path, capsys):
    keep, junit = tmp_path / "keep.json", tmp_path / "deep" / "junit.xml"
    assert check(faulty, "--json", f"--keep_list={keep}", f"--junit={junit}") == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["grade"] == 95
    assert f"wrote {keep}" in printed.err
    assert json.loads(keep.read_text()) == [episode for episode in range(20) if episode != 5]
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_the_keep_list_drops_named_risks(tmp_path, capsys):
    root = build_faulty(tmp_path / "set", "idle_head")
    keep = tmp_path / "keep.json"
    assert check(root, f"--keep_list={keep}", "--drop_risk=motion.idle_head") == 0
    assert 4 not in json.loads(keep.read_text())
    assert check(root, f"--keep_list={keep}", "--drop_risk=motion.idle_haed") == 2
    assert "motion.idle_head" in capsys.readouterr().err


def test_a_proposed_split_is_made_of_flags(tmp_path, capsys):
    from mimetic.testing.recordings import Recording, build_recording

    root = build_recording(tmp_path / "set", Recording(episodes=20, positions=4))
    assert check(root, "--propose_split") == 0
    out = capsys.readouterr().out
    train = next(line.partition("=")[2] for line in out.splitlines() if "train on:" in line)
    held = next(line.partition("=")[2] for line in out.splitlines() if "evaluate on:" in line)
    assert sorted(json.loads(train) + json.loads(held)) == list(range(20))


def test_a_policy_adds_what_it_needs(clean, capsys):
    assert check(clean, "--policy.type=smolvla", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    facts = {item["id"]: item for item in document["findings"]}
    assert document["facts"]["padding"]["chunk"] == 50
    assert facts["policy.chunk"]["claim"] == "FACT"
    assert "policy.width" in document["rules"]
    assert facts["task.long"]["claim"] == "NOT CHECKED"


def test_a_trained_policy_is_compared_with_the_dataset(fixtures, clean, capsys):
    folder = fixtures / "act" / "state_env" / "checkpoint"
    check(clean, f"--policy.path={folder}", "--json")
    document = json.loads(capsys.readouterr().out)
    assert "policy.features" in document["rules"]
    assert any(item["id"] == "policy.features" and item["claim"] == "DEFECT" for item in document["findings"])


def test_quick_reads_the_metadata_only(clean, capsys):
    (data := clean / "data").rename(clean / "away")
    try:
        data.mkdir()
        (data / "chunk-000").mkdir()
        (data / "chunk-000" / "file-000.parquet").write_bytes(b"not read")
        assert check(clean, "--quick") == 0
    finally:
        for path in sorted(data.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        data.rmdir()
        (clean / "away").rename(data)
    assert "--quick reads the metadata only" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere/at/all"], "no dataset at"),
        ([], "no dataset is named"),
        (["x", "--quick", "--video"], "--quick"),
        (["x", "--drop_risk=motion.idle_head"], "--keep_list"),
        (["x", "--policy.path=/nowhere"], "policy"),
    ],
)
def test_what_cannot_run_exits_with_2(words, said, capsys):
    assert check(*words) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_list_of_expected_findings_exits_with_2(clean, tmp_path, capsys):
    path = tmp_path / "expected.json"
    path.write_text("{", encoding="utf-8")
    assert check(clean, f"--expected={path}") == 2
    assert "cannot be read" in capsys.readouterr().err


def test_pictures_and_the_page(tmp_path, capsys):
    root = build_faulty(tmp_path / "set", "black_episode", picture_recording(episodes=10))
    page = tmp_path / "report.html"
    assert check(root, "--video", "--engine=serial", f"--html={page}") == 1
    assert "image.black" in capsys.readouterr().out
    text = page.read_text(encoding="utf-8")
    assert "image.black" in text
    assert len(text) > 10_000


def test_a_v21_dataset_is_checked_as_it_is(tmp_path, capsys):
    root = build_dataset(tmp_path / "set", version="v2.1", lengths=(20, 20, 20))
    assert check(root) == 0
    assert "OK" in capsys.readouterr().out
