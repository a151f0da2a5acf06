"""Task texts are looked at before the first step."""

import logging

import pytest

from mimetic.cli.train import load_policy
from mimetic.config.parse import parse
from mimetic.testing.datasets import build_dataset
from mimetic.testing.smolvla import tiny_smolvla_flags, write_tiny_vlm
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data
from mimetic.train.instructions import check_instructions
from mimetic.train.model import build_model

LONG = "put the very small red cube into the blue bowl"


@pytest.fixture
def vlm(tmp_path):
    return write_tiny_vlm(tmp_path / "vlm")


@pytest.fixture
def told(vlm, tmp_path, caplog):
    """Warnings about the texts of a dataset with these tasks."""

    def tell(tasks, *flags, policy=(), change=None):
        root = tmp_path / "set"
        build_dataset(root, lengths=(3, 3), cameras={"top": (8, 8)}, camera_dtype="image", tasks=tasks)
        if change is not None:
            change(root)
        common = [f"--dataset.root={root}", "--dataset.repo_id=me/set", "--policy.device=cpu"]
        flags = [*(policy or tiny_smolvla_flags(vlm)), *common, *flags]
        config = parse(TrainConfig, flags, prog="mimetic train", load_policy=load_policy).value
        data = open_training_data(config, config.policy)
        model = build_model(config, data, None)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "mimetic"):
            check_instructions(model.policy.config, data, model.preprocessor)
        return caplog.text

    return tell


def test_texts_that_fit_are_no_news(told):
    assert told(("pick it up", "open it")) == ""


def test_a_text_over_the_limit_is_told_before_a_batch_has_it(told):
    text = told(("open it", LONG))
    assert f"a task has {len(LONG) + 1} tokens and only 24 are read; its beginning is lost" in text
    assert text.count("WARNING") == 1


def test_episodes_that_are_not_used_do_not_count(told):
    assert told(("open it", LONG), "--dataset.episodes=[0]") == ""


def test_held_out_episodes_count(told):
    assert "its beginning is lost" in told((LONG,), "--dataset.eval_split=0.5", "--eval_steps=1")


def test_tasks_without_words_are_told(told):
    assert "in the dataset 1 of the 2 tasks have no words" in told((" ", "open it"))


def test_a_dataset_without_tasks_is_told(told):
    found = told(("open it",), change=lambda root: (root / "meta" / "tasks.parquet").unlink())
    assert "in the dataset no episode has a task" in found


def test_a_policy_that_reads_no_text_does_not_care(told):
    assert told(("",), policy=[*TINY_ACT, "--policy.pretrained_backbone_weights=null"]) == ""
