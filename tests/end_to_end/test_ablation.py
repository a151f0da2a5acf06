"""`mimetic eval --ablate`: what is taken away, what is said about it, and that passes differ in nothing else."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import mimetic.evaluate.open_loop as open_loop
from mimetic.cli.app import main
from mimetic.data.config import DatasetConfig
from mimetic.data.metadata import Metadata
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.open_loop import evaluate_open_loop
from mimetic.features import FeatureType
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_pretrained, save_pretrained
from mimetic.processing.standard import standard_pipelines
from mimetic.testing.language_task import INSTRUCTIONS, LanguageTask, build_language_dataset

CHUNK = 4
TASK = LanguageTask(scenes=6, frames=6, size=(32, 32))


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(ACTConfig):
    """Settings of a policy that reads instructions and starts from noise."""

    reads_instructions: ClassVar[bool] = True

    @property
    def noise_shape(self):
        return (CHUNK, 2)


class Reader(Policy):
    """Goes to the middle of the named block's half of the table; without a known name it stays where it is.

    Args:
        stored: a checkpoint, for its pipelines.
        obedience: 0 ignores the text.
    """

    def __init__(self, stored, obedience):
        super().__init__(stored.config)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.stats = stored.preprocessor.steps[-1].stats
        self.obedience = obedience
        self.calls = []

    def loss(self, batch):
        raise NotImplementedError

    def select_action(self, batch):
        raise NotImplementedError

    def reset(self):
        raise NotImplementedError

    def optim_groups(self):
        raise NotImplementedError

    def predict_chunk(self, batch, *, noise):
        self.calls.append((list(batch["task"]), batch.get("task_index"), noise))
        state = self.stats["observation.state"]
        here = batch["observation.state"] * (state["std"] + 1e-8) + state["mean"]
        sides = {INSTRUCTIONS[0]: -0.55, INSTRUCTIONS[1]: 0.55}
        target = torch.stack([torch.tensor([sides.get(text, 0.0), 0.0]) for text in batch["task"]]) * self.obedience
        left = 0.8 ** torch.arange(1, CHUNK + 1)[None, :, None]
        chunk = target[:, None] + left * (here - target)[:, None] + 0.01 * noise
        return (chunk - self.stats["action"]["mean"]) / (self.stats["action"]["std"] + 1e-8)


def make_checkpoint(folder, root):
    """A tiny ACT with random weights."""
    meta = Metadata.open(root)
    inputs = {k: f for k, f in meta.policy_features.items() if f.type is not FeatureType.ACTION}
    outputs = {k: f for k, f in meta.policy_features.items() if f.type is FeatureType.ACTION}
    config = ACTConfig(
        chunk_size=CHUNK,
        n_action_steps=2,
        dim_model=16,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = make_policy(config, input_features=inputs, output_features=outputs, init_backbone=False)
    pipelines = standard_pipelines(
        input_features=inputs, output_features=outputs, norm_map=config.norm_map, stats=meta.stats
    )
    save_pretrained(policy, folder, *pipelines)
    return folder


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """The language task and a checkpoint of a policy without language for it."""
    folder = tmp_path_factory.mktemp("arm")
    root = build_language_dataset(folder / "data", TASK)
    return make_checkpoint(folder / "checkpoint", root), root


@pytest.fixture
def reader(monkeypatch):
    """Let `evaluate_open_loop` load a reader instead of the stored network; returns the readers made so far."""
    made = []

    def use(obedience):
        def load(folder, **options):
            stored = load_pretrained(folder, **options)
            config = ReaderConfig(**{name: getattr(stored.config, name) for name in vars(stored.config)})
            made.append(Reader(replace(stored, config=config), obedience))
            return replace(stored, config=config, policy=made[-1])

        monkeypatch.setattr(open_loop, "load_pretrained", load)
        return made

    return use


def settings(arm, **changes):
    checkpoint, root = arm
    policy = replace(load_pretrained(checkpoint).config, pretrained_path=str(checkpoint))
    dataset = DatasetConfig(repo_id="me/blocks", root=str(root), **changes.pop("dataset", {}))
    return EvalConfig(policy=policy, dataset=dataset, **changes)


def effects_of(result):
    return {effect.name: effect for effect in result.effects}


def test_a_policy_that_follows_its_instruction_is_told_from_one_that_ignores_it(arm, reader):
    reader(1.0)
    followed = evaluate_open_loop(settings(arm, ablate="mute"))
    reader(0.0)
    ignored = evaluate_open_loop(settings(arm, ablate="mute"))
    assert effects_of(followed)["swap"].interval[0] > 0.5
    assert any(line.endswith("the policy follows its instruction") for line in followed.verdict.findings)
    assert (effects_of(ignored)["swap"].growth, effects_of(ignored)["swap"].interval) == (0.0, (0.0, 0.0))
    assert any(line.endswith("the policy ignores its instruction") for line in ignored.verdict.findings)
    assert any(line.endswith("does not notice that it is missing") for line in ignored.verdict.findings)


def test_the_first_pass_has_the_recorded_texts_then_none_then_the_other_ones(arm, reader):
    made = reader(1.0)
    evaluate_open_loop(settings(arm, ablate="mute", batch_size=100))
    (texts, numbers, _), (muted, none, _), (swapped, nothing, _) = made[-1].calls
    assert texts == [INSTRUCTIONS[episode % 2] for episode in range(12) for _ in range(3)]
    assert muted == [""] * 36
    assert swapped == [INSTRUCTIONS[1 - episode % 2] for episode in range(12) for _ in range(3)]
    assert numbers is not None
    assert none is nothing is None  # the number of the task would give it away


def test_every_frame_has_its_own_noise_in_every_pass_and_in_every_batch(arm, reader):
    made = reader(1.0)
    evaluate_open_loop(settings(arm, ablate="mute", batch_size=100))
    first, second, third = (noise for _, _, noise in made[-1].calls)
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    assert len(torch.unique(first[:, 0, 0])) == len(first)
    assert abs(float(first.std()) - 1) < 0.1  # 288 draws: standard error 0.04
    evaluate_open_loop(settings(arm, batch_size=5))
    assert torch.equal(torch.cat([noise for _, _, noise in made[-1].calls]), first)
    evaluate_open_loop(settings(arm, batch_size=100, dataset={"episodes": [3, 7]}))
    alone = made[-1].calls[0][2]
    assert torch.equal(alone, torch.cat([first[9:12], first[21:24]]))
    evaluate_open_loop(settings(arm, batch_size=100, seed=1))
    assert not torch.equal(made[-1].calls[0][2], first)


def test_without_a_seed_the_noise_is_new_each_time_and_the_same_in_all_passes(arm, reader):
    made = reader(1.0)
    noises = []
    for _ in range(2):
        evaluate_open_loop(settings(arm, ablate="mute", batch_size=100, seed=None))
        first, second, third = (noise for _, _, noise in made[-1].calls)
        assert torch.equal(first, second)
        assert torch.equal(first, third)
        noises.append(first)
    assert not torch.equal(*noises)


def test_with_one_task_a_wrong_instruction_is_not_tried_and_that_is_said(arm, reader, tmp_path):
    reader(1.0)
    one = build_language_dataset(tmp_path / "one", replace(TASK, instructions=INSTRUCTIONS[:1]))
    result = evaluate_open_loop(settings((arm[0], one), ablate="mute"))
    assert list(effects_of(result)) == ["mute"]
    assert any("whether the policy follows instructions cannot be told" in line for line in result.verdict.findings)


def test_two_tasks_in_the_dataset_are_enough_even_when_one_is_evaluated(arm, reader):
    reader(1.0)
    result = evaluate_open_loop(settings(arm, ablate="mute", dataset={"episodes": [0, 2, 4]}))
    assert list(effects_of(result)) == ["mute", "swap"]


def test_episodes_without_a_text_have_nothing_to_take_away(arm, reader, tmp_path):
    reader(1.0)
    silent = build_language_dataset(tmp_path / "silent", replace(TASK, instructions=("",)))
    result = evaluate_open_loop(settings((arm[0], silent), ablate="mute"))
    assert not result.effects
    assert "The evaluated episodes have no instruction, so there is no text to take away" in result.verdict.findings


def test_a_policy_without_language_is_said_to_read_no_instructions(arm, caplog):
    result = evaluate_open_loop(settings(arm, ablate="mute"))
    assert not result.effects
    assert "The policy (`act`) does not read instructions" in result.verdict.findings
    assert "--ablate=mute: the policy (`act`) does not read instructions" in caplog.messages


def test_all_takes_away_what_there_is(arm, reader):
    assert list(effects_of(evaluate_open_loop(settings(arm, ablate="all")))) == ["blind"]
    reader(1.0)
    told = []
    result = evaluate_open_loop(settings(arm, ablate="all"), on_progress=lambda *both: told.append(both))
    assert list(effects_of(result)) == ["blind", "mute", "swap"]
    assert told[-1] == (4 * 36, 4 * 36)


def test_numbers_and_tiles_of_all_passes_are_in_the_files(arm, reader, tmp_path, capsys):
    reader(1.0)
    checkpoint, root = arm
    output = tmp_path / "evaluation"
    words = [f"--policy.path={checkpoint}", "--dataset.repo_id=me/blocks", f"--dataset.root={root}"]
    assert main(["eval", *words, f"--output_dir={output}", "--ablate=all"]) == 0
    assert "the policy follows its instruction" in capsys.readouterr().out
    document = json.loads((output / "open_loop.json").read_text())
    blind, mute, swap = document["ablations"]
    assert [item["name"] for item in (blind, mute, swap)] == ["blind", "mute", "swap"]
    assert document["overall"]["blind_error"] == blind["error"] == document["overall"]["error"]["policy"]
    assert swap["growth"] == pytest.approx(swap["error"] / document["overall"]["error"]["policy"] - 1, rel=1e-9)
    assert swap["growth_interval"][0] < swap["growth"] < swap["growth_interval"][1]
    page = (output / "report.html").read_text(encoding="utf-8")
    change = f"+{100 * swap['growth']:.0f}&nbsp;%"
    assert f"<b>{change.replace('&nbsp;', ' ')}</b>error with another task&#x27;s instruction" in page
    for words in ("error with blank cameras", "error without an instruction"):
        assert words in page
    assert np.isfinite(mute["growth_interval"]).all()
