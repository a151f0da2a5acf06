"""Shared by the tests of the configuration system."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimetic.config.parse import Parsed, parse
from mimetic.train.config import TrainConfig

FIXTURES = Path(__file__).parents[2] / "fixtures"
NEEDED = ["--dataset.repo_id=me/x", "--policy.type=act"]


@pytest.fixture
def fixtures() -> Path:
    """The folder of recorded files."""
    return FIXTURES


@pytest.fixture
def train() -> Callable[..., Parsed]:
    """Parse flags of `mimetic train` without the settings' own checks."""

    def run(*argv: str, **options: Any) -> Parsed:
        options.setdefault("is_checked", False)
        return parse(TrainConfig, list(argv), prog="mimetic train", **options)

    return run


@pytest.fixture
def trained(train: Callable[..., Parsed]) -> Callable[..., Parsed]:
    """The same with the two flags that a training needs in front."""

    def run(*argv: str, **options: Any) -> Parsed:
        return train(*NEEDED, *argv, **options)

    return run
