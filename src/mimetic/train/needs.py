"""What a policy needs of a dataset, as the plain values that `mimetic.data.check` takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from mimetic.data.check.policy_needs import PolicyNeeds
from mimetic.data.features import DatasetFeature, policy_features
from mimetic.errors import CheckpointError, DatasetError, MimeticError
from mimetic.features import FeatureType
from mimetic.hub.locate import cached_snapshot, hub_cache, local_folder
from mimetic.names import TOKENIZER_DIR, TOKENIZER_FILES, TRAINING_STATE_DIR
from mimetic.policies.config import PolicyConfig
from mimetic.processing.steps.tokenizer import Tokenize
from mimetic.processing.store import read_json
from mimetic.train.state import MIMETIC_STATE_JSON


def policy_needs(
    policy: PolicyConfig,
    features: Mapping[str, DatasetFeature],
    *,
    name: str,
    rename_map: Mapping[str, str] | None = None,
    use_imagenet_stats: bool = True,
    tasks: Iterable[str] = (),
    fps: float = 0.0,
    problems: tuple[tuple[str, str], ...] = (),
) -> PolicyNeeds:
    """Describe a policy for the check of a dataset.

    Args:
        policy: its settings.
        features: features of the dataset.
        name: what messages call it.
        rename_map: dataset feature to policy feature.
        use_imagenet_stats: colour cameras take ImageNet's statistics, so that the dataset's are not needed.
        tasks: texts whose tokens are counted, if the policy reads texts and its tokenizer is on this machine.
        fps: rate that it was trained at; 0 when it is not known.
        problems: what is wrong with its checkpoint.
    """
    renamed = dict(rename_map or {})
    limit, long_tasks = _long_tasks(policy, tasks)
    size = getattr(policy, "resize_imgs_with_padding", None)
    unfed = {*policy.filler_inputs, *policy.unread_inputs}
    inputs = {key: f.shape for key, f in (policy.input_features or {}).items() if key not in unfed}
    return PolicyNeeds(
        name=name,
        modes=_modes(policy, features, renamed, use_imagenet_stats=use_imagenet_stats),
        inputs={key: tuple(shape) for key, shape in inputs.items()},
        outputs={key: tuple(f.shape) for key, f in (policy.output_features or {}).items()},
        has_camera_slots=policy.has_camera_slots,
        rename=renamed,
        chunk=len(policy.action_delta_indices or ()),
        max_state=int(getattr(policy, "max_state_dim", 0) or 0),
        max_action=int(getattr(policy, "max_action_dim", 0) or 0),
        resolution=(int(size[1]), int(size[0])) if size else None,
        reads_instructions=policy.reads_instructions,
        long_tasks=long_tasks,
        token_limit=limit,
        fps=fps,
        problems=problems,
    )


def _modes(
    policy: PolicyConfig,
    features: Mapping[str, DatasetFeature],
    renamed: Mapping[str, str],
    *,
    use_imagenet_stats: bool,
) -> dict[str, str]:
    """Normalisation mode of each feature of the dataset that the policy reads or writes."""
    try:
        offered = policy_features(features)
    except DatasetError:
        return {}
    wanted = {*(policy.input_features or {}), *(policy.output_features or {})}
    found = {}
    for key, feature in offered.items():
        is_colour = feature.type is FeatureType.VISUAL and not features[key].is_depth
        if (wanted and renamed.get(key, key) not in wanted) or (is_colour and use_imagenet_stats):
            continue
        mode = policy.norm_map.get(feature.type.name)
        if mode is not None and mode.value != "IDENTITY":
            found[key] = mode.value
    return found


def _long_tasks(policy: PolicyConfig, tasks: Iterable[str]) -> tuple[int, dict[str, int]]:
    """Tokens that the policy reads at most (0: not known), and the tasks that have more."""
    limit = int(getattr(policy, "tokenizer_max_length", 0) or 0)
    texts = list(dict.fromkeys(tasks))
    folder = _tokenizer_folder(policy)
    if not policy.reads_instructions or not limit or folder is None or not texts:
        return 0, {}
    try:
        tokenizer = Tokenize(tokenizer_name=str(folder)).tokenizer
        # As training gives them to the tokenizer: with a line break at the end.
        counts = {text: len(tokenizer.encode(text if text.endswith("\n") else f"{text}\n", None)) for text in texts}
    except MimeticError:
        return 0, {}
    return limit, {text: count for text, count in counts.items() if count > limit}


def _tokenizer_folder(policy: PolicyConfig) -> Path | None:
    """Where the tokenizer lies on this machine; the network is not asked."""
    name = getattr(policy, "vlm_model_name", None)
    beside = getattr(policy, "backbone_folder", None)
    places: list[Path | None] = [] if beside is None else [Path(beside) / TOKENIZER_DIR]
    if name:
        places.append(local_folder(name) or _in_cache(name))
    return next((place for place in places if place is not None and (place / TOKENIZER_FILES[0]).is_file()), None)


def _in_cache(name: str) -> Path | None:
    try:
        return cached_snapshot(name, "model", None, hub_cache())
    except MimeticError:  # a folder that is gone, which loading the policy judges
        return None


def trained_fps(folder: Path) -> float:
    """Rate [Hz] of the data that a checkpoint was trained on, by the training state beside it; 0 if it is not known."""
    path = folder.parent / TRAINING_STATE_DIR / MIMETIC_STATE_JSON
    if not path.is_file():
        return 0.0
    try:
        found = read_json(path)["dataset"]["fps"]
    except (CheckpointError, KeyError, TypeError):
        return 0.0
    return float(found) if isinstance(found, (int, float)) else 0.0
