"""Several environments of a package at once, in this process or spread over others.

Each keeps its own simulation, and an episode ends for good: nothing is reset before its place is given the next seed,
so no reward or success of a following episode can be counted (LeRobot's evaluation counts one step more,
spec/training.md 23).
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mimetic.errors import MimeticError, ShapeError, SimulationError, WorkerError
from mimetic.evaluate.rollout.environment import Shown
from mimetic.evaluate.rollout.gym_world import Sight

_READY_S = 300
"""Patience with a process that starts: packages import for long, and compile on first use."""
_GRAPHICS_HINT = "if it is the drawing that fails, name another graphics library: `MUJOCO_GL=egl` or `MUJOCO_GL=osmesa`"


class World(Protocol):
    """One environment."""

    instruction: str

    def begin(self, seed: int) -> Sight:
        """Begin the episode of a seed."""

    def step(self, action: NDArray[np.float64]) -> Sight:
        """Send an action (A,)."""

    def close(self) -> None:
        """Give back what it holds."""


class Worlds:
    """n places, each with a world of its own (a `Places`).

    Args:
        make: makes a world; a function that other processes can import where `processes` is not 0.
        places: how many.
        processes: how many other processes share them; 0 runs all in this one.
        episode_length: ticks after which an episode is cut off.
        action_size: numbers of an action.
        description: see `Places`.

    Raises:
        MissingExtra: the package is not installed.
        SimulationError: the package fails.
        WorkerError: a process could not start.
    """

    def __init__(
        self,
        make: Callable[[], World],
        places: int,
        *,
        processes: int = 0,
        episode_length: int,
        action_size: int,
        description: Mapping[str, Any],
    ) -> None:
        self._count, self._length, self._action_size = places, episode_length, action_size
        self._description = dict(description)
        self._sights: dict[int, Sight] = {}
        self._instructions = [""] * places
        self._rewards = np.zeros(places, dtype=np.float64)
        self._ticks = np.zeros(places, dtype=np.int64)
        self._won = np.zeros(places, dtype=bool)
        self._over = np.ones(places, dtype=bool)
        self._crews: list[_Crew | _Worker] = []
        shares = [share.tolist() for share in np.array_split(np.arange(places), min(processes or 1, places))]
        try:
            if processes:
                workers = [_Worker(make, share) for share in shares]
                self._crews = list(workers)
                for worker in workers:
                    worker.answer(_READY_S)
            else:
                self._crews = [_Crew(make, shares[0])]
        except BaseException:
            self.close()
            raise
        self._crew_of = {place: crew for crew, share in zip(self._crews, shares, strict=True) for place in share}

    def begin(self, place: int, seed: int) -> Shown:
        """Begin the episode of a seed in one place; the others stay as they are."""
        crew = self._crew_of[place]
        crew.ask("begin", {place: seed})
        for number, (sight, instruction) in crew.answer().items():
            self._sights[number], self._instructions[number] = sight, instruction
        self._ticks[place], self._rewards[place] = 0, 0.0
        self._won[place] = self._over[place] = False
        return self._shown()

    def step(self, actions: NDArray[np.float64], looks: NDArray[np.bool_] | None = None) -> Shown:
        """Send each place its action (n, A); places whose episode has ended stand still.

        Packages draw as a part of their step, so `looks` changes nothing: every place shows its present.
        """
        if actions.shape != (self._count, self._action_size):
            raise ShapeError(
                f"actions of {self._count} places have shape ({self._count}, {self._action_size}); got {actions.shape}"
            )
        going = [place for place in range(self._count) if not self._over[place]]
        asked = []
        for crew in self._crews:
            share = {place: actions[place] for place in going if self._crew_of[place] is crew}
            if share:
                crew.ask("step", share)
                asked.append(crew)
        for crew in asked:
            for place, (sight, _) in crew.answer().items():
                self._sights[place] = sight
        self._rewards[:] = 0.0
        for place in going:
            sight = self._sights[place]
            self._rewards[place] = sight.reward
            self._ticks[place] += 1
            self._won[place] |= sight.is_success
            self._over[place] = sight.has_ended or self._ticks[place] >= self._length
        return self._shown()

    def description(self) -> Mapping[str, Any]:
        """See `Places`."""
        return self._description

    def close(self) -> None:
        """End the processes and the worlds."""
        for crew in self._crews:
            crew.close()
        self._crews = []

    def _shown(self) -> Shown:
        """What all places show; one before its first episode shows zeros."""
        some = next(iter(self._sights.values()))
        return Shown(
            observation={name: self._stacked(value, "observation", name) for name, value in some.observation.items()},
            instructions=tuple(self._instructions),
            rewards=self._rewards.copy(),
            is_success=self._won.copy(),
            is_over=self._over.copy(),
            views={name: self._stacked(value, "views", name) for name, value in some.views.items()},
        )

    def _stacked(self, like: NDArray[Any], kind: str, name: str) -> NDArray[Any]:
        whole = np.zeros((self._count, *like.shape), dtype=like.dtype)
        for place, sight in self._sights.items():
            whole[place] = getattr(sight, kind)[name]
        return whole


Answer = dict[int, tuple[Sight, str]]


class _Crew:
    """Worlds in this process, by place."""

    def __init__(self, make: Callable[[], World], share: list[int]) -> None:
        self._worlds: dict[int, World] = {}
        self._answer: Answer = {}
        try:
            for place in share:
                self._worlds[place] = _guarded("being built", make)
        except BaseException:
            self.close()
            raise

    def ask(self, verb: str, what: Mapping[int, Any]) -> None:
        """Carry out a command on some places: "begin" with seeds, "step" with actions."""
        self._answer = {}
        for place, value in what.items():
            world = self._worlds[place]
            if verb == "begin":
                sight = _guarded(f"beginning the episode of seed {value}", partial(world.begin, int(value)))
            else:
                sight = _guarded("taking a step", partial(world.step, value))
            self._answer[place] = (sight, world.instruction)

    def answer(self) -> Answer:
        """What the places show after the last command."""
        return self._answer

    def close(self) -> None:
        """End the worlds."""
        for world in self._worlds.values():
            world.close()
        self._worlds = {}


class _Worker:
    """A process with a crew of its own. What is sent through its pipe comes from this program alone."""

    def __init__(self, make: Callable[[], World], share: list[int]) -> None:
        context = multiprocessing.get_context("spawn")  # a forked process shares the graphics library's state
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(make, share, other), daemon=True)
        self._process.start()
        self._has_answered = False
        other.close()

    def ask(self, verb: str, what: Mapping[int, Any]) -> None:
        """Send a command; the answer comes later."""
        try:
            self._pipe.send((verb, dict(what)))
        except OSError as error:
            raise WorkerError("a process of the environment has ended from outside") from error

    def answer(self, timeout_s: float | None = None) -> Answer:
        """Wait for the answer to the last command."""
        try:
            if timeout_s is not None and not self._pipe.poll(timeout_s):
                raise WorkerError(f"a process of the environment was not ready within {timeout_s:g} s")
            found = self._pipe.recv()
            self._has_answered = True
        except (EOFError, OSError) as error:
            raise WorkerError(
                "a process of the environment has ended from outside",
                'this is how a lack of memory looks; a script also needs `if __name__ == "__main__":` around its work',
            ) from error
        if isinstance(found, MimeticError):
            raise found
        answer: Answer = found
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10 if self._has_answered else 0)  # one that is still starting does not listen
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _work(make: Callable[[], World], share: list[int], pipe: Connection) -> None:
    """What a worker process does until its pipe is closed."""
    crew = None
    try:
        crew = _Crew(make, share)
        pipe.send({})
        while True:
            verb, what = pipe.recv()
            crew.ask(verb, what)
            pipe.send(crew.answer())
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass
    except MimeticError as error:
        pipe.send(error)
    finally:
        if crew is not None:
            crew.close()


def _guarded(doing: str, do: Callable[[], Any]) -> Any:
    """The result of a call into a package, whose errors of any kind become one that says where it failed."""
    try:
        return do()
    except SimulationError as error:
        raise SimulationError(f"the environment failed while {doing}: {error.message}", error.hint) from error
    except MimeticError:
        raise
    except Exception as error:
        words = " ".join(str(error).split())
        raise SimulationError(
            f"the environment failed while {doing}: {type(error).__name__}: {words}", _GRAPHICS_HINT
        ) from error
