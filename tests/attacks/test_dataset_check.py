"""Hostile and damaged datasets: the check gives findings, in bounded time and memory, and never a traceback."""

import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mimetic.data.check.finding import Claim
from mimetic.data.check.run import check_dataset
from mimetic.errors import MimeticError
from mimetic.testing.datasets import build_dataset
from mimetic.testing.faults import change_json, change_rows, set_value


def defects(root):
    return {finding.id for finding in check_dataset(root).findings if finding.claim is Claim.DEFECT}


def build(tmp_path, **changes):
    return build_dataset(tmp_path / "set", lengths=(12, 20, 15), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"data_path": "../../etc/{chunk_index}/{file_index}.parquet"},
        {"data_path": "data/{chunk_index.__class__.__mro__}/{file_index}"},
        {"video_path": "/etc/{video_key}"},
        {"fps": 0},
        {"fps": 1e400},
        {"features": {}},
        {"features": {"action": {"dtype": "float32", "shape": [2**40], "names": None}}},
        {"features": {"a/../../b": {"dtype": "video", "shape": [3, 4, 4], "names": None}}},
        {"codebase_version": "v9.0"},
        {"total_episodes": "many"},
    ],
)
def test_senseless_values_in_info_are_one_finding(tmp_path, changes):
    root = build(tmp_path)
    change_json(root / "meta" / "info.json", lambda info: info.update(changes))
    assert defects(root) == {"meta.info"}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "null", "\x00", '{"codebase_version": "v3.0"}'])
def test_an_info_that_is_none_is_one_finding(tmp_path, text):
    root = build(tmp_path)
    (root / "meta" / "info.json").write_text(text, encoding="utf-8")
    assert defects(root) == {"meta.info"}


def test_a_file_of_few_bytes_and_many_rows_is_not_unpacked(tmp_path):
    root = build(tmp_path)
    path = sorted(root.glob("data/*/*.parquet"))[0]
    names = pq.read_schema(path).names
    part = pa.table({name: pa.array(np.zeros(1_000_000, np.int64)) for name in names})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(20):
            writer.write_table(part)
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    found = check_dataset(root)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert "20000000 rows" in next(f.message for f in found.findings if f.id == "meta.files")


def test_lists_longer_than_declared_are_not_unpacked(tmp_path):
    root = build(tmp_path)

    def swell(table):
        offsets = pa.array(np.arange(len(table) + 1) * 400_000, pa.int32())
        values = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(len(table) * 400_000, np.float32)))
        return table.set_column(table.column_names.index("action"), "action", values)

    change_rows(root, swell, file=0)
    tracemalloc.start()
    assert defects(root) == {"meta.files"}
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("episode_index", 2**62),
        ("episode_index", -5),
        ("length", -5),
        ("length", 2**61),
        ("data/chunk_index", 10**15),
        ("dataset_from_index", -(2**61)),
        ("videos/observation.images.front/from_timestamp", float("nan")),
        ("videos/observation.images.front/from_timestamp", -1e300),
        ("videos/observation.images.front/to_timestamp", float("inf")),
        ("videos/observation.images.front/file_index", 2**60),
    ],
)
def test_senseless_numbers_in_the_table_of_episodes_are_findings(tmp_path, column, value):
    root = build(tmp_path, cameras={"front": (32, 32)})
    set_value(root, 1, column, value)
    found = defects(root)
    assert found
    assert all(rule.startswith(("meta.", "data.")) for rule in found)


@pytest.mark.parametrize("name", ["tasks.parquet", "stats.json", "episodes/chunk-000/file-000.parquet"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "noise"])
def test_damaged_metadata_is_a_finding_and_what_needs_it_is_not_checked(tmp_path, name, damage):
    root = build(tmp_path)
    path = root / "meta" / name
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "noise": bytes(range(256)) * 4}[damage])
    report = check_dataset(root)
    assert {finding.id for finding in report.findings if finding.claim is Claim.DEFECT} == {"meta.files"}
    needs_it = {"tasks": "data.task", "stats": "stats.match", "episodes": "meta.ledger"}[
        name.split(".")[0].split("/")[0]
    ]
    if not (name == "stats.json" and damage == "gone"):
        assert needs_it not in report.rules


def test_links_out_of_the_dataset_are_not_followed(tmp_path):
    root = build(tmp_path)
    outside = tmp_path / "outside.json"
    (root / "meta" / "info.json").rename(outside)
    (root / "meta" / "info.json").symlink_to(outside)
    assert defects(root) == {"meta.info"}


def test_random_damage_gives_findings_or_our_errors(tmp_path):
    generator = np.random.default_rng(0)
    source = build(tmp_path, cameras={"front": (32, 32)}, episodes_per_file=None)
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    contents = {path: path.read_bytes() for path in files}
    for _ in range(60):
        path = files[generator.integers(len(files))]
        damaged = bytearray(contents[path])
        for place in generator.integers(0, len(damaged), 1 + generator.integers(8)):
            damaged[place] = generator.integers(256)
        path.write_bytes(bytes(damaged[: generator.integers(len(damaged) // 2, len(damaged) + 1)]))
        try:
            check_dataset(source)
        except MimeticError as error:
            assert error.message
        path.write_bytes(contents[path])


@pytest.mark.parametrize(
    "content", ["[1]", "{", '{"expected": [{"checks": []}]}', '{"expected": [{"checks": ["time.gap"]}]}', "[" * 9999]
)
def test_a_damaged_list_of_expected_findings_is_refused(tmp_path, content):
    root = build(tmp_path)
    path = root / "meta" / "mimetic" / "expected_findings.json"
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(MimeticError):
        check_dataset(root)


def test_control_characters_in_tasks_do_not_break_the_outputs(tmp_path):
    from xml.etree import ElementTree

    from mimetic.data.check.document import to_json, to_junit

    root = build(tmp_path, tasks=("pick\x01 \x1b[31m<&", "Pick!"))
    report = check_dataset(root)
    ElementTree.fromstring(to_junit(report))
    json.dumps(to_json(report), allow_nan=False)
