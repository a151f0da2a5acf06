"""Inputs that broke such systems, at the door of training: each gets one clear answer (no traceback, no silent fallback)."""

import json

import pytest
from safetensors.torch import load_file, save_file

from mimetic.testing.datasets import build_dataset, coded_image, write_video
from mimetic.testing.tiny import TINY_ACT
from mimetic.train.data import padded_share

TINY = [
    *TINY_ACT,
    "--policy.pretrained_backbone_weights=null",
    "--num_workers=0",
    "--batch_size=4",
]


def problem(done):
    """The error and hint lines; there must be nothing like a traceback."""
    assert "Traceback" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert 1 <= len(lines) <= 2, done.stderr
    return " ".join(lines)


@pytest.fixture
def vectors(fixtures):
    return ["--dataset.repo_id=local/tiny_vec", f"--dataset.root={fixtures / 'training' / 'dataset_tiny_vec'}"]


@pytest.fixture
def train(mimetic, tmp_path):
    return lambda *flags: mimetic(
        "train", *TINY, f"--output_dir={tmp_path / 'run'}", "--steps=2", "--log_freq=1", *flags
    )


def test_a_video_shorter_than_its_rows_stops_the_run_before_its_first_step(train, tmp_path):
    # cases.md 7
    root = build_dataset(tmp_path / "set", lengths=(9, 12), cameras={"front": (64, 64)})
    (path,) = (root / "videos" / "observation.images.front").rglob("file-001.mp4")
    write_video(path, [coded_image(1, frame, (64, 64)) for frame in range(8)], fps=10)
    done = train("--dataset.repo_id=me/short", f"--dataset.root={root}")
    assert done.returncode == 1
    text = problem(done)
    assert "episode 1" in text
    assert "observation.images.front" in text
    assert "lacks 4 frames" in text
    assert "--dataset.exclude_episodes=[1]" in text
    assert not (tmp_path / "run").exists()
    kept = train("--dataset.repo_id=me/short", f"--dataset.root={root}", "--dataset.exclude_episodes=[1]")
    assert kept.returncode == 0, kept.stderr


def test_a_camera_without_names_and_statistics_trains(train, tmp_path):
    # cases.md 8
    root = build_dataset(tmp_path / "set", cameras={"front": (64, 64)}, camera_stats=False)
    info = json.loads((root / "meta" / "info.json").read_text())
    info["features"]["observation.images.front"]["names"] = None
    (root / "meta" / "info.json").write_text(json.dumps(info))
    done = train("--dataset.repo_id=me/nameless", f"--dataset.root={root}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the dataset has no statistics of `observation.images.front`") == 1
    config = json.loads((tmp_path / "run/checkpoints/last/pretrained_model/config.json").read_text())
    assert config["input_features"]["observation.images.front"] == {"type": "VISUAL", "shape": [3, 64, 64]}


def test_a_camera_without_any_statistics_is_refused_when_imagenet_is_off(train, tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"front": (64, 64)}, camera_stats=False)
    done = train("--dataset.repo_id=me/nostats", f"--dataset.root={root}", "--dataset.use_imagenet_stats=false")
    assert done.returncode == 1
    assert "observation.images.front" in problem(done)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["absent", "empty"])
def test_a_wrong_local_path_is_named_at_once(train, tmp_path, make):
    # cases.md 21
    build_dataset(tmp_path / "so101_pick")
    wrong = tmp_path / "so101_pik"
    make(wrong)
    done = train("--dataset.repo_id=me/so101_pick", f"--dataset.root={wrong}")
    assert done.returncode == 2
    text = problem(done)
    assert f"no dataset at `{wrong}` (expected meta/info.json)" in text
    assert str(tmp_path / "so101_pick") in text


def test_short_episodes_train_with_every_frame_and_the_padding_is_reported(train, tmp_path):
    # cases.md 25: 1 + 3 + 7 frames, chunk 8: sum over frames of the steps beyond the end, over 11 * 8
    root = build_dataset(tmp_path / "set", lengths=(1, 3, 7), environment_dim=2)
    done = train("--dataset.repo_id=me/short", f"--dataset.root={root}")
    assert done.returncode == 0, done.stderr
    padded = sum(8 - left for length in (1, 3, 7) for left in range(1, length + 1))
    assert f"padded action steps: {100 * padded / 88:.1f} %" in done.stderr
    assert "dataset.num_frames=11 (11)" in done.stderr


