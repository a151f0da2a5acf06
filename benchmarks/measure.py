"""What every benchmark needs: the two interpreters, costs of a process tree, interleaved rounds, tables.

A figure is the minimum over the rounds, because noise of a shared machine only adds; the median stands beside it.
Ratios are taken between minima of rounds that were interleaved (ours, peer, ours, peer, ...).
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
"""Folder of the repository."""
WORK = Path(os.environ.get("MIMETIC_BENCH_DIR", ROOT / "outputs" / "benchmarks"))
"""Generated datasets and runs; safe to delete."""
PROBES = Path(__file__).resolve().parent / "probes"
PEER_VARIABLE = "MIMETIC_PEER_PYTHON"
PEER_MISSING = (
    f"error: {PEER_VARIABLE} is not set to a Python that has LeRobot 0.6.1\n"
    "hint: python3.12 -m venv peer && peer/bin/pip install 'lerobot[training]==0.6.1' && "
    f"export {PEER_VARIABLE}=$PWD/peer/bin/python   (see docs/benchmarks.md)"
)
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def peer_python() -> str:
    """Interpreter of the peer, or exit 1 with the way to get one."""
    python = os.environ.get(PEER_VARIABLE, "")
    if not python or not os.access(python, os.X_OK):
        print(PEER_MISSING, file=sys.stderr)
        raise SystemExit(1)
    return python


def peer_command(name: str) -> str:
    """Path of a LeRobot command such as `lerobot-train`, beside the peer's interpreter."""
    return str(Path(peer_python()).parent / name)


def ours_command() -> list[str]:
    """The installed `mimetic` command beside this interpreter, or `python -m mimetic` without one."""
    installed = Path(sys.executable).parent / "mimetic"
    return [str(installed)] if installed.exists() else [sys.executable, "-m", "mimetic"]


def environment(*, one_thread: bool, peer: bool) -> dict[str, str]:
    """Environment of a measured process: offline, colourless, and either one computing thread or the defaults."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "MKL_", "OPENBLAS_", "PYTHON"))}
    env |= {"HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    if one_thread:
        env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    if peer:
        env["HF_HOME"] = str(WORK / "peer_home")
    return env


@dataclass(frozen=True)
class Cost:
    """Cost of one finished process and everything it started."""

    cpu_s: float
    wall_s: float
    peak_rss_mb: float
    peak_pss_mb: float
    code: int
    output: str


class TreeSampler:
    """Samples memory and processor time of a process and its descendants until stopped.

    RSS sums count a page once a process that maps it; PSS divides shared pages among the processes (0 when not asked).
    """

    def __init__(self, pid: int, *, period_s: float = 0.02, pss: bool = False) -> None:
        self.peak_rss_mb = 0.0
        self.peak_pss_mb = 0.0
        self._cpu: dict[int, float] = {}
        self._pid, self._period, self._pss = pid, period_s, pss
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def cpu_s(self) -> float:
        """Processor seconds of every process seen, each as last seen."""
        return sum(self._cpu.values())

    def stop(self) -> None:
        """End sampling."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            rss = pss = 0.0
            for pid in tree(self._pid):
                rss += rss_mb(pid)
                pss += pss_mb(pid) if self._pss else 0.0
                self._cpu[pid] = max(self._cpu.get(pid, 0.0), cpu_s(pid))
            self.peak_rss_mb = max(self.peak_rss_mb, rss)
            self.peak_pss_mb = max(self.peak_pss_mb, pss)
            self._stop.wait(self._period)


def tree(pid: int) -> list[int]:
    """The process and its living descendants."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                todo += [int(child) for child in children.read_text().split()]
            except OSError:
                continue
    return found


def rss_mb(pid: int) -> float:
    """Resident memory of a process [MiB]; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20
    except (OSError, IndexError):
        return 0.0


