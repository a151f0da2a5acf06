"""Values that come from the device later, so that a step need not wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Note = TypeVar("Note")
_MOST_PENDING = 64


class Deferred(Generic[Note]):
    """Hands small tensors to a function when they have arrived on the host: at once on a CPU, later elsewhere.

    Args:
        device: where the tensors are.
        settle: called in order with each tensor on the host and the note that came with it.
    """

    def __init__(self, device: torch.device, settle: Callable[[Tensor, Note], None]) -> None:
        self._on_cpu = device.type == "cpu"
        self._has_events = device.type == "cuda"
        self._settle_one = settle
        self._pending: deque[tuple[Tensor, Any, Note]] = deque()

    def put(self, value: Tensor, note: Note) -> None:
        """Take one tensor, and settle those that have arrived."""
        if self._on_cpu:
            self._settle_one(value, note)
            return
        event = None
        if self._has_events:
            stream = torch.cuda.current_stream(value.device)  # the current device may be another one
            value = value.to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
        self._pending.append((value, event, note))
        while self._pending and self._has_arrived():
            self._settle()
        if len(self._pending) > _MOST_PENDING:
            if self._has_events:
                self._settle()
            else:  # reading one of them waits for all, so all are read, and the next time is far
                self.wait()

    def wait(self) -> None:
        """Settle everything; call this where the loop waits anyway (log, checkpoint)."""
        while self._pending:
            self._settle()

    def _has_arrived(self) -> bool:
        event = self._pending[0][1]
        return event is not None and bool(event.query())

    def _settle(self) -> None:
        value, event, note = self._pending.popleft()
        if event is not None:
            event.synchronize()
        self._settle_one(value.cpu(), note)
