"""What `add_frame` takes and refuses; what `create` lets be declared."""

import numpy as np
import pytest
import torch
from PIL import Image

from mimetic.data.record.declare import declare
from mimetic.data.record.frame_check import FrameCheck
from mimetic.errors import DatasetError

FEATURES = {
    "action": {"dtype": "float32", "shape": (2,), "names": None},
    "count": {"dtype": "int16", "shape": (1,), "names": None},
    "done": {"dtype": "bool", "shape": (1,), "names": None},
    "grid": {"dtype": "uint8", "shape": (2, 3), "names": None},
    "note": {"dtype": "string", "shape": (1,), "names": None},
    "cam": {"dtype": "video", "shape": (6, 8, 3), "names": ["height", "width", "channels"]},
    "first": {"dtype": "image", "shape": (3, 6, 8), "names": ["channels", "height", "width"]},
    "range": {"dtype": "video", "shape": (6, 8, 1), "names": None},
    "language_events": {"dtype": "language", "shape": (1,), "names": None},
    "language_persistent": {"dtype": "language", "shape": (1,), "names": None},
}
PICTURE = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


def frame(**changes):
    value = {
        "action": np.zeros(2, np.float32),
        "count": np.int16(3),
        "done": True,
        "grid": np.ones((2, 3), np.uint8),
        "note": "ok",
        "cam": PICTURE,
        "first": PICTURE,
        "range": np.full((6, 8), 700, np.uint16),
        "task": "pick",
    }
    return {key: item for key, item in {**value, **changes}.items() if item is not None}


@pytest.fixture
def check():
    return FrameCheck(declare(FEATURES).own, {})


def test_a_frame_gets_one_form(check):
    checked = check(frame())
    assert checked.task == "pick"
    assert {key: (value.dtype.name, value.shape) for key, value in checked.numbers.items()} == {
        "action": ("float32", (2,)),
        "count": ("int16", ()),
        "done": ("bool", ()),
        "grid": ("uint8", (2, 3)),
    }
    assert checked.texts == {"note": "ok"}
    assert checked.pictures["range"].shape == (6, 8)
    assert check.depth_units == {"range": "mm"}


@pytest.mark.parametrize(
    "picture",
    [
        PICTURE,
        PICTURE.transpose(2, 0, 1),
        torch.from_numpy(PICTURE.copy()),
        torch.from_numpy(PICTURE.transpose(2, 0, 1).copy()),
        Image.fromarray(PICTURE),
        PICTURE.astype(np.float32) / 255,
        PICTURE.transpose(2, 0, 1).astype(np.float64) / 255,
        PICTURE[:, ::-1][:, ::-1],
    ],
    ids=["hwc", "chw", "torch hwc", "torch chw", "pillow", "float32", "chw float64", "view"],
)
@pytest.mark.parametrize("camera", ["cam", "first"])
def test_every_form_of_a_picture_becomes_the_same_bytes(picture, camera, check):
    taken = check(frame(**{camera: picture})).pictures[camera]
    assert taken.dtype == np.uint8
    assert taken.flags.c_contiguous
    assert np.array_equal(taken, PICTURE)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_step_of_256_survives_as_a_float(dtype):
    """Cutting off instead of rounding would darken some of them by one."""
    steps = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    check = FrameCheck(declare({"cam": {"dtype": "video", "shape": (16, 16, 3), "names": None}}).own, {})
    for off in (0.0, 0.3, -0.3):
        floats = np.clip((steps + off) / 255, 0, 1).astype(dtype)
        assert np.array_equal(check({"cam": floats, "task": "x"}).pictures["cam"], steps)


def test_pictures_are_copied(check):
    own = PICTURE.copy()
    taken = check(frame(cam=own)).pictures["cam"]
    own[:] = 0
    assert np.array_equal(taken, PICTURE)


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 1), (1, 6, 8)])
def test_depth_in_either_unit(shape, check):
    assert check(frame(range=np.full(shape, 0.7, np.float32))).pictures["range"].shape == (6, 8)
    assert check.depth_units == {"range": "m"}
    with pytest.raises(DatasetError, match="in mm by its dtype uint16; the dataset has it in m"):
        check(frame())


