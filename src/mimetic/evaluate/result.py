"""What an open-loop evaluation found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mimetic.evaluate.compare import Comparison
from mimetic.evaluate.effect import Effect
from mimetic.evaluate.episodes import EpisodeChoice
from mimetic.evaluate.metrics import Floats
from mimetic.evaluate.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Picture:
    """One camera frame of an evaluated episode.

    Args:
        camera: feature name.
        episode: number of the episode.
        frame: number of the frame in it.
        jpeg: the encoded picture.
    """

    camera: str
    episode: int
    frame: int
    jpeg: bytes


@dataclass(frozen=True, kw_only=True)
class OpenLoopResult:
    """Everything that an open-loop evaluation found, and where it comes from.

    Args:
        verdict: the numbers in plain words.
        joints: names of the action's dimensions.
        numbers: of the comparison.
        choice: which episodes, and whether they were trained on.
        hold: what holding still means, one sentence.
        mean_action: the mean action and its source.
        mean_source: where the mean action comes from, one sentence.
        scale_source: where the unit of the errors comes from, one sentence.
        effects: what the inputs are worth that `--ablate` took away.
        checkpoint: folder of the policy.
        policy_type: name of the policy's type.
        repo_id: name of the dataset.
        root: folder of the dataset.
        fps: frames a second.
        n_action_steps: steps of a chunk that are executed before the next one.
        stride: frames between two predictions.
        device: where the policy ran, and why there.
        seed: of everything random; None when nothing was seeded.
        seconds: how long the predictions took.
        versions: of mimetic, torch, numpy and Python.
        settings: the effective configuration.
        pictures: camera frames of the first of the episodes in `numbers.traces`.
    """

    verdict: Verdict
    joints: tuple[str, ...]
    numbers: Comparison
    choice: EpisodeChoice
    hold: str
    mean_action: Floats
    mean_source: str
    scale_source: str
    checkpoint: str
    policy_type: str
    repo_id: str
    root: str
    fps: float
    n_action_steps: int
    stride: int
    device: str
    seed: int | None
    seconds: float
    versions: Mapping[str, str]
    settings: Mapping[str, object] = field(default_factory=dict)
    effects: tuple[Effect, ...] = ()
    pictures: tuple[Picture, ...] = ()
