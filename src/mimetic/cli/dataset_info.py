"""`mimetic dataset info`: what is inside a dataset, from its metadata and the footers of its data files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mimetic.cli import output
from mimetic.fields import setting

if TYPE_CHECKING:
    from mimetic.data.features import DatasetFeature
    from mimetic.data.metadata import Metadata

SUMMARY = "Show what a dataset holds: episodes, rate, tasks, cameras, features, statistics"
MAX_TASKS = 20


@dataclass(frozen=True, kw_only=True)
class DatasetInfoConfig:
    """Settings of `mimetic dataset info`; the folder may also stand alone, `mimetic dataset info data/pick`."""

    repo_id: str = setting(
        "", "Name of the dataset; without a folder it is looked up as training does", layer="mimetic"
    )
    root: Path | None = setting(None, "Folder of the dataset", layer="mimetic")
    show_features: bool = setting(True, "Show the table of features", layer="mimetic")
    json: bool = setting(False, "Print JSON instead of tables", layer="mimetic")

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.root or self.repo_id else ["no dataset is named: `mimetic dataset info --root=FOLDER`"]


def main(argv: list[str], *, debug: bool) -> int:
    """Print what a dataset holds to stdout.

    Args:
        argv: flags; a bare first word is the folder.
        debug: not used here.

    Returns:
        0.
    """
    from mimetic.config.parse import parse

    config: DatasetInfoConfig = parse(DatasetInfoConfig, with_root_flag(argv), prog="mimetic dataset info").value
    root = config.root
    if root is None:
        from mimetic.data.reader import find_dataset

        root = find_dataset(config.repo_id)
    from mimetic.data.metadata import Metadata

    metadata = Metadata.open(root)
    found = gather(metadata, config.repo_id)
    if config.json:
        output.say_json(found)
    else:
        show(found, with_features=config.show_features)
    return 0


def with_root_flag(argv: Sequence[str]) -> list[str]:
    """The words with a leading bare path turned into `--root=...`."""
    words = list(argv)
    if words and not words[0].startswith("-"):
        words[0] = f"--root={words[0]}"
    return words


def gather(metadata: Metadata, repo_id: str) -> dict[str, Any]:
    """The facts of a dataset as JSON data.

    Args:
        metadata: the opened metadata.
        repo_id: name for the title; the folder's name when empty.
    """
    lengths = metadata.episodes.length
    frames = metadata.total_frames
    counts = _episodes_by_task(metadata)
    return {
        "repo_id": repo_id or metadata.root.resolve().name,
        "root": str(metadata.root),
        "version": metadata.version,
        "robot_type": metadata.robot_type,
        "fps": metadata.fps,
        "episodes": {"declared": metadata.info.total_episodes, "in_table": metadata.total_episodes},
        "frames": {"declared": metadata.info.total_frames, "in_table": frames, "in_files": _rows(metadata)},
        "episode_length": {
            "min": int(lengths.min()),
            "mean": round(float(lengths.mean()), 1),
            "max": int(lengths.max()),
        },
        "duration_s": round(frames / metadata.fps, 2),
        "tasks": [
            {"task_index": index, "task": task, "episodes": counts.get(task, 0)}
            for index, task in sorted(metadata.tasks.items())
        ],
        "cameras": [_camera(key, metadata.features[key]) for key in metadata.camera_keys],
        "features": [_feature(key, feature, metadata) for key, feature in metadata.features.items()],
        "size_bytes": {name: _size(metadata.root / name) for name in ("data", "videos", "images", "meta")},
    }


def _rows(metadata: Metadata) -> int:
    """Rows in all data files, read from their footers."""
    from mimetic.data.parquet import read_footer

    return sum(read_footer(path).num_rows for path in metadata.layout.data_files())


def _episodes_by_task(metadata: Metadata) -> dict[str, int]:
    counts: dict[str, int] = {}
    for episode in metadata.episodes:
        for task in episode.tasks:
            counts[task] = counts.get(task, 0) + 1
    return counts


def _camera(key: str, feature: DatasetFeature) -> dict[str, Any]:
    channels, height, width = (*feature.chw, 0, 0, 0)[:3]
    info = feature.info
    return {
        "name": key,
        "storage": feature.dtype,
        "width": width,
        "height": height,
        "channels": channels,
        "codec": info.get("video.codec"),
        "pix_fmt": info.get("video.pix_fmt"),
        "fps": info.get("video.fps"),
        "is_depth": feature.is_depth,
    }


def _feature(key: str, feature: DatasetFeature, metadata: Metadata) -> dict[str, Any]:
    return {
        "name": key,
        "dtype": feature.dtype,
        "shape": list(feature.shape),
        "names": feature.flat_names,
        "statistics": sorted(metadata.stats.get(key, {})),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0


def show(found: dict[str, Any], *, with_features: bool) -> None:
    """Print the facts as text and tables."""
    length, frames = found["episode_length"], found["frames"]
    lines = {
        "dataset": found["repo_id"],
        "folder": found["root"],
        "format": found["version"],
        "robot": found["robot_type"] or "not named",
        "rate": f"{found['fps']} Hz",
        "episodes": _counted(found["episodes"]["declared"], {"the table": found["episodes"]["in_table"]}),
        "frames": _counted(
            frames["declared"], {"the table of episodes": frames["in_table"], "the data files": frames["in_files"]}
        ),
        "episode length": f"{length['min']} to {length['max']} frames, mean {length['mean']}",
        "duration": _duration(found["duration_s"]),
        "size": ", ".join(f"{name} {_bytes(size)}" for name, size in found["size_bytes"].items() if size),
    }
    width = max(map(len, lines)) + 2
    for name, text in lines.items():
        output.say(f"{name.ljust(width)}{text}")
    output.say()
    tasks = found["tasks"]
    rows = [(task["task_index"], task["task"], task["episodes"]) for task in tasks[:MAX_TASKS]]
    output.say_table(("index", "task", "episodes"), rows, title=f"Tasks ({len(tasks)})")
    if len(tasks) > MAX_TASKS:
        output.say(f"... and {len(tasks) - MAX_TASKS} more; `--json=true` lists all")
    if found["cameras"]:
        output.say()
        output.say_table(("camera", "size", "stored as", "codec"), [_camera_row(camera) for camera in found["cameras"]])
    if with_features:
        output.say()
        rows_ = [_feature_row(feature) for feature in found["features"]]
        output.say_table(("feature", "type", "shape", "names", "statistics"), rows_)


def _counted(declared: int, actual: dict[str, int]) -> str:
    """One number, or all of them when they disagree."""
    different = {place: number for place, number in actual.items() if number != declared}
    if not different:
        return str(declared)
    return f"{declared} by meta/info.json, but " + ", ".join(f"{n} in {place}" for place, n in different.items())


def _camera_row(camera: dict[str, Any]) -> tuple[str, ...]:
    size = f"{camera['width']} x {camera['height']}" + (" depth" if camera["is_depth"] else "")
    codec = " ".join(str(camera[key]) for key in ("codec", "pix_fmt") if camera[key]) or "-"
    return (camera["name"], size, camera["storage"], codec)


def _feature_row(feature: dict[str, Any]) -> tuple[str, ...]:
    names = ", ".join(feature["names"] or ()) or "-"
    shape = " x ".join(map(str, feature["shape"]))
    short = names if len(names) <= 48 else names[:45] + "..."
    return (feature["name"], feature["dtype"], shape, short, " ".join(feature["statistics"]) or "none")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