def test_a_refused_frame_decides_no_unit(check):
    with pytest.raises(DatasetError):
        check(frame(range=np.full((6, 8), 0.7, np.float32), note=7))
    check(frame())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action": None}, "missing: `action`"),
        ({"task": None}, "`task` is missing"),
        ({"task": 7}, "`task` is 7"),
        ({"actoin": np.zeros(2)}, "unknown: `actoin`"),
        ({"timestamp": 0.1}, "`timestamp` is filled in by the writer"),
        ({"action": np.zeros(2)}, "`action` has the dtype float64; float32 is declared"),
        ({"action": np.zeros(3, np.float32)}, r"`action` has the shape \(3,\); \(2,\) is declared"),
        ({"action": [1.0, "x"]}, "`action` is list"),
        ({"count": np.int64(3)}, "`count` has the dtype int64"),
        ({"count": 40_000}, "holds 40000..40000, which int16 cannot hold"),
        ({"count": 1.5}, "`count` has the dtype float64"),
        ({"done": 1}, "`done` has the dtype int64; bool is declared"),
        ({"note": 7}, "`note` is int instead of a text"),
        ({"cam": PICTURE[:5]}, r"`cam` has the shape \(5, 8, 3\)"),
        ({"cam": PICTURE.transpose(1, 0, 2)}, r"\(8, 6, 3\)"),
        ({"cam": PICTURE.astype(np.int32)}, "dtype int32; pictures are uint8"),
        ({"cam": PICTURE.astype(np.float32)}, r"floats from 0 to 143; they must lie in 0\.\.1"),
        ({"cam": -PICTURE.astype(np.float32) / 255}, "floats from -0.5"),
        ({"cam": np.full((6, 8, 3), np.nan, np.float32)}, "not numbers"),
        ({"cam": Image.new("L", (8, 6))}, "mode L"),
        ({"range": np.full((6, 8), 7, np.int32)}, "dtype int32; depth is"),
        ({"range": np.full((6, 8), np.inf, np.float32)}, "not numbers"),
        ({"range": np.full((6, 8), -1, np.float32)}, "depths down to -1"),
        ({"range": np.zeros((8, 6), np.uint16)}, r"`range` has the shape \(8, 6\)"),
        ({"language_events": [{"role": "user", "style": "vqa"}]}, "style vqa without a camera"),
        (
            {"language_events": [{"role": "user", "style": "vqa", "camera": "top"}]},
            "about the camera 'top'; there are cam",
        ),
        ({"language_events": [{"role": "user", "style": "subtask"}]}, "style 'subtask'; there are interjection"),
        ({"language_events": [{"content": "x"}]}, "without a role"),
        ({"language_events": "stop"}, "str instead of a list"),
        ({"language_persistent": [{"role": "user", "style": "plan", "mood": 1}]}, "unknown keys mood"),
        ({"language_persistent": [{"role": "user", "style": "plan", "camera": "cam"}]}, "style plan with a camera"),
    ],
)
def test_what_does_not_fit_is_named(changes, said, check):
    with pytest.raises(DatasetError, match=said):
        check(frame(**changes))


def test_everything_is_named_at_once(check):
    wrong = frame(action=None, note=3, cam=PICTURE[:4], range=np.zeros((6, 8), np.int8), actoin=1, task=None)
    with pytest.raises(DatasetError) as caught:
        check(wrong)
    for word in ("missing: `action`", "unknown: `actoin` (", "`note`", "`cam`", "`range`", "`task` is missing"):
        assert word in caught.value.message
    assert "nothing of this frame was kept" in caught.value.hint


def test_plain_numbers_are_taken_where_nothing_is_lost(check):
    checked = check(frame(action=[1, 2.5], count=7, done=False))
    assert checked.numbers["action"].tolist() == [1, 2.5]
    assert checked.numbers["count"].dtype == np.int16
    assert checked.numbers["done"] == np.False_


def test_the_task_may_be_given_apart(check):
    assert check(frame(task=None), "place").task == "place"
    with pytest.raises(DatasetError, match="given twice"):
        check(frame(), "place")


def test_declared_features_are_completed():
    declared = declare(FEATURES)
    assert list(declared.raw)[-5:] == ["timestamp", "frame_index", "episode_index", "index", "task_index"]
    assert declared.raw["range"]["info"] == {"is_depth_map": True}
    assert declared.raw["cam"]["info"] == {"is_depth_map": False}
    assert declared.raw["cam"]["shape"] == [6, 8, 3]
    assert declared.features["range"].is_depth
    assert declared.video_keys == ["cam", "range"]
    assert "timestamp" not in declared.own


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"a/b": {"dtype": "float32", "shape": (1,)}}, "not a feature name"),
        ({"task": {"dtype": "string", "shape": (1,)}}, "`task` is the instruction"),
        ({"a": 3}, "instead of a mapping"),
        ({"a": {"dtype": "float", "shape": (1,)}}, "dtype 'float'"),
        ({"a": {"dtype": "float32", "shape": ()}}, r"shape \(\)"),
        ({"a": {"dtype": "float32", "shape": (2, 0)}}, r"\(2, 0\)"),
        ({"a": {"dtype": "float32", "shape": (1,) * 6}}, "6 dimensions"),
        ({"a": {"dtype": "string", "shape": (2,)}}, r"must be \(1,\)"),
        ({"a": {"dtype": "float32", "shape": (2,), "names": ["x"]}}, "1 names for 2 values"),
        ({"a": {"dtype": "language", "shape": (1,)}}, "language_persistent and language_events"),
        ({"a": {"dtype": "video", "shape": (6, 8)}}, "instead of height, width and channels"),
        ({"a": {"dtype": "video", "shape": (6, 8, 4), "names": ["height", "width", "channels"]}}, "4 channels"),
        ({"a": {"dtype": "image", "shape": (6, 8, 3), "info": {"is_depth_map": True}}}, "depth and has three channels"),
        ({}, "no feature is declared"),
    ],
)
def test_features_that_cannot_be_stored_are_refused(entry, said):
    with pytest.raises(DatasetError, match=said):
        declare(entry)


def test_videos_need_to_be_allowed():
    with pytest.raises(DatasetError, match="use_videos is false"):
        declare({"a": {"dtype": "video", "shape": (6, 8, 3)}}, use_videos=False)


def test_all_wrong_features_are_named_at_once():
    with pytest.raises(DatasetError) as caught:
        declare({"a": {"dtype": "float", "shape": (1,)}, "b": {"dtype": "video", "shape": (4,)}, "c/d": {}})
    assert all(f"`{name}`" in caught.value.message for name in ("a", "b", "c/d"))
