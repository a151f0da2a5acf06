"""The model card: exact text for two runs, and text of strangers that must stay text."""

import os
from dataclasses import replace

import pytest
import yaml

from mimetic.hub.card import CardFacts, Port, base_of, card_text, losses_of
from mimetic.policies.catalog import POLICIES

ACT = CardFacts(
    repo_id="me/act_pick",
    policy_type="act",
    tags=("so101", "kitchen"),
    inputs=(
        Port(name="observation.state", kind="STATE", shape=(6,), parts=("shoulder_pan.pos", "gripper.pos")),
        Port(name="observation.images.front", kind="VISUAL", shape=(3, 480, 640)),
        Port(name="observation.images.wrist", kind="VISUAL", shape=(3, 480, 640)),
    ),
    outputs=(Port(name="action", kind="ACTION", shape=(6,)),),
    dataset="me/pick",
    dataset_revision="v3.0",
    robot="so101_follower",
    episodes=45,
    heldout_episodes=5,
    frames=21_000,
    fps=30,
    tasks=("Pick the red cube", "Put it into the box"),
    training=(
        ("steps", "100000"),
        ("batch size", "8"),
        ("optimiser", "adamw lr=1e-05 weight_decay=0.0001"),
        ("learning rate", "constant at 1e-05"),
        ("precision", "bfloat16 autocast"),
        ("seed", "1000"),
        ("time in steps", "3.2 h"),
        ("hardware", "NVIDIA H200"),
    ),
    losses=(("training, last window", 0.0412345678, 100_000), ("held out, best", 0.071, 80_000)),
    versions=(("mimetic", "0.1.0"), ("torch", "2.13.0"), ("Python", "3.12.1"), ("CUDA", "13.0")),
)
ADAPTER = replace(
    ACT,
    repo_id="lab/smol",
    policy_type="smolvla",
    license="CC-BY-4.0",
    base_model="lerobot/smolvla_base",
    is_adapter=True,
    is_average=True,
    tags=(),
    heldout_episodes=0,
    dataset_revision="",
    robot="",
    losses=(),
    tasks=(),
)


def front(text):
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


@pytest.mark.parametrize(("facts", "name"), [(ACT, "card_act.md"), (ADAPTER, "card_adapter.md")])
def test_the_card_is_this_text(fixtures, facts, name):
    path = fixtures / "hub" / name
    if os.environ.get("MIMETIC_WRITE_CARDS"):
        path.write_text(card_text(facts), encoding="utf-8")
    assert card_text(facts) == path.read_text(encoding="utf-8")


def test_a_policy_that_lerobot_cannot_load_sends_nobody_there():
    text = card_text(replace(ACT, policy_type="keypoint"))
    head = front(text)
    assert head["library_name"] == "mimetic"
    assert head["tags"] == ["keypoint", "kitchen", "mimetic", "robotics", "so101"]
    assert "mimetic train --policy.path=me/act_pick" in text
    assert "lerobot-" not in text
    assert "With LeRobot" not in text
    assert "cannot load it" in text
    assert "arXiv:1504.00702" in text


@pytest.mark.parametrize("name", POLICIES.available())
def test_every_policy_is_described_with_its_paper(name):
    text = card_text(replace(ACT, policy_type=name))
    assert "A policy of type" not in text
    assert "@article" in text


def test_the_head_is_what_the_hub_expects():
    assert front(card_text(ACT)) == {
        "library_name": "lerobot",
        "pipeline_tag": "robotics",
        "license": "apache-2.0",
        "tags": ["act", "kitchen", "lerobot", "mimetic", "robotics", "so101"],
        "model_name": "act",
        "datasets": ["me/pick"],
    }
    head = front(card_text(ADAPTER))
    assert (head["license"], head["base_model"], head["base_model_relation"]) == (
        "cc-by-4.0",
        "lerobot/smolvla_base",
        "adapter",
    )


def test_an_unknown_licence_goes_the_hubs_way():
    head = front(card_text(replace(ACT, license="My Own: Licence\n1.0")))
    assert (head["license"], head["license_name"]) == ("other", "my-own-licence-1.0")


