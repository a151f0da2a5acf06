"""Folders of HDF5 files in ALOHA's layout: one file an episode.

`/observations/qpos`, `/action`, `/observations/images/<camera>` (raw pictures, or JPEG files padded to one length or of
lengths of their own), and if they are there `/observations/qvel`, `/observations/effort` and others.

A file may come from anywhere: arrays that are kept in other files (external storage, external links, virtual arrays)
are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.imports.pictures import decode_picture, is_depth_like, to_rgb
from mimetic.data.convert.imports.recording import (
    Array,
    ImportEpisode,
    Recording,
    assign,
    declare,
    report,
    require_same,
    required_fps,
    required_task,
)
from mimetic.errors import DatasetFormatError, DatasetNotFound, MissingExtra

ENDINGS = (".hdf5", ".h5")
_KNOWN = {
    "observations/qpos": "observation.state",
    "observations/qvel": "observation.velocity",
    "observations/effort": "observation.effort",
    "action": "action",
}
_LENGTHS = "compress_len"
"""Lengths of the padded JPEG files, which say themselves where they end."""
_TASKS = ("task", "instruction", "language_instruction")
_ROWS_AT_ONCE = 32


def find_files(root: Path) -> list[Path]:
    """HDF5 files below a folder (or the file itself), by the numbers in their names."""
    found = [root] if root.is_file() else [path for path in root.rglob("*") if path.suffix in ENDINGS]
    return sorted(found, key=lambda path: [_number(part) for part in re.split(r"(\d+)", path.as_posix())])


def survey(root: Path, config: ConvertConfig) -> Recording:
    """Look into every file; no array is read.

    Raises:
        DatasetNotFound: there is no HDF5 file.
        DatasetFormatError: a file is damaged, refers to other files, or is not like the others.
        ConfigError: flags must say what the files do not.
        MissingExtra: h5py is not installed.
    """
    files = find_files(root)
    if not files:
        raise DatasetNotFound(f"no HDF5 file (*.hdf5, *.h5) below `{root}`")
    first: dict[str, Array] = {}
    episodes, fps = [], None
    for path in files:
        with _open(path) as file:
            arrays, length = _arrays(file, path)
            if not first:
                first = arrays
                fps = required_fps(config, _plain(file.attrs.get("fps")))
            require_same(first, arrays, str(path), str(files[0]))
            task = required_task(config, _task(file), f"`{path}`")
        episodes.append(ImportEpisode(path=path, start=0, length=length, task=task))
    sources = assign(first, _KNOWN, config)
    report(sources, first, [name for name in first if name not in sources.values()])
    return Recording(
        source_format="hdf5",
        fps=required_fps(config, fps),
        robot_type=config.robot_type,
        sources=sources,
        features=declare(sources, first, config),
        episodes=episodes,
        is_bgr=config.color_order == "bgr",
        picture_max=config.picture_max or 0.0,
    )


def read_columns(recording: Recording, episode: ImportEpisode) -> dict[str, npt.NDArray[Any]]:
    """The numbers of an episode, (frames, ...) by feature."""
    with _open(episode.path) as file:
        return {
            feature: np.asarray(file[name][:])
            for feature, name in recording.sources.items()
            if feature not in recording.cameras
        }


def read_frames(recording: Recording, episode: ImportEpisode, camera: str) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures of a camera, (H, W, 3) uint8 each."""
    name = recording.sources[camera]
    height, width = recording.features[camera]["shape"][:2]
    with _open(episode.path) as file:
        array = file[name]
        for start in range(0, episode.length, _ROWS_AT_ONCE):
            for offset, cell in enumerate(array[start : start + _ROWS_AT_ONCE]):
                where = f"`{name}` of frame {start + offset} in `{episode.path}`"
                if array.ndim == 4:
                    yield to_rgb(cell, is_bgr=recording.is_bgr, largest=recording.picture_max, where=where)
                else:
                    picture = decode_picture(np.asarray(cell, dtype=np.uint8).tobytes(), (height, width), where=where)
                    yield to_rgb(picture, is_bgr=recording.is_bgr, largest=0.0, where=where)


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtra("HDF5 files need the package h5py", 'pip install "mimetic[hdf5]"') from error
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DatasetFormatError(
            f"`{path}` cannot be opened as HDF5: {error!s:.200}", "restore it from a copy"
        ) from error


def _arrays(file: Any, path: Path) -> tuple[dict[str, Array], int]:
    """Arrays of a file with one row a frame, and the number of frames."""
    found = {name: array for name, array in _walk(file, "", path) if name.rpartition("/")[2] not in (*_TASKS, _LENGTHS)}
    if "action" not in found:
        raise DatasetFormatError(
            f"`{path}` has no `/action`; it holds {', '.join(sorted(found)) or 'no array'}",
            "this is not ALOHA's layout (/action, /observations/qpos, /observations/images/<camera>)",
        )
    length = int(found["action"].shape[0])
    arrays = {}
    for name, array in found.items():
        if not array.shape or array.shape[0] != length or not length:
            raise DatasetFormatError(
                f"`{name}` in `{path}` has the shape {array.shape}; `/action` has {length} rows",
                "every array needs one row a frame",
            )
        arrays[name] = _described(name, array, path)
    return arrays, length


def _walk(group: Any, prefix: str, path: Path) -> Iterator[tuple[str, Any]]:
    import h5py

    for key in group:
        name = f"{prefix}{key}"
        if isinstance(group.get(key, getlink=True), h5py.ExternalLink):
            raise DatasetFormatError(f"`{name}` in `{path}` lies in another file", "such links are not followed")
        item = group.get(key)
        if isinstance(item, h5py.Group):
            if name.count("/") > 8:
                raise DatasetFormatError(f"`{path}` has groups inside groups without end")
            yield from _walk(item, f"{name}/", path)
        elif isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise DatasetFormatError(
                    f"`{name}` in `{path}` is kept in other files", "only arrays inside the file are read"
                )
            yield name, item
        else:
            raise DatasetFormatError(f"`{name}` in `{path}` is neither a group nor an array")


def _described(name: str, array: Any, path: Path) -> Array:
    import h5py

    is_image = "images" in name.split("/")[:-1]
    if is_image and array.ndim == 4 and array.shape[3] == 3:
        return Array(shape=tuple(array.shape[1:]), dtype=array.dtype.name, is_picture=True)
    is_bytes = h5py.check_vlen_dtype(array.dtype) == np.uint8 or array.dtype == np.uint8
    if is_image and array.ndim in (1, 2) and is_bytes:
        picture = decode_picture(np.asarray(array[0], dtype=np.uint8).tobytes(), None, where=f"`{name}` in `{path}`")
        return Array(shape=picture.shape, dtype="uint8", is_picture=True)
    if is_depth_like(array.shape, array.dtype) or array.dtype.kind not in "fiub":
        return Array(shape=tuple(array.shape[1:]), dtype=str(array.dtype))
    return Array(shape=tuple(array.shape[1:]), dtype=array.dtype.name)


def _task(file: Any) -> Any:
    import h5py

    for name in _TASKS:
        if name in file.attrs:
            return _plain(file.attrs[name])
        if isinstance(file.get(name, getlink=True), h5py.HardLink) and isinstance(file.get(name), h5py.Dataset):
            value = file[name]
            if not value.external and not value.is_virtual and value.shape in ((), (1,)):
                return _plain(value[()] if value.shape == () else value[0])
    return None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _number(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)
