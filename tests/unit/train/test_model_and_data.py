"""What a run trains on and what it starts from, short of training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from mimetic.cli.train import load_policy
from mimetic.config.parse import parse
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import build_dataset
from mimetic.testing.tiny import TINY_ACT, TINY_KEYPOINT
from mimetic.train.config import TrainConfig
from mimetic.train.data import open_training_data
from mimetic.train.model import build_model
from mimetic.train.run import train

TINY = [
    *TINY_ACT,
    "--policy.pretrained_backbone_weights=null",
]


def settings(root, *flags):
    common = [f"--dataset.root={root}", "--dataset.repo_id=me/set", "--policy.device=cpu", "--num_workers=0"]
    return parse(TrainConfig, [*common, *flags], prog="mimetic train", load_policy=load_policy).value


def cameras(root, *names):
    return build_dataset(root, lengths=(4, 4), camera_dtype="image", cameras=dict.fromkeys(names, (64, 64)))


def test_heldout_episodes_are_not_augmented(tmp_path):
    root = cameras(tmp_path / "set", "top")
    flags = ["--dataset.eval_split=0.5", "--dataset.image_transforms.enable=true"]
    data = open_training_data(settings(root, *TINY, *flags), settings(root, *TINY).policy)
    plain = open_dataset("me/set", root=root, return_uint8=True)
    key = "observation.images.top"
    assert torch.equal(data.heldout.batch([0, 1, 2, 3])[key], plain.batch([4, 5, 6, 7])[key])
    generators = [torch.Generator().manual_seed(n) for n in range(4)]
    assert not torch.equal(data.train.batch([0, 1, 2, 3], generators)[key], plain.batch([0, 1, 2, 3])[key])


@pytest.fixture
def trained(tmp_path):
    root = cameras(tmp_path / "first", "top")
    config = settings(root, *TINY, "--steps=1", "--batch_size=2")
    run = train(replace(config, output_dir=tmp_path / "run"))
    return run / "checkpoints" / "000001" / "pretrained_model"


def test_fine_tuning_under_other_names_takes_the_new_datasets_statistics_under_the_policys_names(tmp_path, trained):
    root = cameras(tmp_path / "second", "front")
    names = {"observation.images.front": "observation.images.top"}
    flags = [f"--policy.path={trained}", f"--rename_map={json.dumps(names)}", "--dataset.use_imagenet_stats=false"]
    config = settings(root, *flags)
    data = open_training_data(config, config.policy)
    model = build_model(config, data, None)
    (stored,) = [step.stats for step in model.preprocessor.steps if hasattr(step, "stats")]
    wanted = data.train.meta.stats["observation.images.front"]["mean"]
    torch.testing.assert_close(
        stored["observation.images.top"]["mean"].flatten(), torch.as_tensor(wanted, dtype=torch.float32).flatten()
    )
    batch = model.preprocessor(data.train.batch([0]))
    assert torch.isfinite(model.policy.eval().loss(batch)[0])


MOTION = {"lengths": (6, 7), "camera_dtype": "image", "cameras": {"top": (16, 16)}}
JOINTS, STATE = "observation.joints", "observation.state"


def test_a_renamed_input_has_the_windows_that_the_policy_asks_for(tmp_path):
    """By a flag, and by the map that the policy was trained with."""
    first = build_dataset(tmp_path / "first", **MOTION)
    columns = {JOINTS: np.arange(39, dtype=np.float32).reshape(13, 3)}
    second = build_dataset(tmp_path / "second", state_dim=0, columns=columns, **MOTION)
    short = ["--steps=1", "--batch_size=2"]

    def trained(root, name, *flags):
        run = train(replace(settings(root, *flags, *short), output_dir=tmp_path / name))
        return run / "checkpoints" / "000001" / "pretrained_model"

    def opened(root, *flags):
        config = settings(root, *flags)
        data = open_training_data(config, config.policy)
        model = build_model(data.config, data, None)
        batch = model.preprocessor(data.train.batch([4]))
        assert batch[STATE].shape == (1, 2, 3)
        assert torch.isfinite(model.policy.eval().loss(batch)[0])
        return data

    base = f"--policy.path={trained(first, 'base', *TINY_KEYPOINT, '--policy.motion_frames=3')}"
    by_hand = f"--rename_map={json.dumps({JOINTS: STATE})}"
    data = opened(second, base, by_hand)
    assert data.train.batch([4])[JOINTS][0, :, 0].tolist() == [3.0, 12.0]  # frames 1 and 4
    again = f"--policy.path={trained(second, 'tuned', base, by_hand)}"
    assert opened(second, again).config.rename_map == {JOINTS: STATE}
    assert opened(first, again).config.rename_map == {}


def test_loading_a_policy_does_not_fetch_weights_that_are_overwritten_at_once(tmp_path, trained, monkeypatch):
    path = trained / "config.json"
    stored = json.loads(path.read_text()) | {"pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1"}
    path.write_text(json.dumps(stored))

    def fetch(*args):
        raise AssertionError("ImageNet weights were fetched")

    monkeypatch.setattr("mimetic.policies.act.policy.load_imagenet_weights", fetch)
    config = settings(tmp_path / "first", f"--policy.path={trained}")
    build_model(config, open_training_data(config, config.policy), None)


def test_cameras_that_a_policy_with_fixed_inputs_does_not_read_are_not_decoded(tmp_path, monkeypatch):
    from dataclasses import replace

    from mimetic.config.parse import parse
    from mimetic.features import FeatureType, PolicyFeature
    from mimetic.testing.datasets import build_dataset
    from mimetic.train.config import TrainConfig
    from mimetic.train.data import open_training_data

    root = build_dataset(tmp_path / "set", cameras={"front": (64, 64), "wrist": (64, 64)})
    config = parse(
        TrainConfig,
        ["--policy.type=act", "--dataset.repo_id=me/two", f"--dataset.root={root}", "--dataset.eval_split=0.3"],
        prog="mimetic train",
    ).value
    camera = PolicyFeature(FeatureType.VISUAL, (3, 64, 64))
    policy = replace(config.policy, input_features={"observation.images.top": camera})
    renamed = replace(config, rename_map={"observation.images.front": "observation.images.top"})
    data = open_training_data(renamed, policy)
    for dataset in (data.train, data.heldout):
        batch = dataset.batch([0, 1])
        assert "observation.images.front" in batch
        assert "observation.images.wrist" not in batch
    fresh = open_training_data(config, config.policy).train.batch([0])
    assert {"observation.images.front", "observation.images.wrist"} <= fresh.keys()
