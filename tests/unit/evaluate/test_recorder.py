"""An evaluation as a dataset: the same episodes, in their order, however they were played and interrupted."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import toy_env

from mimetic.cli.app import main
from mimetic.data.config import DatasetConfig
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout import run
from mimetic.evaluate.rollout.journal import read_episodes
from mimetic.evaluate.rollout.run import evaluate_closed_loop
from mimetic.names import ACTION, DONE, REWARD, SIMULATION_JSON, STATE, SUCCESS
from mimetic.train.config import EnvEvalConfig, TrainConfig


def recording(toys, checkpoint, output, *, n=6, batch_size=4, **settings):
    config = toys.config(checkpoint, output, **settings)
    return run.evaluate_closed_loop(
        replace(config, eval=EnvEvalConfig(n_episodes=n, batch_size=batch_size, use_async_envs=False, recording=True))
    )


def table(root):
    dataset = open_dataset("local/x", root=root)
    return {key: np.asarray(dataset.column(key)) for key in (STATE, ACTION, REWARD, SUCCESS, DONE, "episode_index")}


def same(one, other):
    assert one.keys() == other.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], other[key])


def test_a_recording_holds_every_episode_in_order_with_its_outcome(toys):
    result = recording(toys, toys.checkpoint(noise=0.12), "a")
    root = result.folder / "recordings/toy_0_0"
    meta = Metadata.open(root)
    assert [one.length for one in meta.episodes] == [one.length for one in result.episodes]
    assert [one.first_task for one in meta.episodes] == [one.instruction for one in result.episodes]
    assert len({one.length for one in result.episodes}) > 2  # so that they ended in another order than they began
    rows = table(root)
    begin = 0
    for one in result.episodes:
        mine = {key: values[begin : begin + one.length] for key, values in rows.items()}
        assert bool(mine[SUCCESS].reshape(-1)[-1]) == one.success
        assert not mine[SUCCESS].reshape(-1)[:-1].any()
        assert mine[DONE].reshape(-1).tolist() == [False] * (one.length - 1) + [True]
        assert float(mine[REWARD].sum()) == one.sum_reward
        # The state of tick t + 1 is that of tick t plus the action that was sent: rows belong together.
        moved = mine[STATE][:-1] + np.clip(mine[ACTION][:-1], -toy_env.STEP, toy_env.STEP)
        np.testing.assert_allclose(mine[STATE][1:], moved, atol=1e-6)
        begin += one.length
    side = json.loads((root / SIMULATION_JSON).read_text())
    assert [one["success"] for one in side["episodes"]] == [one.success for one in result.episodes]
    assert [one["seed"] for one in side["episodes"]] == [one.seed for one in result.episodes]
    assert side["policy"]["type"] == "script_policy"
    assert str(toys.folder) not in json.dumps(side)


def test_pictures_are_those_of_the_observations(toys):
    result = recording(toys, toys.checkpoint(), "a", n=3)
    dataset = open_dataset("local/x", root=result.folder / "recordings/toy_0_0")
    begin = 0
    for one in result.episodes:
        shown = toy_env.picture(toy_env.layout(one.seed)[1])
        kept = dataset[begin][toy_env.CAMERA].numpy().transpose(1, 2, 0) * 255
        assert np.abs(kept - shown).mean() < 12  # lossy, and half the colour resolution
        begin += one.length


def test_a_recorded_evaluation_writes_no_films_and_counts_the_same(toys):
    checkpoint = toys.checkpoint(noise=0.12)
    filmed = evaluate_closed_loop(toys.config(checkpoint, "a", n=6))
    recorded = recording(toys, checkpoint, "b")
    assert not (recorded.folder / "videos").exists()
    assert all(one.video is None for one in recorded.episodes)
    assert [(one.length, one.success) for one in recorded.episodes] == [
        (one.length, one.success) for one in filmed.episodes
    ]


def test_a_recording_does_not_depend_on_how_many_run_at_once(toys):
    checkpoint = toys.checkpoint(noise=0.12)
    alone = recording(toys, checkpoint, "a", batch_size=1)
    several = recording(toys, checkpoint, "b", batch_size=5)
    same(table(alone.folder / "recordings/toy_0_0"), table(several.folder / "recordings/toy_0_0"))


def test_a_recording_ends_where_the_evaluation_has_seen_enough(toys):
    """What ran beside the last counted episode is not recorded."""
    result = recording(toys, toys.checkpoint(), "a", n=55, batch_size=7, target_precision=0.05)
    assert result.whole.n == 40
    assert Metadata.open(result.folder / "recordings/toy_0_0").total_episodes == 40


@pytest.mark.parametrize("fail_at", [1001, 1004])
def test_an_interrupted_recording_goes_on(toys, fail_at):
    checkpoint = toys.checkpoint(noise=0.12)
    whole = recording(toys, checkpoint, "whole", splits=2)
    with pytest.raises(KeyboardInterrupt):
        recording(toys, checkpoint, "cut", splits=2, fail_at=fail_at, batch_size=2)
    folder = toys.folder / "cut"
    path = folder / "eval_config.json"
    stored = json.loads(path.read_text())
    stored["settings"]["env"]["fail_at"] = -1
    path.write_text(json.dumps(stored))
    again = recording(toys, checkpoint, "cut", splits=2, resume=True)
    for name in ("toy_0_0", "toy_1_0"):
        same(table(whole.folder / "recordings" / name), table(folder / "recordings" / name))
    assert again.document["overall"] == whole.document["overall"]
    assert not list((folder / "recordings").glob("tmp*"))


def test_an_episode_that_only_the_dataset_has_is_not_saved_twice(toys):
    """A kill between the dataset and the journal."""
    checkpoint = toys.checkpoint(noise=0.12)
    recording(toys, checkpoint, "a", n=3)
    root = toys.folder / "a/recordings/toy_0_0"
    before = table(root)
    journal = toys.folder / "a/episodes.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))
    recording(toys, checkpoint, "a", n=3, resume=True)
    same(table(root), before)
    assert len(read_episodes(toys.folder / "a")) == 3


def test_a_recording_that_lost_episodes_is_not_continued(toys):
    checkpoint = toys.checkpoint()
    recording(toys, checkpoint, "a", n=2)
    root = toys.folder / "a/recordings/toy_0_0"
    for path in sorted(root.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    root.rmdir()
    with pytest.raises(ConfigError, match="has 0 episodes, and the evaluation has finished 2"):
        recording(toys, checkpoint, "a", n=3, resume=True)


def test_a_film_evaluation_does_not_become_a_recording(toys):
    checkpoint = toys.checkpoint()
    evaluate_closed_loop(toys.config(checkpoint, "a", n=2))
    with pytest.raises(ConfigError, match=r"`--eval.recording` was false"):
        recording(toys, checkpoint, "a", n=2, resume=True)


def test_the_dataset_check_opens_a_recording_and_sees_its_failures(toys, capsys):
    result = recording(toys, toys.checkpoint(known=range(3), noise=0.05), "a", n=6)
    root = result.folder / "recordings/toy_0_0"
    main(["dataset", "check", "--repo_id=local/x", f"--root={root}", "--json=true"])
    found = json.loads(capsys.readouterr().out)
    claims = {one["id"]: one for one in found["findings"]}
    assert not [one for one in found["findings"] if one["claim"] == "DEFECT"]
    failed = [one.episode for one in result.episodes if not one.success]
    assert 0 < len(failed) < 6
    assert claims["variety.failures"]["episodes"] == failed


def test_recordings_are_pushed_where_that_was_asked_for(toys, monkeypatch):
    pushed = []

    def push(root, repo_id, *, private, flag):
        pushed.append((root.name, repo_id, private, flag))
        return type("Pushed", (), {"repo_id": repo_id, "commit": "0" * 40})

    monkeypatch.setattr(run, "push_dataset", push)
    monkeypatch.setattr(run, "require_repo", lambda repo_id, **options: f"looked at {repo_id}")
    config = toys.config(toys.checkpoint(), "a", splits=2)
    settings = EnvEvalConfig(
        n_episodes=1, use_async_envs=False, recording=True, recording_repo_id="me/x", recording_private=True
    )
    evaluate_closed_loop(replace(config, eval=settings))
    flag = "--eval.recording_repo_id"
    assert pushed == [("toy_0_0", "me/x_toy_0_0", True, flag), ("toy_1_0", "me/x_toy_1_0", True, flag)]


def test_a_place_without_a_recording_is_refused():
    assert any("needs `--eval.recording=true`" in one for one in EnvEvalConfig(recording_repo_id="me/x").problems())


def test_training_records_nothing():
    config = TrainConfig(
        dataset=DatasetConfig(repo_id="local/x"),
        env=toy_env.ToyEnvConfig(),
        env_eval_freq=1,
        eval=EnvEvalConfig(recording=True),
    )
    assert any("`--eval.recording=true` is for `mimetic eval`" in one for one in config.check())
