"""`convert`: one call for every direction and import."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mimetic import __version__
from mimetic.data.convert.config import ConvertConfig
from mimetic.data.convert.downgrade import downgrade
from mimetic.data.convert.imports.formats import IMPORTS, detect_format
from mimetic.data.convert.imports.recording import Recording
from mimetic.data.convert.imports.stage import StagePart, stage, write_staged_tables
from mimetic.data.convert.legacy_source import LegacySource, open_legacy
from mimetic.data.convert.progress import Bar, no_bar, show_stage
from mimetic.data.convert.upgrade import upgrade
from mimetic.data.convert.workplace import Workplace, fingerprint, run_parts
from mimetic.data.edit.source import EditSource
from mimetic.data.store.tables import read_raw_info
from mimetic.errors import ConfigError, DatasetError
from mimetic.hub.locate import lerobot_home

logger = logging.getLogger(__name__)

_CONTENT = "content of the input"

_NOT_SETTINGS = frozenset(
    (
        *("engine", "num_workers", "address", "repo_id", "root", "output_dir"),
        *("push_to_hub", "private", "force_conversion"),
    )
)


def convert(config: ConvertConfig, *, bar: Bar = no_bar) -> Path:
    """Convert a dataset; the input is only read.

    Args:
        config: what and how; `root` must be given.
        bar: draws progress.

    Returns:
        Folder of the result.

    Raises:
        DatasetError: the input is damaged or lacks files, or the result would overwrite something.
        ConfigError: an import needs flags for what its files do not say.
        MissingExtra: an import needs a package that is not installed.
    """
    if config.root is None:
        raise ConfigError("no input is named", "give its folder, `root`; `find_dataset` finds one by its name")
    root = config.root.expanduser()
    source_format = config.source_format if config.source_format != "auto" else detect_format(root)
    target = output_folder(root, config)
    if source_format != "lerobot":
        return _import(root, source_format, target, config, bar)
    if config.to == "v2.1":
        version = read_raw_info(root).get("codebase_version")
        if version in ("v2.0", "v2.1"):
            raise DatasetError(f"`{root}` is a {version} dataset already", "`--to=v3.0` makes one of v3.0 of it")
        v30 = EditSource(root)
        with Workplace(target, _manifest(root, config), restart=config.force_conversion) as place:
            downgrade(v30, place, config, bar)
            _require_unchanged(root, place)
            place.finish()
        return target
    legacy = open_legacy(root)
    with Workplace(target, _manifest(root, config), restart=config.force_conversion) as place:
        upgrade(legacy, place, config, bar)
        _require_unchanged(root, place)
        place.finish()
    return target


def output_folder(root: Path, config: ConvertConfig) -> Path:
    """Where the result goes.

    Raises:
        ConfigError: it is the input, or inside it.
    """
    if config.output_dir is not None:
        target = config.output_dir.expanduser()
    else:
        source = Path(os.path.abspath(root))  # noqa: PTH100 - resolve() would go where a link leads
        if source.parent.name == "snapshots" and config.repo_id:  # never into the hub's own cache
            source = lerobot_home() / config.repo_id
        name = source.name.partition(".")[0] if root.is_file() else source.name.removesuffix(".zarr")
        target = source.with_name(f"{name}_{'v30' if config.to == 'v3.0' else 'v21'}")
    if target.resolve() == root.resolve() or root.resolve() in target.resolve().parents:
        raise ConfigError(
            f"`--output_dir={target}` is the input or lies inside it, and the input is never changed",
            "choose another folder",
        )
    return target


def _import(root: Path, source_format: str, target: Path, config: ConvertConfig, bar: Bar) -> Path:
    """Stage every episode in the v2.1 layout; that is the result, or is converted on."""
    logger.info("%s is read as %s", root, source_format)
    recording = IMPORTS[source_format].survey(root, config)
    with Workplace(target, _manifest(root, config), restart=config.force_conversion) as place:
        staged = place.dataset if config.to == "v2.1" else place.staged
        parts = _stage_parts(recording, staged, place, config)
        with show_stage(bar, "Episodes", "episode", len(parts)) as advance:
            records = run_parts(stage, parts, config, advance=advance)
        write_staged_tables(staged, recording, records, config.rgb_encoder)
        if config.to == "v3.0":
            upgrade(_counted(open_legacy(staged), recording, records), place, config, bar)
        _require_unchanged(root, place)
        place.finish()
    return target


def _stage_parts(recording: Recording, staged: Path, place: Workplace, config: ConvertConfig) -> list[StagePart]:
    tasks = {task: number for number, task in enumerate(dict.fromkeys(one.task for one in recording.episodes))}
    parts, first = [], 0
    for number, episode in enumerate(recording.episodes):
        parts.append(
            StagePart(
                record=place.file(f"episode-{number:06d}"),
                title=f"episode {number} (`{episode.path.name}`)",
                root=staged,
                recording=replace(recording, episodes=()),
                episode=episode,
                number=number,
                first=first,
                task_index=tasks[episode.task],
                settings=config.rgb_encoder,
                verify=config.verify,
            )
        )
        first += episode.length
    return parts


def _counted(source: LegacySource, recording: Recording, records: Iterable[dict[str, Any]]) -> LegacySource:
    """The staged dataset with the histograms of its cameras, for exact statistics of the whole."""
    pixels: dict[str, list[dict[str, Any]]] = {camera: [] for camera in recording.cameras}
    for record in records:
        for camera, counts in record["counts"].items():
            pixels[camera].append({"counts": counts, "frames": record["stats"][camera]["count"][0]})
    return replace(source, pixels=pixels)


def _require_unchanged(root: Path, place: Workplace) -> None:
    if _content_of(root) != place.manifest[_CONTENT]:
        raise DatasetError(
            f"`{root}` was changed while it was converted, so that the result may mix two states of it",
            "add `--force_conversion=true` to begin anew when nothing writes there any more",
        )


def _content_of(root: Path) -> str:
    """Identify the input; hidden folders, such as the hub's notes on a download, are no part of it."""
    files = [path for path in root.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(root))]
    return fingerprint([root] if root.is_file() else files)


def _is_hidden(name: Path) -> bool:
    return len(name.parts) > 1 and name.parts[0].startswith(".")


def _manifest(root: Path, config: ConvertConfig) -> dict[str, object]:
    return {
        "mimetic": __version__,
        "input": str(root.resolve()),
        _CONTENT: _content_of(root),
        "setting": {name: value for name, value in asdict(config).items() if name not in _NOT_SETTINGS},
    }
