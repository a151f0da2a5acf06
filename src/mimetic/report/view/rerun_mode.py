"""A dataset in rerun's viewer, or in a file for it (extra `viz`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mimetic.catalog import missing_extra
from mimetic.errors import MissingExtra
from mimetic.report.view.library import Library


def is_installed() -> bool:
    """Whether rerun can be imported; nothing is imported to find out."""
    return importlib.util.find_spec("rerun") is not None


def show_in_rerun(
    library: Library,
    episodes: Sequence[int],
    *,
    save: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Send episodes to rerun, frame by frame.

    Every episode is a time line of its own, under a path of its own: cameras as JPEG, state and action by channel.

    Args:
        library: the dataset.
        episodes: which ones.
        save: write an `.rrd` file here instead of opening the viewer.
        on_progress: told of the frames that are done, and of all.

    Raises:
        MissingExtra: rerun is not installed.
        DatasetError: a frame or row cannot be read.
    """
    try:
        import rerun
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "rerun":
            raise missing_extra("rerun-sdk", "viz") from error
        hint = missing_extra("rerun-sdk", "viz").hint
        raise MissingExtra(f"`rerun-sdk` is installed and cannot be imported ({error})", hint) from error
    rerun.init(f"mimetic {library.name}", spawn=save is None)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        rerun.save(str(save))
    total, done = sum(library.length(episode) for episode in episodes), 0
    for episode in episodes:
        columns = library.rows(episode)
        for frame in range(library.length(episode)):
            _log_frame(rerun, library, columns, episode, frame)
            done += 1
            if on_progress is not None:
                on_progress(done, total)


def _log_frame(rerun: Any, library: Library, columns: dict[str, Any], episode: int, frame: int) -> None:
    rerun.set_time("frame_index", sequence=frame)
    rerun.set_time("timestamp", duration=frame / max(library.fps, 1))
    place = f"episode_{episode}"
    for camera in library.cameras:
        picture = library.frame(camera, episode, frame)
        rerun.log(f"{place}/{camera}", rerun.EncodedImage(contents=picture, media_type="image/jpeg"))
    for key, values in columns.items():
        if frame >= len(values):
            continue
        names = library.source.features[key].flat_names or []
        row = values[frame].reshape(-1)
        for channel, value in enumerate(row.tolist()):
            name = names[channel] if len(names) == len(row) else str(channel)
            rerun.log(f"{place}/{key}/{name}", rerun.Scalars(value))
