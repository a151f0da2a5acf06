"""Datasets as streams: files read, and fetched, as they are needed; memory does not grow with the dataset.

    stream = open_stream(root="recordings/pick", delta_indices={"action": range(50)}, buffer_size=1000)
    for sample in stream: ...                              # one shuffled epoch, then the next
    for batch in stream.loader(batch_size=32, num_workers=4).batches(epoch=0): ...

A sample is the one that `open_dataset` gives for the same frame. What differs is the order: episodes are visited near
to each other in the files, a few at a time, and mixed in a buffer. It is known beforehand, so that workers and
processes share it exactly and a run resumes at any place of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from mimetic.data.addresses import CameraAddresses, camera_addresses, require_videos
from mimetic.data.cache_folder import default_cache_folder
from mimetic.data.checks import NonFinite, VideoShortfall
from mimetic.data.dataset import Dataset, Item
from mimetic.data.depth import UNITS
from mimetic.data.loader import BatchLoader
from mimetic.data.metadata import Metadata
from mimetic.data.reader import choose_reader, find_dataset, select_episodes
from mimetic.data.runs import Runs
from mimetic.data.sampler import shard_batches
from mimetic.data.stats import with_depth_unit
from mimetic.data.stream_files import StreamFiles
from mimetic.data.stream_order import StreamOrder
from mimetic.data.stream_rows import StreamRows
from mimetic.data.stream_source import ROWS_BUDGET, RunOfRow, StreamSource, file_units
from mimetic.data.table import check_default_features
from mimetic.data.windows import indices_from_timestamps
from mimetic.errors import ConfigError, DatasetFormatError, OfflineError
from mimetic.hub.locate import local_dataset
from mimetic.names import INFO_JSON

if TYPE_CHECKING:
    from mimetic.data.transforms.pipeline import ImageTransforms

logger = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]
BUFFER_SIZE, MAX_NUM_SHARDS = 1000, 16


class Stream(Dataset):
    """A view of a dataset that is read as a stream. Made by `open_stream`; everything of `Dataset` works on it.

    Random access works too, but reads whole row groups for it: iterate, or use `loader`.
    """

    _epoch = 0

    @property
    def stream_source(self) -> StreamSource:
        """What all views of this stream share."""
        return cast("StreamSource", self._source)

    def order(
        self,
        *,
        shuffle: bool = True,
        seed: int = 42,
        buffer_size: int = BUFFER_SIZE,
        max_num_shards: int = MAX_NUM_SHARDS,
        batch_size: int = 1,
        num_processes: int = 1,
        rank: int = 0,
        drop_n_last_frames: int = 0,
    ) -> StreamOrder:
        """The order in which frames of this view are visited, for a `BatchLoader`; arguments as `StreamOrder`.

        Args:
            shuffle: shuffle each epoch.
            seed: seed of the shuffling.
            buffer_size: frames among which the next one is drawn.
            max_num_shards: episodes that are read at the same time.
            batch_size: samples of a batch in one process.
            num_processes: processes of a distributed run.
            rank: number of this process, whose files are fetched ahead.
            drop_n_last_frames: frames left out at the end of each episode.
        """
        source = self.stream_source
        return StreamOrder(
            source.spans(self._runs),
            shuffle=shuffle,
            seed=seed,
            buffer_size=buffer_size,
            max_num_shards=max_num_shards,
            batch_size=batch_size,
            num_processes=num_processes,
            drop_n_last_frames=drop_n_last_frames,
            on_epoch=lambda plans: source.files.announce(plans[rank]),
        )

    def loader(
        self,
        *,
        batch_size: int,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        num_processes: int = 1,
        rank: int = 0,
        seed: int = 42,
        **order: Any,
    ) -> BatchLoader:
        """Batches of this stream: every frame once an epoch over all workers and processes.

        With several processes, the last round is filled up from the epoch's beginning (see `shard_batches`).

        Args:
            batch_size: samples of a batch in one process.
            num_workers: threads that build batches.
            prefetch_factor: batches that each of them may be ahead.
            num_processes: processes of a distributed run.
            rank: number of this process.
            seed: of the order and the augmentation.
            order: further arguments of `order`.
        """
        ordered = self.order(seed=seed, batch_size=batch_size, num_processes=num_processes, rank=rank, **order)
        return BatchLoader(
            self,
            ordered,
            batch_size=batch_size,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            seed=seed,
            num_processes=num_processes,
            rank=rank,
        )

    def samples(
        self, epoch: int, *, num_processes: int = 1, rank: int = 0, start: int = 0, **order: Any
    ) -> Iterator[Item]:
        """Samples of one epoch, those of one process; ends after the last frame.

        Args:
            epoch: number of the epoch.
            num_processes: processes that share the epoch.
            rank: number of this one.
            start: samples of this process that were used already.
            order: further arguments of `order`.
        """
        ordered = self.order(num_processes=num_processes, rank=rank, **order)
        positions = ordered.order(epoch)
        places = np.concatenate(shard_batches(len(positions), 1, num_processes=num_processes, rank=rank))
        for place in places[start:].tolist():
            yield self.item(int(positions[place % len(positions)]))

    def __iter__(self) -> Iterator[Item]:
        """Samples of the next epoch, shuffled with the defaults of `order`."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        return self.samples(epoch)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A whole numeric column of this view; reads all of its rows.

        Raises:
            KeyError: not a numeric feature of the dataset.
        """
        return self.stream_source.stream_rows.columns[name][self._to_rows(np.arange(len(self)))]

    def check_video_lengths(self) -> list[VideoShortfall]:
        """As for a dataset; nothing is looked at where files are still to be fetched."""
        return [] if self.stream_source.files.is_remote else super().check_video_lengths()

    def find_non_finite(self) -> list[NonFinite]:
        """Empty: a stream's rows are judged as they are read."""
        return []

    def close(self) -> None:
        """Close the open video files, and fetch nothing more."""
        super().close()
        self.stream_source.files.close()


