"""`mimetic inspect`: what is inside a checkpoint, and whether it can be used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mimetic.cli import output
from mimetic.fields import setting

if TYPE_CHECKING:
    from mimetic.policies.inspection import FeatureRow, Inspection

SUMMARY = "Show what is inside a checkpoint: policy, features, statistics, weights, training state"


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Settings of `mimetic inspect`; the path may also stand alone, `mimetic inspect outputs/pick`."""

    path: str = setting(
        "", "A run's output folder, a checkpoint, a pretrained_model folder, or a hub id", layer="mimetic"
    )
    json: bool = setting(False, "Print JSON instead of tables", layer="mimetic")
    allow_missing: list[str] = setting(
        factory=list, help="Tensor name patterns that may differ between weights and policy", layer="mimetic"
    )
    stats_dataset: str | None = setting(
        None, "Which dataset's statistics to use when the checkpoint holds those of several", layer="mimetic"
    )
    migrate_to: Path | None = setting(
        None, "Folder to write an old checkpoint to, in the form of today", layer="mimetic"
    )

    merge_to: Path | None = setting(
        None, "Folder to write the whole policy to that an adapter and its base make together", layer="mimetic"
    )

    def check(self) -> list[str]:
        """Problems of these settings, one sentence each."""
        return [] if self.path else ["no checkpoint is named: `mimetic inspect outputs/pick`"]


def main(argv: list[str], *, debug: bool) -> int:
    """Show a checkpoint, migrate an old one, or merge an adapter.

    Args:
        argv: words after the command's name.
        debug: show more; not used here.

    Returns:
        0, or 1 when the checkpoint has problems.
    """
    from mimetic.config.parse import parse

    config: InspectConfig = parse(InspectConfig, with_path_flag(argv), prog="mimetic inspect").value
    from mimetic.policies.inspection import inspect_checkpoint

    if config.migrate_to is not None:
        from mimetic.policies.migrate import migrate

        report = migrate(Path(config.path), config.migrate_to, stats_dataset=config.stats_dataset)
        output.note(f"wrote {config.migrate_to}: {report.summary()}")
        return 0
    if config.merge_to is not None:
        from mimetic.policies.merging import merge_into

        merged = merge_into(config.path, config.merge_to)
        output.note(f"wrote {config.merge_to}: a whole policy, with the adapter in {len(merged)} of its layers")
        return 0
    found = inspect_checkpoint(config.path, allow_missing=config.allow_missing, stats_dataset=config.stats_dataset)
    if config.json:
        output.say_json(found.to_json())
    else:
        show(found)
    return 1 if found.problems else 0


def with_path_flag(argv: Sequence[str]) -> list[str]:
    """The words with a leading bare path turned into `--path=...`."""
    words = list(argv)
    if words and not words[0].startswith("-"):
        words[0] = f"--path={words[0]}"
    return words


def show(found: Inspection) -> None:
    """Print tables to stdout; problems go to stderr."""
    output.say(f"{found.folder}")
    output.say_table(["what", "value"], _facts(found))
    output.say()
    headers = ["feature", "role", "type", "shape", "normalisation", "statistics"]
    output.say_table(headers, [_feature_cells(row) for row in found.features])
    for message, hint in found.problems:
        output.print_problem(message, hint)


def _facts(found: Inspection) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [("policy", found.policy)]
    if found.training_step is not None:
        rows.append(("training step", found.training_step))
    if found.is_legacy:
        rows.append(("form", "old: statistics among the weights, no pipeline files"))
    if found.adapter:
        rows.append(("adapter", found.adapter))
    rows.append(("cameras, in order", ", ".join(found.cameras) or "none"))
    if found.rename_map:
        renamed = [f"{there} -> {here}" for there, here in found.rename_map.items()]
        rows.append(("renames", ", ".join(renamed)))
    if found.parameters is not None:
        rows.append(("parameters", f"{found.parameters:,}"))
        rows.append(("buffer values", f"{found.buffers:,}"))
    if found.weights_bytes:
        dtypes = ", ".join(f"{count:,} {dtype}" for dtype, count in found.dtypes.items())
        rows.append(("weights", f"{found.weights_bytes:,} bytes: {dtypes}"))
    if found.report is not None:
        rows.append(("tensors", found.report.summary()))
    rows.extend((name, " > ".join(steps)) for name, steps in found.steps.items())
    rows.append(("problems", len(found.problems) or "none"))
    return rows


def _feature_cells(row: FeatureRow) -> tuple[str, ...]:
    statistics = f"{', '.join(row.statistics)} from {row.source}" if row.statistics else "-"
    if row.constant_dims:
        statistics += f"; hardly varies in dimension {', '.join(map(str, row.constant_dims))}"
    if not row.statistics and row.mode != "IDENTITY":
        statistics = "not usable, see the problems"
    return row.name, row.role, row.type, "x".join(map(str, row.shape)), row.mode, statistics
