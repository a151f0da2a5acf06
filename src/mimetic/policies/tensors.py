"""Weights on disk: `model.safetensors`, read lazily and checked before use, written reproducibly (spec/policies.md 1).

What it leaves to others: which tensors a policy wants (`checkpoint.py`), old forms (`legacy.py`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mimetic.errors import CheckpointError, CheckpointNotFound
from mimetic.processing.store import replacing

_LENGTH_BYTES = 8
_LARGEST_HEADER = 10_000_000
"""A longer header is refused [bytes]: it names some 100,000 tensors, and those of robot policies have 60 kB. The
format's own limit is ten times that, which takes minutes and gigabytes to read."""
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorInfo:
    """What the header says about one tensor.

    Args:
        dtype: the format's spelling, such as "F32" or "BF16".
        shape: shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass
class WeightsFile:
    """Names and shapes of a weights file, without its data.

    Args:
        path: the file.
        tensors: what it holds by name; names of shared tensors that were stored once are there too.
        stored_as: name -> name under which the data stand in the file.
    """

    path: Path
    tensors: dict[str, TensorInfo]
    stored_as: dict[str, str] = field(default_factory=dict)

    def renamed(self, new_name: Callable[[str], str | None]) -> WeightsFile:
        """The same file under other names; a name that becomes None is left out.

        Raises:
            CheckpointError: two tensors get the same name.
        """
        tensors: dict[str, TensorInfo] = {}
        stored: dict[str, str] = {}
        for name, info in self.tensors.items():
            new = new_name(name)
            if new is None:
                continue
            if new in tensors:
                raise CheckpointError(
                    f"`{self.path}` holds `{new}` twice, as `{stored[new]}` and as `{self.stored_as[name]}`"
                )
            tensors[new], stored[new] = info, self.stored_as[name]
        return WeightsFile(self.path, tensors, stored)

    def require_floats(self, names: Iterable[str]) -> None:
        """Refuse tensors that are no plain floating-point numbers: copying would convert them without a word.

        Raises:
            CheckpointError: a tensor holds integers, truth values, complex numbers or scaled 8-bit numbers.
        """
        wrong = [f"`{name}` is {self.tensors[name].dtype}" for name in names if self.tensors[name].dtype not in _FLOATS]
        if wrong:
            raise CheckpointError(
                f"`{self.path}` holds weights that are no floating-point numbers of 16 bits or more: "
                f"{', '.join(wrong[:5])}" + (f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
                "take the checkpoint as it was before it was converted",
            )

    def require_finite(self, name: str, tensor: Tensor) -> None:
        """Refuse a loaded tensor with NaN or infinity, with which every action would be wrong.

        Raises:
            CheckpointError: it holds one.
        """
        # One pass without a copy; `isfinite` takes 40 times as long.
        if tensor.numel() and not all(math.isfinite(value) for value in torch.aminmax(tensor.detach())):
            raise CheckpointError(
                f"`{self.path}`: `{name}` holds NaN or infinity", "use an older checkpoint of the run, or copy it again"
            )

    @contextmanager
    def reading(self) -> Iterator[Callable[[str], Tensor]]:
        """A function from a name to its tensor on the CPU; one tensor is in memory at a time.

        Raises:
            CheckpointError: the data cannot be read.
        """
        try:
            with safe_open(self.path, framework="pt", device="cpu") as file:
                yield lambda name: file.get_tensor(self.stored_as[name])
        except (SafetensorError, OSError) as error:
            raise damaged(self.path, str(error)) from error


def damaged(path: Path, why: str) -> CheckpointError:
    """The error for a weights file that cannot be used."""
    return CheckpointError(
        f"`{path}` is damaged: {why}", "copy the checkpoint again, or use an older one of the same run"
    )


def open_weights(path: Path) -> WeightsFile:
    """Read and check the header of a weights file.

    Args:
        path: a safetensors file.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: it is truncated or no safetensors file.
    """
    header, data_bytes = _read_header(path)
    metadata = header.pop("__metadata__", None) or {}
    tensors, end = {}, 0
    for name, entry in header.items():
        try:
            shape, stop = tuple(entry["shape"]), entry["data_offsets"][1]
            if not all(type(n) is int and n >= 0 for n in (*shape, stop)):
                raise ValueError("no sizes")
            tensors[name] = TensorInfo(str(entry["dtype"]), shape)
            end = max(end, stop)
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise damaged(path, f"its header is wrong at `{name}`") from error
    if data_bytes < end:
        raise damaged(path, f"it is truncated: {data_bytes:,} of {end:,} bytes of data are there")
    stored = {name: name for name in tensors}
    # Tensors that share memory are stored once; the metadata tells the other names (`removed -> kept`).
    for removed, kept in metadata.items() if isinstance(metadata, dict) else ():
        if isinstance(kept, str) and kept in tensors and removed not in tensors:
            tensors[removed], stored[removed] = tensors[kept], kept
    return WeightsFile(path, tensors, stored)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Header of a safetensors file as JSON, and the number of bytes after it."""
    try:
        size = path.stat().st_size
        if not path.is_file() and not path.is_dir():  # a pipe would be waited for
            raise damaged(path, "it is no file")
        with path.open("rb") as file:
            first = file.read(_LENGTH_BYTES)
            length = int.from_bytes(first, "little")
            if len(first) < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LARGEST_HEADER):
                raise damaged(path, f"it is truncated or no safetensors file ({size:,} bytes)")
            header = json.loads(file.read(length), object_pairs_hook=_without_duplicates)
    except FileNotFoundError as error:
        raise CheckpointNotFound(
            f"`{path}` is not there",
            "a checkpoint's `pretrained_model` folder holds the weights in `model.safetensors`",
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise damaged(path, "its header is no JSON") from error
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror}") from error
    if not isinstance(header, dict):
        raise damaged(path, "its header is no JSON object")
    return header, size - _LENGTH_BYTES - length


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def save_weights(state: Mapping[str, Tensor], path: Path) -> None:
    """Write tensors so that the same values always give the same bytes.

    Tensors that share memory are stored once, under the alphabetically first name; the others are named in the header's
    metadata, which is absent otherwise. The file appears complete or not at all.

    Args:
        state: tensors by name, on any device, in any memory layout.
        path: file to write.
    """
    kept: dict[tuple[object, ...], str] = {}
    metadata: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for name in sorted(state):
        tensor = state[name].detach()
        identity = (
            tensor.device,
            tensor.untyped_storage().data_ptr(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
        )
        if tensor.numel() and identity in kept:
            metadata[name] = kept[identity]
            continue
        kept[identity] = name
        tensors[name] = tensor.to("cpu").contiguous()
    # What still shares memory overlaps only in part: the format needs copies of such views.
    seen: set[int] = set()
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        if pointer in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        seen.add(pointer)
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata=metadata or None)


class SkipInitialisation(TorchFunctionMode):
    """While active, in-place random fills do nothing: for modules whose tensors are all about to be loaded.

    Saves the time of initialising and leaves the random generators as they were.
    """

    _FILLS = frozenset(
        {
            *(getattr(torch.Tensor, name) for name in ("uniform_", "normal_", "bernoulli_", "exponential_")),
            # torch hands these over by themselves; what they call inside would no longer be seen here.
            *(getattr(torch.nn.init, name) for name in ("uniform_", "normal_", "trunc_normal_", "orthogonal_")),
            *(
                getattr(torch.nn.init, f"{kind}_{law}_")
                for kind in ("xavier", "kaiming")
                for law in ("uniform", "normal")
            ),
        }
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Skip random fills, pass on everything else."""
        if func in self._FILLS:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))
