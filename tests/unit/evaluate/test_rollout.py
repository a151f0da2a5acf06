"""Whole evaluations in a toy environment: what must not change a result, and what the files say."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import toy_env

from mimetic.cli.app import main
from mimetic.errors import ConfigError
from mimetic.evaluate.rollout.environment import Shift
from mimetic.evaluate.rollout.journal import VOLATILE, read_episodes
from mimetic.evaluate.rollout.run import _needed, evaluate_closed_loop
from mimetic.train.config import EnvEvalConfig

GOLDEN = Path(__file__).parents[2] / "fixtures/training/run_eval/eval_info.json"


def stable(episodes):
    """Episodes without what differs from run to run."""
    return [{key: value for key, value in asdict(one).items() if key not in VOLATILE} for one in episodes]


def counted(result, run="policy"):
    return [one.success for one in result.episodes if one.run == run]


def test_an_expert_succeeds_and_a_policy_that_stands_still_fails(toys):
    expert = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=30))
    idle = evaluate_closed_loop(toys.config(toys.checkpoint("idle", known=[]), "b", n=30))
    assert expert.whole.successes == 30
    assert idle.whole.successes == 0
    assert expert.headline.startswith("30 of 30 episodes succeeded: 100 %")
    assert {one.length for one in idle.episodes} == {toy_env.LENGTH}


@pytest.mark.parametrize("batch_size", [2, 5, 12])
def test_a_result_does_not_depend_on_how_many_episodes_run_at_once(toys, batch_size):
    """With noise, so that lengths and successes differ and every random number counts."""
    checkpoint = toys.checkpoint(noise=0.12)
    alone = evaluate_closed_loop(toys.config(checkpoint, "one", batch_size=1, splits=2))
    several = evaluate_closed_loop(toys.config(checkpoint, "many", batch_size=batch_size, splits=2))
    assert len({one.length for one in alone.episodes}) > 3
    assert 0 < sum(counted(alone)) < len(counted(alone))
    assert stable(alone.episodes) == stable(several.episodes)
    names = ("tasks", "splits", "overall", "headline")
    assert all(alone.document[name] == several.document[name] for name in names)


def test_an_interrupted_evaluation_goes_on_and_equals_the_uninterrupted_one(toys):
    checkpoint = toys.checkpoint(noise=0.12)
    whole = evaluate_closed_loop(toys.config(checkpoint, "whole", ablate="all", splits=2))
    with pytest.raises(KeyboardInterrupt):
        evaluate_closed_loop(toys.config(checkpoint, "stopped", ablate="all", splits=2, fail_at=1007))
    folder = toys.folder / "stopped"
    before = read_episodes(folder)
    assert 0 < len(before) < len(whole.episodes)
    with (folder / "episodes.jsonl").open("a") as file:
        file.write('{"run": "policy", "gro')  # the line that a kill tore
    assert not list(folder.rglob("*.writing"))
    # The environment's fault is a setting of the toy: the continuation must be allowed to lack it.
    _pretend_setting(folder, "fail_at", -1)
    again = evaluate_closed_loop(toys.config(checkpoint, "stopped", ablate="all", splits=2, resume=True))
    assert stable(again.episodes) == stable(whole.episodes)
    for name in ("overall", "tasks", "splits", "other_passes", "differences"):
        assert again.document[name] == whole.document[name]


def _pretend_setting(folder, name, value):
    path = folder / "eval_config.json"
    data = json.loads(path.read_text())
    data["settings"]["env"][name] = value
    path.write_text(json.dumps(data))


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(toys, capsys):
    output = toys.folder / "stopped"
    command = [
        *("eval", f"--policy.path={toys.checkpoint()}", "--env.type=toy", "--env.fail_at=1003", "--eval.n_episodes=6"),
        *("--eval.batch_size=1", f"--output_dir={output}"),
    ]
    assert main(command) == 130
    said = capsys.readouterr().err
    assert f"stopped by Ctrl-C; the finished episodes are in {output}" in said
    assert f"--resume=true --output_dir={output}" in said
    assert len(read_episodes(output)) == 3
    assert not list((output / "videos").rglob("*.writing"))


def test_more_episodes_can_be_added_later(toys):
    checkpoint = toys.checkpoint(noise=0.12)
    evaluate_closed_loop(toys.config(checkpoint, "a", n=5))
    more = evaluate_closed_loop(toys.config(checkpoint, "a", n=12, resume=True))
    whole = evaluate_closed_loop(toys.config(checkpoint, "b", n=12))
    assert stable(more.episodes) == stable(whole.episodes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "`--seed` was 1000"),
        ({"n": 3}, "`--eval.n_episodes` was 12"),
        ({"ablate": "none"}, "`--ablate` was blind"),
        ({"splits": 2}, "`--env.splits` was 1"),
        ({"videos": 1}, "`--videos` was 10"),
    ],
)
def test_another_evaluation_is_not_continued(toys, changes, words):
    checkpoint = toys.checkpoint()
    evaluate_closed_loop(toys.config(checkpoint, "a", ablate="blind"))
    with pytest.raises(ConfigError) as caught:
        evaluate_closed_loop(toys.config(checkpoint, "a", **{"ablate": "blind", "resume": True, **changes}))
    assert words in caught.value.message


def test_other_weights_are_not_the_same_evaluation(toys):
    evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=2))
    with pytest.raises(ConfigError, match="other weights"):
        evaluate_closed_loop(toys.config(toys.checkpoint("other", known=range(3)), "a", n=2, resume=True))


@pytest.mark.parametrize("name", ["mimetic_policy.json", "policy_preprocessor.json"])
def test_other_settings_of_the_second_policy_are_not_the_same_evaluation(toys, name):
    """It is compared by all files that decide what it does; how it was trained is none of them."""
    first, second = toys.checkpoint(), toys.checkpoint("other", known=range(3))
    settings = {"n": 2, "compare": str(second)}
    evaluate_closed_loop(toys.config(first, "a", **settings))
    for told in ("train_config.json", "mimetic.json"):
        (second / told).write_text("{}")
    evaluate_closed_loop(toys.config(first, "a", resume=True, **settings))
    stored = json.loads((second / name).read_text()) if (second / name).exists() else {"format": 1, "settings": {}}
    (second / name).write_text(json.dumps(stored))
    with pytest.raises(ConfigError, match="its second policy is"):
        evaluate_closed_loop(toys.config(first, "a", resume=True, **settings))


def test_a_folder_is_never_written_over_and_nothing_is_continued_that_is_not_there(toys):
    checkpoint = toys.checkpoint()
    evaluate_closed_loop(toys.config(checkpoint, "a", n=1))
    with pytest.raises(ConfigError, match="exists already") as caught:
        evaluate_closed_loop(toys.config(checkpoint, "a", n=1))
    assert "--resume=true" in caught.value.hint
    with pytest.raises(ConfigError, match="no evaluation in an environment to go on with"):
        evaluate_closed_loop(toys.config(checkpoint, "b", n=1, resume=True))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_an_evaluation_stops_when_the_interval_is_narrow_enough(toys, batch_size):
    """All succeed: plus or minus 6 points are reached at the first look, 5 points at the second."""
    checkpoint = toys.checkpoint()
    result = evaluate_closed_loop(
        toys.config(checkpoint, "a", n=55, batch_size=batch_size, target_precision=0.05, videos=0)
    )
    assert result.whole.n == 40
    assert [one.episode for one in result.episodes] == list(range(40))
    assert "after 40 of at most 55" in result.caveats[0]
    assert "slightly smaller than 95" in result.caveats[0]
    assert len(read_episodes(result.folder)) == 40


def test_what_finished_beyond_the_end_does_not_count():
    """Episodes that ran beside the last ones may be done, and would depend on how many ran at once."""
    assert _needed(dict.fromkeys(range(47), True), 55, 0.05) == 40
    assert _needed(dict.fromkeys([*range(39), *range(40, 47)], True), 55, 0.05) is None  # 39 is still running
    assert _needed(dict.fromkeys(range(47), True), 55, 0.0) is None
    assert _needed(dict.fromkeys(range(55), False), 55, 0.0) == 55


def test_two_checkpoints_are_compared_on_the_same_episodes(toys):
    first = toys.checkpoint(known=range(40))
    second = toys.checkpoint("second", known=[k for k in range(40) if k % 4])
    result = evaluate_closed_loop(toys.config(first, "a", n=40, compare=str(second), videos=0))
    (found,) = result.differences
    assert (found.pairs.both, found.pairs.neither, found.pairs.only_second) == (30, 0, 0)
    assert found.pairs.only_first == 10
    assert found.p_value == pytest.approx(2 / 1024)
    assert found.verdict == "better"
    assert "more often than the second: 40 against 30 of the same 40 episodes" in found.sentence
    seeds = {run: [one.seed for one in result.episodes if one.run == run] for run in ("policy", "compare")}
    assert seeds["policy"] == seeds["compare"] == list(range(1000, 1040))


def test_no_detectable_difference_is_not_called_equal(toys):
    first = toys.checkpoint(known=range(12))
    second = toys.checkpoint("second", known=[k for k in range(12) if k != 3])
    result = evaluate_closed_loop(toys.config(first, "a", n=12, compare=str(second)))
    assert result.differences[0].verdict == "unclear"
    assert result.findings[0].startswith("No detectable difference between the checkpoints")
    assert "does not make them equal" in result.findings[0]
    assert "points with 80 % chance" in result.findings[0]


def test_ablations_say_whether_the_policy_looks_and_listens(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=20, ablate="all", videos=0))
    verdicts = {one.run: one for one in result.differences}
    assert list(verdicts) == ["blind", "mute", "swap"]
    assert verdicts["blind"].sentence.startswith("The policy looks at its cameras")
    assert verdicts["mute"].sentence.startswith("The policy reacts to a missing instruction")
    assert verdicts["swap"].sentence.startswith("The policy follows its instruction")
    assert all(one.verdict == "better" for one in verdicts.values())


def test_what_a_policy_that_always_fails_uses_cannot_be_told(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(known=[]), "a", n=4, ablate="blind"))
    assert "cannot be told: it succeeded in 0 of 4" in result.findings[0]


def keys(value):
    """Keys of nested objects, lists by their first entry."""
    if isinstance(value, dict):
        return {key: keys(item) for key, item in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value else []
    return None


def test_eval_info_has_the_keys_of_lerobots(toys):
    """spec/training.md 23; names of groups are the environment's own."""
    result = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=2, splits=2))
    mine = json.loads((result.folder / "eval_info.json").read_text())
    golden = json.loads(GOLDEN.read_text())
    assert keys(mine["per_task"]) == keys(golden["per_task"])
    assert keys(mine["overall"]) == keys(golden["overall"])
    assert list(mine) == list(golden)
    assert list(mine["per_group"]) == ["toy_0", "toy_1"]
    assert keys(mine["per_group"]["toy_0"]) == keys(golden["per_group"]["pusht"])
    metrics = mine["per_task"][0]["metrics"]
    assert metrics["successes"] == [True, True]
    assert metrics["sum_rewards"] == metrics["max_rewards"] == [1.0, 1.0]
    assert mine["overall"]["pc_success"] == 50.0  # the scripts are those of the first variation
    assert all(Path(path).is_file() for path in mine["overall"]["video_paths"])
    assert metrics["video_paths"][1].endswith("a/videos/toy_0_0/eval_episode_1.mp4")


