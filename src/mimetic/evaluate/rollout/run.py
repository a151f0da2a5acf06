"""A whole evaluation in an environment: from settings to its files (spec/training.md 23).

Nothing of the result depends on how many environments run at once, on processes, or on interruptions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimetic.accelerators.tf32 import apply_tf32
from mimetic.config.check import require_valid
from mimetic.data.publish import push_dataset
from mimetic.data.store.atomic import TEMPORARY
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.loading import evaluation_device
from mimetic.evaluate.rollout import summary
from mimetic.evaluate.rollout.adapters import open_tasks
from mimetic.evaluate.rollout.contestant import Contestant, load_contestant
from mimetic.evaluate.rollout.documents import (
    CLOSED_LOOP,
    EVAL_CONFIG,
    EVAL_INFO,
    closed_loop,
    eval_info,
    policy_episodes,
    write_document,
)
from mimetic.evaluate.rollout.environment import EnvTask, Places
from mimetic.evaluate.rollout.fit import read_training, require_fit
from mimetic.evaluate.rollout.identity import identify, only_one, stored_identity
from mimetic.evaluate.rollout.intervals import enough
from mimetic.evaluate.rollout.journal import Journal
from mimetic.evaluate.rollout.passes import COMPARE, POLICY, plan_removals
from mimetic.evaluate.rollout.play import VIDEOS, Episode, Plan, play
from mimetic.evaluate.rollout.player import Alter, Player
from mimetic.evaluate.rollout.recorder import RECORDINGS, Recorder, in_order, recording_folder
from mimetic.evaluate.rollout.shifts import ShiftEffect, reading, shift_effects
from mimetic.hub.upload import check_push_id, require_repo

logger = logging.getLogger(__name__)
Progress = Callable[[int, int, str], None]
_LOG_EVERY_S = 30.0
_RECORDING_FLAG = "--eval.recording_repo_id"


@dataclass(frozen=True, kw_only=True)
class ClosedLoopResult:
    """What an evaluation found.

    Args:
        folder: with all its files.
        episodes: of every pass, sorted.
        headline: in one line.
        findings: sentences.
        caveats: sentences.
        whole: success of the policy in all episodes.
        tasks: by task and split.
        splits: by split, where there are several.
        differences: against other passes over the same episodes.
        shifts: splits compared with the one that they are compared with.
        latency: of the policy; None when it never predicted.
        document: the content of closed_loop.json.
    """

    folder: Path
    episodes: tuple[Episode, ...]
    headline: str
    findings: tuple[str, ...]
    caveats: tuple[str, ...]
    whole: summary.Rate
    tasks: tuple[summary.Rate, ...]
    splits: tuple[summary.Rate, ...]
    differences: tuple[summary.Difference, ...]
    shifts: tuple[ShiftEffect, ...]
    latency: summary.Latency | None
    document: Mapping[str, Any] = field(repr=False)


def evaluate_closed_loop(
    config: EvalConfig, *, origins: Mapping[str, str] | None = None, on_progress: Progress | None = None
) -> ClosedLoopResult:
    """Let a policy play in an environment and count its successes.

    The files grow while it plays; `config.resume` goes on after an interruption.

    Args:
        config: settings; `policy.pretrained_path`, `env` and `output_dir` are needed.
        origins: where each setting comes from, by dotted flag.
        on_progress: called with finished episodes, all episodes, and a few words.

    Raises:
        MimeticError: the command, the checkpoint or the environment must change; the hint says how.
    """
    require_valid(config)
    assert config.policy is not None
    assert config.policy.pretrained_path is not None
    assert config.output_dir is not None
    folder = config.output_dir
    stored = stored_identity(folder, resumes=config.resume)
    tasks = open_tasks(config.env)
    device, reason = evaluation_device(config.policy, origins or {})
    logger.info("device: %s (%s)", device, reason)
    _require_repositories(config, tasks)
    tf32 = apply_tf32(True, device)  # as in training, and in LeRobot's evaluation
    place, revision = config.policy.pretrained_path, config.policy.pretrained_revision
    first = load_contestant(config, place, str(device), revision, own=True)
    second = None if config.compare is None else load_contestant(config, config.compare, str(device), None, own=False)
    inputs = [
        require_fit(one.loaded.config, one.loaded.preprocessor, tasks[0], read_training(one.folder), policy=one.words)
        for one in (first, second)
        if one is not None
    ]
    precision = ", ".join(part for part in (first.precision.reason, tf32) if part)
    logger.info("%s", precision)
    if second is not None and second.precision.autocast_dtype != first.precision.autocast_dtype:
        logger.warning("the second checkpoint: %s", second.precision.reason)
    run = _Run(
        config,
        tasks,
        first,
        second,
        inputs[0],
        identify(config, first, second, f"{device} ({reason})", precision, stored),
    )
    with only_one(folder):
        run.open_folder(stored)
        started = time.monotonic()
        run.play_all(on_progress)
        return run.finish(time.monotonic() - started)


class _Run:
    def __init__(
        self,
        config: EvalConfig,
        tasks: list[EnvTask],
        first: Contestant,
        second: Contestant | None,
        inputs: Mapping[str, str],
        identity: dict[str, Any],
    ) -> None:
        assert config.output_dir is not None
        self.config, self.tasks, self.first, self.second, self.inputs = config, tasks, first, second, inputs
        self.identity = identity
        self.folder = config.output_dir
        self.notes: list[str] = []
        self.stopped: list[str] = []
        self.counts: dict[str, int] = {}
        self._told = time.monotonic()
        self._others: list[str] = []

    def open_folder(self, stored: Mapping[str, Any] | None) -> None:
        if stored is None:
            self._write_identity()
        else:
            _remove_leftovers(self.folder)
        self.journal = Journal(self.folder)
        if self.journal.episodes:
            logger.info("Going on after %d finished episodes", len(self.journal.episodes))

    def play_all(self, on_progress: Progress | None) -> None:
        """The policy with everything first; the other passes play as many episodes as it did."""
        self._play_pass(POLICY, self.first.player(), on_progress)
        others: dict[str, tuple[Contestant, Alter | None]] = {}
        if self.second is not None:
            others[COMPARE] = (self.second, None)
        said = [one.instruction for one in self._episodes(POLICY)]
        removals = plan_removals(self.config.ablate, self.first.loaded, self.inputs, said)
        self.notes += removals.notes
        for note in removals.notes:
            logger.warning("--ablate=%s: %s", self.config.ablate, note[:1].lower() + note[1:])
        others |= {name: (self.first, alter) for name, alter in removals.alter.items()}
        self._others = list(others)
        for name, (contestant, alter) in others.items():
            self._play_pass(name, contestant.player(alter), on_progress)

    def _play_pass(self, name: str, player: Player, on_progress: Progress | None) -> None:
        for task in self.tasks:
            limit = self.config.eval.n_episodes if name == POLICY else self.counts[task.folder]
            target = self.config.target_precision if name == POLICY else 0.0
            done = self._outcomes(name, task)
            count = _needed(done, limit, target)
            todo = [] if count is not None else [number for number in range(limit) if number not in done]
            with contextlib.ExitStack() as stack:
                recorder = self._recorder(name, task, len(done))
                if recorder is not None:
                    stack.enter_context(recorder)
                episodes = play(
                    task,
                    player,
                    self._plan(name),
                    todo,
                    on_open=lambda places, recorder=recorder: self._open(places, recorder),  # type: ignore[misc]
                    keep=None if recorder is None else recorder.begin,
                )
                stack.enter_context(contextlib.closing(episodes))
                for episode in in_order(recorder, episodes):
                    self.journal.add(episode)
                    done[episode.episode] = episode.success
                    self._tell(name, task, done, on_progress)
                    count = _needed(done, limit, target)
                    if count is not None:
                        break
            if name == POLICY:
                assert count is not None
                self.counts[task.folder] = count
                if count < limit:
                    self.stopped.append(f"{task.title} after {count} of at most {limit} episodes")
                    logger.info("%s: stopped after %d episodes, which are enough", task.title, count)

    def _recorder(self, name: str, task: EnvTask, n_known: int) -> Recorder | None:
        if name != POLICY or not self.config.eval.recording:
            return None
        checkpoint = self.identity["checkpoint"]
        origin = {
            "policy": {name: checkpoint[name] for name in ("type", "sha256")},
            "first_seed": self.identity["seed"],
        }
        return Recorder(self.folder, task, origin, n_known)

    def _open(self, places: Places, recorder: Recorder | None) -> None:
        self._compare_description(places)
        if recorder is not None:
            recorder.describe(json.loads(json.dumps(places.description())))

    def _plan(self, name: str) -> Plan:
        settings = self.config.eval
        cores = os.cpu_count() or 1
        places = settings.places(cores)
        return Plan(
            run=name,
            seed=self.identity["seed"],
            places=places,
            processes=min(places, cores) if settings.use_async_envs and places > 1 else 0,
            folder=self.folder,
            videos=self.config.videos if name in self._filmed() else 0,
            video_folder=VIDEOS if name == POLICY else f"{VIDEOS}_{name}",
        )

    def _filmed(self) -> tuple[str, ...]:
        """Passes that are filmed; a recording holds its pictures itself, as in LeRobot."""
        return (COMPARE,) if self.config.eval.recording else (POLICY, COMPARE)

    def _outcomes(self, name: str, task: EnvTask) -> dict[int, bool]:
        return {
            one.episode: one.success
            for one in self.journal.episodes
            if (one.run, one.group, one.task_id) == (name, task.group, task.task_id)
        }

    def _episodes(self, name: str) -> list[Episode]:
        """Counted episodes of a pass, sorted."""
        order = {task.folder: number for number, task in enumerate(self.tasks)}
        counted = {}
        for one in self.journal.episodes:
            folder = f"{one.group}_{one.task_id}"
            if one.run == name and folder in order and one.episode < self.counts.get(folder, 0):
                counted[order[folder], one.episode] = one
        return [counted[key] for key in sorted(counted)]

    def _tell(self, name: str, task: EnvTask, done: Mapping[int, bool], on_progress: Progress | None) -> None:
        passes = 1 + (self.second is not None) + {"none": 0, "all": 3, "mute": 2}.get(self.config.ablate, 1)
        total = passes * len(self.tasks) * self.config.eval.n_episodes
        words = f"{task.title}: {sum(done.values())} of {len(done)} succeeded" + (
            "" if name == POLICY else f" ({name})"
        )
        if on_progress is not None:
            on_progress(len(self.journal.episodes), total, words)
        if time.monotonic() - self._told > _LOG_EVERY_S:
            self._told = time.monotonic()
            logger.info("%s", words)

    def _compare_description(self, places: Places) -> None:
        """Note the environment as it turned out, or refuse to go on in another one."""
        found = json.loads(json.dumps(places.description()))
        known = self.identity["environments"]
        name = f"{found.get('task', '')} {found.get('split', '')}".strip()
        if name not in known:
            known[name] = found
            self._write_identity()
        different = {key for key in found if known[name].get(key) != found[key] and not key.endswith("_reason")}
        if different:
            key = min(different)
            raise ConfigError(
                f"{self.folder} was begun with `{key}` = {known[name].get(key)!r} of the environment, and it is "
                f"{found[key]!r} now",
                "go on where the evaluation was begun, or begin a new one in another `--output_dir`",
            )

    def _write_identity(self) -> None:
        write_document(self.folder / EVAL_CONFIG, self.identity)

    def finish(self, seconds: float) -> ClosedLoopResult:
        own, others = self._episodes(POLICY), list(self._others)
        episodes = [*own, *(one for name in others for one in self._episodes(name))]
        self.journal.rewrite(episodes)
        whole = summary.rate("all episodes", own)
        tasks = summary.rates_by(own, summary.task_title)
        splits = summary.rates_by(own, lambda one: one.split)
        splits = splits if len(splits) > 1 and len(tasks) > len(splits) else []
        differences = [summary.difference(episodes, name) for name in others]
        shifts = shift_effects(own, self.tasks)
        depends = reading(shifts, differences)
        speed = summary.latency(own, self.tasks[0].fps, int(getattr(self.first.loaded.config, "n_action_steps", 1)))
        findings = [depends] if depends and len(shifts) + len(differences) > 1 else []
        findings += [one.sentence for one in shifts] + [one.sentence for one in differences] + self.notes
        findings += [speed.sentence] if speed else []
        caveats = summary.caveats(
            tasks,
            stopped=self.stopped,
            target=self.config.target_precision,
            splits=[task.split for task in self.tasks],
            compares=self.second is not None,
            shifts=bool(shifts),
        )
        reference = {one.shift.reference for one in shifts}
        main = next((one for one in summary.rates_by(own, lambda one: one.split) if one.title in reference), whole)
        document = closed_loop(
            headline=summary.headline(main, whole),
            main=main,
            reading=depends,
            shifts=shifts,
            shifts_by_task=shift_effects(own, self.tasks, by_task=True) if len(tasks) > len(shifts) + 1 else [],
            findings=findings,
            caveats=caveats,
            whole=whole,
            tasks=tasks,
            splits=splits,
            others=[rate for name in others for rate in summary.rates_by(episodes, summary.task_title, name)],
            differences=differences,
            latency=speed,
            stopped=self.stopped,
        )
        seconds = self._seconds(seconds)
        info = eval_info(policy_episodes(episodes), folder=self.folder, seconds=seconds)
        write_document(self.folder / EVAL_INFO, info)
        write_document(self.folder / CLOSED_LOOP, document)
        self._push()
        return ClosedLoopResult(
            folder=self.folder,
            episodes=tuple(episodes),
            headline=document["headline"],
            findings=tuple(findings),
            caveats=tuple(caveats),
            whole=whole,
            tasks=tuple(tasks),
            splits=tuple(splits),
            differences=tuple(differences),
            shifts=tuple(shifts),
            latency=speed,
            document=document,
        )

    def _push(self) -> None:
        """Send the recordings to the hub, where that was asked for; everything else is written by then."""
        settings = self.config.eval
        if not settings.recording or not settings.recording_repo_id:
            return
        for repo_id, task in zip(_repositories(settings.recording_repo_id, self.tasks), self.tasks, strict=True):
            pushed = push_dataset(
                recording_folder(self.folder, task), repo_id, private=settings.recording_private, flag=_RECORDING_FLAG
            )
            logger.info("%s: pushed to %s, commit %s", task.title, pushed.repo_id, pushed.commit)

    def _seconds(self, seconds: float) -> float:
        """Time of the evaluation in all its parts."""
        self.identity["seconds"] = round(self.identity.get("seconds", 0.0) + seconds, 3)
        self._write_identity()
        return float(self.identity["seconds"])


def _remove_leftovers(folder: Path) -> None:
    """Files that a kill left half written; a recording sees to its own."""
    parts = [path for path in folder.iterdir() if path.is_dir() and path.name != RECORDINGS and not path.is_symlink()]
    for path in [*folder.glob(f"*{TEMPORARY}"), *(path for part in parts for path in part.rglob(f"*{TEMPORARY}"))]:
        path.unlink(missing_ok=True)


def _require_repositories(config: EvalConfig, tasks: Sequence[EnvTask]) -> None:
    """Refuse, before anything is played, a recording that could not be pushed."""
    settings = config.eval
    if settings.recording and settings.recording_repo_id:
        for repo_id in _repositories(settings.recording_repo_id, tasks):
            check_push_id(repo_id, _RECORDING_FLAG)
            found = require_repo(
                repo_id,
                private=settings.recording_private,
                create=False,
                repo_type="dataset",
                flag=_RECORDING_FLAG,
            )
            logger.info("%s", found)


def _repositories(repo_id: str, tasks: Sequence[EnvTask]) -> list[str]:
    """Where each task's recording goes: the named repository, or with several tasks one for each."""
    return [repo_id] if len(tasks) == 1 else [f"{repo_id}_{task.folder}" for task in tasks]


def _needed(done: Mapping[int, bool], limit: int, target: float) -> int | None:
    """How many episodes count, once that is known: all, or so many that the interval is narrow enough."""
    whole = 0
    while whole < limit and whole in done:
        whole += 1
    if target > 0:
        found = enough([done[number] for number in range(whole)], target)
        if found is not None:
            return found
    return limit if whole == limit else None
