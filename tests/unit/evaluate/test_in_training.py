"""Evaluation in an environment during training: it is measured, and the training does not notice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import toy_env
from safetensors.torch import load_file

from mimetic.cli.app import main
from mimetic.config.parse import parse
from mimetic.data.writer import DatasetWriter
from mimetic.errors import ConfigError, SimulationError
from mimetic.evaluate.rollout import in_training
from mimetic.evaluate.rollout.in_training import InTraining, untouched_random_numbers
from mimetic.names import ACTION, STATE
from mimetic.policies.catalog import POLICIES
from mimetic.testing import frame_policy
from mimetic.train.config import TrainConfig
from mimetic.train.run import train
from mimetic.train.trackers.tracker import named_values

RUN_FILES = ("pretrained_model/model.safetensors", "training_state/rng_state.safetensors")


@pytest.fixture
def recorded(toys, monkeypatch):
    """Three episodes of the toy's answers as a dataset."""
    monkeypatch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
    root = toys.folder / "data"
    task = toy_env.toy_tasks(toy_env.ToyEnvConfig())[0]
    features = {
        key: {"dtype": "image" if one.is_camera else one.dtype, "shape": one.shape, "names": one.names}
        for key, one in task.features.items()
    }
    with DatasetWriter.create("local/toy", toy_env.FPS, features, root, use_videos=False, live=False) as writer:
        for seed in range(3):
            colour, points = toy_env.layout(seed)
            at = np.zeros(2, np.float32)
            for number, action in enumerate(toy_env.script(seed)[:6]):
                frame = {STATE: at, toy_env.CAMERA: toy_env.picture(points), ACTION: action.astype(np.float32)}
                writer.add_frame(frame, toy_env.instruction(colour), clock_s=number / toy_env.FPS)
                at = (at + action).astype(np.float32)
            writer.save_episode()
        writer.finalize()
    return root


def words(root, *flags):
    base = [
        "--dataset.repo_id=local/toy",
        f"--dataset.root={root}",
        "--batch_size=4",
        "--steps=4",
        "--save_freq=2",
        "--log_freq=1",
        "--num_workers=0",
        "--cache.features=off",
        "--policy.type=frame_policy",  # its loss draws random numbers
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
    ]
    return [*base, *flags]


ENV = (
    "--env.type=toy",
    "--env_eval_freq=2",
    "--eval.n_episodes=3",
    "--eval.batch_size=2",
    "--eval.use_async_envs=false",
)


def settings(root, *flags):
    return parse(TrainConfig, words(root, *flags), prog="mimetic train").value


def run(root, folder, *flags):
    config = replace(settings(root, *flags), output_dir=folder)
    return train(config, play=InTraining(config) if config.env is not None else None)


def records(folder, kind="environment"):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def tensors(folder, step):
    found = {}
    for name in RUN_FILES:
        for key, value in load_file(folder / "checkpoints" / step / name).items():
            found[f"{name}/{key}"] = value
    return found


def test_training_is_bit_for_bit_what_it_is_without_evaluation_and_resumes_exactly(toys, recorded):
    """Generators included; resuming in the middle, too."""
    plain = run(recorded, toys.folder / "plain")
    played = run(recorded, toys.folder / "played", *ENV)
    stored = tensors(plain, "000004")
    assert stored.keys() == tensors(played, "000004").keys()
    assert all(torch.equal(value, tensors(played, "000004")[key]) for key, value in stored.items())
    assert [one["steps"] for one in records(played)] == [2, 4]
    assert main(["train", "--resume=true", f"--config_path={played / 'checkpoints/000002'}"]) == 0
    assert all(torch.equal(value, tensors(played, "000004")[key]) for key, value in stored.items())
    assert [one["steps"] for one in records(played)] == [2, 4, 4]
    first, again = records(played)[1:]
    volatile = {"eval_s", "eval_ep_s", "prediction_ms"}
    assert {k: v for k, v in first.items() if k not in volatile} == {
        k: v for k, v in again.items() if k not in volatile
    }


