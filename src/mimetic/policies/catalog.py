"""Names of policies (spec/policies.md 1); importing this imports nothing else."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

POLICIES = Catalog(
    "policy",
    {
        "act": Entry(
            "mimetic.policies.act.policy:ACTPolicy",
            config="mimetic.policies.act.config:ACTConfig",
            summary="Action Chunking with Transformers: predicts a chunk of actions from cameras and joint positions",
        ),
        "keypoint": Entry(
            "mimetic.policies.keypoint.policy:KeypointPolicy",
            config="mimetic.policies.keypoint.config:KeypointConfig",
            summary=(
                "A small policy that learns on a CPU in minutes: keypoints in the pictures, then a chunk of actions"
            ),
        ),
        "smolvla": Entry(
            "mimetic.policies.smolvla.policy:SmolVLAPolicy",
            config="mimetic.policies.smolvla.config:SmolVLAConfig",
            summary="SmolVLA: a small vision-language model with an action expert, for tasks given in words",
        ),
        **{
            name: Entry()
            for name in (
                "diffusion",
                "pi0",
                "pi05",
                "pi0_fast",
                "groot",
                "eo1",
                "evo1",
                "fastwam",
                "gaussian_actor",
                "lingbot_va",
                "molmoact2",
                "multi_task_dit",
                "tdmpc",
                "vla_jepa",
                "vqbet",
                "wall_x",
                "xvla",
            )
        },
    },
)

REWARD_MODELS = Catalog(
    "reward model", {name: Entry() for name in ("reward_classifier", "robometer", "sarm", "topreward")}
)
