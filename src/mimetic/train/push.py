"""Pushing a run to the hub: its checkpoints while it goes on, its policy at the end (spec/training.md 20).

A thread of its own sends, tries again, and tells once what it could not send, with the command that does it by hand.
Nothing here ends or holds up a training: what cannot work is refused before the first step by `require_hub`.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from mimetic.config.codec import encode
from mimetic.errors import ConfigError, HubError, Interrupted
from mimetic.hub.card import CardFacts, card_text
from mimetic.hub.upload import (
    Push,
    client,
    files_of,
    holds_secret,
    is_policy_file,
    is_transient,
    push,
    reason,
    require_repo,
    retry_after,
)
from mimetic.names import CHECKPOINTS_DIR, PRETRAINED_DIR
from mimetic.train.config import TrainConfig

logger = logging.getLogger(__name__)

EMA_DIR = "pretrained_model_ema"
CARD = "README.md"
POLICY_MESSAGE = "Upload policy weights, train config and readme"
_MANY = 3
_SLOWEST = 200_000
"""Bytes a second below which a connection counts as dead."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long sending is tried and waited for.

    Args:
        tries: attempts at one commit.
        first_s: mean wait before the second attempt [s]; it doubles with each attempt.
        longest_s: longest wait between two attempts [s].
        silence_s: how long the end of a run waits without anything arriving [s], besides the time of the largest file.
        stopped_s: how long a run that was stopped waits for what is being sent [s].
        tell_s: time between two lines on what is waited for [s].
    """

    tries: int = 5
    first_s: float = 2.0
    longest_s: float = 300.0
    silence_s: float = 600.0
    stopped_s: float = 20.0
    tell_s: float = 30.0


def pushes_policy(config: TrainConfig) -> bool:
    """Whether the policy is pushed at the end of the run."""
    policy = config.policy
    return policy is not None and policy.push_to_hub and policy.repo_id is not None


def pushes_checkpoints(config: TrainConfig) -> bool:
    """Whether each checkpoint is pushed."""
    return config.save_checkpoint_to_hub and config.policy is not None and config.policy.repo_id is not None


def require_hub(config: TrainConfig) -> None:
    """Check, before anything else is done, that what a run shall push can be pushed; contacts nobody otherwise.

    The repository is made where it is absent. A dry run only checks the login.

    Args:
        config: settings as used.

    Raises:
        ConfigError: the id is none, nobody is logged in, the token may not write there, the repository is public and
            should not be, checkpoints are off, or a setting holds a token.
        OfflineError: the network is forbidden or not there.
        HubError: the hub fails.
    """
    if not (pushes_policy(config) or pushes_checkpoints(config)):
        return
    assert config.policy is not None
    assert config.policy.repo_id is not None
    if not config.save_checkpoint:
        raise ConfigError(
            f"`--policy.repo_id={config.policy.repo_id}` asks to push to the hub, and `--save_checkpoint=false` leaves "
            "nothing to push",
            "leave `--save_checkpoint` out; `--save_freq=0` saves only the last step",
        )
    for name, value in encode(config, full=True).items():
        if holds_secret(json.dumps(value)):
            raise ConfigError(
                f"`--{name}` holds what looks like a token or key, and the settings of a run are pushed with it",
                "take it out; logins belong to `hf auth login` and `wandb login`",
            )
    said = require_repo(config.policy.repo_id, private=config.policy.private, create=not config.dry_run)
    logger.info("hub: %s", said)
    if config.dry_run:
        return
    what = [text for text, is_meant in (("each checkpoint", pushes_checkpoints(config)),) if is_meant]
    what += ["the policy at the end"] if pushes_policy(config) else []
    logger.info("hub: %s will be pushed to %s", " and ".join(what), config.policy.repo_id)


def open_pusher(config: TrainConfig, *, patience: Patience | None = None) -> Pusher | None:
    """The pusher of a run; None when nothing is to be pushed.

    Args:
        config: settings as used; `require_hub` has accepted them.
        patience: how long sending is tried.
    """
    if not (pushes_policy(config) or pushes_checkpoints(config)) or config.dry_run:
        return None
    assert config.policy is not None
    assert config.policy.repo_id is not None
    return Pusher(
        config.policy.repo_id,
        private=config.policy.private,
        policy=pushes_policy(config),
        checkpoints=pushes_checkpoints(config),
        patience=patience or Patience(),
    )


@dataclass
class _Job:
    label: str
    folder: Path
    send: Callable[[], str]
    by_hand: str
    bytes: int
    warns: bool = True
    failed: str = ""
    done: threading.Event = field(default_factory=threading.Event)


class _Abandoned(Exception):
    """The run has ended, and nobody waits any more."""


class Pusher:
    """Sends to one repository, in one thread, in order.

    Args:
        repo_id: `user/name`.
        private: for the repository of averaged weights, which is made when it is needed.
        policy: whether `finish` pushes the policy.
        checkpoints: whether `checkpoint` pushes.
        patience: how long sending is tried and waited for.
    """

    def __init__(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        policy: bool = True,
        checkpoints: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self.repo_id = repo_id
        self._private = private
        self._pushes_policy = policy
        self._pushes_checkpoints = checkpoints
        self._patience = patience or Patience()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: list[_Job] = []
        self._abandoned = threading.Event()
        self._heard = time.monotonic()
        self._dice = random.Random()  # of its own: the global one's state is part of a checkpoint
        self._thread: threading.Thread | None = None
        self._told_slow = False

    def checkpoint(self, folder: Path, step: int) -> None:
        """Queue a checkpoint folder for `checkpoints/<its name>/`; returns at once, and never fails.

        Commit "checkpoint <name>" and tag "<name>" as LeRobot's, with the name padded by zeros as on the disk.

        Args:
            folder: a complete checkpoint; it must stay until `busy` says no.
            step: its step, for the log.
        """
        if not self._pushes_checkpoints:
            return
        name, place = folder.name, f"{CHECKPOINTS_DIR}/{folder.name}"
        job = Push(
            files=files_of(folder),
            repo_id=self.repo_id,
            into=place,
            message=f"checkpoint {name}",
            tag=name,
            replaces=lambda path: path.startswith(place + "/"),
        )
        self._add(
            f"the checkpoint of step {step}",
            folder,
            lambda: push(job, progress=self._progress),
            f'hf upload {self.repo_id} {shlex.quote(str(folder))} {place} --commit-message "checkpoint {name}"',
        )
        waiting = sum(1 for one in self._jobs if not one.done.is_set())
        if waiting > _MANY and not self._told_slow:
            self._told_slow = True
            logger.warning(
                "hub: %d checkpoints wait to be pushed, saving is faster than sending; they stay on the disk until "
                "then (a larger --save_freq helps)",
                waiting,
            )

    def busy(self, folder: Path) -> bool:
        """Whether a checkpoint folder is being sent or waits for it, so that it must not be removed yet."""
        return any(job.folder == folder.resolve() and not job.done.is_set() for job in list(self._jobs))

    def finish(self, last: Path, facts: CardFacts) -> None:
        """Push the policy of a run that has ended well, and wait for everything that is queued.

        Args:
            last: the checkpoint whose policy is pushed, with its averaged weights, if any, to `<repo_id>-ema`.
            facts: what the model card says.

        Raises:
            HubError: the policy did not arrive; the training itself is complete, and the hint pushes by hand.
            Interrupted: Ctrl-C while waiting.
        """
        policy = self._add_policy(last, facts) if self._pushes_policy else None
        self._wait()
        if policy is not None and policy.failed:
            self._jobs.remove(policy)  # told by the error
        self.close()
        if policy is not None and policy.failed:
            raise HubError(
                f"the training is complete, but its policy could not be pushed to {self.repo_id}: {policy.failed}",
                policy.by_hand,
            )

    def close(self) -> None:
        """End the thread, and name everything that did not arrive; also for a run that was stopped."""
        left = [job for job in self._jobs if not job.done.is_set()]
        if left and not self._abandoned.is_set():
            logger.info(
                "hub: waiting up to %.0f s for %s", self._patience.stopped_s, ", ".join(job.label for job in left)
            )
            deadline = time.monotonic() + self._patience.stopped_s
            for job in left:
                job.done.wait(max(0.0, deadline - time.monotonic()))
        self._abandoned.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(timeout=self._patience.first_s)
        missing = [job for job in self._jobs if job.failed or not job.done.is_set()]
        self._jobs = []
        if missing:
            logger.warning(
                "hub: not pushed to %s: %s; by hand:\n%s",
                self.repo_id,
                "; ".join(f"{job.label} ({job.failed or 'not sent yet'})" for job in missing),
                "\n".join(job.by_hand for job in missing),
            )

    def _add_policy(self, last: Path, facts: CardFacts) -> _Job:
        card = card_text(facts)
        readme = _write_card(last.parent.parent / CARD, card)
        model = last / PRETRAINED_DIR
        job = self._add(
            "the policy",
            last,
            lambda: self._send_policy(model, self.repo_id, card),
            _by_hand(self.repo_id, model, readme),
            warns=False,
        )
        average = last / EMA_DIR
        if average.is_dir():
            other = f"{self.repo_id}-ema"
            more = card_text(facts.of_average(other))

            def send() -> str:
                client().create_repo(other, private=self._private, exist_ok=True)
                return self._send_policy(average, other, more)

            self._add("the averaged weights", last, send, _by_hand(other, average, None))
        return job

    def _send_policy(self, model: Path, repo_id: str, card: str) -> str:
        job = Push(files=files_of(model), repo_id=repo_id, message=POLICY_MESSAGE, replaces=is_policy_file)
        try:
            push(replace(job, more={CARD: card.encode()}), progress=self._progress)
        except ValueError as error:
            if CARD not in str(error):
                raise
            # The card is worth less than the weights, and the hub's rules for its head change.
            logger.warning("hub: the model card is refused and left out: %s", " ".join(str(error).split())[:300])
            push(job, progress=self._progress)
        logger.info("Model pushed to %s/%s", client().endpoint, repo_id)
        return repo_id

    def _add(self, label: str, folder: Path, send: Callable[[], str], by_hand: str, *, warns: bool = True) -> _Job:
        size = max((path.stat().st_size for path in files_of(folder).values()), default=0)
        job = _Job(label, folder.resolve(), send, by_hand, size, warns)
        self._jobs.append(job)
        self._queue.put(job)
        if self._thread is None:
            self._heard = time.monotonic()
            self._thread = threading.Thread(target=self._work, name="hub", daemon=True)
            self._thread.start()
        return job

    def _progress(self) -> None:
        self._heard = time.monotonic()
        if self._abandoned.is_set():
            raise _Abandoned

    def _work(self) -> None:
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        disable_progress_bars()  # bars of this thread would be drawn into the training's
        while (job := self._queue.get()) is not None:
            try:
                self._try(job)
            except _Abandoned:
                return
            except Exception as error:  # whatever it is: a training is worth more than its copy
                job.failed = _said(error)
                if job.warns and not self._abandoned.is_set():
                    logger.warning(
                        "hub: %s could not be pushed to %s: %s; the training goes on. By hand:\n%s",
                        job.label,
                        self.repo_id,
                        job.failed,
                        job.by_hand,
                    )
            self._heard = time.monotonic()
            job.done.set()

    def _try(self, job: _Job) -> None:
        patience = self._patience
        for attempt in range(1, patience.tries + 1):
            if self._abandoned.is_set():
                raise _Abandoned
            try:
                job.send()
                logger.info("hub: %s is pushed to %s", job.label, self.repo_id)
                return
            except Exception as error:
                if attempt == patience.tries or isinstance(error, _Abandoned) or not is_transient(error):
                    raise
                wait = patience.first_s * 2 ** (attempt - 1) * self._dice.uniform(0.5, 1.5)
                wait = min(max(wait, retry_after(error)), patience.longest_s)
                logger.info(
                    "hub: %s: attempt %d of %d failed (%s), the next in %.0f s",
                    job.label,
                    attempt,
                    patience.tries,
                    reason(error),
                    wait,
                )
            self._abandoned.wait(wait)

    def _wait(self) -> None:
        """Wait for the queue as long as things arrive."""
        patience, begun = self._patience, time.monotonic()
        told = self._heard = begun  # what was sent last may be hours ago
        try:
            while left := [job for job in self._jobs if not job.done.is_set()]:
                left[0].done.wait(min(1.0, patience.tell_s))
                now = time.monotonic()
                allowed = patience.silence_s + max(job.bytes for job in left) / _SLOWEST
                if now - self._heard > allowed:
                    logger.warning("hub: nothing arrived for %.0f s, giving up", now - self._heard)
                    for job in left:
                        job.failed = f"nothing arrived for {now - self._heard:.0f} s"
                    self._abandoned.set()
                    return
                if now - told > patience.tell_s:
                    told = now
                    names = ", ".join(f"{job.label} ({job.bytes / 1e6:.0f} MB)" for job in left)
                    logger.info("hub: still sending after %.0f s: %s", now - begun, names)
        except KeyboardInterrupt:
            self._abandoned.set()
            self.close()
            raise Interrupted("stopped while pushing to the hub; the training itself is complete") from None


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, ConfigError) else reason(error)


def _by_hand(repo_id: str, model: Path, readme: Path | None) -> str:
    lines = [f'hf upload {repo_id} {shlex.quote(str(model))} . --commit-message "{POLICY_MESSAGE}"']
    if readme is not None:
        lines.append(f"hf upload {repo_id} {shlex.quote(str(readme))} {CARD}")
    return "\n".join(lines)


def _write_card(path: Path, card: str) -> Path:
    """Keep the card in the run's folder too, where it can be read and pushed by hand."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.write_text(card, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logger.warning("hub: the model card could not be written to %s: %s", path, error.strerror or error)
    return path
