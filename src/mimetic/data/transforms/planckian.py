"""Light of another colour temperature.

Source: Zini et al., Planckian Jitter: countering the color-crippling effects of color jitter on self-supervised
training, 2023; the black-body colours below are the figures published with it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mimetic.data.transforms.draw import as_integer_range, integer
from mimetic.data.transforms.pixels import in_unit_range

_FIRST_K, _STEP_K = 3000, 500
# (red, green, blue) of a black body at 3000 K, 3500 K, ... 15000 K
_BLACK_BODY = np.asarray(
    [
        (0.6743, 0.4029, 0.0013),
        (0.6281, 0.4241, 0.1665),
        (0.5919, 0.4372, 0.2513),
        (0.5623, 0.4457, 0.3154),
        (0.5376, 0.4515, 0.3672),
        (0.5163, 0.4555, 0.4103),
        (0.4979, 0.4584, 0.4468),
        (0.4816, 0.4604, 0.4782),
        (0.4672, 0.4619, 0.5053),
        (0.4542, 0.4630, 0.5289),
        (0.4426, 0.4638, 0.5497),
        (0.4320, 0.4644, 0.5681),
        (0.4223, 0.4648, 0.5844),
        (0.4135, 0.4651, 0.5990),
        (0.4054, 0.4653, 0.6121),
        (0.3980, 0.4654, 0.6239),
        (0.3911, 0.4655, 0.6346),
        (0.3847, 0.4656, 0.6444),
        (0.3787, 0.4656, 0.6532),
        (0.3732, 0.4656, 0.6613),
        (0.3680, 0.4655, 0.6688),
        (0.3632, 0.4655, 0.6756),
        (0.3586, 0.4655, 0.6820),
        (0.3544, 0.4654, 0.6878),
        (0.3503, 0.4653, 0.6933),
    ]
)
_LAST_K = _FIRST_K + _STEP_K * (len(_BLACK_BODY) - 1)


class PlanckianJitter:
    """Scales red and blue as under light of a random temperature; green stays.

    Args:
        temperature: pair of whole numbers [K], inside 3000..15000.

    Raises:
        ConfigError: the range is wrong.
    """

    def __init__(self, temperature: object = (_FIRST_K, _LAST_K)) -> None:
        low, high = as_integer_range("temperature", temperature, low=_FIRST_K, high=_LAST_K)
        self._range = (low, high)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change images (..., 3, H, W), uint8 or float."""
        scale = torch.tensor(channel_scale(integer(*self._range, generator)), dtype=torch.float32)
        return in_unit_range(images, lambda work: work * scale.to(work.device)[:, None, None])


def channel_scale(temperature_k: float) -> tuple[float, float, float]:
    """Factors of red, green and blue at a temperature [K]; linear between the published ones."""
    place = (temperature_k - _FIRST_K) / _STEP_K
    red, green, blue = (np.interp(place, np.arange(len(_BLACK_BODY)), column) for column in _BLACK_BODY.T)
    return float(red / green), 1.0, float(blue / green)
