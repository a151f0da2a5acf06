"""Names of image transforms."""

from __future__ import annotations

from mimetic.catalog import Catalog, Entry

_ROOM = "mimetic.data.transforms"

TRANSFORMS = Catalog(
    "image transform",
    {
        "Identity": Entry(f"{_ROOM}.identity:Identity", summary="No change"),
        "ColorJitter": Entry(f"{_ROOM}.color:ColorJitter", summary="Brightness, contrast, saturation and hue"),
        "SharpnessJitter": Entry(f"{_ROOM}.sharpness:SharpnessJitter", summary="Sharper or softer"),
        "RandomAffine": Entry(f"{_ROOM}.affine:RandomAffine", summary="Rotation, shift, scale and shear"),
        "GaussianNoise": Entry(f"{_ROOM}.noise:GaussianNoise", summary="Sensor noise"),
        "MotionBlur": Entry(f"{_ROOM}.blur:MotionBlur", summary="Blur of a moving camera"),
        "JPEGCompression": Entry(f"{_ROOM}.jpeg:JPEGCompression", summary="Traces of JPEG compression"),
        "GaussianPatchBrightness": Entry(
            f"{_ROOM}.patches:GaussianPatchBrightness", summary="Brighter and darker spots"
        ),
        "RandomShadow": Entry(f"{_ROOM}.shadow:RandomShadow", summary="A shadow or a beam of light"),
        "CoarseDropout": Entry(f"{_ROOM}.dropout:CoarseDropout", summary="Missing rectangles"),
        "GammaCorrection": Entry(f"{_ROOM}.gamma:GammaCorrection", summary="Brighter or darker middle tones"),
        "PlanckianJitter": Entry(f"{_ROOM}.planckian:PlanckianJitter", summary="Light of another colour temperature"),
    },
)
