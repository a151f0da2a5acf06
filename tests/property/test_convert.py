"""Whatever the lengths of episodes and the limits of files: the rows of the result are those of the input, both ways."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.run import convert
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.testing.datasets import TinyDataset, build_dataset

COLUMNS = ("observation.state", "action", "timestamp", "frame_index", "episode_index", "index", "task_index")


def assert_same_rows(one, other):
    mine, theirs = open_dataset(root=one), open_dataset(root=other)
    for name in COLUMNS:
        np.testing.assert_array_equal(mine.column(name), theirs.column(name), err_msg=name)


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=7),
    limit=st.floats(1e-4, 0.02),
    tasks=st.integers(1, 3),
    chunks_size=st.integers(1, 4),
)
def test_rows_survive_both_directions(lengths, limit, tasks, chunks_size):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        spec = TinyDataset(version="v2.1", lengths=lengths, tasks=[f"task {n}" for n in range(tasks)])
        old = build_dataset(root / "pick", spec)
        new = convert(ConvertConfig(root=old, data_file_size_in_mb=limit, engine="serial"))
        assert_same_rows(new, old)
        info = json.loads((new / "meta/info.json").read_text())
        info["chunks_size"] = chunks_size
        (new / "meta/info.json").write_text(json.dumps(info))
        again = convert(ConvertConfig(root=new, to="v2.1", engine="serial"))
        assert_same_rows(again, old)
        third = convert(ConvertConfig(root=again, data_file_size_in_mb=limit, engine="serial"))
        assert_same_rows(third, old)
        table = Metadata.open(third).episodes
        np.testing.assert_array_equal(table.from_index, np.cumsum([0, *lengths[:-1]]))
        numbers = [chunk * chunks_size + file for chunk, file in zip(table.data_chunk, table.data_file, strict=True)]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(max(numbers) + 1))
        assert max(table.data_file) < chunks_size
