"""A policy that plays several episodes at once, each as if it were the only one.

Every episode has its own action queue and its own random numbers, and the policy sees one observation at a time, as on
a robot. So an episode is the same, to the last bit, whatever runs beside it: a batched forward pass would round
differently with every batch size.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mimetic.accelerators.precision import Precision
from mimetic.errors import CheckpointError, MimeticError, ShapeError
from mimetic.names import TASK
from mimetic.policies.base import Policy
from mimetic.processing.pipeline import Pipeline

Alter = Callable[[dict[str, Any]], None]
_ACCELERATORS: Mapping[str, Any] = {"cuda": torch.cuda, "mps": torch.mps, "xpu": torch.xpu}


@dataclass
class Timing:
    """How long the policy took in an episode.

    Args:
        predictions_s: each call that predicted [s].
        actions: calls in all; the others took an action from the queue.
        total_s: of all calls [s].
    """

    predictions_s: list[float] = field(default_factory=list)
    actions: int = 0
    total_s: float = 0.0


class Player:
    """A policy with its pipelines, ready to sit down at several episodes.

    Args:
        policy: in any mode; it plays in evaluation mode.
        preprocessor: raw batch -> batch on the device.
        postprocessor: normalised action -> action in the units of the environment.
        alter: changes a raw batch in place before the policy sees it.
        precision: that it predicts in; None: that of its weights.
    """

    def __init__(
        self,
        policy: Policy,
        preprocessor: Pipeline,
        postprocessor: Pipeline,
        *,
        alter: Alter | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.policy = policy
        self.preprocessor = preprocessor
        self.postprocessor = postprocessor
        self.alter = alter
        self.precision = precision
        self._is_warm = False

    def warm_up(self, observation: Mapping[str, NDArray[Any]], instruction: str) -> None:
        """Predict once and forget it: the first call of a network is slow, and a policy that fails shall do so here."""
        if not self._is_warm:
            self.sit_down(0).act(observation, instruction)
            self._is_warm = True

    def sit_down(self, seed: int) -> Seat:
        """Begin an episode; `seed` is that of its random numbers."""
        return Seat(self, seed)


class Seat:
    """The policy in one episode."""

    def __init__(self, player: Player, seed: int) -> None:
        self._player = player
        self._policy = _own_queue(player.policy)
        self._policy.eval()
        self._policy.reset()
        self._random = _Random(player.policy.device, seed)
        self.timing = Timing()

    def needs_observation(self) -> bool:
        """Whether the next `act` reads its observation."""
        return self._policy.needs_observation()

    def act(self, observation: Mapping[str, NDArray[Any]] | None, instruction: str) -> NDArray[np.float64]:
        """The next action (A,), in the units of the environment.

        Args:
            observation: of this episode alone: cameras (H, W, C) uint8, vectors (D,); may be None where
                `needs_observation` says so.
            instruction: the task in words.

        Raises:
            CheckpointError: the action is not finite.
            ShapeError: it is not one vector.
            MimeticError: the policy reads an observation that it said it does not need.
        """
        started = time.perf_counter()
        batch = _Batch(lambda: self._prepare(observation, instruction))
        precision = self._player.precision
        predicts = self._policy.predicts_next()
        with torch.no_grad(), self._random:
            with precision.autocast() if precision is not None else nullcontext():
                action = self._policy.select_action(batch)
            action = self._player.postprocessor.run_action(action)
        if action.dim() != 2 or action.shape[0] != 1:
            raise ShapeError(f"the policy gave an action of shape {tuple(action.shape)} where (1, numbers) is needed")
        result: NDArray[np.float64] = action[0].to("cpu", torch.float64).numpy()
        seconds = time.perf_counter() - started
        self.timing.actions += 1
        self.timing.total_s += seconds
        if predicts and batch.was_read:
            self.timing.predictions_s.append(seconds)
        if not np.isfinite(result).all():
            raise CheckpointError(
                "the policy gives an action that is not finite",
                "its weights or statistics are damaged; try an earlier checkpoint",
            )
        return result

    def _prepare(self, observation: Mapping[str, NDArray[Any]] | None, instruction: str) -> dict[str, Any]:
        if observation is None:
            raise MimeticError(
                f"policy `{self._policy.config.type_name}` reads an observation that it said it does not need",
                "this is a bug of the policy: its `needs_observation` must be true before every such `select_action`",
            )
        raw: dict[str, Any] = {name: _tensor(value) for name, value in observation.items()}
        raw[TASK] = [instruction]
        if self._player.alter is not None:
            self._player.alter(raw)
        return self._player.preprocessor(raw)


class _Batch(Mapping[str, Any]):
    """A preprocessed batch that is made when the policy first looks at it: most calls only empty a queue."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self._made: dict[str, Any] | None = None

    @property
    def was_read(self) -> bool:
        return self._made is not None

    def _values(self) -> dict[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._values()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values())

    def __len__(self) -> int:
        return len(self._values())


class _Random:
    """Random numbers of one episode, on the CPU and on the policy's device; the caller's stay as they were."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._place = _ACCELERATORS.get(device.type)
        self._own = [torch.Generator(place).manual_seed(seed).get_state() for place in self._kinds()]
        self._others: list[Tensor] = []

    def _kinds(self) -> list[torch.device]:
        return [torch.device("cpu"), *([self._device] if self._place is not None else [])]

    def __enter__(self) -> None:
        self._others = self._swap(self._own)

    def __exit__(self, *_: object) -> None:
        self._own = self._swap(self._others)

    def _swap(self, states: list[Tensor]) -> list[Tensor]:
        found = [torch.get_rng_state()]
        torch.set_rng_state(states[0])
        if self._place is not None:
            options = {} if self._device.type == "mps" else {"device": self._device}
            found.append(self._place.get_rng_state(**options))
            self._place.set_rng_state(states[1], **options)
        return found


def _own_queue(policy: Policy) -> Policy:
    """The same networks and weights with a state of an episode (queue, averages) of its own."""
    shared = [*policy.children(), *policy.parameters(recurse=False), *policy.buffers(recurse=False), policy.config]
    return copy.deepcopy(policy, {id(thing): thing for thing in shared})


def _tensor(value: NDArray[Any]) -> Tensor:
    """One observation as a batch of one: cameras (1, C, H, W), vectors (1, D)."""
    channels_first = np.moveaxis(value, -1, 0) if value.ndim == 3 else value
    return torch.from_numpy(np.array(channels_first))[None]


@contextmanager
def evaluating(policy: Policy) -> Iterator[None]:
    """Put a policy into evaluation mode, and every part of it back into the mode that it was in."""
    modes = [(module, module.training) for module in policy.modules()]
    policy.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
