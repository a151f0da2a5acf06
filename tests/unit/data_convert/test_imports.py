"""Imports of HDF5, Zarr and MCAP recordings, on files that these tests write with the formats' own packages."""

from __future__ import annotations

import importlib.util
import io
import json
import pickle
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.imports.formats import detect_format
from mimetic.data.convert.run import convert
from mimetic.data.encoding.config import RgbEncoderConfig
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError, DatasetFormatError, DatasetNotFound, EpisodeError, MissingExtra
from mimetic.testing.datasets import coded_image, read_code

HAS_H5PY = importlib.util.find_spec("h5py") is not None
HAS_ZARR = importlib.util.find_spec("zarr") is not None
HAS_MCAP = importlib.util.find_spec("mcap_ros2") is not None
needs_h5py = pytest.mark.skipif(not HAS_H5PY, reason="needs the package h5py")
needs_zarr = pytest.mark.skipif(not HAS_ZARR, reason="needs the package zarr")
needs_mcap = pytest.mark.skipif(not HAS_MCAP, reason="needs the packages mcap and mcap-ros2-support")

FAST = RgbEncoderConfig(vcodec="h264", crf=10, preset="ultrafast")
TOP = "observation.images.top"
SIZE = (32, 48)
LENGTHS = (4, 6, 3)


def config(root, **changes):
    given = {
        "fps": 50,
        "task": "fold",
        "joint_names": ["a", "b", "c"],
        "engine": "serial",
        "rgb_encoder": FAST,
        **changes,
    }
    return ConvertConfig(root=root, **given)


def state(episode, length):
    return (100.0 * episode + np.arange(length)[:, None] + np.arange(3) / 10).astype(np.float32)


def pictures(episode, length):
    return np.stack([coded_image(episode, frame, SIZE) for frame in range(length)])


def jpeg(picture):
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "JPEG", quality=95)
    return np.frombuffer(data.getvalue(), dtype=np.uint8)


def assert_is_recording(root, lengths=LENGTHS, fps=50, camera=TOP):
    """Every row and every picture of the result belongs to its episode and frame."""
    dataset = open_dataset(root=root, return_uint8=True, video_backend="pyav")
    assert dataset.meta.fps == fps
    assert [int(length) for length in dataset.meta.episodes.length] == list(lengths)
    index = 0
    for episode, length in enumerate(lengths):
        for frame in range(length):
            item = dataset[index]
            np.testing.assert_array_equal(item["observation.state"], state(episode, length)[frame])
            np.testing.assert_array_equal(item["action"], state(episode, length)[frame] + 1)
            assert read_code(item[camera].permute(1, 2, 0)) == (episode, frame)
            assert float(item["timestamp"]) == pytest.approx(frame / fps)
            assert item["task"] == "fold"
            index += 1


# --------------------------------------------------------------------------------------------------------------- HDF5


def write_hdf5(path, episode, length, *, storage="raw", extra=(), attributes=()):
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["action"] = state(episode, length) + 1
        file["observations/qpos"] = state(episode, length)
        frames = pictures(episode, length)
        if storage == "raw":
            file["observations/images/top"] = frames
        else:
            files = [jpeg(frame) for frame in frames]
            if storage == "padded":
                longest = max(map(len, files))
                padded = np.zeros((length, longest), dtype=np.uint8)
                for row, data in zip(padded, files, strict=True):
                    row[: len(data)] = data
                file["observations/images/top"] = padded
                file["compress_len"] = np.asarray([[len(data) for data in files]], dtype=np.float64)
            else:
                array = file.create_dataset("observations/images/top", (length,), dtype=h5py.vlen_dtype(np.uint8))
                for number, data in enumerate(files):
                    array[number] = data
        for name, value in dict(extra).items():
            file[name] = value
        for name, value in dict(attributes).items():
            file.attrs[name] = value


@pytest.fixture
def aloha(tmp_path):
    root = tmp_path / "aloha"
    for episode, length in enumerate(LENGTHS):
        write_hdf5(root / f"episode_{episode}.hdf5", episode, length)
    return root


