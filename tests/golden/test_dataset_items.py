"""Items of the reader against those of LeRobot 0.6.1 (tests/fixtures/dataset/getitem, tests/fixtures/real).

Tolerance: everything is exact but decoded colour frames, where another FFmpeg build may convert YUV to RGB differently:
at most 2 of 255, 0.5 on average. With the FFmpeg inside PyAV 18 the difference is 0.
"""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset

FIXTURES = Path(__file__).parents[1] / "fixtures"
DATASETS = FIXTURES / "dataset"
NAMES = ["video_delta_uint8", "video_plain_uint8", "video_filtered_uint8", "image_delta_float"]


def assert_item_equals(item, expected, key_order, task, *, is_frame):
    assert list(item) == key_order
    assert item["task"] == task
    for key, value in item.items():
        if key == "task":
            continue
        golden = expected[key]
        assert value.dtype == golden.dtype, key
        assert value.shape == golden.shape, key
        if is_frame(key) and value.dtype == torch.uint8:
            difference = (value.int() - golden.int()).abs().float()
            assert difference.max() <= 2, key
            assert difference.mean() <= 0.5, key
        else:
            assert torch.equal(value, golden), key


@pytest.mark.parametrize("name", NAMES)
def test_items_equal_those_of_lerobot(name):
    described = json.loads((DATASETS / "getitem" / f"{name}.json").read_text())
    golden = load_file(DATASETS / "getitem" / f"{name}.safetensors")
    config = described["config"]
    dataset = open_dataset(
        root=DATASETS / config["dataset"],
        delta_timestamps=config["delta_timestamps"],
        return_uint8=config.get("return_uint8", False),
        episodes=config.get("episodes"),
        video_backend="pyav",
    )
    assert described["items"]
    for index, item in described["items"].items():
        expected = {key.split("/", 1)[1]: value for key, value in golden.items() if key.split("/")[0] == index}
        assert_item_equals(
            dataset[int(index)],
            expected,
            item["key_order"],
            item["task"],
            is_frame=lambda key: key in dataset.meta.camera_keys,
        )


def test_a_filter_keeps_the_order_of_the_files():
    described = json.loads((DATASETS / "getitem" / "video_filtered_uint8.json").read_text())
    dataset = open_dataset(root=DATASETS / "video_v30", episodes=described["config"]["episodes"])
    assert dataset.episodes == [1, 3, 5]
    assert len(dataset) == described["config"]["absolute_to_relative_idx_len"]
    assert (np.diff(dataset.column("index")) > 0).all()


def test_float_frames_are_the_uint8_frames_divided_by_255():
    floats = open_dataset(root=DATASETS / "video_v30")[57]
    whole = open_dataset(root=DATASETS / "video_v30", return_uint8=True)[57]
    for key in ("observation.images.top", "observation.images.wrist"):
        assert floats[key].dtype == torch.float32
        assert torch.equal(floats[key], whole[key].float() / 255)


def test_every_frame_of_every_layout_shows_its_own_bar_code():
    for name in ("video_v30", "image_v30", "v21", "v21_converted"):
        dataset = open_dataset(root=DATASETS / name, return_uint8=True)
        assert len(dataset) == 115
        for position in range(115):
            item = dataset[position]
            for key in dataset.meta.camera_keys:
                assert bar_code(item[key].numpy()) == int(item["index"]) == position, (name, key)


def bar_code(frame):
    height, width = frame.shape[1:]
    step = width // 8
    blocks = [frame[:, height - 9 : height - 3, k * step + 2 : (k + 1) * step - 2].mean() for k in range(8)]
    return int("".join(str(int(block > 127)) for block in blocks), 2)


def test_a_v21_folder_gives_the_items_of_its_converted_dataset():
    deltas = {"observation.images.top": [-2, 0], "action": list(range(8)), "observation.state": [-1, 0]}
    old = open_dataset(root=DATASETS / "v21", delta_indices=deltas, return_uint8=True)
    new = open_dataset(root=DATASETS / "v21_converted", delta_indices=deltas, return_uint8=True)
    assert len(old) == len(new) == 115
    for position in range(115):
        a, b = old[position], new[position]
        assert list(a) == list(b)
        assert all(torch.equal(a[key], b[key]) if key != "task" else a[key] == b[key] for key in a)


