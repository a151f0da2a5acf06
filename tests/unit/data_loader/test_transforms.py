import pytest
import torch

from mimetic.data.config import ImageTransformConfig, ImageTransformsConfig, default_transforms
from mimetic.data.transforms.affine import move
from mimetic.data.transforms.blur import line_kernel
from mimetic.data.transforms.catalog import TRANSFORMS
from mimetic.data.transforms.color import adjust_hue, adjust_saturation
from mimetic.data.transforms.pipeline import ImageTransforms
from mimetic.data.transforms.sharpness import adjust_sharpness
from mimetic.errors import ConfigError

PARAMETERS = {
    "ColorJitter": {"brightness": 0.4, "contrast": [0.5, 0.8], "saturation": [1.5, 2.0], "hue": [0.1, 0.2]},
    "SharpnessJitter": {"sharpness": [1.8, 2.0]},
    "RandomAffine": {"degrees": [5, 10], "translate": [0.1, 0.1], "scale": [0.8, 0.9], "shear": 5.0},
}
CHANGING = [name for name in TRANSFORMS.available() if name != "Identity"]


def single(name, **kwargs):
    one = ImageTransformConfig(type=name, kwargs=kwargs or PARAMETERS.get(name, {}))
    return ImageTransforms(ImageTransformsConfig(enable=True, tfs={"one": one}))


@pytest.fixture
def picture():
    generator = torch.Generator().manual_seed(1)
    small = torch.randint(20, 236, (3, 6, 8), generator=generator, dtype=torch.uint8)
    return small.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", CHANGING)
def test_bytes_are_changed_as_floats_are(name, picture):
    """LeRobot's own transforms silently leave the bytes alone that training reads."""
    changed = single(name)(picture, seeded())
    as_float = single(name)(picture / 255.0, seeded())
    assert changed.dtype == torch.uint8
    assert as_float.dtype == torch.float32
    assert (changed != picture).any()
    difference = (changed / 255.0 - as_float).abs()
    # A change of bytes is rounded after every part, and torchvision cuts off instead of rounding.
    assert difference.mean() < 2 / 255
    assert difference.max() <= 6 / 255


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_shape_range_and_input_are_kept(name, kind, picture):
    images = torch.stack([picture, picture.flip(-1)])
    images = images if kind == "uint8" else images / 255.0
    before = images.clone()
    found = single(name)(images, seeded())
    assert found.shape == images.shape
    assert torch.equal(images, before)
    assert found.isfinite().all()
    assert found.min() >= 0
    assert found.max() <= (255 if kind == "uint8" else 1)


@pytest.mark.parametrize("name", [name for name in CHANGING if name not in ("GaussianNoise",)])
def test_images_of_one_window_are_changed_alike(name, picture):
    stack = torch.stack([picture, picture, picture])
    found = single(name)(stack, seeded())
    assert torch.equal(found[0], found[2])


def test_the_global_generator_is_neither_used_nor_moved(picture):
    transforms = ImageTransforms(ImageTransformsConfig(enable=True, max_num_transforms=6))
    before = torch.get_rng_state()
    first = transforms(picture, seeded(9))
    torch.rand(5)
    assert torch.equal(first, transforms(picture, seeded(9)))
    torch.set_rng_state(before)
    for name in CHANGING:
        single(name)(picture, seeded())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("random_order", [False, True])
def test_order_of_application(random_order):
    transforms = ImageTransforms(ImageTransformsConfig(enable=True, random_order=random_order, max_num_transforms=6))
    drawn = [transforms._draw(seeded(seed)) for seed in range(20)]
    assert all(sorted(places) == list(range(6)) for places in drawn)
    assert any(places != sorted(places) for places in drawn) is random_order


def test_weights_decide_what_is_drawn():
    tfs = {
        "never": ImageTransformConfig(weight=0.0, type="Identity"),
        "often": ImageTransformConfig(weight=9.0, type="Identity"),
        "seldom": ImageTransformConfig(weight=1.0, type="Identity"),
    }
    transforms = ImageTransforms(ImageTransformsConfig(enable=True, max_num_transforms=1, tfs=tfs))
    assert transforms.names == ["often", "seldom"]
    generator = seeded()
    often = sum(transforms._draw(generator) == [0] for _ in range(1000))
    assert 860 < often < 940


@pytest.mark.parametrize(
    "config",
    [
        ImageTransformsConfig(enable=False),
        ImageTransformsConfig(enable=True, max_num_transforms=0),
        ImageTransformsConfig(enable=True, tfs={}),
        ImageTransformsConfig(enable=True, tfs={"a": ImageTransformConfig(weight=0.0)}),
    ],
)
def test_nothing_to_apply_is_the_identity_and_draws_nothing(config, picture):
    generator = seeded()
    before = generator.get_state()
    transforms = ImageTransforms(config)
    assert transforms.is_identity
    assert transforms(picture, generator) is picture
    assert torch.equal(before, generator.get_state())


