"""Whatever is written, in whatever order, with builds that die anywhere: a row is served as it was computed, or not at all."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimetic.data.feature_cache import FeatureContent, FeatureFile
from mimetic.data.feature_reader import FeatureReader
from mimetic.data.feature_writer import FeatureWriter
from mimetic.errors import CacheError

FRAMES = 12


class Killed(BaseException):
    pass


@contextlib.contextmanager
def killed_writer(file):
    """A writer whose process dies: nothing is flushed, the system closes its files."""
    writer = FeatureWriter(file)
    writer.__enter__()
    try:
        yield writer
    except Killed:
        pass
    finally:
        writer._features.close()
        writer._marks.close()
        writer._lock.__exit__(None, None, None)


def rows(frames, shape, dtype):
    size = int(np.prod(shape))
    return torch.stack([torch.linspace(frame, frame + 0.9, size).reshape(shape).to(dtype) for frame in frames])


@given(
    builds=st.lists(
        st.tuples(st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=8), st.integers(0, 8), st.booleans()),
        max_size=4,
    ),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_killed_builds_never_leave_a_wrong_row(builds, shape, dtype):
    content = FeatureContent(encoder="e", dataset="d", camera="c", frames=FRAMES, shape=shape, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        file = FeatureFile(Path(folder), content)
        sure = set()
        for frames, flushed, torn in builds:
            with killed_writer(file) as writer:
                for number, frame in enumerate(frames):
                    writer.write([frame], rows([frame], shape, dtype))
                    if number == flushed:
                        writer.flush()
                        sure |= set(frames[: number + 1])
                missing = [frame for frame in range(FRAMES) if file.marks()[frame] == 0]
                if torn and missing:  # the kill hit in the middle of writing a row
                    writer._features.seek(missing[0] * content.row_bytes)
                    writer._features.write(b"\x7f")
                raise Killed
        if not builds:
            return
        reader = FeatureReader([file])
        for frame in range(FRAMES):
            if frame in sure:
                assert torch.equal(reader.read(np.asarray([frame]), []), rows([frame], shape, dtype))
            else:
                with pytest.raises(CacheError):
                    reader.read(np.asarray([frame]), [])
