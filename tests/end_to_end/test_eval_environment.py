"""`mimetic eval --env.type=so101_cell` and `mimetic demo record` in the simulated cell, at the smallest size."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from html.parser import HTMLParser

import numpy as np
import pytest

from mimetic.cli.app import main
from mimetic.data.features import policy_features
from mimetic.data.metadata import Metadata
from mimetic.data.reader import open_dataset
from mimetic.envs.cell import Cell
from mimetic.envs.config import CellConfig, CellSuiteConfig
from mimetic.envs.demonstration import demonstrate
from mimetic.envs.manner import CAREFUL, IDEAL
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.rollout.cell import cell_features
from mimetic.evaluate.rollout.journal import VOLATILE
from mimetic.evaluate.rollout.run import evaluate_closed_loop
from mimetic.policies.catalog import POLICIES
from mimetic.policies.checkpoint import read_config
from mimetic.testing import frame_policy, script_policy
from mimetic.testing.script_policy import Script, save_scripts
from mimetic.train.config import EnvEvalConfig

LOOK = {"renderer": "rays", "width": 32, "height": 32, "distractors": 0}
LOOK_FLAGS = ["--env.renderer=rays", "--env.width=32", "--env.height=32", "--env.distractors=0"]
N = 4


@pytest.fixture(scope="module", autouse=True)
def stand_ins():
    """The stand-in policies, known by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES._entries, script_policy.NAME, script_policy.ENTRY)
        patch.setitem(POLICIES._entries, frame_policy.NAME, frame_policy.ENTRY)
        yield


@pytest.fixture(scope="module")
def expert(tmp_path_factory):
    """A policy that plays an ideal operator's actions in the first N episodes of `reach`."""
    config = CellConfig(task="reach", split="held_out", **LOOK)
    cell = Cell(config)
    scripts = []
    for seed in range(1000, 1000 + N):
        cell.reset(seed)
        picture = cell.picture("front")
        one = demonstrate(cell, IDEAL, seed, pictures=False)
        scripts.append(Script(picture, one.instruction, one.frames["action"]))
    cell.close()
    folder = tmp_path_factory.mktemp("expert")
    return save_scripts(folder, scripts, policy_features(cell_features(config)), noise=0.2)


def settings(checkpoint, output, *, batch_size, processes, **changes):
    return EvalConfig(
        policy=replace(read_config(checkpoint), pretrained_path=str(checkpoint)),
        env=CellSuiteConfig(task="reach", **{**LOOK, "episode_length": 70, **changes}),
        eval=EnvEvalConfig(n_episodes=N, batch_size=batch_size, use_async_envs=processes),
        output_dir=output,
    )


def stable(result):
    return [{k: v for k, v in asdict(one).items() if k not in VOLATILE} for one in result.episodes]


def test_an_expert_succeeds_a_still_policy_fails_and_processes_change_nothing(expert, tmp_path):
    alone = evaluate_closed_loop(settings(expert, tmp_path / "a", batch_size=1, processes=False))
    spread = evaluate_closed_loop(settings(expert, tmp_path / "b", batch_size=2, processes=True))
    assert alone.whole.successes == N
    assert stable(alone) == stable(spread)
    assert len({one.length for one in alone.episodes}) > 1
    features = policy_features(cell_features(CellConfig(**LOOK)))
    still = save_scripts(tmp_path / "still", [], features)
    idle = evaluate_closed_loop(settings(still, tmp_path / "c", batch_size=2, processes=False, episode_length=10))
    assert idle.whole.successes == 0
    config = json.loads((tmp_path / "b/eval_config.json").read_text())
    assert config["environments"]["reach held_out"]["renderer"] == "rays"


