"""Zarr stores in Diffusion Policy's layout: `data/*` with the rows of all episodes, `meta/episode_ends` with the ends.

A store may come from anywhere: only codecs that cannot run code are let decode, which leaves out numcodecs' `pickle`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.imports.pictures import to_rgb
from mimetic.data.convert.imports.recording import (
    Array,
    ImportEpisode,
    Recording,
    assign,
    declare,
    report,
    required_fps,
    required_task,
)
from mimetic.errors import DatasetFormatError, EpisodeError, MimeticError, MissingExtra

ENDS = "episode_ends"
_KNOWN = {"state": "observation.state", "action": "action"}
_CODECS = frozenset(
    (
        *("blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma", "zfpy", "crc32", "crc32c", "adler32", "fletcher32"),
        *("delta", "shuffle", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype", "bytes", "transpose"),
        "sharding_indexed",
    )
)
_ROWS_AT_ONCE = 32


def is_store(root: Path) -> bool:
    """Whether a path looks like a Zarr store, as a folder or a zip file."""
    if root.is_file():
        return root.name.endswith((".zarr.zip", ".zip"))
    return (root / ".zgroup").is_file() or (root / "zarr.json").is_file()


def survey(root: Path, config: ConvertConfig) -> Recording:
    """Look at the arrays; only the ends of the episodes are read.

    Raises:
        DatasetFormatError: not this layout, or arrays of different length.
        EpisodeError: the ends do not rise, or do not match the rows.
        ConfigError: flags must say what the store does not.
        MissingExtra: zarr is not installed.
    """
    group = _open(root)
    data, ends = _data(group, root), _ends(group, root)
    arrays = {}
    for name in sorted(data):
        array = data[name]
        if array.ndim < 1 or array.shape[0] != ends[-1]:
            raise EpisodeError(
                f"`data/{name}` in `{root}` has {array.shape[0] if array.ndim else 0} rows; the last episode ends at "
                f"{ends[-1]}"
            )
        is_picture = array.ndim == 4 and array.shape[3] == 3
        arrays[name] = Array(shape=tuple(array.shape[1:]), dtype=array.dtype.name, is_picture=is_picture)
    sources = assign(arrays, _KNOWN, config)
    report(sources, arrays, [name for name in arrays if name not in sources.values()])
    task = required_task(config, group.attrs.get("task"), f"`{root}`")
    starts = [0, *ends[:-1]]
    return Recording(
        source_format="zarr",
        fps=required_fps(config, group.attrs.get("fps")),
        robot_type=config.robot_type,
        sources=sources,
        features=declare(sources, arrays, config),
        episodes=[
            ImportEpisode(path=root, start=start, length=end - start, task=task)
            for start, end in zip(starts, ends, strict=True)
        ],
        is_bgr=config.color_order == "bgr",
        picture_max=config.picture_max or 0.0,
    )


def read_columns(recording: Recording, episode: ImportEpisode) -> dict[str, npt.NDArray[Any]]:
    """The numbers of an episode, (frames, ...) by feature."""
    data = _data(_open(episode.path), episode.path)
    rows = slice(episode.start, episode.start + episode.length)
    return {
        feature: _rows(data[name], rows, f"`data/{name}` in `{episode.path}`")
        for feature, name in recording.sources.items()
        if feature not in recording.cameras
    }


def read_frames(recording: Recording, episode: ImportEpisode, camera: str) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures of a camera, (H, W, 3) uint8 each."""
    name = recording.sources[camera]
    array = _data(_open(episode.path), episode.path)[name]
    end = episode.start + episode.length
    for start in range(episode.start, end, _ROWS_AT_ONCE):
        rows = slice(start, min(start + _ROWS_AT_ONCE, end))
        for offset, picture in enumerate(_rows(array, rows, f"`data/{name}` in `{episode.path}`")):
            where = f"`data/{name}` in row {start + offset} of `{episode.path}`"
            yield to_rgb(picture, is_bgr=recording.is_bgr, largest=recording.picture_max, where=where)


