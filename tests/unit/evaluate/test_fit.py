"""Whether a policy fits an environment: every mismatch in one error, before the first episode."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mimetic.envs.cell import Cell
from mimetic.envs.config import CellConfig, CellSuiteConfig
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.cell import cell_features, cell_tasks
from mimetic.evaluate.rollout.fit import Training, read_dataset, read_training, require_fit
from mimetic.features import FeatureType, PolicyFeature
from mimetic.names import SIMULATION_JSON
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.keypoint.config import KeypointConfig
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.processing.standard import standard_pipelines
from mimetic.testing.datasets import build_dataset

LOOK = {"renderer": "rays", "width": 32, "height": 32}
JOINTS = tuple(cell_features(CellConfig())["action"].names)
GOOD = {
    "observation.images.front": (3, 32, 32),
    "observation.images.wrist": (3, 32, 32),
    "observation.state": (6,),
}


def task(**changes):
    return cell_tasks(CellSuiteConfig(task="reach", **{**LOOK, **changes}))[0]


def policy(inputs=GOOD, action=(6,), *, kind=ACTConfig, rename_map=None, span=80.0):
    """Config and preprocessor of a policy with these inputs, trained on values up to `span`."""
    kinds = {True: FeatureType.VISUAL, False: FeatureType.STATE}
    features = {key: PolicyFeature(kinds["images" in key], shape) for key, shape in inputs.items()}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, action)}
    config = kind(input_features=features, output_features=outputs)
    stats = {
        key: {
            "mean": np.zeros(shape),
            "std": np.ones(shape),
            "min": np.full(shape, -span),
            "max": np.full(shape, span),
        }
        for key, shape in (("observation.state", inputs.get("observation.state", (6,))), ("action", action))
    }
    stats |= {key: {"mean": np.full((3, 1, 1), 0.5), "std": np.ones((3, 1, 1))} for key in inputs if "images" in key}
    modes = {**config.norm_map}
    before, _ = standard_pipelines(
        input_features=features, output_features=outputs, norm_map=modes, stats=stats, rename_map=rename_map
    )
    return config, before


def problem(*arguments, **options):
    with pytest.raises(ConfigError) as caught:
        require_fit(*arguments, **options)
    return caught.value


def test_features_without_a_cell_are_those_of_the_cell():
    config = CellConfig(**LOOK)
    cell = Cell(config)
    declared = cell.features()
    cell.close()
    found = cell_features(config)
    assert list(found) == list(declared)
    for key, feature in found.items():
        assert (feature.dtype, feature.shape, feature.names) == (
            declared[key]["dtype"],
            declared[key]["shape"],
            declared[key]["names"],
        )


def test_a_policy_of_the_cell_fits():
    assert require_fit(*policy(), task()) == {key: key for key in GOOD}


def test_everything_that_is_wrong_is_in_one_error():
    inputs = {"observation.images.top": (3, 32, 32), "observation.images.wrist": (3, 48, 64), "observation.state": (7,)}
    error = problem(*policy(inputs, (7,)), task(), Training(fps=10.0, units="range_m100_100"))
    for words in (
        "reads `observation.images.top`, and the environment shows `observation.state`, `observation.images.front`",
        "`observation.images.wrist` of 64x48 pixels, and the environment shows 32x32",
        "reads `observation.state` of 7 numbers, and the environment has 6 numbers",
        "gives an action of 7 numbers, and the environment takes 6 numbers",
        "trained at 10 Hz, and the environment runs at 30 Hz",
        "trained in range_m100_100, and the environment is set to degrees",
    ):
        assert words in error.message
    for words in (
        '--rename_map=\'{"observation.images.front": "observation.images.top"}\'',
        "--env.width=64 --env.height=48",
        "--env.units=range_m100_100",
    ):
        assert words in error.hint


def test_a_rename_map_puts_cameras_in_their_places():
    inputs = {"observation.images.top": (3, 32, 32), "observation.state": (6,)}
    found = require_fit(*policy(inputs, rename_map={"observation.images.front": "observation.images.top"}), task())
    assert found["observation.images.top"] == "observation.images.front"


def test_an_input_that_the_policy_never_reads_need_not_be_shown():
    unread = {"observation.environment_state": PolicyFeature(FeatureType.ENV, (5,))}
    for kind, words in ((KeypointConfig, ""), (ACTConfig, "reads `observation.environment_state`, and")):
        config, before = policy(kind=kind)
        config = replace(config, input_features={**config.input_features, **unread})
        if words:
            assert words in problem(config, before, task()).message
        else:
            assert require_fit(config, before, task()) == {key: key for key in GOOD}


def test_joints_in_another_order_are_found():
    swapped = (JOINTS[1], JOINTS[0], *JOINTS[2:])
    error = problem(*policy(), task(), Training(names={"action": swapped}))
    assert "number 0 of `action` is `shoulder_lift.pos`" in error.message
    assert "`shoulder_pan.pos` in the environment" in error.message


def test_older_spellings_of_the_same_joints_are_the_same():
    older = tuple(f"main_{name.removesuffix('.pos')}" for name in JOINTS)
    require_fit(*policy(), task(), Training(names={"action": older, "observation.state": older}))


@pytest.mark.parametrize(
    ("span", "words"),
    [(1.6, "training was in radians, or in other units"), (4000.0, "other units, or another arm")],
)
def test_units_are_told_by_the_values_of_training(span, words):
    assert words in problem(*policy(span=span), task()).message


def test_cameras_of_a_policy_with_slots_may_have_any_size_and_be_fewer(caplog):
    inputs = {
        "observation.images.front": (3, 256, 256),
        "observation.images.third": (3, 256, 256),
        "observation.state": (6,),
    }
    found = require_fit(*policy(inputs, kind=SmolVLAConfig), task())
    assert list(found) == ["observation.images.front", "observation.state"]
    assert "observation.images.third" in caplog.text


def test_a_dataset_tells_rate_names_and_units(tmp_path):
    root = build_dataset(tmp_path / "data", state_dim=6, action_dim=6, fps=15)
    (root / SIMULATION_JSON).parent.mkdir()
    (root / SIMULATION_JSON).write_text(json.dumps({"units": "degrees"}))
    found = read_dataset(root)
    assert (found.fps, found.units) == (15.0, "degrees")
    assert found.names["action"][:2] == ("joint_0.pos", "joint_1.pos")


def test_a_checkpoint_leads_to_its_dataset_and_a_lost_or_broken_one_stops_nothing(tmp_path):
    root = build_dataset(tmp_path / "data", fps=12)
    (tmp_path / "train_config.json").write_text(json.dumps({"dataset": {"root": str(root), "repo_id": "a/b"}}))
    assert read_training(tmp_path).fps == 12.0
    (root / "meta/info.json").write_text("{")
    assert read_training(tmp_path) == Training()
    (tmp_path / "train_config.json").write_text("[]")
    assert read_training(tmp_path) == Training()
    assert read_training(tmp_path / "nowhere") == Training()
