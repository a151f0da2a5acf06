"""Hostile datasets: path templates, links and image cells that point outside of the dataset's folder."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mimetic.data.layout import Layout, fill_template, require_inside
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError, DatasetFormatError
from mimetic.hub.locate import check_repo_id
from mimetic.testing.datasets import build_dataset

HOSTILE = [
    "../outside/{chunk_index}/{file_index}.parquet",
    "data/../../{chunk_index}-{file_index}.parquet",
    "/etc/{chunk_index}{file_index}",
    "\\\\server\\share\\{chunk_index}",
    "C:/windows/{chunk_index}",
    "~/{chunk_index}",
    "data/{chunk_index.__class__}/{file_index}",
    "data/{chunk_index[0]}",
    "data/{other}/{file_index}",
    "data/{chunk_index!r}",
    "data/{chunk_index:>1000000000}",
    "data/{0}",
    "data/{",
    "data\0/{chunk_index}",
]


@pytest.mark.parametrize("template", HOSTILE)
def test_templates_that_leave_the_folder_or_do_more_than_number_files_are_refused(template):
    with pytest.raises(DatasetFormatError):
        fill_template(template, key="", numbers={"chunk_index": 0, "file_index": 0}, where="`data_path`")


@pytest.mark.parametrize("field", ["data_path", "video_path"])
def test_a_hostile_info_json_is_refused_at_open(tmp_path, field):
    root = build_dataset(tmp_path / "set", cameras={"a": (48, 64)})
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info[field] = "../secret/{chunk_index:03d}/file-{file_index:03d}.parquet"
    path.write_text(json.dumps(info))
    with pytest.raises(DatasetFormatError, match=field) as caught:
        open_dataset(root=root)
    assert "leaves the folder" in str(caught.value)


@pytest.mark.parametrize("key", ["../../etc", "a/b", "a\\b", ".."])
def test_feature_names_that_are_paths_are_refused(tmp_path, key):
    root = build_dataset(tmp_path / "set")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"][key] = {"dtype": "video", "shape": [4, 4, 3], "names": None}
    path.write_text(json.dumps(info))
    with pytest.raises(DatasetFormatError, match="not a feature name"):
        open_dataset(root=root)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links without privileges")
@pytest.mark.parametrize("part", ["data", "videos", "meta/episodes"])
def test_links_that_lead_out_of_the_folder_are_refused(tmp_path, part):
    root = build_dataset(tmp_path / "set", cameras={"a": (48, 64)})
    outside = tmp_path / "outside"
    (root / part).rename(outside)
    (root / part).symlink_to(outside)
    with pytest.raises(DatasetFormatError, match="leads out of the dataset's folder"):
        open_dataset(root=root)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links without privileges")
def test_a_linked_root_and_links_of_a_hub_snapshot_are_allowed(tmp_path):
    snapshot = build_dataset(tmp_path / "datasets--a--b" / "snapshots" / "1234")
    blobs = tmp_path / "datasets--a--b" / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(path for path in snapshot.rglob("*") if path.is_file())):
        path.rename(blobs / str(number))
        path.symlink_to(blobs / str(number))
    assert len(open_dataset(root=snapshot)) == 18
    link = tmp_path / "link"
    link.symlink_to(build_dataset(tmp_path / "plain"))
    assert len(open_dataset(root=link)) == 18
    with pytest.raises(DatasetFormatError):
        require_inside(snapshot, tmp_path / "datasets--a--b" / "refs" / "main")


def test_an_image_cell_without_bytes_never_opens_its_path(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"a": (48, 64)}, camera_dtype="image", episodes_per_file=None)
    secret = tmp_path / "secret.png"
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    cells = table["observation.images.a"].to_pylist()
    secret.write_bytes(cells[0]["bytes"])  # even a readable picture must not be opened
    cells[2] = {"bytes": None, "path": str(secret)}
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    number = table.column_names.index("observation.images.a")
    pq.write_table(table.set_column(number, "observation.images.a", pa.array(cells, kind)), path)
    dataset = open_dataset(root=root)
    assert dataset[1]["observation.images.a"].shape == (3, 48, 64)
    with pytest.raises(DatasetFormatError, match="has no picture") as caught:
        dataset[2]
    assert "is not opened" in str(caught.value)


def test_a_picture_that_claims_a_huge_size_is_refused_before_it_is_decoded(tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"a": (48, 64)}, camera_dtype="image", episodes_per_file=None)
    path = root / "data" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(path)
    cells = table["observation.images.a"].to_pylist()
    png = bytearray(cells[0]["bytes"])
    png[16:24] = (30000).to_bytes(4, "big") * 2  # IHDR width and height; the checksum is wrong too
    cells[0]["bytes"] = bytes(png)
    cells[1]["bytes"] = b"not a picture"
    number = table.column_names.index("observation.images.a")
    pq.write_table(
        table.set_column(number, "observation.images.a", pa.array(cells, table.schema.field(number).type)), path
    )
    dataset = open_dataset(root=root)
    for position in (0, 1):
        with pytest.raises(DatasetFormatError, match=f"episode 0, frame {position}"):
            dataset[position]


@pytest.mark.parametrize("repo_id", ["../up", "a/../b", "/abs/path", "a/b/c", "", "a b", "-x/y"])
def test_repository_ids_that_are_paths_are_refused(repo_id):
    with pytest.raises(ConfigError):
        check_repo_id(repo_id)


def test_known_placeholders_give_the_documented_names(tmp_path):
    layout = Layout(tmp_path, "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", None)
    assert layout.data_file(1, 1234) == tmp_path / "data" / "chunk-001" / "file-1234.parquet"
    with pytest.raises(DatasetFormatError, match="video_path"):
        layout.video_file("observation.images.a", 0, 0)