@needs_h5py
@pytest.mark.parametrize("storage", ["raw", "padded", "vlen"])
def test_hdf5_rows_and_pictures_arrive_in_their_places(tmp_path, storage):
    root = tmp_path / "aloha"
    for episode, length in enumerate(LENGTHS):
        write_hdf5(root / f"episode_{episode}.hdf5", episode, length, storage=storage)
    made = convert(config(root))
    assert made == tmp_path / "aloha_v30"
    assert_is_recording(made)
    info = json.loads((made / "meta/info.json").read_text())
    assert info["features"]["action"]["names"] == ["a", "b", "c"]
    assert info["features"][TOP]["info"]["video.codec"] == "h264"
    assert info["features"][TOP]["info"]["video.crf"] == 10


@needs_h5py
def test_files_are_in_the_order_of_their_numbers(tmp_path):
    lengths = [2] * 11
    for episode, length in enumerate(lengths):
        write_hdf5(tmp_path / f"aloha/episode_{episode}.hdf5", episode, length)
    assert_is_recording(convert(config(tmp_path / "aloha")), lengths)


@needs_h5py
def test_statistics_are_those_of_the_pictures_before_compression(aloha):
    made = convert(config(aloha, rgb_encoder=RgbEncoderConfig(vcodec="h264", crf=50)))
    frames = np.concatenate([pictures(episode, length) for episode, length in enumerate(LENGTHS)]) / 255.0
    stats = json.loads((made / "meta/stats.json").read_text())[TOP]
    np.testing.assert_allclose(np.ravel(stats["mean"]), frames.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(np.ravel(stats["q90"]), np.quantile(frames, 0.9, axis=(0, 1, 2)), rtol=1e-12)
    assert stats["count"] == [sum(LENGTHS)]
    row = pq.read_table(made / "meta/episodes/chunk-000/file-000.parquet").to_pylist()[1]
    np.testing.assert_allclose(
        np.ravel(row[f"stats/{TOP}/mean"]), pictures(1, 6).mean(axis=(0, 1, 2)) / 255, rtol=1e-12
    )


@needs_h5py
def test_a_pool_and_an_interruption_give_the_same_bytes(aloha, content, tmp_path, monkeypatch):
    from mimetic.data.convert import workplace
    from mimetic.data.convert.imports import stage

    whole = convert(config(aloha, output_dir=tmp_path / "whole"))
    assert content(convert(config(aloha, output_dir=tmp_path / "pool", engine="pool", num_workers=2))) == content(whole)
    seen = []

    def keep(*details):
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return workplace.keep(*details)

    monkeypatch.setattr(stage, "keep", keep)
    with pytest.raises(KeyboardInterrupt):
        convert(config(aloha, output_dir=tmp_path / "broken"))
    assert content(convert(config(aloha, output_dir=tmp_path / "broken"))) == content(whole)
    assert len(seen) == 4  # the first episode was not encoded again


@needs_h5py
def test_an_import_can_end_in_v21(aloha):
    made = convert(config(aloha, to="v2.1"))
    assert made.name == "aloha_v21"
    assert json.loads((made / "meta/info.json").read_text())["codebase_version"] == "v2.1"
    assert_is_recording(made)


@needs_h5py
def test_the_input_is_not_touched(aloha, content):
    before = content(aloha), {path: path.stat().st_mtime_ns for path in aloha.rglob("*")}
    convert(config(aloha))
    assert (content(aloha), {path: path.stat().st_mtime_ns for path in aloha.rglob("*")}) == before


@needs_h5py
def test_what_the_file_says_needs_no_flag(tmp_path):
    write_hdf5(tmp_path / "aloha/episode_0.hdf5", 0, 4, attributes={"fps": 50, "task": "fold"})
    made = convert(config(tmp_path / "aloha", fps=None, task=None))
    assert_is_recording(made, [4])


@needs_h5py
@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"fps": None}, "frame rate", "--fps=50"),
        ({"task": None}, "task", "--task="),
        ({"joint_names": None}, "does not name the 3 dimensions", "--joint_names=[]"),
        ({"joint_names": ["a", "b"]}, "holds 2 names", "one name a dimension"),
        ({"features": {"observations/qposs": "x"}}, "does not hold", "observations/qpos"),
        ({"features": {"action": "index"}}, "cannot be the name", "made by mimetic"),
        ({"features": {"action": "a/b"}}, "cannot be the name", "no slash"),
        ({"features": {"action": ""}}, "becomes `action`", "--features"),
        ({"features": {"observations/qpos": "action"}}, "would both become `action`", "--features"),
    ],
)
def test_nothing_is_guessed(aloha, changes, said, hint):
    with pytest.raises(ConfigError, match=said) as caught:
        convert(config(aloha, **changes))
    assert hint in caught.value.hint
    assert not list(aloha.parent.glob("*v30*"))


