"""Feature keys and file names of the interchange formats (LeRobotDataset v3.0, policy checkpoints).

Formats only; anything with behaviour lives in the room that it serves.
"""

from __future__ import annotations

# Feature keys (spec/dataset.md 3, spec/policies.md 2)
OBSERVATION = "observation"
STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
IMAGE = "observation.image"
IMAGES_PREFIX = "observation.images."
FEATURES_PREFIX = "observation.features."
LANGUAGE_TOKENS = "observation.language.tokens"
LANGUAGE_MASK = "observation.language.attention_mask"
LANGUAGE_LONGEST = "observation.language.longest"
LANGUAGE_LARGEST = "observation.language.largest"
ACTION = "action"
REWARD = "next.reward"
DONE = "next.done"
SUCCESS = "next.success"
TRUNCATED = "next.truncated"
TASK = "task"
TASK_INDEX = "task_index"
TIMESTAMP = "timestamp"
FRAME_INDEX = "frame_index"
EPISODE_INDEX = "episode_index"
INDEX = "index"
PAD_SUFFIX = "_is_pad"
VALID_PER_SAMPLE = "action_valid_per_sample"
"""Of the whole batch that a part was cut from (`policies.base.valid_divisor`); no file holds it."""
DEFAULT_FEATURES = (TIMESTAMP, FRAME_INDEX, EPISODE_INDEX, INDEX, TASK_INDEX)

# Dataset files (spec/dataset.md 1)
INFO_JSON = "meta/info.json"
STATS_JSON = "meta/stats.json"
TASKS_PARQUET = "meta/tasks.parquet"
EPISODES_DIR = "meta/episodes"
SIMULATION_JSON = "meta/mimetic/simulation.json"
"""Where the episodes of a simulated recording come from (`mimetic demo record`); LeRobot ignores it."""

NETWORK_PATHS = ("//", "\\\\")
"""Beginnings of paths for which Windows would log in to another machine as soon as it looks whether they exist."""

# Checkpoint files (spec/policies.md 1, spec/training.md 15)
CONFIG_JSON = "config.json"
WEIGHTS = "model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_BINARY = "adapter_model.bin"
ADAPTER_BASE_JSON = "mimetic_adapter.json"
PREPROCESSOR = "policy_preprocessor"
POSTPROCESSOR = "policy_postprocessor"
POLICY_SETTINGS_JSON = "mimetic_policy.json"
TRAIN_CONFIG_JSON = "train_config.json"
MIMETIC_JSON = "mimetic.json"
TOKENIZER_DIR = "tokenizer"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
CHECKPOINTS_DIR = "checkpoints"
LAST = "last"
LAST_TXT = "last.txt"
PRETRAINED_DIR = "pretrained_model"
TRAINING_STATE_DIR = "training_state"
TRAINING_STEP_JSON = "training_step.json"
RNG_STATE = "rng_state.safetensors"
OPTIMIZER_STATE = "optimizer_state.safetensors"
OPTIMIZER_GROUPS_JSON = "optimizer_param_groups.json"
SCHEDULER_STATE_JSON = "scheduler_state.json"
SCALER_STATE_JSON = "scaler_state.json"
METRICS_JSONL = "metrics.jsonl"
WANDB_RUN_JSON = "wandb_run.json"
