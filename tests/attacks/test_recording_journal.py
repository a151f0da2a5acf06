"""Journals that no mimetic wrote: a downloaded folder may hold any, and opening it must harm nothing outside."""

import json

import pytest

from mimetic.data.record import journal
from mimetic.data.record.journal import WORK_DIR, recover
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.testing.datasets import TinyDataset, build_dataset


@pytest.fixture
def dataset(tmp_path):
    (tmp_path / "precious.txt").write_text("precious")
    return build_dataset(tmp_path / "dataset", TinyDataset())


def write_journal(root, **changes):
    work = root / WORK_DIR
    work.mkdir(exist_ok=True)
    (work / "evil").write_text("evil")
    content = {"version": 1, "what": "evil", "renames": [], "deletes": [], **changes}
    (work / "journal.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "changes",
    [
        {"deletes": ["../precious.txt"]},
        {"deletes": ["meta/../../precious.txt"]},
        {"renames": [[f"{WORK_DIR}/evil", "../precious.txt"]]},
        {"renames": [["../precious.txt", "meta/stolen.txt"]]},
        {"renames": [[f"{WORK_DIR}/evil", "/tmp/precious.txt"]]},
        {"renames": [["..\\precious.txt", "meta\\stolen.txt"]]},
        {"deletes": ["~/precious.txt"]},
        {"deletes": ["link/precious.txt"]},
    ],
)
def test_paths_that_leave_the_dataset_are_refused(changes, dataset, tmp_path):
    (dataset / "link").symlink_to(tmp_path)
    write_journal(dataset, **changes)
    with pytest.raises(DatasetFormatError, match=r"outside the dataset|leads out of"):
        recover(dataset)
    assert (tmp_path / "precious.txt").read_text() == "precious"
    assert not (dataset / "meta" / "stolen.txt").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "renames": 3}', "[" * 100_000])
def test_a_journal_that_makes_no_sense_is_refused_by_name(content, dataset):
    write_journal(dataset)
    (dataset / WORK_DIR / "journal.json").write_text(content)
    with pytest.raises(DatasetFormatError, match=r"journal\.json"):
        recover(dataset)
    assert (dataset / "meta" / "info.json").exists()


def test_a_linked_work_folder_is_left_alone(dataset, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    (dataset / WORK_DIR).symlink_to(outside)
    assert recover(dataset) == []
    assert (outside / "mine.txt").exists()
    from mimetic.data.writer import DatasetWriter

    with pytest.raises(DatasetError, match="is a link"):
        DatasetWriter.resume("local/x", dataset)


def test_a_linked_working_file_is_removed_and_what_it_leads_to_stays(dataset, tmp_path):
    work = dataset / WORK_DIR
    work.mkdir()
    (work / "episodes.parquet").symlink_to(tmp_path / "precious.txt")
    (work / "folder").symlink_to(tmp_path)
    recover(dataset)
    assert (tmp_path / "precious.txt").read_text() == "precious"
    assert not work.exists()


def test_a_disk_that_refuses_is_said(dataset, monkeypatch):
    write_journal(dataset, renames=[[f"{WORK_DIR}/evil", "meta/new.txt"]])

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(journal, "_apply", refuse)
    with pytest.raises(DatasetError, match="Permission denied"):
        recover(dataset)
    monkeypatch.undo()
    assert recover(dataset)[0] == "a change that was interrupted is complete now: evil"
