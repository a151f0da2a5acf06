"""Local files that hold settings: config files, checkpoints and run folders.

Names of the hub are not looked up here; the command line hands in loaders that try these functions first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mimetic import names
from mimetic.catalog import closest
from mimetic.config.reading import read_json
from mimetic.config.values import Mismatch
from mimetic.errors import CheckpointNotFound, ConfigError

_ENDINGS = (".json", ".yaml", ".yml", ".toml")


def load_file(place: str) -> tuple[dict[str, Any], str]:
    """Read the file behind `--config_path`.

    Args:
        place: a .json, .yaml, .yml or .toml file; or a folder with train_config.json, a checkpoint, or a run.

    Returns:
        The settings as plain data, and the path of the file that was read. Beside a train_config.json, settings that
        only mimetic.json holds are added.

    Raises:
        ConfigError: nothing is there, or the file cannot be read as settings.
    """
    path = find_config(place)
    if path is None:
        raise ConfigError(
            f"`--config_path={place}`: {_absence(place, names.TRAIN_CONFIG_JSON)}",
            _near(place) or _hub(place) or _PLACES,
        )
    data = read_file(path)
    if path.name == names.TRAIN_CONFIG_JSON:
        for extra in (path.parent / names.MIMETIC_JSON, path.parent.parent / names.MIMETIC_JSON):
            if extra.is_file():
                _add_missing(data, read_file(extra).get("config"))
                break
    return data, str(path)


_PLACES = "it names a .json, .yaml or .toml file, a checkpoint, or the folder of a run"


def load_policy(place: str, revision: str | None = None) -> dict[str, Any]:
    """Read the config.json of the policy behind `--policy.path`.

    Args:
        place: a folder with config.json, a checkpoint, or a run.
        revision: revision on the hub; folders have none.

    Raises:
        CheckpointNotFound: nothing is there.
        ConfigError: config.json cannot be read.
    """
    del revision
    folder = find_policy(place)
    if folder is None:
        raise CheckpointNotFound(
            f"`--policy.path={place}`: {_absence(place, names.CONFIG_JSON)}",
            _near(place) or _hub(place) or "it names a folder with config.json, a checkpoint, or the folder of a run",
        )
    return read_file(folder / names.CONFIG_JSON)


def find_config(place: str) -> Path | None:
    """The settings file that `place` stands for; None when there is none."""
    path = follow_last(Path(place).expanduser())
    if path.is_file():
        return path
    return next((f for folder in _candidates(path) if (f := folder / names.TRAIN_CONFIG_JSON).is_file()), None)


def find_policy(place: str) -> Path | None:
    """The folder with config.json that `place` stands for; None when there is none."""
    path = follow_last(Path(place).expanduser())
    if path.is_file() and path.name in (names.CONFIG_JSON, names.WEIGHTS):
        path = path.parent
    return next((folder for folder in _candidates(path) if (folder / names.CONFIG_JSON).is_file()), None)


def _candidates(path: Path) -> list[Path]:
    """The folder itself, and where the pretrained model of a checkpoint, a run, or its checkpoints folder lies."""
    found = [path, path / names.PRETRAINED_DIR]
    for checkpoints in (path / names.CHECKPOINTS_DIR, path):
        step = last_checkpoint(checkpoints)
        if step is not None:
            found.append(step / names.PRETRAINED_DIR)
    return found


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The folder of the newest step: what `last` (a link) or `last.txt` names, else the highest number.

    Args:
        checkpoints: the `checkpoints` folder of a run.
    """
    for pointer in (checkpoints / names.LAST, checkpoints / names.LAST_TXT):
        if pointer.is_symlink():
            step = checkpoints / pointer.readlink().name
            if step.is_dir():
                return step
        if pointer.is_dir():
            return pointer
        if pointer.is_file() and pointer.stat().st_size < 256:
            step = checkpoints / Path(pointer.read_text(encoding="utf-8", errors="replace").strip()).name
            if step.name.isdigit() and step.is_dir():
                return step
    if not checkpoints.is_dir():
        return None
    steps = [folder for folder in checkpoints.iterdir() if folder.name.isdigit() and folder.is_dir()]
    return max(steps, key=lambda folder: int(folder.name), default=None)


def follow_last(path: Path) -> Path:
    """Replace a part `last` by the step that it names now, since it will name another one later."""
    for part in (path, *path.parents):
        if part.name == names.LAST:
            step = last_checkpoint(part.parent)
            return step / path.relative_to(part) if step is not None else path
    return path


def read_file(path: Path) -> dict[str, Any]:
    """Read one settings file by its ending.

    Raises:
        ConfigError: it cannot be read, has an unknown ending, is broken (with line and column), or holds no mapping.
    """
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigError(f"`{path}`: settings files end in {', '.join(_ENDINGS)}")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"`{path}` is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror}") from error
    data = _parse(path, text)
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"`{path}` holds no mapping of settings", 'expected `{"name": value, ...}` at its top level')
    return dict(data)


def _parse(path: Path, text: str) -> Any:
    ending = path.suffix.lower()
    try:
        if ending == ".toml":
            import tomllib

            return tomllib.loads(text)
        if ending == ".json":
            return read_json(text)
        from mimetic.config.flow import read_yaml

        return read_yaml(text)
    except Mismatch as mismatch:
        raise ConfigError(f"`{path}`: {mismatch}", mismatch.hint) from None
    except ValueError as error:  # JSONDecodeError and TOMLDecodeError; both name line and column
        raise ConfigError(f"`{path}` is not valid {ending[1:].upper()}: {error}") from None
    except RecursionError:
        raise ConfigError(f"`{path}` is nested too deeply") from None


def _add_missing(data: dict[str, Any], more: Any) -> None:
    """Add what only `more` has, in place; mappings are merged, except that a choice of another type is left alone."""
    if not isinstance(more, Mapping):
        return
    for key, value in more.items():
        if key not in data:
            data[key] = value
        elif _is_same_group(data[key], value):
            inner = dict(data[key])
            _add_missing(inner, value)
            data[key] = inner


def _is_same_group(one: Any, other: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("type") == other.get("type")


def _absence(place: str, wanted: str) -> str:
    path = Path(place).expanduser()
    if path.is_dir():
        return f"the folder holds no {wanted}, and is neither a checkpoint nor a run"
    return "no such file or folder"


def _hub(place: str) -> str:
    """A hint for what looks like a name on the hub, `user/name`."""
    if Path(place).exists() or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", place):
        return ""
    return f"if it is a name on the hub, download it first: `hf download {place} --local-dir FOLDER`"


def _near(place: str) -> str:
    """A hint with the name beside the wrong one that resembles it most."""
    path = Path(place).expanduser()
    if path.exists() or not path.parent.is_dir():
        return ""
    found = closest(path.name, [entry.name for entry in path.parent.iterdir()])
    return f"did you mean `{path.parent / found[0]}`?" if found else ""
