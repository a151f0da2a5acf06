"""The golden cases of SmolVLA (tests/fixtures/smolvla), read once, and policies built for them."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from plain_smolvla import PlainSmolVLA, Sizes
from safetensors.torch import load_file
from torch import Tensor

from mimetic.policies.build import make_policy
from mimetic.policies.checkpoint import load_weights, read_config

SMOLVLA = Path(__file__).parents[1] / "fixtures" / "smolvla"
MODELS = {
    "cross_b3": "tiny_cross",
    "cross_padding_mask": "tiny_cross",
    "self_b3": "tiny_self",
    "allcross_unfrozen_b3": "tiny_allcross",
    "aloha": "tiny_cross",
    "bf16_b3": "tiny_bf16",
    "rtc": "tiny_cross",
}
FLOAT32 = ("cross_b3", "cross_padding_mask", "self_b3", "allcross_unfrozen_b3", "aloha")
WITH_INTERMEDIATES = ("cross_b3", "self_b3", "allcross_unfrozen_b3", "aloha")


class Case:
    """One case.

    Args:
        name: folder below `cases`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = SMOLVLA / "cases" / name
        self.model = SMOLVLA / MODELS[name]
        self.config_folder = self.folder if (self.folder / "config.json").exists() else self.model
        self.config: dict[str, Any] = json.loads((self.config_folder / "config.json").read_text())
        self.expected: dict[str, Tensor] = load_file(self.folder / "expected.safetensors")

    @property
    def numbers(self) -> dict[str, Any]:
        """Content of `expected.json`."""
        return self.json("expected")

    @property
    def sampling(self) -> dict[str, Tensor]:
        """Content of `sampling.safetensors`."""
        return load_file(self.folder / "sampling.safetensors")

    def json(self, name: str) -> Any:
        """Content of a JSON file."""
        return json.loads((self.folder / f"{name}.json").read_text())

    def batch(self) -> dict[str, Tensor]:
        """The preprocessed batch with its cameras, as new tensors; cameras are divided by 255 in float32."""
        raw = load_file(self.folder / "raw_batch.safetensors")
        cameras = {key: value.float() / 255 for key, value in raw.items() if value.dtype == torch.uint8}
        return load_file(self.folder / "preprocessed.safetensors") | cameras

    def policy(self, **changes: Any) -> Any:
        """mimetic's policy with the golden weights, in evaluation mode; float32 unless told otherwise.

        Paths in the fixtures are relative, so the working directory must be `SMOLVLA`.
        """
        config = read_config(self.config_folder, {"precision": "float32", **changes})
        policy = make_policy(config, init_backbone=False)
        load_weights(policy, self.model)
        return policy.eval()

    def plain(self, *, with_gradients: bool = False, **changes: Any) -> PlainSmolVLA:
        """The plain computation with the golden weights."""
        state = load_file(self.model / "model.safetensors")
        config = {**self.config, **changes}
        plain = PlainSmolVLA(state, config, Sizes.of_folder(SMOLVLA / config["vlm_model_name"]))
        for name in plain.trainable() if with_gradients else ():
            state[name].requires_grad_()
        return plain


@lru_cache
def case(name: str) -> Case:
    """A case by its name."""
    return Case(name)


def assert_near(actual: Tensor, expected: Tensor, atol: float, rtol: float = 0.0) -> None:
    """Same shape and dtype, and near enough."""
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def gradient_norms(parameters: Any) -> dict[str, float]:
    """Norm of each gradient by its parameter's name; a parameter without gradient is left out."""
    return {name: p.grad.double().norm().item() for name, p in parameters if p.grad is not None}


def assert_norms_near(found: dict[str, float], expected: dict[str, float], rel: float) -> None:
    """Gradient norms agree, for the same parameters.

    Where the golden norm is below 1e-5 the true gradient is zero (biases of the vision tower's key projections) and
    both numbers are rounding noise; ours must be noise too.
    """
    assert found.keys() == expected.keys()
    for name, norm in expected.items():
        if norm < 1e-5:
            assert found[name] < 1e-5, name
        else:
            assert abs(found[name] - norm) <= rel * norm, (name, found[name], norm)
