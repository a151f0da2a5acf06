"""What all views of one stream share: rows, pictures and files that are read, or come, when they are needed.

It stands in the place of `source.Source`, so that windows, cameras, padding and messages are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from mimetic.data.addresses import CameraAddresses
from mimetic.data.images import MEMORY_BUDGET, spill
from mimetic.data.in_use import FilesInUse
from mimetic.data.metadata import Metadata
from mimetic.data.parquet import read_groups
from mimetic.data.runs import Runs
from mimetic.data.source import Source
from mimetic.data.stream_files import StreamFiles
from mimetic.data.stream_order import Span
from mimetic.data.stream_rows import FiniteRows, Recent, StreamRows
from mimetic.data.table import Rows
from mimetic.errors import DatasetError, DatasetFormatError

if TYPE_CHECKING:
    from mimetic.data.video.frames import FrameReader

Ints = npt.NDArray[np.int64]
ROWS_BUDGET = 256 << 20
"""Rows that are kept in memory [bytes]."""
PICTURES_BUDGET = 4 << 30
"""Encoded pictures of data files that are kept, what exceeds `MEMORY_BUDGET` in temporary files [bytes]."""


class StreamSource(Source):
    """A dataset that is read as a stream; safe to use from several threads.

    Args:
        metadata: metadata, with statistics in the unit of the depth frames.
        rows: its rows.
        runs: its episodes, in file order.
        selected: (E,) numbers of the episodes that may be read, in file order.
        cameras: addresses of the video cameras.
        reader: video frames; None when there are no videos.
        files: where files come from.
        tolerance_s: allowed difference of a frame's time in its file [s].
        depth_output_unit: "mm" or "m".
        backend: name of the decoder, and why it was chosen.
        excluded: episodes that were left out on request, for hints.
    """

    def __init__(
        self,
        metadata: Metadata,
        rows: StreamRows,
        runs: Runs,
        selected: Ints,
        cameras: Mapping[str, CameraAddresses],
        reader: FrameReader | None,
        files: StreamFiles,
        *,
        tolerance_s: float,
        depth_output_unit: str,
        backend: tuple[str, str],
        excluded: Sequence[int] = (),
    ) -> None:
        super().__init__(
            metadata,
            cast("Rows", rows),
            runs,
            selected,
            cameras,
            reader,
            tolerance_s=tolerance_s,
            depth_output_unit=depth_output_unit,
            backend=backend,
            excluded=excluded,
        )
        self.files = files
        self.stream_rows = rows
        self.cells = cast("Any", StreamCells(rows))

    def place_of(self, row: int) -> tuple[int, int]:
        """Number of the data file that holds a row, and the row in it; by the table alone if the file is damaged."""
        try:
            places = self.stream_rows.places(np.asarray([row]))
        except DatasetError:
            return super().place_of(row)
        return int(places.file[0]), int(places.row[0])

    def finite_rows(self, key: str) -> Any:
        """Which rows of a numeric feature hold finite values only; None for features that always do."""
        column = self.stream_rows.columns[key]
        return FiniteRows(column) if column.dtype.kind == "f" else None

    def files_in_use(self) -> list[tuple[Path, float]]:
        """Files that threads are reading or fetching now, and for how long [s], the longest first."""
        found = super().files_in_use() + self.stream_rows.in_use.now() + self.files.in_use.now()
        return sorted(found, key=lambda entry: -entry[1])

    def read_raw(self, key: str, rows: Ints) -> npt.NDArray[Any]:
        """Frames of a camera as they are stored; their files are fetched first (see `Source.read_raw`)."""
        if key in self.cameras:
            files = self.video_frames(key, rows)[0]
            for number in dict.fromkeys(files.tolist()):
                self.files.require(self.cameras[key].files[number])
        return super().read_raw(key, rows)

    def spans(self, runs: Ints) -> list[Span]:
        """Episodes as consecutive positions, with the group of files that holds each."""
        ends = np.cumsum(self.runs.length[runs])
        starts = ends - self.runs.length[runs]
        units = file_units(self.stream_rows, self.runs, self.cameras)[0]
        return [
            Span(start, end, int(units[run]))
            for start, end, run in zip(starts.tolist(), ends.tolist(), runs.tolist(), strict=True)
        ]


class StreamCells:
    """Encoded pictures of a stream's image columns, by row group; in the place of `images.ImageCells`.

    Args:
        rows: where the pictures' rows lie.
        budget: bytes that are kept; a row group beyond `MEMORY_BUDGET` in all goes to a temporary file.
    """

    def __init__(self, rows: StreamRows, budget: int = PICTURES_BUDGET) -> None:
        self._rows = rows
        self._columns = Recent[Any](budget)
        self.in_use = FilesInUse()

    def read(self, key: str, row: int) -> bytes:
        """Encoded bytes of one picture.

        Raises:
            DatasetFormatError: the cell has no bytes, or the file is missing or damaged.
        """
        places = self._rows.places(np.asarray([row]))
        file, group, place = int(places.file[0]), int(places.group[0]), int(places.row[0])
        path = self._rows.files[file]
        first = self._rows.part(file, group).first
        column = self._columns.get((file, group, key), lambda: self._read(path, group, key))
        cell = column[place - first]
        value = cell.as_py() if cell.is_valid else None
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise DatasetFormatError(
                f"`{key}` in row {place} of `{path}` has no picture",
                "store the pictures as bytes inside the data files",
            )
        return value

    def _read(self, path: Path, group: int, key: str) -> tuple[Any, int]:
        with self.in_use.reading(path):
            table = read_groups(path, [group], [key])
        if self._columns.size + table.nbytes > MEMORY_BUDGET:
            table = spill(table)
        return table[key], table.nbytes


def file_units(rows: StreamRows, runs: Runs, cameras: Mapping[str, CameraAddresses]) -> tuple[Ints, list[list[Path]]]:
    """Groups of files: episodes whose rows and frames lie in the same ones have the same group.

    Returns:
        (R,) number of each episode's group, and the files of each group.
    """
    file = rows.file_of(runs.start)
    key = np.stack([file, *(camera.file[runs.table] for camera in cameras.values())])
    groups, units = np.unique(key, axis=1, return_inverse=True)
    paths = [
        [rows.files[numbers[0]], *(camera.files[n] for camera, n in zip(cameras.values(), numbers[1:], strict=True))]
        for numbers in groups.T.tolist()
    ]
    return units.reshape(-1).astype(np.int64), paths


class RunOfRow:
    """Run of each row, worked out when it is asked for; in the place of the array `Runs.of_row`.

    Args:
        find: rows -> runs.
    """

    def __init__(self, find: Callable[[Ints], Ints]) -> None:
        self._find = find

    def __getitem__(self, rows: Any) -> Ints:
        if isinstance(rows, slice):
            rows = np.arange(rows.start, rows.stop)
        return self._find(np.asarray(rows, dtype=np.int64))