@needs_h5py
def test_arrays_without_a_known_meaning_must_be_named_or_left_out(tmp_path):
    root = tmp_path / "aloha"
    write_hdf5(root / "episode_0.hdf5", 0, 4, extra={"base_action": np.ones((4, 2), np.float32)})
    with pytest.raises(ConfigError, match=r"`base_action`, whose meaning its layout does not define") as caught:
        convert(config(root))
    assert "base_action: observation.base_action" in caught.value.hint
    named = convert(config(root, output_dir=tmp_path / "named", features={"base_action": "action.base"}))
    np.testing.assert_array_equal(open_dataset(root=named)[0]["action.base"], [1, 1])
    left = convert(config(root, output_dir=tmp_path / "left", features={"base_action": ""}))
    assert "action.base" not in open_dataset(root=left)[0]


@needs_h5py
def test_velocity_and_effort_get_their_names(tmp_path):
    extra = {"observations/qvel": np.full((4, 3), 2.0), "observations/effort": np.full((4, 3), 3.0)}
    write_hdf5(tmp_path / "aloha/episode_0.hdf5", 0, 4, extra=extra)
    item = open_dataset(root=convert(config(tmp_path / "aloha")))[0]
    np.testing.assert_array_equal(item["observation.velocity"], [2, 2, 2])
    np.testing.assert_array_equal(item["observation.effort"], [3, 3, 3])


@needs_h5py
def test_blue_first_is_turned_round(tmp_path):
    import h5py

    root = tmp_path / "aloha"
    write_hdf5(root / "episode_0.hdf5", 0, 4)
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        file["observations/images/top"][:] = np.asarray([200, 100, 20], dtype=np.uint8)
    made = convert(config(root, color_order="bgr"))
    pixel = np.asarray(open_dataset(root=made, return_uint8=True)[0][TOP])[:, 16, 24].astype(int)
    assert np.abs(pixel - [20, 100, 200]).max() < 12


@needs_h5py
@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"observations/qvel": np.ones((3, 3))},
            r"`observations/qvel` .* has the shape \(3, 3\); `/action` has 4 rows",
        ),
        ({"observations/effort": np.full((4, 3), np.nan)}, "frame 0 of episode 0"),
    ],
)
def test_damaged_recordings_are_named(tmp_path, extra, said):
    write_hdf5(tmp_path / "aloha/episode_0.hdf5", 0, 4, extra=extra)
    with pytest.raises(DatasetFormatError, match=said):
        convert(config(tmp_path / "aloha"))
    assert not (tmp_path / "aloha_v30").exists()


