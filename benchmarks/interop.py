"""Claim: checkpoints, training states and datasets go both ways between mimetic and LeRobot 0.6.1.

`actions`        a checkpoint that either side wrote gives the same actions on both sides (1e-5)
`peer_resumes`   LeRobot continues our run: right step, same losses, same weights as if we had continued
`we_resume`      we continue LeRobot's run, likewise
`datasets`       every item of a dataset is equal on both sides: keys and their order, types, values, pixels

The resumed policy has neither dropout nor noise, because LeRobot's own resume is inexact with them.

    python -m benchmarks.interop [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.make_video_dataset import dataset
from benchmarks.measure import PROBES, ROOT, WORK, environment, peer_python, run
from benchmarks.tiny import DATASET, command, flags

HOME = WORK / "interop"
GOLDEN = ROOT / "tests" / "fixtures" / "dataset"
ACTION_TOLERANCE = 1e-5
"""Actions in the dataset's units, float32: another torch sums in another order."""
WEIGHT_TOLERANCE = 2e-6
"""Three updates of 1e-3 after different summation orders; a wrong moment or rate moves weights by 1e-4 and more."""
NO_NOISE = {
    "policy__use_vae": False,
    "policy__dropout": 0.0,
    "use_policy_training_preset": False,
    "optimizer__type": "adamw",
    "optimizer__lr": 1e-3,
    "optimizer__weight_decay": 0.01,
    "optimizer__grad_clip_norm": 1.0,
    "scheduler__type": "cosine_decay_with_warmup",
    "scheduler__num_warmup_steps": 4,
    "scheduler__num_decay_steps": 20,
    "scheduler__peak_lr": 1e-3,
    "scheduler__decay_lr": 1e-4,
}


@dataclass(frozen=True)
class Check:
    """One thing that was compared."""

    name: str
    passed: bool
    detail: str


def actions() -> list[Check]:
    """Both sides run checkpoints of both sides."""
    checks = []
    for writer in ("ours", "peer"):
        for kind, more in (("state", {}), ("two cameras", _camera_flags())):
            folder = _fresh(f"actions_{writer}_{kind.replace(' ', '_')}")
            _train(writer, folder, steps=2 if more else 6, **({"log_freq": 1} | more))
            model = next(folder.glob("checkpoints/0*/pretrained_model"))
            observations = _observations(more != {})
            ours = _our_actions(model, observations)
            peer = _peer_actions(model, observations, folder)
            worst = {name: float(np.abs(ours[name] - peer[name]).max()) for name in ours}
            name = f"{_name(writer)} wrote it ({kind}): both sides act alike"
            # Equal constants would prove nothing: the observations must make a difference.
            spread = float(np.ptp(ours["chunks"], axis=0).max())
            passed = max(worst.values()) <= ACTION_TOLERANCE < spread / 100
            detail = ", ".join(f"{key} differ by at most {value:.1e}" for key, value in worst.items())
            detail += f"; {len(ours['actions'])} calls, over which the chunks vary by up to {spread:.2g}"
            checks.append(Check(name, passed, detail))
    return checks


def peer_resumes() -> list[Check]:
    """LeRobot continues our run."""
    return _resume(first="ours", second="peer")


def we_resume() -> list[Check]:
    """We continue LeRobot's run."""
    return _resume(first="peer", second="ours")


def datasets() -> list[Check]:
    """Items of datasets on both sides."""
    bench = {"action": range(50)}
    golden = {"observation.state": (-1, 0), "action": range(8)}
    cameras = {"observation.images.top": (-2, 0), "observation.images.wrist": (0,)}
    jobs: list[tuple[str, Path, Mapping[str, Sequence[int]], list[int] | None, bool]] = [
        ("two cameras, AV1", dataset("av1"), bench, None, True),
        ("two cameras, H.264", dataset("h264"), bench, None, True),
        ("rows", dataset("rows"), bench, None, True),
        ("tiny_vec", DATASET, {"action": range(8)}, None, True),
        ("golden video, windows", GOLDEN / "video_v30", golden | cameras, None, True),
        ("golden video, float, episodes 5, 1, 3", GOLDEN / "video_v30", {}, [5, 1, 3], False),
        ("golden images, float", GOLDEN / "image_v30", golden | cameras, None, False),
        ("golden dtypes and depth", GOLDEN / "dtypes_v30", {}, None, False),
        ("golden, converted from v2.1", GOLDEN / "v21_converted", golden, None, True),
    ]
    return [_same_items(*job) for job in jobs]


