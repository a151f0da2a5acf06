"""Power cuts during a build, at any moment: whatever of the unsynced writes reached the disk, no wrong row is served.

A model of the disk: a write is remembered by the system; a sync makes all earlier writes to that file durable; at a
power cut, any part of the others may have reached the disk, in any order, and torn between any two bytes.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mimetic.data import feature_writer
from mimetic.data.feature_cache import FeatureContent, FeatureFile
from mimetic.data.feature_reader import FeatureReader
from mimetic.data.feature_writer import FeatureWriter
from mimetic.errors import CacheError

FRAMES, SHAPE = 6, (5,)


class PowerCut(BaseException):
    pass


class Disk:
    """The two files of an array as they are on the disk itself, and the writes that only the system knows."""

    def __init__(self, file, operations):
        self.durable = {name: bytearray((file.path / name).read_bytes()) for name in ("features.bin", "marks.bin")}
        self.pending = []
        self.operations = operations  # until the power cut

    def step(self):
        if self.operations == 0:
            raise PowerCut
        self.operations -= 1

    def write(self, opened, data):
        self.step()
        self.pending.append((Path(opened.name).name, opened.tell(), bytes(data)))
        opened.write(data)

    def sync(self, opened_name):
        self.step()
        for name, at, data in self.pending:
            if name == opened_name:
                self.durable[name][at : at + len(data)] = data
        self.pending = [write for write in self.pending if write[0] != opened_name]

    def cut(self, file, chance):
        for index in chance.permutation(len(self.pending)):
            name, at, data = self.pending[index]
            reached = int(chance.integers(0, len(data) + 1))
            self.durable[name][at : at + reached] = data[:reached]
        for name, content in self.durable.items():
            (file.path / name).write_bytes(content)


def rows(frames, build):
    """Each build computes other bits for the same frame, as another device might."""
    return torch.stack([torch.linspace(frame + 1, frame + 2, *SHAPE) + build / 64 for frame in frames])


def build(file, frames, disk, number):
    """Rows that are there for certain after it."""
    sure, fresh = set(), set()
    writer = FeatureWriter(file)
    writer.__enter__()
    names = {opened.fileno(): Path(opened.name).name for opened in (writer._features, writer._marks)}
    try:
        with (
            mock.patch.object(feature_writer, "_write_all", disk.write),
            mock.patch.object(feature_writer.os, "fsync", lambda handle: disk.sync(names[handle])),
        ):
            for frame, has_flush in frames:
                if writer.missing(np.asarray([frame]))[0]:
                    writer.write([frame], rows([frame], number))
                    fresh.add(frame)
                if has_flush:
                    writer.flush()
                    sure |= fresh
            writer.flush()
            sure |= fresh
    except PowerCut:
        pass
    finally:
        writer._features.close()
        writer._marks.close()
        writer._lock.__exit__(None, None, None)
    return sure


@settings(max_examples=150, deadline=None)
@given(
    builds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, FRAMES - 1), st.booleans()), min_size=1, max_size=8),
            st.integers(0, 25),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**16),
)
def test_a_power_cut_never_leaves_a_wrong_row(builds, seed):
    content = FeatureContent(encoder="e", dataset="d", camera="c", frames=FRAMES, shape=SHAPE, dtype=torch.float32)
    chance = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(feature_writer, "SYNC_S", 1e9):
        file = FeatureFile(Path(folder), content)
        file.create()
        sure, served = set(), {}
        for number, (frames, operations) in enumerate(builds):
            disk = Disk(file, operations)
            sure |= build(file, frames, disk, number)
            disk.cut(file, chance)
            reader = FeatureReader([file])
            for frame in range(FRAMES):
                try:
                    found = reader.read(np.asarray([frame]), [])
                except CacheError as error:
                    # A torn mark is noticed by its checksum; what was synced or served once is never lost.
                    assert frame not in sure | served.keys(), error.message
                    continue
                right = [torch.equal(found, rows([frame], earlier)) for earlier in range(number + 1)]
                assert any(right), f"frame {frame} is wrong"
                assert served.setdefault(frame, right.index(True)) == right.index(True)
