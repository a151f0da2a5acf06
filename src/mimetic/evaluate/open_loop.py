"""Open-loop evaluation: what a policy predicts at recorded observations, against what was recorded next."""

from __future__ import annotations

import logging
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike

from mimetic import __version__
from mimetic.config.check import require_valid
from mimetic.config.codec import encode
from mimetic.data.dataset import Dataset
from mimetic.data.metadata import Metadata
from mimetic.data.reader import find_dataset, open_dataset, select_episodes
from mimetic.data.split import split_episodes
from mimetic.evaluate.ablation import Alter, plan_removals
from mimetic.evaluate.compare import Comparison, compare
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.effect import Effect, measure_effect
from mimetic.evaluate.episodes import EpisodeChoice, choose_episodes
from mimetic.evaluate.joints import HoldPose, choose_hold, joint_names
from mimetic.evaluate.loading import changed_settings, evaluation_device
from mimetic.evaluate.metrics import Floats
from mimetic.evaluate.pictures import take_pictures
from mimetic.evaluate.predict import absent_cameras, action_size, input_names, predict_chunks
from mimetic.evaluate.recording import Recording, spans_from_bounds
from mimetic.evaluate.result import OpenLoopResult, Picture
from mimetic.evaluate.training import read_training
from mimetic.evaluate.verdict import judge
from mimetic.hub.policies import find_policy
from mimetic.names import ACTION, STATE
from mimetic.policies.checkpoint import Pretrained, load_pretrained
from mimetic.processing.steps.unnormalizer import Unnormalizer

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def evaluate_open_loop(
    config: EvalConfig, *, origins: Mapping[str, str] | None = None, on_progress: Progress | None = None
) -> OpenLoopResult:
    """Compare a policy's predictions with recorded episodes; nothing is written.

    Args:
        config: settings; `policy.pretrained_path` and `dataset` are needed.
        origins: where each setting comes from, by dotted flag; a device that only the checkpoint names is a hint.
        on_progress: called with the number of finished predictions and of all.

    Raises:
        MimeticError: the command, the checkpoint or the dataset must change; the hint says how.
    """
    require_valid(config)
    assert config.policy is not None
    assert config.policy.pretrained_path is not None
    assert config.dataset is not None
    folder = find_policy(config.policy.pretrained_path, revision=config.policy.pretrained_revision)
    metadata = Metadata.open(
        find_dataset(config.dataset.repo_id, root=config.dataset.root, revision=config.dataset.revision)
    )
    choice = _choose(config, metadata, folder)
    device, reason = evaluation_device(config.policy, origins or {})
    logger.info("device: %s (%s)", device, reason)
    pretrained = load_pretrained(
        folder,
        device=str(device),
        config_overrides=changed_settings(config.policy, folder),
        allow_missing=config.allow_missing,
        stats_dataset=config.stats_dataset,
        rename_map=config.rename_map,
    )
    logger.info("policy: %s, %s", folder, pretrained.report.summary())
    scene = _open(config, metadata, choice, pretrained)
    logger.info("%s", choice.note)
    about_cameras = _camera_notes(pretrained, scene)
    started = time.monotonic()
    numbers, effects, notes = _compare(config, pretrained, scene, on_progress)
    seconds = time.monotonic() - started
    return OpenLoopResult(
        verdict=judge(
            numbers.scores,
            numbers.bounds,
            scene.joints,
            episodes=len(numbers.episodes),
            effects=effects,
            notes=(*about_cameras, *notes),
        ),
        joints=scene.joints,
        numbers=numbers,
        choice=choice,
        hold=scene.hold.explanation,
        mean_action=scene.mean,
        mean_source=scene.mean_source,
        scale_source=scene.scale_source,
        effects=effects,
        checkpoint=str(folder),
        policy_type=pretrained.config.type_name,
        repo_id=config.dataset.repo_id,
        root=str(metadata.root),
        fps=float(metadata.fps),
        n_action_steps=scene.n_action_steps,
        stride=scene.stride,
        device=f"{device} ({reason})",
        seed=config.seed,
        seconds=seconds,
        versions={
            "mimetic": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        settings=encode(config, full=True),
        pictures=_pictures(scene, numbers),
    )


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """The recorded side, and what the policy is compared with."""

    dataset: Dataset
    recording: Recording
    inputs: Mapping[str, str]
    joints: tuple[str, ...]
    hold: HoldPose
    mean: Floats
    mean_source: str
    scale_source: str
    training_std: Floats | None
    stride: int
    n_action_steps: int


def _camera_notes(pretrained: Pretrained, scene: _Scene) -> tuple[str, ...]:
    """What is to be said about cameras that the policy was trained with and the dataset does not have."""
    absent = absent_cameras(pretrained, scene.inputs)
    if not absent:
        return ()
    note = (
        f"The policy was trained with {', '.join(f'`{name}`' for name in absent)} too, which this dataset does not "
        "feed: it runs without, so the numbers may be worse than with all cameras (`--rename_map` names a camera)"
    )
    logger.warning("%s", note)
    return (note,)


def _choose(config: EvalConfig, metadata: Metadata, folder: Path) -> EpisodeChoice:
    assert config.dataset is not None
    present = [int(number) for number in select_episodes(metadata, None, config.dataset.exclude_episodes)]
    wanted = config.dataset.episodes
    if config.dataset.eval_split > 0:
        rows = [metadata.episodes[number] for number in (wanted or present)]
        wanted = split_episodes(rows, config.dataset.eval_split)[1]
    return choose_episodes(present, wanted, read_training(folder, metadata, config.dataset.repo_id))


def _open(config: EvalConfig, metadata: Metadata, choice: EpisodeChoice, pretrained: Pretrained) -> _Scene:
    assert config.dataset is not None
    dataset = open_dataset(
        config.dataset.repo_id,
        episodes=list(choice.episodes),
        tolerance_s=config.tolerance_s,
        return_uint8=True,
        video_backend=config.dataset.video_backend,
        depth_output_unit=config.dataset.depth_output_unit,
        metadata=metadata,
    )
    size = action_size(pretrained, dataset)
    inputs = input_names(pretrained, dataset)
    offsets = {theirs: pretrained.config.observation_deltas(ours) for ours, theirs in inputs.items()}
    unread = [key for key in dataset.meta.camera_keys if key not in inputs.values()]
    dataset = dataset.with_windows({key: few for key, few in offsets.items() if few is not None} or None, skip=unread)
    tasks = [dataset.meta.episodes[number].first_task for number in dataset.episodes]
    state = dataset.features.get(STATE)
    recording = Recording(
        actions=dataset.column(ACTION).reshape(len(dataset), size).astype(np.float64),
        states=None if state is None else dataset.column(STATE).reshape(len(dataset), -1).astype(np.float64),
        spans=spans_from_bounds(dataset.episodes, *dataset.episode_bounds(), tasks),
    )
    recording.check()
    joints = joint_names(dataset.features[ACTION].flat_names, size, ACTION)
    states = None if recording.states is None or state is None else recording.states
    state_names = None if states is None or state is None else joint_names(state.flat_names, states.shape[1], STATE)
    mean, std, mean_source = _action_statistics(pretrained, metadata, recording)
    executed = int(getattr(pretrained.config, "n_action_steps", 1))
    return _Scene(
        dataset=dataset,
        recording=recording,
        inputs=inputs,
        joints=tuple(joints),
        hold=choose_hold(joints, state_names, recording.actions, states),
        mean=mean,
        mean_source=mean_source,
        scale_source=(
            "the scale of a joint is the standard deviation of its recorded action in "
            f"{'the evaluated episodes' if std is None else 'training'}"
        ),
        training_std=std,
        stride=config.stride or executed,
        n_action_steps=executed,
    )


def _action_statistics(
    pretrained: Pretrained, metadata: Metadata, recording: Recording
) -> tuple[Floats, Floats | None, str]:
    """Mean and deviation of the action in training, and where the mean comes from."""
    size = recording.actions.shape[1]
    checkpoint = [step.stats.get(ACTION, {}) for step in pretrained.postprocessor.find(Unnormalizer)]
    places: tuple[tuple[Mapping[str, ArrayLike], str], ...] = (
        *((stats, "the mean action is that of the checkpoint's training statistics") for stats in checkpoint),
        (metadata.stats.get(ACTION, {}), "the mean action is that of the dataset's statistics"),
    )
    for stats, source in places:
        mean, std = (np.asarray(stats[name], np.float64).ravel() if name in stats else None for name in ("mean", "std"))
        if mean is not None and mean.size == size:
            return mean, std if std is not None and std.size == size else None, source
    return recording.actions.mean(axis=0), None, "the mean action is that of the evaluated episodes"


def _compare(
    config: EvalConfig, pretrained: Pretrained, scene: _Scene, on_progress: Progress | None
) -> tuple[Comparison, tuple[Effect, ...], tuple[str, ...]]:
    """Numbers of the policy, what the inputs are worth that `--ablate` names, and what it names in vain."""
    removals = plan_removals(
        config.ablate,
        pretrained,
        scene.dataset,
        scene.inputs,
        instructions=[span.task for span in scene.recording.spans],
    )
    for note in removals.notes:
        logger.warning("--ablate=%s: %s", config.ablate, note[:1].lower() + note[1:])
    rows = scene.recording.starts(scene.stride, config.max_frames)
    # Passes are compared pair by pair, so they need one seed even where the user wants a new one each time.
    seed = secrets.randbits(32) if config.seed is None else config.seed
    passes = 1 + len(removals.alter)

    def run(before: int, alter: Alter | None) -> Comparison:
        def tell(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(before * total + done, passes * total)

        with _seeded(seed, pretrained.policy.device):
            predictions = predict_chunks(
                pretrained,
                scene.dataset,
                rows,
                batch_size=config.batch_size,
                seed=seed,
                alter=alter,
                on_progress=tell,
            )
            return compare(
                scene.recording,
                predictions,
                hold=scene.hold,
                mean=scene.mean,
                training_std=scene.training_std,
                seed=config.seed or 0,
            )

    numbers = run(0, None)
    effects = tuple(
        measure_effect(name, numbers, run(before, alter), seed=config.seed or 0)
        for before, (name, alter) in enumerate(removals.alter.items(), start=1)
    )
    return numbers, effects, removals.notes


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Give policies that draw random numbers the same ones in every pass; the caller's generators stay as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _pictures(scene: _Scene, numbers: Comparison) -> tuple[Picture, ...]:
    if not numbers.traces:
        return ()
    span = next(span for span in scene.recording.spans if span.episode == numbers.traces[0].episode)
    cameras = [key for key in scene.inputs.values() if scene.dataset.features[key].is_camera]
    return take_pictures(scene.dataset.with_windows(None), span, cameras)
