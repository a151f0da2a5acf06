"""The hidden folder in which a conversion grows, so that an interrupted one goes on where it stopped.

`.NAME.converting` beside the result holds the dataset that is being built, a record of each finished part, and a
manifest that says what is converted and how. A record is written after the files of its part have their names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from mimetic.data.engine.config import EngineConfig
from mimetic.data.engine.run import run_tasks
from mimetic.data.file_lock import LockFile
from mimetic.data.store.atomic import TEMPORARY, flush_file, flush_folder, write_bytes
from mimetic.errors import DatasetError

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
LOCK = "lock"
_ATTEMPTS = 20
_CUTTING = ".mp4.part"
"""End of the names of pieces of videos while one is cut."""
Record = dict[str, Any]


class Part(Protocol):
    """A task whose result is kept in a file."""

    @property
    def record(self) -> Path:
        """File of the record."""
        ...

    @property
    def title(self) -> str:
        """What a message calls it."""
        ...


AnyPart = TypeVar("AnyPart", bound=Part)


class Workplace:
    """The folder of one conversion; use it as a context.

    Args:
        target: folder of the result; must not exist, or be empty.
        manifest: what is converted and how; plain JSON values.
        restart: throw away what an earlier conversion with another manifest left.

    Raises:
        DatasetError: `target` exists, another process converts to it, or an unfinished conversion with another
            manifest is in the way.
    """

    def __init__(self, target: Path, manifest: Mapping[str, Any], *, restart: bool = False) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.converting")
        self.dataset = self.folder / "dataset"
        self.staged = self.folder / "staged"
        self.records = self.folder / "parts"
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest))
        self._restart = restart
        self._lock: LockFile | None = None

    def __enter__(self) -> Workplace:
        self._require_free_target()
        self._take_lock()
        try:
            self._require_free_target()  # another process may have finished just before it gave the lock back
            self._open()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        done = len(list(self.records.glob("*.json")))
        if kind is not None and not done:
            self._remove()
        elif kind is not None:
            logger.warning("%d finished parts are kept in %s; the same command goes on from there", done, self.folder)
        self._release()

    def file(self, name: str) -> Path:
        """Where the record of the part `name` is kept."""
        return self.records / f"{name}.json"

    def require_space(self, size: float) -> None:
        """Refuse to begin what the disk cannot hold.

        Args:
            size: bytes of the result, about; what is there already counts as free.

        Raises:
            DatasetError: less is free.
        """
        done = sum(path.stat().st_size for path in self.dataset.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.folder).free
        if size - done > free:
            raise DatasetError(
                f"the result needs about {(size - done) / 1e9:.2f} GB on the disk of `{self.target.parent}`, where "
                f"{free / 1e9:.2f} GB are free",
                "make room, or choose a folder on another disk with `--output_dir=FOLDER`",
            )

    def finish(self) -> None:
        """Give the dataset its name and remove the folder."""
        for path in sorted(self.dataset.rglob("*")):
            if path.is_dir():
                flush_folder(path)
            else:
                flush_file(path)
        self._require_free_target()
        self.dataset.rename(self.target)
        flush_folder(self.target.parent)
        self._remove()

    def _require_free_target(self) -> None:
        if self.target.is_dir() and not any(self.target.iterdir()):
            self.target.rmdir()
        if self.target.exists() or self.target.is_symlink():
            raise DatasetError(
                f"`{self.target}` exists already",
                "choose another folder with `--output_dir=FOLDER`, or move that one away",
            )

    def _take_lock(self) -> None:
        for _ in range(_ATTEMPTS):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = LockFile(self.folder / LOCK)
            except FileNotFoundError:  # another process has finished and removes the folder just now
                continue
            try:
                is_ours = self._lock.try_lock()
            except OSError as error:
                logger.warning("%s cannot be locked (%s): let only one process convert to it", self.folder, error)
                return
            if is_ours and self._lock.is_in_place():
                self._lock.write(str(os.getpid()))
                return
            owner = self._lock.text()
            self._release()
            if not is_ours:
                raise DatasetError(f"process {owner or '?'} is converting to `{self.target}` just now", "wait for it")
        raise DatasetError(f"`{self.folder}` comes and goes: other processes convert to `{self.target}`", "try again")

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _open(self) -> None:
        path = self.folder / MANIFEST
        found = _read(path)
        if found is None:
            strangers = [entry.name for entry in self.folder.iterdir() if not _is_ours(entry.name)]
            if strangers:
                raise DatasetError(
                    f"`{self.folder}` holds {strangers[0]!r}, which mimetic did not put there", "move it away"
                )
        if found is not None and found != self.manifest and not self._restart:
            names = [name for name in self.manifest if self.manifest[name] != found.get(name)]
            raise DatasetError(
                f"an unfinished conversion to `{self.target}` was begun with another {_listed(names)}",
                "repeat that command to finish it, or add `--force_conversion=true` to begin anew",
            )
        if found is not None and self._restart:
            self._clear()
            found = None
        if found is None:
            write_bytes(path, json.dumps(self.manifest, indent=1).encode())
        else:
            logger.info("going on with the conversion that was interrupted, in %s", self.folder)
        self.records.mkdir(exist_ok=True)
        self.dataset.mkdir(exist_ok=True)
        for ending in (TEMPORARY, _CUTTING):
            for left in self.folder.rglob(f"*{ending}"):
                left.unlink()

    def _remove(self) -> None:
        """Remove what is ours; the folder stays when somebody put something else there.

        Its content goes while it is locked: another process that waits for its turn may not lose what it begins.
        """
        self._clear()
        self._release()
        (self.folder / LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _clear(self) -> None:
        for path in (self.dataset, self.staged, self.records):
            shutil.rmtree(path, ignore_errors=True)
        (self.folder / MANIFEST).unlink(missing_ok=True)


def run_parts(
    work: Callable[[AnyPart], Record],
    parts: Sequence[AnyPart],
    config: EngineConfig,
    *,
    advance: Callable[[int], None] = lambda done: None,
    expected_s: float | None = None,
) -> list[Record]:
    """Do the parts that have no record yet.

    Args:
        work: does one part and hands its result to `keep`.
        parts: all parts.
        config: who works.
        advance: called with the number of parts that are done.
        expected_s: about how long one process would work on all parts [s].

    Returns:
        The records of all parts, in their order.
    """
    records: dict[int, Record] = {}
    for number, part in enumerate(parts):
        found = _read(part.record)
        if found is not None and all(_has_size(part.record, name, size) for name, size in found["files"].items()):
            records[number] = found
    todo = [number for number in range(len(parts)) if number not in records]
    advance(len(records))

    def on_done(position: int, result: Record) -> None:
        records[todo[position]] = result
        advance(len(records))

    left = [parts[number] for number in todo]
    share = expected_s * len(left) / len(parts) if expected_s is not None and parts else expected_s
    run_tasks(work, left, config, on_done=on_done, name=lambda part: part.title, expected_s=share)
    return [records[number] for number in range(len(parts))]


def keep(part: Part, result: Mapping[str, Any], files: Iterable[Path] = ()) -> Record:
    """Write the record of a finished part.

    Args:
        part: what is finished.
        result: its result, plain JSON values.
        files: what it made; all must be complete.

    Returns:
        The record, as `run_parts` gives it.
    """
    sizes = {os.path.relpath(path, part.record.parent): path.stat().st_size for path in files}
    record = {**result, "files": sizes}
    text = json.dumps(record)
    write_bytes(part.record, text.encode())
    return dict(json.loads(text))  # the same value as after a restart


def fingerprint(paths: Iterable[Path]) -> str:
    """Identify files by name, size and time of change."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _read(path: Path) -> Record | None:
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else None
    return None


def _has_size(record: Path, name: str, size: int) -> bool:
    path = record.parent / name
    return path.is_file() and path.stat().st_size == size


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, LOCK, "dataset", "staged", "parts") or name.endswith(TEMPORARY)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names) or "version of mimetic"
