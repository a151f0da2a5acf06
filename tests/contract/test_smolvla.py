"""SmolVLA through the contract of all policies: attention modes, trained parts, precisions."""

from __future__ import annotations

import pytest
import torch

from mimetic.errors import ShapeError
from mimetic.testing.policy import PolicyContract
from mimetic.testing.smolvla import (
    FRONT,
    TOKEN_MASK,
    TOKENS,
    WRIST,
    tiny_smolvla_batch,
    tiny_smolvla_config,
    write_tiny_vlm,
)


@pytest.fixture(scope="session")
def tiny_vlm(tmp_path_factory):
    return write_tiny_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


class SmolVLAContract(PolicyContract):
    is_deterministic = False
    settings: dict[str, object] = {}

    @pytest.fixture(autouse=True)
    def _vlm(self, tiny_vlm):
        self.vlm = tiny_vlm

    def config(self):
        return tiny_smolvla_config(self.vlm, **self.settings)

    def batch(self, size):
        return tiny_smolvla_batch(self.config(), size)

    def _inputs(self):
        # Cameras are told apart by nothing but their order, may be of any size, and one of them is enough.
        return [key for key in super()._inputs() if ".images." not in key]

    def test_one_camera_is_enough_and_none_is_named(self):
        policy, batch = self.policy(), self.batch(2)
        for key in (FRONT, WRIST):
            self._loss(policy, {name: value for name, value in batch.items() if name != key})
        without = {name: value for name, value in batch.items() if name not in (FRONT, WRIST)}
        with pytest.raises(ShapeError, match=FRONT):
            self._loss(policy, without)

    @pytest.mark.parametrize("key", [TOKENS, TOKEN_MASK])
    def test_a_missing_instruction_is_named(self, key):
        batch = {name: value for name, value in self.batch(2).items() if name != key}
        with pytest.raises(ShapeError, match=TOKENS):
            self._loss(self.policy(), batch)

    def test_frames_as_bytes_are_refused(self):
        batch = self.batch(2)
        batch[FRONT] = (batch[FRONT] * 255).to(torch.uint8)
        with pytest.raises(ShapeError, match="uint8"):
            self._loss(self.policy(), batch)

    def test_a_sample_s_chunk_does_not_depend_on_the_rest_of_the_batch(self):
        policy, batch = self.policy(), self.batch(3)
        noise = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(1))
        alone = policy.predict_chunk({key: value[1:2] for key, value in batch.items()}, noise=noise[1:2])
        together = policy.predict_chunk(batch, noise=noise)[1:2]
        # Other sums in float32; in bfloat16 a rounding step of 2^-8 on velocities of about 1.
        tolerance = 1e-5 if policy.config.precision == "float32" else 2e-2
        torch.testing.assert_close(together, alone, rtol=0, atol=tolerance)

    def test_actions_come_from_a_queue_until_it_is_empty(self):
        policy = self.policy()
        first, other = ({key: value[i : i + 1] for key, value in self.batch(3).items()} for i in (0, 1))
        noise = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(1))
        chunk, next_chunk = policy.predict_chunk(first, noise=noise), policy.predict_chunk(other, noise=noise)
        policy.reset()
        for step in range(3):
            assert torch.equal(policy.select_action(first if step == 0 else other, noise=noise), chunk[:, step])
        assert torch.equal(policy.select_action(other, noise=noise), next_chunk[:, 0])
        policy.reset()
        assert torch.equal(policy.select_action(first, noise=noise), chunk[:, 0])

    def test_noise_of_another_shape_is_refused(self):
        with pytest.raises(ShapeError, match=r"\(3, 8, 4\)"):
            self.policy().predict_chunk(self.batch(3), noise=torch.randn(3, 8, 4))


class TestDefault(SmolVLAContract):
    pass


class TestMixedPrecision(SmolVLAContract):
    settings = {"precision": "mixed"}


class TestReleasedPrecision(SmolVLAContract):
    settings = {"precision": "released"}

    # Autocast's gradients have the dtype of the parameters, which here is bfloat16 on purpose.
    test_bfloat16_autocast_gives_nearly_the_same_loss = None


class TestSelfAttentionWithMarkers(SmolVLAContract):
    settings = {"attention_mode": "self_attn", "add_image_special_tokens": True, "prefix_length": 30}


class TestAllCrossWithHalfTheLayers(SmolVLAContract):
    settings = {"self_attn_every_n_layers": 0, "num_expert_layers": 2}


class TestEverythingTrained(SmolVLAContract):
    settings = {"train_expert_only": False, "freeze_vision_encoder": False}


class TestEverythingTrainedInMixedPrecision(SmolVLAContract):
    settings = {"train_expert_only": False, "freeze_vision_encoder": False, "precision": "mixed"}


class TestWithoutStateProjection(SmolVLAContract):
    settings = {"train_state_proj": False}


class TestSeveralDraws(SmolVLAContract):
    settings = {"noise_draws": 3}
