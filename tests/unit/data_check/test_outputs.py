"""Accepted findings, checklist, split, keep list, JSON and JUnit; rules on tasks and statistics that need no planting."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from mimetic.data.check.checklist import checklist, propose_split
from mimetic.data.check.document import to_json, to_junit
from mimetic.data.check.expected import Accepted, accept
from mimetic.data.check.finding import Claim, Finding
from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.check.policy_rules import padded_share
from mimetic.data.check.rules import RULES
from mimetic.data.check.run import check_dataset, keep_list, worst_claim
from mimetic.data.check.task_rules import normalised
from mimetic.errors import ConfigError, DatasetFormatError
from mimetic.testing.datasets import build_dataset
from mimetic.testing.faults import build_faulty, change_json
from mimetic.testing.recordings import Recording, build_recording, demonstrations, write_recording


def finding(rule="action.lag", episodes=(2, 9, 14), **changes):
    return Finding(id=rule, claim=Claim.DEFECT, message="x", episodes=episodes, **changes)


# Accepted findings


def test_an_accepted_finding_stays_and_does_not_count():
    entry = Accepted(frozenset({"action.lag"}), frozenset({2, 9, 14}), "slow arm")
    (kept,) = accept([finding()], [entry])
    assert kept.accepted == "slow arm"
    assert not kept.counts


def test_what_also_concerns_other_episodes_is_split():
    entry = Accepted(frozenset({"action.lag"}), frozenset({9}), "slow arm")
    spans = ((2, 0, 5), (9, 0, 5), (14, 0, 5))
    open_, accepted = accept([finding(spans=spans)], [entry])
    assert (open_.episodes, accepted.episodes) == ((2, 14), (9,))
    assert (open_.spans, accepted.spans) == ((spans[0], spans[2]), (spans[1],))
    assert (open_.counts, accepted.counts) == (True, False)


def test_an_entry_without_episodes_covers_all_and_other_rules_stay():
    entry = Accepted(frozenset({"stats.match"}), None, "as wanted")
    whole = finding("stats.match", ())
    assert [item.accepted for item in accept([whole, finding()], [entry])] == ["as wanted", ""]
    some = Accepted(frozenset({"stats.match"}), frozenset({1}), "only there")
    assert accept([whole], [some])[0].accepted == ""


def test_the_file_in_the_dataset_is_used_and_the_users_goes_first(tmp_path):
    root = build_faulty(tmp_path / "set", "shifted_action")
    assert not check_dataset(root).passed
    entry = {"expected": [{"checks": ["action.lag"], "episodes": [2, 9, 14], "reason": "recorded with a slow arm"}]}
    own = root / "meta" / "mimetic" / "expected_findings.json"
    own.parent.mkdir()
    own.write_text(json.dumps(entry), encoding="utf-8")
    report = check_dataset(root)
    assert report.passed
    assert report.keep == list(range(20))
    assert [item.id for item in report.findings if item.accepted] == ["action.lag"]
    other = tmp_path / "none.json"
    other.write_text("[]", encoding="utf-8")
    assert not check_dataset(root, expected=other).passed
    with pytest.raises(ConfigError, match="is not there"):
        check_dataset(root, expected=tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"checks": ["action.lag"]}, "needs a `reason`"),
        ({"checks": ["lag"], "reason": "x"}, "no rule ids"),
        ({"checks": "action.lag", "reason": "x"}, "needs `checks`"),
        ({"checks": ["action.lag"], "episodes": "all", "reason": "x"}, "`episodes`"),
    ],
)
def test_entries_that_say_too_little_are_refused(tmp_path, entry, message):
    root = build_dataset(tmp_path / "set")
    path = tmp_path / "expected.json"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    with pytest.raises(DatasetFormatError, match=message):
        check_dataset(root, expected=path)


# Keep list, checklist, split


def test_the_keep_list_leaves_defects_and_named_risks_out(tmp_path):
    report = check_dataset(build_faulty(tmp_path / "set", "idle_head"))
    assert keep_list(report) == list(range(20))
    assert keep_list(report, ["motion.idle_head"]) == [episode for episode in range(20) if episode != 4]
    assert worst_claim(report.findings) is Claim.RISK


def answers(report):
    return {answer.question: answer.answer for answer in checklist(report)}


def test_the_checklist_answers_each_question(tmp_path):
    few = answers(check_dataset(build_recording(tmp_path / "few", Recording(episodes=10, positions=5))))
    assert few == {
        "Enough episodes?": "no",
        "Each variation repeated?": "no",
        "One string for one task?": "yes",
        "Cameras fixed?": "not checked",
        "A variation to hold out?": "yes",
    }
    many = answers(check_dataset(build_recording(tmp_path / "many", Recording(episodes=50, positions=5))))
    assert (many["Enough episodes?"], many["Each variation repeated?"]) == ("yes", "yes")
    one = answers(check_dataset(build_recording(tmp_path / "one", Recording(episodes=30, positions=1))))
    assert one["A variation to hold out?"] == "no"
    words = answers(check_dataset(build_faulty(tmp_path / "words", "task_variants")))
    assert words["One string for one task?"] == "no"


def test_a_split_holds_whole_situations_out(tmp_path):
    report = check_dataset(build_recording(tmp_path / "set", Recording(episodes=50, positions=5)))
    split = propose_split(report)
    assert sorted(split.train + split.held_out) == list(range(50))
    # The object lies in one place for ten episodes in a row.
    assert len({episode // 10 for episode in split.held_out} & {episode // 10 for episode in split.train}) == 0
    assert 3 <= len(split.held_out) <= 20


def test_a_split_does_not_use_episodes_with_defects(tmp_path):
    report = check_dataset(build_faulty(tmp_path / "set", "duplicate_episode", Recording(episodes=20, positions=4)))
    split = propose_split(report)
    assert 11 not in split.train + split.held_out


# Documents


def test_json_and_junit_hold_the_findings(tmp_path):
    report = check_dataset(build_faulty(tmp_path / "set", "frozen_state"))
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    frozen = next(item for item in document["findings"] if item["id"] == "state.frozen")
    assert (frozen["claim"], frozen["episodes"], frozen["spans"]) == ("DEFECT", [5], [[5, 20, 86]])
    assert document["keep"] == report.keep
    assert len(document["measures"]["sal"]) == 20
    assert document["measures"]["sal"][5] is None
    suite = ElementTree.fromstring(to_junit(report))
    assert (suite.get("failures"), int(suite.get("tests"))) == ("1", len(suite))
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["state.frozen"]
    assert "delete_episodes" in suite.find("testcase[@name='state.frozen']/failure").text
    skipped = {case.get("name") for case in suite if case.find("skipped") is not None}
    assert "time.true_rate" in skipped
    strict = ElementTree.fromstring(to_junit(report, fail_on=Claim.RISK))
    assert int(strict.get("failures")) == 2


# Tasks


@pytest.mark.parametrize("task", ["", "  ", "test", "TODO", "n/a", "pu", "Task.", "My task!"])
def test_placeholders_are_told(tmp_path, task):
    report = check_dataset(build_dataset(tmp_path / "set", tasks=(task,)))
    found = [item for item in report.findings if item.id == "task.placeholder"]
    assert [item.claim for item in found] == [Claim.RISK]
    assert "modify_tasks" in found[0].repair


def test_a_usual_task_is_no_placeholder(tmp_path):
    report = check_dataset(build_dataset(tmp_path / "set", tasks=("Test the soup", "Pick up the cube")))
    assert [item.id for item in report.findings if item.id.startswith("task.")] == ["task.long"]


def test_variants_name_the_usual_wording_and_its_command(tmp_path):
    tasks = ("Pick up the cube", "pick up the cube.", "Place it")
    report = check_dataset(build_dataset(tmp_path / "set", lengths=(9,) * 6, tasks=tasks))
    (found,) = [item for item in report.findings if item.id == "task.variants"]
    assert found.episodes == (1, 4)
    assert '\'--operation.task_replacements={"pick up the cube.": "Pick up the cube"}\'' in found.repair


def test_normalising_keeps_words_only():
    assert normalised("  Pick-up  the CUBE!! ") == normalised("pick up the ｃｕｂｅ") == "pick up the cube"


# Statistics and policies


def test_stale_statistics_name_the_channel_and_both_values(tmp_path):
    root = build_recording(tmp_path / "set", Recording(episodes=4))
    change_json(root / "meta" / "stats.json", lambda stats: stats["action"]["mean"].__setitem__(2, 55.5))
    (found,) = [item for item in check_dataset(root).findings if item.id == "stats.match"]
    assert found.feature == "action[elbow_flex.pos]"
    assert found.value == 55.5
    assert found.claim is Claim.DEFECT


def test_a_deviation_below_one_percent_is_none(tmp_path):
    root = build_recording(tmp_path / "set", Recording(episodes=4))

    def nudge(stats):
        spread = np.subtract(stats["action"]["max"], stats["action"]["min"])
        stats["action"]["mean"] = (np.asarray(stats["action"]["mean"]) + 0.009 * spread).tolist()

    change_json(root / "meta" / "stats.json", nudge)
    assert check_dataset(root).passed
    change_json(root / "meta" / "stats.json", nudge)
    assert not check_dataset(root).passed


def test_quantiles_out_of_order_are_a_defect(tmp_path):
    root = build_recording(tmp_path / "set", Recording(episodes=4))

    def swap(stats):
        action = stats["action"]
        action["q10"], action["q90"] = action["q90"], action["q10"]

    change_json(root / "meta" / "stats.json", swap)
    (found,) = [item for item in check_dataset(root).findings if item.id == "stats.match"]
    assert "is above its" in found.message


def test_statistics_of_relative_actions_are_not_compared(tmp_path):
    root = build_recording(tmp_path / "set", Recording(episodes=4))
    frames = json.loads((root / "meta" / "info.json").read_text())["total_frames"]
    change_json(root / "meta" / "stats.json", lambda stats: stats["action"].update(mean=[0.0] * 6, count=[frames * 50]))
    report = check_dataset(root)
    assert report.passed
    assert any(item.id == "stats.match" and item.claim is Claim.NOT_CHECKED for item in report.findings)


def needs(**changes):
    return PolicyNeeds(name="policy `x`", **changes)


def policy_findings(root, **changes):
    report = check_dataset(root, needs=needs(**changes))
    return {item.id: item for item in report.findings if item.claim in (Claim.DEFECT, Claim.RISK)}


def test_what_a_policy_needs_is_compared(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(40, 40), cameras={"front": (32, 48)}, fps=10)
    found = policy_findings(
        root,
        inputs={"observation.images.top": (3, 32, 48), "observation.state": (5,)},
        outputs={"action": (2,)},
        chunk=50,
        fps=30.0,
    )
    assert found["policy.cameras"].claim is Claim.DEFECT
    assert '--rename_map={"observation.images.front": "observation.images.top"}' in found["policy.cameras"].repair
    assert (found["policy.features"].value, found["policy.features"].threshold) == (3.0, 5.0)
    assert found["policy.fps"].threshold == 30.0
    assert found["policy.chunk"].claim is Claim.RISK
    right = policy_findings(
        root,
        inputs={"observation.images.front": (3, 32, 48), "observation.state": (3,)},
        outputs={"action": (2,)},
        chunk=10,
        fps=10.0,
    )
    assert not any(rule.startswith("policy.") for rule in right)


def test_widths_missing_statistics_and_checkpoint_problems_are_defects(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(40, 40))
    change_json(root / "meta" / "stats.json", lambda stats: stats["action"].pop("q99"))
    found = policy_findings(root, modes={"action": "QUANTILES"}, max_state=2, problems=(("broken", "copy it"),))
    assert "lack q99" in found["stats.present"].message
    assert "QUANTILES" in found["stats.present"].message
    assert found["policy.width"].claim is Claim.DEFECT
    assert found["policy.checkpoint"].message == "broken"


def test_an_outlier_under_min_max_is_a_risk(tmp_path):
    action = np.random.default_rng(0).normal(0, 1, (400, 2)).astype(np.float32)
    action[100, 1] = 80
    root = build_dataset(tmp_path / "set", lengths=(200, 200), columns={"action": action})
    assert policy_findings(root, modes={"action": "MIN_MAX"})["stats.outlier"].feature == "action[joint_1.pos]"
    assert "stats.outlier" not in policy_findings(root, modes={"action": "MEAN_STD"})


@pytest.mark.parametrize("chunk", [1, 2, 8, 50])
def test_the_padded_share_is_that_of_the_plain_count(chunk):
    lengths = [1, 3, 7, 60]
    plain = sum(max(0, t + chunk - n) for n in lengths for t in range(n)) / (sum(lengths) * chunk)
    assert padded_share(lengths, chunk) == pytest.approx(plain)


def test_every_rule_is_documented_with_its_threshold(repository):
    page = (repository / "docs" / "concepts" / "dataset_checks.md").read_text(encoding="utf-8")
    assert [rule for rule in RULES if f"`{rule}`" not in page] == []
    assert [rule for rule, entry in RULES.items() if entry.threshold.replace("|", "\\|") not in page] == []


def test_a_nearly_equal_repetition_is_a_risk_and_a_new_demonstration_is_not(tmp_path):
    spec = Recording(episodes=20, positions=1)
    made = demonstrations(spec)
    generator = np.random.default_rng(0)
    noise = generator.normal(0, 0.3, made[2].state.shape)
    made[12] = replace(made[2], state=made[2].state + noise, action=made[2].action + noise)
    (found,) = [
        item for item in check_dataset(write_recording(tmp_path / "set", spec, made)).findings if "near" in item.id
    ]
    assert (found.id, found.claim, found.episodes) == ("variety.near_duplicates", Claim.RISK, (12,))


def test_commands_clipped_at_their_end_are_a_risk_and_a_rest_pose_is_not(tmp_path):
    spec = Recording(episodes=10, positions=1)
    made = demonstrations(spec)
    limit = np.quantile(np.concatenate([item.action[:, 0] for item in made]), 0.8)
    rest = check_dataset(write_recording(tmp_path / "rest", spec, made))
    assert "action.saturation" not in {item.id for item in rest.findings}
    for item in made:
        item.action[:, 0] = np.minimum(item.action[:, 0], limit)
    report = check_dataset(write_recording(tmp_path / "clipped", spec, made))
    (found,) = [item for item in report.findings if item.id == "action.saturation"]
    assert found.feature == "action[shoulder_pan.pos]"
    assert len(found.episodes) == 10


def test_different_words_for_the_same_motion_are_told(tmp_path):
    words = ("Pick up the cube", "Wave at the door")
    same = build_recording(tmp_path / "same", Recording(episodes=20, positions=1, tasks=words))
    assert [item.claim for item in check_dataset(same).findings if item.id == "task.same_motion"] == [Claim.RISK]
    other = build_recording(tmp_path / "other", Recording(episodes=20, positions=1, tasks=words[:1]))
    assert "task.same_motion" not in {item.id for item in check_dataset(other).findings}
