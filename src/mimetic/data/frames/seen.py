"""Whether a camera's files were edited where they lie, in a way that their fingerprint does not show.

A fingerprint reads a little of every file and no times, so that a copied dataset is the same one. Beside the arrays
lies a note for each folder whose frames were kept from:

    FOLDER/<camera>-<digest>.seen    fingerprint, and lengths and times of change of the files when frames were kept

Where fingerprint and folder are the same and the times are not, the frames are taken for others and decoded anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from mimetic.data.cache_folder import read_header
from mimetic.data.fingerprint import camera_files
from mimetic.data.frames.content import file_name
from mimetic.data.metadata import Metadata
from mimetic.data.store.atomic import write_bytes


@dataclass(frozen=True)
class Seen:
    """What is known of a camera's files in one folder.

    Args:
        path: the note.
        fingerprint: of the camera's frames.
        times: digest of the lengths and times of change of its files.
        edition: empty at first, later the times at which an edit was noticed.
        is_edited: whether one was noticed now.
        is_noted: whether the note says all this already.
    """

    path: Path
    fingerprint: str
    times: str
    edition: str
    is_edited: bool
    is_noted: bool

    @property
    def identity(self) -> str:
        """Identity of the frames."""
        return f"{self.fingerprint}:{self.edition}" if self.edition else self.fingerprint

    def remember(self) -> None:
        """Write the note. Without it an edit in place may stay unnoticed; that is no reason to stop a run.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.is_noted:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        note = {"fingerprint": self.fingerprint, "times": self.times, "edition": self.edition}
        write_bytes(self.path, json.dumps(note).encode())


def look(folder: Path, metadata: Metadata, key: str, fingerprint: str) -> Seen:
    """Compare a camera's files with the note on them; writes nothing.

    Args:
        folder: of all arrays.
        metadata: of the dataset.
        key: the camera.
        fingerprint: of the camera's frames.
    """
    place = hashlib.sha256(f"{metadata.root.resolve()}\0{key}".encode("utf-8", "surrogateescape")).hexdigest()[:24]
    path = folder / f"{file_name(key)}-{place}.seen"
    times, note = _times(metadata, key), read_header(path)
    edition = note.get("edition")
    if note.get("fingerprint") != fingerprint or not isinstance(edition, str):
        return Seen(path, fingerprint, times, "", is_edited=False, is_noted=False)
    if note.get("times") == times:
        return Seen(path, fingerprint, times, edition, is_edited=False, is_noted=True)
    return Seen(path, fingerprint, times, times, is_edited=True, is_noted=False)


def _times(metadata: Metadata, key: str) -> str:
    digest = hashlib.sha256()
    for path in camera_files(metadata, key):
        try:
            status = path.stat()
        except OSError:
            digest.update(b"absent")
            continue
        name = metadata.layout.relative(path).encode("utf-8", "surrogateescape")
        digest.update(name + f"\0{status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]
