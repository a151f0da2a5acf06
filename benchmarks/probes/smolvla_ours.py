"""mimetic's full-size SmolVLA: training steps, chunks, memory. Arguments: checkpoint folder, overrides (JSON)."""

import json
import sys
import time
from typing import Any

import torch
from serve import serve
from smolvla_bench import (
    CAMERAS,
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
from mimetic.optim.build import make_optimizer  # noqa: E402
from mimetic.optim.clip import clip_gradients  # noqa: E402
from mimetic.policies.checkpoint import load_pretrained  # noqa: E402
from mimetic.policies.smolvla.policy import SmolVLAPolicy  # noqa: E402

imported = time.perf_counter(), time.process_time()
policy = load_pretrained(sys.argv[1], config_overrides=json.loads(sys.argv[2])).policy
assert isinstance(policy, SmolVLAPolicy)
LOADED = {
    "import_s": imported[0] - before[0],
    "load_s": time.perf_counter() - imported[0],
    "load_cpu_s": time.process_time() - imported[1],
    **memory_mb(),
}
SLOTS = 48 if policy.config.pad_language_to == "max_length" else 12
FEATURES = "observation.features."
parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
optimizer: Any = None
cached: dict[int, dict[str, Any]] = {}
originals: dict[str, Any] = {}


def loaded() -> dict[str, Any]:
    """Cost of building the policy."""
    return LOADED


def batch_of(size: int, features: bool) -> dict[str, Any]:
    """The training batch, with the vision features in place of the frames when asked for."""
    if not features:
        return training_batch(size, SLOTS)
    if size not in cached:
        encoder = policy.frame_encoder()
        assert not isinstance(encoder, str), encoder
        data = training_batch(size, SLOTS)
        for camera in CAMERAS:
            # One frame at a time, so that making the features does not set the highest mark of memory.
            rows = [encoder.encode(frame) for frame in data.pop(camera)]
            data[FEATURES + camera.removeprefix("observation.")] = torch.cat(rows)
        cached[size] = data
    return dict(cached[size])


def step(batch: int, steps: int, features: bool) -> dict[str, Any]:
    """Training steps."""
    global optimizer
    data = batch_of(batch, features)
    policy.train()
    if optimizer is None:
        optimizer = make_optimizer(policy.config.optimizer_preset(), policy.optim_groups())
    clocks = _clocks()
    torch.manual_seed(3)
    clip = clip_gradients
    loss = run_steps(steps, lambda: policy.loss(data)[0], lambda: clip(parameters, 10.0), optimizer, clocks)
    return clocks.found() | {"loss": loss} | memory_mb()


def prepare(batch: int) -> dict[str, Any]:
    """Compute the features of a batch beforehand, as the cache does."""
    batch_of(batch, True)
    return {}


def first_loss(batch: int, features: bool) -> dict[str, Any]:
    """Loss and the memory that its graph keeps."""
    data = batch_of(batch, features)
    policy.train()
    kept = KeptForBackward(
        [*policy.parameters(), *(value for value in data.values() if isinstance(value, torch.Tensor))]
    )
    torch.manual_seed(3)
    with kept.watching():
        loss = policy.loss(data)[0]
    return {"loss": float(loss.detach()), "kept_mb": kept.mb}


def chunk(repeats: int) -> dict[str, Any]:
    """Action chunks from one observation."""
    data, start, clocks = observation(SLOTS), noise(), _clocks()
    actions = run_chunks(repeats, lambda: policy.predict_chunk(data, noise=start), clocks)
    return clocks.found() | {"actions": actions} | memory_mb()


def _clocks() -> Clocks:
    """Clocks on the parts; they wrap methods from outside, so what the policy compiled or bound stays as it is."""
    clocks = Clocks()
    for owner, method, name in (
        (policy.model, "encode_frames", "vision"),
        (policy.model, "read_prefix", "prefix"),
        (policy.model, "prepare_prefix", "projection"),
        (policy, "_velocity", "expert"),
    ):
        own = originals.setdefault(method, getattr(owner, method))
        object.__setattr__(owner, method, own)
        clocks.wrap(owner, method, name)
    return clocks


def peak_of(task: str, **request: Any) -> dict[str, Any]:
    """Peak memory of a task without that of loading."""
    forget_peak()
    return answer(task, **request)


def answer(what: str, **request: Any) -> dict[str, Any]:
    """One task by name."""
    tasks = {
        "loaded": loaded,
        "prepare": prepare,
        "step": step,
        "first_loss": first_loss,
        "chunk": chunk,
        "peak": peak_of,
    }
    return tasks[what](**request)


serve(answer)
