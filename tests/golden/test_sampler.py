"""Orders, seeds, resume positions and sharding equal LeRobot's; exact, because they are integers."""

import json

import numpy as np
import pytest

from mimetic.data.sampler import EpisodeSampler, epoch_seed, resume_position, shard_batches
from mimetic.errors import ConfigError

NAMES = {"episode_indices_to_use": "episodes", "absolute_to_relative_idx": "remap"}


@pytest.fixture(scope="module")
def orders(fixtures):
    return json.loads((fixtures / "dataset/sampler/sampler_orders.json").read_text())


@pytest.fixture(scope="module")
def training(fixtures):
    return json.loads((fixtures / "training/sampler.json").read_text())


def make(first, end, arguments, remap=None):
    arguments = {NAMES.get(name, name): value for name, value in arguments.items()}
    if "remap" in arguments:
        arguments["remap"] = remap
    return EpisodeSampler(first, end, **arguments)


def test_orders_of_six_episodes_are_lerobots(orders):
    remap = {int(frame): place for frame, place in orders["remap_episodes_5_1_3"].items()}
    for case in orders["cases"]:
        sampler = make(orders["dataset_from_indices"], orders["dataset_to_indices"], case["args"], remap)
        assert len(sampler) == case["len"], case["name"]
        for epoch, order in enumerate(case["orders"]):
            assert sampler.order(epoch).tolist() == order, (case["name"], epoch)


def test_orders_of_four_episodes_are_lerobots(training):
    first, end = training["episode_from"], training["episode_to"]
    for case in training["cases"]:
        used = sorted(case["args"].get("episode_indices_to_use", []))
        frames = [frame for episode in used for frame in range(first[episode], end[episode])]
        sampler = make(first, end, case["args"], {frame: place for place, frame in enumerate(frames)})
        assert len(sampler) == case["length"], case["name"]
        for epoch, order in enumerate(case["epochs"]):
            assert sampler.order(epoch).tolist() == order, (case["name"], epoch)


def test_seeds_of_epochs_are_lerobots(orders, training):
    for key, seed in orders["epoch_seeds"].items():
        assert epoch_seed(*map(int, key.split(","))) == seed
    for row in training["epoch_seeds"]:
        assert epoch_seed(row["seed"], row["epoch"]) == row["torch_generator_seed"]


def test_resume_positions_are_lerobots(orders, training):
    for row in orders["resume_states"]:
        found = resume_position(row["step"], row["num_frames"], row["batch_size"], row["num_processes"])
        assert found == (row["state"]["epoch"], row["state"]["start_index"]), row
    for row in training["resume_states"]:
        for step, state in enumerate(row["states"]):
            found = resume_position(step, row["num_frames"], row["batch_size"], row["num_processes"])
            assert found == (state["epoch"], state["start_index"]), (row, step)


def test_a_loaded_state_applies_to_the_next_epoch_only(orders, training):
    example = orders["resume_example"]
    sampler = make(orders["dataset_from_indices"], orders["dataset_to_indices"], example["args"])
    sampler.load_state_dict(example["state"])
    assert list(sampler) == example["remaining_order"]
    assert list(sampler)[:5] == example["then_first_5_of_epoch_2"]

    sampler = EpisodeSampler(training["episode_from"], training["episode_to"], shuffle=True, seed=1000)
    sampler.load_state_dict(training["resume_iter"]["state"])
    assert list(sampler) == training["resume_iter"]["rest_of_epoch"]
    assert list(sampler) == training["resume_iter"]["next_epoch"]


def test_refused_arguments_are_lerobots(orders):
    for arguments, kind in orders["errors"]:
        assert kind == "ValueError"
        with pytest.raises(ConfigError) as caught:
            make(orders["dataset_from_indices"], orders["dataset_to_indices"], arguments)
        assert isinstance(caught.value, ValueError)


def test_processes_share_batches_as_accelerate_does(training):
    for row in training["sharding"]:
        for rank, batches in enumerate(row["positions_per_rank"]):
            found = shard_batches(row["num_frames"], row["batch_size"], num_processes=row["num_processes"], rank=rank)
            assert [(places % row["num_frames"]).tolist() for places in found] == batches, (row, rank)


def test_the_sampler_does_not_touch_the_global_generator(orders):
    import torch

    before = torch.get_rng_state()
    numpy_before = np.random.get_state()[1].copy()
    sampler = EpisodeSampler(orders["dataset_from_indices"], orders["dataset_to_indices"], shuffle=True, seed=3)
    list(sampler)
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(numpy_before, np.random.get_state()[1])
