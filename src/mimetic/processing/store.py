"""Pipelines on disk: JSON and state files, byte for byte as LeRobot writes them (spec/policies.md 5).

A pipeline file comes from whoever made the checkpoint. It can name steps of the catalog and files inside its own
folder, and nothing else: no Python path, no other folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from mimetic.catalog import closest_hint
from mimetic.errors import CheckpointError, CheckpointNotFound, ConfigError, MimeticError
from mimetic.processing.catalog import STEPS
from mimetic.processing.normalization_step import NormalizationStep
from mimetic.processing.pipeline import Pipeline
from mimetic.processing.small_files import read_small, require_shallow
from mimetic.processing.step import Step


def load_pipeline(
    folder: Path,
    name: str,
    *,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    stats_dataset: str | None = None,
) -> Pipeline:
    """Read a pipeline and prove that its statistics are complete.

    Args:
        folder: the checkpoint.
        name: file name without `.json`, such as `policy_preprocessor`.
        overrides: step name -> constructor arguments that win over the stored ones; statistics win over the state file.
        stats_dataset: whose statistics to take where the checkpoint holds those of several datasets.

    Returns:
        The pipeline, ready to run.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: the file is damaged, or names an unknown step, code, or a file outside the folder.
        ConfigError: an override names a step or an argument that is not there.
        DeviceError: an override names a device that is not there.
        StatsError: statistics are missing, incomplete or ambiguous.
    """
    path = folder / f"{name}.json"
    title, entries = _read_description(path)
    overrides = dict(overrides or {})
    names = [str(entry.get("registry_name")) for entry in entries]
    for wanted in overrides:
        if wanted not in names:
            raise ConfigError(
                f"`{path}` has no step `{wanted}` to override",
                closest_hint(wanted, names) or f"its steps: {', '.join(names)}",
            )
    steps = []
    for index, entry in enumerate(entries):
        where = f"`{path}`, step {index}"
        step = _build_step(entry, overrides, where)
        step.located(folder, _artifacts(entry, where), where)
        state_file = entry.get("state_file")
        if state_file is not None:
            step.load_state(read_state(resolve_inside(folder, state_file, where)))
        if isinstance(step, NormalizationStep):
            step.choose_dataset(stats_dataset, f"`{path}`")
            step.check(f"`{path}`")
        steps.append(step)
    return Pipeline(title, steps)


def stored_steps(folder: Path, name: str) -> list[str]:
    """Registry names in a pipeline file, in order.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: the file is damaged.
    """
    _, entries = _read_description(folder / f"{name}.json")
    return [str(entry.get("registry_name")) for entry in entries]


def stored_artifacts(folder: Path, name: str) -> set[tuple[str, str]]:
    """(Step, constructor argument) of each companion file that a pipeline file of a newer LeRobot lists.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: the file is damaged.
    """
    path = folder / f"{name}.json"
    _, entries = _read_description(path)
    return {
        (str(entry.get("registry_name")), argument)
        for index, entry in enumerate(entries)
        for argument in _artifacts(entry, f"`{path}`, step {index}")
    }


def _read_description(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Name and steps of a pipeline file, checked for form."""
    description = read_json(path)
    steps = description.get("steps")
    if not isinstance(steps, list) or not all(isinstance(entry, dict) for entry in steps):
        raise CheckpointError(f"`{path}` is no pipeline: its `steps` are not a list of objects")
    return str(description.get("name", path.stem)), steps


def read_json(path: Path) -> dict[str, Any]:
    """Content of a JSON file that holds an object.

    Raises:
        CheckpointNotFound: there is no such file.
        CheckpointError: it is no JSON object, or larger or more deeply nested than any file of a checkpoint.
    """
    try:
        content = json.loads(read_small(path).decode())
        require_shallow(content)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointNotFound(f"`{path}` is not there") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"`{path}` is no JSON: {error}", "the file is damaged; copy the checkpoint again"
        ) from error
    except OSError as error:
        raise CheckpointError(f"`{path}` cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"`{path}` holds a {type(content).__name__}, not an object")
    return content


def _build_step(entry: Mapping[str, Any], overrides: Mapping[str, Mapping[str, Any]], where: str) -> Step:
    name = entry.get("registry_name")
    if not isinstance(name, str):
        if "class" in entry:
            raise CheckpointError(
                f"{where} names the Python object `{entry['class']}`; mimetic runs no code that a checkpoint names",
                f"steps that can be used: {', '.join(STEPS.available())}",
            )
        raise CheckpointError(f"{where} has no `registry_name`")
    config = entry.get("config") or {}
    if not isinstance(config, dict):
        raise CheckpointError(f"{where} `{name}`: its `config` is not an object")
    try:
        kind: type[Step] = STEPS.load(name)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error.message}", error.hint) from error
    try:
        return kind.build(config, overrides.get(name, {}))
    except (ConfigError, CheckpointError) as error:
        raise type(error)(f"{where}: {error.message}", error.hint) from error
    except MimeticError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{where} `{name}`: {error}", "its `config` is damaged or from an unknown version"
        ) from error


