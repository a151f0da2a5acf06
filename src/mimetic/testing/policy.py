"""What every policy must do, as a test class to subclass.

    class TestACT(PolicyContract):
        def config(self) -> PolicyConfig: ...
        def batch(self, size: int) -> dict[str, torch.Tensor]: ...

Nothing here knows a policy by name; all checks run on the CPU in about a second for a tiny policy.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mimetic.errors import ShapeError
from mimetic.names import ACTION, PAD_SUFFIX
from mimetic.policies.base import Policy
from mimetic.policies.build import make_policy
from mimetic.policies.config import PolicyConfig

_BF16_RTOL = 0.05
_IS_PAD = ACTION + PAD_SUFFIX


class _Noted(Mapping[str, Tensor]):
    """A batch that notes whether it was read."""

    def __init__(self, values: Mapping[str, Tensor]) -> None:
        self._values = values
        self.was_read = False

    def _read(self) -> Mapping[str, Tensor]:
        self.was_read = True
        return self._values

    def __getitem__(self, key: str) -> Tensor:
        return self._read()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class PolicyContract(ABC):
    """Subclass, give a tiny config and a batch, and name the subclass `Test...`."""

    _template: ClassVar[Policy]

    is_deterministic = True
    """Whether predicting draws no random numbers."""

    @abstractmethod
    def config(self) -> PolicyConfig:
        """A tiny config with its features, `n_action_steps` smaller than the chunk."""

    @abstractmethod
    def batch(self, size: int) -> dict[str, Tensor]:
        """A preprocessed training batch, always the same for a size; its last sample must have padded actions."""

    def observation(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """What `select_action` gets of a batch; a policy that remembers earlier frames gets the last one alone."""
        return batch

    def policy(self) -> Policy:
        """A fresh policy, the same at every call."""
        kind = type(self)
        if "_template" not in vars(kind):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(7)
                kind._template = make_policy(self.config())
        return copy.deepcopy(kind._template)

    def _loss(self, policy: Policy, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return policy.loss(batch)

    def _predict(self, policy: Policy, batch: dict[str, Tensor]) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            return policy.predict_chunk(batch)

    def test_loss_is_a_finite_scalar_with_detached_parts(self) -> None:
        """Scalar, finite, differentiable; the parts are tensors that hold no graph."""
        loss, parts = self._loss(self.policy().train(), self.batch(3))
        assert loss.shape == ()
        assert loss.requires_grad
        assert torch.isfinite(loss)
        assert parts
        for value in parts.values():
            assert isinstance(value, Tensor)
            assert value.shape == ()
            assert not value.requires_grad

    def test_calling_the_policy_is_its_loss(self) -> None:
        """Wrappers for distributed training call `forward`."""
        policy, batch = self.policy().train(), self.batch(3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            called = policy(batch)[0]
        assert torch.equal(called, self._loss(policy, batch)[0])

    def test_every_trainable_parameter_gets_a_gradient(self) -> None:
        """Except those that the policy declares unused, which get none."""
        policy = self.policy().train()
        self._loss(policy, self.batch(3))[0].backward()  # type: ignore[no-untyped-call]
        without = {name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None}
        assert without == set(policy.unused_parameters)

    def test_parameter_groups_hold_each_trainable_parameter_once(self) -> None:
        """No parameter is forgotten or trained twice."""
        policy = self.policy()
        grouped = [id(p) for group in policy.optim_groups() for p in group["params"]]
        assert len(grouped) == len(set(grouped))
        assert {id(p) for p in policy.parameters() if p.requires_grad} <= set(grouped)

    def test_padded_actions_do_not_change_the_loss(self) -> None:
        """Neither values nor NaN in frames after the end of an episode reach the loss or a gradient."""
        losses, gradients = [], []
        for garbage in (0.0, 1e4, float("nan")):
            batch = self.batch(3)
            assert batch[_IS_PAD].any()
            batch[ACTION] = batch[ACTION].masked_fill(batch[_IS_PAD][:, :, None], garbage)
            policy = self.policy().train()
            loss = self._loss(policy, batch)[0]
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
            gradients.append([p.grad for p in policy.parameters() if p.grad is not None])
        assert losses[0] == losses[1] == losses[2]
        for others in gradients[1:]:
            assert all(torch.equal(a, b) for a, b in zip(gradients[0], others, strict=True))

    def test_chunk_has_its_shape_and_needs_no_gradient(self) -> None:
        """(B, chunk, A), also for a batch of one; the policy is in evaluation mode afterwards."""
        policy = self.policy().train()
        for size in (1, 3):
            chunk = self._predict(policy, self.batch(size))
            assert chunk.shape == self.batch(size)[ACTION].shape
            assert not chunk.requires_grad
        assert not policy.training

    def test_prediction_is_repeatable(self) -> None:
        """The same batch and seed give the same bits; a deterministic policy draws nothing."""
        policy, batch = self.policy(), self.batch(2)
        before = torch.get_rng_state()
        assert torch.equal(self._predict(policy, batch), self._predict(policy, batch))
        if self.is_deterministic:
            policy.predict_chunk(batch)
            assert torch.equal(torch.get_rng_state(), before)

    def test_prediction_of_a_sample_does_not_depend_on_the_rest_of_the_batch(self) -> None:
        """Rows of a batch are independent."""
        if self.is_deterministic:
            policy, batch = self.policy(), self.batch(3)
            alone = policy.predict_chunk({key: value[1:2] for key, value in batch.items()})
            torch.testing.assert_close(policy.predict_chunk(batch)[1:2], alone, rtol=1e-4, atol=1e-5)

    def test_actions_are_selected_from_a_queue_until_it_is_empty(self) -> None:
        """n_action_steps actions of one chunk, then those of the next; `reset` empties the queue."""
        if not self.is_deterministic:
            return
        policy, n_steps = self.policy(), int(getattr(self.config(), "n_action_steps", 1))
        first = {key: value[:1] for key, value in self.batch(3).items()}
        other = {key: value[1:2] for key, value in self.batch(3).items()}
        chunk, next_chunk = policy.predict_chunk(first), policy.predict_chunk(other)
        policy.reset()
        for step in range(n_steps):
            action = policy.select_action(self.observation(first if step == 0 else other))
            assert torch.equal(action, chunk[:, step])
        assert torch.equal(policy.select_action(self.observation(other)), next_chunk[:, 0])
        policy.reset()
        assert torch.equal(policy.select_action(self.observation(first)), chunk[:, 0])

    def test_it_says_beforehand_whether_it_reads_the_observation(self) -> None:
        """An evaluation draws no pictures where it says no, so a wrong no fails there and a wrong yes wastes time.

        It counts and times the calls that read and predict.
        """
        policy, n_steps = self.policy(), int(getattr(self.config(), "n_action_steps", 1))
        values = self.observation({key: value[:1] for key, value in self.batch(3).items()})
        for calls in (2 * n_steps, 1, 2 * n_steps):  # the second time it is reset in the middle of a queue
            policy.reset()
            assert policy.needs_observation(), "after `reset` the next call reads its batch"
            for call in range(calls):
                says, batch = policy.needs_observation(), _Noted(values)
                predicts = policy.predicts_next()
                with torch.random.fork_rng(devices=[]), patch.object(policy, "predict_chunk") as predict:
                    predict.side_effect = type(policy).predict_chunk.__get__(policy)
                    policy.select_action(batch)
                assert batch.was_read == says, f"call {call}: it said {says}"
                assert predict.called == (says and predicts), f"call {call}: it said that it predicts: {predicts}"

    def test_weights_survive_saving_and_loading(self, tmp_path: Path) -> None:
        """A file of the state dict fills a fresh policy strictly, which then predicts the same bits."""
        policy, batch = self.policy(), self.batch(2)
        state = policy.state_dict()
        assert all(value.is_contiguous() for value in state.values())
        save_file(state, tmp_path / "model.safetensors")
        other = self.policy()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.fill_(1.0)
        other.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
        assert torch.equal(self._predict(policy, batch), self._predict(other, batch))

    def test_a_missing_input_is_named(self) -> None:
        """Every input in turn."""
        policy = self.policy().train()
        for key in self._inputs():
            batch = {name: value for name, value in self.batch(2).items() if name != key}
            self._assert_refused(policy, batch, key)

    def test_an_input_of_another_shape_is_named_with_both_shapes(self) -> None:
        """Every input in turn."""
        policy = self.policy().train()
        for key in self._inputs():
            batch = self.batch(2)
            batch[key] = torch.cat([batch[key], batch[key]], dim=-1)
            message = self._assert_refused(policy, batch, key)
            assert str(tuple(batch[key].shape)) in message

    def test_bfloat16_autocast_gives_nearly_the_same_loss(self) -> None:
        """Finite gradients in float32, and a loss within 5 %."""
        policy, batch = self.policy().train(), self.batch(3)
        expected = self._loss(policy, batch)[0].item()
        with torch.autocast("cpu", torch.bfloat16):
            loss = self._loss(policy, batch)[0]
        loss.backward()  # type: ignore[no-untyped-call]
        assert abs(loss.item() - expected) <= _BF16_RTOL * abs(expected)
        for name, parameter in policy.named_parameters():
            if parameter.grad is not None:
                assert parameter.grad.dtype is torch.float32, name
                assert torch.isfinite(parameter.grad).all(), name

    def _inputs(self) -> list[str]:
        features = {**(self.config().input_features or {}), **(self.config().output_features or {})}
        return [key for key in features if key in self.batch(1)]

    def _assert_refused(self, policy: Policy, batch: dict[str, Tensor], key: str) -> str:
        caught: ShapeError | None = None
        try:
            self._loss(policy, batch)
        except ShapeError as error:
            caught = error
        assert caught is not None, f"a batch with a wrong `{key}` was accepted"
        assert f"`{key}`" in caught.message
        assert caught.hint
        return caught.message
