"""Data files: one row group an episode, named when they are complete (spec/dataset.md 4)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.features import DatasetFeature
from mimetic.data.store.atomic import flush_file, flush_folder, temporary_name
from mimetic.data.store.schema import data_schema


class DataFileWriter:
    """Writes episodes into one data file; it gets its name at `close`.

    As a context it closes at the end of the block, and removes the unfinished file when the block fails.

    Args:
        path: final name.
        features: all features in column order.
        temporary: where to write meanwhile; beside `path` when absent.
    """

    def __init__(self, path: Path, features: Mapping[str, DatasetFeature], *, temporary: Path | None = None) -> None:
        self._path = path
        self._temporary = temporary or temporary_name(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._writer: pq.ParquetWriter | None = open_parquet(self._temporary, data_schema(features))

    def __enter__(self) -> DataFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def write(self, table: pa.Table) -> None:
        """Append the rows of one episode (`schema.episode_table`) as one row group."""
        assert self._writer is not None, "the file is closed"
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def close(self) -> None:
        """Write the footer, flush the file to the disk and give it its name."""
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        flush_file(self._temporary)
        self._temporary.replace(self._path)
        flush_folder(self._path.parent)

    def abort(self) -> None:
        """Forget the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._temporary.unlink(missing_ok=True)


def open_parquet(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A Parquet writer with the settings that LeRobot's files have: snappy, dictionaries, format 2.6.

    Pages carry checksums, so that a flipped bit is found when it is read; readers without checksums ignore them.
    """
    return pq.ParquetWriter(
        path, schema, compression="snappy", use_dictionary=True, version="2.6", write_page_checksum=True
    )
