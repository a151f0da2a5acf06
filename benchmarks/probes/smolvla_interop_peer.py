"""What LeRobot makes of a SmolVLA checkpoint, or a new one from it. Arguments: job (JSON file), output path.

Jobs: `{"task": "run", "folder", "observation": npz}` writes the preprocessed inputs, the chunk for the given noise and
the same after the postprocessor, as npz; with an adapter in the folder it goes onto the base policy that it names.
`{"task": "make", "config": {...}, "seed"}` saves a new policy with its processors.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import make_pre_post_processors
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy


def run(job: dict[str, Any], target: str) -> None:
    """Run a checkpoint on a raw observation."""
    folder = job["folder"]
    config = PreTrainedConfig.from_pretrained(folder)
    config.device = "cpu"
    if (Path(folder) / "adapter_config.json").exists():
        from peft import PeftModel

        base = SmolVLAPolicy.from_pretrained(str(config.pretrained_path), config=config)
        policy: Any = PeftModel.from_pretrained(base, folder).get_base_model()
    else:
        policy = SmolVLAPolicy.from_pretrained(folder, config=config)
    policy.eval()
    before, after = make_pre_post_processors(config, pretrained_path=folder)
    data = np.load(job["observation"])
    raw = {name: torch.from_numpy(data[name]) for name in data.files if name.startswith("observation.")}
    batch = before({**raw, "task": str(data["task"])})
    with torch.inference_mode():
        chunk = policy.predict_action_chunk(batch, noise=torch.from_numpy(data["noise"]))
    inputs = {name: value.numpy() for name, value in batch.items() if name.startswith("observation.")}
    np.savez(target, chunk=chunk.float().numpy(), actions=after(chunk).float().numpy(), **inputs)


def make(job: dict[str, Any], target: str) -> None:
    """A new policy with random weights; every parameter is moved, so that no zero or one hides a missing term."""
    scratch = Path(target)
    scratch.mkdir(parents=True)
    (scratch / "config.json").write_text(json.dumps(job["config"]))
    config = PreTrainedConfig.from_pretrained(target)
    torch.manual_seed(job["seed"])
    policy = SmolVLAPolicy(config)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    stats = {
        name: {"mean": torch.linspace(-1, 1, size), "std": torch.linspace(0.5, 2, size)}
        for name, size in job["sizes"].items()
    }
    policy.save_pretrained(scratch)
    for pipeline in make_pre_post_processors(config, dataset_stats=stats):
        pipeline.save_pretrained(scratch)


torch.set_num_threads(1)
job = json.loads(Path(sys.argv[1]).read_text())
{"run": run, "make": make}[job["task"]](job, sys.argv[2])
