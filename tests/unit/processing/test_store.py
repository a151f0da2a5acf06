"""Pipeline files: overrides, and what a damaged or newer file says."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, StatsError
from mimetic.names import POSTPROCESSOR, PREPROCESSOR
from mimetic.processing.catalog import STEPS
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.step import Step
from mimetic.processing.store import load_pipeline, save_pipeline, write_file

STATE_FILE = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"


@pytest.fixture
def folder(fixtures, tmp_path):
    """A copy that a test may break."""
    target = tmp_path / "checkpoint"
    shutil.copytree(fixtures / "act/state_env/checkpoint", target)
    return target


def edit(folder, name, change):
    path = folder / f"{name}.json"
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))


def test_every_available_step_names_itself_as_the_catalog_does():
    for name in STEPS.available():
        kind = STEPS.load(name)
        assert issubclass(kind, Step)
        assert kind.registry_name == name


def test_given_statistics_win_over_the_state_file(folder):
    stats = {"action": {"mean": torch.full((4,), 10.0), "std": torch.full((4,), 2.0)}}
    pipeline = load_pipeline(folder, POSTPROCESSOR, overrides={"unnormalizer_processor": {"stats": stats}})
    assert torch.equal(pipeline.run_action(torch.ones(1, 4)), torch.full((1, 4), 12.0))


def test_overrides_of_steps_or_arguments_that_are_not_there_are_refused(folder):
    with pytest.raises(ConfigError, match="no step `normaliser_processor`") as error:
        load_pipeline(folder, PREPROCESSOR, overrides={"normaliser_processor": {}})
    assert "`normalizer_processor`" in error.value.hint
    with pytest.raises(ConfigError, match="no override `devise`"):
        load_pipeline(folder, PREPROCESSOR, overrides={"device_processor": {"devise": "cpu"}})


def test_exact_formulas_can_be_asked_for_and_are_not_stored(folder, tmp_path):
    pipeline = load_pipeline(folder, PREPROCESSOR, overrides={"normalizer_processor": {"exact": True}})
    assert pipeline.steps[3].exact
    (tmp_path / "out").mkdir()
    save_pipeline(pipeline, tmp_path / "out")
    name = f"{PREPROCESSOR}.json"
    assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_statistics_of_several_datasets_need_a_choice(folder):
    stats = {key: value for key, value in load_file(folder / STATE_FILE).items() if not key.startswith("action.")}
    for number, dataset in enumerate(("so100", "so100-red")):
        stats[f"{dataset}.buffer.action.mean"] = torch.full((4,), 10.0 * number)
        stats[f"{dataset}.buffer.action.std"] = torch.full((4,), 3.0)
    save_file(stats, folder / STATE_FILE)
    with pytest.raises(StatsError, match="no statistics for `action`") as error:
        load_pipeline(folder, POSTPROCESSOR)
    assert "`--stats_dataset=so100` or `--stats_dataset=so100-red`" in error.value.hint
    pipeline = load_pipeline(folder, POSTPROCESSOR, stats_dataset="so100-red")
    assert torch.equal(pipeline.run_action(torch.full((1, 4), 2.0)), torch.full((1, 4), 16.0))


def test_a_known_step_that_is_not_built_yet_says_so(folder):
    edit(
        folder, PREPROCESSOR, lambda d: d["steps"].insert(0, {"registry_name": "pi0_new_line_processor", "config": {}})
    )
    with pytest.raises(
        CheckpointError, match="`pi0_new_line_processor` is known from LeRobot but not part of mimetic yet"
    ):
        load_pipeline(folder, PREPROCESSOR)


def test_an_unknown_step_or_argument_is_refused(folder):
    edit(folder, PREPROCESSOR, lambda d: d["steps"][2]["config"].update(pin="yes"))
    with pytest.raises(ConfigError, match=r"step 2: step `device_processor` has no config `pin`"):
        load_pipeline(folder, PREPROCESSOR)
    edit(folder, PREPROCESSOR, lambda d: d["steps"][0].update(registry_name="rename_observation_processor"))
    with pytest.raises(CheckpointError, match="unknown processing step `rename_observation_processor`"):
        load_pipeline(folder, PREPROCESSOR)


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 3}', '{"steps": [3]}', '{"name": "x"', "[" * 100_000])
def test_a_damaged_description_is_named(folder, text):
    (folder / f"{PREPROCESSOR}.json").write_text(text)
    with pytest.raises(CheckpointError, match=PREPROCESSOR):
        load_pipeline(folder, PREPROCESSOR)


@pytest.mark.parametrize(
    "config",
    [
        {"features": 3},
        {"features": {"action": {"type": "ACTION"}}},
        {"norm_map": {"ACTION": "MEAN"}},
        {"norm_map": []},
        {"eps": "much"},
    ],
)
def test_a_damaged_step_config_is_named(folder, config):
    edit(folder, POSTPROCESSOR, lambda d: d["steps"][0]["config"].update(config))
    with pytest.raises((CheckpointError, ConfigError), match=r"policy_postprocessor.json`, step 0"):
        load_pipeline(folder, POSTPROCESSOR)


def test_missing_and_truncated_state_files_are_named(folder):
    content = (folder / STATE_FILE).read_bytes()
    (folder / STATE_FILE).write_bytes(content[:-7])
    with pytest.raises(CheckpointError, match=f"{STATE_FILE}` is damaged"):
        load_pipeline(folder, POSTPROCESSOR)
    (folder / STATE_FILE).unlink()
    with pytest.raises(CheckpointNotFound, match=STATE_FILE):
        load_pipeline(folder, POSTPROCESSOR)
    (folder / f"{POSTPROCESSOR}.json").unlink()
    with pytest.raises(CheckpointNotFound, match=POSTPROCESSOR):
        load_pipeline(folder, POSTPROCESSOR)


def test_a_step_without_its_state_file_is_refused(folder):
    edit(folder, POSTPROCESSOR, lambda d: d["steps"][0].pop("state_file"))
    with pytest.raises(StatsError, match="no statistics for `action`"):
        load_pipeline(folder, POSTPROCESSOR)


def test_a_failed_write_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_file(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_companion_files_are_written_beside_the_pipeline_and_a_step_learns_its_folder(tmp_path, monkeypatch):
    seen = []

    class Marked(STEPS.load("to_batch_processor")):
        def companion_files(self):
            return {"marks/one.txt": b"1", "two.txt": b"2"}

        def located(self, folder, artifacts, where):
            seen.append((folder, artifacts, where))

    written = save_pipeline(Pipeline("p", [Marked()]), tmp_path)
    assert written == [tmp_path / "p.json"]
    assert (tmp_path / "marks/one.txt").read_bytes() == b"1"
    assert (tmp_path / "two.txt").read_bytes() == b"2"
    edit(tmp_path, "p", lambda d: d["steps"][0].update(artifacts={"marks": "marks"}))
    monkeypatch.setattr(STEPS, "load", lambda name: Marked)
    load_pipeline(tmp_path, "p")
    assert seen == [(tmp_path, {"marks": "marks"}, f"`{tmp_path / 'p.json'}`, step 0")]