def test_a_continuation_with_another_renderer_is_refused(expert, tmp_path):
    config = settings(expert, tmp_path / "a", batch_size=2, processes=False, episode_length=3)
    evaluate_closed_loop(replace(config, eval=replace(config.eval, n_episodes=1)))
    path = tmp_path / "a/eval_config.json"
    data = json.loads(path.read_text())
    data["environments"]["reach held_out"]["renderer"] = "egl"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="`renderer` = 'egl' of the environment, and it is 'rays' now"):
        evaluate_closed_loop(replace(config, resume=True))


class Page(HTMLParser):
    """What a page loads and what scripts it has."""

    def __init__(self):
        super().__init__()
        self.sources, self.tags, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name == "src"]
        self.links += [value for name, value in attrs if name == "href"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Demonstrations by the command, continued once, and a policy trained on them for two steps that played twice."""
    folder = tmp_path_factory.mktemp("trained")
    record = [
        *("demo", "record", "--repo_id=local/demo", f"--root={folder / 'data'}", "--task=reach,push"),
        *(flag.replace("--env.", "--") for flag in LOOK_FLAGS),
    ]
    assert main([*record, "--n_episodes=1"]) == 0
    assert main([*record, "--n_episodes=3", "--resume=true"]) == 0
    command = [
        *("train", "--dataset.repo_id=local/demo", f"--dataset.root={folder / 'data'}", "--policy.type=frame_policy"),
        *("--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=2", "--steps=2", "--num_workers=0"),
        *("--cache.features=off", f"--output_dir={folder / 'run'}", "--env.type=so101_cell", "--env_eval_freq=1"),
        *("--env.task=reach", "--env.episode_length=3", "--eval.n_episodes=2", "--eval.use_async_envs=false"),
        *LOOK_FLAGS,
    ]
    assert main(command) == 0
    return folder


def test_demonstrations_become_a_dataset_with_their_origin(trained):
    meta = Metadata.open(trained / "data")
    assert [episode.first_task for episode in meta.episodes] == [
        "Reach the red ball",
        "Push the red cube onto the mat",
        "Reach the red ball",
    ]
    side = json.loads((trained / "data/meta/mimetic/simulation.json").read_text())
    assert (side["type"], side["renderer"], side["units"]) == ("so101_cell", "rays", "degrees")
    assert [one["seed"] for one in side["episodes"]] == sorted({one["seed"] for one in side["episodes"]})
    assert all(one["success"] for one in side["episodes"])
    cell = Cell(CellConfig(task="reach", **LOOK))
    one = demonstrate(cell, CAREFUL, side["episodes"][2]["seed"], pictures=False)
    cell.close()
    dataset = open_dataset("local/demo", root=trained / "data", episodes=[2])
    assert np.array_equal(dataset.column("action").reshape(-1, 6), one.frames["action"])


def test_an_entry_of_an_episode_that_was_never_saved_is_dropped(trained, tmp_path):
    """A kill between the entry and the episode; the seed is then tried again."""
    root = tmp_path / "data"
    shutil.copytree(trained / "data", root)
    path = root / "meta/mimetic/simulation.json"
    whole = json.loads(path.read_text())
    cut = {**whole, "episodes": [*whole["episodes"], {"seed": 99, "task": "push", "success": True, "length": 5}]}
    path.write_text(json.dumps(cut))
    flags = [f"--root={root}", "--repo_id=local/demo", "--task=reach,push", "--resume=true", "--n_episodes=4"]
    assert main(["demo", "record", *flags, *(flag.replace("--env.", "--") for flag in LOOK_FLAGS)]) == 0
    after = json.loads(path.read_text())["episodes"]
    assert after[:3] == whole["episodes"]
    assert after[3]["seed"] == whole["episodes"][2]["seed"] + 1
    assert Metadata.open(root).episodes[3].first_task == "Push the red cube onto the mat"


def test_another_cell_cannot_go_on_with_a_recording(trained, capsys):
    flags = [f"--root={trained / 'data'}", "--repo_id=local/demo", "--task=reach", "--resume=true", "--n_episodes=4"]
    flags += [flag.replace("--env.", "--") for flag in LOOK_FLAGS]
    assert main(["demo", "record", *flags]) == 1
    assert "was recorded with tasks = ['reach', 'push'], and now it is ['reach']" in capsys.readouterr().err


def test_a_run_plays_while_it_trains(trained):
    lines = [json.loads(line) for line in (trained / "run/metrics.jsonl").read_text().splitlines()]
    played = [line for line in lines if line["kind"] == "environment"]
    assert [line["steps"] for line in played] == [1, 2]
    assert [line["n_episodes"] for line in played] == [2, 2]
    assert (trained / "run/eval/videos_step_000001/so101_cell_held_out_0/eval_episode_1.mp4").is_file()


def evaluation(trained, output, *flags):
    return [
        *("eval", f"--policy.path={trained / 'run'}", "--env.type=so101_cell", "--env.task=reach,push"),
        *("--env.split=held_out,unseen_positions", "--env.episode_length=4", "--eval.n_episodes=2"),
        *("--eval.batch_size=2", "--eval.use_async_envs=false", f"--output_dir={output}", *LOOK_FLAGS, *flags),
    ]


def test_the_command_prints_rates_and_writes_a_page_that_needs_nothing_else(trained, tmp_path, capsys):
    output = tmp_path / "out"
    assert main(evaluation(trained, output, "--ablate=all")) == 0
    said = capsys.readouterr().out
    assert re.search(r"reach, unseen_positions +2 +0 +0 +0 to 66", said)
    assert re.search(r"all episodes +8 +0", said)
    assert "does not read instructions" in said
    assert f"Report: {output / 'report.html'}" in said
    text = (output / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert "script" not in page.tags
    assert page.sources
    assert all(source.startswith("data:image/jpeg;base64,") for source in page.sources)
    assert all((output / link).is_file() for link in page.links)
    assert len(page.sources) == 8
    assert "0 of 4 episodes succeeded in held_out" in text
    assert "0 of 8 in all splits" in text
    assert "What a start like those of the demonstrations is worth to it cannot be told" in said
    assert "What success depends on" in text
    document = json.loads((output / "closed_loop.json").read_text())
    assert [(one["split"], one["verdict"]) for one in document["shifts"]] == [("unseen_positions", "unknown")]
    assert [one["task"] for one in document["shifts_by_task"]] == ["reach", "push"]
    from mimetic.report.rollout import write_report

    before = (output / "report.html").read_bytes()
    write_report(output)
    assert (output / "report.html").read_bytes() == before
    info = json.loads((output / "eval_info.json").read_text())
    assert list(info["per_group"]) == ["so101_cell_held_out", "so101_cell_unseen_positions"]


def test_a_policy_that_does_not_fit_is_one_error_before_anything_is_written(trained, tmp_path, capsys):
    command = evaluation(trained, tmp_path / "out", "--env.width=64", "--env.units=range_m100_100")
    assert main(command) == 2
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith(("error", "hint"))]
    assert len(said) == 2
    assert "`observation.images.front` of 32x32 pixels, and the environment shows 64x32" in said[0]
    assert "trained in degrees, and the environment is set to range_m100_100" in said[0]
    assert "--env.width=32 --env.height=32" in said[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env.type=robocasa"], "environment `robocasa` is known from LeRobot but not part of mimetic yet"),
        (["--env.type=so101_cell", "--env.task=pour"], "`pour` is no task; there are reach, push"),
        (["--env.type=so101_cell", "--env.split=train,test"], "`test` is no split; there are train, held_out"),
        (["--compare=x"], "`--compare` is for an evaluation in an environment"),
        (["--env.type=so101_cell", "--dataset.repo_id=x"], "`--env` and `--dataset` are two evaluations"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(trained, flags, words, capsys):
    assert main(["eval", f"--policy.path={trained / 'run'}", *flags]) == 2
    assert words in capsys.readouterr().err
