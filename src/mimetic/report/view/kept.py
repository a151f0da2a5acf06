"""A few values that were used last, shared by threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
Key = TypeVar("Key")


class Kept(dict[Key, Value]):
    """The values used last, a few of them; making one does not stop threads that want another."""

    def __init__(self, most: int, on_drop: Callable[[Value], None] = lambda _: None) -> None:
        super().__init__()
        self._most, self._on_drop = most, on_drop
        self._order: OrderedDict[Key, None] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:  # type: ignore[override]
        """The value of a key, made when it is not there."""
        with self._lock:
            if key in self:
                self._order.move_to_end(key)
                return self[key]
        value = make()
        dropped: list[Value] = []
        with self._lock:
            if key in self:
                dropped.append(value)
                value = self[key]
            else:
                self[key] = value
            self._order[key] = None
            self._order.move_to_end(key)
            while len(self) > self._most:
                oldest = next(iter(self._order))
                del self._order[oldest]
                dropped.append(self.pop(oldest))
        for one in dropped:
            self._on_drop(one)
        return value

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            values = list(self.values())
            super().clear()
            self._order.clear()
        for value in values:
            self._on_drop(value)