def _resume(first: str, second: str) -> list[Check]:
    whole, part = _fresh(f"{first}_whole"), _fresh(f"{first}_then_{second}")
    settings = {"batch_size": 4, "steps": 6, "save_freq": 3, "log_freq": 1} | NO_NOISE
    expected = _losses(_train(first, whole, **settings))
    half = part / "checkpoints" / "000003"
    shutil.copytree(whole / "checkpoints" / "000003", half)
    (part / "checkpoints" / "last").symlink_to("000003")
    config = half / "pretrained_model" / "train_config.json"
    arguments = [f"--config_path={config}", "--resume=true", f"--output_dir={part}"]
    cost = run([*command(second), *arguments], environment(one_thread=True, peer=second == "peer"))
    losses = _losses(cost.output)
    wanted = {step: expected[step] for step in (4, 5, 6)}
    title = f"{_name(second)} continues {_name(first, possessive=True)} run"
    result = part / "checkpoints" / "000006"
    if not result.is_dir():
        return [Check(title, False, f"no checkpoint of step 6; log: {cost.output[-400:]}")]
    files = ("pretrained_model/model.safetensors", "training_state/optimizer_state.safetensors")
    weights, moments = (_difference(whole / "checkpoints" / "000006" / name, result / name) for name in files)
    moved = _difference(half / files[0], result / files[0])
    step = json.loads((result / "training_state" / "training_step.json").read_text())["step"]
    rates = [_rates(folder) for folder in (whole, part)]
    return [
        Check(f"{title}: step", step == 6 and list(losses) == [4, 5, 6], f"steps {list(losses)}, then saved {step}"),
        Check(f"{title}: losses and norms", losses == wanted, f"{losses} against {wanted}"),
        Check(
            f"{title}: weights",
            weights <= WEIGHT_TOLERANCE < moved,
            f"differ by at most {weights:.1e}, after moving by up to {moved:.1e} since the change of hands",
        ),
        Check(f"{title}: optimiser state", moments <= WEIGHT_TOLERANCE, f"differs by at most {moments:.1e}"),
        Check(f"{title}: learning rates", bool(np.allclose(*rates, rtol=1e-12)), f"{rates[1]} against {rates[0]}"),
    ]


def _train(side: str, folder: Path, **settings: object) -> str:
    arguments = flags(output_dir=folder, **settings)
    return run([*command(side), *arguments], environment(one_thread=True, peer=side == "peer")).output


def _losses(log: str) -> dict[int, tuple[float, float]]:
    """Step to (loss, norm of the gradient) as printed."""
    found = re.findall(r"step:(\d+) .*?loss:([-\d.naif]+) grdn:([-\d.naif]+)", log)
    return {int(step): (float(loss), float(norm)) for step, loss, norm in found}


def _difference(a: Path, b: Path) -> float:
    """Largest difference between the tensors of two files; infinite when their names differ."""
    from safetensors.numpy import load_file

    left, right = load_file(a), load_file(b)
    if left.keys() != right.keys():
        return float("inf")
    return max(float(np.abs(left[key].astype(np.float64) - right[key]).max(initial=0)) for key in left)


def _rates(folder: Path) -> list[float]:
    path = folder / "checkpoints" / "000006" / "training_state" / "optimizer_param_groups.json"
    return [group["lr"] for group in json.loads(path.read_text())]


def _camera_flags() -> dict[str, Any]:
    return {
        "dataset__root": dataset("h264"),
        "dataset__repo_id": "local/two_cameras",
        "batch_size": 2,
        "policy__pretrained_backbone_weights": "null",
    }


