"""Writing files so that a power cut leaves the old content or the new one, never a part (DESIGN.md, law 6)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mimetic.data.jsonfile import parse_json
from mimetic.errors import DatasetFormatError

TEMPORARY = ".writing"
"""End of a name that is being written; what carries it after a crash was never part of the dataset."""


def temporary_name(path: Path) -> Path:
    """Where the content of `path` is written first: in the same folder, so that a rename suffices.

    The process's number is in the name: two programs that write the same file never share a temporary one. It does not
    end like the file itself, so that no reader that lists a folder takes it for one.
    """
    return path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write `path` by way of a temporary file.

    Yields:
        The temporary path. After the block its content is flushed to the disk and gets the name `path`; when the
        block fails, it is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
        flush_file(temporary)
        os.replace(temporary, path)  # noqa: PTH105 - one call for files on every system
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Replace the content of `path` at once."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by JSON as LeRobot writes it: four spaces, other letters as they are, no newline at the end.

    Not-a-number is written as the token `NaN`, which LeRobot writes and reads (spec/dataset.md 7.1).
    """
    write_bytes(path, json.dumps(value, indent=4, ensure_ascii=False).encode("utf-8"))


def read_json(path: Path) -> Any:
    """Read a JSON file of a dataset.

    Raises:
        DatasetFormatError: it cannot be read, is no JSON, or is nested absurdly deep.
    """
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DatasetFormatError(f"`{path}` cannot be read: {error}", "restore the file from a copy") from error


def flush_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut; nothing to do on Windows, which has no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        # Network file systems refuse it; the names are then as safe as that system makes them.
        pass
    finally:
        os.close(handle)
