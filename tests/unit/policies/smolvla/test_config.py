"""Settings of SmolVLA: LeRobot's fields and bytes, refusals that name the flag, presets."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mimetic.config.check import find_problems
from mimetic.config.codec import encode
from mimetic.config.effective import effective
from mimetic.config.parse import parse
from mimetic.config.schema import settings_of
from mimetic.errors import CheckpointError, ConfigError
from mimetic.features import FeatureType, PolicyFeature
from mimetic.optim.config import AdamWConfig, CosineDecayWithWarmupConfig
from mimetic.optim.schedules import describe_schedule
from mimetic.policies.checkpoint import config_from_json, config_to_json, read_config
from mimetic.policies.smolvla.config import RTCConfig, SmolVLAConfig
from mimetic.train.config import TrainConfig
from mimetic.train.preset import with_preset

FIXTURES = ("tiny_cross", "tiny_self", "tiny_allcross", "tiny_bf16", "tiny_lora", "cases/aloha", "cases/rtc")
STATE, ACTION, FRONT = "observation.state", "action", "observation.images.front"


def features(state=6, action=6):
    return {
        "input_features": {
            STATE: PolicyFeature(FeatureType.STATE, (state,)),
            FRONT: PolicyFeature(FeatureType.VISUAL, (3, 48, 64)),
        },
        "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (action,))},
    }


@pytest.mark.parametrize("name", FIXTURES)
def test_config_json_of_lerobot_is_read_and_written_byte_for_byte(fixtures, name):
    text = (fixtures / "smolvla" / name / "config.json").read_text()
    assert config_to_json(config_from_json(json.loads(text), where="config.json")) == text


def test_fields_and_their_order_are_those_of_lerobot(fixtures):
    stored = json.loads((fixtures / "smolvla/tiny_cross/config.json").read_text())
    assert list(json.loads(config_to_json(SmolVLAConfig()))) == list(stored)


def test_defaults_are_those_of_lerobot_except_for_the_random_backbone():
    assert SmolVLAConfig().load_vlm_weights is True  # LeRobot: false, a frozen random model (spec 17.4)
    assert encode(SmolVLAConfig(), layers=("lerobot",)) | {"load_vlm_weights": False} == {
        "type": "smolvla",
        "n_obs_steps": 1,
        "input_features": {},
        "output_features": {},
        "device": None,
        "use_amp": False,
        "use_peft": False,
        "push_to_hub": True,
        "repo_id": None,
        "private": None,
        "tags": None,
        "license": None,
        "pretrained_path": None,
        "pretrained_revision": None,
        "chunk_size": 50,
        "n_action_steps": 50,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "max_state_dim": 32,
        "max_action_dim": 32,
        "resize_imgs_with_padding": [512, 512],
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "tokenizer_max_length": 48,
        "num_steps": 10,
        "use_cache": True,
        "freeze_vision_encoder": True,
        "train_expert_only": True,
        "train_state_proj": True,
        "optimizer_lr": 1e-4,
        "optimizer_betas": [0.9, 0.95],
        "optimizer_eps": 1e-8,
        "optimizer_weight_decay": 1e-10,
        "optimizer_grad_clip_norm": 10,
        "scheduler_warmup_steps": 1000,
        "scheduler_decay_steps": 30000,
        "scheduler_decay_lr": 2.5e-6,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
        "load_vlm_weights": False,
        "add_image_special_tokens": False,
        "attention_mode": "cross_attn",
        "prefix_length": -1,
        "pad_language_to": "longest",
        "num_expert_layers": -1,
        "num_vlm_layers": 16,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": 0.75,
        "min_period": 4e-3,
        "max_period": 4.0,
        "rtc_config": None,
        "compile_model": False,
        "compile_mode": "max-autotune",
    }


@pytest.mark.parametrize("norm", [10, 10.0, 2.5])
def test_the_clipping_norm_keeps_its_spelling(norm):
    """LeRobot's default is a whole number; 10 and 10.0 are different bytes in a file."""
    config = config_from_json({"type": "smolvla", "optimizer_grad_clip_norm": norm}, where="config.json")
    assert f'"optimizer_grad_clip_norm": {norm},' in config_to_json(config)


def test_what_only_mimetic_knows_is_not_written_to_config_json():
    config = SmolVLAConfig(precision="float32", noise_draws=4, int8=True)
    assert not {"precision", "noise_draws", "int8", "backbone_folder"} & json.loads(config_to_json(config)).keys()