def _observations(with_cameras: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    if not with_cameras:
        shapes = {"observation.state": (20, 3), "observation.environment_state": (20, 2)}
        return {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    state = {"observation.state": rng.normal(0, 1, (10, 6)).astype(np.float32)}
    cameras = ("observation.images.front", "observation.images.wrist")
    return state | {name: rng.random((10, 3, 480, 640), dtype=np.float32) for name in cameras}


def _our_actions(model: Path, observations: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    from mimetic.policies.checkpoint import load_pretrained

    torch.set_num_threads(1)
    loaded = load_pretrained(model, device="cpu")
    loaded.policy.reset()
    selected, chunks = [], []
    for number in range(len(observations["observation.state"])):
        observation = {name: torch.from_numpy(v[number : number + 1]) for name, v in observations.items()}
        batch = loaded.preprocessor(observation)
        selected.append(loaded.postprocessor.run_action(loaded.policy.select_action(batch)).numpy())
        chunks.append(loaded.policy.predict_chunk(batch).numpy())
    return {"actions": np.concatenate(selected), "chunks": np.concatenate(chunks)}


def _peer_actions(model: Path, observations: Mapping[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    named = {f"observation/{name}": value for name, value in observations.items()}
    np.savez(folder / "observations.npz", folder=str(model), **named)
    return _peer("actions", folder / "observations.npz", folder / "actions.npz")


def _same_items(
    name: str, root: Path, windows: Mapping[str, Sequence[int]], episodes: list[int] | None, uint8: bool
) -> Check:
    from mimetic.data.reader import open_dataset

    folder = _fresh("items")
    shutil.copytree(root, folder / "dataset")
    root = folder / "dataset"
    fps = json.loads((root / "meta" / "info.json").read_text())["fps"]
    ours = open_dataset(
        "interop/dataset",
        root=root,
        episodes=episodes,
        delta_indices={key: list(offsets) for key, offsets in windows.items()} or None,
        return_uint8=uint8,
    )
    random = np.random.default_rng(3).integers(0, len(ours), 20)
    positions = sorted({0, 1, len(ours) // 2, len(ours) - 1, *random.tolist()})
    job = {
        "root": str(root),
        "episodes": episodes,
        "delta_timestamps": {key: [o / fps for o in offsets] for key, offsets in windows.items()} or None,
        "positions": positions,
        "uint8": uint8,
    }
    (folder / "job.json").write_text(json.dumps(job))
    peer = _peer("items", folder / "job.json", folder / "items.npz")
    keys = json.loads(str(peer["keys"]))
    wrong: list[str] = [] if int(peer["length"]) == len(ours) else [f"{peer['length']} items, we have {len(ours)}"]
    for position, names in zip(positions, keys, strict=True):
        item = ours[position]
        if list(item) != names:
            wrong.append(f"item {position}: keys {list(item)} against {names}")
        for key in set(item) & set(names):
            value, wanted = item[key], peer[f"{position}/{key}"]
            mine = np.array(value) if isinstance(value, str) else value.numpy()
            if mine.dtype.kind != wanted.dtype.kind or not np.array_equal(mine, wanted):
                wrong.append(f"item {position}: `{key}` {mine.dtype}{mine.shape} against {wanted.dtype}{wanted.shape}")
    ours.close() if hasattr(ours, "close") else None
    detail = f"{len(positions)} items equal" if not wrong else f"{len(wrong)} differences, first: {wrong[0]}"
    return Check(f"dataset, {name}", not wrong, detail)


def _peer(task: str, source: Path, target: Path) -> dict[str, np.ndarray]:
    script = str(PROBES / "interop_peer.py")
    run([peer_python(), script, task, str(source), str(target)], environment(one_thread=True, peer=True))
    with np.load(target) as data:
        return dict(data)


def _fresh(name: str) -> Path:
    """An absent folder of that name whose parent exists; `items` and the like are made by the caller."""
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def _name(side: str, *, possessive: bool = False) -> str:
    names = {"ours": "mimetic", "peer": "LeRobot"}
    return names[side] + ("'s" if possessive else "")


CHECKS: dict[str, Callable[[], list[Check]]] = {
    "actions": actions,
    "peer_resumes": peer_resumes,
    "we_resume": we_resume,
    "datasets": datasets,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*CHECKS, []], metavar="NAME", help=", ".join(CHECKS))
    parser.add_argument("--json", type=Path, help="write the checks to this file as well")
    options = parser.parse_args()
    checks = [check for name in options.names or CHECKS for check in CHECKS[name]()]
    print("| check | | detail |\n|---|---|---|")
    for check in checks:
        print(f"| {check.name} | {'same' if check.passed else '**different**'} | {check.detail} |")
    if options.json:
        rows = [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in checks]
        options.json.write_text(json.dumps(rows, indent=2))
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
