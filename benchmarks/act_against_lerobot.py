"""Claim: on the same data, steps and flags our ACT learns `pick_place` no worse than LeRobot's, in half of its time.

Both sides train on the same demonstrations of the simulated cell with the same flags, seed and float32, one after the
other (`mimetic train`, `lerobot-train`). Both checkpoints then play the same episodes (`mimetic eval --compare`):
success with Wilson's interval, and McNemar's exact test on the pairs. Times are those of a whole training, from the
start of its process to its end, and of one step by the times in its log. They mean something on a quiet machine only,
so the load is told with them. `--bf16` repeats both trainings in bfloat16 mixed precision; float32 is the comparison.

Long: half an hour and more at the defaults. Each part is kept in --folder when it is finished and used again, so that
the run can be done in pieces (`--sides mimetic`, later `--sides lerobot evaluation`), and broken off.

    python -m benchmarks.act_against_lerobot [--steps 2400] [--size small|full] [--sides mimetic lerobot evaluation]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import WORK, Row, compared, environment, markdown, ours_command, peer_command, peer_python

TRAININGS, EVALUATION = ("mimetic", "lerobot"), "evaluation"
NAMES = {"mimetic": "mimetic", "lerobot": "LeRobot 0.6.1"}
TARGET = 2.0
DEMONSTRATIONS = 50
LOG_FREQ = 50
SMALL: dict[str, object] = {
    "dim_model": 256,
    "n_heads": 8,
    "dim_feedforward": 1024,
    "n_encoder_layers": 2,
    "n_decoder_layers": 1,
    "use_vae": False,
    "pre_norm": True,
    "dropout": 0.0,
    "chunk_size": 30,
    "n_action_steps": 10,
    "optimizer_lr": 3e-4,
    "optimizer_lr_backbone": 3e-4,
}
"""Learns something in a quarter of an hour on two cores."""
FULL: dict[str, object] = {"optimizer_lr": 1e-4, "optimizer_lr_backbone": 1e-4, "n_action_steps": 10}
"""The network of the paper, with its variational encoder; a few actions of each chunk are played."""
SIZES = {"small": SMALL, "full": FULL}
_TIMED = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \S+ step:\S+ ")


@dataclass(frozen=True)
class Training:
    """What one training cost.

    Args:
        flags: that it was given; a kept result is used again for the same ones only.
        wall_s: from the start of the process to its end.
        cpu_s: processor time of the process and of what it started and waited for.
        step_s: a step, by the times of the first and the last line of the log.
        load: of the machine, a minute before the start.
    """

    flags: list[str]
    wall_s: float
    cpu_s: float
    step_s: float
    load: float


def training_flags(options: argparse.Namespace) -> list[str]:
    """The flags that both sides get."""
    settings: dict[str, object] = {
        "dataset.repo_id": "local/act_against_lerobot",
        "dataset.root": options.dataset.resolve(),
        "policy.type": "act",
        "policy.device": "cpu",
        "policy.push_to_hub": False,
        "policy.pretrained_backbone_weights": "null",
        **{f"policy.{name}": value for name, value in SIZES[options.size].items()},
        "batch_size": options.batch_size,
        "steps": options.steps,
        "num_workers": options.num_workers,
        "seed": options.seed,
        "log_freq": min(LOG_FREQ, max(1, options.steps // 4)),
        "save_freq": options.steps,
    }
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]


def train(side: str, options: argparse.Namespace) -> Training:
    """Train one side, or take what an earlier run kept of the same training."""
    flags = training_flags(options)
    folder = _folder(options) / side
    kept = folder / "training.json"
    if kept.is_file():
        found = Training(**json.loads(kept.read_text(encoding="utf-8")))
        if found.flags != flags:
            different = sorted(set(found.flags) ^ set(flags))
            raise SystemExit(
                f"error: {kept} is of another training: {', '.join(different)}\n"
                "hint: name another --folder, or remove that one"
            )
        _say(f"{side}: trained before, {found.wall_s:.0f} s")
        return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    is_peer = side == "lerobot"
    command = [peer_command("lerobot-train")] if is_peer else [*ours_command(), "train"]
    if options.bf16:
        # LeRobot has no flag for it: the library that it trains with reads the environment.
        flags_of_side = flags if is_peer else [*flags, "--accelerator.mixed_precision=bf16"]
    else:
        flags_of_side = flags
    env = environment(one_thread=options.one_thread, peer=is_peer)
    if options.bf16 and is_peer:
        env["ACCELERATE_MIXED_PRECISION"] = "bf16"
    load = os.getloadavg()[0]
    _say(f"{side}: training, load {load:.1f}, log in {folder / 'log.txt'}")
    wall, cpu = _timed([*command, *flags_of_side, f"--output_dir={folder / 'run'}"], env, folder / "log.txt")
    result = Training(flags, wall, cpu, seconds_a_step((folder / "log.txt").read_text(errors="replace"), flags), load)
    kept.write_text(json.dumps(asdict(result), indent=2), encoding="utf-8")
    _say(f"{side}: {wall:.0f} s, {result.step_s:.3f} s a step")
    return result


def seconds_a_step(log: str, flags: list[str]) -> float:
    """Mean time of a step between the first and the last line of a log; NaN with fewer than two lines."""
    (every,) = (int(flag.partition("=")[2]) for flag in flags if flag.startswith("--log_freq="))
    times = [datetime.fromisoformat(found[1]) for found in _TIMED.finditer(log)]
    if len(times) < 2:
        return float("nan")
    return (times[-1] - times[0]).total_seconds() / ((len(times) - 1) * every)


def evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Let both checkpoints play the same episodes; the numbers of `closed_loop.json`."""
    folder = _folder(options) / f"evaluation_{options.split}_{options.n_episodes}"
    result = folder / "closed_loop.json"
    if not result.is_file():
        checkpoints = [
            _folder(options) / side / "run" / "checkpoints" / "last" / "pretrained_model" for side in TRAININGS
        ]
        missing = [str(path) for path in checkpoints if not path.is_dir()]
        if missing:
            raise SystemExit(f"error: there is no checkpoint {', '.join(missing)}\nhint: train that side first")
        flags = {
            "policy.path": checkpoints[0],
            "compare": checkpoints[1],
            "env.type": "so101_cell",
            "env.task": "pick_place",
            "env.split": options.split,
            "eval.n_episodes": options.n_episodes,
            "seed": options.seed,
            "output_dir": folder,
            "resume": str((folder / "episodes.jsonl").is_file()).lower(),
        }
        _say(f"evaluation: {options.n_episodes} episodes of each side, log in {folder.parent / 'evaluation.txt'}")
        command = [*ours_command(), "eval", *(f"--{name}={value}" for name, value in flags.items())]
        _timed(command, environment(one_thread=False, peer=False), folder.parent / "evaluation.txt")
    return dict(json.loads(result.read_text(encoding="utf-8")))


