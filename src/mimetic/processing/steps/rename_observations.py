"""`rename_observations_processor`: dataset names to policy names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mimetic.errors import ConfigError
from mimetic.names import FEATURES_PREFIX, OBSERVATION, PAD_SUFFIX
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition

COMPANIONS = (PAD_SUFFIX, "_padding_mask")
_OBSERVATION_PREFIX = f"{OBSERVATION}."


def renamed(key: str, rename_map: Mapping[str, str]) -> str:
    """New name of a feature or of a companion of it; unchanged when not in the map.

    Companions: `<key>_is_pad`, `<key>_padding_mask`, and the cached features `observation.features.X` of a camera
    `observation.X`.
    """
    if key in rename_map:
        return rename_map[key]
    if key.startswith(FEATURES_PREFIX):
        camera = renamed(_OBSERVATION_PREFIX + key.removeprefix(FEATURES_PREFIX), rename_map)
        return FEATURES_PREFIX + camera.removeprefix(_OBSERVATION_PREFIX)
    for suffix in COMPANIONS:
        if key.endswith(suffix) and key[: -len(suffix)] in rename_map:
            return rename_map[key[: -len(suffix)]] + suffix
    return key


class RenameObservations(Step):
    """Renames observations together with their companions (`renamed`).

    LeRobot 0.6.1 leaves the companions under their old names, where the policy does not find them; later versions
    rename them too.

    Args:
        rename_map: old name -> new name.
    """

    registry_name: ClassVar[str] = "rename_observations_processor"
    stored: ClassVar[tuple[str, ...]] = ("rename_map",)

    def __init__(self, rename_map: Mapping[str, str] | None = None) -> None:
        self.rename_map = dict(rename_map or {})
        if not all(isinstance(text, str) for pair in self.rename_map.items() for text in pair):
            raise ConfigError(f"`rename_map` must map names to names, and is {self.rename_map}")
        targets = list(self.rename_map.values())
        twice = sorted({name for name in targets if targets.count(name) > 1})
        if twice:
            raise ConfigError(
                f"`rename_map` gives two features the same name: {', '.join(f'`{name}`' for name in twice)}"
            )

    def __call__(self, transition: Transition) -> None:
        """Rename the keys; the order stays.

        Raises:
            ConfigError: a new name is already taken by a feature that keeps its name.
        """
        if not self.rename_map:
            return
        before = transition.observation
        after = {renamed(key, self.rename_map): value for key, value in before.items()}
        if len(after) < len(before):
            taken = sorted(new for old, new in self.rename_map.items() if old in before and new in before)
            raise ConfigError(
                f"`rename_map` renames a feature to {', '.join(f'`{name}`' for name in taken)}, which is already there",
                "rename that one too, or leave the pair out of `--rename_map`",
            )
        transition.observation = after

    def config(self) -> dict[str, Any]:
        """`rename_map`."""
        return {"rename_map": dict(self.rename_map)}
