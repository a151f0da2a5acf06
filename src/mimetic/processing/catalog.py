"""Names of processing steps (spec/policies.md 5); importing this imports nothing else.

The table is closed: a pipeline file can only name a row of it, never a Python path, so that reading a checkpoint runs
no code of the checkpoint's author.
"""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_STEPS = "mimetic.processing.steps."

STEPS = Catalog(
    "processing step",
    {
        "rename_observations_processor": Entry(
            _STEPS + "rename_observations:RenameObservations", summary="Renames observations and their companions"
        ),
        "to_batch_processor": Entry(_STEPS + "to_batch:ToBatch", summary="Gives a single sample a batch dimension"),
        "smolvla_new_line_processor": Entry(
            _STEPS + "new_line:EndWithNewLine", summary="Ends each task with a line break"
        ),
        "tokenizer_processor": Entry(
            _STEPS + "tokenizer:Tokenize", extra="smolvla", summary="Turns task texts into token ids"
        ),
        "device_processor": Entry(_STEPS + "device:MoveToDevice", summary="Moves tensors to a device, casts floats"),
        "normalizer_processor": Entry(
            _STEPS + "normalizer:Normalizer", summary="Brings features to the network's range"
        ),
        "unnormalizer_processor": Entry(
            _STEPS + "unnormalizer:Unnormalizer", summary="Brings actions back to their units"
        ),
        **{
            name: Entry()
            for name in (
                "absolute_actions_processor",
                "action_tokenizer_processor",
                "groot_action_unpack_unnormalize_v2",
                "groot_n1_7_action_decode_v1",
                "groot_n1_7_pack_inputs_v1",
                "groot_n1_7_vlm_encode_v1",
                "isaaclab_arena_processor",
                "libero_processor",
                "map_delta_action_to_robot_action",
                "map_tensor_to_delta_action_dict",
                "numpy2torch_action_processor",
                "observation_processor",
                "pi05_prepare_state_tokenizer_processor_step",
                "pi0_new_line_processor",
                "policy_action_to_robot_action_processor",
                "relative_actions_processor",
                "render_messages_processor",
                "robot_action_to_policy_action_processor",
                "to_batch_processor_action",
                "to_batch_processor_complementary_data",
                "to_batch_processor_observation",
                "torch2numpy_action_processor",
            )
        },
    },
)