def record(options: argparse.Namespace) -> None:
    """Record the demonstrations unless they are there."""
    if (options.dataset / "meta" / "info.json").is_file():
        return
    _say(f"recording {DEMONSTRATIONS} demonstrations in {options.dataset}")
    flags = ["--task=pick_place", f"--n_episodes={DEMONSTRATIONS}", f"--root={options.dataset}"]
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [*ours_command(), "demo", "record", "--repo_id=local/act_against_lerobot", *flags]
    _timed(command, environment(one_thread=False, peer=False), options.folder / "record.txt")


def rows_of(trained: Mapping[str, Training], played: Mapping[str, Any] | None) -> list[Row]:
    """The table: time and success of both sides, as far as they are there."""
    rows: list[Row] = []
    if len(trained) == len(TRAININGS):
        ours, peer = (trained[side] for side in TRAININGS)
        loads = f"load at the start {ours.load:.1f} and {peer.load:.1f}"
        for what, name, unit, target in (
            ("whole training", "wall_s", "s", TARGET),
            ("one step", "step_s", "s", None),
            ("processor time", "cpu_s", "s", None),
        ):
            note = loads if target else ""
            rows.append(compared(what, getattr(ours, name), getattr(peer, name), unit, target=target, note=note))
    if played is not None:
        (other,), (difference,) = played["other_passes"], played["differences"]
        mine, theirs = _success(played["tasks"][0]), _success(other)
        successes = played["tasks"][0]["successes"], other["successes"]
        ratio = successes[0] / successes[1] if successes[1] else float("inf" if successes[0] else "nan")
        note = (
            f"both {difference['both']}, only mimetic {difference['only_policy']}, only LeRobot "
            f"{difference['only_other']}, neither {difference['neither']}; exact p = {difference['p_value']:.3g}, "
            f"finds {difference['detectable']:.0f} points"
        )
        rows.append(Row("success", mine, theirs, ratio, None, note))
    return rows


def _success(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['successes']} of {one['n_episodes']}, {one['pc_success']:.0f} % ({low:.0f} to {high:.0f} %)"


def _folder(options: argparse.Namespace) -> Path:
    """Where the parts of these settings are kept."""
    parts = [options.size, "bf16" if options.bf16 else "float32", str(options.seed)]
    folder: Path = options.folder / "_".join([*parts, "one_thread"] if options.one_thread else parts)
    return folder


def _timed(command: list[str], env: Mapping[str, str], log: Path) -> tuple[float, float]:
    """Run a command to its end with its output in a file; wall and processor seconds.

    Raises:
        SystemExit: it failed; the end of its output is shown.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
        raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime


def _say(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Do what is asked for and not there yet, and print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    home = WORK / "act_against_lerobot"
    parser.add_argument("--dataset", type=Path, default=home / "demonstrations", help="recorded if absent")
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--n_episodes", type=int, default=200, help="episodes that both checkpoints play")
    parser.add_argument("--split", default="train", help="split of these episodes (see mimetic eval --help env.split)")
    parser.add_argument("--seed", type=int, default=1000, help="of training and evaluation")
    parser.add_argument("--num_workers", type=int, default=1, help="of the loaders: threads in ours, else processes")
    parser.add_argument("--size", choices=list(SIZES), default="small")
    parser.add_argument("--one-thread", action="store_true", help="one computing thread: for a busy machine")
    parser.add_argument("--bf16", action="store_true", help="train both in bfloat16 mixed precision")
    parts = [*TRAININGS, EVALUATION]
    parser.add_argument("--sides", nargs="+", choices=parts, default=parts, help="parts to do now")
    parser.add_argument("--folder", type=Path, default=home, help="where finished parts are kept and found again")
    options = parser.parse_args()
    if "lerobot" in options.sides:
        peer_python()
    record(options)
    trained = {
        side: train(side, options)
        for side in TRAININGS
        if side in options.sides or (_folder(options) / side / "training.json").is_file()
    }
    played = evaluate(options) if EVALUATION in options.sides else None
    rows = rows_of(trained, played)
    for side in [] if len(trained) == len(TRAININGS) else trained:
        print(f"{NAMES[side]}: {trained[side].wall_s:.0f} s, {trained[side].step_s:.3f} s a step")
    if rows:
        print(markdown(rows))
        text = json.dumps({"rows": [asdict(row) for row in rows], "played": played}, indent=2, default=str)
        (_folder(options) / "table.json").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