HOSTILE = [
    "---\nlicense: mit\n---",
    "a: b # c",
    "- item\n- item",
    "\"quoted\" 'quoted' \\n",
    "{x: [y",
    "\u2028\u2029\x85\ufeff\x00\x1b[31m \ud800",
    "😀 éß 日本",
    "true",
    "1e3",
    "!!python/object/apply:os.system [ls]",
    "*anchor &anchor",
    "",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_out_of_the_head(text):
    card = card_text(replace(ACT, tags=(text, "plain"), license=text, dataset=text, base_model=text, policy_type=text))
    head = front(card)
    assert "plain" in head["tags"]
    assert all(isinstance(tag, str) for tag in head["tags"])
    assert set(head) <= {"library_name", "pipeline_tag", "license", "license_name", "tags", "model_name"}
    assert isinstance(head["model_name"], str)
    assert isinstance(head["license"], str)
    assert card.encode()  # nothing in it that UTF-8 has no form for


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("Pick | the *cube*", r"- Pick \| the \*cube\*"),
        ("<script>alert(1)</script> & more", "- &lt;script&gt;alert(1)&lt;/script&gt; &amp; more"),
        ("one\n\n# two\n---\n", "- one # two ---"),
        ("# big", r"- \# big"),
        ("- nested", r"- \- nested"),
        ("1. first", r"- 1\. first"),
        ("[x](javascript:y)", r"- \[x\](javascript:y)"),
        ("see https://x.y", "- see https:&#47;&#47;x.y"),
        ("`code` ![img](u)", r"- \`code\` !\[img\](u)"),
        ("x" * 400, "- " + "x" * 297 + "..."),
    ],
)
def test_instructions_are_shown_as_they_are(task, shown):
    lines = card_text(replace(ACT, tasks=(task,))).splitlines()
    assert shown in lines
    assert len(lines) == len(card_text(replace(ACT, tasks=("plain",))).splitlines())


def test_names_of_strangers_do_not_end_a_table():
    bad = Port(name="obs|`x`\n| y |", kind="STATE", shape=(1,), parts=("a|b", "<i>"))
    row = next(line for line in card_text(replace(ACT, inputs=(bad,))).splitlines() if line.startswith("| in"))
    assert row == r"| in | obs\|\`x\` \| y \| | state | 1 | a\|b, &lt;i&gt;; in the dataset's units |"


def test_many_tasks_are_cut_and_order_does_not_matter():
    tasks = [f"task {number:02d}" for number in range(30)]
    one, two = card_text(replace(ACT, tasks=tasks)), card_text(replace(ACT, tasks=tasks[::-1] + tasks))
    assert one == two
    assert "- task 19\n- and 10 more" in one


@pytest.mark.parametrize(
    ("path", "base"),
    [
        (None, None),
        ("lerobot/smolvla_base", "lerobot/smolvla_base"),
        ("you/other-policy", "you/other-policy"),
        ("/home/x/.cache/huggingface/hub/models--you--their_policy/snapshots/abc", "you/their_policy"),
        ("/data/smolvla_base", "lerobot/smolvla_base"),
        ("/data/my_policy", None),
        ("outputs/train/run/checkpoints/last/pretrained_model", None),
    ],
)
def test_the_base_is_named_where_the_path_tells(path, base):
    assert base_of("smolvla", path) == base


def test_losses_are_the_last_and_the_best_of_what_counts():
    records = [
        {"kind": "train", "steps": 10, "loss": 3.0},
        {"kind": "heldout", "steps": 10, "eval_loss": 0.5},
        {"kind": "train", "steps": 20, "loss": 9.0},
        {"kind": "heldout", "steps": 20, "eval_loss": 0.1},
        {"kind": "resume", "steps": 10},
        {"kind": "train", "steps": 20, "loss": 2.0},
        {"kind": "heldout", "steps": 20, "eval_loss": 0.7},
        {"kind": "heldout", "steps": 30, "eval_loss": None},
        {"kind": "train", "loss": 1.0},
    ]
    assert losses_of(records) == [
        ("training, last window", 2.0, 20),
        ("held out, last", 0.7, 20),
        ("held out, best", 0.5, 10),
    ]
    assert losses_of([]) == []
