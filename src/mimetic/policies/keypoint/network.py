"""The network of the keypoint policy: tensors in, tensors out.

Each camera has four convolutions of its own, whose last maps say where something is: the softmax of a map is a
distribution over the picture, and its mean is a keypoint. Two hidden layers turn keypoints, joint positions and how
they have changed into a chunk; beside them a linear way from the joint positions begins as "stay where you are", so
that only movement must be learned.

No batch norm: the loss of a batch stays the mean over its samples, whatever parts it is computed in.

Shape letters: B batch, C channels, H height, W width, M keypoints, P state dim, K action chunk, A action dim.

Source: Levine et al., End-to-End Training of Deep Visuomotor Policies, 2016; He et al., Delving Deep into Rectifiers,
2015 (initial weights).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.policies.keypoint.config import KeypointConfig

_SHARPNESS_AT_START = 1.5
"""Logarithm of what maps are multiplied by before the softmax: flat ones give every picture the same keypoints."""
_SPREAD = 2.0
"""Keypoints lie in [-1, 1] and mostly near the middle; this brings them to the size of the normalised state."""
_HEIGHT = 0.3
_SMALL_AT_START = 0.1


class KeypointNetwork(nn.Module):
    """From pictures and joint positions to a chunk.

    Args:
        config: settings with input and output features.
    """

    def __init__(self, config: KeypointConfig) -> None:
        super().__init__()
        state, action = config.robot_state_feature, config.action_feature
        if action is None:
            raise ValueError("the config has no feature `action`")
        self.chunk_size, self.n_actions = config.chunk_size, action.shape[0]
        n_state = state.shape[0] if state is not None else 0
        self.cameras = nn.ModuleList(
            CameraKeypoints(camera.shape[0], config.n_channels, config.n_keypoints)
            for camera in config.image_features.values()
        )
        n_found = 3 * config.n_keypoints * len(self.cameras)
        n_moved = n_state if config.motion_frames else 0
        self.head = nn.Sequential(
            nn.Linear(n_found + n_state + n_moved, config.dim_hidden),
            nn.ReLU(),
            nn.Linear(config.dim_hidden, config.dim_hidden),
            nn.ReLU(),
            nn.Linear(config.dim_hidden, self.chunk_size * self.n_actions),
        )
        self.straight = nn.Linear(n_state, self.chunk_size * self.n_actions) if n_state else None
        with torch.no_grad():
            last = self.head[-1]
            assert isinstance(last, nn.Linear)
            last.weight.mul_(_SMALL_AT_START)
            if self.straight is not None:
                same = torch.eye(self.n_actions, n_state) if n_state == self.n_actions else 0.0
                self.straight.weight.copy_(torch.zeros(self.n_actions, n_state).add(same).repeat(self.chunk_size, 1))
                self.straight.bias.zero_()

    def forward(self, pictures: Sequence[Tensor], state: Tensor | None, seen: Sequence[Tensor]) -> Tensor:
        """Predict.

        Args:
            pictures: (B, C, H, W) of each camera, normalised.
            state: (B, P), normalised.
            seen: (B, P) each: what the hidden layers see of it and of its change.

        Returns:
            (B, K, A) in at least float32.
        """
        found = [camera(picture) for camera, picture in zip(self.cameras, pictures, strict=True)]
        with torch.autocast(found[0].device.type, enabled=False):
            chunk: Tensor = self.head(torch.cat([*found, *seen], 1))
            if self.straight is not None:
                chunk = chunk + self.straight(state)
        return chunk.view(-1, self.chunk_size, self.n_actions)


class CameraKeypoints(nn.Module):
    """Where in a picture things are.

    Args:
        n_colours: channels of the picture.
        n_channels: width of the convolutions.
        n_keypoints: maps of the last one.
    """

    def __init__(self, n_colours: int, n_channels: int, n_keypoints: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            [
                nn.Conv2d(n_colours, n_channels // 2, 5, stride=2, padding=2),
                nn.Conv2d(n_channels // 2, n_channels, 3, stride=2, padding=1),
                nn.Conv2d(n_channels, n_channels, 3, padding=1),
                nn.Conv2d(n_channels, n_keypoints, 3, padding=1),
            ]
        )
        # Over all channels and places of one picture: as cheap as none, and learns as well as batch norm.
        self.norms = nn.ModuleList(
            nn.GroupNorm(1, layer.out_channels) for layer in self.convolutions[:-1] if isinstance(layer, nn.Conv2d)
        )
        self.sharpness = nn.Parameter(torch.full((n_keypoints,), _SHARPNESS_AT_START))
        for layer in self.convolutions:
            assert isinstance(layer, nn.Conv2d)
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, picture: Tensor) -> Tensor:
        """Keypoints of a picture (B, C, H, W): their x, their y in [-1, 1] times 2, how strong each is; (B, 3 M)."""
        maps = picture.contiguous(memory_format=torch.channels_last)
        for number, convolution in enumerate(self.convolutions):
            maps = convolution(maps if number == 0 else F.relu(self.norms[number - 1](maps)))
        # Autocast is for convolutions: the rest is a hundredth of the work, and 8 bits of a place are two millimetres.
        with torch.autocast(maps.device.type, enabled=False):
            return self._keypoints(maps)

    def _keypoints(self, maps: Tensor) -> Tensor:
        maps = maps.to(torch.promote_types(maps.dtype, self.sharpness.dtype))
        height, width = maps.shape[2:]
        shares = (maps.flatten(2) * self.sharpness.exp()[:, None]).softmax(-1).reshape(maps.shape)
        x = shares.sum(2) @ _evenly(width, maps)
        y = shares.sum(3) @ _evenly(height, maps)
        return torch.cat([_SPREAD * x, _SPREAD * y, _HEIGHT * maps.flatten(2).amax(-1)], 1)


def _evenly(n: int, like: Tensor) -> Tensor:
    """n places from -1 to 1."""
    return torch.linspace(-1, 1, n, dtype=like.dtype, device=like.device)
