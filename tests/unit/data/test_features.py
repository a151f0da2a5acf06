import pytest

from mimetic.data.features import flatten_names, parse_features, policy_features
from mimetic.errors import DatasetFormatError
from mimetic.features import FeatureType, PolicyFeature


def parse(**features):
    raw = {}
    for name, (dtype, shape, *rest) in features.items():
        raw[name] = {"dtype": dtype, "shape": shape, "names": rest[0] if rest else None}
    return parse_features(raw, where="info.json")


@pytest.mark.parametrize(
    ("names", "flat"),
    [
        (None, None),
        (["a", "b"], ["a", "b"]),
        ([["a", "b"]], ["a", "b"]),
        ({"motors": ["a", "b"]}, ["a", "b"]),
        ({"left": ["a"], "right": ["b"]}, ["a", "b"]),
        ({"b": 1, "a": 0}, ["a", "b"]),
        ("a", ["a"]),
    ],
)
def test_every_spelling_of_names_is_flattened(names, flat):
    assert flatten_names(names) == flat


@pytest.mark.parametrize(
    ("shape", "names", "chw"),
    [
        ([48, 64, 3], ["height", "width", "channels"], (3, 48, 64)),
        ([48, 64, 3], ["height", "width", "channel"], (3, 48, 64)),
        ([3, 48, 64], ["channels", "height", "width"], (3, 48, 64)),
        ([48, 64, 3], None, (3, 48, 64)),
        ([48, 64, 1], None, (1, 48, 64)),
        ([3, 48, 64], None, (3, 48, 64)),
        ([3, 48, 3], None, (3, 48, 3)),
    ],
)
def test_shapes_of_cameras_follow_the_names_or_else_the_sizes(shape, names, chw):
    assert parse(camera=("image", shape, names))["camera"].chw == chw


def test_policy_features_follow_the_order_of_the_tests_on_dtype_and_name():
    features = parse_features(
        {
            "action": {"dtype": "float32", "shape": [2]},
            "action.extra": {"dtype": "float32", "shape": [1]},
            "observation.state": {"dtype": "float32", "shape": [3]},
            "observation.environment_state": {"dtype": "float32", "shape": [4]},
            "observation.images.a": {"dtype": "video", "shape": [8, 6, 3], "names": ["height", "width", "channel"]},
            "observation.note": {"dtype": "string", "shape": [1]},
            "next.reward": {"dtype": "float32", "shape": [1]},
            "timestamp": {"dtype": "float32", "shape": [1]},
        },
        where="info.json",
    )
    assert policy_features(features) == {
        "action": PolicyFeature(FeatureType.ACTION, (2,)),
        "action.extra": PolicyFeature(FeatureType.ACTION, (1,)),
        "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
        "observation.environment_state": PolicyFeature(FeatureType.ENV, (4,)),
        "observation.images.a": PolicyFeature(FeatureType.VISUAL, (3, 8, 6)),
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"info": {"is_depth_map": True}},
        {"info": {"video.is_depth_map": True}},
        {"video_info": {"video.is_depth_map": True}},
    ],
)
def test_all_three_spellings_of_the_depth_flag_count(entry):
    features = parse_features({"d": {"dtype": "video", "shape": [4, 4, 1], **entry}}, where="info.json")
    assert features["d"].is_depth


def test_all_wrong_features_are_listed_at_once():
    raw = {
        "a/b": {"dtype": "float32", "shape": [1]},
        "x": {"dtype": "complex64", "shape": [1]},
        "y": {"dtype": "float32", "shape": []},
        "z": {"dtype": "float32", "shape": [0]},
        "c": {"dtype": "video", "shape": [4, 4]},
        "n": 3,
    }
    with pytest.raises(DatasetFormatError) as caught:
        parse_features(raw, where="info.json")
    assert all(f"`{name}`" in str(caught.value) for name in raw)
