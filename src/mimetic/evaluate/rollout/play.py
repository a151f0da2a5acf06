"""Plays episodes of one task, several at once, and says how each went.

Drawing is most of a simulation's work, so it is asked for only where somebody reads the pictures: the policy whose
queue is empty, a film, a recording, and the report's strip, which wants a few.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mimetic.data.store.atomic import write_bytes
from mimetic.errors import MimeticError
from mimetic.evaluate.rollout.environment import EnvTask, Places, Shown
from mimetic.evaluate.rollout.film import STRIP_FRAMES, Film
from mimetic.evaluate.rollout.player import Player, Seat

logger = logging.getLogger(__name__)
_LARGEST_LISTED = 40
_UNSEEN_SHARE = 2 * STRIP_FRAMES
"""No longer part of an episode's limit than one in so many goes by without a picture for the strip."""
VIDEOS, STRIPS = "videos", "strips"


@dataclass(frozen=True, kw_only=True)
class Episode:
    """How one episode went.

    Args:
        run: which pass it belongs to: "policy", "compare", "blind", "mute", "swap".
        group: see `EnvTask`.
        task_id: see `EnvTask`.
        task: see `EnvTask`.
        split: see `EnvTask`.
        episode: its number k.
        seed: of layout and policy, the evaluation's seed + k.
        instruction: what the policy was told by the environment.
        length: control ticks.
        success: whether the task succeeded.
        sum_reward: of all its steps.
        max_reward: largest of its steps.
        wall_s: from its first observation to its end, with whatever ran beside it [s].
        policy_s: time in the policy [s].
        predictions: calls that predicted a chunk.
        latency_ms: of those calls, at most 40 of them, evenly chosen [ms].
        video: relative path of its film, if there is one.
        strip: relative path of its strip of pictures, if there is one.
    """

    run: str
    group: str
    task_id: int
    task: str
    split: str
    episode: int
    seed: int
    instruction: str
    length: int
    success: bool
    sum_reward: float
    max_reward: float
    wall_s: float
    policy_s: float
    predictions: int
    latency_ms: tuple[float, ...] = ()
    video: str | None = None
    strip: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be played, and where films go.

    Args:
        run: name of the pass.
        seed: episode k has the seed `seed + k`.
        places: environments at once.
        processes: that they are spread over; 0 for this one.
        folder: of the evaluation; None keeps no picture.
        videos: episodes below this number are filmed.
        video_folder: for films, relative to `folder`.
        strips: whether pictures for the report are kept.
    """

    run: str
    seed: int
    places: int
    processes: int
    folder: Path | None = None
    videos: int = 0
    video_folder: str = VIDEOS
    strips: bool = True


class Keeps(Protocol):
    """Records an episode (`recorder.Take`)."""

    def add(self, observation: Mapping[str, NDArray[Any]], action: NDArray[np.float64]) -> None:
        """Take the next tick."""

    def outcome(self, reward: float, *, done: bool, success: bool) -> None:
        """What its action led to."""


@dataclass
class _Playing:
    """An episode in a place."""

    episode: int
    seat: Seat
    film: Film
    instruction: str
    begun: float
    reads: bool
    """Whether the policy reads the observation of this tick."""
    watched: bool
    """Whether every tick is kept in pictures."""
    longest_unseen: int
    """Ticks from one picture to the next at most; 0 sets no limit."""
    take: Keeps | None = None
    unseen: int = 0
    """Ticks since the last picture."""
    length: int = 0
    rewards: list[float] = field(default_factory=list)

    def looks(self) -> bool:
        """Whether somebody wants to see the next tick."""
        return self.reads or self.watched or 0 < self.longest_unseen <= self.unseen + 1


def play(
    task: EnvTask,
    player: Player,
    plan: Plan,
    todo: Sequence[int],
    *,
    on_open: Callable[[Places], None] = lambda places: None,
    keep: Callable[[int], Keeps] | None = None,
) -> Generator[Episode, None, None]:
    """Play episodes.

    A finished place takes the next episode at once, so that none waits for the slowest.

    Args:
        task: where.
        player: who.
        plan: how.
        todo: numbers of the episodes, ascending.
        on_open: is given the environment before the first episode.
        keep: called with the number of an episode that begins, for the take that records it.

    Yields:
        Each episode when it ends; not in order. Closing the iterator ends the others and leaves no half film.

    Raises:
        MimeticError: the environment or the policy fails; the message names the episode.
    """
    waiting = list(reversed(todo))
    count = min(plan.places, len(waiting))
    if not count:
        return
    places = task.open(count, min(plan.processes, count) if count > 1 else 0)
    playing: dict[int, _Playing] = {}

    def begin(place: int) -> Shown:
        episode = waiting.pop()
        return _begin(task, player, plan, places, place, episode, playing, None if keep is None else keep(episode))

    try:
        on_open(places)
        shown = None
        for place in range(count):
            shown = begin(place)
        if shown is not None:
            player.warm_up({name: value[0] for name, value in shown.observation.items()}, shown.instructions[0])
        actions: Any = None
        while playing:
            assert shown is not None
            for place, one in playing.items():
                action = _act(task, one, shown, place)
                actions = np.zeros((count, len(action))) if actions is None else actions
                actions[place] = action
                if one.take is not None:
                    one.take.add({name: value[place] for name, value in shown.observation.items()}, action)
            looks = np.array([place in playing and playing[place].looks() for place in range(count)])
            stepped = shown = places.step(actions, looks)
            for place, one in list(playing.items()):
                _note(one, stepped, place)  # what a beginning shows has no rewards of this tick
                if stepped.is_over[place]:
                    yield _finish(task, plan, one, success=bool(stepped.is_success[place]))
                    del playing[place]
                    if waiting:
                        shown = begin(place)
    finally:
        for one in playing.values():
            one.film.abort()
        places.close()


def _begin(
    task: EnvTask,
    player: Player,
    plan: Plan,
    places: Places,
    place: int,
    episode: int,
    playing: dict[int, _Playing],
    take: Keeps | None,
) -> Shown:
    seed = plan.seed + episode
    shown = places.begin(place, seed)
    path = None
    if plan.folder is not None and episode < plan.videos:
        path = plan.folder / _video(task, plan, episode)
        path.parent.mkdir(parents=True, exist_ok=True)
    seat = player.sit_down(seed)
    one = _Playing(
        episode=episode,
        seat=seat,
        film=Film(path, task.fps),
        instruction=shown.instructions[place],
        begun=time.monotonic(),
        reads=seat.needs_observation(),
        watched=path is not None or take is not None,
        longest_unseen=max(1, task.episode_length // _UNSEEN_SHARE) if plan.folder is not None and plan.strips else 0,
        take=take,
    )
    playing[place] = one  # before the first picture: whatever fails from here on, the film is closed
    _film(one, shown, place)
    return shown


def _act(task: EnvTask, one: _Playing, shown: Shown, place: int) -> Any:
    seen = {name: value[place] for name, value in shown.observation.items()} if one.reads else None
    try:
        action = one.seat.act(seen, one.instruction)
    except MimeticError as error:
        error.message += f" (task {task.title}, episode {one.episode}, tick {one.length})"
        raise
    one.reads = one.seat.needs_observation()  # of the next tick, which is drawn by what is said here
    return action


def _note(one: _Playing, shown: Shown, place: int) -> None:
    one.length += 1
    one.rewards.append(float(shown.rewards[place]))
    if one.take is not None:
        over, success = bool(shown.is_over[place]), bool(shown.is_success[place])
        one.take.outcome(one.rewards[-1], done=over, success=success)
    _film(one, shown, place)


def _film(one: _Playing, shown: Shown, place: int) -> None:
    """Add what was drawn: every tick of a film, and for a strip what somebody looked at anyway."""
    if shown.is_drawn is None or shown.is_drawn[place]:
        one.film.add({name: view[place] for name, view in shown.views.items()})
        one.unseen = 0
    else:
        one.unseen += 1


def _finish(task: EnvTask, plan: Plan, one: _Playing, *, success: bool) -> Episode:
    wall_s = time.monotonic() - one.begun
    jpeg = one.film.close()
    video = strip = None
    if plan.folder is not None:
        video = _video(task, plan, one.episode) if one.episode < plan.videos else None
        if plan.strips and jpeg:
            strip = f"{STRIPS}/{plan.run}/{task.folder}/episode_{one.episode}.jpg"
            write_bytes(plan.folder / strip, jpeg)
    timing = one.seat.timing
    latencies = timing.predictions_s
    chosen = np.unique(np.linspace(0, len(latencies) - 1, min(len(latencies), _LARGEST_LISTED)).round().astype(int))
    return Episode(
        run=plan.run,
        group=task.group,
        task_id=task.task_id,
        task=task.task,
        split=task.split,
        episode=one.episode,
        seed=plan.seed + one.episode,
        instruction=one.instruction,
        length=one.length,
        success=success,
        sum_reward=float(np.sum(one.rewards)),
        max_reward=float(np.max(one.rewards)),
        wall_s=round(wall_s, 3),
        policy_s=round(timing.total_s, 4),
        predictions=len(latencies),
        latency_ms=tuple(round(1000 * latencies[index], 2) for index in chosen),
        video=video,
        strip=strip,
    )


def _video(task: EnvTask, plan: Plan, episode: int) -> str:
    return f"{plan.video_folder}/{task.folder}/eval_episode_{episode}.mp4"