def _artifacts(entry: Mapping[str, Any], where: str) -> dict[str, str]:
    """Companion files that a file of a newer LeRobot lists for a step; every path stays below the folder."""
    artifacts = entry.get("artifacts")
    if artifacts is None:
        return {}
    if not isinstance(artifacts, dict):
        raise CheckpointError(f"{where}: its `artifacts` are not an object")
    return {name: check_relative(relative, where) for name, relative in artifacts.items()}


def check_relative(relative: object, where: str) -> str:
    """A path from a file, refused unless it is relative and stays below its folder by its text.

    Raises:
        CheckpointError: empty, absolute, or with `..`.
    """
    if not isinstance(relative, str) or not relative or "\0" in relative:
        raise CheckpointError(f"{where} names the file {relative!r}")
    windows, posix = PureWindowsPath(relative), PurePosixPath(relative)
    if (
        posix.is_absolute()
        or windows.is_absolute()
        or windows.drive
        or windows.root
        or ".." in (*posix.parts, *windows.parts)
    ):
        raise CheckpointError(
            f"{where} names `{relative}`, which is outside the checkpoint; mimetic does not follow it",
            "do not use this checkpoint unless you know why it points there",
        )
    return relative


def resolve_inside(folder: Path, relative: object, where: str) -> Path:
    """Path of a file that a checkpoint's own file names.

    Links are followed when they stay inside the folder, or lead to the `blobs` beside the hub cache's `snapshots` that
    the folder is part of, which is how that cache stores every file.

    Raises:
        CheckpointError: it lies outside the folder.
        CheckpointNotFound: it is not there.
    """
    name = check_relative(relative, where)
    try:
        target, home = (folder / name).resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:  # a link that leads to itself, or a name that is too long
        raise CheckpointError(f"{where} names `{name[:200]}`, which cannot be followed: {error}"[:500]) from error
    roots = [home, *(parent.parent / "blobs" for parent in home.parents if parent.name == "snapshots")]
    if not any(target.is_relative_to(root) for root in roots):
        raise CheckpointError(
            f"{where} names `{name}`, a link to a file outside the checkpoint; mimetic does not follow it",
            "copy the file into the folder if it belongs there",
        )
    if not target.is_file():
        raise CheckpointNotFound(f"{where} needs `{folder / name}`, which is not there")
    return target


def read_state(path: Path) -> dict[str, Tensor]:
    """Tensors of a state file, on the CPU.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"`{path}` is damaged: {error}", "copy the checkpoint again") from error
    return tensors


def save_pipeline(pipeline: Pipeline, folder: Path) -> list[Path]:
    """Write a pipeline as LeRobot does; each file appears complete or not at all.

    Args:
        pipeline: what to write.
        folder: an existing folder.

    Returns:
        The files written, the JSON first; companion files of the steps are not among them.
    """
    prefix = re.sub(r"[^a-zA-Z0-9_]", "_", pipeline.name.lower())
    entries: list[dict[str, Any]] = []
    written: list[Path] = []
    for index, step in enumerate(pipeline.steps):
        entry: dict[str, Any] = {"registry_name": step.registry_name, "config": step.config()}
        state = step.state()
        if state:
            name = f"{prefix}_step_{index}_{step.registry_name}.safetensors"
            write_file(folder / name, save({key: value.contiguous() for key, value in state.items()}))
            entry["state_file"] = name
            written.append(folder / name)
        for relative, content in step.companion_files().items():
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            write_file(folder / relative, content)
        entries.append(entry)
    path = folder / f"{prefix}.json"
    write_file(path, json.dumps({"name": pipeline.name, "steps": entries}, indent=2).encode())
    return [path, *written]


def write_file(path: Path, content: bytes) -> None:
    """Write a file so that it is complete or absent after a power cut."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; it is flushed to the disk and takes the name when the block ends well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    """Make a rename durable; Windows offers no way and needs none."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
