"""LeRobot's full-size SmolVLA: training steps, chunks, memory. Argument: checkpoint folder."""

import sys
import time
from typing import Any

import torch
from serve import serve
from smolvla_bench import (
    Clocks,
    KeptForBackward,
    forget_peak,
    memory_mb,
    noise,
    observation,
    run_chunks,
    run_steps,
    training_batch,
)

before = time.perf_counter(), time.process_time()
from lerobot.policies.factory import make_pre_post_processors  # noqa: E402
from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy  # noqa: E402

imported = time.perf_counter(), time.process_time()
policy = SmolVLAPolicy.from_pretrained(sys.argv[1])
built = time.perf_counter(), time.process_time()
make_pre_post_processors(policy.config, pretrained_path=sys.argv[1])
LOADED = {
    "import_s": imported[0] - before[0],
    "policy_s": built[0] - imported[0],
    "policy_cpu_s": built[1] - imported[1],
    "load_s": time.perf_counter() - imported[0],
    "load_cpu_s": time.process_time() - imported[1],
    **memory_mb(),
}
SLOTS = 48 if policy.config.pad_language_to == "max_length" else 12
parameters = list(policy.parameters())
joint = policy.model.vlm_with_expert
optimizer: Any = None


def loaded() -> dict[str, Any]:
    """Cost of building the policy."""
    return LOADED


def step(batch: int, steps: int) -> dict[str, Any]:
    """Training steps."""
    global optimizer
    policy.train()
    data = training_batch(batch, SLOTS)
    if optimizer is None:
        optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
    clocks = _clocks()
    torch.manual_seed(3)
    clip = torch.nn.utils.clip_grad_norm_
    loss = run_steps(steps, lambda: policy.forward(data)[0], lambda: clip(parameters, 10.0), optimizer, clocks)
    return clocks.found() | {"loss": loss} | memory_mb()


def first_loss(batch: int) -> dict[str, Any]:
    """Loss and the memory that its graph keeps."""
    policy.train()
    data = training_batch(batch, SLOTS)
    kept = KeptForBackward([*parameters, *data.values()])
    torch.manual_seed(3)
    with kept.watching():
        loss = policy.forward(data)[0]
    return {"loss": float(loss.detach()), "kept_mb": kept.mb}


def chunk(repeats: int) -> dict[str, Any]:
    """Action chunks from one observation."""
    data, start, clocks = observation(SLOTS), noise(), _clocks()
    actions = run_chunks(repeats, lambda: policy.predict_action_chunk(data, noise=start), clocks)
    return clocks.found() | {"actions": actions} | memory_mb()


def _clocks() -> Clocks:
    clocks = Clocks()
    for method, name in (("embed_image", "vision"), ("forward", "layers")):
        joint.__dict__.pop(method, None)
        clocks.wrap(joint, method, name)
    return clocks


def peak_of(task: str, **request: Any) -> dict[str, Any]:
    """Peak memory of a task without that of loading."""
    forget_peak()
    return answer(task, **request)


def answer(what: str, **request: Any) -> dict[str, Any]:
    """One task by name."""
    tasks = {"loaded": loaded, "step": step, "first_loss": first_loss, "chunk": chunk, "peak": peak_of}
    return tasks[what](**request)


serve(answer)