def test_an_unknown_type_is_refused_with_the_closest_and_all_names():
    with pytest.raises(ConfigError) as caught:
        single("ColourJitter")
    assert "`--dataset.image_transforms.tfs.one`" in caught.value.message
    assert "`ColourJitter`" in caught.value.message
    assert "did you mean `ColorJitter`?" in caught.value.hint
    assert "GammaCorrection" in caught.value.hint


def test_all_wrong_transforms_are_reported_at_once():
    tfs = {
        **default_transforms(),
        "x": ImageTransformConfig(type="Sharpen"),
        "y": ImageTransformConfig(type="ColorJitter", kwargs={"hue": 0.7}),
        "z": ImageTransformConfig(type="GammaCorrection", kwargs={"gama": 2}),
    }
    with pytest.raises(ConfigError) as caught:
        ImageTransforms(ImageTransformsConfig(enable=True, tfs=tfs))
    assert all(f"tfs.{name}`" in caught.value.message for name in "xyz")
    assert "0.7" in caught.value.message
    assert "gama" in caught.value.message


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("ColorJitter", {"brightness": [1.2, 0.8]}),
        ("ColorJitter", {"contrast": -1}),
        ("SharpnessJitter", {"sharpness": "much"}),
        ("RandomAffine", {"degrees": -5}),
        ("RandomAffine", {"degrees": 5, "translate": [2, 0]}),
        ("GaussianNoise", {"std": [-1, 5]}),
        ("MotionBlur", {"kernel_size": [4, 4]}),
        ("MotionBlur", {"kernel_size": [3.5, 5]}),
        ("MotionBlur", {"kernel_size": [3, 10**9]}),
        ("ColorJitter", {"brightness": float("nan")}),
        ("GaussianNoise", {"std": [5, float("inf")]}),
        ("GaussianPatchBrightness", {"num_patches": [1, 10**12]}),
        ("JPEGCompression", {"quality": [0, 50]}),
        ("RandomShadow", {"opacity": [0.5, 1.5]}),
        ("CoarseDropout", {"max_holes": 0}),
        ("GammaCorrection", {"gamma": 0}),
    ],
)
def test_wrong_parameters_are_refused_when_built(name, kwargs):
    with pytest.raises(ConfigError, match="image transform"):
        single(name, **kwargs)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), "much", None])
def test_a_weight_that_is_no_number_is_refused(weight):
    tfs = {"odd": ImageTransformConfig(type="Identity", weight=weight)}
    with pytest.raises(ConfigError, match="odd"):
        ImageTransforms(ImageTransformsConfig(enable=True, tfs=tfs))


def test_a_third_of_the_colour_circle_moves_channels(picture):
    turned = adjust_hue(picture, 1 / 3)
    assert (turned.int() - picture.roll(1, dims=0).int()).abs().max() <= 1


def test_no_turn_keeps_every_byte():
    picture = torch.randint(0, 256, (3, 40, 50), generator=seeded(), dtype=torch.uint8)
    assert torch.equal(adjust_hue(picture, 0.0), picture)


def test_no_saturation_is_grey(picture):
    grey = adjust_saturation(picture, 0.0)
    assert torch.equal(grey[0], grey[1])
    assert torch.equal(grey[1], grey[2])


def test_sharpness_equals_a_convolution_and_keeps_the_border():
    picture = torch.rand(3, 12, 15, generator=seeded())
    kernel = torch.tensor([[1.0, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    smooth = torch.nn.functional.conv2d(picture[:, None], kernel[None, None])[:, 0]
    inner = picture[:, 1:-1, 1:-1]
    found = adjust_sharpness(picture, 1.7)
    torch.testing.assert_close(found[:, 1:-1, 1:-1], (smooth + 1.7 * (inner - smooth)).clamp(0, 1), rtol=0, atol=1e-6)
    assert torch.equal(found[:, 0], picture[:, 0])
    assert torch.equal(adjust_sharpness(picture[:, :2], 1.7), picture[:, :2])


def test_a_shift_moves_whole_pixels(picture):
    moved = move(picture, 0.0, (5, -3), 1.0, (0.0, 0.0))
    assert torch.equal(moved[:, :-3, 5:], picture[:, 3:, :-5])
    assert not moved[:, -3:].any()
    assert not moved[:, :, :5].any()


def test_a_quarter_turn_is_exact():
    picture = torch.randint(0, 256, (3, 20, 20), generator=seeded(), dtype=torch.uint8)
    assert torch.equal(move(picture, 90.0, (0, 0), 1.0, (0.0, 0.0)), picture.rot90(-1, dims=(1, 2)))


@pytest.mark.parametrize("angle", [0.0, 45.0, 90.0, 213.0])
def test_a_blur_line_is_symmetric_and_keeps_brightness(angle):
    kernel = line_kernel(7, angle)
    assert kernel.sum() == pytest.approx(1.0)
    assert torch.equal(kernel, kernel.flip(0).flip(1))


def test_a_picture_with_two_channels_is_refused_by_jpeg():
    with pytest.raises(ConfigError, match="1 or 3 channels"):
        single("JPEGCompression")(torch.zeros(2, 8, 8, dtype=torch.uint8), seeded())
