"""ImageNet weights of the ResNets: where they are on this computer, and the one place that may download them.

The files, their names and their folder are torch hub's, so weights that torchvision once fetched are found again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path
from pickle import UnpicklingError
from urllib.error import URLError
from urllib.request import urlopen

import torch
from torch import Tensor

from mimetic.errors import ConfigError
from mimetic.hub.locate import is_offline
from mimetic.policies.bricks.resnet import ResNet

logger = logging.getLogger(__name__)

_URL = "https://download.pytorch.org/models/"
_TIMEOUT_S = 10.0
_CHUNK_BYTES = 1 << 20
_TRUE = ("1", "on", "yes", "true")
# The part of the name after the dash begins the file's sha256.
_FILES = {
    "resnet18": {"IMAGENET1K_V1": "resnet18-f37072fd.pth"},
    "resnet34": {"IMAGENET1K_V1": "resnet34-b627a593.pth"},
    "resnet50": {"IMAGENET1K_V1": "resnet50-0676ba61.pth", "IMAGENET1K_V2": "resnet50-11ad3fa6.pth"},
    "resnet101": {"IMAGENET1K_V1": "resnet101-63fe2227.pth", "IMAGENET1K_V2": "resnet101-cd907fc2.pth"},
    "resnet152": {"IMAGENET1K_V1": "resnet152-394f9c45.pth", "IMAGENET1K_V2": "resnet152-f82ba261.pth"},
}


def load_imagenet_weights(backbone: ResNet, architecture: str, weights: str) -> None:
    """Fill a backbone with ImageNet weights.

    Args:
        backbone: the network to fill.
        architecture: "resnet18", ...
        weights: torchvision's name, such as "ResNet18_Weights.IMAGENET1K_V1".

    Raises:
        ConfigError: the name is unknown, or the file is not there and cannot be fetched.
    """
    path = find_weights(architecture, weights)
    try:
        stored: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read as a file of weights: {error}", _way_out(path)) from error
    kept = {k: v for k, v in stored.items() if not k.startswith("fc.") and not k.endswith("num_batches_tracked")}
    try:
        backbone.load_state_dict(kept, strict=True)
    except RuntimeError as error:
        raise ConfigError(f"{path} does not hold the weights of a {architecture}: {error}", _way_out(path)) from error


def find_weights(architecture: str, weights: str) -> Path:
    """Path of a weights file, fetched when it is absent and the network is allowed.

    Args:
        architecture: "resnet18", ...
        weights: "ResNet18_Weights.IMAGENET1K_V1", or only the part after the point.

    Raises:
        ConfigError: the name is unknown, or the file is not there and cannot be fetched.
    """
    versions = _FILES.get(architecture, {})
    version = weights.removeprefix(f"{architecture.replace('resnet', 'ResNet')}_Weights.")
    if version == "DEFAULT" and versions:
        version = max(versions)
    if version not in versions:
        known = ", ".join(f"{architecture.replace('resnet', 'ResNet')}_Weights.{v}" for v in versions)
        raise ConfigError(
            f"`--policy.pretrained_backbone_weights={weights}` names no weights of {architecture}",
            f"use {known or 'null'}, or null to start the backbone at random",
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / versions[version]
    if path.is_file():
        return path
    if is_offline() or os.environ.get("MIMETIC_OFFLINE", "").lower() in _TRUE:
        raise ConfigError(
            f"the ImageNet weights {weights} are not on this computer and the network is switched off", _way_out(path)
        )
    try:
        _download(_URL + path.name, path)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise ConfigError(
            f"the ImageNet weights {weights} are not on this computer and could not be fetched: {reason}",
            _way_out(path),
        ) from error
    return path


def _way_out(path: Path) -> str:
    return (
        f"put {_URL}{path.name} at {path} (TORCH_HOME moves that folder), "
        "or start the backbone at random with `--policy.pretrained_backbone_weights=null`"
    )


def _download(url: str, path: Path) -> None:
    logger.info("fetching ImageNet weights from %s to %s", url, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with (
        urlopen(url, timeout=_TIMEOUT_S) as response,
        tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file,
    ):
        temporary = Path(file.name)
        try:
            while block := response.read(_CHUNK_BYTES):
                digest.update(block)
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            expected = path.stem.rpartition("-")[2]
            if not digest.hexdigest().startswith(expected):
                raise ValueError(f"{url} has sha256 {digest.hexdigest()[:8]}..., expected {expected}...")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    temporary.replace(path)
