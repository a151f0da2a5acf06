"""Editing and then reading equals the same edit on decoded arrays, for any dataset and any few edits in a row."""

import copy
import itertools
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
from dataset_invariants import assert_is_sound
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimetic.data.edit.config import (
    DeleteEpisodesConfig,
    KeepConfig,
    MergeConfig,
    ModifyTasksConfig,
    RemoveFeatureConfig,
    RenameConfig,
    SplitConfig,
    TrimConfig,
)
from mimetic.data.edit.run import add_features, edit_dataset
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import TinyDataset, build_dataset, read_code

SIZE = (40, 64)


@dataclass
class Model:
    """A dataset as arrays: per episode its columns, task strings and the codes that its pictures show."""

    episodes: list

    @classmethod
    def of(cls, root):
        dataset = open_dataset(root=root, return_uint8=True)
        starts, ends = dataset.episode_bounds()
        episodes = []
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            items = [dataset[position] for position in range(start, end)]
            own = [key for key in items[0] if not key.startswith(("episode_index", "index", "task", "frame_index"))]
            episodes.append(
                {
                    "columns": {
                        key: np.stack([item[key].numpy() for item in items])
                        for key in own
                        if key != "timestamp" and not dataset.features[key].is_camera
                    },
                    "tasks": [item["task"] for item in items],
                    "codes": {
                        key: [read_code(item[key].numpy().transpose(1, 2, 0)) for item in items]
                        for key in own
                        if dataset.features[key].is_camera
                    },
                }
            )
        dataset.close()
        return cls(episodes)

    def assert_equals(self, other):
        assert len(self.episodes) == len(other.episodes)
        for one, two in zip(self.episodes, other.episodes, strict=True):
            assert one["tasks"] == two["tasks"]
            assert one["codes"] == two["codes"]
            assert set(one["columns"]) == set(two["columns"])
            for key, values in one["columns"].items():
                np.testing.assert_array_equal(values, two["columns"][key])


def cut(episode, start, stop):
    return {
        "columns": {key: values[start:stop] for key, values in episode["columns"].items()},
        "tasks": episode["tasks"][start:stop],
        "codes": {key: codes[start:stop] for key, codes in episode["codes"].items()},
    }


def apply(kind, draw, root, target, model):
    """Do one random edit on disk and in the model; gives the edited folder, and whether anything was done."""
    count = len(model.episodes)
    lengths = [len(episode["tasks"]) for episode in model.episodes]
    if kind == "delete" and count > 1:
        gone = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count - 1, unique=True))
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=gone), new_root=target)
        model.episodes = [episode for number, episode in enumerate(model.episodes) if number not in gone]
    elif kind == "keep":
        kept = draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
        edit_dataset(root, KeepConfig(episode_indices=kept), new_root=target)
        model.episodes = [model.episodes[number] for number in sorted(kept)]
    elif kind == "trim":
        shortest = min(lengths)
        head = draw(st.integers(0, shortest - 1))
        tail = draw(st.integers(0, shortest - 1 - head))
        if head + tail == 0:
            return root
        edit_dataset(root, TrimConfig(by="frames", head=head, tail=tail), new_root=target)
        model.episodes = [
            cut(episode, head, length - tail) for episode, length in zip(model.episodes, lengths, strict=True)
        ]
    elif kind == "merge":
        edit_dataset([root, root], MergeConfig(roots=["a", "b"]), new_root=target)
        model.episodes = model.episodes + copy.deepcopy(model.episodes)
    elif kind == "split" and count > 1:
        first = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count - 1, unique=True))
        rest = [number for number in range(count) if number not in first]
        edit_dataset(root, SplitConfig(splits={"a": first, "b": rest}), new_root=target)
        model.episodes = [model.episodes[number] for number in rest]
        return target / "b"
    elif kind == "tasks":
        old = draw(st.sampled_from(sorted({task for episode in model.episodes for task in episode["tasks"]})))
        edit_dataset(root, ModifyTasksConfig(task_replacements={old: "something else"}), new_root=target)
        for episode in model.episodes:
            episode["tasks"] = [task if task != old else "something else" for task in episode["tasks"]]
    elif kind == "add" and "extra" not in model.episodes[0]["columns"]:
        values = np.arange(sum(lengths) * 2, dtype=np.float32).reshape(-1, 2)
        add_features(root, {"extra": (values, {"dtype": "float32", "shape": [2]})}, new_root=target)
        at = 0
        for episode, length in zip(model.episodes, lengths, strict=True):
            episode["columns"]["extra"] = values[at : at + length]
            at += length
    elif kind == "remove" and "extra" in model.episodes[0]["columns"]:
        edit_dataset(root, RemoveFeatureConfig(feature_names=["extra"]), new_root=target)
        for episode in model.episodes:
            del episode["columns"]["extra"]
    elif kind == "rename" and "observation.images.a" in model.episodes[0]["codes"]:
        edit_dataset(root, RenameConfig(features={"observation.images.a": "observation.images.b"}), new_root=target)
        for episode in model.episodes:
            episode["codes"]["observation.images.b"] = episode["codes"].pop("observation.images.a")
    else:
        return root
    return target


KINDS = ["delete", "keep", "trim", "merge", "split", "tasks", "add", "remove", "rename"]


@pytest.mark.parametrize("camera_dtype", ["image", "video"])
@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_edits_on_disk_equal_edits_on_arrays(tmp_path_factory, camera_dtype, data):
    folder = tmp_path_factory.mktemp("edits")
    spec = TinyDataset(
        lengths=data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)),
        cameras={"a": SIZE},
        camera_dtype=camera_dtype,
        tasks=("one", "two"),
        episodes_per_file=data.draw(st.sampled_from([1, 2, None])),
        gop=data.draw(st.sampled_from([1, 2, 3])),
    )
    root = build_dataset(folder / "0", spec)
    model = Model.of(root)
    for number, kind in enumerate(data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)), start=1):
        root = apply(kind, data.draw, root, folder / str(number), model)
    if root != folder / "0":
        assert_is_sound(root)
    Model.of(root).assert_equals(model)
    shutil.rmtree(folder)


def test_every_pair_of_edits_can_follow_each_other(tmp_path):
    """The edits of the property test one after the other, so that none is left out by chance."""
    root = build_dataset(tmp_path / "0", TinyDataset(lengths=(5, 4, 6), cameras={"a": SIZE}, tasks=("one", "two")))
    numbers = itertools.count(1)
    for config in (
        None,
        TrimConfig(by="frames", head=1, tail=1),
        RenameConfig(features={"observation.images.a": "observation.images.b"}, joints={"joint_0.pos": "base"}),
        DeleteEpisodesConfig(episode_indices=[1]),
        ModifyTasksConfig(new_task="new"),
        RemoveFeatureConfig(feature_names=["extra"]),
    ):
        target = tmp_path / str(next(numbers))
        if config is None:
            add_features(root, {"extra": (np.zeros(15), {"dtype": "float64", "shape": [1]})}, new_root=target)
        else:
            edit_dataset(root, config, new_root=target)
        assert_is_sound(target)
        root = target
    assert open_dataset(root=root).num_frames == 7
