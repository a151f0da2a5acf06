"""A kill at any point of an edit leaves the dataset whole; the next run removes what was left and does the edit."""

import hashlib
import os
import signal
import subprocess
import sys

import pytest
from dataset_invariants import assert_is_sound

from mimetic.data.edit.config import DeleteEpisodesConfig
from mimetic.data.edit.run import edit_dataset
from mimetic.data.reader import open_dataset
from mimetic.errors import DatasetError
from mimetic.testing.datasets import build_dataset

SCRIPT = """
import os, signal, sys
from pathlib import Path
from mimetic.data.edit import {module}
from mimetic.data.edit.config import DeleteEpisodesConfig
from mimetic.data.edit.run import edit_dataset

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

{module}.{name} = die
edit_dataset(Path(sys.argv[1]), DeleteEpisodesConfig(episode_indices=[1]))
"""
PLACES = {
    "after the rows": ("build", "make_video"),
    "after the videos": ("build", "write_meta"),
    "before the tables": ("meta", "write_tasks"),
    "before the counters": ("meta", "write_info"),
    "before the comparison": ("build", "verify"),
}


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_edit_leaves_the_dataset_whole(tmp_path, place):
    module, name = PLACES[place]
    root = build_dataset(tmp_path / "set", lengths=(4, 3, 5), cameras={"top": (40, 64)}, episodes_per_file=None)
    before = contents(root)
    script = SCRIPT.format(module=module, name=name)
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    assert contents(root) == before
    left = {path.name for path in tmp_path.iterdir()} - {"set"}
    assert left == {"set.building"}
    result = edit_dataset(root, DeleteEpisodesConfig(episode_indices=[1]))[0]
    assert {path.name for path in tmp_path.iterdir()} == {"set", "set_old"}
    assert contents(result.backup) == before
    assert open_dataset(root=root).num_frames == 9
    assert_is_sound(root)


def test_a_folder_of_the_same_name_that_is_not_ours_is_not_removed(tmp_path):
    root = build_dataset(tmp_path / "set", lengths=(4, 3))
    (tmp_path / "set.building").mkdir()
    (tmp_path / "set.building" / "thesis.txt").write_text("x")
    with pytest.raises(DatasetError, match="did not make it"):
        edit_dataset(root, DeleteEpisodesConfig(episode_indices=[1]))
    assert (tmp_path / "set.building" / "thesis.txt").read_text() == "x"
