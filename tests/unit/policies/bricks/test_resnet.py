import torch

from mimetic.policies.bricks.resnet import ResNet


def test_bf16_maps_of_one_column_are_the_same_each_time():
    """torch's kernel for processors with AMX reads unwritten memory there; elsewhere this shows that the way around it
    computes the same function (bfloat16 rounds to 3 digits)."""
    torch.manual_seed(0)
    network = ResNet("resnet18").eval()
    x = torch.randn(3, 3, 64, 32)
    with torch.no_grad():
        expected = network(x)
        with torch.autocast("cpu", torch.bfloat16):
            found = [network(x) for _ in range(12)]
    assert expected.shape[-1] == 1
    assert all(torch.equal(one, found[0]) for one in found)
    assert (found[0].float() - expected).norm() < 2e-2 * expected.norm()