def test_the_folder_of_the_checkpoint_is_known_and_stands_nowhere(fixtures):
    folder = fixtures / "smolvla/tiny_cross"
    config = read_config(folder, {"n_action_steps": 2})
    assert (config.backbone_folder, config.n_action_steps) == (folder, 2)
    assert replace(config, device="meta").backbone_folder == folder  # survives what the training loop does
    assert "backbone_folder" not in [setting.key for setting in settings_of(SmolVLAConfig)]
    assert not [row.flag for row in effective(config, {}) if "folder" in row.flag]
    with pytest.raises(ConfigError, match="has no setting `backbone_folder`"):
        read_config(folder, {"backbone_folder": "/tmp"})


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"use_cache": False}, "`--policy.use_cache=false` cannot sample"),
        ({"use_delta_joint_actions_aloha": True}, "`--policy.use_delta_joint_actions_aloha=true`"),
        ({"resize_imgs_with_padding": None}, "`--policy.resize_imgs_with_padding=null`"),
        ({"resize_imgs_with_padding": (640, 480)}, "`--policy.resize_imgs_with_padding=[640,480]` is not square"),
        ({"attention_mode": "cros_attn"}, "`--policy.attention_mode=cros_attn` must be one of cross_attn, self_attn"),
        ({"pad_language_to": "long"}, "`--policy.pad_language_to=long` must be one of longest, max_length"),
        ({"precision": "fp8"}, "`--policy.precision=fp8` must be one of auto, mixed, released, float32"),
        ({"num_expert_layers": 8}, "`--policy.num_expert_layers=8`: fewer layers than the 16"),
        ({"num_expert_layers": 8, "attention_mode": "self_attn", "self_attn_every_n_layers": 0}, "fewer layers"),
        ({"num_expert_layers": 5, "self_attn_every_n_layers": 0}, "does not divide the 16 layers"),
        ({"num_expert_layers": 32}, "does not divide the 16 layers"),
        ({"n_action_steps": 51}, "`--policy.n_action_steps=51` is larger than `--policy.chunk_size=50`"),
        ({"chunk_size": 0, "n_action_steps": 0}, "`--policy.chunk_size=0` must be at least 1"),
        ({"n_obs_steps": 2}, "`--policy.n_obs_steps=2`: SmolVLA reads one"),
        ({"num_steps": 0}, "`--policy.num_steps=0` must be at least 1"),
        ({"noise_draws": 0}, "`--policy.noise_draws=0` must be at least 1"),
        ({"empty_cameras": -1}, "`--policy.empty_cameras=-1`"),
        ({"min_period": 5.0}, "`--policy.min_period=5.0` must be above 0 and below `--policy.max_period=4.0`"),
        ({"expert_width_multiplier": 0.0}, "`--policy.expert_width_multiplier=0.0`"),
        ({"rtc_config": RTCConfig(max_guidance_weight=0.0)}, "`--policy.rtc_config.max_guidance_weight=0.0`"),
        ({"rtc_config": RTCConfig(debug_maxlen=0)}, "`--policy.rtc_config.debug_maxlen=0`"),
        ({"rtc_config": RTCConfig(prefix_attention_schedule="EXPO")}, "must be one of ZEROS, ONES, LINEAR, EXP"),
        (features(state=33), "`observation.state` has 33 dimensions, more than `--policy.max_state_dim=32`"),
        (features(action=40), "`action` has 40 dimensions, more than `--policy.max_action_dim=32`"),
        (features(14, 7) | {"adapt_to_pi_aloha": True}, "is for 14 dimensions, and `action` has 7"),
        ({"input_features": {STATE: PolicyFeature(FeatureType.STATE, (6,))}}, "at least one camera"),
        ({"input_features": {FRONT: PolicyFeature(FeatureType.VISUAL, (3, 8, 8))}}, "needs `observation.state`"),
        ({"input_features": {STATE: PolicyFeature(FeatureType.STATE, (2, 3))}}, "flat vectors"),
    ],
)
def test_what_cannot_work_is_refused_by_its_flag(changes, wanted):
    problems = SmolVLAConfig(**changes).check()
    assert [text for text in problems if wanted in text], problems


@pytest.mark.parametrize(
    "changes",
    [
        {},
        features(14, 14) | {"adapt_to_pi_aloha": True},
        {"num_expert_layers": 16},
        {"num_expert_layers": 8, "self_attn_every_n_layers": 0},
        {"num_expert_layers": 0, "attention_mode": "self_attn"},
        {"rtc_config": RTCConfig(prefix_attention_schedule="EXP")},
        features(32, 32),
    ],
)
def test_what_works_has_no_problems(changes):
    assert find_problems(SmolVLAConfig(**changes)) == []


