"""To which size a policy resizes frames: what a cache of resized frames may rely on."""

import pytest
import torch
from torch.nn import functional as F

from mimetic.policies.act.config import ACTConfig
from mimetic.policies.smolvla.config import SmolVLAConfig
from mimetic.policies.smolvla.images import resize_with_padding


def test_act_reads_frames_as_they_are():
    assert ACTConfig().frame_size(480, 640) is None


@pytest.mark.parametrize("size", [(480, 640), (640, 480), (720, 1280), (512, 512), (479, 641), (100, 90)])
def test_smolvla_does_not_change_a_frame_again_that_has_its_size(size):
    config = SmolVLAConfig()
    wanted = config.frame_size(*size)
    assert max(wanted) == 512
    assert config.frame_size(*wanted) == wanted
    frames = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0))
    resized = F.interpolate(frames, size=wanted, mode="bilinear", align_corners=False)
    assert torch.equal(resize_with_padding(resized, 512, 512), resize_with_padding(frames, 512, 512))


def test_without_a_size_smolvla_reads_frames_as_they_are():
    assert SmolVLAConfig(resize_imgs_with_padding=None).frame_size(480, 640) is None