def test_padded_share_counts_steps_beyond_the_end():
    assert padded_share([8, 20], 1) == 0.0
    assert padded_share([1], 8) == 7 / 8
    assert padded_share([3], 2, drop_n_last_frames=1) == 0.0


def test_a_hole_in_the_numbering_is_said_and_trains_on_the_right_frames(train, tmp_path):
    # cases.md 5; which frames are read is tested in tests/attacks/test_dataset_damage.py
    import pyarrow.parquet as pq

    root = build_dataset(tmp_path / "set", lengths=(5, 6, 7, 8), environment_dim=2)
    for pattern in ("meta/episodes", "data"):
        for path in (root / pattern).rglob("*.parquet"):
            table = pq.read_table(path)
            keep = [value != 1 for value in table["episode_index"].to_pylist()]
            pq.write_table(table.filter(keep), path) if any(keep) else path.unlink()
    done = train("--dataset.repo_id=me/hole", f"--dataset.root={root}")
    assert done.returncode == 0, done.stderr
    assert "gap at 1" in done.stderr
    assert "dataset.num_episodes=3" in done.stderr


def test_renamed_tensors_are_listed_with_the_nearest_names(mimetic, train, tmp_path, vectors):
    # cases.md 2
    assert train(*vectors).returncode == 0
    folder = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    weights = load_file(folder / "model.safetensors")
    renamed = {name.replace("action_head", "actions_head"): tensor for name, tensor in weights.items()}
    save_file(renamed, folder / "model.safetensors")
    flags = [*vectors, f"--policy.path={folder}", "--steps=1", "--num_workers=0", f"--output_dir={tmp_path / 'again'}"]
    done = mimetic("train", *flags)
    assert done.returncode == 1
    text = problem(done)
    assert "2 missing" in text or "missing 2" in text
    assert "2 unexpected" in text or "unexpected 2" in text
    assert "actions_head" in text
    allowed = mimetic("train", *flags, '--allow_missing=["model.action*_head.*"]')
    assert allowed.returncode == 0, allowed.stderr
    assert "action_head" in allowed.stderr


def test_statistics_under_another_name_are_refused(mimetic, train, tmp_path, vectors):
    # cases.md 1
    assert train(*vectors).returncode == 0
    folder = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    for path in folder.glob("policy_*normalizer*.safetensors"):
        state = load_file(path)
        for name in [key for key in state if key.startswith("action.")]:
            value = state.pop(name)
            state[f"so100.buffer.{name}"] = value
            state[f"so100-red.buffer.{name}"] = value.clone()
        save_file(state, path)
    done = mimetic("eval", f"--policy.path={folder}", *vectors, f"--output_dir={tmp_path / 'eval'}")
    assert done.returncode == 1
    text = problem(done)
    assert "`action`" in text
    assert "so100" in text
    assert "so100-red" in text
    assert "--stats_dataset" in text
    chosen = mimetic(
        "eval", f"--policy.path={folder}", *vectors, f"--output_dir={tmp_path / 'eval'}", "--stats_dataset=so100"
    )
    assert chosen.returncode == 0, chosen.stderr


def test_a_policy_without_an_action_in_the_dataset_is_refused(train, tmp_path):
    root = build_dataset(tmp_path / "set", environment_dim=2)
    info = json.loads((root / "meta" / "info.json").read_text())
    info["features"]["command"] = info["features"].pop("action")
    (root / "meta" / "info.json").write_text(json.dumps(info))
    done = train("--dataset.repo_id=me/noaction", f"--dataset.root={root}")
    assert done.returncode in (1, 2)
    assert "action" in problem(done)


def test_imagenet_weights_that_cannot_be_had_are_an_error_with_a_way_out(mimetic, tmp_path):
    root = build_dataset(tmp_path / "set", cameras={"front": (64, 64)})
    flags = [flag for flag in TINY if "pretrained_backbone" not in flag]
    done = mimetic(
        "train", *flags, "--dataset.repo_id=me/x", f"--dataset.root={root}", f"--output_dir={tmp_path / 'run'}"
    )
    assert done.returncode == 2
    assert "--policy.pretrained_backbone_weights=null" in problem(done)
