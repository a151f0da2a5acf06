import pytest

from mimetic.data.info import DATA_PATH, DEFAULT_TOOLS, VIDEO_PATH, parse_info
from mimetic.errors import DatasetFormatError

FEATURES = {"action": {"dtype": "float32", "shape": [2], "names": None}}


def info(**changes):
    return {"codebase_version": "v3.0", "fps": 30, "features": FEATURES} | changes


def test_absent_keys_have_the_documented_defaults():
    found = parse_info(info(), where="info.json")
    assert (found.chunks_size, found.data_files_size_in_mb, found.video_files_size_in_mb) == (1000, 100, 200)
    assert (found.data_path, found.video_path) == (DATA_PATH, VIDEO_PATH)
    assert (found.total_episodes, found.robot_type, found.splits) == (0, None, {})
    assert found.tools == DEFAULT_TOOLS
    assert not found.is_legacy


def test_shard_limits_may_be_fractions_and_tools_are_kept():
    tools = [{"type": "function"}]
    found = parse_info(info(data_files_size_in_mb=0.008, tools=tools, video_path=None), where="info.json")
    assert found.data_files_size_in_mb == 0.008
    assert found.tools == ({"type": "function"},)
    assert found.video_path is None


def test_unknown_keys_are_named_in_one_warning(said):
    parse_info(info(colour="red", total_videos=3), where="info.json")
    assert len(said.messages) == 1
    assert "colour" in said.text
    assert "total_videos" not in said.text


@pytest.mark.parametrize("key", ["codebase_version", "fps", "features"])
def test_a_required_key_that_is_missing_is_named(key):
    raw = info()
    del raw[key]
    with pytest.raises(DatasetFormatError, match=f"lacks `{key}`"):
        parse_info(raw, where="info.json")


@pytest.mark.parametrize("value", [0, -1, "30", None, True, float("nan"), 29.97])
def test_a_rate_that_is_no_positive_whole_number_is_refused(value):
    with pytest.raises(DatasetFormatError, match="`fps`"):
        parse_info(info(fps=value), where="info.json")


def test_all_wrong_values_are_listed_at_once():
    raw = info(chunks_size=0, data_files_size_in_mb=-1, video_files_size_in_mb="x", total_episodes=-3, data_path=4)
    with pytest.raises(DatasetFormatError) as caught:
        parse_info(raw, where="info.json")
    assert all(f"`{key}`" in str(caught.value) for key in raw if key not in ("codebase_version", "fps", "features"))


@pytest.mark.parametrize(
    ("version", "pair"), [("v3.0", (3, 0)), ("v2.1", (2, 1)), ("v2.0", (2, 0)), ("3.0", (3, 0)), ("v3", (3, 0))]
)
def test_readable_versions(version, pair):
    found = parse_info(info(codebase_version=version), where="info.json")
    assert found.version == pair
    assert found.is_legacy == (pair[0] == 2)


@pytest.mark.parametrize("version", ["v1.6", "v4.0", "three", "", None])
def test_other_versions_are_refused(version):
    with pytest.raises(DatasetFormatError, match="version"):
        parse_info(info(codebase_version=version), where="info.json")


def test_a_newer_minor_version_is_read_with_a_warning(said):
    assert parse_info(info(codebase_version="v3.1"), where="info.json").version == (3, 1)
    assert "v3.1" in said.text
