"""Which episodes share a file in the result: LeRobot's rule of sizes (spec/dataset.md 16.2)."""

from __future__ import annotations

from collections.abc import Sequence

from mimetic.data.convert.inspection import VideoFacts
from mimetic.data.store.shards import is_full, next_file


def plan_data(sizes: Sequence[int], limit_mb: float) -> list[range]:
    """Consecutive episodes of each data file.

    Args:
        sizes: uncompressed bytes of each episode's rows.
        limit_mb: a file that would reach it [MiB] with the next episode is full.
    """
    return _group(sizes, limit_mb, [False] * len(sizes))


def plan_videos(facts: Sequence[VideoFacts], limit_mb: float) -> list[range]:
    """Consecutive episodes of each video file of one camera.

    Besides the size, a file ends where the next video has another stream header (it could not be decoded with that of
    the first), and after a video that does not last as long as its frames (the next would not start on a whole frame).
    """
    breaks = [
        number > 0 and (not facts[number - 1].is_regular or facts[number].stream != facts[number - 1].stream)
        for number in range(len(facts))
    ]
    return _group([fact.size for fact in facts], limit_mb, breaks)


def file_numbers(count: int, chunks_size: int) -> list[tuple[int, int]]:
    """(chunk, file) of the first `count` files."""
    numbers = []
    place = (0, 0)
    for _ in range(count):
        numbers.append(place)
        place = next_file(*place, chunks_size)
    return numbers


def _group(sizes: Sequence[int], limit_mb: float, breaks: Sequence[bool]) -> list[range]:
    groups: list[range] = []
    start, held = 0, 0
    for number, size in enumerate(sizes):
        if number > start and (breaks[number] or is_full(held, size, limit_mb)):
            groups.append(range(start, number))
            start, held = number, 0
        held += size
    if len(sizes):
        groups.append(range(start, len(sizes)))
    return groups
