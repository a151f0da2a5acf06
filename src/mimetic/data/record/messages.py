"""Language messages of a frame: subtasks, plans, remarks, questions about pictures (spec/dataset.md 17)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

PERSISTENT = "language_persistent"
EVENTS = "language_events"
STYLES = {
    PERSISTENT: ("subtask", "plan", "motion", "memory", "task_aug"),
    EVENTS: ("interjection", "vqa", "trace", None),
}
_WITH_CAMERA = ("vqa", "trace")
_KEYS = ("role", "content", "style", "timestamp", "camera", "tool_calls")


def check_messages(name: str, value: Any, cameras: Collection[str]) -> list[dict[str, Any]]:
    """Check the messages of one frame.

    Args:
        name: `language_persistent` or `language_events`.
        value: a list of mappings with role, content, style, camera, tool_calls, and timestamp for persistent ones.
        cameras: keys of the cameras.

    Returns:
        The messages with all their keys; a persistent one without timestamp has None there.

    Raises:
        ValueError: completes a sentence that begins with the name of the feature.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"is {type(value).__name__} instead of a list of messages")
    return [_checked(name, number, message, cameras) for number, message in enumerate(value)]


def _checked(name: str, number: int, message: Any, cameras: Collection[str]) -> dict[str, Any]:
    where = f"has a message {number} "
    if not isinstance(message, Mapping):
        raise ValueError(f"{where}that is {type(message).__name__} instead of a mapping")
    keys = [key for key in _KEYS if key != "timestamp" or name == PERSISTENT]
    unknown = [str(key) for key in message if key not in keys]
    if unknown:
        raise ValueError(f"{where}with the unknown keys {', '.join(unknown)}")
    if not isinstance(message.get("role"), str):
        raise ValueError(f"{where}without a role")
    for key in ("content", "camera"):
        if message.get(key) is not None and not isinstance(message[key], str):
            raise ValueError(f"{where}whose {key} is {message[key]!r:.40} instead of a text")
    style, camera = message.get("style"), message.get("camera")
    if style not in STYLES[name]:
        known = ", ".join(str(one) for one in STYLES[name])
        raise ValueError(f"{where}of the style {style!r:.40}; there are {known}")
    if (camera is not None) != (style in _WITH_CAMERA):
        raise ValueError(f"{where}of the style {style} {'without' if camera is None else 'with'} a camera")
    if camera is not None and camera not in cameras:
        raise ValueError(f"{where}about the camera {camera!r:.60}; there are {', '.join(cameras) or 'none'}")
    timestamp = message.get("timestamp")
    if timestamp is not None and (isinstance(timestamp, bool) or not isinstance(timestamp, (int, float))):
        raise ValueError(f"{where}whose timestamp is {timestamp!r:.40}")
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, (list, tuple)):
        raise ValueError(f"{where}whose tool_calls are no list")
    return {key: message.get(key) for key in keys}
