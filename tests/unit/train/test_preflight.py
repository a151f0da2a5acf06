"""The check before the first step: refuses what would train a wrong policy, goes on when told to."""

import json

import numpy as np
import pytest

from mimetic.config.parse import parse
from mimetic.errors import DatasetError
from mimetic.testing.datasets import build_dataset
from mimetic.testing.faults import change_json, set_value
from mimetic.train.config import TrainConfig
from mimetic.train.run import train

TINY = [
    "--policy.type=act",
    "--policy.device=cpu",
    "--policy.dim_model=32",
    "--policy.n_heads=2",
    "--policy.dim_feedforward=32",
    "--policy.n_encoder_layers=1",
    "--policy.chunk_size=4",
    "--policy.n_action_steps=4",
    "--policy.use_vae=false",
    "--policy.pretrained_backbone_weights=null",
    "--batch_size=2",
    "--steps=1",
    "--num_workers=0",
    "--save_checkpoint=false",
]


def build(tmp_path, **changes):
    # 20 frames each, so that an episode that is left out hardly moves the mean
    return build_dataset(tmp_path / "set", **{"lengths": (20, 20, 20), "environment_dim": 2, **changes})


def start(tmp_path, root, *flags):
    words = [*TINY, "--dataset.repo_id=me/set", f"--dataset.root={root}", f"--output_dir={tmp_path / 'run'}", *flags]
    parsed = parse(TrainConfig, words, prog="mimetic train")
    return train(parsed.value, origins=parsed.origins)


def scale(root, factor=1.5):
    def change(stats):
        for name in ("mean", "std", "min", "max"):
            stats["action"][name] = (np.asarray(stats["action"][name]) * factor).tolist()

    change_json(root / "meta" / "stats.json", change)


def test_a_good_dataset_trains_without_a_word(tmp_path, caplog):
    start(tmp_path, build(tmp_path))
    assert not any("stats." in record.getMessage() for record in caplog.records)


def test_stale_statistics_are_refused_before_the_run_has_a_folder(tmp_path):
    root = build(tmp_path)
    scale(root)
    with pytest.raises(DatasetError) as caught:
        start(tmp_path, root)
    assert "stats.match" in caught.value.message
    assert "--only=stats.match --apply=true" in caught.value.hint
    assert "--preflight=warn" in caught.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("flag", "is_told"), [("warn", True), ("off", False)])
def test_it_goes_on_when_told_to(tmp_path, caplog, flag, is_told):
    root = build(tmp_path)
    scale(root)
    start(tmp_path, root, f"--preflight={flag}")
    assert any("stats.match" in record.getMessage() for record in caplog.records) is is_told


def test_quantiles_are_judged_only_for_a_policy_that_uses_them(tmp_path):
    root = build(tmp_path)

    def average(stats):
        for key in ("action", "observation.environment_state", "observation.state"):
            middle = stats[key]["q50"]
            stats[key].update(dict.fromkeys(("q01", "q10", "q90", "q99"), middle))

    change_json(root / "meta" / "stats.json", average)
    start(tmp_path, root)
    modes = json.dumps({"STATE": "QUANTILES", "ENV": "QUANTILES", "ACTION": "QUANTILES"})
    with pytest.raises(DatasetError, match=r"stats\.quantile_mean"):
        start(tmp_path / "second", root, f"--policy.normalization_mapping={modes}")


def test_a_fault_of_an_episode_that_is_not_used_does_not_matter(tmp_path):
    root = build(tmp_path, cameras={"front": (64, 64)})
    set_value(root, 2, "videos/observation.images.front/to_timestamp", 1.0)
    with pytest.raises(DatasetError, match=r"meta\.video_span"):
        start(tmp_path, root)
    start(tmp_path / "second", root, "--dataset.episodes=[0,1]")


def test_an_unknown_word_is_refused(tmp_path):
    from mimetic.errors import ConfigError

    with pytest.raises(ConfigError, match="preflight"):
        start(tmp_path, build(tmp_path), "--preflight=never")


def test_statistics_that_do_not_fit_the_chosen_episodes_are_noted(tmp_path, caplog):
    caplog.set_level("INFO")
    root = build(tmp_path)
    start(tmp_path, root, "--dataset.episodes=[0]")
    notes = [record.getMessage() for record in caplog.records if "stats.subset" in record.getMessage()]
    assert any("`action`" in note for note in notes)
    caplog.clear()
    start(tmp_path / "second", root)
    assert not any("stats.subset" in record.getMessage() for record in caplog.records)