def pss_mb(pid: int) -> float:
    """Proportional memory of a process [MiB]; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, without its children; 0 when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def run(
    command: Sequence[str], env: Mapping[str, str], *, cwd: Path = ROOT, pss: bool = False, expect: int | None = 0
) -> Cost:
    """Run a command to its end and return what it and its descendants cost.

    Raises:
        SystemExit: the command ended with another code than `expect`; its output is shown.
    """
    with tempfile.TemporaryFile() as sink:
        start = time.perf_counter()
        process = subprocess.Popen(
            list(command), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        # Reading PSS walks every page table, so it is sampled more rarely.
        sampler = TreeSampler(process.pid, pss=pss, period_s=0.2 if pss else 0.005)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        sampler.stop()
        sink.seek(0)
        output = sink.read().decode(errors="replace")
    if expect is not None and process.returncode != expect:
        print(output[-4000:], file=sys.stderr)
        raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}")
    waited = usage.ru_utime + usage.ru_stime
    # A descendant that nobody waited for is missing from rusage, but the sampler has seen it. The peak memory of rusage
    # is of no use: it includes what this process had when it forked.
    cpu = max(waited, sampler.cpu_s)
    return Cost(cpu, wall, sampler.peak_rss_mb, sampler.peak_pss_mb, process.returncode, output)


class Probe:
    """A measured process that stays alive between rounds: it answers each request line with one JSON line."""

    def __init__(self, python: str, script: str, arguments: Sequence[str], *, one_thread: bool, peer: bool) -> None:
        self.name = f"{script} {' '.join(arguments)}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the probe
        self._process = subprocess.Popen(
            [python, str(PROBES / script), *arguments],
            env=environment(one_thread=one_thread, peer=peer),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def ask(self, timeout_s: float = 600.0, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail("has ended")
        deadline = time.monotonic() + timeout_s
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            line = self._process.stdout.readline() if ready else ""
            if not line:
                self._fail("gave no answer")
            if line.startswith("{"):
                return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _fail(self, what: str) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        print(self._errors.read().decode(errors="replace")[-4000:], file=sys.stderr)
        raise SystemExit(f"error: the probe {self.name} {what}")


def interleave(
    sides: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure every side once a round, in turn; the first side alternates so that drift hits both."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            results[name].append(dict(sides[name]()))
    return results


def least(results: Sequence[Mapping[str, float]], key: str) -> float:
    """Minimum over the rounds."""
    return min(one[key] for one in results)


def median(results: Sequence[Mapping[str, float]], key: str) -> float:
    """Median over the rounds."""
    return statistics.median(one[key] for one in results)


@dataclass(frozen=True)
class Row:
    """One line of the table; `gain` is how many times better we are, `target` the least gain asked."""

    claim: str
    ours: str
    peer: str
    gain: float
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.gain >= self.target


def compared(
    claim: str,
    ours: float,
    peer: float,
    unit: str,
    *,
    more_is_better: bool = False,
    target: float | None = None,
    digits: int = 3,
    note: str = "",
) -> Row:
    """A row from two figures of one unit."""
    gain = (ours / peer if more_is_better else peer / ours) if ours and peer else float("inf")
    return Row(claim, f"{ours:.{digits}g} {unit}", f"{peer:.{digits}g} {unit}", gain, target, note)


SIDES = ("mimetic", "LeRobot 0.6.1")


def markdown(rows: Sequence[Row], sides: tuple[str, str] = SIDES) -> str:
    """The rows as a Markdown table; `sides` are the headings of the two figures."""
    lines = [f"| what | {sides[0]} | {sides[1]} | times better | target | |", "|---|---:|---:|---:|---:|---|"]
    for row in rows:
        verdict = {None: "", True: "met", False: "**missed**"}[row.met]
        target = "" if row.target is None else f"{row.target:g}"
        note = "; ".join(part for part in (verdict, row.note) if part)
        lines.append(f"| {row.claim} | {row.ours} | {row.peer} | {row.gain:.4g} | {target} | {note} |")
    return "\n".join(lines)


def report(rows: Sequence[Row], raw: Mapping[str, Any], name: str, sides: tuple[str, str] = SIDES) -> None:
    """Print the table and keep every round's figures as `<name>.json` beside the generated data."""
    print(markdown(rows, sides))
    WORK.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"rows": [asdict(row) for row in rows], "raw": raw}, indent=2, default=str)
    (WORK / f"{name}.json").write_text(text)
