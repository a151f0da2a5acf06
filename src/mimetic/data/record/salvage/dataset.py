"""Datasets that LeRobot's recorder left without closing them: what is whole is made readable again (case 4).

That recorder writes the ends of its Parquet files only when the session is over. A kill leaves a data file without
footer and no table of episodes, while info.json already counts the episodes. Rows and videos are there, so the table
can be written from them: episodes in order, as long as rows and footage of all cameras agree.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mimetic.data.features import DatasetFeature
from mimetic.data.info import Info, parse_info
from mimetic.data.layout import Layout, require_dataset
from mimetic.data.parquet import Truncated, read_footer, read_table
from mimetic.data.record.journal import WorkFolder, finish
from mimetic.data.record.salvage.footer import with_footer
from mimetic.data.record.salvage.pictures import episode_pictures
from mimetic.data.record.totals import PICTURES_FILE, CameraTotal, Totals, write_pictures
from mimetic.data.statistics import columns_stats
from mimetic.data.store.atomic import write_json
from mimetic.data.store.data_file import open_parquet
from mimetic.data.store.episode_rows import EpisodeRow, VideoPlace, episodes_file, read_episode_rows, rows_table
from mimetic.data.store.schema import data_schema
from mimetic.data.store.tables import read_raw_info, stats_json, with_counts
from mimetic.data.tasks import read_tasks
from mimetic.data.video.index import build_index, open_container
from mimetic.errors import DatasetError, DatasetFormatError, VideoError
from mimetic.names import (
    EPISODE_INDEX,
    EPISODES_DIR,
    FRAME_INDEX,
    INDEX,
    INFO_JSON,
    STATS_JSON,
    TASK_INDEX,
)

BROKEN = ".broken"
"""Appended to the name of a file that was replaced by what could be read of it, or that nothing could be read of."""


@dataclass(frozen=True)
class _Rows:
    """Rows of one episode.

    Args:
        episode: its number.
        path: data file that holds them.
        chunk: chunk folder of that file.
        file: its number.
        table: the rows.
    """

    episode: int
    path: Path
    chunk: int
    file: int
    table: pa.Table


def needs_salvage(root: Path) -> bool:
    """Whether files of a dataset end without a footer, or episodes that info.json counts are in no table."""
    paths = [*root.glob("data/*/*.parquet"), *(root / EPISODES_DIR).glob("*/*.parquet")]
    if any(_is_cut(path) for path in paths):
        return True
    return bool(read_raw_info(root).get("total_episodes")) and not any((root / EPISODES_DIR).glob("*/*.parquet"))


def salvage(root: Path) -> list[str]:
    """Make a dataset that a killed recorder left readable again, as far as its files allow.

    Files that are replaced keep their content under a name that ends in `.broken`; nothing is deleted.

    Args:
        root: folder of the dataset.

    Returns:
        What was done and what could not be kept, one sentence each; empty when the dataset needs nothing.

    Raises:
        DatasetNotFound: there is no dataset.
        DatasetError: no episode can be read, or another process records into the dataset, LeRobot's recorder included.
    """
    require_dataset(root)
    folder = WorkFolder(root)
    try:
        done = finish(folder)
    except BaseException:
        folder.close(remove=False)
        raise
    try:
        return done + salvage_into(folder)
    finally:
        folder.close(remove=True)


def salvage_into(folder: WorkFolder) -> list[str]:
    """As `salvage`, for whoever holds the dataset already."""
    root = folder.root
    if not needs_salvage(root):
        return []
    raw = read_raw_info(root)
    info = parse_info(raw, where=str(root / INFO_JSON))
    layout = Layout.of(root, info)
    said: list[str] = []
    renames: list[tuple[Path, Path]] = []
    _require_left(root)
    set_aside = _cut_tables(root)
    known = _known_rows(root, info, set_aside)
    episodes = _read_rows(folder, layout, info, known, renames, set_aside, said)
    new, places = _matched(layout, info, known, episodes, said)
    if not known and not new:
        raise DatasetError(
            f"no episode of `{root}` can be read: {'; '.join(said) or 'there are no complete rows'}",
            "record again into another folder; the pictures of the last episode may be below `images`",
        )
    _require_files(folder, layout, info, new, episodes, renames, set_aside, said)
    _write_tables(folder, root, raw, info, known, new, places, renames)
    for path in set_aside:
        kept = folder.link(path, f"aside-{len(renames)}")
        renames.insert(0, (kept, path.with_name(path.name + BROKEN)))
    deletes = [path for path in set_aside if path not in [target for _, target in renames]]
    n_lost = int(raw.get("total_episodes", 0)) - len(known) - len(new)
    said.insert(0, f"{len(known) + len(new)} episodes are readable, {len(new)} of them again")
    if n_lost > 0:
        said.append(f"{n_lost} episodes that meta/info.json counts could not be read")
    if any((root / "images").glob("*/*/*")):
        said.append("`images` holds pictures of an episode that was never saved; they are left where they are")
    said += [f"`{layout.relative(path)}` was kept as `{path.name}{BROKEN}`" for path in set_aside]
    folder.commit(f"{len(new)} episodes were made readable again", renames, deletes)
    folder.clear()
    return said


def _require_left(root: Path) -> None:
    """Make sure that no recorder is at work: its files have no end yet either (where the system can tell).

    Raises:
        DatasetError: a process has a cut file open.
    """
    cut = {path.resolve() for path in [*root.glob("data/*/*.parquet"), *_cut_tables(root)] if _is_cut(path)}
    for process in Path("/proc").glob("[0-9]*") if Path("/proc/self/fd").is_dir() else ():
        held: set[Path] = set()
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            for handle in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed since it was listed
                    held.add(handle.readlink())
        if cut & held:
            raise DatasetError(
                f"process {process.name} records into `{root}` just now: its files have no end yet",
                "wait until it has ended, or end it",
            )


def _is_cut(path: Path) -> bool:
    try:
        read_footer(path)
    except Truncated:
        return True
    except DatasetFormatError:
        return False
    return False


def _cut_tables(root: Path) -> list[Path]:
    return [path for path in sorted((root / EPISODES_DIR).glob("*/*.parquet")) if _is_cut(path)]


def _known_rows(root: Path, info: Info, cut: Sequence[Path]) -> list[EpisodeRow]:
    """The episodes that the table still has, from the first one on without a gap."""
    if cut:
        # A session writes its files one after the other, so what lies before the first cut one is whole.
        places = [path for path in sorted((root / EPISODES_DIR).glob("*/*.parquet")) if path < cut[0]]
        numbers = {(int(path.parent.name[-3:]), int(path.stem[-3:])) for path in places}
    rows: list[EpisodeRow] = []
    for row in _readable(root, info.features, cut):
        if row.episode_index != len(rows) or (cut and (row.meta_chunk, row.meta_file) not in numbers):
            break
        rows.append(row)
    return rows


def _readable(root: Path, features: Mapping[str, DatasetFeature], cut: Sequence[Path]) -> list[EpisodeRow]:
    """Rows of the files that are whole; the reader takes folders, so they are shown to it in one of their own."""
    if not cut:
        return read_episode_rows(root, features)
    with tempfile.TemporaryDirectory(prefix="mimetic-tables-") as view:
        for path in (root / EPISODES_DIR).glob("*/*.parquet"):
            if path not in cut:
                target = Path(view) / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        return read_episode_rows(Path(view), features)


def _read_rows(
    folder: WorkFolder,
    layout: Layout,
    info: Info,
    known: Sequence[EpisodeRow],
    renames: list[tuple[Path, Path]],
    set_aside: list[Path],
    said: list[str],
) -> list[_Rows]:
    """Rows of the episodes that no table has, in order, from files that are whole or could be completed."""
    schema = data_schema(info.features)
    found: list[_Rows] = []
    n_known = len(known)
    for path in layout.data_files():
        chunk, file = int(path.parent.name.split("-")[1]), int(path.stem.split("-")[1])
        source = path
        if _is_cut(path):
            source = folder.file(f"data-{chunk}-{file}.parquet")
            completed, n_groups = with_footer(path.read_bytes(), schema, info.features)
            source.write_bytes(completed)
            set_aside.append(path)
            if n_groups == 0:
                said.append(f"`{layout.relative(path)}` holds no complete episode")
                continue
            renames.append((source, path))
        try:
            table = read_table(source)
        except DatasetFormatError as error:
            said.append(f"`{layout.relative(path)}` cannot be read: {error.message:.200}")
            continue
        numbers = table[EPISODE_INDEX].to_numpy()
        for episode in dict.fromkeys(numbers.tolist()):
            rows = np.flatnonzero(numbers == episode)
            if episode >= n_known and len(rows) == rows[-1] - rows[0] + 1:
                found.append(_Rows(episode, path, chunk, file, table.slice(int(rows[0]), len(rows))))
    return sorted(found, key=lambda one: one.episode)


def _matched(
    layout: Layout, info: Info, known: Sequence[EpisodeRow], episodes: Sequence[_Rows], said: list[str]
) -> tuple[list[_Rows], dict[str, list[VideoPlace]]]:
    """The episodes whose rows are in order and whose footage of every camera is there."""
    whole: list[_Rows] = []
    index = known[-1].to_index if known else 0
    for one in episodes:
        length = one.table.num_rows
        is_next = one.episode == len(known) + len(whole)
        frames = one.table[FRAME_INDEX].to_numpy()
        numbers = one.table[INDEX].to_numpy()
        if not is_next or not (frames == np.arange(length)).all() or not (numbers == index + np.arange(length)).all():
            said.append(f"the rows of episode {one.episode} are not in order")
            break
        index += length
        whole.append(one)
    places: dict[str, list[VideoPlace]] = {}
    for camera, feature in info.features.items():
        if feature.dtype == "video":
            places[camera] = _footage(layout, camera, info.fps, known, whole, said)
            whole = whole[: len(places[camera])]
    return whole, {camera: found[: len(whole)] for camera, found in places.items()}


def _footage(
    layout: Layout, camera: str, fps: int, known: Sequence[EpisodeRow], episodes: Sequence[_Rows], said: list[str]
) -> list[VideoPlace]:
    """Where the footage of the episodes lies: one behind the other in files behind those that the table names."""
    used = [(row.videos[camera].chunk, row.videos[camera].file) for row in known]
    files = []
    for path in sorted(layout.root.glob(f"videos/{camera}/*/*.mp4")):
        place = (int(path.parent.name.split("-")[1]), int(path.stem.split("-")[1]))
        if not used or place > max(used):
            files.append((place, path))
    found: list[VideoPlace] = []
    for (chunk, file), path in files:
        try:
            container, stream = open_container(path)
            try:
                n_frames = len(build_index(path, container, stream))
            finally:
                container.close()
        except VideoError as error:
            said.append(f"footage of `{camera}` cannot be read: {error.message}")
            break
        start = 0
        while len(found) < len(episodes) and start + episodes[len(found)].table.num_rows <= n_frames:
            end = start + episodes[len(found)].table.num_rows
            found.append(VideoPlace(chunk=chunk, file=file, from_s=start / fps, to_s=end / fps))
            start = end
        if start != n_frames and len(found) < len(episodes):
            said.append(f"`{layout.relative(path)}` has {n_frames} frames, which are not those of whole episodes")
            break
    if len(found) < len(episodes):
        said.append(f"`{camera}` has footage of {len(known) + len(found)} episodes only")
    return found


def _require_files(
    folder: WorkFolder,
    layout: Layout,
    info: Info,
    new: Sequence[_Rows],
    episodes: Sequence[_Rows],
    renames: list[tuple[Path, Path]],
    set_aside: list[Path],
    said: list[str],
) -> None:
    """Write data files again from which an episode has to go that is not whole."""
    kept = {one.episode for one in new}
    for path in dict.fromkeys(one.path for one in episodes if one.episode not in kept):
        dropped = [one.episode for one in episodes if one.path == path and one.episode not in kept]
        source = next((working for working, target in renames if target == path), path)
        table = read_table(source)
        numbers = table[EPISODE_INDEX].to_numpy()
        staying = [number for number in dict.fromkeys(numbers.tolist()) if number not in dropped]
        renames[:] = [pair for pair in renames if pair[1] != path]
        if path not in set_aside:
            set_aside.append(path)
        said.append(f"episodes {dropped} in `{layout.relative(path)}` are not whole and were left out")
        if not staying:
            continue
        working = folder.file(f"kept-{path.parent.name}-{path.name}")
        schema = data_schema(info.features)
        with open_parquet(working, schema) as writer:
            for number in staying:
                part = table.filter(pa.array(numbers == number)).replace_schema_metadata(schema.metadata)
                writer.write_table(part, row_group_size=max(part.num_rows, 1))
        renames.append((working, path))


def _write_tables(
    folder: WorkFolder,
    root: Path,
    raw: dict[str, Any],
    info: Info,
    known: Sequence[EpisodeRow],
    new: Sequence[_Rows],
    places: Mapping[str, Sequence[VideoPlace]],
    renames: list[tuple[Path, Path]],
) -> None:
    """The table of episodes, statistics and counters."""
    tasks = read_tasks(root)
    meta = (0, 0)
    while episodes_file(root, *meta).exists():
        meta = (meta[0], meta[1] + 1)
    rows: list[EpisodeRow] = []
    index = known[-1].to_index if known else 0
    totals = Totals({}, {})
    for number, one in enumerate(new):
        columns = {
            name: np.asarray(one.table[name].to_pylist(), dtype=feature.dtype)
            for name, feature in info.features.items()
            if feature.is_numeric
        }
        videos = {camera: found[number] for camera, found in places.items()}
        pictures = episode_pictures(root, info, one.table, videos)
        stats = columns_stats(info.features, columns)
        stats |= {camera: counted.result(count=one.table.num_rows) for camera, counted in pictures.items()}
        totals = totals.with_episode(columns, {camera: (c, one.table.num_rows) for camera, c in pictures.items()})
        used = dict.fromkeys(columns[TASK_INDEX].tolist())
        missing = [task for task in used if task not in tasks]
        if missing:
            raise DatasetError(
                f"episode {one.episode} has the tasks {missing}, which meta/tasks.parquet does not name",
                "add them to that file; without them nobody knows what the episode shows",
            )
        row = EpisodeRow(
            episode_index=one.episode,
            tasks=tuple(tasks[task] for task in used),
            length=one.table.num_rows,
            data_chunk=one.chunk,
            data_file=one.file,
            from_index=index,
            to_index=index + one.table.num_rows,
            videos=videos,
            stats=stats,
            meta_chunk=meta[0],
            meta_file=meta[1],
        )
        rows.append(row)
        index = row.to_index
    if rows:
        table = rows_table(rows, info.features)
        working = folder.file("episodes.parquet")
        with open_parquet(working, table.schema) as writer:
            writer.write_table(table)
        renames.append((working, episodes_file(root, *meta)))
    if rows and not known:
        write_json(folder.file("stats.json"), stats_json(totals.stats(info.features)))
        renames.append((folder.file("stats.json"), root / STATS_JSON))
        if totals.cameras:
            cameras: dict[str, CameraTotal] = dict(totals.cameras)
            write_pictures(folder.file("pictures.parquet"), cameras, n_episodes=len(rows), n_frames=index)
            renames.append((folder.file("pictures.parquet"), root / PICTURES_FILE))
    counted = with_counts(raw, episodes=len(known) + len(rows), frames=index, tasks=len(tasks))
    write_json(folder.file("info.json"), counted)
    renames.append((folder.file("info.json"), root / INFO_JSON))