def test_the_real_v21_recording_gives_lerobots_items_of_its_conversion():
    golden = load_file(FIXTURES / "real" / "g1_v21_golden" / "items.safetensors")
    described = json.loads((FIXTURES / "real" / "g1_v21_golden" / "converted.json").read_text())
    dataset = open_dataset(
        root=FIXTURES / "real" / "g1_v21",
        delta_timestamps={"action": [0, 1 / 30, 2 / 30, 3 / 30]},
        return_uint8=True,
        video_backend="pyav",
    )
    compared = set()
    for index, about in described["items"].items():
        item = dataset[int(index)]
        assert item["task"] == about["task"]
        for key, expected in golden.items():
            number, name = key.split("/", 1)
            if number != index:
                continue
            compared.add(name)
            value = item[name]
            if name in dataset.meta.camera_keys:
                difference = (value[:, ::4, ::4].int() - expected.int()).abs().float()
                assert difference.max() <= 2
                assert difference.mean() <= 0.5
            else:
                assert torch.equal(value, expected), key
    assert {"action", "observation.state", "observation.images.cam_high", "action_is_pad"} <= compared


def test_every_dtype_comes_out_as_float32_int64_or_bool():
    dataset = open_dataset(root=DATASETS / "dtypes_v30")
    table = pq.read_table(DATASETS / "dtypes_v30" / "data" / "chunk-000" / "file-000.parquet")
    expected = {
        "action": (torch.float32, (2,)),
        "observation.state": (torch.float32, (3,)),
        "observation.tactile": (torch.float32, (2, 3)),
        "observation.voxels": (torch.int64, (2, 2, 2)),
        "next.reward": (torch.float32, ()),
        "next.done": (torch.bool, ()),
        "counter": (torch.int64, ()),
        "flags": (torch.bool, (3,)),
        "bytes8": (torch.int64, (4,)),
        "timestamp": (torch.float32, ()),
    }
    for position in range(len(dataset)):
        item = dataset[position]
        for key, (dtype, shape) in expected.items():
            assert (item[key].dtype, tuple(item[key].shape)) == (dtype, shape), key
            assert torch.equal(item[key], torch.tensor(table[key][position].as_py(), dtype=dtype)), key
        assert item["note"] == table["note"][position].as_py()


@pytest.mark.parametrize(("unit", "factor"), [("mm", 1000.0), ("m", 1.0)])
def test_depth_pictures_come_in_the_wanted_unit(unit, factor):
    dataset = open_dataset(root=DATASETS / "dtypes_v30", depth_output_unit=unit)
    table = pq.read_table(DATASETS / "dtypes_v30" / "data" / "chunk-000" / "file-000.parquet")
    for position in (0, 5, 9):
        cell = table["observation.images.depth_img"][position].as_py()
        stored = np.asarray(Image.open(io.BytesIO(cell["bytes"])))  # float32 metres
        depth = dataset[position]["observation.images.depth_img"]
        assert depth.dtype == torch.float32
        assert depth.shape == (1, 48, 64)
        assert np.array_equal(depth[0].numpy(), stored * np.float32(factor))


def test_depth_videos_agree_between_units_and_with_the_statistics():
    in_mm = open_dataset(root=DATASETS / "dtypes_v30", depth_output_unit="mm")
    in_m = open_dataset(root=DATASETS / "dtypes_v30", depth_output_unit="m")
    key = "observation.images.depth_vid"
    frames_mm = torch.stack([in_mm[i][key] for i in range(10)])
    frames_m = torch.stack([in_m[i][key] for i in range(10)])
    assert frames_mm.shape == (10, 1, 64, 64)
    assert torch.equal(frames_mm, frames_mm.round())
    assert (frames_mm / 1000 - frames_m).abs().max() <= 0.0005 + 1e-6
    # statistics were made of the frames before the 12-bit codes, which are exact to 1 mm near and a few mm far away
    for dataset, frames, factor in ((in_mm, frames_mm, 1.0), (in_m, frames_m, 0.001)):
        stats = dataset.meta.stats[key]
        assert abs(frames.min() - stats["min"].item()) <= 2 * factor
        assert abs(frames.max() - stats["max"].item()) <= 2 * factor
        assert abs(frames.mean() - stats["mean"].item()) <= 2 * factor
        assert stats["count"].tolist() == in_mm.meta.stats[key]["count"].tolist()


def test_metadata_of_both_layouts_says_the_same():
    old, new = Metadata.open(DATASETS / "v21"), Metadata.open(DATASETS / "v21_converted")
    assert (old.fps, old.total_episodes, old.total_frames, old.tasks) == (30, 6, 115, new.tasks)
    assert old.version == "v2.1"
    assert new.version == "v3.0"
    assert [episode for episode in old.episodes] == [episode for episode in new.episodes]  # noqa: C416
    assert old.action_names == new.action_names
    assert old.policy_features == new.policy_features


def test_names_in_a_list_in_a_list_are_flattened_for_the_real_recording():
    metadata = Metadata.open(FIXTURES / "real" / "g1_v21")
    assert metadata.action_names[:2] == ["kLeftShoulderPitch", "kLeftShoulderRoll"]
    assert len(metadata.action_names) == 26
    assert metadata.policy_features["observation.images.cam_high"].shape == (3, 480, 640)
    assert metadata.depth_keys == []
