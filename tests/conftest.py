"""What every test runs under: no network, one thread, no cache of the person who runs it.

The variables are set while pytest starts, before any test imports torch, and are inherited by subprocesses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# One thread: golden values are those of one thread, and pytest-xdist already uses every core.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["NO_COLOR"] = "1"
os.environ.pop("HF_TOKEN", None)

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Property tests: no deadline on a busy machine, and in CI the same examples every time."""
    try:
        from hypothesis import settings
    except ImportError:  # the light `pip install mimetic` has no hypothesis; its tests then fail by name
        return
    settings.register_profile("mimetic", deadline=None, derandomize="CI" in os.environ)
    settings.load_profile("mimetic")


@pytest.fixture(scope="session", autouse=True)
def empty_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point every cache of mimetic, of the hub and of LeRobot datasets at an empty folder."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HOME", "HF_LEROBOT_HOME", "HF_HUB_CACHE", "TORCH_HOME", "MIMETIC_CACHE"):
            patch.setenv(name, str(folder / name.lower()))
        yield


@pytest.fixture(autouse=True)
def untouched_log() -> Iterator[None]:
    """Give each test the logger of a fresh process: what is said once is said again, and `caplog` sees it."""
    from mimetic import log

    said, handlers = set(log._said), list(log.LOGGER.handlers)
    level, propagate = log.LOGGER.level, log.LOGGER.propagate
    log._said.clear()
    log.LOGGER.handlers[:] = []
    log.LOGGER.propagate = True
    yield
    log._said.clear()
    log._said.update(said)
    log.LOGGER.handlers[:] = handlers
    log.LOGGER.setLevel(level)
    log.LOGGER.propagate = propagate


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Undo what an earlier test may have set; costs nothing where torch is not loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the working copy."""
    return REPOSITORY


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """`tests/fixtures`."""
    return REPOSITORY / "tests" / "fixtures"
