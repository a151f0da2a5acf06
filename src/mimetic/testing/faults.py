"""Datasets with one planted fault each, and what a check has to say about them (dataset_quality 12).

    root = build_faulty(folder / "x", "frozen_state")
    FAULTS["frozen_state"].rule  # state.frozen

A fault changes the episodes before they are written, the pictures while they are drawn, or the files afterwards. Faults
of pictures need cameras in the recording: `picture_recording`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mimetic.testing.datasets import write_video
from mimetic.testing.recordings import Demonstration, Draw, Picture, Recording, Scene, demonstrations, write_recording

Change = Callable[[Recording, list[Demonstration], np.random.Generator], list[Demonstration]]
Spoil = Callable[[Path, Recording], None]
Redraw = Callable[[Scene], Draw]

FROZEN_FRAMES = 67
SHIFT_PX = 3
"""As wide in pictures of 160 pixels as 12 in usual ones of 640."""
REAL_RATE = 21


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: how it is planted, and what is to be found.

    Args:
        rule: id of the finding.
        claim: "DEFECT" or "RISK".
        episodes: the episodes to be named; empty for the whole dataset.
        change: changes the episodes.
        redraw: changes the pictures.
        spoil: changes the files.
        recording: fields of the recording that the fault needs.
        also: further rules that the same fault breaks.
    """

    rule: str
    claim: str = "DEFECT"
    episodes: tuple[int, ...] = ()
    change: Change | None = None
    redraw: Redraw | None = None
    spoil: Spoil | None = None
    recording: tuple[tuple[str, Any], ...] = ()
    also: tuple[str, ...] = ()

    @property
    def needs_pictures(self) -> bool:
        """Whether it only shows in the pictures."""
        return self.redraw is not None


def picture_recording(**changes: Any) -> Recording:
    """A small recording with two cameras, for faults of pictures."""
    cameras = {"front": (120, 160), "side": (120, 160)}
    defaults: dict[str, Any] = {"seconds": (3.0, 3.4), "fps": 10, "cameras": cameras, "lag": 1}
    return Recording(**{**defaults, **changes})


def build_faulty(root: Path, name: str, spec: Recording | None = None) -> Path:
    """Write a dataset with one fault and return its folder.

    Args:
        root: folder to create.
        name: key of `FAULTS`; empty plants nothing.
        spec: the recording; a small one of 20 episodes when absent, with cameras where the fault needs them.
    """
    fault = FAULTS[name] if name else Fault(rule="")
    if spec is None:
        spec = picture_recording() if fault.needs_pictures else Recording(positions=2)
    spec = replace(spec, **dict(fault.recording))
    made = demonstrations(spec)
    if fault.change is not None:
        made = fault.change(spec, made, np.random.default_rng(spec.seed + 1))
    scene = Scene(spec, made)
    write_recording(root, spec, made, fault.redraw(scene) if fault.redraw is not None else None)
    if fault.spoil is not None:
        fault.spoil(root, spec)
    return root


# Faults of the rows


