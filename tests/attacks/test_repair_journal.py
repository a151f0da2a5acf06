"""What an interrupted repair left in a dataset may have come with somebody else's dataset: it can name any file."""

import json

import pytest

from mimetic.data.repair.run import repair
from mimetic.errors import DatasetError, DatasetFormatError
from mimetic.testing.datasets import build_dataset

SOUND = {"stamp": "20260101_120000", "changed": [], "gone": [], "moved": []}
HOSTILE = {
    "moves a file in": {"moved": ["../secret.txt"]},
    "moves a file in by its full name": {"gone": ["{tmp}/secret.txt"]},
    "goes through a folder of the dataset": {"moved": ["data/../../secret.txt"]},
    "replaces a file": {"changed": ["../secret.txt"]},
    "moves files out": {"stamp": "../../outside", "moved": ["meta/info.json"]},
    "names no list": {"moved": "meta"},
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_journal_reaches_nothing_outside_its_dataset(tmp_path, attack):
    root = build_dataset(tmp_path / "set", lengths=(3,))
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    work = root / ".mimetic-repair"
    (work / "view").mkdir(parents=True)
    (work / "secret.txt").write_text("theirs")  # <work>/view/../secret.txt
    journal = json.dumps(SOUND | HOSTILE[attack]).replace("{tmp}", tmp_path.as_posix())
    (work / "journal.json").write_text(journal)
    with pytest.raises(DatasetFormatError, match="is no journal of a repair"):
        repair(root, apply=True)
    assert secret.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"set", "secret.txt"}
    assert (root / "meta/info.json").is_file()


def test_the_lock_is_no_link_to_somewhere_else(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(3,))
    (tmp_path / "secret.txt").write_text("mine")
    (root / ".mimetic-repair.lock").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(DatasetError, match="is a link"):
        repair(root, apply=True)
    assert (tmp_path / "secret.txt").read_text() == "mine"
