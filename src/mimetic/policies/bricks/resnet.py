"""ResNet feature extractor with frozen batch norms and torchvision's parameter names.

The batch norms never change in training (spec/act.md), so each is folded into the convolution before it: the same
function with one pass over the activations less. A seed gives the same random initial weights as torchvision's
constructor: modules draw in its order, including the classifier that is thrown away.

Source: He et al., Deep Residual Learning for Image Recognition, 2015.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mimetic.errors import ConfigError
from mimetic.policies.bricks.small_map_conv import conv_as_product, suits

_N_CLASSES = 1000


class FrozenBatchNorm2d(nn.Module):
    """Batch norm as a fixed affine map; everything is a buffer.

    Args:
        n_channels: number of channels.
        eps: added to the variance.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, n_channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(n_channels))
        self.register_buffer("bias", torch.zeros(n_channels))
        self.register_buffer("running_mean", torch.zeros(n_channels))
        self.register_buffer("running_var", torch.ones(n_channels))

    def affine(self) -> tuple[Tensor, Tensor]:
        """Scale and shift, (C,) each: y = x * scale + shift."""
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (B, C, H, W) maps."""
        scale, shift = self.affine()
        return x * scale[:, None, None] + shift[:, None, None]


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: FrozenBatchNorm2d) -> Tensor:
    """norm(conv(x)) in one convolution.

    Args:
        x: (B, C, H, W).
        conv: a convolution without bias.
        norm: the frozen norm that follows it.

    Returns:
        (B, C', H', W').
    """
    scale, shift = norm.affine()
    if suits(x, conv):
        return conv_as_product(x, conv, scale, shift)
    weight = conv.weight * scale[:, None, None, None]
    if _is_read_wrongly(x, conv):
        # One column of zeros more gives one column of the result more, and a kernel that is right.
        wider = F.pad(x, (0, conv.stride[1]))
        return F.conv2d(wider, weight, shift, conv.stride, conv.padding, conv.dilation)[..., :1]
    return F.conv2d(x, weight, shift, conv.stride, conv.padding, conv.dilation)


def _is_read_wrongly(x: Tensor, conv: nn.Conv2d) -> bool:
    """Whether torch's bfloat16 kernel for processors with AMX would read memory that nobody wrote.

    Seen in torch 2.11 and 2.13: strided, padded convolutions whose result is one column wide differ from run to run,
    and are NaN now and then.
    """
    if x.device.type != "cpu" or conv.stride[1] == 1 or isinstance(conv.padding, str):
        return False
    if x.dtype != torch.bfloat16 and not torch.is_autocast_enabled("cpu"):
        return False
    width = (x.shape[-1] + 2 * conv.padding[1] - conv.dilation[1] * (conv.kernel_size[1] - 1) - 1) // conv.stride[1] + 1
    return width == 1


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-18 and -34)."""

    expansion = 1

    def __init__(
        self, n_in: int, n_mid: int, stride: int = 1, dilation: int = 1, downsample: nn.Sequential | None = None
    ) -> None:
        super().__init__()
        if dilation != 1:
            raise ConfigError(
                "a ResNet of basic blocks (resnet18, resnet34) cannot be dilated",
                "use `--policy.replace_final_stride_with_dilation=false`",
            )
        self.conv1 = nn.Conv2d(n_in, n_mid, 3, stride, 1, bias=False)
        self.bn1 = FrozenBatchNorm2d(n_mid)
        self.conv2 = nn.Conv2d(n_mid, n_mid, 3, 1, 1, bias=False)
        self.bn2 = FrozenBatchNorm2d(n_mid)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        out = conv_norm(x, self.conv1, self.bn1).relu_()
        out = conv_norm(out, self.conv2, self.bn2)
        return (out + _shortcut(x, self.downsample)).relu_()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut (ResNet-50 and larger)."""

    expansion = 4

    def __init__(
        self, n_in: int, n_mid: int, stride: int = 1, dilation: int = 1, downsample: nn.Sequential | None = None
    ) -> None:
        super().__init__()
        n_out = n_mid * self.expansion
        self.conv1 = nn.Conv2d(n_in, n_mid, 1, bias=False)
        self.bn1 = FrozenBatchNorm2d(n_mid)
        self.conv2 = nn.Conv2d(n_mid, n_mid, 3, stride, dilation, dilation, bias=False)
        self.bn2 = FrozenBatchNorm2d(n_mid)
        self.conv3 = nn.Conv2d(n_mid, n_out, 1, bias=False)
        self.bn3 = FrozenBatchNorm2d(n_out)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C', H / stride, W / stride)."""
        out = conv_norm(x, self.conv1, self.bn1).relu_()
        out = conv_norm(out, self.conv2, self.bn2).relu_()
        out = conv_norm(out, self.conv3, self.bn3)
        return (out + _shortcut(x, self.downsample)).relu_()


def _shortcut(x: Tensor, downsample: nn.Sequential | None) -> Tensor:
    if downsample is None:
        return x
    conv, norm = downsample
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(norm, FrozenBatchNorm2d)
    return conv_norm(x, conv, norm)


_Block = type[BasicBlock] | type[Bottleneck]
ARCHITECTURES: dict[str, tuple[_Block, tuple[int, int, int, int]]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}


class ResNet(nn.Module):
    """The convolutional part of a ResNet.

    Args:
        name: one of `ARCHITECTURES`.
        dilate_last: dilate instead of striding in the last stage, which doubles the height and width of the output.

    Raises:
        ConfigError: unknown name, or `dilate_last` with a ResNet of basic blocks.
    """

    def __init__(self, name: str, *, dilate_last: bool = False) -> None:
        super().__init__()
        if name not in ARCHITECTURES:
            raise ConfigError(f"unknown ResNet `{name}`", f"available: {', '.join(ARCHITECTURES)}")
        block, depths = ARCHITECTURES[name]
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = FrozenBatchNorm2d(64)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2, dilate=dilate_last)
        self.n_channels = 512 * block.expansion
        nn.Linear(self.n_channels, _N_CLASSES)  # only for its random draws
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Feature maps of the last stage.

        Args:
            images: (B, 3, H, W), normalised.

        Returns:
            (B, n_channels, ceil(H / 32), ceil(W / 32)), or ceil(H / 16), ceil(W / 16) when dilated.
        """
        # Convolutions run faster in this layout; weights keep theirs, which checkpoints need.
        x = images.contiguous(memory_format=torch.channels_last)
        x = conv_norm(x, self.conv1, self.bn1).relu_()
        x = F.max_pool2d(x, 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return x


def _stage(block: _Block, n_in: int, n_mid: int, depth: int, *, stride: int, dilate: bool = False) -> nn.Sequential:
    n_out = n_mid * block.expansion
    later_dilation = stride if dilate else 1
    if dilate:
        stride = 1
    downsample = None
    if stride != 1 or n_in != n_out:
        downsample = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), FrozenBatchNorm2d(n_out))
    make: Callable[..., nn.Module] = block
    blocks = [make(n_in, n_mid, stride, 1, downsample)]
    blocks += [make(n_out, n_mid, 1, later_dilation) for _ in range(1, depth)]
    return nn.Sequential(*blocks)
