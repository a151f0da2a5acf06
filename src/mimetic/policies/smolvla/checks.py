"""What cannot be set for a SmolVLA policy, before anything is built (spec/smolvla.md 17.13)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mimetic.names import ACTION, NETWORK_PATHS, STATE

if TYPE_CHECKING:
    from mimetic.policies.smolvla.config import SmolVLAConfig

ATTENTION_MODES = ("cross_attn", "self_attn")
PADDINGS = ("longest", "max_length")
PRECISIONS = ("auto", "mixed", "released", "float32")
ALOHA_DIMS = 14

_MINIMA = {
    "chunk_size": 1,
    "n_action_steps": 1,
    "max_state_dim": 1,
    "max_action_dim": 1,
    "empty_cameras": 0,
    "tokenizer_max_length": 1,
    "num_steps": 1,
    "noise_draws": 1,
}
_MAXIMA = {
    "chunk_size": 2048,
    "empty_cameras": 32,
    "tokenizer_max_length": 8192,
    "num_steps": 1000,
    "noise_draws": 1024,
}
"""Of settings that no weight has the size of: a file from a stranger could otherwise ask for any memory and time. No
policy comes near."""
_SHORTEST, _LONGEST = 1e-9, 1e9


def setting_problems(config: SmolVLAConfig) -> list[str]:
    """Problems of the settings that need no file, one sentence each."""
    problems = _size_problems(config)
    if problems:
        return problems  # what follows counts with the sizes
    problems = _impossible_options(config)
    if config.num_vlm_layers > 0:
        problems += layer_problems(config, config.num_vlm_layers)
    problems += _feature_problems(config)
    if config.rtc_config is not None:
        problems += config.rtc_config.problems()
    return problems


def _size_problems(config: SmolVLAConfig) -> list[str]:
    problems = [
        f"`--policy.{name}={getattr(config, name)}` must be at least {least}"
        for name, least in _MINIMA.items()
        if getattr(config, name) < least
    ]
    problems += [
        f"`--policy.{name}={getattr(config, name)}` is more than any policy has ({most})"
        for name, most in _MAXIMA.items()
        if getattr(config, name) > most
    ]
    if config.n_action_steps > config.chunk_size:
        problems.append(
            f"`--policy.n_action_steps={config.n_action_steps}` is larger than "
            f"`--policy.chunk_size={config.chunk_size}`"
        )
    if config.n_obs_steps != 1:
        problems.append(
            f"`--policy.n_obs_steps={config.n_obs_steps}`: SmolVLA reads one observation frame, so it must be 1"
        )
    if not 0 < config.min_period < config.max_period:
        problems.append(
            f"`--policy.min_period={config.min_period}` must be above 0 and below "
            f"`--policy.max_period={config.max_period}`"
        )
    elif config.min_period < _SHORTEST or config.max_period > _LONGEST:
        problems.append(
            f"`--policy.min_period={config.min_period}` and `--policy.max_period={config.max_period}` must lie between "
            f"{_SHORTEST:g} and {_LONGEST:g}"
        )
    if not 0 < config.expert_width_multiplier < math.inf:
        problems.append(f"`--policy.expert_width_multiplier={config.expert_width_multiplier}` must be above 0")
    if config.vlm_model_name.startswith(NETWORK_PATHS):
        problems.append(f"`--policy.vlm_model_name={config.vlm_model_name}` is a network path, which is not followed")
    return problems


def _impossible_options(config: SmolVLAConfig) -> list[str]:
    """Options of LeRobot that run into errors there, or that change the model without a word."""
    problems = []
    if not config.use_cache:
        problems.append("`--policy.use_cache=false` cannot sample actions (nor can LeRobot); it must be true")
    if config.use_delta_joint_actions_aloha:
        problems.append("`--policy.use_delta_joint_actions_aloha=true` is not supported (nor by LeRobot)")
    if config.resize_imgs_with_padding is None:
        problems.append(
            "`--policy.resize_imgs_with_padding=null`: the model reads square frames of one size; give width and "
            "height, such as [512,512]"
        )
    elif config.resize_imgs_with_padding[0] != config.resize_imgs_with_padding[1]:
        width, height = config.resize_imgs_with_padding
        problems.append(
            f"`--policy.resize_imgs_with_padding=[{width},{height}]` is not square, which the model's grid of image "
            "patches must be; frames of other proportions are padded, not distorted"
        )
    words = {"attention_mode": ATTENTION_MODES, "pad_language_to": PADDINGS, "precision": PRECISIONS}
    for name, allowed in words.items():
        if getattr(config, name) not in allowed:
            problems.append(f"`--policy.{name}={getattr(config, name)}` must be one of {', '.join(allowed)}")
    return problems


def layer_problems(config: SmolVLAConfig, vlm_layers: int) -> list[str]:
    """What is wrong with the expert's layers (spec/smolvla.md 5.4).

    Args:
        config: the policy's settings.
        vlm_layers: layers of the vision-language model that are used.
    """
    given = config.num_expert_layers
    if given <= 0 or given == vlm_layers:
        return []
    flag = f"`--policy.num_expert_layers={given}`"
    if given > vlm_layers or vlm_layers % given:
        return [f"{flag} does not divide the {vlm_layers} layers of the vision-language model that are used"]
    if config.attention_mode != "cross_attn" or config.self_attn_every_n_layers > 0:
        return [
            f"{flag}: fewer layers than the {vlm_layers} of the vision-language model work only with "
            "`--policy.attention_mode=cross_attn --policy.self_attn_every_n_layers=0`, because a layer that attends "
            "jointly needs a layer of the expert"
        ]
    return []


def _feature_problems(config: SmolVLAConfig) -> list[str]:
    problems = []
    if config.input_features:
        if not config.image_features.keys() - config.filler_inputs.keys():
            problems.append("SmolVLA needs at least one camera among its inputs")
        if config.robot_state_feature is None:
            problems.append(f"SmolVLA needs `{STATE}` among its inputs")
    for side, key, feature in (
        ("state", STATE, config.robot_state_feature),
        ("action", ACTION, config.action_feature),
    ):
        if feature is None:
            continue
        if len(feature.shape) != 1:
            problems.append(f"`{key}` has shape {tuple(feature.shape)}, and SmolVLA reads and writes flat vectors")
            continue
        size, largest = feature.shape[0], getattr(config, f"max_{side}_dim")
        if size > largest:
            problems.append(f"`{key}` has {size} dimensions, more than `--policy.max_{side}_dim={largest}`")
        if config.adapt_to_pi_aloha and size != ALOHA_DIMS:
            problems.append(f"`--policy.adapt_to_pi_aloha=true` is for {ALOHA_DIMS} dimensions, and `{key}` has {size}")
    return problems
