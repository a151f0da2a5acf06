"""mimetic: robot policies from demonstrations, on the computer you own.

The public names below load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "MimeticError": "mimetic.errors:MimeticError",
    "open_dataset": "mimetic.data.reader:open_dataset",
    "open_stream": "mimetic.data.stream:open_stream",
    "DatasetWriter": "mimetic.data.writer:DatasetWriter",
    "check_dataset": "mimetic.data.check.run:check_dataset",
    "load_policy": "mimetic.policies.checkpoint:load_pretrained",
    "make_policy": "mimetic.policies.build:make_policy",
    "train_policy": "mimetic.train.run:train",
    "TrainConfig": "mimetic.train.config:TrainConfig",
    "evaluate_open_loop": "mimetic.evaluate.open_loop:evaluate_open_loop",
}

__all__ = [  # a test compares it with _PUBLIC and with docs/reference/python.md
    "DatasetWriter",
    "MimeticError",
    "TrainConfig",
    "__version__",
    "check_dataset",
    "evaluate_open_loop",
    "load_policy",
    "make_policy",
    "open_dataset",
    "open_stream",
    "train_policy",
]

if TYPE_CHECKING:
    from mimetic.data.check.run import check_dataset
    from mimetic.data.reader import open_dataset
    from mimetic.data.stream import open_stream
    from mimetic.data.writer import DatasetWriter
    from mimetic.errors import MimeticError
    from mimetic.evaluate.open_loop import evaluate_open_loop
    from mimetic.policies.build import make_policy
    from mimetic.policies.checkpoint import load_pretrained as load_policy
    from mimetic.train.config import TrainConfig
    from mimetic.train.run import train as train_policy


def __getattr__(name: str) -> Any:
    target = _PUBLIC.get(name)
    if target is None:
        raise AttributeError(f"module 'mimetic' has no attribute {name!r}")
    from mimetic.catalog import load_object

    value = load_object(target)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
