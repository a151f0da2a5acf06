"""`smolvla_new_line_processor`: every task ends with a line break (spec/smolvla.md 9.1)."""

from __future__ import annotations

from typing import Any, ClassVar

from mimetic.names import TASK
from mimetic.processing.step import Step
from mimetic.processing.transition import Transition


class EndWithNewLine(Step):
    """Appends a line break to each task that does not end with one.

    LeRobot leaves a tuple of tasks without line breaks; here it is treated as a list, because the model was trained
    with them.
    """

    registry_name: ClassVar[str] = "smolvla_new_line_processor"

    def __call__(self, transition: Transition) -> None:
        """Replace `task`; anything but texts is left as it is."""
        task = transition.complementary.get(TASK)
        if isinstance(task, str):
            transition.complementary[TASK] = _ended(task)
        elif isinstance(task, (list, tuple)):
            transition.complementary[TASK] = [_ended(text) for text in task]


def _ended(text: Any) -> Any:
    return f"{text}\n" if isinstance(text, str) and not text.endswith("\n") else text