@needs_h5py
def test_a_file_that_is_none_and_a_picture_that_is_none(tmp_path):
    import h5py

    root = tmp_path / "aloha"
    write_hdf5(root / "episode_0.hdf5", 0, 4, storage="padded")
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        file["observations/images/top"][2] = 0
    with pytest.raises(DatasetFormatError, match=r"frame 2 in .*episode_0.hdf5` is not a readable picture"):
        convert(config(root))
    (root / "episode_1.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(DatasetFormatError, match=r"episode_1.hdf5` cannot be opened as HDF5"):
        convert(config(root))


@needs_h5py
def test_episodes_of_different_robots_are_refused(aloha):
    import h5py

    with h5py.File(aloha / "episode_1.hdf5", "a") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = np.zeros((6, 7), np.float32)
    with pytest.raises(DatasetFormatError, match=r"is float32 7 in .*episode_1.hdf5` and float32 3 in"):
        convert(config(aloha))


@needs_h5py
@pytest.mark.parametrize("trick", ["external storage", "external link", "virtual"])
def test_arrays_in_other_files_are_refused(tmp_path, trick):
    import h5py

    secret = tmp_path / "secret"
    secret.write_bytes(b"s3cr3t" * 100)
    root = tmp_path / "aloha"
    write_hdf5(root / "episode_0.hdf5", 0, 4)
    write_hdf5(tmp_path / "other.hdf5", 1, 4)
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        del file["observations/qpos"]
        if trick == "external storage":
            file.create_dataset("observations/qpos", (4, 3), "u1", external=[(str(secret), 0, 12)])
        elif trick == "external link":
            file["observations/qpos"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/action")
        else:
            layout = h5py.VirtualLayout((4, 3), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "action", shape=(4, 3))
            file.create_virtual_dataset("observations/qpos", layout)
    with pytest.raises(DatasetFormatError, match=r"other file|another file"):
        convert(config(root))


# --------------------------------------------------------------------------------------------------------------- Zarr


def write_zarr(root, *, zarr_format=2, is_zip=False, picture_scale=None, ends=(4, 10, 13), **extra):
    import zarr

    store = zarr.storage.ZipStore(root, mode="w") if is_zip else str(root)
    group = zarr.open_group(store, mode="w", zarr_format=zarr_format)
    data, meta = group.create_group("data"), group.create_group("meta")
    frames = np.concatenate([pictures(episode, length) for episode, length in enumerate(LENGTHS)])
    if picture_scale is not None:
        frames = (frames * (picture_scale / 255.0)).astype(np.float32)
    arrays = {
        "state": np.concatenate([state(episode, length) for episode, length in enumerate(LENGTHS)]),
        "action": np.concatenate([state(episode, length) + 1 for episode, length in enumerate(LENGTHS)]),
        "top": frames,
        **extra,
    }
    for name, values in arrays.items():
        data.create_array(name, data=np.asarray(values), chunks=(5, *np.shape(values)[1:]))
    meta.create_array("episode_ends", data=np.asarray(ends, dtype=np.int64))
    if is_zip:
        store.close()
    return root


@needs_zarr
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_zip", [False, True])
def test_zarr_rows_and_pictures_arrive_in_their_places(tmp_path, zarr_format, is_zip):
    name = "pusht.zarr.zip" if is_zip else "pusht.zarr"
    made = convert(config(write_zarr(tmp_path / name, zarr_format=zarr_format, is_zip=is_zip)))
    assert made.name == "pusht_v30"
    assert_is_recording(made)


@needs_zarr
@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_pictures_that_are_no_bytes_need_their_white(tmp_path, scale):
    root = write_zarr(tmp_path / "pusht.zarr", picture_scale=scale)
    with pytest.raises(ConfigError, match=r"nothing says what white is") as caught:
        convert(config(root))
    assert "--picture_max=255" in caught.value.hint
    made = convert(config(root, picture_max=scale, output_dir=tmp_path / "out"))
    assert_is_recording(made)
    pixels = np.asarray(open_dataset(root=made, return_uint8=True)[12][TOP])
    assert 225 < pixels.max() < 246


@needs_zarr
def test_a_wrong_white_is_found(tmp_path):
    root = write_zarr(tmp_path / "pusht.zarr", picture_scale=255.0)
    with pytest.raises(DatasetFormatError, match=r"holds values from 20 to 20;"):
        convert(config(root, picture_max=1.0))


@needs_zarr
@pytest.mark.parametrize(
    ("ends", "said"),
    [((4, 10), "13 rows; the last episode ends at 10"), ((4, 4, 13), "rising"), ((), "rising"), ((-1, 13), "rising")],
)
def test_wrong_ends_are_named(tmp_path, ends, said):
    root = write_zarr(tmp_path / "pusht.zarr", ends=ends)
    with pytest.raises(EpisodeError, match=said):
        convert(config(root))


@needs_zarr
def test_unknown_arrays_must_be_named(tmp_path):
    root = write_zarr(tmp_path / "pusht.zarr", keypoint=np.zeros((13, 9, 2), np.float32), n_contacts=np.ones((13, 1)))
    with pytest.raises(ConfigError, match=r"`keypoint`, `n_contacts`, whose meaning"):
        convert(config(root))
    names = {"keypoint": "observation.environment_state", "n_contacts": ""}
    item = open_dataset(root=convert(config(root, features=names)))[0]
    assert item["observation.environment_state"].shape == (9, 2)


@needs_zarr
@pytest.mark.parametrize("where", ["data/action", "meta/episode_ends"])
@pytest.mark.parametrize("place", ["compressor", "filters"])
def test_stores_that_would_run_code_are_refused(tmp_path, where, place):
    """numcodecs' `pickle` unpickles what the store holds; the array is refused before a value is read."""
    root = write_zarr(tmp_path / "pusht.zarr")
    path = root / where / ".zarray"
    content = json.loads(path.read_text())
    codec = {"id": "pickle", "protocol": 5}
    content[place] = codec if place == "compressor" else [codec]
    path.write_text(json.dumps(content))
    marker = tmp_path / "code_ran"

    class Trap:
        def __reduce__(self):
            return (marker.touch, ())

    for chunk in (root / where).iterdir():
        if chunk.name[0].isdigit():
            chunk.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DatasetFormatError) as caught:
        convert(config(root))
    assert "pickle" in caught.value.message
    assert not marker.exists()


@needs_zarr
def test_a_folder_that_is_no_such_store_is_said(tmp_path):
    import zarr

    zarr.open_group(str(tmp_path / "a.zarr"), mode="w").create_group("data")
    with pytest.raises(DatasetFormatError, match=r"no group `meta`"):
        convert(config(tmp_path / "a.zarr"))
    (tmp_path / "b.zip").write_bytes(b"no zip")
    with pytest.raises(DatasetFormatError, match=r"cannot be opened as a Zarr group"):
        convert(config(tmp_path / "b.zip"))


# --------------------------------------------------------------------------------------------------------------- MCAP

JOINT_STATE = """\
std_msgs/Header header
string[] name
float64[] position
float64[] velocity
float64[] effort
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
HEADER = JOINT_STATE[JOINT_STATE.index("=====") :]
COMPRESSED = "std_msgs/Header header\nstring format\nuint8[] data\n" + HEADER
ARRAY = """\
std_msgs/MultiArrayLayout layout
float32[] data
================================================================================
MSG: std_msgs/MultiArrayLayout
std_msgs/MultiArrayDimension[] dim
uint32 data_offset
================================================================================
MSG: std_msgs/MultiArrayDimension
string label
uint32 size
uint32 stride
"""
TOPICS = {"/joints": "observation.state", "/command": "action", "/top": TOP}


def write_mcap(path, episode, length, *, rate=50, camera_delay=0):
    """Joints and commands at `rate`; the camera's pictures `camera_delay` frames later."""
    from mcap_ros2.writer import Writer

    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": ""}
    with path.open("wb") as stream:
        writer = Writer(stream)
        joints = writer.register_msgdef("sensor_msgs/msg/JointState", JOINT_STATE)
        array = writer.register_msgdef("std_msgs/msg/Float32MultiArray", ARRAY)
        image = writer.register_msgdef("sensor_msgs/msg/CompressedImage", COMPRESSED)
        values = state(episode, length).astype(np.float64)
        for frame in range(length):
            time = 1_000_000_000 + frame * 1_000_000_000 // rate
            order = [2, 0, 1] if frame % 2 else [0, 1, 2]  # ROS does not promise an order
            message = {
                "header": header,
                "name": ["abc"[joint] for joint in order],
                "position": [values[frame, joint] for joint in order],
                "velocity": [10.0 * joint for joint in order],
                "effort": [],
            }
            writer.write_message("/joints", joints, message, log_time=time, publish_time=time)
            command = {"layout": {"dim": [], "data_offset": 0}, "data": [float(v) + 1 for v in values[frame]]}
            writer.write_message("/command", array, command, log_time=time + 5, publish_time=time + 5)
            late = time + 10 + camera_delay * 1_000_000_000 // rate
            data = jpeg(coded_image(episode, frame, SIZE)).tolist()
            picture = {"header": header, "format": "jpeg", "data": data}
            writer.write_message("/top", image, picture, log_time=late, publish_time=late)
        writer.finish()


@needs_mcap
class TestMcap:
    def test_rows_and_pictures_arrive_in_their_places(self, tmp_path):
        for episode, length in enumerate(LENGTHS):
            write_mcap(tmp_path / f"bags/{episode}.mcap", episode, length)
        made = convert(config(tmp_path / "bags", features=TOPICS, joint_names=[]))
        # Frame i is 10 ns after the joints' message i: every topic has sent its i-th by then. The commands name no joints.
        assert_is_recording(made)
        info = json.loads((made / "meta/info.json").read_text())
        assert info["features"]["observation.state"]["names"] == ["a", "b", "c"]
        assert info["features"]["action"]["names"] is None

    def test_a_frame_shows_what_was_known_at_its_time(self, tmp_path):
        write_mcap(tmp_path / "bags/0.mcap", 0, 8, camera_delay=3)
        dataset = open_dataset(root=convert(config(tmp_path / "bags", features=TOPICS, fps=25)), return_uint8=True)
        assert len(dataset) == 3  # from the first picture (frame 3) to the last joints (frame 7), every second
        assert [read_code(dataset[index][TOP].permute(1, 2, 0))[1] for index in range(3)] == [0, 2, 4]
        assert [float(dataset[index]["observation.state"][0]) for index in range(3)] == [3, 5, 7]

    def test_fields_of_joint_states_have_names(self, tmp_path):
        write_mcap(tmp_path / "bags/0.mcap", 0, 4)
        topics = {**TOPICS, "/joints:velocity": "observation.velocity"}
        item = open_dataset(root=convert(config(tmp_path / "bags", features=topics)))[1]
        np.testing.assert_array_equal(item["observation.velocity"], [0, 10, 20])

    def test_topics_must_be_named(self, tmp_path):
        write_mcap(tmp_path / "bags/0.mcap", 0, 4)
        with pytest.raises(ConfigError, match=r"does not say which topics") as caught:
            convert(config(tmp_path / "bags"))
        assert "`/joints` (sensor_msgs/msg/JointState)" in caught.value.message
        with pytest.raises(ConfigError, match=r"`/other`, which"):
            convert(config(tmp_path / "bags", features={"/other": "action"}))

    def test_a_recording_that_was_cut_is_said(self, tmp_path):
        write_mcap(tmp_path / "bags/0.mcap", 0, 4)
        path = tmp_path / "bags/0.mcap"
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(DatasetFormatError, match=r"0.mcap`"):
            convert(config(tmp_path / "bags", features=TOPICS))


# ---------------------------------------------------------------------------------------------------------- detection


def test_rlds_says_why_and_what_to_do(tmp_path):
    (tmp_path / "droid-train.tfrecord-00000-of-00001").write_bytes(b"")
    with pytest.raises(DatasetNotFound, match=r"RLDS episodes") as caught:
        detect_format(tmp_path)
    assert "docs/guides/convert.md" in caught.value.hint


def test_a_folder_of_nothing_and_a_wrong_path_are_said(tmp_path):
    with pytest.raises(DatasetNotFound, match=r"holds no LeRobot dataset"):
        detect_format(tmp_path)
    with pytest.raises(DatasetNotFound, match=r"there is nothing at"):
        detect_format(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("package", "name", "extra"),
    [("h5py", "a.hdf5", "hdf5"), ("zarr", "a.zarr.zip", "zarr"), ("mcap.reader", "a.mcap", "mcap")],
)
def test_a_missing_package_gives_the_command_to_install_it(tmp_path, monkeypatch, package, name, extra):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(MissingExtra) as caught:
        convert(config(tmp_path / name, features={"/a": "action"}))
    assert f'pip install "mimetic[{extra}]"' in caught.value.hint
