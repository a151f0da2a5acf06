"""Claim: a v2.1 dataset of 100 episodes becomes v3.0 at least 3 times as fast as with LeRobot's converter.

100 episodes of 150 frames, two cameras of 320x240 in H.264 (about 60 kB a second and camera), 14 joints. Each side runs
as its command line does it, start included; ours also reads the result again and compares it with the input, which
LeRobot's does not. Beside the whole, the time that each side needs just to start is shown. LeRobot's converter renames
its input, so it gets a fresh copy each round (not counted).

    python -m benchmarks.convert [--rounds 3] [--episodes 100]
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from benchmarks.measure import (
    WORK,
    Cost,
    Row,
    compared,
    environment,
    interleave,
    least,
    ours_command,
    peer_python,
    report,
    run,
)
from mimetic.testing.datasets import TinyDataset, build_dataset

LENGTH, SIZE, CAMERAS = 150, (240, 320), ("front", "wrist")
_PEER = ["-m", "lerobot.scripts.convert_dataset_v21_to_v30"]


def build(root: Path, episodes: int) -> Path:
    """Write the v2.1 dataset unless it is there; all episodes of a camera show the same video."""
    if (root / "meta/info.json").is_file():
        return root
    shutil.rmtree(root, ignore_errors=True)
    background = np.random.default_rng(0).integers(40, 200, (*SIZE, 3)).astype(np.float32)
    background = sum(np.roll(background, shift, axis) for shift in range(-3, 4) for axis in (0, 1)) / 14

    def picture(episode: int, frame: int, size: tuple[int, int]) -> np.ndarray:
        noise = np.random.default_rng(frame).normal(0, 2, (*size, 1))
        moved = np.roll(background, frame // 2, axis=1)
        return np.clip(moved + noise, 0, 255).astype(np.uint8)

    one = build_dataset(
        root.with_name(root.name + ".one"),
        TinyDataset(
            version="v2.1", lengths=(LENGTH,), cameras=dict.fromkeys(CAMERAS, SIZE), fps=30, picture=picture, gop=10
        ),
    )
    partial = root.with_name(root.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    spec = TinyDataset(version="v2.1", lengths=(LENGTH,) * episodes, fps=30, state_dim=14, action_dim=14)
    build_dataset(partial, spec)
    info, pattern = (json.loads((folder / "meta/info.json").read_text()) for folder in (partial, one))
    cameras = {name: entry for name, entry in pattern["features"].items() if entry["dtype"] == "video"}
    info |= {"features": {**cameras, **info["features"]}, "video_path": pattern["video_path"]}
    info["total_videos"] = episodes * len(cameras)
    stats = json.loads((one / "meta/episodes_stats.jsonl").read_text())["stats"]
    rows = [json.loads(line) for line in (partial / "meta/episodes_stats.jsonl").read_text().splitlines()]
    for row in rows:
        row["stats"] |= {name: stats[name] for name in cameras}
    (partial / "meta/episodes_stats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (partial / "meta/info.json").write_text(json.dumps(info, indent=4))
    for name in cameras:
        for episode in range(episodes):
            target = partial / f"videos/chunk-000/{name}/episode_{episode:06d}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(one / f"videos/chunk-000/{name}/episode_000000.mp4", target)
    shutil.rmtree(one)
    partial.rename(root)
    return root


def _ours(root: Path, flags: list[str]) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        target = WORK / "convert" / "ours"
        shutil.rmtree(target, ignore_errors=True)
        command = [*ours_command(), "dataset", "convert", f"--root={root}", f"--output_dir={target}", *flags]
        return _figures(run(command, environment(one_thread=False, peer=False)))

    return once


def _peer(root: Path) -> Callable[[], Mapping[str, float]]:
    def once() -> Mapping[str, float]:
        home = WORK / "convert" / "peer"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(root, home / "pick")
        command = [peer_python(), *_PEER, "--repo-id=me/pick", f"--root={home / 'pick'}", "--push-to-hub=false"]
        return _figures(run(command, environment(one_thread=False, peer=True)))

    return once


def _start(command: list[str], *, peer: bool) -> Callable[[], Mapping[str, float]]:
    return lambda: _figures(run(command, environment(one_thread=False, peer=peer)))


def _figures(cost: Cost) -> Mapping[str, float]:
    return {"wall_s": cost.wall_s, "cpu_s": cost.cpu_s, "peak_mb": cost.peak_rss_mb}


def measure(rounds: int, episodes: int = 100) -> tuple[list[Row], dict[str, object]]:
    """Rows of the table and the figures of every round."""
    root = build(WORK / "convert" / f"v21_{episodes}", episodes)
    sides = {
        "ours": _ours(root, []),
        "ours, serial": _ours(root, ["--engine=serial"]),
        "ours, unverified": _ours(root, ["--engine=serial", "--verify=false"]),
        "peer": _peer(root),
        "ours start": _start([*ours_command(), "dataset", "convert", "--help"], peer=False),
        "peer start": _start([peer_python(), *_PEER, "--help"], peer=True),
    }
    results = interleave(sides, rounds)
    peer, start = least(results["peer"], "wall_s"), least(results["peer start"], "wall_s")
    name = f"{episodes} episodes, 2 cameras"
    rows = [
        compared(f"{name}: wall", least(results["ours"], "wall_s"), peer, "s", target=3.0),
        compared(f"{name}, one process: wall", least(results["ours, serial"], "wall_s"), peer, "s", target=3.0),
        compared(
            f"{name}, one process, without reading it again: wall",
            least(results["ours, unverified"], "wall_s"),
            peer,
            "s",
            note=f"LeRobot without its start: {peer - start:.3g} s",
        ),
        compared(
            f"{name}, one process: CPU", least(results["ours, serial"], "cpu_s"), least(results["peer"], "cpu_s"), "s"
        ),
        compared("`--help`: wall", least(results["ours start"], "wall_s"), start, "s"),
        compared(
            f"{name}: peak memory", least(results["ours, serial"], "peak_mb"), least(results["peer"], "peak_mb"), "MiB"
        ),
    ]
    return rows, dict(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    report(*measure(options.rounds, options.episodes), "convert")


if __name__ == "__main__":
    main()