def _open(root: Path) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise MissingExtra("Zarr stores need the package zarr", 'pip install "mimetic[zarr]"') from error
    with _edge(f"`{root}` cannot be opened as a Zarr group"):
        store: Any = zarr.storage.ZipStore(root, mode="r") if root.is_file() else str(root)
        return zarr.open_group(store, mode="r")


@contextlib.contextmanager
def _edge(message: str) -> Iterator[None]:
    """The edge to a third-party reader, whose errors differ between releases."""
    try:
        yield
    except MimeticError:
        raise
    except Exception as error:
        raise DatasetFormatError(f"{message}: {error!s:.200}", "restore the store from a copy") from error


def _data(group: Any, root: Path) -> dict[str, Any]:
    found = _group(group, "data", root)
    with _edge(f"the arrays of `data` in `{root}` cannot be listed"):
        arrays = dict(found.arrays())
    for name, array in arrays.items():
        _require_safe(array, f"`data/{name}` in `{root}`")
    return arrays


def _ends(group: Any, root: Path) -> list[int]:
    with _edge(f"the arrays of `meta` in `{root}` cannot be listed"):
        array = dict(_group(group, "meta", root).arrays()).get(ENDS)
    if array is None:
        raise DatasetFormatError(f"`{root}` has no `meta/{ENDS}`, which says where the episodes end")
    _require_safe(array, f"`meta/{ENDS}` in `{root}`")
    ends = _rows(array, slice(None), f"`meta/{ENDS}` in `{root}`")
    if ends.ndim != 1 or not len(ends) or ends.dtype.kind not in "iu" or (np.diff(ends, prepend=0) <= 0).any():
        raise EpisodeError(f"`meta/{ENDS}` in `{root}` must hold rising whole numbers, one for each episode")
    return [int(end) for end in ends]


def _group(group: Any, name: str, root: Path) -> Any:
    import zarr

    with _edge(f"`{name}` in `{root}` cannot be opened"):
        found = group.get(name)
    if not isinstance(found, zarr.Group):
        raise DatasetFormatError(
            f"`{root}` has no group `{name}`", "Diffusion Policy's layout is `data/*` and `meta/episode_ends`"
        )
    return found


def _rows(array: Any, rows: slice, where: str) -> npt.NDArray[Any]:
    with _edge(f"{where} cannot be read"):
        return np.asarray(array[rows])


def _require_safe(array: Any, where: str) -> None:
    """Refuse codecs that are not known to be plain, and values that are not numbers."""
    if array.dtype.kind not in "fiub":
        raise DatasetFormatError(f"{where} holds {array.dtype} instead of numbers")
    strangers = [name for name in _codecs(array) if name not in _CODECS and not name.startswith("imagecodecs_")]
    if strangers:
        raise DatasetFormatError(
            f"{where} is stored with `{strangers[0]}`, which is not decoded here",
            "write the store again with another compressor, such as blosc or zstd",
        )


def _codecs(array: Any) -> list[str]:
    """Names of all codecs of an array, of Zarr 2 and 3 alike."""
    stored = array.metadata.to_dict()
    if stored.get("zarr_format") == 2:
        codecs = [stored.get("compressor"), *(stored.get("filters") or ())]
    else:
        codecs = list(stored.get("codecs") or ())
        for codec in list(codecs):  # a shard has codecs of its own
            codecs += (codec.get("configuration") or {}).get("codecs", []) if isinstance(codec, dict) else []
    return [_codec_name(codec) for codec in codecs if codec is not None]


def _codec_name(codec: Any) -> str:
    if isinstance(codec, dict):
        return str(codec.get("id") or codec.get("name")).removeprefix("numcodecs.")
    return str(getattr(codec, "codec_id", type(codec).__name__)).removeprefix("numcodecs.")
