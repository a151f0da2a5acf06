"""Which pictures a camera of a dataset holds, as a short text: same text, same pictures.

Cheap, since it is asked for at every start of a run: instead of whole files it reads their sizes, both ends, and a few
pieces between them. Any re-encoding changes an MP4 file's table of frame sizes and shifts what follows, and any
rewriting a Parquet file's footer. Times of change do not count, so that a copied or downloaded dataset is the same one.
An edit in place that keeps the length and all of these pieces is not noticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from mimetic.data.metadata import Metadata

_END_BYTES = 1 << 14
_PIECES, _PIECE_BYTES = 16, 1 << 12


def camera_fingerprint(metadata: Metadata, key: str, *, decoder: str) -> str:
    """Identify the decoded frames of a camera, whichever episodes are in use.

    Args:
        metadata: metadata of the dataset.
        key: the camera.
        decoder: name of the video decoder; decoders may round colours differently. Pictures do not depend on it.

    Returns:
        64 hexadecimal digits.
    """
    feature, episodes = metadata.features[key], metadata.episodes
    is_video = feature.dtype == "video"
    facts = {
        "fps": metadata.fps,
        "kind": feature.dtype,
        "shape": list(feature.chw),
        "decoder": decoder if is_video else "",
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(np.stack([episodes.index, episodes.length]).astype("<i8").tobytes())
    if is_video:
        spans = episodes.videos[key]
        digest.update(np.stack([spans.chunk, spans.file]).astype("<i8").tobytes())
        digest.update(spans.from_s.astype("<f8").tobytes())
    for path in camera_files(metadata, key):
        digest.update(metadata.layout.relative(path).encode() + b"\0")
        _add_file(digest, path)
    return digest.hexdigest()


def camera_files(metadata: Metadata, key: str) -> list[Path]:
    """Files that hold the frames of a camera, whichever episodes are in use."""
    if metadata.features[key].dtype != "video":
        return metadata.layout.data_files()
    spans = metadata.episodes.videos[key]
    numbers = np.unique(np.stack([spans.chunk, spans.file]), axis=1)
    return [metadata.layout.video_file(key, int(chunk), int(file)) for chunk, file in numbers.T]


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    if not path.is_file():
        digest.update(b"absent")
        return
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(str(size).encode() + b"\0")
        file.seek(0)
        digest.update(file.read(_END_BYTES))
        file.seek(max(_END_BYTES, size - _END_BYTES))
        digest.update(file.read(_END_BYTES))
        for number in range(_PIECES if size > 2 * _END_BYTES else 0):
            file.seek(_END_BYTES + (size - 2 * _END_BYTES) * number // _PIECES)
            digest.update(file.read(_PIECE_BYTES))
