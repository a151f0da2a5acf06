"""Which flags a resumed run accepts."""

import pytest

from mimetic.config.codec import encode
from mimetic.data.config import DatasetConfig
from mimetic.errors import ConfigError
from mimetic.train.config import TrainConfig
from mimetic.train.resume import check_overrides


def smolvla(**settings):
    from mimetic.policies.smolvla.config import SmolVLAConfig

    return TrainConfig(dataset=DatasetConfig(repo_id="a/b"), policy=SmolVLAConfig(**settings))


def test_a_run_of_lerobot_leaves_the_precision_open():
    stored = encode(smolvla(), layers=("lerobot", "next"))
    assert "precision" not in stored["policy"]
    check_overrides(smolvla(precision="released"), {"policy.precision": "flag"}, stored)


def test_a_run_of_ours_keeps_its_precision():
    with pytest.raises(ConfigError, match=r"--policy.precision.*cannot change on resume"):
        check_overrides(smolvla(precision="released"), {"policy.precision": "flag"}, encode(smolvla(), full=True))


def test_a_setting_that_both_have_is_kept():
    stored = encode(smolvla(), layers=("lerobot", "next"))
    with pytest.raises(ConfigError, match=r"--policy.num_steps.*cannot change on resume"):
        check_overrides(smolvla(num_steps=5), {"policy.num_steps": "flag"}, stored)
