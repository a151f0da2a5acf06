import json

import pytest

from mimetic.data.metadata import Metadata
from mimetic.evaluate.training import read_training
from mimetic.testing.datasets import build_dataset


@pytest.fixture
def metadata(tmp_path):
    return Metadata.open(build_dataset(tmp_path / "data", lengths=(4, 4, 4, 4, 4, 4), tasks=("lift", "push")))


@pytest.fixture
def checkpoint(tmp_path):
    """Writer of a checkpoint's record of its training data."""

    def write(dataset, *, state=None):
        folder = tmp_path / "000100" / "pretrained_model"
        folder.mkdir(parents=True)
        (folder / "train_config.json").write_text(json.dumps({"dataset": dataset}))
        if state is not None:
            (folder.parent / "training_state").mkdir()
            (folder.parent / "training_state" / "mimetic_state.json").write_text(json.dumps({"dataset": state}))
        return folder

    return write


def test_the_split_of_the_training_is_found_again(checkpoint, metadata):
    found = read_training(checkpoint({"repo_id": "me/a", "eval_split": 0.3}), metadata, "me/a")
    assert found.is_same
    # Of episodes 0, 2, 4 (lift) and 1, 3, 5 (push) the last one each is held out.
    assert (found.trained, found.held_out) == ({0, 1, 2, 3}, {4, 5})


def test_the_episode_filter_of_the_training_is_applied_before_the_split(checkpoint, metadata):
    found = read_training(checkpoint({"repo_id": "me/a", "episodes": [0, 2, 4], "eval_split": 0.3}), metadata, "me/a")
    assert (found.trained, found.held_out) == ({0, 2}, {4})


def test_excluded_episodes_are_not_trained_on(checkpoint, metadata):
    folder = checkpoint({"repo_id": "me/a", "exclude_episodes": [1, 2]})
    assert read_training(folder, metadata, "me/a").trained == {0, 3, 4, 5}


def test_the_runs_own_list_wins_when_the_dataset_has_grown_since(checkpoint, metadata):
    # Trained when there were episodes 0 to 3 only: 2 and 3 were held out, 4 and 5 did not exist.
    folder = checkpoint({"repo_id": "me/a", "eval_split": 0.5}, state={"train_episodes": [0, 1]})
    found = read_training(folder, metadata, "me/a")
    assert found.trained == {0, 1}
    assert not found.held_out & found.trained


def test_the_same_folder_is_the_same_dataset_under_any_name(checkpoint, metadata):
    folder = checkpoint({"repo_id": "me/old_name", "root": str(metadata.root)})
    assert read_training(folder, metadata, "me/new_name").is_same


def test_another_dataset_is_another_one(checkpoint, metadata):
    found = read_training(checkpoint({"repo_id": "me/b", "root": "/nowhere"}), metadata, "me/a")
    assert not found.is_same
    assert found.dataset == "me/b"


def test_a_split_that_the_dataset_no_longer_allows_counts_everything_as_seen(checkpoint, metadata):
    found = read_training(checkpoint({"repo_id": "me/a", "episodes": [0], "eval_split": 0.5}), metadata, "me/a")
    assert (found.trained, found.held_out) == ({0}, set())


@pytest.mark.parametrize("nonsense", ["much", [0.3], 7])
def test_a_share_that_is_no_share_counts_everything_as_seen(checkpoint, metadata, nonsense):
    found = read_training(checkpoint({"repo_id": "me/a", "eval_split": nonsense}), metadata, "me/a")
    assert (found.trained, found.held_out) == (set(range(6)), set())


def test_no_record_or_a_broken_one_means_not_known(tmp_path, metadata):
    assert read_training(tmp_path, metadata, "me/a") is None
    (tmp_path / "train_config.json").write_text("{")
    assert read_training(tmp_path, metadata, "me/a") is None
    (tmp_path / "train_config.json").write_text('{"dataset": null}')
    assert read_training(tmp_path, metadata, "me/a") is None
