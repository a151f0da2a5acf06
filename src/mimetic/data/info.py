"""meta/info.json: what a dataset says about itself (spec/dataset.md 2; v2.x: 16.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.data.features import DatasetFeature, parse_features
from mimetic.data.jsonfile import parse_json
from mimetic.errors import DatasetFormatError
from mimetic.names import INFO_JSON

logger = logging.getLogger(__name__)

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
LEGACY_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
LEGACY_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
SUPPORTED = (3, 0)
LEGACY = ((2, 0), (2, 1))
DEFAULT_TOOLS: tuple[dict[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": "say",
            "description": "Say a sentence to the user",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    },
)
_LARGEST = 10**9
_KNOWN = frozenset(
    (
        *("codebase_version", "fps", "features", "total_episodes", "total_frames", "total_tasks", "chunks_size"),
        *(
            "data_files_size_in_mb",
            "video_files_size_in_mb",
            "data_path",
            "video_path",
            "robot_type",
            "splits",
            "tools",
        ),
        *("total_videos", "total_chunks"),  # v2.x
    )
)


@dataclass(frozen=True)
class Info:
    """The values of meta/info.json.

    Args:
        version: (major, minor) of the format.
        fps: frame rate [Hz].
        features: features by name, in column order.
        total_episodes: declared number of episodes (the table of episodes has the real one).
        total_frames: declared number of frames.
        total_tasks: declared number of tasks.
        chunks_size: most files in one chunk folder.
        data_files_size_in_mb: shard limit of data files [MiB].
        video_files_size_in_mb: shard limit of video files [MiB].
        data_path: template of data files.
        video_path: template of video files; None when the dataset has none.
        robot_type: free text.
        splits: named episode ranges.
        tools: declared function schemas, or the one default tool.
    """

    version: tuple[int, int]
    fps: int
    features: Mapping[str, DatasetFeature]
    total_episodes: int = 0
    total_frames: int = 0
    total_tasks: int = 0
    chunks_size: int = 1000
    data_files_size_in_mb: float = 100
    video_files_size_in_mb: float = 200
    data_path: str = DATA_PATH
    video_path: str | None = VIDEO_PATH
    robot_type: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = DEFAULT_TOOLS

    @property
    def is_legacy(self) -> bool:
        """Whether the folder has the v2.x layout (one file an episode, jsonl metadata)."""
        return self.version[0] < SUPPORTED[0]


def read_info(root: Path) -> Info:
    """Read and check meta/info.json below `root`.

    Raises:
        DatasetFormatError: not JSON, a required key is missing, a value is wrong, or the version cannot be read.
    """
    path = root / INFO_JSON
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DatasetFormatError(
            f"`{path}` cannot be read: {error}", "restore the file; without it the columns cannot be interpreted"
        ) from error
    return parse_info(raw, where=str(path))


def parse_info(raw: Any, *, where: str) -> Info:
    """Check the decoded JSON of info.json.

    Args:
        raw: decoded JSON value.
        where: name of the file, for messages.

    Raises:
        DatasetFormatError: see `read_info`; wrong values are listed all at once.
    """
    if not isinstance(raw, Mapping):
        raise DatasetFormatError(f"`{where}` must hold an object, not {raw!r:.60}")
    missing = [key for key in ("codebase_version", "fps", "features") if key not in raw]
    if missing:
        raise DatasetFormatError(f"`{where}` lacks {', '.join(f'`{key}`' for key in missing)}")
    version = parse_version(raw["codebase_version"], where=where)
    unknown = sorted(set(raw) - _KNOWN)
    if unknown:
        logger.warning("%s: ignoring unknown keys %s", where, ", ".join(unknown))
    legacy = version[0] < SUPPORTED[0]
    problems: list[str] = []
    fps = _positive(raw, "fps", None, problems)
    values: dict[str, Any] = {
        "chunks_size": int(_positive(raw, "chunks_size", 1000, problems)),
        "data_files_size_in_mb": _positive(raw, "data_files_size_in_mb", 100, problems),
        "video_files_size_in_mb": _positive(raw, "video_files_size_in_mb", 200, problems),
    }
    if fps != int(fps):
        problems.append(f"`fps` is {fps} (whole numbers only)")
    for key in ("total_episodes", "total_frames", "total_tasks"):
        value = raw.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            problems.append(f"`{key}` is {value!r:.60}")
        values[key] = value
    values["data_path"] = _template(raw, "data_path", LEGACY_DATA_PATH if legacy else DATA_PATH, problems)
    values["video_path"] = _template(raw, "video_path", LEGACY_VIDEO_PATH if legacy else VIDEO_PATH, problems)
    splits = raw.get("splits") or {}
    if not isinstance(splits, Mapping):
        problems.append(f"`splits` is {splits!r:.60} instead of an object")
    if problems:
        raise DatasetFormatError(f"`{where}` holds values that cannot be used: " + "; ".join(problems))
    tools = raw.get("tools")
    return Info(
        version=version,
        fps=int(fps),
        features=parse_features(raw["features"], where=f"`{where}`"),
        robot_type=None if raw.get("robot_type") is None else str(raw["robot_type"]),
        splits=dict(splits),
        tools=tuple(tools) if isinstance(tools, list) and tools else DEFAULT_TOOLS,
        **values,
    )


def parse_version(text: Any, *, where: str) -> tuple[int, int]:
    """Read `codebase_version`, such as "v3.0", and refuse what cannot be read.

    Raises:
        DatasetFormatError: not a version, older than v2.0, or a newer major version.
    """
    parts = str(text).lstrip("v").split(".")
    if len(str(text)) > 20 or not all(part.isascii() and part.isdigit() for part in parts[:2]):
        raise DatasetFormatError(
            f"`codebase_version` in `{where}` is {text!r:.60}, which is not a version such as v3.0"
        )
    version = (int(parts[0]), int(parts[1]) if len(parts) > 1 else 0)
    if version[0] > SUPPORTED[0]:
        raise DatasetFormatError(
            f"`{where}` says version {text}; this mimetic reads v2.0, v2.1 and v3.x", "a newer mimetic may read it"
        )
    if version > SUPPORTED:
        logger.warning("%s says version %s, newer than v3.0; reading it as v3.0", where, text)
    if version < SUPPORTED and version not in LEGACY:
        raise DatasetFormatError(
            f"`{where}` says version {text}; this mimetic reads v2.0, v2.1 and v3.x",
            "convert it with the LeRobot release that wrote it, to v2.1 at least",
        )
    return version


def _positive(raw: Mapping[str, Any], key: str, default: float | None, problems: list[str]) -> float:
    value = raw.get(key, default)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 < value <= _LARGEST:  # NaN is refused as well
        problems.append(f"`{key}` is {value!r:.60} (it must be positive, and at most {_LARGEST})")
        return 1
    return value  # type: ignore[no-any-return]


def _template(raw: Mapping[str, Any], key: str, default: str, problems: list[str]) -> Any:
    value = raw.get(key, default)
    if value is None and key == "video_path":
        return None
    if not isinstance(value, str) or not value:
        problems.append(f"`{key}` is {value!r:.60}")
    return value