def test_films_hold_every_observation_from_the_first_to_the_last(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(noise=0.1), "a", n=4, videos=3))
    films = sorted((result.folder / "videos/toy_0_0").iterdir())
    assert [film.name for film in films] == [f"eval_episode_{k}.mp4" for k in range(3)]
    for film, episode in zip(films, result.episodes, strict=False):
        with av.open(str(film)) as container:
            stream = container.streams.video[0]
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
            assert stream.codec_context.name == "h264"
            assert stream.codec_context.pix_fmt == "yuv420p"
            assert float(stream.average_rate) == toy_env.FPS
        assert len(frames) == episode.length + 1
        shown = toy_env.picture(toy_env.layout(episode.seed)[1])
        assert np.abs(frames[0].astype(int) - shown).mean() < 12  # lossy, and half the colour resolution
    assert result.episodes[3].video is None
    assert all((result.folder / one.strip).is_file() for one in result.episodes)


def test_global_random_numbers_and_the_policys_mode_are_left_alone(toys):
    checkpoint = toys.checkpoint(noise=0.3)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    evaluate_closed_loop(toys.config(checkpoint, "a", n=3))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_episodes_file_holds_what_the_guide_promises(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=3))
    rows = [json.loads(line) for line in (result.folder / "episodes.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [1000, 1001, 1002]
    for row in rows:
        assert {"split", "task", "length", "success", "sum_reward", "wall_s", "video"} <= set(row)
        assert row["wall_s"] >= 0
        assert row["predictions"] == 1
    config = json.loads((result.folder / "eval_config.json").read_text())
    assert config["seed"] == 1000
    assert len(config["checkpoint"]["sha256"]) == 64
    assert config["environments"] == {"go split_0": {"type": "toy", "task": "go", "split": "split_0"}}


def test_a_seed_that_is_left_open_is_drawn_and_kept(toys):
    checkpoint = toys.checkpoint(known=[])
    evaluate_closed_loop(toys.config(checkpoint, "a", n=2, seed=None))
    first = json.loads((toys.folder / "a/eval_config.json").read_text())["seed"]
    more = evaluate_closed_loop(toys.config(checkpoint, "a", n=3, seed=None, resume=True))
    assert [one.seed for one in more.episodes] == [first, first + 1, first + 2]


def test_the_precision_of_an_evaluation_is_written_down(toys):
    config = toys.config(toys.checkpoint(), "a", n=1)
    evaluate_closed_loop(replace(config, policy=replace(config.policy, use_amp=True)))
    stored = json.loads((toys.folder / "a/eval_config.json").read_text())
    assert stored["precision"] == "precision: bfloat16 autocast (--policy.use_amp=true), on cpu"
    with pytest.raises(ConfigError, match=r"`--policy.use_amp` was true"):
        evaluate_closed_loop(replace(config, resume=True))


def test_leftovers_of_a_kill_are_removed_and_a_folder_without_a_beginning_is_begun(toys):
    checkpoint = toys.checkpoint()
    evaluate_closed_loop(toys.config(checkpoint, "a", n=1))
    torn = toys.folder / "a/videos/toy_0_0/eval_episode_1.mp4.99.writing"
    torn.write_bytes(b"half a film")
    evaluate_closed_loop(toys.config(checkpoint, "a", n=2, resume=True))
    assert not torn.exists()
    (toys.folder / "b").mkdir()
    (toys.folder / "b/eval_config.json.99.writing").write_bytes(b"{")
    assert evaluate_closed_loop(toys.config(checkpoint, "b", n=1, resume=True)).whole.n == 1


def test_splits_are_compared_with_their_reference(toys, monkeypatch):
    """A policy that knows the starts of the first variation alone."""
    change = Shift(
        reference="split_0", short="the points", depends="The policy depends on the points", not_found="None"
    )
    tasks = [
        replace(task, shift=change if task.split == "split_1" else None)
        for task in toy_env.toy_tasks(toy_env.ToyEnvConfig(splits=2))
    ]
    monkeypatch.setattr("mimetic.evaluate.rollout.run.open_tasks", lambda settings: tasks)
    result = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=20, splits=2, ablate="blind", videos=0))
    (one,) = result.shifts
    assert (one.there, one.verdict) == ((20, 20), "depends")
    assert result.headline.startswith("20 of 20 episodes succeeded in split_0: 100 %")
    assert "in all splits" in result.headline
    assert result.findings[0] == "Success depends on the points and its pictures"
    assert result.findings[1].startswith(
        "The policy depends on the points: success falls from 100 % (split_0, 20 of 20)"
    )
    (stored,) = json.loads((result.folder / "closed_loop.json").read_text())["shifts"]
    assert (stored["split"], stored["reference"], stored["verdict"]) == ("split_1", "split_0", "depends")
    assert stored["sentence"] == result.findings[1]
    assert stored["difference"] == pytest.approx(100 * one.difference)
    assert any("A dependence was looked for in changes as large" in line for line in result.caveats)


