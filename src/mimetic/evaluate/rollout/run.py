"""A whole evaluation in an environment: from settings to its files (spec/training.md 23).

Nothing of the result depends on how many environments run at once, on processes, or on interruptions.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from mimetic import __version__
from mimetic.config.check import require_valid
from mimetic.config.codec import encode
from mimetic.errors import ConfigError
from mimetic.evaluate.config import EvalConfig
from mimetic.evaluate.loading import changed_settings, evaluation_device
from mimetic.evaluate.rollout import summary
from mimetic.evaluate.rollout.adapters import open_tasks
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
from mimetic.evaluate.rollout.intervals import enough
from mimetic.evaluate.rollout.journal import Journal
from mimetic.evaluate.rollout.passes import COMPARE, POLICY, plan_removals
from mimetic.evaluate.rollout.play import VIDEOS, Episode, Plan, play
from mimetic.evaluate.rollout.player import Alter, Player
from mimetic.hub.policies import find_policy
from mimetic.policies.checkpoint import Pretrained, load_pretrained

logger = logging.getLogger(__name__)
Progress = Callable[[int, int, str], None]
_LOG_EVERY_S = 30.0
# What may differ between an evaluation and its continuation.
_FREE = (
    "output_dir",
    "job_name",
    "resume",
    "json",
    "report",
    "eval",
    "policy.device",
    "policy.pretrained_path",
    "compare",
    "ablate",
)


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
    stored = _stored(folder, resumes=config.resume)
    tasks = open_tasks(config.env)
    device, reason = evaluation_device(config.policy, origins or {})
    logger.info("device: %s (%s)", device, reason)
    first = _load(config, config.policy.pretrained_path, str(device), config.policy.pretrained_revision, own=True)
    second = None if config.compare is None else _load(config, config.compare, str(device), None, own=False)
    inputs = [
        require_fit(one.loaded.config, one.loaded.preprocessor, tasks[0], read_training(one.folder), policy=one.words)
        for one in (first, second)
        if one is not None
    ]
    run = _Run(config, tasks, first, second, inputs[0], _identity(config, first, second, device, reason, stored))
    run.open_folder(stored)
    started = time.monotonic()
    run.play_all(on_progress)
    return run.finish(time.monotonic() - started)


@dataclass(frozen=True)
class _Contestant:
    """A policy that plays, where it comes from, and words for messages."""

    loaded: Pretrained
    folder: Path
    words: str
    digest: str


class _Run:
    def __init__(
        self,
        config: EvalConfig,
        tasks: list[EnvTask],
        first: _Contestant,
        second: _Contestant | None,
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
        self.folder.mkdir(parents=True, exist_ok=True)
        if stored is None:
            self._write_identity()
        self.journal = Journal(self.folder)
        if self.journal.episodes:
            logger.info("Going on after %d finished episodes", len(self.journal.episodes))

    def play_all(self, on_progress: Progress | None) -> None:
        """The policy with everything first; the other passes play as many episodes as it did."""
        self._play_pass(POLICY, Player(*_parts(self.first.loaded)), on_progress)
        others: dict[str, tuple[Pretrained, Alter | None]] = {}
        if self.second is not None:
            others[COMPARE] = (self.second.loaded, None)
        said = [one.instruction for one in self._episodes(POLICY)]
        removals = plan_removals(self.config.ablate, self.first.loaded, self.inputs, said)
        self.notes += removals.notes
        for note in removals.notes:
            logger.warning("--ablate=%s: %s", self.config.ablate, note[:1].lower() + note[1:])
        others |= {name: (self.first.loaded, alter) for name, alter in removals.alter.items()}
        self._others = list(others)
        for name, (loaded, alter) in others.items():
            self._play_pass(name, Player(*_parts(loaded), alter=alter), on_progress)

    def _play_pass(self, name: str, player: Player, on_progress: Progress | None) -> None:
        for task in self.tasks:
            limit = self.config.eval.n_episodes if name == POLICY else self.counts[task.folder]
            target = self.config.target_precision if name == POLICY else 0.0
            done = self._outcomes(name, task)
            count = _needed(done, limit, target)
            todo = [] if count is not None else [number for number in range(limit) if number not in done]
            with contextlib.closing(
                play(task, player, self._plan(name), todo, on_open=self._compare_description)
            ) as episodes:
                for episode in episodes:
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
            videos=self.config.videos if name in (POLICY, COMPARE) else 0,
            video_folder=VIDEOS if name == POLICY else f"{VIDEOS}_{name}",
        )

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
        speed = summary.latency(own, self.tasks[0].fps, int(getattr(self.first.loaded.config, "n_action_steps", 1)))
        findings = [one.sentence for one in differences] + self.notes + ([speed.sentence] if speed else [])
        caveats = summary.caveats(
            tasks,
            stopped=self.stopped,
            target=self.config.target_precision,
            splits=[task.split for task in self.tasks],
            compares=self.second is not None,
        )
        document = closed_loop(
            headline=summary.headline(whole),
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
            latency=speed,
            document=document,
        )

    def _seconds(self, seconds: float) -> float:
        """Time of the evaluation in all its parts."""
        self.identity["seconds"] = round(self.identity.get("seconds", 0.0) + seconds, 3)
        self._write_identity()
        return float(self.identity["seconds"])


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


def _parts(loaded: Pretrained) -> tuple[Any, Any, Any]:
    return loaded.policy, loaded.preprocessor, loaded.postprocessor


def _load(config: EvalConfig, place: str, device: str, revision: str | None, *, own: bool) -> _Contestant:
    assert config.policy is not None
    folder = find_policy(place, revision=revision)
    loaded = load_pretrained(
        folder,
        device=device,
        config_overrides=changed_settings(config.policy, folder) if own else None,
        allow_missing=config.allow_missing,
        stats_dataset=config.stats_dataset,
        rename_map=config.rename_map,
    )
    logger.info("policy: %s, %s", folder, loaded.report.summary())
    return _Contestant(loaded, folder, "the policy" if own else f"the policy of `--compare={place}`", _digest(folder))


def _digest(folder: Path) -> str:
    """SHA-256 of the files that decide what a policy does."""
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors" or path.name in ("config.json", "adapter_config.json"):
            with path.open("rb") as file:
                whole.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def _stored(folder: Path, *, resumes: bool) -> dict[str, Any] | None:
    """What an evaluation that is gone on with wrote about itself.

    Raises:
        ConfigError: the folder holds an evaluation and nobody asked to go on, or holds none.
    """
    path = folder / EVAL_CONFIG
    if not resumes:
        if folder.exists() or folder.is_symlink():
            go_on = ", or go on with it by `--resume=true`" if path.is_file() else ""
            raise ConfigError(
                f"the output folder `{folder}` exists already",
                f"choose another `--output_dir`, or leave it out for a new one named by the time{go_on}",
            )
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored["settings"], dict) or not isinstance(stored["seed"], int):
            raise TypeError("it has no settings")
        return dict(stored)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"`--resume=true`: `{folder}` holds no evaluation in an environment to go on with ({path.name}: {error})",
            "leave `--resume` out to begin one in a new folder",
        ) from error


def _identity(
    config: EvalConfig,
    first: _Contestant,
    second: _Contestant | None,
    device: torch.device,
    reason: str,
    stored: dict[str, Any] | None,
) -> dict[str, Any]:
    """What defines the evaluation; compared with the stored one, which then goes on.

    Raises:
        ConfigError: the command asks for another evaluation than the stored one.
    """
    settings = encode(replace(config, policy=first.loaded.config), full=True)
    settings["policy"]["pretrained_path"] = str(first.folder)
    identity: dict[str, Any] = {
        "format": "mimetic closed-loop evaluation settings",
        "format_version": 1,
        "seed": secrets.randbits(31) if config.seed is None else config.seed,
        "checkpoint": {"path": str(first.folder), "type": first.loaded.config.type_name, "sha256": first.digest},
        "compare": None if second is None else {"path": str(second.folder), "sha256": second.digest},
        "device": f"{device} ({reason})",
        "versions": {
            "mimetic": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "environments": {},
        "settings": json.loads(json.dumps(settings, default=str)),
    }
    if stored is None:
        return identity
    problems = _differences(stored, identity, seed_matters=config.seed is not None)
    if problems:
        raise ConfigError(
            f"`{config.output_dir}` holds another evaluation: {'; '.join(problems)}",
            "repeat the command that began it, with `--resume=true`, or begin a new one in another `--output_dir`",
        )
    identity["seed"] = stored["seed"]
    identity["environments"] = dict(stored.get("environments") or {})
    identity["seconds"] = stored.get("seconds", 0.0)
    return identity


def _differences(stored: Mapping[str, Any], new: Mapping[str, Any], *, seed_matters: bool) -> list[str]:
    found = []
    if stored.get("checkpoint", {}).get("sha256") != new["checkpoint"]["sha256"]:
        found.append(f"its policy is {stored.get('checkpoint', {}).get('path')}, with other weights or settings")
    if stored.get("compare") and new["compare"] and stored["compare"].get("sha256") != new["compare"]["sha256"]:
        found.append(f"its second policy is {stored['compare'].get('path')}")
    if seed_matters and stored["seed"] != new["seed"]:
        found.append(f"`--seed` was {stored['seed']}")
    was, now = stored["settings"], new["settings"]
    if stored.get("compare") and not new["compare"]:
        found.append(f"`--compare` was {stored['compare'].get('path')}")
    if was.get("ablate") not in ("none", now["ablate"]):
        found.append(f"`--ablate` was {was.get('ablate')}")
    least = (was.get("eval") or {}).get("n_episodes", 0)
    if now["eval"]["n_episodes"] < least:
        found.append(f"`--eval.n_episodes` was {least}, and an evaluation only grows")
    before, after = _flat(stored["settings"]), _flat(new["settings"])
    for name in sorted(before.keys() | after.keys()):
        is_free = any(name == free or name.startswith(free + ".") for free in (*_FREE, "seed"))
        if not is_free and before.get(name) != after.get(name):
            found.append(f"`--{name}` was {json.dumps(before.get(name))}")
    return found


def _flat(group: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
