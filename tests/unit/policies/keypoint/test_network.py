"""The network of the keypoint policy: where a spot is, and what it says before it has learned anything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mimetic.policies.keypoint.network import CameraKeypoints, KeypointNetwork

HEIGHT, WIDTH = 32, 48
ROWS, COLUMNS = HEIGHT // 4, WIDTH // 4


def passing_through(n_keypoints=2):
    """Convolutions that copy every fourth pixel of the first colour into all maps, no norms, and a sharp softmax."""
    camera = CameraKeypoints(3, 4, n_keypoints)
    camera.norms = nn.ModuleList(nn.Identity() for _ in camera.norms)
    layers = [layer for layer in camera.modules() if isinstance(layer, nn.Conv2d)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.zero_()
            layer.bias.zero_()
            middle = layer.kernel_size[0] // 2
            layer.weight[:, 0, middle, middle] = 1.0
        camera.sharpness.fill_(4.0)
    return camera


def spot(row, column, *, brightness=1.0):
    picture = torch.zeros(1, 3, HEIGHT, WIDTH)
    picture[0, 0, 4 * row, 4 * column] = brightness
    return picture


def places(found, n_keypoints=2):
    """x, y from -1 to 1 and strengths, (B, M) each."""
    x, y, strength = found.float().unflatten(1, (3, n_keypoints)).unbind(1)
    return x / 2, y / 2, strength / 0.3


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16 autocast"])
def test_the_keypoint_of_a_single_bright_spot_lies_on_it(autocast):
    """Every place of the map. exp(e^4) = 5e23 to 1: nothing else has weight."""
    camera = passing_through()
    for row in range(ROWS):
        for column in range(COLUMNS):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                x, y, strength = places(camera(spot(row, column)))
            expected_x, expected_y = 2 * column / (COLUMNS - 1) - 1, 2 * row / (ROWS - 1) - 1
            tolerance = 1e-6  # places are computed in float32 under autocast, too
            assert (x - expected_x).abs().max() <= tolerance, (row, column)
            assert (y - expected_y).abs().max() <= tolerance, (row, column)
            assert (strength - 1.0).abs().max() <= 1e-6


def test_the_keypoint_of_an_empty_picture_is_its_middle():
    x, y, strength = places(passing_through()(torch.zeros(2, 3, HEIGHT, WIDTH)))
    assert torch.cat([x, y, strength]).abs().max() < 1e-6


def test_the_keypoint_is_the_mean_of_the_softmax():
    """Recomputed with loops from two spots of which one is dimmer."""
    camera = passing_through(1)
    with torch.no_grad():
        camera.sharpness.fill_(0.5)
    picture = spot(1, 2) + spot(6, 9, brightness=0.4)
    x, y, strength = places(camera(picture), 1)
    weights = torch.exp(picture[0, 0, ::4, ::4] * torch.tensor(0.5).exp())
    weights = weights / weights.sum()
    expected_x = sum(float(weights[r, c]) * (2 * c / (COLUMNS - 1) - 1) for r in range(ROWS) for c in range(COLUMNS))
    expected_y = sum(float(weights[r, c]) * (2 * r / (ROWS - 1) - 1) for r in range(ROWS) for c in range(COLUMNS))
    assert x.item() == pytest.approx(expected_x, abs=1e-6)
    assert y.item() == pytest.approx(expected_y, abs=1e-6)
    assert strength.item() == pytest.approx(1.0)


def test_very_strong_maps_stay_finite():
    camera = passing_through()
    for brightness in (1e4, -1e4):
        assert torch.isfinite(camera(spot(3, 3, brightness=brightness))).all()


@pytest.mark.parametrize("size", [(16, 16), (17, 40), (96, 96)])
def test_each_keypoint_has_three_numbers_at_any_size(size):
    camera = CameraKeypoints(1, 4, 5)
    assert camera(torch.randn(2, 1, *size)).shape == (2, 15)


def test_the_contrast_of_a_picture_hardly_matters():
    """Each layer but the last is normalised over the whole picture, so that three times the contrast is the same."""
    camera = CameraKeypoints(3, 8, 4)
    picture = torch.randn(2, 3, HEIGHT, WIDTH)
    torch.testing.assert_close(camera(3 * picture), camera(picture), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(camera(picture.flip(-1)), camera(picture), atol=1e-2)


def test_the_pictures_of_a_batch_are_normalised_one_by_one():
    camera = CameraKeypoints(3, 8, 4)
    pictures = torch.randn(3, 3, HEIGHT, WIDTH)
    alone = camera(pictures[:1])
    torch.testing.assert_close(camera(pictures * torch.tensor([1.0, 9, 0.1])[:, None, None, None])[:1], alone)


def inputs(config, size=5):
    pictures = [torch.randn(size, *feature.shape) for feature in config.image_features.values()]
    feature = config.robot_state_feature
    state = None if feature is None else torch.randn(size, *feature.shape)
    return pictures, state


def test_the_straight_way_begins_as_staying_where_you_are(make_config):
    network = KeypointNetwork(make_config())
    pictures, state = inputs(make_config())
    stay = state[:, None].expand(-1, 8, -1)
    # What the pictures say is small at the beginning, and it is all that is added.
    away = (network(pictures, state, [state]) - stay).detach()
    assert 0 < away.abs().mean() < 0.25
    nn.init.zeros_(network.head[-1].weight)
    nn.init.zeros_(network.head[-1].bias)
    assert torch.equal(network(pictures, state, [state]), stay)


def test_a_state_of_another_size_begins_without_a_straight_way(make_config):
    config = make_config(state=7)
    network = KeypointNetwork(config)
    assert network.straight.weight.shape == (32, 7)
    assert not network.straight.weight.any()
    assert not network.straight.bias.any()


def test_without_a_state_there_is_no_straight_way(make_config):
    config = make_config(state=0)
    network = KeypointNetwork(config)
    pictures, state = inputs(config)
    assert network.straight is None
    assert network(pictures, state, []).shape == (5, 8, 4)


def test_the_straight_way_sees_the_state_and_the_hidden_layers_the_noisy_one(make_config):
    network = KeypointNetwork(make_config())
    pictures, state = inputs(make_config())
    noisy = state + 1
    found = network(pictures, state, [noisy])
    hidden = network(pictures, torch.zeros_like(state), [noisy])
    torch.testing.assert_close(found - hidden, state[:, None].expand(-1, 8, -1))
    assert not torch.allclose(found, network(pictures, state, [state]))


def test_every_camera_has_convolutions_of_its_own_and_all_count(make_config):
    config = make_config(cameras=[(3, 32, 48), (3, 32, 48)])
    network = KeypointNetwork(config)
    pictures, state = inputs(config)
    before = network(pictures, state, [state])
    for number in (0, 1):
        changed = list(pictures)
        changed[number] = pictures[number].flip(-1)
        assert not torch.allclose(network(changed, state, [state]), before)
    assert not torch.allclose(network(pictures[::-1], state, [state]), before)