def test_every_problem_is_told_once():
    problems = find_problems(SmolVLAConfig(rtc_config=RTCConfig(execution_horizon=0), use_cache=False))
    assert len(problems) == 2


def test_cameras_may_be_absent_but_not_all_of_them():
    inputs = features()["input_features"] | {
        "observation.images.side": PolicyFeature(FeatureType.VISUAL, (3, 8, 8)),
        "observation.images.empty_camera_0": PolicyFeature(FeatureType.VISUAL, (3, 480, 640)),
    }
    config = SmolVLAConfig(input_features=inputs, empty_cameras=1)
    state, other_size = PolicyFeature(FeatureType.STATE, (6,)), PolicyFeature(FeatureType.VISUAL, (3, 7, 9))
    assert config.input_problems({STATE: state, "observation.images.side": other_size}) == []
    (problem,) = config.input_problems({STATE: state, "observation.images.top": other_size})
    assert "`observation.images.front`, `observation.images.side`" in problem
    assert "empty_camera" not in problem
    wide = {STATE: PolicyFeature(FeatureType.STATE, (7,)), FRONT: other_size}
    assert config.input_problems(wide) == ["`observation.state` has shape (7,) in the dataset and (6,) in the policy"]
    assert "does not have" in config.input_problems({FRONT: other_size})[0]


def test_the_preset_is_that_of_lerobot_and_the_shortening_is_told():
    config = SmolVLAConfig(optimizer_lr=2e-4)
    assert config.optimizer_preset() == AdamWConfig(
        lr=2e-4, weight_decay=1e-10, grad_clip_norm=10, betas=(0.9, 0.95), eps=1e-8
    )
    schedule = config.scheduler_preset()
    assert schedule == CosineDecayWithWarmupConfig(
        num_warmup_steps=1000, num_decay_steps=30_000, peak_lr=2e-4, decay_lr=2.5e-6
    )
    told = describe_schedule(schedule, 3000, 2e-4)
    assert told == (
        "learning rate: cosine decay from 0.0002, warm-up 100 steps, "
        "floor 2.5e-06 reached at step 3000 of 3000 (shortened from 30000)"
    )


def test_windows_of_training():
    config = SmolVLAConfig(chunk_size=3, n_action_steps=3)
    assert (config.action_delta_indices, config.observation_delta_indices) == ([0, 1, 2], None)
    assert (config.reward_delta_indices, config.drop_n_last_frames) == (None, 0)


def test_the_command_line_knows_the_policy():
    flags = ["--dataset.repo_id=me/data", "--policy.type=smolvla", "--policy.rtc_config.execution_horizon=7"]
    flags += ["--policy.resize_imgs_with_padding=[256,256]", "--policy.precision=mixed", "--policy.push_to_hub=false"]
    parsed = parse(TrainConfig, flags, prog="mimetic train")
    policy = parsed.value.policy
    assert policy == SmolVLAConfig(
        rtc_config=RTCConfig(execution_horizon=7),
        resize_imgs_with_padding=(256, 256),
        precision="mixed",
        push_to_hub=False,
    )
    config, origins = with_preset(parsed.value, parsed.origins)
    assert config.scheduler == policy.scheduler_preset()
    assert origins["scheduler.num_decay_steps"] == origins["optimizer.betas"] == "preset"


def test_a_typed_wrong_word_gets_the_right_ones():
    flags = ["--dataset.repo_id=me/data", "--policy.type=smolvla", "--policy.attention_mode=cross"]
    with pytest.raises(ConfigError, match=r"cross_attn.*self_attn"):
        parse(TrainConfig, flags, prog="mimetic train")


def rtc(**extra):
    return {"type": "smolvla", "rtc_config": {"enabled": True, "execution_horizon": 6, **extra}}


def test_a_newer_config_is_read_where_the_new_field_changes_nothing():
    config = config_from_json(rtc(mode="guided"), where="config.json")
    assert config.rtc_config == RTCConfig(execution_horizon=6)
    assert '"mode"' not in config_to_json(config)


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (rtc(mode="trained"), r'`rtc_config.mode` = "trained"'),
        (rtc(speed=2), "`rtc_config.speed` = 2"),
        ({"type": "smolvla", "teacher": "big", "student": None}, '`teacher` = "big", `student` = null'),
    ],
)
def test_a_newer_config_that_changes_something_is_refused_with_its_fields(data, wanted):
    with pytest.raises(CheckpointError) as error:
        config_from_json(data, where="config.json")
    assert f"config.json has settings that mimetic does not know: {wanted}" in error.value.message
