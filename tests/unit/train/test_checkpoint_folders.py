import json

import pytest

from mimetic.errors import CheckpointError, CheckpointNotFound
from mimetic.train.checkpoint import (
    check_last,
    clean_leftovers,
    is_complete,
    last_checkpoint,
    point_last,
    set_later_aside,
    step_folders,
    step_name,
)
from mimetic.train.resume import find_checkpoint


def make_step(parent, name, *, complete=True):
    folder = parent / name
    (folder / "pretrained_model").mkdir(parents=True)
    (folder / "training_state").mkdir()
    (folder / "pretrained_model" / "config.json").write_text("{}")
    (folder / "pretrained_model" / "train_config.json").write_text("{}")
    (folder / "training_state" / "training_step.json").write_text("{}")
    listed = {"pretrained_model/config.json": {"bytes": 2 if complete else 999, "sha256": ""}}
    (folder / "mimetic.json").write_text(json.dumps({"files": listed}))
    return folder


@pytest.fixture
def checkpoints(tmp_path):
    parent = tmp_path / "run" / "checkpoints"
    for name in ("000003", "000006", "000009"):
        make_step(parent, name)
    return parent


def test_step_names_have_six_digits_or_as_many_as_the_run_needs():
    assert step_name(3, 6) == "000003"
    assert step_name(3, 12_345_678) == "00000003"


def test_last_is_replaced_and_read_back(checkpoints):
    point_last(checkpoints, "000003")
    assert last_checkpoint(checkpoints).name == "000003"
    point_last(checkpoints, "000006")
    assert (checkpoints / "last").readlink().as_posix() == "000006"
    assert [p.name for p in checkpoints.iterdir() if "saving" in p.name] == []


def test_last_works_without_symbolic_links(checkpoints, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("a privilege is not held")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    point_last(checkpoints, "000006")
    assert not (checkpoints / "last").exists()
    assert last_checkpoint(checkpoints).name == "000006"
    run = checkpoints.parent
    for form in (run, checkpoints, checkpoints / "last", checkpoints / "last" / "pretrained_model"):
        assert find_checkpoint(form).folder.name == "000006"


def test_a_persons_folder_called_last_is_not_replaced(checkpoints):
    (checkpoints / "last").mkdir()
    for refuse in (check_last, lambda parent: point_last(parent, "000006")):
        with pytest.raises(CheckpointError, match="real folder"):
            refuse(checkpoints)
    assert list((checkpoints / "last").iterdir()) == []


def test_a_broken_or_incomplete_last_gives_way_to_the_newest_complete_checkpoint(checkpoints):
    make_step(checkpoints, "000012", complete=False)
    point_last(checkpoints, "000012")
    assert not is_complete(checkpoints / "000012")
    assert last_checkpoint(checkpoints).name == "000009"
    point_last(checkpoints, "000099")
    assert last_checkpoint(checkpoints).name == "000009"


def test_last_that_points_outside_is_not_followed(checkpoints, tmp_path):
    make_step(tmp_path / "elsewhere", "000001")
    (checkpoints / "last").symlink_to("../../elsewhere/000001")
    assert last_checkpoint(checkpoints).name == "000009"


def test_only_our_leftovers_are_removed(checkpoints):
    (checkpoints / ".saving-000012-77" / "pretrained_model").mkdir(parents=True)
    (checkpoints / ".someone-elses").mkdir()
    assert clean_leftovers(checkpoints) == [".saving-000012-77"]
    assert (checkpoints / ".someone-elses").exists()
    assert [p.name for p in step_folders(checkpoints)] == ["000003", "000006", "000009"]


def test_later_checkpoints_move_aside_and_keep_their_content(checkpoints):
    moved = set_later_aside(checkpoints, 3, back_to="000003")
    assert sorted(p.name for p in moved) == ["000006.superseded-1", "000009.superseded-1"]
    assert [p.name for p in step_folders(checkpoints)] == ["000003"]
    make_step(checkpoints, "000006")
    assert [p.name for p in set_later_aside(checkpoints, 3, back_to="000003")] == ["000006.superseded-2"]


def test_last_leads_somewhere_while_later_checkpoints_move_aside(checkpoints, monkeypatch):
    point_last(checkpoints, "000009")

    def killed(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr("mimetic.train.checkpoint._move_aside", killed)
    with pytest.raises(KeyboardInterrupt):
        set_later_aside(checkpoints, 3, back_to="000003")
    assert (checkpoints / "last").readlink().as_posix() == "000003"


def test_a_copied_run_in_which_last_became_a_folder_goes_on(checkpoints):
    make_step(checkpoints, "last")
    check_last(checkpoints)
    assert last_checkpoint(checkpoints).name == "000009"
    point_last(checkpoints, "000006")
    assert (checkpoints / "last").readlink().as_posix() == "000006"
    assert is_complete(checkpoints / "last.superseded-1")


@pytest.mark.parametrize(
    "manifest", ['{"files": []}', '{"files": {"a": 3}}', "[]", "3", "{", '{"files": {"a": {"sha256": ""}}}']
)
def test_a_damaged_manifest_means_incomplete(checkpoints, manifest):
    (checkpoints / "000009" / "mimetic.json").write_text(manifest)
    assert last_checkpoint(checkpoints).name == "000006"


def test_every_form_of_naming_a_checkpoint_finds_it(checkpoints):
    point_last(checkpoints, "000009")
    run, step = checkpoints.parent, checkpoints / "000006"
    for form, name in (
        (run, "000009"),
        (checkpoints, "000009"),
        (checkpoints / "last", "000009"),
        (checkpoints / "last" / "pretrained_model" / "train_config.json", "000009"),
        (step, "000006"),
        (step / "pretrained_model", "000006"),
        (step / "pretrained_model" / "train_config.json", "000006"),
    ):
        assert find_checkpoint(form).folder == checkpoints / name, form
        assert find_checkpoint(str(form)).run == run


def test_a_wrong_path_names_the_runs_nearby(checkpoints):
    with pytest.raises(CheckpointNotFound) as caught:
        find_checkpoint(checkpoints.parent.parent / "runn")
    assert str(checkpoints.parent) in caught.value.hint
    assert caught.value.exit_code == 2


def test_an_incomplete_step_folder_names_the_complete_one(checkpoints):
    (checkpoints / "000012" / "pretrained_model").mkdir(parents=True)
    with pytest.raises(CheckpointNotFound) as caught:
        find_checkpoint(checkpoints / "000012")
    assert "training_state" in caught.value.message
    assert "000009" in caught.value.hint


def test_a_run_without_a_complete_checkpoint_names_what_is_lacking(tmp_path):
    parent = tmp_path / "run" / "checkpoints"
    make_step(parent, "000003")
    (parent / "000003" / "pretrained_model" / "config.json").unlink()
    with pytest.raises(CheckpointNotFound) as caught:
        find_checkpoint(tmp_path / "run")
    assert "000003 lacks pretrained_model/config.json" in caught.value.message
