"""LeRobot and peft on adapters of the tiny SmolVLA. Arguments: `read` or `write`, adapter folder, output file.

Run in a folder that holds `tiny_cross`, `vlm_tiny` and `cases`. `write` makes an adapter with more options than LeRobot
has flags for and saves it as LeRobot's training does; both then write the chunk that the adapted policy predicts.
"""

import sys
from pathlib import Path

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

torch.set_num_threads(1)
mode, folder, target = sys.argv[1], sys.argv[2], sys.argv[3]


def written() -> torch.nn.Module:
    """A new adapter with random values, saved."""
    policy = SmolVLAPolicy.from_pretrained("tiny_cross")
    policy.requires_grad_(False)
    torch.manual_seed(0)
    options = LoraConfig(
        target_modules=["q_proj", "state_proj", "action_time_mlp_in"],
        modules_to_save=["action_out_proj"],
        r=3,
        lora_alpha=5,
        use_rslora=True,
        init_lora_weights=False,
    )
    model = get_peft_model(policy, options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.peft_config["default"].base_model_name_or_path = "tiny_cross"
    model.save_pretrained(folder)
    policy.config.use_peft = True
    policy.config.save_pretrained(folder)
    return model


def read() -> torch.nn.Module:
    """The adapter of a folder on the base that it names."""
    description = PeftConfig.from_pretrained(folder)
    config = PreTrainedConfig.from_pretrained(folder)
    assert config.use_peft
    policy = SmolVLAPolicy.from_pretrained(description.base_model_name_or_path, config=config)
    return PeftModel.from_pretrained(policy, folder, config=description)


model = written() if mode == "write" else read()
case = Path("cases/cross_b3")
raw = load_file(case / "raw_batch.safetensors")
batch = load_file(case / "preprocessed.safetensors")
batch |= {key: value.float() / 255 for key, value in raw.items() if value.dtype == torch.uint8}
noise = load_file(case / "sampling.safetensors")["noise"]
model.eval()
save_file({"chunk": model.base_model.model.predict_action_chunk(batch, noise=noise).contiguous()}, target)
