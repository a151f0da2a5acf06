"""The command that a finding prints mends what it found: check, run the printed command, check again."""

import shlex

import pytest
from dataset_faults import FAULTS, build_sound
from dataset_invariants import assert_is_sound

from mimetic.cli.app import main
from mimetic.data.check.run import check_dataset


def found(root, rule):
    return [
        finding for finding in check_dataset(root).findings if finding.id == rule and finding.claim != "NOT CHECKED"
    ]


@pytest.mark.parametrize("rule", FAULTS)
def test_the_printed_command_mends_the_finding(tmp_path, rule):
    root = build_sound(tmp_path)
    assert found(root, rule) == []
    FAULTS[rule][0](root)
    findings = found(root, rule)
    assert findings, [finding.id for finding in check_dataset(root).findings]
    words = shlex.split(findings[0].repair)
    if rule == "data.task":  # no command is printed where the table may not say which task was meant
        words = ["mimetic", "dataset", "repair", f"--root={root}", f"--only={rule}", "--apply=true"]
    assert words[:3] == ["mimetic", "dataset", "repair"]
    assert main(words[1:]) == 0
    assert found(root, rule) == []
    assert_is_sound(root)
