"""MCAP files of ROS 2: one file an episode, topics named by flags, brought to one rate.

Topics send at their own times. Frame i is at `start + i / fps`, where `start` is when the last of the wanted topics has
sent for the first time; its value of a topic is the last message at or before that time (by the time at which it was
recorded, `log_time`); the episode ends when the first of them has sent its last. Nothing is interpolated: a policy sees
what the robot knew at that moment.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.imports.pictures import decode_picture, to_rgb
from mimetic.data.convert.imports.recording import (
    Array,
    ImportEpisode,
    Recording,
    assign,
    declare,
    report,
    require_same,
    required_fps,
    required_task,
)
from mimetic.errors import ConfigError, DatasetFormatError, DatasetNotFound, EpisodeError, MissingExtra

logger = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_FIELDS = ("position", "velocity", "effort")
_JOINTS, _COMPRESSED, _RAW = "sensor_msgs/msg/JointState", "sensor_msgs/msg/CompressedImage", "sensor_msgs/msg/Image"
_LISTS = tuple(f"std_msgs/msg/{kind}MultiArray" for kind in ("Float32", "Float64", "Int32", "Int64", "UInt8"))
_NUMBERS = tuple(f"std_msgs/msg/{kind}" for kind in ("Float32", "Float64", "Int32", "Int64", "Bool"))
_TYPES = (_JOINTS, _COMPRESSED, _RAW, *_LISTS, *_NUMBERS)
_LONG_S = 0.5
"""A value that is held longer than this is worth a warning [s]."""


@dataclass(frozen=True, kw_only=True)
class _Topic:
    """What is taken of a topic.

    Args:
        topic: its name.
        field: of a joint state: position, velocity or effort.
    """

    topic: str
    field: str


def find_files(root: Path) -> list[Path]:
    """MCAP files below a folder, or the file itself, by name."""
    if root.is_file():
        return [root] if root.suffix == ".mcap" else []
    return sorted(root.rglob("*.mcap"))


def survey(root: Path, config: ConvertConfig) -> Recording:
    """Read the times of the wanted topics, and the first message of each.

    Raises:
        DatasetNotFound: there is no MCAP file.
        DatasetFormatError: a file is damaged, or a message is of a kind that is not read.
        EpisodeError: the topics have no time in common.
        ConfigError: flags must say which topics become what.
        MissingExtra: mcap is not installed.
    """
    files = find_files(root)
    if not files:
        raise DatasetNotFound(f"no MCAP file below `{root}`")
    wanted = [name for name, feature in config.features.items() if feature]
    topics = _topics(files[0])
    if not wanted:
        raise ConfigError(
            "an MCAP file does not say which topics are states, actions and cameras; "
            f"`{files[0].name}` has {', '.join(f'`{name}` ({kind})' for name, kind in topics.items())}",
            "name them, such as `--features='{/joint_states: observation.state, /command: action, "
            "/camera/compressed: observation.images.top}'`",
        )
    fps = required_fps(config)
    first: dict[str, Array] = {}
    episodes = []
    for path in files:
        arrays, times = _look(path, wanted)
        if not first:
            first = arrays
        require_same(first, arrays, str(path), str(files[0]))
        start, length = _grid(times, fps, path)
        task = required_task(config, None, f"`{path}`")
        episodes.append(ImportEpisode(path=path, start=start, length=length, task=task))
    sources = assign(first, {}, config)
    report(sources, first, [name for name in topics if not any(_split(one).topic == name for one in wanted)])
    return Recording(
        source_format="mcap",
        fps=fps,
        robot_type=config.robot_type,
        sources=sources,
        features=declare(sources, first, config),
        episodes=episodes,
        is_bgr=False,
    )


def read_columns(recording: Recording, episode: ImportEpisode) -> dict[str, npt.NDArray[Any]]:
    """The numbers of an episode, (frames, ...) by feature."""
    columns = {}
    for feature, name in recording.sources.items():
        if feature in recording.cameras:
            continue
        times, values = [], []
        names = recording.features[feature]["names"]
        for time, message, kind in _messages(episode.path, _split(name).topic):
            times.append(time)
            values.append(_value(message, kind, _split(name), names, episode.path))
        rows = np.asarray(values)[_held(np.asarray(times), recording.fps, episode)]
        columns[feature] = rows
    return columns


def read_frames(recording: Recording, episode: ImportEpisode, camera: str) -> Iterator[npt.NDArray[np.uint8]]:
    """The pictures of a camera, (H, W, 3) uint8 each."""
    topic = _split(recording.sources[camera]).topic
    times = np.asarray([time for time, _ in _times(episode.path, topic)])
    held = _held(times, recording.fps, episode)
    repeats = np.bincount(held, minlength=len(times))
    height, width = recording.features[camera]["shape"][:2]
    for number, (_, message, kind) in enumerate(_messages(episode.path, topic)):
        if repeats[number]:
            picture = _picture(
                message, kind, (height, width), where=f"message {number} of `{topic}` in `{episode.path}`"
            )
            for _ in range(repeats[number]):
                yield picture


def _grid(times: dict[str, npt.NDArray[np.int64]], fps: int, path: Path) -> tuple[int, int]:
    """Time of the first frame [ns] and number of frames."""
    start = max(int(each[0]) for each in times.values())
    end = min(int(each[-1]) for each in times.values())
    # The last message is held for one frame, as any other.
    length = -(-(end - start) * fps // _NANOSECONDS) + 1
    if length < 1:
        raise EpisodeError(f"the topics in `{path}` have no time in common", "leave one out, or cut the file")
    for name, each in times.items():
        inside = each[(each >= start) & (each <= end)]
        longest = float(np.diff(inside).max(initial=0)) / _NANOSECONDS
        if longest > max(_LONG_S, 2.0 / fps):
            logger.warning("%s: `%s` sends nothing for %.1f s; its last value is held", path, name, longest)
    return start, int(length)


def _held(times: npt.NDArray[np.int64], fps: int, episode: ImportEpisode) -> npt.NDArray[np.int64]:
    """Message that each frame shows."""
    frames = episode.start + np.arange(episode.length, dtype=np.int64) * _NANOSECONDS // fps
    return np.maximum(np.searchsorted(times, frames, side="right") - 1, 0)


def _look(path: Path, wanted: Sequence[str]) -> tuple[dict[str, Array], dict[str, npt.NDArray[np.int64]]]:
    """Kind of the first message, and times of all messages, of each wanted topic."""
    topics = _topics(path)
    arrays: dict[str, Array] = {}
    times: dict[str, npt.NDArray[np.int64]] = {}
    for name in wanted:
        part = _split(name)
        if part.topic not in topics:
            raise ConfigError(f"`--features` names `{name}`, which `{path}` lacks", f"it has {', '.join(topics)}")
        if topics[part.topic] not in _TYPES:
            raise DatasetFormatError(
                f"`{part.topic}` in `{path}` sends {topics[part.topic]}, which is not read", f"{', '.join(_TYPES)} are"
            )
        times[name] = np.asarray([time for time, _ in _times(path, part.topic)], dtype=np.int64)
        if not len(times[name]):
            raise EpisodeError(f"`{part.topic}` in `{path}` sends nothing")
        _, message, kind = next(_messages(path, part.topic))
        arrays[name] = _described(message, kind, part, path)
    return arrays, times


def _described(message: Any, kind: str, part: _Topic, path: Path) -> Array:
    if kind in (_COMPRESSED, _RAW):
        picture = _picture(message, kind, None, where=f"the first message of `{part.topic}` in `{path}`")
        return Array(shape=picture.shape, dtype="uint8", is_picture=True)
    value = _value(message, kind, part, None, path)
    names = tuple(message.name) if kind == _JOINTS else ()
    return Array(shape=value.shape, dtype=value.dtype.name, names=names)


def _value(message: Any, kind: str, part: _Topic, names: Sequence[str] | None, path: Path) -> npt.NDArray[Any]:
    if kind == _JOINTS:
        values = dict(zip(message.name, getattr(message, part.field), strict=False))
        order = list(names or message.name)
        missing = [name for name in order if name not in values]
        if missing and len(values) == len(order):
            return np.asarray(list(values.values()), dtype=np.float64)  # named otherwise by `--joint_names`
        if missing:
            raise EpisodeError(f"`{part.topic}` in `{path}` sends no {part.field} of `{missing[0]}`")
        return np.asarray([values[name] for name in order], dtype=np.float64)
    return np.asarray(message.data)


def _picture(message: Any, kind: str, size: tuple[int, int] | None, *, where: str) -> npt.NDArray[np.uint8]:
    if kind == _COMPRESSED:
        return decode_picture(bytes(message.data), size, where=where)
    encoding = message.encoding
    if encoding not in ("rgb8", "bgr8"):
        raise DatasetFormatError(f"{where} is encoded as {encoding!r:.40}; rgb8 and bgr8 are read")
    if size is not None and (message.height, message.width) != size:
        raise DatasetFormatError(f"{where} is {message.width}x{message.height} pixels instead of {size[1]}x{size[0]}")
    rows = np.frombuffer(bytes(message.data), dtype=np.uint8)
    if message.step < message.width * 3 or len(rows) != message.height * message.step:
        raise DatasetFormatError(f"{where} has {len(rows)} bytes for {message.width}x{message.height} pixels")
    picture = rows.reshape(message.height, message.step)[:, : message.width * 3].reshape(message.height, -1, 3)
    return to_rgb(picture, is_bgr=encoding == "bgr8", largest=0.0, where=where)


def _split(name: str) -> _Topic:
    topic, _, field = name.rpartition(":")
    return _Topic(topic=topic, field=field) if field in _FIELDS and topic else _Topic(topic=name, field="position")


def _topics(path: Path) -> dict[str, str]:
    """Topic -> type of its messages."""
    with path.open("rb") as stream:
        reader = _reader(stream)
        try:
            summary = reader.get_summary()
        except Exception as error:  # the edge to a third-party reader
            raise _damaged(path, error) from error
    if summary is None:
        raise DatasetFormatError(f"`{path}` has no summary: its recording was stopped", "`mcap recover` mends it")
    return {
        channel.topic: summary.schemas[channel.schema_id].name if channel.schema_id in summary.schemas else "?"
        for channel in summary.channels.values()
    }


def _times(path: Path, topic: str) -> Iterator[tuple[int, int]]:
    """Times [ns] of the messages of a topic, and their numbers; nothing is decoded."""
    with path.open("rb") as stream:
        messages = enumerate(_reader(stream).iter_messages(topics=[topic]))
        while True:
            try:
                number, (_, _, message) = next(messages)
            except StopIteration:
                return
            except Exception as error:  # the edge to a third-party reader
                raise _damaged(path, error) from error
            yield message.log_time, number


def _messages(path: Path, topic: str) -> Iterator[tuple[int, Any, str]]:
    """Time [ns], decoded message and its type."""
    with path.open("rb") as stream:
        messages = iter(_reader(stream, decode=True).iter_decoded_messages(topics=[topic]))
        while True:
            try:
                schema, _, message, decoded = next(messages)
            except StopIteration:
                return
            except Exception as error:  # the edge to a third-party reader
                raise _damaged(path, error) from error
            yield message.log_time, decoded, schema.name


def _damaged(path: Path, error: Exception) -> DatasetFormatError:
    return DatasetFormatError(
        f"`{path}` cannot be read as MCAP: {type(error).__name__} {error!s:.200}",
        "`mcap doctor` says what is wrong with it",
    )


def _reader(stream: Any, *, decode: bool = False) -> Any:
    try:
        from mcap.reader import make_reader
        from mcap_ros2.decoder import DecoderFactory
    except ImportError as error:
        raise MissingExtra(
            "MCAP files need the packages mcap and mcap-ros2-support", 'pip install "mimetic[mcap]"'
        ) from error
    return make_reader(stream, validate_crcs=True, decoder_factories=[DecoderFactory()] if decode else [])
