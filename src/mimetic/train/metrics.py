"""Numbers of a run: kept on the device between log lines, read once a window (spec/training.md 12).

Keys, order and formats of the log line are LeRobot's, except that the step is printed in full and `prep_s`, `step_s`,
the process's memory and a hint on what limits the run follow.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


def drop_torn_line(path: Path) -> None:
    """Cut a last line that a power cut or a full disk left unfinished, so that the next record gets its own line.

    Args:
        path: a file of JSON lines; it need not exist.

    Raises:
        OSError: the file cannot be read or written.
    """
    if not path.is_file():
        return
    content = path.read_bytes()
    whole, newline, tail = content.rpartition(b"\n")
    if not tail:
        return
    try:
        json.loads(tail)
    except ValueError:
        logger.info("%s ended in an unfinished line, which is cut off", path)
        with path.open("rb+") as file:
            file.truncate(len(whole) + len(newline))
    else:
        with path.open("ab") as file:
            file.write(b"\n")


def big_number(value: float, digits: int = 0) -> str:
    """Shorten a count by powers of 1000: 8523 -> 9K."""
    for suffix in ("", "K", "M", "B", "T", "Q"):
        if abs(value) < 1000:
            return f"{value:.{digits}f}{suffix}"
        value /= 1000
    return f"{value * 1000:.{digits}f}Q"


class Window:
    """Values since the last log line.

    Scalars stay tensors on their device; `means` reads them all at once.

    Args:
        finite_only: leave values that are not finite out of the means; in float16 they belong to updates that were
            left out.
    """

    def __init__(self, *, finite_only: bool = False) -> None:
        self._finite_only = finite_only
        self._tensors: dict[str, list[Tensor]] = {}
        self._floats: dict[str, list[float]] = {}

    def add(self, name: str, value: Tensor | float) -> None:
        """Remember one scalar; a tensor is detached and not read."""
        if isinstance(value, Tensor):
            self._tensors.setdefault(name, []).append(value.detach())
        else:
            self._floats.setdefault(name, []).append(float(value))

    def means(self) -> dict[str, float]:
        """Mean of each name in float64; one transfer from the device for all of them."""
        result = {name: sum(values) / len(values) for name, values in self._floats.items()}
        if self._tensors:
            names = [name for name, values in self._tensors.items() for _ in values]
            flat = torch.stack([v.float().reshape(()) for values in self._tensors.values() for v in values])
            numbers = flat.double().cpu().tolist()
            sums: dict[str, float] = dict.fromkeys(self._tensors, 0.0)
            counts: dict[str, int] = dict.fromkeys(self._tensors, 0)
            for name, number in zip(names, numbers, strict=True):
                if not self._finite_only or math.isfinite(number):
                    sums[name] += number
                    counts[name] += 1
            result |= {name: sums[name] / counts[name] if counts[name] else math.nan for name in self._tensors}
        return result

    def clear(self) -> None:
        """Start a new window."""
        self._tensors.clear()
        self._floats.clear()


class Counters:
    """Samples, episodes and epochs that a run has seen.

    Args:
        batch_size: samples a step.
        num_frames: frames that the sampler draws from.
        num_episodes: episodes that they belong to.
        step: steps done before.
        samples: samples seen before; None computes them from the step.
    """

    def __init__(
        self, *, batch_size: int, num_frames: int, num_episodes: int, step: int = 0, samples: int | None = None
    ) -> None:
        self.batch_size = batch_size
        self.num_frames = num_frames
        self.num_episodes = num_episodes
        self.step = step
        self.samples = step * batch_size if samples is None else samples

    def advance(self) -> None:
        """Count one step; a partial batch counts as a full one, as in LeRobot."""
        self.step += 1
        self.samples += self.batch_size

    @property
    def epochs(self) -> float:
        """Passes over the frames."""
        return self.samples / self.num_frames

    @property
    def episodes(self) -> float:
        """Samples in units of the mean episode length."""
        return self.samples / (self.num_frames / self.num_episodes)


_STANDARD = (
    "loss",
    "grad_norm",
    "lr",
    "update_s",
    "dataloading_s",
    "preprocessing_s",
    "step_s",
    "gpu_mem_gb",
    "ram_gb",
    "scale",
    "skip",
)


def peak_memory_gb() -> float | None:
    """Most memory that this process ever held [GiB]; None where the system does not tell (Windows)."""
    try:  # the other source counts the parent's memory too, on Linux
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.split("VmHWM:")[1].split()[0]) / 2**20
    except (OSError, IndexError, ValueError):
        pass
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**30 if sys.platform == "darwin" else 2**20)


def summarise(counters: Counters, means: Mapping[str, float]) -> dict[str, float]:
    """The record of one window for `metrics.jsonl`, with LeRobot's long names; seconds are means a step."""
    busy = means.get("update_s", 0.0) + means.get("dataloading_s", 0.0) + means.get("preprocessing_s", 0.0)
    record: dict[str, float] = {
        "steps": counters.step,
        "samples": counters.samples,
        "episodes": counters.episodes,
        "epochs": counters.epochs,
    }
    record |= {name: means[name] for name in _STANDARD if name in means}
    record["samples_per_s"] = counters.batch_size / busy if busy > 0 else math.nan
    record |= {name: value for name, value in means.items() if name not in _STANDARD}
    return record


def log_line(record: Mapping[str, float]) -> str:
    """The log line of a window."""
    data_s = record["dataloading_s"] + record["preprocessing_s"]
    parts = [
        f"step:{int(record['steps'])}",
        f"smpl:{big_number(record['samples'])}",
        f"ep:{big_number(record['episodes'])}",
        f"epch:{record['epochs']:.2f}",
        f"loss:{record['loss']:.3f}",
        f"grdn:{record.get('grad_norm', 0.0):.3f}",
        f"lr:{record['lr']:0.1e}",
        f"updt_s:{record['update_s']:.3f}",
        f"data_s:{data_s:.3f}",
        f"smp/s:{record['samples_per_s']:.0f}",
    ]
    if "gpu_mem_gb" in record:
        parts.append(f"mem_gb:{record['gpu_mem_gb']:.2f}")
    known = {"steps", "samples", "episodes", "epochs", "samples_per_s", *_STANDARD}
    parts += [f"{name}:{value:.3f}" for name, value in record.items() if name not in known]
    parts += [f"prep_s:{record['preprocessing_s']:.3f}", f"step_s:{record['step_s']:.3f}"]
    if "scale" in record:
        parts += [f"scale:{record['scale']:.0f}", f"skip:{record['skip']:.0f}"]
    if "ram_gb" in record:
        parts.append(f"ram_gb:{record['ram_gb']:.2f}")
    # Waiting for data (not preprocessing, which runs on the device) is what loader threads or a cache would cure.
    if record["step_s"] > 0 and record["dataloading_s"] > record["step_s"] / 3:
        parts.append("lim:data")
    return " ".join(parts)
