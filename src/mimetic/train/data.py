"""The data of a run: which episodes are trained on, which are held out, and with which windows."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimetic.data.features import policy_features
from mimetic.data.reader import Dataset, open_dataset
from mimetic.data.sampler import EpisodeSampler, FrameOrder
from mimetic.data.split import split_episodes
from mimetic.data.stream import Stream, open_stream
from mimetic.data.transforms.pipeline import ImageTransforms
from mimetic.errors import DatasetError, DatasetNotFound
from mimetic.hub.policies import find_policy
from mimetic.names import ACTION, REWARD
from mimetic.policies.cameras import fit_inputs
from mimetic.policies.config import PolicyConfig
from mimetic.policies.pipelines import stored_rename_map
from mimetic.train.config import TrainConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on.

    Args:
        config: settings with the chosen video decoder, and with the policy's inputs fitted to the dataset.
        train: training episodes with the policy's windows and augmentation.
        heldout: held-out episodes without augmentation; None without `--dataset.eval_split`.
        sampler: shuffled order of the training samples.
        num_episodes: training episodes.
        padded_share: share of the action steps beyond the end of their episode; they do not count in the loss.
        fingerprint: what the sampler draws from, compared on resume.
    """

    config: TrainConfig
    train: Dataset
    heldout: Dataset | None
    sampler: FrameOrder
    num_episodes: int
    padded_share: float
    fingerprint: dict[str, Any]


def windows(policy: PolicyConfig, features: Iterable[str], rename_map: Mapping[str, str]) -> dict[str, Sequence[int]]:
    """Frame offsets that the policy asks for (spec/dataset.md 10.2, "From a policy").

    Args:
        policy: settings.
        features: the dataset's names.
        rename_map: dataset name -> policy name.

    Returns:
        By the dataset's names.
    """
    result: dict[str, Sequence[int]] = {}
    for key in features:
        offsets: Sequence[int] | None = None
        if key == REWARD:
            offsets = policy.reward_delta_indices
        elif key == ACTION:
            offsets = policy.action_delta_indices
        elif key.startswith("observation."):
            offsets = policy.observation_deltas(rename_map.get(key, key))
        if offsets is not None:
            result[key] = offsets
    return result


def open_training_data(config: TrainConfig, policy: PolicyConfig) -> TrainingData:
    """Open the dataset, split it, and check what can be checked before the first step.

    Raises:
        DatasetError: the dataset is not there, broken, or has videos shorter than their rows.
        ConfigError: the episodes asked for do not exist, or the split leaves nothing to train on.
    """
    settings = config.dataset
    transforms = ImageTransforms(settings.image_transforms) if settings.image_transforms.enable else None
    whole = _open(config)
    _check_videos(whole)
    config, policy = _fit_cameras(config, policy, whole)
    config = _with_stored_names(config, policy, whole)
    offsets = windows(policy, whole.features, config.rename_map)
    train_episodes, heldout_episodes = list(whole.episodes), list[int]()
    if settings.eval_split > 0:
        # In the order of the request, as in LeRobot: the last ones of each task are held out.
        there = set(whole.episodes)
        rows = [whole.meta.episodes[episode] for episode in settings.episodes or whole.episodes if episode in there]
        train_episodes, heldout_episodes = split_episodes(rows, settings.eval_split)
        logger.info(
            "Train/eval split: %d train, %d eval (eval_split=%s, %d tasks)",
            len(train_episodes),
            len(heldout_episodes),
            settings.eval_split,
            len({row.first_task for row in rows}),
        )
    unread = unread_cameras(policy, whole.meta.camera_keys, config.rename_map)
    offsets = {key: deltas for key, deltas in offsets.items() if key not in unread}
    train = whole.with_windows(offsets, image_transforms=transforms, episodes=train_episodes, skip=unread)
    heldout = whole.with_windows(offsets, episodes=heldout_episodes, skip=unread) if heldout_episodes else None
    if whole.meta.video_keys:
        logger.info("video decoder: %s (%s)", whole.backend, whole.backend_reason)
    starts, ends = train.episode_bounds()
    sampler = _order(config, policy, train)
    # LeRobot knows no backend called "auto"; the file must say what really decoded.
    backend = whole.backend if whole.meta.video_keys else "pyav"
    resolved = replace(config, dataset=replace(settings, video_backend=backend))
    fingerprint = {
        "total_frames": whole.meta.total_frames,
        "fps": whole.fps,
        "train_episodes": sorted(train_episodes),
        "samples": len(sampler),
    }
    if settings.streaming:
        fingerprint["stream"] = [settings.buffer_size, settings.max_num_shards]
    offsets_of_action = policy.action_delta_indices or [0]
    share = padded_share((ends - starts).tolist(), len(offsets_of_action), policy.drop_n_last_frames)
    return TrainingData(resolved, train, heldout, sampler, len(train_episodes), share, fingerprint)


