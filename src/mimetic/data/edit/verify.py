"""The output is opened with our reader and compared with the plan before it may take its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mimetic.data.dataset import Dataset
from mimetic.data.edit.data_task import native_column
from mimetic.data.edit.plan import Plan
from mimetic.data.parquet import read_table
from mimetic.data.reader import open_dataset
from mimetic.data.store.episode_rows import read_episode_rows
from mimetic.errors import DatasetError
from mimetic.names import DEFAULT_FEATURES, EPISODE_INDEX, FRAME_INDEX, INDEX, TASK_INDEX

_MOST_EPISODES = 8


def verify(folder: Path, plan: Plan) -> None:
    """Compare what was built with what was planned.

    Args:
        folder: the dataset that was built.
        plan: its plan.

    Raises:
        DatasetError: they differ; nothing has been replaced yet.
    """
    dataset = open_dataset(root=folder, return_uint8=True)
    try:
        problems = [*_numbers(dataset, plan), *_tasks(dataset, plan), *_files(folder, dataset)]
        problems += _rows(dataset, plan)
        if not problems:
            for position in {0, dataset.num_frames // 2, dataset.num_frames - 1}:
                dataset.item(position)  # decodes every camera
    finally:
        dataset.close()
    if problems:
        raise DatasetError(
            f"the result of `{plan.operation}` is not what was planned: {'; '.join(problems[:4])}",
            "nothing was replaced; this is a bug of mimetic, please report it",
        )


def _numbers(dataset: Dataset, plan: Plan) -> list[str]:
    lengths = np.asarray([cut.length for cut in plan.cuts])
    expected = {
        INDEX: np.arange(plan.n_frames),
        EPISODE_INDEX: np.repeat(np.arange(len(lengths)), lengths),
        FRAME_INDEX: np.concatenate([np.arange(length) for length in lengths]),
    }
    problems = [
        f"`{name}` is not as planned" for name, values in expected.items() if not _equal(dataset.column(name), values)
    ]
    info = dataset.meta.info
    declared = (info.total_episodes, info.total_frames, info.total_tasks)
    actual = (len(plan.cuts), plan.n_frames, len(dataset.meta.tasks))
    return problems if declared == actual else [*problems, f"info.json counts {declared}, there are {actual}"]


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool((one == other).all())


def _tasks(dataset: Dataset, plan: Plan) -> list[str]:
    texts, mappings = plan.tasks()
    expected = np.concatenate(
        [
            [mapping[int(number)] for number in plan.tasks_of(cut)]
            for cut, mapping in zip(plan.cuts, mappings, strict=True)
        ]
    )
    problems = [] if _equal(dataset.column(TASK_INDEX), expected) else ["tasks are not as planned"]
    return problems if list(dataset.meta.tasks.values()) == texts else [*problems, "the table of tasks is wrong"]


def _files(folder: Path, dataset: Dataset) -> list[str]:
    problems = []
    for row in read_episode_rows(folder, dataset.meta.features):
        if not dataset.meta.layout.data_file(row.data_chunk, row.data_file).is_file():
            problems.append(f"the data file of episode {row.episode_index} is missing")
    return problems + [
        f"episode {short.episode} lacks {short.missing} frames of `{short.camera}`"
        for short in dataset.check_video_lengths()
    ]


def _rows(dataset: Dataset, plan: Plan) -> list[str]:
    """Compare the kept columns of some episodes with their sources."""
    spread = np.unique(np.linspace(0, len(plan.cuts) - 1, _MOST_EPISODES).astype(int)).tolist()
    rows = {row.episode_index: row for row in read_episode_rows(dataset.root, dataset.features)}
    problems = []
    for number in spread:
        cut, row = plan.cuts[number], rows[number]
        source = plan.sources[cut.source]
        place = source.rows[cut.episode]
        path = dataset.meta.layout.data_file(row.data_chunk, row.data_file)
        made = read_table(path)
        first = int(np.argmax(made[EPISODE_INDEX].to_numpy() == number))
        theirs = read_table(place.path)
        for name, origin in plan.columns.items():
            feature = dataset.features[name]
            if name in DEFAULT_FEATURES or not (feature.is_numeric or feature.dtype == "image"):
                continue
            own = made[name].slice(first, cut.length)
            other = theirs[origin].slice(place.start + cut.start, cut.length)
            if feature.dtype == "image":
                is_equal = [_bytes(cell) for cell in own.to_pylist()] == [_bytes(cell) for cell in other.to_pylist()]
            else:
                one, two = (
                    native_column(column, feature, name=name, where=str(path)).astype(np.float64)
                    for column in (own, other)
                )
                is_equal = one.shape == two.shape and np.array_equal(one, two, equal_nan=True)
            if not is_equal:
                problems.append(f"`{name}` of episode {number} differs from episode {cut.episode} of `{source.root}`")
    return problems


def _bytes(cell: object) -> object:
    return cell.get("bytes") if isinstance(cell, dict) else cell
