"""A small evaluation of a policy that is half right, as files, for the report's tests."""

import io

import numpy as np
import pytest
from PIL import Image

from mimetic.evaluate.compare import compare
from mimetic.evaluate.episodes import EpisodeChoice
from mimetic.evaluate.joints import HoldPose
from mimetic.evaluate.recording import Recording, Span
from mimetic.evaluate.result import OpenLoopResult, Picture
from mimetic.evaluate.store import save
from mimetic.evaluate.verdict import judge


def make_result(names, *, quality=0.7, episodes=3, frames=90, stride=15, steps=30, pictures=True):
    generator = np.random.default_rng(0)
    joints, total = len(names), episodes * frames
    time = np.arange(total)[:, None] / 30
    actions = np.sin(time * generator.uniform(0.5, 2, joints) + generator.uniform(0, 6, joints))
    actions = actions * generator.uniform(0.2, 40, joints)
    actions[:, -1] = 1.25
    states = actions + 0.01 * generator.normal(size=actions.shape)
    spans = tuple(
        Span(episode=number, first=number * frames, last=(number + 1) * frames, task="fold the towel")
        for number in range(episodes)
    )
    recording = Recording(actions=actions, states=states, spans=spans)
    hold = HoldPose(tuple(range(joints)), "holding still means sending the measured state")
    rows = recording.starts(stride)
    recorded, _ = recording.chunks(rows, steps)
    pose = recording.poses(rows, hold)[:, None]
    predicted = pose + quality * (recorded - pose) * generator.uniform(0.5, 1.2, joints)
    predicted[..., 0] += 2 * actions[:, 0].std()
    mean = actions.mean(axis=0)
    numbers = compare(recording, [(rows, predicted)], hold=hold, mean=mean, training_std=actions.std(axis=0))
    buffer = io.BytesIO()
    Image.fromarray(generator.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(buffer, "JPEG")
    shown = [Picture(camera="observation.images.top", episode=0, frame=f, jpeg=buffer.getvalue()) for f in (0, 44, 89)]
    return OpenLoopResult(
        verdict=judge(numbers.scores, numbers.bounds, names, episodes=episodes),
        joints=tuple(names),
        numbers=numbers,
        choice=EpisodeChoice(tuple(range(episodes)), None, "These episodes may have been trained on"),
        hold=hold.explanation,
        mean_action=mean,
        mean_source="the mean action comes from the checkpoint's statistics",
        scale_source="the scale of a joint is the standard deviation of its recorded action in training",
        checkpoint="outputs/run/checkpoints/last/pretrained_model",
        policy_type="act",
        repo_id="me/towel",
        root="data/towel",
        fps=30.0,
        n_action_steps=stride,
        stride=stride,
        device="cpu (no accelerator found)",
        seed=1000,
        seconds=1.5,
        versions={"mimetic": "0", "torch": "2"},
        pictures=tuple(shown) if pictures else (),
    )


@pytest.fixture
def result_of():
    """Maker of results: names of the joints, and what `make_result` takes."""
    return make_result


@pytest.fixture
def evaluation(tmp_path):
    """Maker of evaluation folders."""

    def make(names=("shoulder", "elbow", "wrist", "gripper"), **options):
        folder = tmp_path / "evaluation"
        save(make_result(names, **options), folder)
        return folder

    return make