def open_stream(
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
    rows_budget: int = ROWS_BUDGET,
) -> Stream:
    """Open a dataset as a stream.

    Only the metadata are read. A dataset that is not on this machine is fetched from the hub file by file, as its
    frames are needed; what was fetched stays in the cache of mimetic.

    Args:
        repo_id: name of the dataset.
        root: folder of the dataset; the network is never touched when it is given.
        episodes: use only these.
        exclude_episodes: leave these out.
        delta_indices: windows as frame offsets by feature.
        delta_timestamps: windows in seconds by feature, instead of `delta_indices`.
        image_transforms: augmentation of colour cameras.
        tolerance_s: how far a stored time may be from the frame grid [s].
        return_uint8: colour frames as uint8 instead of float32 in [0, 1].
        video_backend: "auto", "pyav", "torchcodec" or "video_reader".
        depth_output_unit: "mm" or "m".
        revision: branch, tag or commit on the hub.
        rows_budget: bytes of rows that are kept in memory.

    Raises:
        ConfigError: arguments that contradict each other or the dataset.
        DatasetNotFound: nothing that looks like a dataset is there.
        DatasetFormatError: a file breaks the format, or the table of episodes does not name data files.
        VideoError: a video file of a local dataset is missing.
        HubError: the hub cannot be reached, or refuses.
    """
    if depth_output_unit not in UNITS:
        raise ConfigError(f"the depth unit {depth_output_unit!r} is not known", "`mm` or `m`")
    if delta_indices is not None and delta_timestamps is not None:
        raise ConfigError("windows are given twice, as frame offsets and in seconds", "give one of them")
    folder, fetch = _locate(repo_id, root, revision)
    metadata = Metadata.open(folder)
    if delta_timestamps is not None:
        delta_indices = indices_from_timestamps(delta_timestamps, metadata.fps, tolerance_s)
    selected = select_episodes(metadata, episodes, exclude_episodes)
    source = _open_source(
        metadata,
        selected,
        fetch,
        tolerance_s=tolerance_s,
        video_backend=video_backend,
        depth_output_unit=depth_output_unit,
        excluded=[int(number) for number in exclude_episodes or ()],
        rows_budget=rows_budget,
    )
    return Stream(
        source,
        repo_id=repo_id,
        episodes=source.selected,
        delta_indices=delta_indices,
        image_transforms=image_transforms,
        return_uint8=return_uint8,
    )