def _nan(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[3].state[10:13, 1] = np.nan
    return made


def _frozen(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[5].state[20 : 20 + FROZEN_FRAMES] = made[5].state[20]
    return made


def _stuck(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[6].state[:, 2] = made[6].state[0, 2]
    return made


def _wrap(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[7].state[40, 4] += spec.turn
    return made


def _spike(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[8].state[30:32, 1] += 0.4 * spec.turn
    return made


def _jump(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[9].state[50:, 0] += 0.5 * spec.turn
    return made


def _shifted(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    for episode in (2, 9, 14):
        action = made[episode].action
        made[episode].action = action[np.maximum(np.arange(len(action)) - 6, 0)]
    return made


def _late(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    for item in made:
        item.action = item.action[np.maximum(np.arange(item.length) - spec.lag - 3, 0)]
    return made


def _unfollowed(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[9].state = np.roll(made[9].state[::-1], made[9].length // 2, axis=0)
    return made


def _idle_head(spec: Recording, made: list[Demonstration], generator: np.random.Generator) -> list[Demonstration]:
    return _waiting(spec, made, generator, at_end=False)


def _idle_tail(spec: Recording, made: list[Demonstration], generator: np.random.Generator) -> list[Demonstration]:
    return _waiting(spec, made, generator, at_end=True)


def _waiting(
    spec: Recording, made: list[Demonstration], generator: np.random.Generator, *, at_end: bool
) -> list[Demonstration]:
    """Episode 4 waits for 45 % of its frames; the move itself goes faster, so that its length stays usual."""
    item = made[4]
    wait = round(item.length * 0.45)
    rest = np.linspace(0, item.length - 1, item.length - wait - 2 * spec.lag)
    rest = np.append(rest, [item.length - 1] * (2 * spec.lag))  # the state shall arrive, too
    frames = np.arange(item.length)
    faster = np.stack([np.interp(rest, frames, channel) for channel in item.action.T], axis=1)
    held = np.repeat(item.action[-1:] if at_end else item.action[:1], wait, axis=0)
    item.action = np.concatenate([faster, held] if at_end else [held, faster])
    noise = generator.normal(0, spec.noise * 100 * spec.turn / 360, item.action.shape)
    item.state = item.action[np.maximum(np.arange(item.length) - spec.lag, 0)] + noise
    return made


def _chatter(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    channel = int(np.flatnonzero(spec.grippers)[0])
    item = made[6]
    frames = np.arange(20, 20 + 2 * spec.fps)
    # 6 Hz: twelve turns a second, or as many as the frames can show.
    wave = 20 * np.sign(np.sin(2 * np.pi * 6 * frames / spec.fps + 0.3)) * spec.turn / 360
    item.action[frames, channel] -= np.abs(wave) + wave
    item.state[np.minimum(frames + spec.lag, item.length - 1), channel] -= np.abs(wave) + wave
    return made


def _duplicate(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[11] = replace(made[3], state=made[3].state.copy(), action=made[3].action.copy())
    return made


def _still(spec: Recording, made: list[Demonstration], generator: np.random.Generator) -> list[Demonstration]:
    item = made[10]
    noise = generator.normal(0, 0.0005 * 100 * spec.turn / 360, item.state.shape)
    item.state = item.state[0] + noise
    item.action = np.repeat(item.action[:1], item.length, axis=0)
    return made


def _resumed_clock(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[4].timestamp = made[4].timestamp + 12.5
    return made


def _backwards(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[5].timestamp[30:] -= 5 / spec.fps
    return made


def _jitter(spec: Recording, made: list[Demonstration], generator: np.random.Generator) -> list[Demonstration]:
    made[6].timestamp[1:] += generator.uniform(-0.2, 0.2, made[6].length - 1) / spec.fps
    return made


def _dropped(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[7].timestamp[40:] += 1 / spec.fps
    return made


def _drifting(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[8].timestamp *= 1 + 0.8 / made[8].length
    return made


def _slow_stamps(spec: Recording, made: list[Demonstration], _: np.random.Generator) -> list[Demonstration]:
    made[9].timestamp *= spec.fps / 21
    return made


# Faults of the files


def read_episodes(root: Path) -> pa.Table:
    """The table of episodes."""
    return pq.read_table(_episodes_file(root))


def write_episodes(root: Path, table: pa.Table) -> None:
    """Replace the table of episodes."""
    pq.write_table(table, _episodes_file(root))


def set_value(root: Path, episode: int, column: str, value: Any) -> None:
    """Change one value of the table of episodes."""
    table = read_episodes(root)
    values = table[column].to_pylist()
    values[episode] = value
    place = table.column_names.index(column)
    write_episodes(root, table.set_column(place, column, pa.array(values, table[column].type)))


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")


def change_rows(root: Path, change: Callable[[pa.Table], pa.Table], file: int | None = None) -> None:
    """Rewrite data files, all or one."""
    for number, path in enumerate(sorted(root.glob("data/*/*.parquet"))):
        if file is None or file == number:
            pq.write_table(change(pq.read_table(path)), path)


def _episodes_file(root: Path) -> Path:
    return next(iter(sorted(root.glob("meta/episodes/*/*.parquet"))))


def _gap(root: Path, spec: Recording) -> None:
    table = read_episodes(root)
    gone = table.slice(1, 1)
    write_episodes(root, table.filter(pc.not_equal(table["episode_index"], 1)))
    change_rows(root, lambda rows: rows.filter(pc.not_equal(rows["episode_index"], 1)))

    def recount(info: dict[str, Any]) -> None:
        info["total_episodes"] -= 1
        info["total_frames"] -= gone["length"][0].as_py()

    change_json(root / "meta" / "info.json", recount)
    _restate(root)


def _restate(root: Path) -> None:
    """Bring the statistics of rows that were taken out up to date, so that only the planted fault is there."""
    rows = pa.concat_tables(pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet")))

    def restate(stats: dict[str, Any]) -> None:
        for key in rows.column_names:
            column = rows[key].combine_chunks()
            values = (
                column.flatten().to_numpy().reshape(len(rows), -1)
                if pa.types.is_fixed_size_list(column.type)
                else (column.to_numpy(zero_copy_only=False).reshape(-1, 1))
            )
            values = values.astype(np.float64)
            entry = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
            levels = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
            entry |= {name: np.quantile(values, level, axis=0) for name, level in levels.items()}
            stats[key] = {name: value.tolist() for name, value in entry.items()} | {"count": [len(values)]}

    change_json(root / "meta" / "stats.json", restate)


def _boundary(root: Path, spec: Recording) -> None:
    set_value(root, spec.episodes_per_file, "data/file_index", 0)


def _stale_length(root: Path, spec: Recording) -> None:
    set_value(root, 6, "length", read_episodes(root)["length"][6].as_py() + 3)


def _cut_rows(root: Path, spec: Recording) -> None:
    path = sorted(root.glob("data/*/*.parquet"))[1]
    path.write_bytes(path.read_bytes()[:-200])


def _wrong_counts(root: Path, spec: Recording) -> None:
    change_json(root / "meta" / "info.json", lambda info: info.update(total_episodes=info["total_episodes"] + 2))


def _orphan(root: Path, spec: Recording) -> None:
    path = root / "videos" / "observation.images.old" / "chunk-000" / "file-000.mp4"
    path.parent.mkdir(parents=True)
    shutil.copy(next(iter(sorted(root.glob("videos/observation.images.front/*/*.mp4")))), path)


def _wrong_task(root: Path, spec: Recording) -> None:
    def change(table: pa.Table) -> pa.Table:
        wrong = pc.if_else(pc.equal(table["episode_index"], 8), 7, table["task_index"])
        return table.set_column(table.column_names.index("task_index"), "task_index", wrong)

    change_rows(root, change)
    _restate(root)


def _scaled_stats(root: Path, spec: Recording) -> None:
    def change(stats: dict[str, Any]) -> None:
        for name, values in stats["action"].items():
            if name != "count":
                stats["action"][name] = [value * 1.1 for value in values]

    change_json(root / "meta" / "stats.json", change)


def _missing_q01(root: Path, spec: Recording) -> None:
    change_json(root / "meta" / "stats.json", lambda stats: stats["action"].pop("q01"))


def _mean_quantiles(root: Path, spec: Recording) -> None:
    """Quantiles as LeRobot 0.6.1 has them after each episode: the mean of the episodes'."""
    table = read_episodes(root)
    length = table["length"].to_numpy()

    def change(stats: dict[str, Any]) -> None:
        for key in ("action", "observation.state"):
            for name in ("q01", "q10", "q50", "q90", "q99"):
                parts = np.asarray(table[f"stats/{key}/{name}"].to_pylist())
                stats[key][name] = (np.average(parts, axis=0, weights=length)).tolist()

    change_json(root / "meta" / "stats.json", change)


def _short_video(root: Path, spec: Recording) -> None:
    """The last episode of the second file lacks half a second."""
    from mimetic.data.video.decoder import PyavDecoder

    path = sorted(root.glob("videos/observation.images.front/*/*.mp4"))[1]
    decoder = PyavDecoder(path)
    count = len(decoder.index) - round(0.5 * spec.fps)
    out = np.empty((count, 3, decoder.height, decoder.width), dtype=np.uint8)
    decoder.read(list(range(count)), list(out), is_depth=False)
    decoder.close()
    write_video(path, (np.ascontiguousarray(frame.transpose(1, 2, 0)) for frame in out), fps=spec.fps)


def _missing_video(root: Path, spec: Recording) -> None:
    sorted(root.glob("videos/observation.images.side/*/*.mp4"))[2].unlink()


def write_clocks(root: Path, spec: Recording, rates: Sequence[float]) -> None:
    """Store measured clocks as the recorder does, at the given rate for each episode [Hz]."""
    lengths = read_episodes(root)["length"].to_pylist()
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(length) for length in lengths])
    generator = np.random.default_rng(spec.seed)
    loop = frame / np.repeat(np.asarray(rates, dtype=np.float64), lengths) + generator.normal(0, 2e-4, len(frame)) + 1e4
    path = root / "meta" / "mimetic" / "clocks" / "chunk-000" / "file-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"episode_index": episode, "frame_index": frame, "loop_s": loop}), path)


def _slow_loop(root: Path, spec: Recording) -> None:
    rates = [float(spec.fps)] * spec.episodes
    rates[3:5] = [float(REAL_RATE)] * 2
    write_clocks(root, spec, rates)


# Faults of the pictures


def _moved(scene: Scene) -> Draw:
    def draw(episode: int, frame: int, camera: str) -> Picture:
        picture = scene.draw(episode, frame, camera)
        if camera == "front" and episode >= 12:
            picture = np.roll(picture, SHIFT_PX, axis=1)
        return picture

    return draw


def _swapped(scene: Scene) -> Draw:
    def draw(episode: int, frame: int, camera: str) -> Picture:
        if episode >= 5:
            return scene.draw(episode, frame, camera)
        return scene.draw(episode, frame, "side" if camera == "front" else "front")

    return draw


def _black(scene: Scene) -> Draw:
    def draw(episode: int, frame: int, camera: str) -> Picture:
        picture = scene.draw(episode, frame, camera)
        return np.zeros_like(picture) if episode == 7 and camera == "front" else picture

    return draw


def _dark(scene: Scene) -> Draw:
    def draw(episode: int, frame: int, camera: str) -> Picture:
        picture = scene.draw(episode, frame, camera)
        return (picture * 0.7).astype(np.uint8) if episode == 8 and camera == "front" else picture

    return draw


def _frozen_camera(scene: Scene) -> Draw:
    def draw(episode: int, frame: int, camera: str) -> Picture:
        if episode == 9 and camera == "front":
            frame = min(frame, 8)
        return scene.draw(episode, frame, camera)

    return draw


def _slow_camera(scene: Scene) -> Draw:
    """Frames come at 21 of 30 Hz: of each ten rows three repeat the picture before."""

    def draw(episode: int, frame: int, camera: str) -> Picture:
        return scene.draw(episode, frame * 7 // 10 * 10 // 7 if camera == "front" else frame, camera)

    return draw


_SMALL = (("cameras", {"front": (48, 64), "side": (48, 64)}), ("seconds", (3.0, 3.4)), ("fps", 10), ("lag", 1))
_VARIANTS = ("Pick up the cube and place it in the box", "pick up the cube, and place it in the box.")

FAULTS: dict[str, Fault] = {
    "index_gap": Fault(rule="meta.ledger", episodes=tuple(range(2, 20)), spoil=_gap),
    "boundary_row": Fault(rule="meta.data_file", episodes=(5,), spoil=_boundary),
    "stale_length": Fault(rule="meta.ledger", episodes=(6,), spoil=_stale_length),
    "cut_data_file": Fault(rule="meta.files", episodes=(5, 6, 7, 8, 9), spoil=_cut_rows),
    "wrong_counts": Fault(rule="meta.counts", spoil=_wrong_counts),
    "orphan_video": Fault(rule="meta.orphans", claim="RISK", spoil=_orphan, recording=_SMALL),
    "nan": Fault(rule="data.nonfinite", episodes=(3,), change=_nan),
    "wrong_task_index": Fault(rule="data.task", episodes=(8,), spoil=_wrong_task),
    "resumed_clock": Fault(rule="time.start", episodes=(4,), change=_resumed_clock),
    "clock_backwards": Fault(rule="time.monotonic", episodes=(5,), change=_backwards),
    "off_grid": Fault(rule="time.grid", claim="RISK", episodes=(6,), change=_jitter),
    "dropped_frame": Fault(rule="time.grid", episodes=(7,), change=_dropped, also=("time.gap",)),
    "drifting_clock": Fault(rule="time.drift", episodes=(8,), change=_drifting),
    "slow_timestamps": Fault(rule="time.rate", episodes=(9,), change=_slow_stamps),
    "slow_loop": Fault(rule="time.true_rate", episodes=(3, 4), spoil=_slow_loop),
    "frozen_state": Fault(rule="state.frozen", episodes=(5,), change=_frozen),
    "stuck_joint": Fault(rule="state.stuck", episodes=(6,), change=_stuck),
    "wrapped_frame": Fault(rule="state.spike", episodes=(7,), change=_wrap),
    "spike": Fault(rule="state.spike", claim="RISK", episodes=(8,), change=_spike),
    "jump": Fault(rule="state.jump", episodes=(9,), change=_jump),
    "no_motion": Fault(rule="motion.none", episodes=(10,), change=_still),
    "shifted_action": Fault(rule="action.lag", episodes=(2, 9, 14), change=_shifted),
    "late_action": Fault(rule="action.late", change=_late),
    "unfollowed": Fault(rule="action.unfollowed", episodes=(9,), change=_unfollowed),
    "idle_head": Fault(rule="motion.idle_head", claim="RISK", episodes=(4,), change=_idle_head),
    "idle_tail": Fault(rule="motion.idle_tail", claim="RISK", episodes=(4,), change=_idle_tail),
    "gripper_chatter": Fault(rule="gripper.chatter", claim="RISK", episodes=(6,), change=_chatter),
    "duplicate_episode": Fault(rule="variety.duplicates", episodes=(11,), change=_duplicate),
    "task_variants": Fault(
        rule="task.variants", claim="RISK", episodes=tuple(range(1, 20, 2)), recording=(("tasks", _VARIANTS),)
    ),
    "scaled_stats": Fault(rule="stats.match", spoil=_scaled_stats),
    "missing_q01": Fault(rule="stats.present", claim="RISK", spoil=_missing_q01),
    "video_short": Fault(rule="meta.video_file", episodes=(9,), spoil=_short_video, recording=_SMALL),
    "video_missing": Fault(
        rule="meta.video_file", episodes=(10, 11, 12, 13, 14), spoil=_missing_video, recording=_SMALL
    ),
    "camera_shift": Fault(rule="image.camera_moved", claim="RISK", episodes=tuple(range(12, 20)), redraw=_moved),
    "cameras_swapped": Fault(rule="image.cameras_swapped", episodes=(0, 1, 2, 3, 4), redraw=_swapped),
    "black_episode": Fault(rule="image.black", episodes=(7,), redraw=_black),
    "exposure": Fault(rule="image.exposure", claim="RISK", episodes=(8,), redraw=_dark),
    "frozen_camera": Fault(rule="image.frozen", episodes=(9,), redraw=_frozen_camera),
    "slow_camera": Fault(rule="image.duplicate_frames", claim="RISK", redraw=_slow_camera),
}
"""Faults by name; what is to be found in each, and nothing else beyond what a recording without faults shows."""
