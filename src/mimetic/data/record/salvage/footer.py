"""A Parquet file whose writer was killed gets a footer again, for the row groups that it holds completely.

The footer is the table of contents at the end; without it no reader finds anything. What it says can be found out from
the pages, which describe themselves, when the schema is known: pages of one column after the other, row group after
row group.

Source: the Parquet format (parquet.thrift: FileMetaData, RowGroup, ColumnMetaData, PageHeader).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.data.record.salvage.thrift import NotThrift, Reader, Struct, Value, encode, i32, i64, list_of, struct
from mimetic.data.store.data_file import open_parquet

MAGIC = b"PAR1"
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1}
_MOST_PAGES = 1 << 16


@dataclass(frozen=True)
class Column:
    """A leaf column of the schema.

    Args:
        path: names from the top to the leaf, encoded.
        physical: number of its physical type.
        values_a_row: how many values one row has; None when rows differ.
    """

    path: tuple[bytes, ...]
    physical: int
    values_a_row: int | None


@dataclass
class Chunk:
    """Pages of one column in one row group.

    Args:
        start: offset of its first page.
        n_values: values of its data pages.
        first_data_page: offset of the first page that is no dictionary.
        dictionary: offset of the dictionary, if there is one.
        encodings: numbers of the encodings in use.
        compressed: bytes with page headers.
        uncompressed: bytes that they stand for.
    """

    start: int
    n_values: int = 0
    first_data_page: int = -1
    dictionary: int = -1
    encodings: set[int] = field(default_factory=set)
    compressed: int = 0
    uncompressed: int = 0


@dataclass(frozen=True)
class RowGroup:
    """A complete row group.

    Args:
        n_rows: its rows.
        chunks: one a column.
        end: offset behind it.
    """

    n_rows: int
    chunks: tuple[Chunk, ...]
    end: int


def with_footer(data: bytes, schema: pa.Schema, features: Mapping[str, DatasetFeature]) -> tuple[bytes, int]:
    """Complete a Parquet file that was cut off.

    Args:
        data: what is left of the file.
        schema: Arrow schema of its rows.
        features: its features, which tell how many values a row has.

    Returns:
        A complete file, with the row groups of `data` that are whole, and their number.
    """
    template = _template(schema)
    columns = _columns(template, features)
    groups: list[RowGroup] = []
    position = len(MAGIC)
    while data[:4] == MAGIC:
        group = _row_group(data, position, columns)
        if group is None:
            break
        groups.append(group)
        position = group.end
    template[3] = i64(sum(group.n_rows for group in groups))
    template[4] = list_of([_described(group, columns) for group in groups], item_kind=12)
    footer = encode(template)
    return data[:position] + footer + len(footer).to_bytes(4, "little") + MAGIC, len(groups)


def _template(schema: pa.Schema) -> Struct:
    """The footer of an empty file of this schema."""
    buffer = io.BytesIO()
    with open_parquet(buffer, schema):  # type: ignore[arg-type]  # a file in memory serves as well
        pass
    content = buffer.getvalue()
    length = int.from_bytes(content[-8:-4], "little")
    return Reader(content[-8 - length : -8]).struct()


def _columns(template: Struct, features: Mapping[str, DatasetFeature]) -> list[Column]:
    elements: list[Value] = template[2].content
    found: list[Column] = []
    position = 1

    def walk(path: tuple[bytes, ...]) -> None:
        nonlocal position
        element: Struct = elements[position].content
        position += 1
        path = (*path, element[4].content)
        n_children = element[5].content if 5 in element else 0
        if n_children:
            for _ in range(n_children):
                walk(path)
        else:
            feature = features[path[0].decode()]
            per_row = None if feature.dtype == "language" else math.prod(feature.shape) if feature.is_numeric else 1
            found.append(Column(path, element[1].content, per_row))

    for _ in range(elements[0].content[5].content):
        walk(())
    return found


def _row_group(data: bytes, start: int, columns: list[Column]) -> RowGroup | None:
    """The row group that begins at `start`, or None when it is not complete.

    The first column's pages tell the number of rows, but not where they end: every page may be its last one, so each
    is tried until all other columns fit.
    """
    first = columns[0]
    if first.values_a_row is None:
        return None
    position, chunk = start, Chunk(start)
    for _ in range(_MOST_PAGES):
        end = _page(data, position, chunk)
        if end is None:
            return None
        position = end
        if chunk.n_values == 0 or chunk.n_values % first.values_a_row:
            continue
        n_rows = chunk.n_values // first.values_a_row
        rest = _other_chunks(data, position, columns[1:], n_rows)
        if rest is not None:
            return RowGroup(n_rows, (chunk, *rest[0]), rest[1])
    return None


def _other_chunks(data: bytes, position: int, columns: list[Column], n_rows: int) -> tuple[list[Chunk], int] | None:
    chunks = []
    for column in columns:
        if column.values_a_row is None:
            return None
        chunk = Chunk(position)
        while chunk.n_values < column.values_a_row * n_rows:
            end = _page(data, position, chunk)
            if end is None:
                return None
            position = end
        if chunk.n_values != column.values_a_row * n_rows:
            return None
        chunks.append(chunk)
    return chunks, position


def _page(data: bytes, start: int, chunk: Chunk) -> int | None:
    """Add the page at `start` to a chunk; returns the offset behind it, or None where no page follows here."""
    reader = Reader(data, start)
    try:
        header = reader.struct()
        kind, uncompressed, compressed = (header[number].content for number in (1, 2, 3))
        if kind == _DICTIONARY_PAGE and chunk.compressed == 0:
            encoding = header[7].content[2].content
            chunk.dictionary = start
        elif kind in (_DATA_PAGE, _DATA_PAGE_V2):
            about: Struct = header[5 if kind == _DATA_PAGE else 8].content
            chunk.n_values += about[1].content
            encoding = about[2 if kind == _DATA_PAGE else 4].content
            chunk.first_data_page = start if chunk.first_data_page < 0 else chunk.first_data_page
        else:
            return None
    except (NotThrift, KeyError, TypeError, IndexError):
        return None
    end = reader.position + compressed
    if compressed < 0 or end > len(data):
        return None
    chunk.encodings |= {encoding, 3}  # 3: the levels of nesting
    chunk.compressed += end - start
    chunk.uncompressed += reader.position - start + uncompressed
    return int(end)


def _described(group: RowGroup, columns: list[Column]) -> Value:
    described = []
    for column, chunk in zip(columns, group.chunks, strict=True):
        meta: Struct = {
            1: i32(column.physical),
            2: list_of([i32(number) for number in sorted(chunk.encodings)]),
            3: list_of([Value(8, name) for name in column.path]),
            4: i32(_CODECS["SNAPPY"]),
            5: i64(chunk.n_values),
            6: i64(chunk.uncompressed),
            7: i64(chunk.compressed),
            9: i64(chunk.first_data_page),
        }
        if chunk.dictionary >= 0:
            meta[11] = i64(chunk.dictionary)
        described.append(struct({2: i64(0), 3: struct(meta)}))
    size = sum(chunk.uncompressed for chunk in group.chunks)
    return struct({1: list_of(described), 2: i64(size), 3: i64(group.n_rows)})
