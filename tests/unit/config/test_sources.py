"""Finding local settings files, checkpoints and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mimetic.config.sources import find_config, find_policy, follow_last, last_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in ("000009", "000100", "1000000"):
        folder = tmp_path / "run/checkpoints" / step / "pretrained_model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "train_config.json").write_text("{}")
    (tmp_path / "run/checkpoints/notes").mkdir()
    return tmp_path / "run"


def test_without_a_pointer_the_highest_number_is_the_last(run: Path) -> None:
    found = last_checkpoint(run / "checkpoints")
    assert found is not None
    assert found.name == "1000000"


@pytest.mark.parametrize("kind", ["link", "text", "last.txt"])
def test_the_pointer_wins_in_each_of_its_forms(run: Path, kind: str) -> None:
    checkpoints = run / "checkpoints"
    if kind == "link":
        (checkpoints / "last").symlink_to("000100")
    else:
        (checkpoints / ("last" if kind == "text" else "last.txt")).write_text("000100\n")
    for place in (
        run,
        checkpoints,
        checkpoints / "last",
        checkpoints / "last/pretrained_model",
        checkpoints / "last/pretrained_model/train_config.json",
    ):
        found = find_config(str(place))
        assert found is not None, place
        # Not through `last`, which names another step tomorrow.
        assert found == checkpoints / "000100/pretrained_model/train_config.json"
        folder = find_policy(str(place).removesuffix("/train_config.json"))
        assert folder is not None, place
        assert folder == checkpoints / "000100/pretrained_model"


def test_a_pointer_cannot_lead_out_of_the_folder(run: Path) -> None:
    (run / "checkpoints/last").write_text("../../..")
    found = last_checkpoint(run / "checkpoints")
    assert found is not None
    assert found.name == "1000000"


def test_a_file_of_a_checkpoint_stands_for_its_folder(run: Path) -> None:
    folder = run / "checkpoints/000100/pretrained_model"
    assert find_policy(str(folder / "config.json")) == folder
    assert find_config(str(folder / "train_config.json")) == folder / "train_config.json"


def test_nothing_is_found_where_nothing_is(run: Path, tmp_path: Path) -> None:
    assert find_config(str(tmp_path / "nowhere")) is None
    assert find_policy(str(tmp_path)) is None
    assert follow_last(tmp_path / "x/last/y") == tmp_path / "x/last/y"
    assert last_checkpoint(tmp_path / "nowhere") is None


def test_the_home_folder_is_understood(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(run.parent))
    assert find_config("~/run") is not None
