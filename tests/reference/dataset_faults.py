"""Datasets with one fault each, by the id of the rule that names it (spec/dataset_quality.md 3, 4, 10)."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mimetic.data.edit.config import RecomputeStatsConfig
from mimetic.data.edit.run import edit_dataset
from mimetic.testing.datasets import build_dataset

SIZE = (40, 64)
LEDGER = "meta/episodes/chunk-000/file-000.parquet"
KEY = "observation.images.top"


def build_sound(folder):
    """A sound dataset: four episodes, one data and one video file each, with exact statistics."""
    raw = build_dataset(folder / "raw", lengths=(6, 12, 5, 7), cameras={"top": SIZE}, tasks=("one", "two"))
    edit_dataset(raw, RecomputeStatsConfig(skip_image_video=False), new_root=folder / "set")
    return folder / "set"


def change_ledger(root, name, values):
    table = pq.read_table(root / LEDGER)
    place = table.schema.get_field_index(name)
    column = pa.array(values, type=table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), root / LEDGER)


def change_data(root, number, name, values):
    path = root / f"data/chunk-000/file-{number:03d}.parquet"
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index(name)
    column = pa.array(values).cast(table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), column), path)


def change_info(root, **values):
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=4))


def change_stats(root, change):
    path = root / "meta/stats.json"
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def drop_episode(root):
    """Case 5: the entry and the rows of episode 1 are gone."""
    pq.write_table(pq.read_table(root / LEDGER).take([0, 2, 3]), root / LEDGER)
    (root / "data/chunk-000/file-001.parquet").unlink()


# What breaks it, and which files may change to mend it.
FAULTS = {
    "meta.counts": (lambda root: change_info(root, total_frames=99, total_episodes=5, lab="x"), {"meta/info.json"}),
    "meta.data_file": (lambda root: change_ledger(root, "data/file_index", [0, 0, 2, 3]), {LEDGER}),
    "meta.ledger": (lambda root: change_ledger(root, "dataset_from_index", [0, 6, 17, 23]), {LEDGER}),
    "meta.video_span": (lambda root: change_ledger(root, f"videos/{KEY}/to_timestamp", [0.6, 1.2, 0.1, 0.7]), {LEDGER}),
    "meta.video_order": (lambda root: change_ledger(root, f"videos/{KEY}/from_timestamp", [0.0, 0.01, 0, 0]), {LEDGER}),
    "data.index": (lambda root: change_data(root, 1, "index", [*range(6, 17), 3]), {"data/chunk-000/file-001.parquet"}),
    "data.task": (lambda root: change_data(root, 2, "task_index", [7] * 5), {"data/chunk-000/file-002.parquet"}),
    "time.start": (
        lambda root: change_data(root, 0, "timestamp", 5 + np.arange(6) / 10),
        {"data/chunk-000/file-000.parquet"},
    ),
    "time.grid": (
        lambda root: change_data(root, 3, "timestamp", [0, 0.1, 0.203, 0.3, 0.4, 0.5, 0.6]),
        {"data/chunk-000/file-003.parquet"},
    ),
    "time.monotonic": (
        lambda root: change_data(root, 3, "timestamp", [0, 0.1, 0.2, 0.2, 0.2, 0.5, 0.6]),
        {"data/chunk-000/file-003.parquet"},
    ),
    "stats.match": (
        lambda root: change_stats(root, lambda raw: raw["action"].update(mean=[0.0, 0.0])),
        {"meta/stats.json"},
    ),
    "stats.present": (lambda root: change_stats(root, lambda raw: raw["action"].pop("q01")), {"meta/stats.json"}),
    "stats.quantile_mean": (
        lambda root: change_stats(
            root, lambda raw: raw["action"].update({key: [151.0, 151.0] for key in ("q01", "q10", "q50", "q90", "q99")})
        ),
        {"meta/stats.json"},
    ),
    "stats.index": (
        lambda root: change_stats(root, lambda raw: raw["episode_index"].update(max=[1.0])),
        {"meta/stats.json"},
    ),
    "stats.count": (lambda root: change_ledger(root, "stats/observation.state/count", [[6], [3], [5], [7]]), {LEDGER}),
}