def test_latency_is_measured_and_judged(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(), "a", n=2))
    assert result.latency is not None
    assert 0 < result.latency.median_ms <= result.latency.p95_ms
    assert result.latency.tick_ms == pytest.approx(1000 / 30)
    assert "30 Hz" in result.findings[-1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_precision": 0.7}, "--target_precision=0.7"),
        ({"videos": -1}, "--videos=-1"),
        ({"eval": EnvEvalConfig(n_episodes=0)}, "--eval.n_episodes=0"),
        ({"eval": EnvEvalConfig(recording_repo_id="me/x")}, "needs `--eval.recording=true`"),
        ({"resume": True, "output_dir": None}, "needs `--output_dir`"),
        ({"env": None}, "nothing to evaluate on"),
        ({"stride": 3}, "`--stride` is for an evaluation on recorded episodes"),
    ],
)
def test_settings_that_mean_nothing_are_refused(toys, changes, words):
    config = replace(toys.config(toys.checkpoint(), "a"), **changes)
    assert any(words in problem for problem in config.check())


def test_undefined_numbers_are_null(toys):
    result = evaluate_closed_loop(toys.config(toys.checkpoint(known=[]), "a", n=2))
    assert math.isnan(result.whole.mean_length)
    assert result.document["overall"]["mean_length_of_successes"] is None
    json.loads((result.folder / "closed_loop.json").read_text(), parse_constant=pytest.fail)
