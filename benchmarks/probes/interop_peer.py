"""What LeRobot makes of a checkpoint or a dataset. Arguments: `actions` or `items`, input file, output file (npz).

`actions`: the input holds `folder` and `observation/<name>` (n, ...); written are the actions that `select_action`
gives for the n observations in turn, through the checkpoint's own processors, and the normalised chunk of each.
`items`: the input is JSON: `root`, `delta_timestamps`, `episodes`, `positions`, `uint8`; written are the items.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch


def actions(source: str, target: str) -> None:
    """Run a checkpoint on observations."""
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors

    torch.set_num_threads(1)
    data = np.load(source)
    folder = str(data["folder"])
    policy = ACTPolicy.from_pretrained(folder)
    policy.eval()
    before, after = make_pre_post_processors(policy.config, pretrained_path=folder)
    names = {key.removeprefix("observation/"): key for key in data.files if key.startswith("observation/")}
    selected, chunks = [], []
    policy.reset()
    for number in range(len(data[next(iter(names.values()))])):
        observation = {name: torch.from_numpy(data[key][number : number + 1]) for name, key in names.items()}
        batch = before(observation)
        with torch.inference_mode():
            selected.append(after(policy.select_action(batch)).numpy())
            chunks.append(policy.predict_action_chunk(batch).numpy())
    np.savez(target, actions=np.concatenate(selected), chunks=np.concatenate(chunks))


def items(source: str, target: str) -> None:
    """Read items of a dataset."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    job = json.loads(Path(source).read_text())
    dataset = LeRobotDataset(
        "interop/dataset",
        root=job["root"],
        episodes=job["episodes"],
        delta_timestamps=job["delta_timestamps"],
        return_uint8=job["uint8"],
    )
    out, keys = {"length": np.array(len(dataset))}, []
    for position in job["positions"]:
        item = dataset[position]
        keys.append(list(item))
        for name, value in item.items():
            out[f"{position}/{name}"] = value.numpy() if isinstance(value, torch.Tensor) else np.array(value)
    np.savez(target, keys=np.array(json.dumps(keys)), **out)


{"actions": actions, "items": items}[sys.argv[1]](sys.argv[2], sys.argv[3])
