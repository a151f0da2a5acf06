"""Numbering of chunk folders and files (spec/dataset.md 1)."""

from __future__ import annotations

MEBIBYTE = 1 << 20


def next_file(chunk: int, file: int, chunks_size: int) -> tuple[int, int]:
    """Numbers of the file after (chunk, file); `chunks_size` files make one chunk folder."""
    return (chunk + 1, 0) if file >= chunks_size - 1 else (chunk, file + 1)


def is_full(size: float, added: float, limit_mb: float) -> bool:
    """Whether `added` bytes exceed the limit [MiB] of a file that holds `size` bytes; an empty one takes anything."""
    return size > 0 and size + added >= limit_mb * MEBIBYTE