def test_a_record_says_how_often_the_policy_succeeded_and_films_are_kept(toys, recorded, caplog):
    caplog.set_level("INFO", "mimetic")
    folder = run(recorded, toys.folder / "run", *ENV)
    one = records(folder)[0]
    assert one["n_episodes"] == 3
    assert 0 <= one["pc_success_low"] <= one["pc_success"] <= one["pc_success_high"] <= 100
    assert list(one["pc_success_per_task"]) == ["go, split_0"]
    assert "step 2: success" in caplog.text
    films = sorted((folder / "eval/videos_step_000002/toy_0_0").iterdir())
    assert [film.name for film in films] == [f"eval_episode_{k}.mp4" for k in range(3)]
    values = named_values(one)
    assert values["eval/pc_success"] == one["pc_success"]
    assert "eval/eval_s" in values


def test_averaged_weights_play_when_they_are_kept(toys, recorded, monkeypatch):
    seen = []

    class Spy(InTraining):
        def __call__(self, policy, *arguments, **options):
            seen.append({key: value.clone() for key, value in policy.state_dict().items()})
            return super().__call__(policy, *arguments, **options)

    for flags, is_average in (
        (("--ema.enable=true",), True),
        (("--ema.enable=true", "--ema.use_for_eval=false"), False),
    ):
        seen.clear()
        config = replace(
            settings(recorded, *ENV, *flags, "--ema.decay=0.5"), output_dir=toys.folder / f"run_{is_average}"
        )
        train(config, play=Spy(config))
        trained = load_file(toys.folder / f"run_{is_average}/checkpoints/000004/pretrained_model/model.safetensors")
        average = load_file(toys.folder / f"run_{is_average}/checkpoints/000004/pretrained_model_ema/model.safetensors")
        key = "head.weight"
        assert not torch.equal(trained[key], average[key])
        assert torch.equal(seen[-1][key], (average if is_average else trained)[key])


def test_a_failing_environment_costs_the_measurement_and_not_the_training(toys, recorded, monkeypatch, caplog):
    def broken(*arguments, **options):
        raise SimulationError("the physics broke down", "report it")
        yield

    monkeypatch.setattr(in_training, "play", broken)
    folder = run(recorded, toys.folder / "run", *ENV)
    assert (folder / "checkpoints/000004").is_dir()
    assert "no evaluation in the environment: the physics broke down" in caplog.text
    assert records(folder)[0]["error"] == "the physics broke down"


def test_a_policy_that_could_not_be_evaluated_is_refused_before_the_first_step(toys, recorded):
    info = recorded / "meta/info.json"
    data = json.loads(info.read_text())
    data["features"]["action"]["names"] = ["y.pos", "x.pos"]
    info.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"number 0 of `action` is `y.pos`"):
        run(recorded, toys.folder / "run", *ENV)
    assert not (toys.folder / "run").exists()


def test_an_evaluation_stops_when_the_run_shall_stop(toys, recorded):
    config = replace(settings(recorded, *ENV), output_dir=toys.folder / "run")
    folder = train(replace(config, env=None))
    from mimetic.policies.checkpoint import load_pretrained

    loaded = load_pretrained(folder)
    parts = (loaded.policy, loaded.preprocessor, loaded.postprocessor)
    loaded.policy.train()
    asked = []
    found = InTraining(config)(*parts, folder=toys.folder / "films", may_go_on=lambda: bool(asked.append(1)))
    assert found is None
    assert len(asked) == 1
    assert all(module.training for module in loaded.policy.modules())


def test_nobody_to_play_is_said(toys, recorded):
    config = replace(settings(recorded, *ENV), output_dir=toys.folder / "run")
    with pytest.raises(ConfigError, match="nobody who lets the policy play"):
        train(config)


def test_every_global_generator_comes_back():
    import random

    def draw():
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    wanted = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with untouched_random_numbers():
        draw()
    assert draw() == wanted
