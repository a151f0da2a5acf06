"""Statistics of the pictures of one episode that lies on the disk already."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from mimetic.data.depth import depth_table
from mimetic.data.images import FORMATS
from mimetic.data.info import Info
from mimetic.data.layout import Layout
from mimetic.data.record.totals import empty_pictures
from mimetic.data.statistics import PictureStats, thin
from mimetic.data.store.episode_rows import VideoPlace
from mimetic.data.video.frames import FrameReader


def episode_pictures(
    root: Path, info: Info, table: pa.Table, videos: Mapping[str, VideoPlace]
) -> dict[str, PictureStats]:
    """Count the pixels of every picture of an episode.

    Args:
        root: folder of the dataset.
        info: its info.json.
        table: rows of the episode.
        videos: place of its footage by camera.

    Raises:
        VideoError, DatasetFormatError: a picture cannot be read.
    """
    layout = Layout.of(root, info)
    found: dict[str, PictureStats] = {}
    reader = FrameReader()
    try:
        for camera, feature in info.features.items():
            if not feature.is_camera:
                continue
            unit = feature.info.get("depth_unit")
            statistics = found[camera] = empty_pictures(feature, unit)
            if feature.dtype == "image":
                for cell in table[camera].to_pylist():
                    statistics.add(thin(np.asarray(Image.open(io.BytesIO(cell["bytes"]), formats=FORMATS))))
                continue
            place = videos[camera]
            path = layout.video_file(camera, place.chunk, place.file)
            first = round(place.from_s * info.fps)
            for k in range(first, first + table.num_rows):
                picture = reader.read(path, [k], fps=info.fps, is_depth=feature.is_depth)[0]
                if feature.is_depth:
                    depth = depth_table(feature.info, "m" if unit == "m" else "mm")
                    statistics.add(thin(depth[np.minimum(picture.reshape(feature.chw[1:]), len(depth) - 1)]))
                else:
                    statistics.add(thin(picture.transpose(1, 2, 0)))
    finally:
        reader.close()
    return found
