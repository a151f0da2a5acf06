import pytest

from mimetic.errors import CheckpointNotFound
from mimetic.hub.policies import find_policy


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "train_config.json"])
def test_a_file_of_a_policy_stands_for_its_folder(tmp_path, name):
    for file in ("config.json", "model.safetensors", "train_config.json"):
        (tmp_path / file).touch()
    assert find_policy(tmp_path / name) == tmp_path


def test_another_file_is_no_policy(tmp_path):
    (tmp_path / "config.json").touch()
    (tmp_path / "README.md").touch()
    with pytest.raises(CheckpointNotFound, match="no policy at"):
        find_policy(tmp_path / "README.md")
