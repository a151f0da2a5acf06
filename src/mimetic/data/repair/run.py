"""`repair(root)`: what `mimetic dataset check` finds in the tables of a dataset is mended, and nothing else.

Dry by default; a second run finds nothing to do. Pictures and videos are never written to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from mimetic.catalog import closest_hint
from mimetic.data.layout import require_dataset
from mimetic.data.record.journal import WORK_DIR, recover
from mimetic.data.repair.apply import finish_interrupted, write_repair
from mimetic.data.repair.footage import mend_order, mend_short_footage, mend_spans, move_orphans
from mimetic.data.repair.lock import only_repair
from mimetic.data.repair.numbering import drop_strays, mend_data_file, mend_index, mend_ledger
from mimetic.data.repair.state import Repair, State, read_state
from mimetic.data.repair.stats_rules import STATS_RULES, mend_stats
from mimetic.data.repair.tasks import mend_tasks, mend_variants
from mimetic.data.repair.times import GRID_RULES, mend_grid, mend_start
from mimetic.data.store.tables import with_counts
from mimetic.errors import ConfigError

RULES = (
    *(
        "meta.files",
        "meta.ledger",
        "meta.orphans",
        "meta.data_file",
        "meta.video_order",
        "meta.video_span",
        "meta.video_file",
    ),
    *("data.task", "task.variants", "data.index", "time.start", *GRID_RULES, "meta.counts", *STATS_RULES),
)
"""Ids of `mimetic dataset check` that can be mended, in the order in which they are."""


@dataclass(frozen=True, kw_only=True)
class RepairResult:
    """What a repair found and did.

    Args:
        root: the dataset.
        repairs: faults, mended or not.
        is_applied: whether anything was written.
        backup: where the files are as they were.
    """

    root: Path
    repairs: tuple[Repair, ...]
    is_applied: bool = False
    backup: Path | None = None

    @property
    def mended(self) -> list[Repair]:
        """Faults that are (or would be) mended."""
        return [repair for repair in self.repairs if repair.is_mended]

    @property
    def left(self) -> list[Repair]:
        """Faults that cannot be mended."""
        return [repair for repair in self.repairs if not repair.is_mended]


def repair(
    root: Path | str, *, only: Collection[str] = (), short_video: str = "shorten", apply: bool = False
) -> RepairResult:
    """Find what is wrong with the tables of a dataset, and mend it when asked to.

    Args:
        root: folder of a v3.0 dataset.
        only: rules to mend; all of `RULES` when empty.
        short_video: what to do with episodes whose footage ends before their rows: "shorten" or "drop".
        apply: write; otherwise nothing on disk changes.

    Raises:
        ConfigError: a rule that does not exist or that nothing can mend.
        DatasetNotFound: there is no dataset.
        DatasetFormatError: a file that every repair needs cannot be read.
        DatasetError: the repaired dataset could not be opened, or another process repairs or edits it; nothing was
            changed.
    """
    require_rules(only)
    root = Path(root).expanduser()
    if not apply:
        return _repair(root, set(only or RULES), short_video, apply=False)
    if not root.is_dir():
        require_dataset(root)
    with only_repair(root):
        return _repair(root, set(only or RULES), short_video, apply=True)


def _repair(root: Path, wanted: set[str], short_video: str, *, apply: bool) -> RepairResult:
    earlier: list[Repair] = []
    if apply and finish_interrupted(root):
        earlier.append(Repair(id="meta.files", message="a repair that was interrupted is finished"))
    if apply and "meta.files" in wanted:
        earlier += [Repair(id="meta.files", message=sentence) for sentence in recover(root)]
    if not apply and "meta.files" in wanted and (root / WORK_DIR).is_dir():
        message = "a recording that was broken off is completed, or taken back to its last whole episode"
        earlier.append(Repair(id="meta.files", message=message))
    state = read_state(root, without_truncated="meta.files" in wanted)
    _mend(state, wanted, short_video)
    backup = write_repair(state) if apply else None
    return RepairResult(
        root=root,
        repairs=(*earlier, *state.repairs),
        is_applied=apply and (backup is not None or bool(earlier)),
        backup=backup,
    )


def require_rules(rules: Collection[str]) -> None:
    """Check the ids of `--only`.

    Raises:
        ConfigError: some do not exist, or nothing can mend them.
    """
    unknown = [rule for rule in rules if rule not in RULES]
    if unknown:
        raise ConfigError(
            f"`--only` names {', '.join(f'`{rule}`' for rule in unknown)}, which cannot be mended",
            closest_hint(unknown[0], RULES) or f"what can be mended: {', '.join(RULES)}",
        )


def _mend(state: State, wanted: set[str], short_video: str) -> None:
    """All steps, in an order in which each can rely on the ones before."""
    if "meta.ledger" in wanted:
        mend_ledger(state, without_strays="meta.orphans" in wanted)
    elif "meta.orphans" in wanted:
        drop_strays(state)
    if "meta.data_file" in wanted:
        mend_data_file(state)
    if "meta.video_order" in wanted:
        mend_order(state)
    if "meta.video_span" in wanted:
        mend_spans(state)
    if wanted & {"meta.video_span", "meta.video_file"}:
        rule = "meta.video_file" if "meta.video_file" in wanted else "meta.video_span"
        mend_short_footage(state, rule, short_video=short_video)
    if "data.task" in wanted or ("meta.files" in wanted and not state.has_tasks_file):
        mend_tasks(state)
    if "task.variants" in wanted:
        mend_variants(state)
    if "data.index" in wanted:
        mend_index(state)
    if "time.start" in wanted:
        mend_start(state)
    mend_grid(state, wanted & set(GRID_RULES))
    if "meta.orphans" in wanted:
        move_orphans(state)
    rules = wanted & set(STATS_RULES)
    if "meta.files" in wanted and not state.has_stats_file:
        rules.add("stats.present")
    mend_stats(state, rules)
    _mend_counts(state, is_asked="meta.counts" in wanted)


def _mend_counts(state: State, *, is_asked: bool) -> None:
    """Counters of info.json; when other repairs changed what they count, they follow unasked."""
    frames = int(state.kept.sum())
    actual = {"total_episodes": len(state.episodes), "total_frames": frames, "total_tasks": len(state.tasks)}
    wrong = {name: value for name, value in actual.items() if state.raw_info.get(name) != value}
    if not wrong or not (is_asked or state.is_ledger_changed or state.are_tasks_changed):
        return
    if is_asked:
        said = ", ".join(f"{name} {state.raw_info.get(name)} (there are {value})" for name, value in wrong.items())
        state.note("meta.counts", f"info.json says {said}; corrected")
    state.raw_info = with_counts(
        state.raw_info, episodes=actual["total_episodes"], frames=frames, tasks=actual["total_tasks"]
    )
    state.is_info_changed = True
