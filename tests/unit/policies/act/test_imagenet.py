"""ImageNet weights: found locally, never silently replaced by random ones, never unpickled."""

from __future__ import annotations

import hashlib
import io
from urllib.error import URLError

import pytest
import torch

from mimetic.errors import ConfigError
from mimetic.policies.act.policy import ACTPolicy
from mimetic.policies.bricks import imagenet
from mimetic.policies.bricks.resnet import ResNet

NAME = "ResNet18_Weights.IMAGENET1K_V1"
FILE = "resnet18-f37072fd.pth"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty torch hub folder and no network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def online(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    return hub


def stored_weights():
    """A file's content as torchvision ships it: with classifier, with batch counters."""
    state = {key: torch.rand_like(value) for key, value in ResNet("resnet18").state_dict().items()}
    extra = {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    return state, state | extra | {"bn1.num_batches_tracked": torch.tensor(0)}


def test_weights_in_the_hub_folder_are_loaded(hub, make_config):
    expected, content = stored_weights()
    torch.save(content, hub / FILE)
    policy = ACTPolicy(make_config(cameras=[(3, 32, 32)], pretrained_backbone_weights=NAME))
    state = policy.model.backbone.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], value) for key, value in expected.items())


def test_without_the_file_and_offline_nothing_starts_at_random(hub, make_config):
    with pytest.raises(ConfigError) as caught:
        ACTPolicy(make_config(cameras=[(3, 32, 32)], pretrained_backbone_weights=NAME))
    assert caught.value.message == (
        f"the ImageNet weights {NAME} are not on this computer and the network is switched off"
    )
    assert str(hub / FILE) in caught.value.hint
    assert "`--policy.pretrained_backbone_weights=null`" in caught.value.hint


@pytest.mark.parametrize("why", ["about to load", "no camera"])
def test_nothing_is_looked_for_when_a_checkpoint_follows_or_there_is_no_camera(hub, make_config, why):
    if why == "about to load":
        ACTPolicy(make_config(cameras=[(3, 32, 32)], pretrained_backbone_weights=NAME), init_backbone=False)
    else:
        ACTPolicy(make_config(env=5, pretrained_backbone_weights=NAME))


def test_a_failed_download_is_the_same_error_with_its_reason(online, monkeypatch):
    def refuse(url, timeout):
        raise URLError("no route to host")

    monkeypatch.setattr(imagenet, "urlopen", refuse)
    with pytest.raises(ConfigError, match="could not be fetched: no route to host") as caught:
        imagenet.find_weights("resnet18", NAME)
    assert str(online / FILE) in caught.value.hint
    assert list(online.iterdir()) == []


def test_mimetic_offline_forbids_the_download(online, monkeypatch):
    monkeypatch.setenv("MIMETIC_OFFLINE", "1")
    monkeypatch.setattr(imagenet, "urlopen", lambda *args, **kwargs: pytest.fail("opened a connection"))
    with pytest.raises(ConfigError, match="switched off"):
        imagenet.find_weights("resnet18", NAME)


def test_a_download_is_kept_only_when_its_checksum_fits_the_name(online, monkeypatch):
    content = b"weights"
    monkeypatch.setattr(imagenet, "urlopen", lambda url, timeout: io.BytesIO(content))
    with pytest.raises(ConfigError, match="sha256"):
        imagenet.find_weights("resnet18", NAME)
    assert list(online.iterdir()) == []
    name = f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    monkeypatch.setitem(imagenet._FILES, "resnet18", {"IMAGENET1K_V1": name})
    path = imagenet.find_weights("resnet18", NAME)
    assert path == online / name
    assert path.read_bytes() == content
    monkeypatch.setattr(imagenet, "urlopen", lambda url, timeout: pytest.fail("downloaded twice"))
    assert imagenet.find_weights("resnet18", NAME) == path


@pytest.mark.parametrize("name", ["ResNet18_Weights.IMAGENET1K_V1", "IMAGENET1K_V1", "ResNet18_Weights.DEFAULT"])
def test_torchvisions_spellings_name_the_same_file(hub, name):
    (hub / FILE).touch()
    assert imagenet.find_weights("resnet18", name) == hub / FILE


@pytest.mark.parametrize("name", ["ResNet50_Weights.IMAGENET1K_V1", "ResNet18_Weights.IMAGENET1K_V2", "best"])
def test_weights_of_another_network_are_refused_with_the_right_name(hub, name):
    with pytest.raises(ConfigError) as caught:
        imagenet.find_weights("resnet18", name)
    assert NAME in caught.value.hint


def test_a_file_that_would_run_code_is_refused(hub, make_config):
    class Payload:
        def __reduce__(self):
            return (pytest.fail, ("code from a weights file ran",))

    torch.save({"conv1.weight": Payload()}, hub / FILE)
    with pytest.raises(ConfigError, match="cannot be read"):
        imagenet.load_imagenet_weights(ResNet("resnet18"), "resnet18", NAME)


def test_a_file_of_another_network_is_refused(hub):
    torch.save({"conv1.weight": torch.zeros(1)}, hub / FILE)
    with pytest.raises(ConfigError, match="does not hold the weights of a resnet18"):
        imagenet.load_imagenet_weights(ResNet("resnet18"), "resnet18", NAME)