def _order(config: TrainConfig, policy: PolicyConfig, train: Dataset) -> FrameOrder:
    """In which order the training samples are visited."""
    seed, drop = config.seed or 0, policy.drop_n_last_frames
    if isinstance(train, Stream):
        settings = config.dataset
        return train.order(
            seed=seed,
            buffer_size=settings.buffer_size,
            max_num_shards=settings.max_num_shards,
            batch_size=config.batch_size,
            drop_n_last_frames=drop,
        )
    starts, ends = train.episode_bounds()
    return EpisodeSampler(starts, ends, drop_n_last_frames=drop, shuffle=True, seed=seed)


def _fit_cameras(config: TrainConfig, policy: PolicyConfig, whole: Dataset) -> tuple[TrainConfig, PolicyConfig]:
    """Settings with the cameras of the dataset matched to the slots of a loaded policy; every decision is told."""
    if config.resume or policy.pretrained_path is None or not policy.has_camera_slots:
        return config, policy
    folder = find_policy(policy.pretrained_path, revision=policy.pretrained_revision)
    fitted = fit_inputs(policy, policy_features(whole.features), config.rename_map, stored_rename_map(folder))
    if fitted is None:
        return config, policy
    for decision in fitted.decisions:
        logger.info("%s", decision)
    policy = replace(policy, input_features=fitted.input_features)
    return replace(config, policy=policy, rename_map=fitted.rename_map), policy


def _with_stored_names(config: TrainConfig, policy: PolicyConfig, whole: Dataset) -> TrainConfig:
    """Settings that rename what the loaded policy's own pipeline would rename; a map by hand wins over it."""
    if config.resume or config.rename_map or policy.pretrained_path is None or policy.has_camera_slots:
        return config
    stored = stored_rename_map(find_policy(policy.pretrained_path, revision=policy.pretrained_revision))
    kept = whole.features.keys() - stored.keys()
    found = {old: new for old, new in stored.items() if old in whole.features and new not in kept}
    if not found:
        return config
    logger.info("renamed as when the policy was trained: `--rename_map='%s'`", json.dumps(found))
    return replace(config, rename_map=found)


def _open(config: TrainConfig) -> Dataset:
    settings = config.dataset
    open_data = open_stream if settings.streaming else open_dataset
    try:
        return open_data(
            settings.repo_id,
            root=settings.root,
            episodes=settings.episodes,
            exclude_episodes=settings.exclude_episodes,
            tolerance_s=config.tolerance_s,
            return_uint8=True,
            video_backend=settings.video_backend,
            depth_output_unit=settings.depth_output_unit,
            revision=settings.revision,
        )
    except DatasetNotFound as error:
        if config.resume and settings.root is not None and not Path(settings.root).is_absolute():
            raise DatasetNotFound(
                error.message,
                "the path counts from the folder in which the run was started: go there, or say where the dataset is "
                "now with `--dataset.root=FOLDER`",
            ) from error
        raise


def unread_cameras(policy: PolicyConfig, cameras: Sequence[str], rename_map: Mapping[str, str]) -> list[str]:
    """Cameras of the dataset that a policy with fixed inputs does not read, so that nobody decodes them."""
    if not policy.input_features:
        return []
    return [key for key in cameras if rename_map.get(key, key) not in policy.input_features]


def padded_share(lengths: Sequence[int], chunk_size: int, drop_n_last_frames: int = 0) -> float:
    """Share of the action steps in all samples that lie beyond the end of their episode, in [0, 1].

    Args:
        lengths: frames of each episode.
        chunk_size: actions a sample.
        drop_n_last_frames: frames at the end of each episode that are no samples.
    """
    padded = samples = 0
    for length in lengths:
        for left in range(drop_n_last_frames + 1, min(length, chunk_size) + 1):
            padded += max(0, chunk_size - left)
        samples += max(0, length - drop_n_last_frames)
    return padded / (samples * chunk_size) if samples else 0.0


def _check_videos(dataset: Dataset) -> None:
    short = dataset.check_video_lengths()
    if short:
        listed = "; ".join(map(str, short[:5]))
        more = f" and {len(short) - 5} more" if len(short) > 5 else ""
        bad = sorted({item.episode for item in short})
        raise DatasetError(
            f"{len(bad)} episode(s) have videos shorter than their rows: {listed}{more}",
            f"leave them out with `--dataset.exclude_episodes={json.dumps(bad, separators=(',', ':'))}`",
        )
