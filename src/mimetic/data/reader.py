"""Opening a dataset: find its folder, read it, check it (spec/dataset.md 10, 14)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mimetic.data.addresses import CameraAddresses, camera_addresses, require_videos
from mimetic.data.consistency import check_episodes, check_task_numbers, check_times, report_misplaced
from mimetic.data.dataset import Dataset
from mimetic.data.depth import UNITS
from mimetic.data.episodes import listed
from mimetic.data.layout import nearby_datasets, require_dataset
from mimetic.data.metadata import Metadata
from mimetic.data.record.journal import recover
from mimetic.data.runs import find_runs
from mimetic.data.source import Source, decoder_limit
from mimetic.data.stats import with_depth_unit
from mimetic.data.table import check_default_features, read_rows
from mimetic.data.windows import indices_from_timestamps
from mimetic.errors import ConfigError, DatasetFormatError, DatasetNotFound, EpisodeError
from mimetic.hub.locate import is_offline, lerobot_home, local_dataset
from mimetic.names import EPISODE_INDEX, INFO_JSON

if TYPE_CHECKING:
    from mimetic.data.transforms.pipeline import ImageTransforms
    from mimetic.data.video.frames import FrameReader

__all__ = ["Dataset", "find_dataset", "open_dataset", "select_episodes"]

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]


def open_dataset(
    repo_id: str = "",
    *,
    root: Path | str | None = None,
    episodes: Sequence[int] | None = None,
    exclude_episodes: Sequence[int] | None = None,
    delta_indices: Mapping[str, Sequence[int]] | None = None,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    image_transforms: ImageTransforms | None = None,
    tolerance_s: float = 1e-4,
    return_uint8: bool = False,
    video_backend: str = "auto",
    depth_output_unit: str = "mm",
    revision: str | None = None,
    metadata: Metadata | None = None,
) -> Dataset:
    """Open a dataset of the v3.0, v2.1 or v2.0 layout for reading.

    Args:
        repo_id: name of the dataset; looked up on this machine first, then on the hub when the network is allowed.
        root: folder of the dataset; the network is never touched when it is given.
        episodes: use only these; the order of frames stays that of the files.
        exclude_episodes: leave these out.
        delta_indices: windows as frame offsets by feature.
        delta_timestamps: windows in seconds by feature, instead of `delta_indices`.
        image_transforms: augmentation of colour cameras.
        tolerance_s: how far a stored time may be from the frame grid [s].
        return_uint8: colour frames as uint8 instead of float32 in [0, 1], from videos and from pictures alike.
        video_backend: "auto", "pyav", "torchcodec" or "video_reader".
        depth_output_unit: "mm" or "m".
        revision: branch, tag or commit on the hub.
        metadata: metadata that was read before, to save the time.

    Raises:
        ConfigError: arguments that contradict each other or the dataset.
        DatasetNotFound: nothing that looks like a dataset is there.
        DatasetFormatError: a file breaks the format.
        EpisodeError: an episode is missing or incomplete.
        VideoError: a video file is missing.
        HubError: the hub cannot be reached, or refuses.
    """
    if depth_output_unit not in UNITS:
        raise ConfigError(f"the depth unit {depth_output_unit!r} is not known", "`mm` or `m`")
    if delta_indices is not None and delta_timestamps is not None:
        raise ConfigError("windows are given twice, as frame offsets and in seconds", "give one of them")
    if metadata is None:
        folder = find_dataset(repo_id, root=root, revision=revision)
        for sentence in recover(folder):
            logger.warning("%s: %s", folder, sentence)
        metadata = Metadata.open(folder)
    if delta_timestamps is not None:
        delta_indices = indices_from_timestamps(delta_timestamps, metadata.fps, tolerance_s)
    selected = select_episodes(metadata, episodes, exclude_episodes)
    source = _open_source(
        metadata,
        selected,
        is_subset=len(selected) < len(metadata.episodes),
        tolerance_s=tolerance_s,
        video_backend=video_backend,
        depth_output_unit=depth_output_unit,
        excluded=[int(number) for number in exclude_episodes or ()],
    )
    return Dataset(
        source,
        repo_id=repo_id,
        episodes=selected,
        delta_indices=delta_indices,
        image_transforms=image_transforms,
        return_uint8=return_uint8,
    )


def find_dataset(repo_id: str = "", *, root: Path | str | None = None, revision: str | None = None) -> Path:
    """Folder of a dataset: `root`, else this machine's copies of `repo_id`, else a download.

    Raises:
        ConfigError: neither a folder nor a name is given, or the name cannot be one.
        DatasetNotFound: nothing is there, and the network is not allowed.
        HubError: the hub cannot be reached, or refuses.
    """
    if root is not None:
        folder = Path(root).expanduser()
        require_dataset(folder)
        return folder
    if not repo_id:
        raise ConfigError("no dataset is named", "give `--dataset.root=FOLDER` or `--dataset.repo_id=user/name`")
    if (Path(repo_id).expanduser() / INFO_JSON).is_file():
        return Path(repo_id).expanduser()
    if Path(repo_id).is_absolute() or repo_id.startswith(("~", ".")):
        require_dataset(Path(repo_id).expanduser())
    found = local_dataset(repo_id, revision)
    if found is not None:
        return found
    if is_offline():
        folder = lerobot_home() / repo_id
        near = nearby_datasets(folder)
        raise DatasetNotFound(
            f"no dataset at `{folder}` (expected meta/info.json), and HF_HUB_OFFLINE forbids the network",
            "datasets nearby: " + ", ".join(f"`{path}`" for path in near)
            if near
            else "give its folder with `--dataset.root`, or unset HF_HUB_OFFLINE",
        )
    from mimetic.hub.download import download_dataset

    return download_dataset(repo_id, revision)


def select_episodes(
    metadata: Metadata, episodes: Sequence[int] | None = None, exclude_episodes: Sequence[int] | None = None
) -> Ints:
    """Numbers of the episodes to read, in table order.

    Args:
        metadata: metadata of the dataset.
        episodes: wanted ones; all without it. Repeats count once.
        exclude_episodes: unwanted ones.

    Raises:
        EpisodeError: wanted episodes that do not exist, or nothing is left.
    """
    table = metadata.episodes
    if episodes is not None:
        unknown = sorted({int(number) for number in episodes if number not in table})
        if unknown:
            raise EpisodeError(
                f"dataset `{metadata.root}` has no episodes {listed(unknown)}; it has {table.described()}",
                "correct `--dataset.episodes`",
            )
    excluded = {int(number) for number in exclude_episodes or ()}
    strangers = sorted(number for number in excluded if number not in table)
    if strangers:
        logger.warning("%s: excluded episodes %s do not exist", metadata.root, listed(strangers))
    wanted = (
        np.ones(len(table), dtype=np.bool_) if episodes is None else np.isin(table.index, np.asarray(episodes, int))
    )
    selected = table.index[wanted & ~np.isin(table.index, np.fromiter(excluded, dtype=np.int64))]
    if not len(selected):
        raise EpisodeError(
            f"no episode of dataset `{metadata.root}` is selected; it has {table.described()}",
            "correct `--dataset.episodes` and `--dataset.exclude_episodes`",
        )
    return selected


def _open_source(
    metadata: Metadata,
    selected: Ints,
    *,
    is_subset: bool,
    tolerance_s: float,
    video_backend: str,
    depth_output_unit: str,
    excluded: Sequence[int],
) -> Source:
    layout, features = metadata.layout, metadata.features
    check_default_features(features, where=f"{metadata.root}/{INFO_JSON}")
    files = layout.data_files()
    if not files:
        raise DatasetFormatError(
            f"dataset `{metadata.root}` has no data files (expected `data/*/*.parquet`)", "copy the `data` folder"
        )
    rows = read_rows(files, features, set(selected.tolist()) if is_subset else None)
    runs = find_runs(rows.columns[EPISODE_INDEX], metadata.episodes)
    check_episodes(metadata, rows, runs, selected)
    check_task_numbers(metadata, rows)
    report_misplaced(metadata, rows, runs)
    cameras: dict[str, CameraAddresses] = {}
    reader, backend = None, ("none", "the dataset has no videos")
    if metadata.video_keys:
        table = metadata.episodes.positions(selected)
        for key in metadata.video_keys:
            cameras[key] = camera_addresses(layout, metadata.episodes, key, metadata.fps, table)
            require_videos(layout, metadata.episodes, key, cameras[key], table)
        check_times(metadata, rows, runs, selected, tolerance_s)
        reader, backend = choose_reader(metadata, cameras, table, video_backend)
    described = replace(metadata, stats=with_depth_unit(metadata.stats, features, depth_output_unit))
    return Source(
        described,
        rows,
        runs,
        selected,
        cameras,
        reader,
        tolerance_s=tolerance_s,
        depth_output_unit=depth_output_unit,
        backend=backend,
        excluded=excluded,
    )


def choose_reader(
    metadata: Metadata, cameras: Mapping[str, CameraAddresses], table: Ints, video_backend: str
) -> tuple[FrameReader, tuple[str, str]]:
    """The reader of video frames, and its decoder's name with the reason.

    Args:
        metadata: metadata of the dataset.
        cameras: addresses of its video cameras.
        table: rows of the episodes in use in the table of episodes.
        video_backend: "auto" or the name of a decoder.

    Raises:
        ConfigError: an unknown decoder, or one that cannot be used.
    """
    # Imported here: datasets without videos need no decoder.
    from mimetic.data.video.frames import FrameReader
    from mimetic.data.video.probe import choose_backend

    colour = [key for key in cameras if not metadata.features[key].is_depth]
    sample = cameras[colour[0]].files[int(cameras[colour[0]].file[table[0]])] if colour else None
    backend, reason = choose_backend(video_backend, sample)
    return FrameReader(backend, max_open=decoder_limit(len(cameras))), (backend, reason)
