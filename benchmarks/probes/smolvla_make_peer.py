"""LeRobot writes a full-size SmolVLA checkpoint with random weights. Argument: JSON with `vlm`, `variant`, `target`.

`released` also gives the VLM's folder random bfloat16 weights, because `load_vlm_weights` needs them; the other
variants get everything but `model.safetensors`.
"""

import json
import sys
from pathlib import Path

import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

settings = json.loads(sys.argv[1])
vlm, target, variant = Path(settings["vlm"]), Path(settings["target"]), settings["variant"]
torch.manual_seed(0)

cameras = {
    f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, 480, 640)) for name in ("front", "wrist")
}
config = SmolVLAConfig(
    input_features={"observation.state": PolicyFeature(FeatureType.STATE, (6,)), **cameras},
    output_features={"action": PolicyFeature(FeatureType.ACTION, (6,))},
    device="cpu",
    push_to_hub=False,
    vlm_model_name=str(vlm),
    load_vlm_weights=variant != "float32",
    **({"pad_language_to": "max_length", "prefix_length": 0} if variant == "padded" else {}),
)
stats = {
    name: {"mean": torch.zeros(6), "std": torch.ones(6), "min": -torch.ones(6), "max": torch.ones(6)}
    for name in ("observation.state", "action")
}
if variant == "released":
    if not (vlm / "model.safetensors").exists():
        from transformers import AutoConfig, AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(vlm), dtype=torch.bfloat16)
        small = (vlm / "config.json").read_bytes()
        model.to(torch.bfloat16).save_pretrained(vlm)
        (vlm / "config.json").write_bytes(small)
        del model
    SmolVLAPolicy(config).save_pretrained(target)
else:
    target.mkdir(parents=True, exist_ok=True)
    config._save_pretrained(target)
before, after = make_pre_post_processors(config, dataset_stats=stats)
before.save_pretrained(target)
after.save_pretrained(target)
