"""Edits of every kind of feature: depth, texts, language, odd shapes; and of streams with reordered frames."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from mimetic.data.edit.config import (
    ConvertImageToVideoConfig,
    DeleteEpisodesConfig,
    KeepConfig,
    MergeConfig,
    RecomputeStatsConfig,
    ReencodeVideosConfig,
    TrimConfig,
)
from mimetic.data.edit.run import edit_dataset
from mimetic.data.encoding.config import DepthEncoderConfig
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.data.store.beside import FolderBuild
from mimetic.errors import DatasetError
from mimetic.testing.datasets import build_dataset, coded_image, read_code

DTYPES = Path(__file__).parents[2] / "fixtures" / "dataset" / "dtypes_v30"
DEPTH_VIDEO, DEPTH_IMAGE = "observation.images.depth_vid", "observation.images.depth_img"


def items(root):
    dataset = open_dataset(root=root)
    return [dataset[position] for position in range(len(dataset))]


def assert_same(one, other, but=()):
    assert set(one) == set(other)
    for key, value in one.items():
        if key not in ("index", "episode_index", "frame_index", "timestamp", *but):
            assert value == other[key] if isinstance(value, str) else np.array_equal(value, other[key]), key


def test_every_kind_of_feature_survives_a_cut_exactly(tmp_path):
    edit_dataset(DTYPES, TrimConfig(by="frames", head=1, tail=1), new_root=tmp_path / "out")
    before, after = items(DTYPES), items(tmp_path / "out")
    assert len(after) == 6
    for item, place in zip(after, (1, 2, 3, 4, 7, 8), strict=True):
        assert_same(item, before[place])
    assert [float(item["timestamp"]) for item in after] == pytest.approx([0, 0.1, 0.2, 0.3, 0, 0.1])
    schema = pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet")
    assert schema.equals(pq.read_schema(DTYPES / "data/chunk-000/file-000.parquet"))


def test_depth_pictures_become_depth_videos(tmp_path):
    edit_dataset(DTYPES, ConvertImageToVideoConfig(), new_root=tmp_path / "out")
    feature = Metadata.open(tmp_path / "out").features[DEPTH_IMAGE]
    assert (feature.dtype, feature.is_depth, feature.info["depth_unit"]) == ("video", True, "m")
    assert feature.info["video.codec"] == "hevc"
    for one, other in zip(items(tmp_path / "out"), items(DTYPES), strict=True):
        assert_same(one, other, but=(DEPTH_IMAGE,))
        assert (one[DEPTH_IMAGE] - other[DEPTH_IMAGE]).abs().max() <= 1.0  # a step of the 12-bit codes [mm]


def test_depth_stays_exact_when_it_is_encoded_again(tmp_path):
    config = ReencodeVideosConfig(depth_encoder=DepthEncoderConfig(g=1, depth_max=5.0))
    edit_dataset(DTYPES, config, new_root=tmp_path / "out")
    info = Metadata.open(tmp_path / "out").features[DEPTH_VIDEO].info
    assert (info["video.g"], info["video.depth_max"]) == (1, 10.0)  # what the codes mean is not changed
    for one, other in zip(items(tmp_path / "out"), items(DTYPES), strict=True):
        assert_same(one, other)


def test_depth_statistics_are_in_the_recorded_unit(tmp_path):
    edit_dataset(DTYPES, RecomputeStatsConfig(skip_image_video=False), new_root=tmp_path / "out")
    ours, theirs = Metadata.open(tmp_path / "out").stats, Metadata.open(DTYPES).stats
    for key, tolerance in ((DEPTH_VIDEO, 1.0), (DEPTH_IMAGE, 0.001)):  # one millimetre
        for name in ("min", "max", "mean"):
            assert np.abs(ours[key][name] - theirs[key][name]).max() <= tolerance, (key, name)


def test_all_kinds_of_features_can_be_merged(tmp_path):
    edit_dataset([DTYPES, DTYPES], MergeConfig(roots=["a", "b"]), new_root=tmp_path / "out")
    before, after = items(DTYPES), items(tmp_path / "out")
    for item, other in zip(after, before + before, strict=True):
        assert_same(item, other)


def test_language_columns_go_along(tmp_path):
    import json

    from mimetic.data.features import parse_features
    from mimetic.data.store.data_file import DataFileWriter
    from mimetic.data.store.schema import episode_table

    root = build_dataset(tmp_path / "set", lengths=(3, 2))
    info = root / "meta/info.json"
    raw = json.loads(info.read_text())
    language = {"dtype": "language", "shape": [1], "names": None}
    raw["features"] = {**raw["features"], "language_persistent": language, "language_events": language}
    info.write_text(json.dumps(raw))
    features = parse_features(raw["features"], where="x")

    def message(text):
        call = {"type": "function", "function": {"name": "say", "arguments": {"text": text}}}
        return {"role": "user", "content": text, "style": "subtask", "camera": None, "tool_calls": [call]}

    for episode, length in enumerate((3, 2)):
        path = root / f"data/chunk-000/file-{episode:03d}.parquet"
        table = pq.read_table(path, partitioning=None)
        columns = {name: np.asarray(table[name].to_pylist()) for name in table.column_names}
        columns["language_persistent"] = [[{**message(f"p{episode}"), "timestamp": 0.0}]] * length
        columns["language_events"] = [[message(f"e{episode}{frame}")] if frame else [] for frame in range(length)]
        with DataFileWriter(path, features) as writer:
            writer.write(episode_table(features, columns))
    before = items(root)
    edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]), new_root=tmp_path / "out")
    after = items(tmp_path / "out")
    assert [item["language_persistent"] for item in after] == [item["language_persistent"] for item in before[3:]]
    assert [item["language_events"] for item in after] == [item["language_events"] for item in before[3:]]
    assert after[1]["language_events"][0]["content"] == "e11"


def write_reordered(path, lengths, *, gop):
    """One file of several episodes with B-frames, as other recorders make them."""
    with av.open(str(path), "w") as container:
        options = {"g": str(gop), "bf": "2", "crf": "18", "x264-params": "b-adapt=0:scenecut=0"}
        stream = container.add_stream("libx264", rate=Fraction(10), options=options)
        stream.width, stream.height, stream.pix_fmt = 64, 40, "yuv420p"
        for episode, length in enumerate(lengths):
            for frame in range(length):
                picture = coded_image(episode, frame, (40, 64))
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


@pytest.mark.parametrize(("lengths", "gop"), [((8, 8, 8), 8), ((7, 9, 6), 4), ((6, 6, 6), 12)])
def test_streams_with_reordered_frames_show_the_right_frames(tmp_path, lengths, gop):
    root = build_dataset(tmp_path / "set", lengths=lengths, cameras={"top": (40, 64)}, episodes_per_file=None)
    write_reordered(root / "videos/observation.images.top/chunk-000/file-000.mp4", lengths, gop=gop)
    for number, config in enumerate(
        (
            KeepConfig(episode_indices=[1]),
            DeleteEpisodesConfig(episode_indices=[1]),
            TrimConfig(by="frames", head=2, tail=1),
        )
    ):
        target = tmp_path / f"out{number}"
        edit_dataset(root, config, new_root=target)
        dataset = open_dataset(root=target, return_uint8=True)
        shown = [read_code(dataset[i]["observation.images.top"].numpy()) for i in range(len(dataset))]
        spans = {0: [(1, 0, 0)], 1: [(0, 0, 0), (2, 0, 0)], 2: [(e, 2, 1) for e in range(3)]}[number]
        assert shown == [(e, f) for e, head, tail in spans for f in range(head, lengths[e] - tail)]


def test_a_dataset_that_is_being_recorded_is_left_alone(tmp_path):
    root = build_dataset(tmp_path / "set")
    (root / ".mimetic-recording").mkdir()
    with pytest.raises(DatasetError, match="recording"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))


def test_two_edits_of_one_dataset_at_once_are_refused(tmp_path):
    import json

    root = build_dataset(tmp_path / "set")
    with FolderBuild(root, replaces=root) as build:
        mark = build.folder / ".mimetic-building.json"
        mark.write_text(json.dumps({"process": 1}))  # some process that is alive
        with pytest.raises(DatasetError, match="process 1 is building"):
            edit_dataset(root, DeleteEpisodesConfig(episode_indices=[0]))
