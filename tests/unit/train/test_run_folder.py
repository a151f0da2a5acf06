"""Runs that begin in the same second, or after a clock was set back, get folders of their own."""

import threading

import pytest

from mimetic.errors import TrainingError
from mimetic.train import run_folder
from mimetic.train.run_folder import free_name, make_run_folder


def test_a_chosen_name_gives_way_to_what_is_there(tmp_path):
    wanted = tmp_path / "2026-01-01" / "12-00-00_act"
    made = [make_run_folder(wanted, may_choose=True).name for _ in range(3)]
    assert made == ["12-00-00_act", "12-00-00_act-2", "12-00-00_act-3"]
    (wanted.parent / "12-00-00_act-4").symlink_to("nowhere")
    assert free_name(wanted).name == "12-00-00_act-5"


def test_of_many_runs_each_gets_one(tmp_path, monkeypatch):
    start, made = threading.Barrier(8), []
    real = run_folder.free_name

    def together(wanted):  # all of them find the same name free
        name = real(wanted)
        if name == wanted:
            start.wait(timeout=120)
        return name

    monkeypatch.setattr(run_folder, "free_name", together)
    threads = [
        threading.Thread(target=lambda: made.append(make_run_folder(tmp_path / "run", may_choose=True)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8


def test_a_named_folder_is_made_once(tmp_path):
    assert make_run_folder(tmp_path / "run", may_choose=False) == tmp_path / "run"
    with pytest.raises(TrainingError) as caught:
        make_run_folder(tmp_path / "run", may_choose=False)
    assert caught.value.message == f"{tmp_path / 'run'} was made by another run in the meantime"
    assert caught.value.hint == "choose another folder with `--output_dir`"


@pytest.mark.parametrize("may_choose", [True, False])
def test_a_place_that_takes_no_folders_is_an_error(tmp_path, may_choose):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError) as caught:
        make_run_folder(tmp_path / "file" / "run", may_choose=may_choose)
    assert caught.value.message == f"the run's folder {tmp_path / 'file' / 'run'} cannot be made: Not a directory"


def test_a_file_among_the_folders_above_ends_the_search(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="is a file"):
        make_run_folder(tmp_path / "file", may_choose=False)
