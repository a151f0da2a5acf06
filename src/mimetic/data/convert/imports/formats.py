"""The formats that can be imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.imports import hdf5, mcap_file, zarr_store
from mimetic.data.convert.imports.recording import ImportEpisode, Recording
from mimetic.errors import DatasetNotFound
from mimetic.names import INFO_JSON

_TFRECORD = "*.tfrecord*"


@dataclass(frozen=True)
class ImportFormat:
    """How one format is read.

    Args:
        survey: looks at the input without reading it.
        read_columns: numbers of an episode by feature.
        read_frames: pictures of a camera in an episode.
    """

    survey: Callable[[Path, ConvertConfig], Recording]
    read_columns: Callable[[Recording, ImportEpisode], dict[str, npt.NDArray[Any]]]
    read_frames: Callable[[Recording, ImportEpisode, str], Iterator[npt.NDArray[np.uint8]]]


IMPORTS: dict[str, ImportFormat] = {
    "hdf5": ImportFormat(hdf5.survey, hdf5.read_columns, hdf5.read_frames),
    "zarr": ImportFormat(zarr_store.survey, zarr_store.read_columns, zarr_store.read_frames),
    "mcap": ImportFormat(mcap_file.survey, mcap_file.read_columns, mcap_file.read_frames),
}


def detect_format(root: Path) -> str:
    """What a folder or file is, by the names in it.

    Raises:
        DatasetNotFound: nothing that can be converted; for RLDS says why and what to do.
    """
    if (root / INFO_JSON).is_file():
        return "lerobot"
    if not root.exists():
        raise DatasetNotFound(f"there is nothing at `{root}`", "correct `--root`")
    if zarr_store.is_store(root):
        return "zarr"
    if hdf5.find_files(root) and (root.is_dir() or root.suffix in hdf5.ENDINGS):
        return "hdf5"
    if mcap_file.find_files(root):
        return "mcap"
    if root.is_dir() and next(root.rglob(_TFRECORD), None) is not None:
        raise DatasetNotFound(
            f"`{root}` holds RLDS episodes (TFRecord files), which mimetic does not read: the only maintained reader "
            "is TensorFlow Datasets",
            "write them as HDF5 in ALOHA's layout or as Zarr with `tensorflow_datasets` in an environment of its own "
            "(docs/guides/convert.md shows how), and convert those",
        )
    raise DatasetNotFound(
        f"`{root}` holds no LeRobot dataset (meta/info.json), HDF5, Zarr or MCAP file",
        "give the folder that holds them with `--root`",
    )
