"""A small ACT, and ACT's forward pass without any shortcut: what the fast network is compared with in tests.

Cameras go through the backbone one by one, norms stay apart from their convolutions, every token and every attention
weight is computed, and attention is torch's own `multi_head_attention_forward`.

Shape letters as in `policies/act/network.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.features import FeatureType, PolicyFeature
from mimetic.policies.act.config import ACTConfig
from mimetic.policies.act.network import ACTNetwork, DecoderLayer, Encoder, EncoderLayer, Prediction
from mimetic.policies.base import Policy
from mimetic.policies.bricks.attention import MultiheadAttention
from mimetic.policies.bricks.positions import sine_map
from mimetic.policies.bricks.resnet import BasicBlock, Bottleneck, ResNet
from mimetic.policies.build import make_policy
from mimetic.policies.config import PolicyConfig

_TINY: dict[str, Any] = {
    "chunk_size": 8,
    "n_action_steps": 8,
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 32,
    "n_encoder_layers": 2,
    "n_decoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
    "pretrained_backbone_weights": None,
}


def tiny_act(*, cameras: Mapping[str, tuple[int, int, int]] | None = None, seed: int = 0, **settings: Any) -> Policy:
    """A small ACT on the CPU over joint positions (6), an environment state (5) and the cameras given.

    Args:
        cameras: shape (C, H, W) by feature name.
        seed: of its weights; the global generator is left as it was.
        settings: fields of `ACTConfig` that differ.
    """
    inputs = {"observation.state": PolicyFeature(FeatureType.STATE, (6,))}
    inputs["observation.environment_state"] = PolicyFeature(FeatureType.ENV, (5,))
    inputs |= {key: PolicyFeature(FeatureType.VISUAL, shape) for key, shape in (cameras or {}).items()}
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (4,))}
    config = ACTConfig(input_features=inputs, output_features=outputs, **{**_TINY, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_policy(config, device="cpu")


def act_batch(config: PolicyConfig, *, size: int, seed: int) -> dict[str, Tensor]:
    """A preprocessed training batch (size, ...) of random numbers for such a policy, without padding."""
    assert isinstance(config, ACTConfig)
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: feature.shape for key, feature in (config.input_features or {}).items()}
    shapes["action"] = (config.chunk_size, *(config.output_features or {})["action"].shape)
    batch = {key: torch.randn(size, *shape, generator=generator) for key, shape in shapes.items()}
    return batch | {"action_is_pad": torch.zeros(size, config.chunk_size, dtype=torch.bool)}


def plain_forward(
    network: ACTNetwork,
    config: ACTConfig,
    *,
    state: Tensor | None = None,
    env_state: Tensor | None = None,
    images: Sequence[Tensor] = (),
    actions: Tensor | None = None,
    action_is_pad: Tensor | None = None,
    eps: Tensor | None = None,
    record: dict[str, Tensor] | None = None,
) -> Prediction:
    """The same as `ACTNetwork.forward`, step by step.

    Args:
        network: the network whose weights are used.
        config: its settings.
        state: (B, P).
        env_state: (B, E).
        images: N cameras, (B, 3, H, W) each.
        actions: (B, K, A).
        action_is_pad: (B, K) bool.
        eps: (B, Z), noise of the latent; drawn when absent.
        record: filled with intermediate results by name: vae_encoder, encoder, decoder (S, B, D), backbone_cam0.
    """
    record = {} if record is None else record
    first = next(x for x in (state, env_state, *images) if x is not None)
    batch_size = first.shape[0]
    mu = log_sigma_x2 = None
    if network.use_vae and actions is not None and action_is_pad is not None:
        tokens = [network.vae_encoder_cls_embed.weight.unsqueeze(0).repeat(batch_size, 1, 1)]
        if state is not None:
            tokens.append(network.vae_encoder_robot_state_input_proj(state).unsqueeze(1))
        tokens.append(network.vae_encoder_action_input_proj(actions))
        padding = torch.cat([torch.zeros(batch_size, len(tokens) - 1, dtype=torch.bool), action_is_pad], dim=1)
        positions = network.vae_encoder_pos_enc.permute(1, 0, 2)
        sequence = torch.cat(tokens, dim=1).permute(1, 0, 2)
        encoded = _encoder(network.vae_encoder, sequence, positions, padding)
        record["vae_encoder"] = encoded
        summary = network.vae_encoder_latent_output_proj(encoded[0])
        mu, log_sigma_x2 = summary[:, : config.latent_dim], summary[:, config.latent_dim :]
        latent = mu + log_sigma_x2.div(2).exp() * (torch.randn_like(mu) if eps is None else eps)
    else:
        latent = torch.zeros(batch_size, config.latent_dim)

    rows = [network.encoder_latent_input_proj(latent)]
    if state is not None:
        rows.append(network.encoder_robot_state_input_proj(state))
    if env_state is not None:
        rows.append(network.encoder_env_state_input_proj(env_state))
    places = list(network.encoder_1d_feature_pos_embed.weight.unsqueeze(1))
    for image in images:
        features = plain_backbone(network.backbone, image)
        record.setdefault("backbone_cam0", features)
        place = sine_map(*features.shape[2:], config.dim_model, torch.float32, torch.device("cpu"))
        features = network.encoder_img_feat_input_proj(features)
        rows.extend(list(features.flatten(2).permute(2, 0, 1)))
        places.extend(list(place.flatten(2).permute(2, 0, 1)))
    positions = torch.stack(places)
    memory = _encoder(network.encoder, torch.stack(rows), positions)
    record["encoder"] = memory

    x = torch.zeros(config.chunk_size, batch_size, config.dim_model)
    for layer in network.decoder.layers:
        assert isinstance(layer, DecoderLayer)
        x = _decoder_layer(layer, x, memory, positions, network.decoder_pos_embed.weight.unsqueeze(1))
    x = network.decoder.norm(x)
    record["decoder"] = x
    return Prediction(network.action_head(x.transpose(0, 1)), mu, log_sigma_x2)


def plain_inputs(config: ACTConfig, batch: Mapping[str, Tensor]) -> dict[str, Tensor | list[Tensor] | None]:
    """The observations of a batch as arguments of `plain_forward` and `ACTNetwork.forward`."""
    return {
        "state": batch["observation.state"] if config.robot_state_feature else None,
        "env_state": batch[config.env_state_key] if config.env_state_key else None,
        "images": [batch[key] for key in config.image_features],
    }


def plain_backbone(backbone: ResNet, image: Tensor) -> Tensor:
    """Feature map of one camera, convolutions and norms apart."""
    x = F.relu(backbone.bn1(backbone.conv1(image)))
    x = F.max_pool2d(x, 3, 2, 1)
    for stage in (backbone.layer1, backbone.layer2, backbone.layer3, backbone.layer4):
        for block in stage:
            assert isinstance(block, (BasicBlock, Bottleneck))
            shortcut = x if block.downsample is None else block.downsample(x)
            x = block.bn2(block.conv2(F.relu(block.bn1(block.conv1(x)))))
            if isinstance(block, Bottleneck):
                x = block.bn3(block.conv3(F.relu(x)))
            x = F.relu(x + shortcut)
    return x


def _attention(layer: MultiheadAttention, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
    out, _ = F.multi_head_attention_forward(
        q,
        k,
        v,
        embed_dim_to_check=q.shape[-1],
        num_heads=layer.n_heads,
        in_proj_weight=layer.in_proj_weight,
        in_proj_bias=layer.in_proj_bias,
        bias_k=None,
        bias_v=None,
        add_zero_attn=False,
        dropout_p=layer.dropout,
        out_proj_weight=layer.out_proj.weight,
        out_proj_bias=layer.out_proj.bias,
        training=layer.training,
        key_padding_mask=padding,
        need_weights=True,
    )
    return out


def _encoder(encoder: Encoder, x: Tensor, positions: Tensor, padding: Tensor | None = None) -> Tensor:
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        skip = x
        if layer.pre_norm:
            x = layer.norm1(x)
        q = x + positions
        x = skip + _drop(layer, _attention(layer.self_attn, q, q, x, padding))
        if layer.pre_norm:
            x = x + _feed_forward(layer, layer.norm2(x))
        else:
            x = layer.norm1(x)
            x = layer.norm2(x + _feed_forward(layer, x))
    out: Tensor = encoder.norm(x)
    return out


def _decoder_layer(layer: DecoderLayer, x: Tensor, memory: Tensor, positions: Tensor, queries: Tensor) -> Tensor:
    skip = x
    if layer.pre_norm:
        x = layer.norm1(x)
    q = x + queries
    x = skip + _drop(layer, _attention(layer.self_attn, q, q, x))
    if layer.pre_norm:
        skip, x = x, layer.norm2(x)
    else:
        skip = x = layer.norm1(x)
    x = skip + _drop(layer, _attention(layer.multihead_attn, x + queries, memory + positions, memory))
    if layer.pre_norm:
        return x + _feed_forward(layer, layer.norm3(x))
    x = layer.norm2(x)
    out: Tensor = layer.norm3(x + _feed_forward(layer, x))
    return out


def _feed_forward(layer: EncoderLayer | DecoderLayer, x: Tensor) -> Tensor:
    hidden = layer.linear1(x)
    hidden = F.gelu(hidden) if layer.activation == "gelu" else F.relu(hidden)
    return _drop(layer, layer.linear2(_drop(layer, hidden)))


def _drop(layer: nn.Module, x: Tensor) -> Tensor:
    return F.dropout(x, float(layer.dropout), layer.training)  # type: ignore[arg-type]
