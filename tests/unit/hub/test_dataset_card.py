import json

import pytest
import yaml

from mimetic.hub.dataset_card import DatasetCard, dataset_card_text

INFO = {
    "codebase_version": "v3.0",
    "robot_type": "so101_follower",
    "fps": 30,
    "total_episodes": 3,
    "total_frames": 90,
    "features": {"action": {"dtype": "float32"}, "observation.images.top": {"dtype": "video"}},
}


def card(**changes):
    return dataset_card_text(DatasetCard(**{"repo_id": "me/pick", "info": INFO, "tasks": ["Pick the cube"], **changes}))


def head_of(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_the_head_is_what_the_hub_and_lerobot_expect():
    head = head_of(card(tags=["so101", "kitchen"]))
    assert head == {
        "license": "apache-2.0",
        "tags": ["LeRobot", "so101", "kitchen", "so101_follower"],
        "task_categories": ["robotics"],
        "configs": [{"config_name": "default", "data_files": "data/*/*.parquet"}],
    }


def test_the_body_leads_to_the_viewer_and_holds_info_json():
    text = card()
    assert "visualize_dataset?path=me/pick" in text
    assert "3 episodes, 90 frames at 30 a second" in text
    assert json.loads(text.split("```json\n")[1].split("\n```")[0]) == INFO


def test_an_unknown_licence_is_named_beside_other():
    head = head_of(card(license="My Lab's Own"))
    assert (head["license"], head["license_name"]) == ("other", "my-lab-s-own")


@pytest.mark.parametrize(
    "text", ["# big\n---\nlicense: x", "| a | b |", "<script>alert(1)</script>", "[x](http://evil)"]
)
def test_text_of_strangers_is_text(text):
    made = card(tasks=[text], tags=[text], info={**INFO, "robot_type": text, "note": "```\n# out"})
    head = head_of(made)
    assert head["license"] == "apache-2.0"
    assert set(head) == {"license", "tags", "task_categories", "configs"}
    body = made.split("---\n", 2)[2].split("## meta/info.json")[0]
    assert "<script>" not in body
    assert "](http://evil" not in body
    assert "\n# big" not in body
    fenced = made.split("````json\n")[1].split("\n````")[0]
    assert json.loads(fenced)["note"] == "```\n# out"
