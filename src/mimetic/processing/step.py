"""What a processing step is: a change of one transition, with settings and tensors that a checkpoint stores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor

from mimetic.catalog import closest_hint
from mimetic.errors import ConfigError
from mimetic.processing.transition import Transition


class Step:
    """Base of all steps; a subclass changes a transition in place and says how it is stored."""

    registry_name: ClassVar[str] = ""
    """Name in pipeline files and in the catalog."""
    stored: ClassVar[tuple[str, ...]] = ()
    """Constructor arguments that a pipeline file may hold, in file order."""
    overridable: ClassVar[tuple[str, ...]] = ()
    """Constructor arguments that only a caller may give (statistics, compatibility switches)."""

    def __call__(self, transition: Transition) -> None:
        """Change the transition in place: replace entries of its dicts, never write into tensors that came in."""
        raise NotImplementedError

    def config(self) -> dict[str, Any]:
        """The stored arguments as JSON values, in file order."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Tensors that a state file holds, by flat name; empty means that there is no state file."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over the tensors of a state file."""
        if state:
            raise ConfigError(f"step `{self.registry_name}` has no state, but its file holds {len(state)} tensors")

    def located(self, folder: Path, artifacts: Mapping[str, str], where: str) -> None:
        """Learn the checkpoint folder that this step was read from; called before the state is loaded.

        Args:
            folder: the checkpoint, which may hold companion files of this step.
            artifacts: constructor argument -> relative path, as newer files of LeRobot list companions.
            where: pipeline file and step, for messages.

        Raises:
            CheckpointError: a companion file is missing or lies outside the folder.
        """

    def companion_files(self) -> dict[str, bytes]:
        """Files that travel beside the pipeline file, by relative path; LeRobot ignores them."""
        return {}

    @classmethod
    def build(cls, config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """Make a step from a pipeline file and the caller's overrides, which win.

        Args:
            config: arguments from the file.
            overrides: arguments from the caller, as JSON values or as objects.

        Raises:
            ConfigError: an argument that this step does not have.
        """
        cls.check_names(config, cls.stored, "config")
        cls.check_names(overrides, (*cls.stored, *cls.overridable), "override")
        return cls(**{**config, **overrides})

    @classmethod
    def check_names(cls, given: Mapping[str, Any], known: tuple[str, ...], what: str) -> None:
        """Refuse arguments that the step does not have.

        Raises:
            ConfigError: names every unknown argument.
        """
        unknown = [name for name in given if name not in known]
        if unknown:
            raise ConfigError(
                f"step `{cls.registry_name}` has no {what} {', '.join(f'`{name}`' for name in unknown)}",
                closest_hint(unknown[0], known) or f"it has: {', '.join(known) or 'none'}",
            )