def _locate(repo_id: str, root: Path | str | None, revision: str | None) -> tuple[Path, Callable[[str], None] | None]:
    """Folder of the dataset, and how further files of it are fetched; None when it is complete."""
    is_here = root is not None or not repo_id or (Path(repo_id).expanduser() / INFO_JSON).is_file()
    if is_here or Path(repo_id).is_absolute() or repo_id.startswith(("~", ".")):
        return find_dataset(repo_id, root=root, revision=revision), None
    found = local_dataset(repo_id, revision)
    if found is not None:
        return found, None
    from mimetic.hub.stream import HubDataset

    cache = default_cache_folder().with_name("streams")
    try:
        hub = HubDataset.open(repo_id, revision, cache=cache)
    except OfflineError as error:
        before = HubDataset.fetched(repo_id, revision, cache=cache)
        if before is None:
            raise
        logger.warning("%s; going on with what was fetched of it before", error.message)
        hub = before
    logger.info("streaming %s from the hub (commit %s); files come as they are needed", repo_id, hub.commit[:12])
    return hub.folder, hub.fetch


def _open_source(
    metadata: Metadata,
    selected: Ints,
    fetch: Callable[[str], None] | None,
    *,
    tolerance_s: float,
    video_backend: str,
    depth_output_unit: str,
    excluded: Sequence[int],
    rows_budget: int,
) -> StreamSource:
    check_default_features(metadata.features, where=f"{metadata.root}/{INFO_JSON}")
    paths, file, runs = _file_order(metadata, metadata.episodes.positions(selected))
    cameras: dict[str, CameraAddresses] = {}
    for key in metadata.video_keys:
        cameras[key] = camera_addresses(metadata.layout, metadata.episodes, key, metadata.fps, runs.table)
        if fetch is None:
            require_videos(metadata.layout, metadata.episodes, key, cameras[key], runs.table)
    files: StreamFiles | None = None

    def require(path: Path) -> None:
        assert files is not None
        files.require(path)

    rows = StreamRows(
        metadata,
        paths,
        file,
        runs.episode,
        runs.start,
        runs.length,
        require=require,
        tolerance_s=tolerance_s,
        budget=rows_budget,
    )
    runs = replace(runs, of_row=cast("Any", RunOfRow(rows.run_of)))
    files = StreamFiles(metadata.layout, file_units(rows, runs, cameras)[1], fetch)
    reader, backend = None, ("none", "the dataset has no videos")
    if cameras:
        if fetch is not None and video_backend == "auto":
            video_backend = "pyav"  # which decoder is faster could be tried only on a file that is here
        reader, backend = choose_reader(metadata, cameras, runs.table, video_backend)
    described = replace(metadata, stats=with_depth_unit(metadata.stats, metadata.features, depth_output_unit))
    return StreamSource(
        described,
        rows,
        runs,
        runs.episode,
        cameras,
        reader,
        files,
        tolerance_s=tolerance_s,
        depth_output_unit=depth_output_unit,
        backend=backend,
        excluded=excluded,
    )


def _file_order(metadata: Metadata, table: Ints) -> tuple[list[Path], Ints, Runs]:
    """Data files of some episodes in order, the file of each episode, and the episodes in the order of their rows."""
    episodes, layout = metadata.episodes, metadata.layout
    chunk, number = episodes.data_chunk[table], episodes.data_file[table]
    if len(table) and min(chunk.min(), number.min()) < 0:
        raise DatasetFormatError(
            f"the table of episodes of `{metadata.root}` does not say in which data files they are",
            "read it without `--dataset.streaming=true`",
        )
    pairs, inverse = np.unique(np.stack([chunk, number]), axis=1, return_inverse=True)
    named = [layout.data_file(int(one), int(two)) for one, two in pairs.T]
    by_name = sorted(range(len(named)), key=lambda place: named[place])
    rank = np.empty(len(named), dtype=np.int64)
    rank[by_name] = np.arange(len(named))
    file = rank[inverse.reshape(-1)]
    order = np.lexsort((np.arange(len(table)), episodes.from_index[table], file))
    table, file = table[order], file[order]
    length = episodes.length[table]
    end = np.cumsum(length)
    of_row = np.empty(0, dtype=np.int32)  # worked out when it is asked for
    runs = Runs(episodes.index[table], end - length, end, of_row, table)
    return [named[place] for place in by_name], file, runs
