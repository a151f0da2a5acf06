"""Where the files of a dataset lie, and that none of them lies outside its folder (spec/dataset.md 1, 16.1, 20.7).

`data_path` and `video_path` come from a file that may have been downloaded: only the known placeholders are filled in,
and a result that leaves the folder, by `..`, as an absolute path or through a symbolic link, is refused.
"""

from __future__ import annotations

import os
import string
from dataclasses import dataclass
from pathlib import Path

from mimetic.data.info import Info
from mimetic.errors import DatasetFormatError, DatasetNotFound

_FORMATS = ("", "d", "01d", "02d", "03d", "04d", "05d", "06d", "07d", "08d")


@dataclass(frozen=True)
class Layout:
    """Names of the data and video files of one dataset.

    Args:
        root: folder of the dataset.
        data_template: `data_path` of info.json.
        video_template: `video_path` of info.json, or None.
        legacy: v2.x layout, where chunk and file number are those of the episode.
    """

    root: Path
    data_template: str
    video_template: str | None
    legacy: bool = False

    @classmethod
    def of(cls, root: Path, info: Info) -> Layout:
        """Layout of the dataset at `root`; both templates are checked.

        Raises:
            DatasetFormatError: a template has an unknown placeholder or leaves the folder.
        """
        layout = cls(root, info.data_path, info.video_path, info.is_legacy)
        layout.data_file(0, 0)
        if info.video_path is not None:
            layout.video_file("camera", 0, 0)
        return layout

    def data_file(self, chunk: int, file: int) -> Path:
        """Path of a data file (v2.x: `file` is the episode)."""
        return self._path("data_path", self.data_template, "", chunk, file)

    def video_file(self, key: str, chunk: int, file: int) -> Path:
        """Path of a video file of camera `key` (v2.x: `file` is the episode).

        Raises:
            DatasetFormatError: info.json has no `video_path`.
        """
        if self.video_template is None:
            raise DatasetFormatError(
                f"`{self.root}` has the video feature `{key}`, but `video_path` in meta/info.json is null"
            )
        return self._path("video_path", self.video_template, key, chunk, file)

    def data_files(self) -> list[Path]:
        """All data files, sorted by path.

        Raises:
            DatasetFormatError: one of them leads out of the folder.
        """
        return [require_inside(self.root, path) for path in sorted(self.root.glob("data/*/*.parquet"))]

    def relative(self, path: Path) -> str:
        """`path` as seen from the root, for messages."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)

    def _path(self, name: str, template: str, key: str, chunk: int, file: int) -> Path:
        numbers = {"chunk_index": chunk, "file_index": file}
        if self.legacy:
            numbers = {"episode_chunk": chunk, "episode_index": file}
        text = fill_template(template, key=key, numbers=numbers, where=f"`{name}` in `{self.root}/meta/info.json`")
        return require_inside(self.root, self.root / text)


def fill_template(template: str, *, key: str, numbers: dict[str, int], where: str) -> str:
    """Fill a path template, allowing `{video_key}` and the given numbers only, each with a plain width.

    Raises:
        DatasetFormatError: another placeholder, attribute access, a conversion, or a path that leaves its folder.
    """
    try:
        fields = list(string.Formatter().parse(template))
    except ValueError as error:
        raise DatasetFormatError(f"{where} is not a template: {template!r} ({error})") from error
    for _, field, form, conversion in fields:
        if field is None:
            continue
        is_number = field in numbers and form in _FORMATS and not conversion
        is_key = field == "video_key" and bool(key) and not form and not conversion
        if not is_number and not is_key:
            raise DatasetFormatError(
                f"{where} holds the placeholder {{{field}}}, which is not allowed here: {template!r}",
                f"allowed: {', '.join(numbers)}" + (", video_key" if key else ""),
            )
    text = template.format(video_key=key, **numbers)
    parts = text.replace("\\", "/").split("/")
    if text.startswith(("/", "\\", "~")) or ".." in parts or ":" in parts[0] or "\0" in text:
        raise DatasetFormatError(f"{where} leaves the folder of the dataset: {template!r}", "do not use this dataset")
    return text


def require_inside(root: Path, path: Path) -> Path:
    """Return `path` if it stays below `root` after symbolic links are followed.

    Links of a hub snapshot into the `blobs` folder beside it are the hub's own way to store files and are allowed.

    Raises:
        DatasetFormatError: it does not.
    """
    real_root = os.path.realpath(root)
    real = os.path.realpath(path)
    if real == real_root or real.startswith(real_root + os.sep):
        return path
    snapshots = Path(real_root).parent
    if snapshots.name == "snapshots" and real.startswith(str(snapshots.parent / "blobs") + os.sep):
        return path
    raise DatasetFormatError(
        f"`{path}` leads out of the dataset's folder, to `{real}`", "replace the link by the file that it names"
    )


def require_dataset(root: Path) -> None:
    """Check that `root` holds a dataset.

    Raises:
        DatasetNotFound: there is no meta/info.json; the hint names datasets nearby.
    """
    if not (root / "meta" / "info.json").is_file():
        found = nearby_datasets(root)
        hint = "datasets nearby: " + ", ".join(f"`{path}`" for path in found) if found else ""
        raise DatasetNotFound(
            f"no dataset at `{root}` (expected meta/info.json)",
            hint or "give the folder that holds `meta`, `data` and `videos`",
        )


def nearby_datasets(root: Path, limit: int = 3) -> list[Path]:
    """Datasets below, beside or above a folder that is none, the best match by name first.

    Looks at a few hundred folders at most, so that a wrong path in a huge tree still answers at once.
    """
    import difflib

    root = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would follow links, and the user named this path
    existing = root
    while not existing.is_dir() and existing != existing.parent:
        existing = existing.parent
    places = [existing, *_folders(existing)]
    if existing == root:
        places += [root.parent, *_folders(root.parent)]
    candidates = dict.fromkeys(places + [inner for place in places[:50] for inner in _folders(place)[:20]])
    found = [path for path in candidates if (path / "meta" / "info.json").is_file() and path != root]

    def likeness(path: Path) -> tuple[bool, float]:
        is_related = root in path.parents or path in root.parents
        return (is_related, difflib.SequenceMatcher(None, root.as_posix()[-80:], path.as_posix()[-80:]).ratio())

    return sorted(found, key=likeness, reverse=True)[:limit]


def _folders(place: Path, limit: int = 200) -> list[Path]:
    found: list[Path] = []
    try:
        with os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(".") and entry.is_dir():
                    found.append(place / entry.name)
                if len(found) >= limit:
                    break
    except OSError:
        return found
    return sorted(found)
