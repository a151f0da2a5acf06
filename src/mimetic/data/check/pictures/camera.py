"""All that was gathered of one camera, and words for its findings."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimetic.data.check.pictures.sample import EpisodePictures, FileFacts
from mimetic.names import IMAGES_PREFIX


@dataclass(frozen=True, kw_only=True)
class Camera:
    """One camera of the dataset.

    Args:
        key: its feature.
        root: folder of the dataset, for commands.
        fps: declared rate [Hz].
        is_depth: a depth camera.
        is_video: stored as video files.
        declared: (height, width) by info.json.
        files: what its video files say about themselves.
        file_of: name of the file by episode.
        episodes: one entry an episode, in rising order.
    """

    key: str
    root: Path
    fps: float
    is_depth: bool
    is_video: bool
    declared: tuple[int, int]
    files: Sequence[FileFacts]
    file_of: Mapping[int, str]
    episodes: Sequence[EpisodePictures]

    @property
    def name(self) -> str:
        """Short name for sentences."""
        return self.key.removeprefix(IMAGES_PREFIX)

    @property
    def is_drawn(self) -> bool:
        """Whether its pictures are test patterns and no photographs."""
        shares = [episode.drawn for episode in self.episodes if len(episode.frames)]
        return bool(shares) and float(np.mean(shares)) > 0.5

    def without(self, episodes: Collection[int]) -> list[EpisodePictures]:
        """The episodes whose pictures were seen, without some."""
        return [item for item in self.episodes if item.episode not in episodes and item.background is not None]


def counted(number: int, word: str = "episode") -> str:
    """A number with its noun."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def ranges(numbers: Sequence[int], most: int = 6) -> str:
    """Numbers as ranges, such as "0-4, 7, 12-19"."""
    runs = runs_of_numbers(numbers)
    words = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:most]]
    return ", ".join(words) + (f" and {len(runs) - most} more ranges" if len(runs) > most else "")


def runs_of_numbers(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive whole numbers."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def runs_in(flagged: Sequence[bool] | npt.NDArray[np.bool_]) -> int:
    """Runs of true values in a sequence."""
    values = np.asarray(flagged, dtype=np.int8)
    return int((np.diff(values, prepend=0) == 1).sum())


def delete_command(root: Path, episodes: Sequence[int]) -> str:
    """The command that removes episodes from the dataset."""
    listed = ",".join(str(episode) for episode in sorted(episodes))
    operation = f"--operation.type=delete_episodes --operation.episode_indices='[{listed}]'"
    return f"mimetic dataset edit --root={shlex.quote(str(root))} {operation}"
