"""The state of the global random generators in LeRobot's file layout (spec/training.md 15.4)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mimetic.errors import CheckpointError
from mimetic.train.state import read_tensors


def seed_everything(seed: int | None) -> None:
    """Seed Python, numpy and torch (all devices); None leaves them alone."""
    if seed is None:
        return
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - LeRobot's file holds the legacy generator
    torch.manual_seed(seed)


def rng_tensors() -> dict[str, Tensor]:
    """The generators' states as named tensors (names and dtypes are a file format)."""
    version, words, _gauss = random.getstate()
    kind, values, index, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    if kind != "MT19937":  # pragma: no cover - numpy has only this legacy generator
        raise CheckpointError(f"numpy's global generator is `{kind}`, which the checkpoint format cannot hold")
    tensors = {
        "py_rng_version": torch.tensor([version], dtype=torch.int64),
        "py_rng_state": torch.tensor(words, dtype=torch.int64),
        "np_rng_state_values": torch.tensor(np.asarray(values).astype(np.int64)),
        "np_rng_state_index": torch.tensor([int(index)], dtype=torch.int64),
        "np_rng_has_gauss": torch.tensor([int(has_gauss)], dtype=torch.int64),
        "np_rng_cached_gaussian": torch.tensor([float(gauss)], dtype=torch.float32),
        "torch_rng_state": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        tensors["torch_cuda_rng_state"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        tensors["torch_mps_rng_state"] = torch.mps.get_rng_state()
    return tensors


def save_rng(path: Path) -> None:
    """Write the generators' states."""
    save_file(rng_tensors(), str(path))


def load_rng(path: Path) -> None:
    """Put the global generators into a stored state.

    Raises:
        CheckpointError: the file is missing or truncated, or does not hold such states.
    """
    tensors = read_tensors(path)
    try:
        words = tuple(int(word) for word in tensors["py_rng_state"].tolist())
        random.setstate((int(tensors["py_rng_version"]), words, None))
        np.random.set_state(  # noqa: NPY002
            (
                "MT19937",
                tensors["np_rng_state_values"].numpy().astype(np.uint32),
                int(tensors["np_rng_state_index"]),
                int(tensors["np_rng_has_gauss"]),
                float(tensors["np_rng_cached_gaussian"]),
            )
        )
        torch.set_rng_state(tensors["torch_rng_state"])
    except KeyError as error:
        raise CheckpointError(f"{path} has no {error}: it does not hold the state of the random generators") from error
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold the state of the random generators ({error})") from error
    if "torch_cuda_rng_state" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["torch_cuda_rng_state"])
    if "torch_mps_rng_state" in tensors and torch.backends.mps.is_available():
        torch.mps.set_rng_state(tensors["torch_mps_rng_state"])
